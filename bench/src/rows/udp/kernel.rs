//! The kernel's sockets: the peer of both engines, and the engine that ours is compared with.

use anyhow::{Context as _, Result};
use onecopy_sys::netns::Namespace;
use onecopy_sys::sockopt::set_int;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, MMsgHdr, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType,
};
use serde_json::{Value, json};
use std::io::IoSlice;
use std::net::{SocketAddr, SocketAddrV4};

use super::super::job::with;
use super::super::tcp::plan::{ENGINE, Plan};
use super::load::{self, Datagrams, Mode, PATIENCE};
use crate::proc;

/// udp(7), linux/udp.h.
const SOL_UDP: i32 = 17;
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

/// Datagrams to a call of sendmmsg and recvmmsg.
const MANY: usize = onecopy_sys::socket::MANY;

struct Socket {
    fd: OwnedFd,
    mode: Mode,
}

impl Socket {
    fn open(plan: &Plan, mode: Mode) -> Result<Socket> {
        let fd =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_recv_buffer_size_force(&fd, plan.buffer).context("setting SO_RCVBUFFORCE")?;
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        if mode == Mode::Train {
            set_int(fd.as_fd(), SOL_UDP, UDP_SEGMENT, mode.size() as i32).context("setting UDP_SEGMENT")?;
            set_int(fd.as_fd(), SOL_UDP, UDP_GRO, 1).context("setting UDP_GRO")?;
        }
        Ok(Socket { fd, mode })
    }

    /// What of it is in force.
    fn finish(self, plan: &Plan, engine: bool) -> Result<Value> {
        let buffer = sockopt::socket_recv_buffer_size(&self.fd)?;
        let mode = self.mode;
        Ok(with(load::go(self, mode, plan, engine)?, json!({"buffer": buffer})))
    }
}

impl Datagrams for Socket {
    fn send(&mut self, bytes: &[u8], size: usize) -> Result<bool> {
        let sent = match self.mode {
            Mode::Train => rustix::net::send(&self.fd, bytes, SendFlags::empty()).map(drop),
            Mode::One => bytes
                .chunks(size)
                .try_for_each(|one| rustix::net::send(&self.fd, one, SendFlags::empty()).map(drop)),
            Mode::Many => {
                let slices: Vec<_> = bytes.chunks(size).map(|one| [IoSlice::new(one)]).collect();
                let mut none: Vec<SendAncillaryBuffer<'_, '_, '_>> =
                    slices.iter().map(|_| Default::default()).collect();
                let mut messages: Vec<_> =
                    slices.iter().zip(&mut none).map(|(slice, none)| MMsgHdr::new(slice, none)).collect();
                let mut done = 0;
                loop {
                    match rustix::net::sendmmsg(&self.fd, &mut messages[done..], SendFlags::empty()) {
                        Ok(n) => done += n,
                        Err(errno) => break Err(errno),
                    }
                    if done == slices.len() {
                        break Ok(());
                    }
                }
            }
        };
        match sent {
            // The device's queue is full: this one is lost, as others are.
            Ok(()) | Err(Errno::NOBUFS) => Ok(true),
            Err(Errno::CONNREFUSED) => Ok(false),
            Err(errno) => Err(errno).context("sending"),
        }
    }

    fn recv(&mut self, buffer: &mut [u8], size: usize) -> Result<usize> {
        if self.mode != Mode::Many {
            let (_, len) = rustix::net::recv(&self.fd, buffer, RecvFlags::empty()).context("receiving")?;
            return Ok(len);
        }
        let mut lens = [0; MANY];
        let count = onecopy_sys::socket::recv_many(&self.fd, buffer, size, &mut lens);
        // (Each but an answer, which comes alone, has that length.)
        Ok(lens[..count.context("receiving")?].iter().sum())
    }
}

/// The peer: waits for an engine's greeting, answers, and does the other half of what the plan says.
pub fn peer(job: &Value) -> Result<Value> {
    let (plan, mode) = (Plan::from_job(job)?, Mode::from_job(job)?);
    plan.peers()?.enter().context("entering the peer's namespace")?;
    let socket = Socket::open(&plan, mode)?;
    rustix::net::bind(&socket.fd, &plan.address(0))?;
    proc::say_ready()?;
    let (_, _, from) = rustix::net::recvfrom(&socket.fd, &mut [0; 8][..], RecvFlags::empty())
        .context("waiting for the engine")?;
    let from = SocketAddr::try_from(from.context("nobody sent it")?)?;
    rustix::net::connect(&socket.fd, &from)?;
    rustix::net::send(&socket.fd, b"welcome", SendFlags::empty())?;
    socket.finish(&plan, false)
}

/// The engine.
pub fn engine(job: &Value) -> Result<Value> {
    let (plan, mode) = (Plan::from_job(job)?, Mode::from_job(job)?);
    let namespace = plan.engines.as_deref().context("the kernel has no namespace")?;
    Namespace::open(namespace)?.enter().context("entering the engine's namespace")?;
    let socket = Socket::open(&plan, mode)?;
    rustix::net::bind(&socket.fd, &SocketAddrV4::new(ENGINE, 0))?;
    rustix::net::connect(&socket.fd, &plan.address(0))?;
    rustix::net::send(&socket.fd, b"hello", SendFlags::empty())?;
    rustix::net::recv(&socket.fd, &mut [0; 8][..], RecvFlags::empty()).context("waiting for the peer")?;
    socket.finish(&plan, true)
}
