//! What the paths share: bytes that depend on where they are, sums of them, and a connection over a cable between two stacks.

use std::fs;
use std::net::SocketAddr;

use onecopy::advanced::link::Tap;
use onecopy::advanced::pool::DeviceMemory;
use onecopy::devmem::Binding;
use onecopy::{Stack, tcp};

use crate::Checked;

/// Bytes that depend on where they are.
pub fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from as u64..(from + len) as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// A sum that sees an exchange of two bytes, too.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Whether the CPU's sum of what came is that of what was to come.
pub fn same(what: &str, got: &[u8], wanted: &[u8]) -> Checked<()> {
    let (got, wanted) = (sum(got), sum(wanted));
    if got == wanted {
        Ok(())
    } else {
        Err(format!("{what}: the sum is {got:016x} and not {wanted:016x}").into())
    }
}

/// Two stacks on a cable, and a connection from the near one to the far one.
pub struct World {
    pub sender: tcp::Stream,
    pub receiver: tcp::Stream,
    _listener: tcp::Listener,
    /// Of the far one's queue, which the connection comes to.
    _binding: Option<Binding>,
    pub near: Stack,
    /// The threads that drive the near one.
    near_threads: Vec<String>,
    _far: Stack,
}

impl World {
    /// With `memory` bound for what comes, where there is some.
    pub fn new(memory: Option<&DeviceMemory>) -> Checked<World> {
        let server: SocketAddr = "10.0.0.2:80".parse()?;
        let (a, b) = Tap::cable(9000)?;
        let before = threads()?;
        let near = Stack::builder().link(a).address("10.0.0.1/24").build()?;
        let mut near_threads = threads()?;
        near_threads.retain(|thread| !before.contains(thread));
        let far = Stack::builder().link(b).address("10.0.0.2/24").build()?;
        far.set_queues(2)?;
        far.steer(server, 1)?;
        let binding = memory.map(|memory| far.bind_rx(memory, &[1])).transpose()?;
        let listener = tcp::Listener::bind(&far, server)?;
        let sender = tcp::Stream::connect(&near, server)?;
        let receiver = listener.accept()?.0;
        Ok(World { sender, receiver, _listener: listener, _binding: binding, near, near_threads, _far: far })
    }

    /// Seconds of CPU that the near stack's threads have taken (the first figure of /proc/PID/task/TID/schedstat, in nanoseconds: proc(5)).
    pub fn near_cpu(&self) -> Checked<f64> {
        let mut all = 0.0;
        for thread in &self.near_threads {
            let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))?;
            all += text.split(' ').next().unwrap_or_default().parse::<f64>()? / 1e9;
        }
        Ok(all)
    }
}

/// This process's threads.
fn threads() -> Checked<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        all.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(all)
}
