//! Other processes that have an end as well: children, and strangers that were there before it.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use onecopy_sys::fork::{Child, child};
use onecopy_sys::scm::{self, Space};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::held::{Held, Made};

/// What it is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    TakeUp,
    Send,
    Receive,
    Close,
    End,
}

const ORDERS: [Order; 5] = [Order::TakeUp, Order::Send, Order::Receive, Order::Close, Order::End];

/// Longest wait for an answer.
const PATIENCE: Duration = onecopy_testing::LONG;

/// What a call came to there: bytes, and whether a record ended; or an errno.
pub type Said = Result<(usize, bool), i32>;

/// Another process.
pub struct Other {
    child: Child,
    line: OwnedFd,
    /// Which ends it has.
    pub has: Vec<bool>,
}

impl Other {
    /// Forks: the child has those of `held` that `has` tells.
    pub fn fork(held: &mut [Option<Held>], has: Vec<bool>, made: Made) -> std::io::Result<Other> {
        let flags = SocketFlags::CLOEXEC;
        let (line, theirs) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // (One that never answers is a failure, and no hang.)
        sockopt::set_socket_timeout(&line, sockopt::Timeout::Recv, Some(PATIENCE))?;
        let keeps = &has;
        let child = child(move || {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            // (Its own copy of all of these: whoever made them keeps theirs.)
            for (end, keep) in held.iter_mut().zip(keeps) {
                if !keep {
                    *end = None;
                }
            }
            obey(&theirs, held, made)
        })?;
        let mut other = Other { child, line, has };
        // It has closed what it does not keep.
        let _ = other.hear();
        Ok(other)
    }

    fn hear(&mut self) -> Said {
        let mut said = [0; 17];
        match net::recv(&self.line, &mut said, RecvFlags::empty()) {
            Ok((_, 17)) => {
                let word = |at: usize| i64::from_le_bytes(said[at..at + 8].try_into().unwrap_or_default());
                if word(8) != 0 { Err(word(8) as i32) } else { Ok((word(0) as usize, said[16] != 0)) }
            }
            _ => Err(rustix::io::Errno::TIMEDOUT.raw_os_error()),
        }
    }

    /// Has it do that; what came of it.
    pub fn tell(&mut self, order: Order, at: usize, len: usize) -> Said {
        let number = ORDERS.iter().position(|other| *other == order).unwrap_or(0) as u8;
        let mut said = vec![number, at as u8];
        said.extend((len as u64).to_le_bytes());
        net::send(&self.line, &said, SendFlags::NOSIGNAL).map_err(|e| e.raw_os_error())?;
        self.hear()
    }

    /// Gives it descriptors, from which it goes on with an end.
    pub fn give(&mut self, at: usize, fds: Vec<OwnedFd>) -> Said {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        net::send(&self.line, &[0, at as u8, 0, 0, 0, 0, 0, 0, 0, 0], SendFlags::NOSIGNAL)
            .map_err(|e| e.raw_os_error())?;
        scm::send(&self.line, &[IoSlice::new(b"!")], &borrowed, None, SendFlags::NOSIGNAL)
            .map_err(|e| e.raw_os_error())?;
        drop(fds);
        self.hear()
    }

    /// Ends it.
    pub fn end(mut self, killed: bool) {
        if killed {
            self.child.signal(9);
        } else {
            let _ = self.tell(Order::End, 0, 0);
        }
        self.child.wait();
    }
}

/// What the other process does all its life.
fn obey(line: &OwnedFd, held: &mut [Option<Held>], made: Made) -> i32 {
    let mut said: Said = Ok((0, false));
    loop {
        let (value, errno, end) = match said {
            Ok((n, end)) => (n as i64, 0, end),
            Err(errno) => (0, i64::from(errno), false),
        };
        let mut wire = [0; 17];
        wire[..8].copy_from_slice(&value.to_le_bytes());
        wire[8..16].copy_from_slice(&errno.to_le_bytes());
        wire[16] = u8::from(end);
        if net::send(line, &wire, SendFlags::NOSIGNAL).is_err() {
            return 0;
        }
        let mut order = [0; 10];
        let Ok((_, 10)) = net::recv(line, &mut order, RecvFlags::empty()) else { return 0 };
        let len = u64::from_le_bytes(order[2..].try_into().unwrap_or_default()) as usize;
        let at = usize::from(order[1]);
        said = match (ORDERS[usize::from(order[0])], &held[at]) {
            (Order::End, _) => return 0,
            (Order::TakeUp, _) => {
                let mut byte = [0];
                match scm::recv(line, &mut [IoSliceMut::new(&mut byte)], Space::All, RecvFlags::empty()) {
                    Ok(came) => take_up(held, at, came.fds, made),
                    Err(e) => Err(e.raw_os_error()),
                }
            }
            (Order::Close, _) => {
                held[at] = None;
                Ok((0, false))
            }
            (_, None) => Err(0x7fff),
            (Order::Send, Some(end)) => {
                end.send(at, len, false).map(|n| (n, false)).map_err(|e| errno_of(&e))
            }
            (Order::Receive, Some(end)) => match end.recv(len, false, false) {
                Ok(got) => Ok((got.len, got.end)),
                Err(e) => Err(errno_of(&e)),
            },
        };
    }
}

fn take_up(held: &mut [Option<Held>], at: usize, fds: Vec<OwnedFd>, made: Made) -> Said {
    match Held::from_fds(fds, made) {
        Ok(end) => {
            held[at] = Some(end);
            Ok((0, false))
        }
        Err(e) => Err(errno_of(&e)),
    }
}

/// An errno; 1 << 12 where there is none.
pub fn errno_of(e: &std::io::Error) -> i32 {
    e.raw_os_error().unwrap_or(1 << 12)
}
