//! `--direct`: lends a client's socket to the daemon for one answer (see the daemon's side, `serve::direct`).
//!
//! What is lent cannot be taken back, but it can be ended for both: a daemon that was stopped or hangs must not keep the client
//! waiting for ever. So the proxy looks at the socket meanwhile. What its TCP has acknowledged, and what lies in its queue,
//! says whether the daemon writes and whether the client takes.

use super::pool::STALE;
use super::rewrite::number;
use super::timeout::within;
use super::trouble::{Patience, Trouble};
use crate::address::Address;
use crate::counters::Counters;
use crate::transport::same_user;
use onecopy_sys::socket::unread_memory;
use onecopy_sys::sockopt::tcp_acknowledged;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;

/// The connections on which sockets are lent.
#[derive(Debug)]
pub struct Direct {
    address: Address,
    /// The daemon is trusted to let go of a socket: the client's connection is kept after a loan.
    pub trusted: bool,
    idle: RefCell<Vec<(UnixStream, Instant)>>,
    /// Of loans at the same time: each has a thread of the daemon.
    room: Semaphore,
}

/// What became of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// The daemon sent all of the answer.
    Done,
    /// It was not made: nothing was sent, and the usual way is open.
    Never,
    /// The daemon took it, perhaps, and ended before it had sent anything. The usual way is open; who does not trust it does
    /// not keep the client's connection after that.
    Back,
}

impl Direct {
    /// Lends through the socket beside `backend`, to at most `most` threads of it.
    pub fn new(backend: &Address, trusted: bool, most: usize) -> Direct {
        let room = Semaphore::new(most.max(1));
        Direct { address: backend.beside(".direct"), trusted, idle: RefCell::default(), room }
    }

    /// Has the daemon answer `head` straight to `client`. The bytes of the body that the daemon says it sent are counted, whole or
    /// not.
    pub async fn lend(
        &self,
        head: &[u8],
        client: &TcpStream,
        patience: Patience,
        counters: &mut Counters,
    ) -> Result<Lent, Trouble> {
        let Ok(_room) = self.room.try_acquire() else { return Ok(Lent::Never) };
        // Once the loan is on its way the daemon may have written before this thread looks.
        let before = seen(client);
        let control = loop {
            let kept = self.idle.borrow_mut().pop();
            let used = kept.is_some();
            let control = match kept {
                // A word that comes unasked would be taken for the end of the next loan.
                Some((control, since)) if since.elapsed() < STALE && is_quiet(&control) => Some(control),
                Some(_) => continue,
                None => self.connect().ok(),
            };
            let Some(control) = control else { return Ok(Lent::Never) };
            match within(patience.backend, offer(&control, head, client)).await {
                Some(Ok(())) => break control,
                Some(Err(_)) if used => {} // it ended while it was kept: the next one, or a new one
                // The daemon can do nothing with a part of a head, and gets no more of it.
                _ => return Ok(Lent::Never),
            }
        };
        let heard = hear(&control, client, before, patience, counters).await;
        match heard {
            Ok(Lent::Done) => self.idle.borrow_mut().push((control, Instant::now())),
            // It may still have the socket: its end is the daemon's, too. (The client is told nothing more: it cannot be known
            // what the daemon has written, or is about to.)
            Err(_) => drop(rustix::net::shutdown(client, rustix::net::Shutdown::Both)),
            Ok(_) => {}
        }
        heard
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let stream = self.address.connect_nonblocking()?;
        if !same_user(&stream) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        UnixStream::from_std(stream)
    }
}

/// What the daemon says at the end: whether all of the answer was sent, and how many bytes of its body. None as long as there
/// is more to come.
fn outcome(said: &[u8]) -> Result<Option<(bool, u64)>, Trouble> {
    let nonsense = || Trouble::Cut("what it says of the client's socket makes no sense".to_owned());
    let Some(line) = said.strip_suffix(b"\n") else {
        let words: [&[u8]; 2] = [b"done ", b"broken "];
        let may_go_on = said.len() < LINE && words.iter().any(|w| said.starts_with(w) || w.starts_with(said));
        return if may_go_on { Ok(None) } else { Err(nonsense()) };
    };
    let (word, bytes) =
        std::str::from_utf8(line).ok().and_then(|line| line.split_once(' ')).ok_or_else(nonsense)?;
    let whole = match word {
        "done" => true,
        "broken" => false,
        _ => return Err(nonsense()),
    };
    Ok(Some((whole, number(bytes.as_bytes()).ok_or_else(nonsense)?)))
}

