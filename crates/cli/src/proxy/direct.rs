//! `--direct`: lends a client's socket to the daemon for one answer (see the daemon's side, `serve::direct`).

use super::timeout::within;
use super::trouble::{Patience, Trouble};
use crate::address::Address;
use crate::counters::Counters;
use crate::transport::same_user;
use rustix::fd::AsFd;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// The connections on which sockets are lent.
#[derive(Debug)]
pub struct Direct {
    address: Address,
    /// The daemon is trusted to let go of a socket: the client's connection is kept after a loan.
    pub trusted: bool,
    idle: RefCell<Vec<UnixStream>>,
}

impl Direct {
    /// Lends through the socket beside `backend`.
    pub fn new(backend: &Address, trusted: bool) -> Direct {
        Direct { address: backend.beside(".direct"), trusted, idle: RefCell::default() }
    }

    /// Has the daemon answer `head` straight to `client`. `Ok(false)`: the loan could not be made, nothing was
    /// sent, and the usual way is open. The bytes of the body that the daemon says it sent are counted, whole or not.
    pub async fn lend(
        &self,
        head: &[u8],
        client: &TcpStream,
        patience: Patience,
        counters: &mut Counters,
    ) -> Result<bool, Trouble> {
        let control = loop {
            let kept = self.idle.borrow_mut().pop();
            let used = kept.is_some();
            let Some(control) = kept.or_else(|| self.connect().ok()) else { return Ok(false) };
            match within(patience.backend, offer(&control, head, client)).await {
                Some(Ok(())) => break control,
                _ if used => {} // it ended while it was kept: the next one, or a new one
                _ => return Ok(false),
            }
        };
        // No bound here: how long a body may take is the daemon's to judge, by the progress that it sees.
        let mut said = Vec::new();
        while !said.ends_with(b"\n") {
            let mut buffer = [0; 32];
            control.readable().await.map_err(|_| Trouble::Broken)?;
            match control.try_read(&mut buffer) {
                Ok(0) => return Err(Trouble::Cut("it ended while it had the client's socket".to_owned())),
                Ok(n) => said.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Trouble::Cut(error.to_string())),
            }
        }
        let (whole, bytes) = outcome(&said)
            .ok_or_else(|| Trouble::Cut("it did not say what it had sent to the client".to_owned()))?;
        self.idle.borrow_mut().push(control);
        counters.direct += 1;
        counters.direct_bytes += bytes;
        counters.body_bytes += bytes;
        if whole { Ok(true) } else { Err(Trouble::Broken) }
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let stream = self.address.connect_nonblocking()?;
        if !same_user(&stream) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        UnixStream::from_std(stream)
    }
}

/// What the daemon says at the end: whether all of the answer was sent, and how many bytes of its body.
fn outcome(said: &[u8]) -> Option<(bool, u64)> {
    let (word, bytes) = std::str::from_utf8(said).ok()?.trim_end().split_once(' ')?;
    let whole = match word {
        "done" => true,
        "broken" => false,
        _ => return None,
    };
    Some((whole, bytes.parse().ok()?))
}

async fn offer(control: &UnixStream, head: &[u8], client: &TcpStream) -> io::Result<()> {
    let mut left = head;
    while !left.is_empty() {
        let n = control
            .async_io(Interest::WRITABLE, || {
                let descriptors = [client.as_fd()];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut beside = SendAncillaryBuffer::new(&mut space);
                // Only with the first byte: a second copy would be one more holder.
                if left.len() == head.len() {
                    beside.push(SendAncillaryMessage::ScmRights(&descriptors));
                }
                Ok(sendmsg(control, &[IoSlice::new(left)], &mut beside, SendFlags::NOSIGNAL)?)
            })
            .await?;
        left = &left[n..];
    }
    Ok(())
}
