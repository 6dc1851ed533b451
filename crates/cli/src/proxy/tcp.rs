//! Sending on a client's TCP connection, within its patience.

use super::timeout::within;
use super::trouble::{Patience, Trouble};
use onecopy_sys::sockopt::tcp_acknowledged;
use rustix::fd::AsFd;
use rustix::net::SendFlags;
use std::io;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Sends all of `bytes` as they are; `more` follows at once.
pub async fn send_all(
    tcp: &TcpStream,
    mut bytes: &[u8],
    more: bool,
    patience: Patience,
) -> Result<(), Trouble> {
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    while !bytes.is_empty() {
        match tcp.try_io(Interest::WRITABLE, || Ok(rustix::net::send(tcp, bytes, flags)?)) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) => wait_writable(tcp, error, patience.client).await?,
        }
    }
    Ok(())
}

/// After an error of a write: waits if waiting helps, and gives up a client that takes nothing at all for so long.
///
/// An event tells of room only when a third of the socket's buffer is free, which is megabytes where segments are large: a
/// slow reader may need longer for that than any patience. What its side has acknowledged says that it lives.
pub async fn wait_writable(client: &TcpStream, error: io::Error, patience: Duration) -> Result<(), Trouble> {
    match error.kind() {
        io::ErrorKind::WouldBlock => {}
        io::ErrorKind::Interrupted => return Ok(()),
        _ => return Err(Trouble::Broken),
    }
    // Most waits are short: only a long one is worth the question.
    let (mut wait, mut before) = (patience / 4, None);
    loop {
        match within(wait, client.writable()).await {
            Some(Ok(())) => return Ok(()),
            Some(Err(_)) => return Err(Trouble::Broken),
            None => {}
        }
        let now = tcp_acknowledged(client.as_fd()).map_err(|_| Trouble::Broken)?;
        if before.replace(now) == Some(now) {
            return Err(Trouble::Broken);
        }
        wait = patience;
    }
}
