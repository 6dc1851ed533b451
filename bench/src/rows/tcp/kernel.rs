//! The kernel's sockets: the peer of every engine, and the engine that all are compared with.

use anyhow::{Context as _, Result, ensure};
use onecopy_sys::netns::Namespace;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use serde_json::{Value, json};

use super::super::job::with;
use super::load::{self, End};
use super::plan::Plan;
use crate::proc;

/// The congestion control of all sockets. (Linux's own default; bbr, which some machines have instead, paces.)
const CONGESTION: &str = "cubic";

/// A connection.
struct Socket {
    fd: OwnedFd,
    spin: bool,
}

impl End for Socket {
    fn send_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let sent = rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL).context("sending")?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let flags = if self.spin { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        loop {
            match rustix::net::recv(&self.fd, &mut *buffer, flags) {
                Ok((_, len)) => return Ok(len),
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(error) => return Err(error).context("receiving"),
            }
        }
    }

    fn finish(&mut self) -> Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }
}

/// A socket with the plan's buffers, which have to be there before it is connected (tcp(7)). Beyond net.core.rmem_max it takes root.
fn socket(plan: &Plan) -> Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    sockopt::set_socket_recv_buffer_size_force(&fd, plan.buffer).context("setting SO_RCVBUFFORCE")?;
    sockopt::set_socket_send_buffer_size_force(&fd, plan.buffer).context("setting SO_SNDBUFFORCE")?;
    sockopt::set_tcp_nodelay(&fd, plan.nodelay())?;
    // (Of the socket: the default of a namespace can't always be set.)
    sockopt::set_tcp_congestion(&fd, CONGESTION).with_context(|| {
        format!("setting TCP_CONGESTION to {CONGESTION}: is it in net.ipv4.tcp_available_congestion_control?")
    })?;
    Ok(fd)
}

/// What is in force.
fn facts(fd: &OwnedFd) -> Result<Value> {
    let (send, receive) = (sockopt::socket_send_buffer_size(fd)?, sockopt::socket_recv_buffer_size(fd)?);
    let congestion = sockopt::tcp_congestion(fd)?;
    ensure!(congestion == CONGESTION, "the congestion control is {congestion}");
    Ok(json!({"buffers": format!("{send} out, {receive} in")}))
}

/// The peer: listens, has an engine connect to it, and does the other half of what the plan says.
pub fn peer(job: &Value) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    plan.peers()?.enter().context("entering the peer's namespace")?;
    let listen = |stream| -> Result<OwnedFd> {
        let fd = socket(&plan)?;
        rustix::net::bind(&fd, &plan.address(stream))?;
        rustix::net::listen(&fd, 1)?;
        Ok(fd)
    };
    let listeners = (0..plan.streams).map(listen).collect::<Result<Vec<_>>>()?;
    proc::say_ready()?;
    let accept = |listener: &OwnedFd| -> Result<Socket> {
        let fd = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).context("accepting")?;
        Ok(Socket { fd, spin: plan.spin })
    };
    let ends = listeners.iter().map(accept).collect::<Result<Vec<_>>>()?;
    finish(ends, &plan, false)
}

/// The engine.
pub fn engine(job: &Value) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    let namespace = plan.engines.as_deref().context("the kernel has no namespace")?;
    Namespace::open(namespace)?.enter().context("entering the engine's namespace")?;
    let connect = |stream| -> Result<Socket> {
        let fd = socket(&plan)?;
        rustix::net::connect(&fd, &plan.address(stream)).context("connecting")?;
        Ok(Socket { fd, spin: plan.spin })
    };
    let ends = (0..plan.streams).map(connect).collect::<Result<Vec<_>>>()?;
    finish(ends, &plan, true)
}

fn finish(ends: Vec<Socket>, plan: &Plan, engine: bool) -> Result<Value> {
    let facts = facts(&ends.first().context("no stream")?.fd)?;
    Ok(with(load::go(ends, plan, engine)?, facts))
}
