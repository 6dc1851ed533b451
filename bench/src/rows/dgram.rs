//! How two workers come to have datagram sockets that are connected to each other, the kernel's or ours.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, ensure};
use onecopy::unix::{Datagram, SocketAddr};
use rustix::net::SocketAddrUnix;

use super::conn::Conn;
use super::setup::{Kind, Setup};

/// Datagrams to and fro before anything else. By then two of ours share memory: they look for each other now and then, in
/// their own calls.
const GREETINGS: usize = 256;

/// Binds the name, says that the peer may come, and connects to who comes.
pub fn accept(setup: &Setup) -> Result<Conn> {
    let mut conn = if setup.is_kernel() {
        let fd = Kind::Datagrams.kernel_socket()?;
        rustix::net::bind(&fd, &setup.address()?)?;
        crate::proc::say_ready()?;
        let (_, _, from) = rustix::net::recvfrom(&fd, &mut [0][..], rustix::net::RecvFlags::empty())?;
        let from = SocketAddrUnix::try_from(from.context("the first datagram came from nobody")?)?;
        kernel(setup, fd, &from)?
    } else {
        let socket = Datagram::bind_with(SocketAddr::from_abstract_name(&setup.name)?, &setup.config()?)?;
        crate::proc::say_ready()?;
        let (_, from) = socket.recv_from(&mut [0])?;
        socket.connect(&from)?;
        Conn::Datagrams(socket)
    };
    conn.sign()?;
    for _ in 1..GREETINGS {
        conn.wait_sign()?;
        conn.sign()?;
    }
    met(setup, conn)
}

/// Connects to the name, and waits until who has it has connected, too.
pub fn connect(setup: &Setup) -> Result<Conn> {
    let mut conn = if setup.is_kernel() {
        let fd = Kind::Datagrams.kernel_socket()?;
        // Who has no name cannot be answered.
        rustix::net::bind(&fd, &SocketAddrUnix::new_unnamed())?;
        kernel(setup, fd, &setup.address()?)?
    } else {
        let socket = Datagram::unbound_with(&setup.config()?)?;
        socket.autobind()?;
        socket.connect(SocketAddr::from_abstract_name(&setup.name)?)?;
        Conn::Datagrams(socket)
    };
    for _ in 0..GREETINGS {
        conn.sign()?;
        conn.wait_sign()?;
    }
    met(setup, conn)
}

fn kernel(setup: &Setup, fd: OwnedFd, peer: &SocketAddrUnix) -> Result<Conn> {
    rustix::net::connect(&fd, peer).context("connecting")?;
    Conn::kernel(fd.into(), setup)
}

/// What is timed as shared memory must be that.
fn met(setup: &Setup, conn: Conn) -> Result<Conn> {
    ensure!(
        setup.is_kernel() || conn.upgraded(),
        "two datagram sockets did not come to share memory; `onecopy doctor` says what it takes"
    );
    Ok(conn)
}
