//! Sending on a client's TCP connection, within its patience.

use super::timeout::within;
use super::trouble::{Patience, Trouble};
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

/// After an error of a write: waits if waiting helps.
pub async fn wait_writable(client: &TcpStream, error: io::Error, patience: Duration) -> Result<(), Trouble> {
    match error.kind() {
        io::ErrorKind::WouldBlock => match within(patience, client.writable()).await {
            Some(Ok(())) => Ok(()),
            _ => Err(Trouble::Broken),
        },
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(Trouble::Broken),
    }
}