/// The longest of what a daemon says: a word and a number of 64 bits.
const LINE: usize = 32;

fn is_quiet(control: &UnixStream) -> bool {
    let look = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    matches!(rustix::net::recv(control, &mut [0][..], look), Err(Errno::AGAIN))
}

/// Waits until the daemon says that it has let go of the socket, which was as `before` when it was lent.
async fn hear(
    control: &UnixStream,
    client: &TcpStream,
    before: Option<(u64, u64)>,
    patience: Patience,
    counters: &mut Counters,
) -> Result<Lent, Trouble> {
    let mut progress = Progress { seen: before, since: Instant::now() };
    let mut said = Vec::new();
    loop {
        let mut buffer = [0; LINE];
        let got = match within(progress.look_in(patience), control.readable()).await {
            None => {
                progress.look(client, patience)?;
                continue;
            }
            Some(ready) => ready.and_then(|()| control.try_read(&mut buffer)),
        };
        match got {
            Ok(n @ 1..) => said.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // It ended (without having looked at the loan: a reset), and so did what it had of the socket.
            _ if said.is_empty() && before.is_some() && seen(client) == before => return Ok(Lent::Back),
            _ => return Err(Trouble::Cut("it ended while it had the client's socket".to_owned())),
        }
        if let Some((whole, bytes)) = outcome(&said)? {
            counters.direct += 1;
            counters.direct_bytes += bytes;
            counters.body_bytes += bytes;
            return if whole { Ok(Lent::Done) } else { Err(Trouble::Broken) };
        }
    }
}

/// What was seen of a socket that another process writes to.
struct Progress {
    /// Bytes that the client has acknowledged, and bytes written that it has not.
    seen: Option<(u64, u64)>,
    since: Instant,
}

impl Progress {
    /// How long until it is worth looking: a few times within the shorter patience.
    fn look_in(&self, patience: Patience) -> Duration {
        (patience.backend.min(patience.client) / 4).max(Duration::from_millis(10))
    }

    /// Who has done nothing for longer than is waited for him: the client, if bytes wait for it, and otherwise the daemon.
    fn look(&mut self, client: &TcpStream, patience: Patience) -> Result<(), Trouble> {
        let now = seen(client);
        if now.is_none() || now != self.seen {
            (self.seen, self.since) = (now, Instant::now());
        }
        match now {
            None => Err(Trouble::Broken),
            Some((_, 1..)) if self.since.elapsed() >= patience.client => Err(Trouble::Broken),
            Some((_, 0)) if self.since.elapsed() >= patience.backend => {
                Err(Trouble::Stuck("it has the client's socket and does not go on".to_owned()))
            }
            Some(_) => Ok(()),
        }
    }
}

/// What the client has acknowledged, and what waits for that. (Asked for in this order, nothing is missed that is acknowledged
/// in between.)
fn seen(client: &TcpStream) -> Option<(u64, u64)> {
    let waits = unread_memory(client).ok()? as u64;
    Some((tcp_acknowledged(client.as_fd()).ok()?, waits))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_daemon_says() {
        assert!(matches!(outcome(b"done 7\n"), Ok(Some((true, 7)))));
        assert!(matches!(outcome(b"broken 0\n"), Ok(Some((false, 0)))));
        assert!(matches!(outcome(b""), Ok(None)) && matches!(outcome(b"done 7"), Ok(None)));
        // Sums of it must not overflow.
        for bad in ["done 18446744073709551615\n", "done +7\n", "done \n", "done\n", "fine 7\n", "x"] {
            assert!(outcome(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
