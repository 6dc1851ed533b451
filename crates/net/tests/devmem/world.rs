//! Two stacks, one of them with memory that is bound to queue 1: on one cable, or both the kernel's.

use onecopy_link::Tap;
use onecopy_net::devmem::{Binding, Frag, Frags};
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Carrier, Result, Stack, Transport};
use onecopy_pool::{DeviceId, DeviceMemory};
use std::net::SocketAddr;

pub const SERVER: &str = "10.0.0.2:80";

pub fn server() -> SocketAddr {
    SERVER.parse().unwrap()
}

pub struct World {
    pub near: Stack,
    pub far: Stack,
    pub memory: DeviceMemory,
    pub listener: Listener,
    pub at: SocketAddr,
}

impl World {
    /// One of each kind, for what is alike under all. Without the kernel's where it cannot do it.
    pub fn each(pages: u32) -> impl Iterator<Item = World> {
        let kernels = [1, 3].into_iter().filter_map(move |shards| World::kernel(pages, shards));
        std::iter::once(World::new(pages)).chain(kernels)
    }

    /// Over the kernel's TCP, by so many rings. None, and said why, where it cannot do it.
    fn kernel(pages: u32, shards: u32) -> Option<World> {
        let build = || Stack::builder().transport(Transport::Kernel).shards(shards).build();
        let (near, far) = match (build(), build()) {
            (Ok(near), Ok(far)) => (near, far),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("skipped, as for the kernel: {error}");
                return None;
            }
        };
        let memory = DeviceMemory::opaque(pages, DeviceId(7)).unwrap();
        far.set_queues(2).unwrap();
        // Much more than a test binds: what may be locked is a user's, and others of his run beside it.
        let much = DeviceMemory::opaque(8192, DeviceId(7)).unwrap();
        match far.bind_rx(&much, &[1]) {
            Ok(binding) => drop(binding),
            Err(error) => {
                assert_eq!(error.raw_os_error(), 95, "{error}");
                eprintln!("skipped, as for the kernel: {error}");
                return None;
            }
        }
        let listener = Listener::bind(&far, "127.0.0.1:0".parse().unwrap()).unwrap();
        let at = listener.local_addr().unwrap();
        far.steer(at, 1).unwrap();
        Some(World { near, far, memory, listener, at })
    }

    /// Whether it is the kernel's.
    pub fn is_kernels(&self) -> bool {
        self.far.carrier() == Carrier::Kernel
    }

    /// Memory of so many pages, steered to and not bound yet.
    pub fn new(pages: u32) -> World {
        let (a, b) = Tap::cable(1500).unwrap();
        let build = |tap, address| Stack::builder().link(tap).address(address).build().unwrap();
        let (near, far) = (build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24"));
        let memory = DeviceMemory::opaque(pages, DeviceId(7)).unwrap();
        far.set_queues(2).unwrap();
        far.steer(server(), 1).unwrap();
        let listener = Listener::bind(&far, server()).unwrap();
        World { near, far, memory, listener, at: server() }
    }

    pub fn bind(&self) -> Binding {
        self.far.bind_rx(&self.memory, &[1]).unwrap()
    }

    /// A connection, the sender's end first.
    pub fn connect(&self) -> (Stream, Stream) {
        let sender = Stream::connect(&self.near, self.at).unwrap();
        let receiver = self.listener.accept().unwrap().0;
        // What hangs is told of.
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        sender.set_write_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        (sender, receiver)
    }

    /// What lies in fragments.
    pub fn read(&self, frags: &[Frag]) -> Vec<u8> {
        let mut all = Vec::new();
        for frag in frags {
            let mut bytes = vec![0; frag.len as usize];
            self.memory.read_at(frag.offset, &mut bytes).unwrap();
            all.extend(bytes);
        }
        all
    }

    /// What was received, wherever it lies.
    pub fn bytes(&self, frags: &Frags) -> Vec<u8> {
        let mut all = frags.linear().map(|view| view.to_vec()).unwrap_or_default();
        all.extend(self.read(frags.device()));
        assert_eq!(all.len(), frags.len());
        all
    }

    /// Whether all pages are home, but for the one that small pieces are cut from.
    pub fn all_home(&self) -> bool {
        self.memory.free() + u64::from(self.memory.page_len()) >= self.memory.len()
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

pub fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    let error = result.unwrap_err();
    assert!(error.reason().is_some(), "{error:?} says what to do");
    error.raw_os_error()
}
