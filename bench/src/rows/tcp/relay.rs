//! What carries packets between two TAPs, so that the kernel has at both sides what a stack in user space has at one.

use anyhow::{Context as _, Result};
use onecopy_sys::netns::Namespace;
use onecopy_sys::tun::{self, CHECKSUM, Kind, TSO4};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use serde_json::Value;

use super::plan::Plan;
use crate::proc;

/// struct virtio_net_hdr, an Ethernet header, and the longest packet behind them.
const LONGEST: usize = 10 + 14 + (64 << 10);
/// Packets that go one way before the other is looked at.
const TURN: usize = 64;

/// The relay: every packet as it is, super-segments and checksums still to be made among them. It lives until its end is asked for.
pub fn relay(job: &Value) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    let engines = plan.engines.as_deref().context("the kernel has no namespace")?;
    let taps = [open(&plan.peers()?, &plan.device)?, open(&Namespace::open(engines)?, &plan.device)?];
    let mut packet = vec![0; LONGEST];
    proc::say_ready()?;
    loop {
        let mut idle = true;
        for (from, to) in [(&taps[0], &taps[1]), (&taps[1], &taps[0])] {
            for _ in 0..TURN {
                let Some(len) = again(rustix::io::read(from, &mut packet[..])).context("reading a TAP")?
                else {
                    break;
                };
                // What the other side has no room for is lost, as on a wire.
                again(rustix::io::write(to, &packet[..len])).context("writing to a TAP")?;
                idle = false;
            }
        }
        if idle {
            let mut both = [0, 1].map(|n| PollFd::new(&taps[n], PollFlags::IN));
            again(poll(&mut both, None)).context("waiting for packets")?;
        }
    }
}

/// None where there is nothing, no room, or a signal.
fn again<T>(done: rustix::io::Result<T>) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes the TAP of that name in there.
fn open(namespace: &Namespace, name: &str) -> Result<OwnedFd> {
    namespace.run(|| {
        let fd = tun::open().context("opening /dev/net/tun")?;
        tun::attach(&fd, name, Kind { ethernet: true, multi_queue: false }).context("taking a TAP")?;
        tun::set_offload(&fd, CHECKSUM | TSO4).context("having super-segments come whole")?;
        Ok(fd)
    })?
}
