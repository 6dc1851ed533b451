//! Waiting until a connection has moved to shared memory.

use crate::connection::Connection;
use crate::connection::rx::Rx;
use crate::control;
use crate::handshake::rendezvous::{Rendezvous, Target};
use crate::handshake::undecided::{Meets, Undecided};
use crate::handshake::visit::Visit;
use onecopy_ring::memory::Nonce;
use onecopy_socket::{Error, Op, Result};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The shortest and the longest time between two looks. What is waited for wakes most waits earlier.
const SHORTEST: Duration = Duration::from_micros(200);
const LONGEST: Duration = Duration::from_millis(4);

/// How one wait goes about it.
enum Way {
    /// A client, which brings its rings: the visit that is under way.
    Brings(Option<Arc<OwnedFd>>),
    /// A server, to which they are brought.
    Receives(Registered),
    /// It waits for what comes with the peer's bytes.
    Looks,
}

/// A connection that waits at its listener's rendezvous.
struct Registered {
    rendezvous: Weak<Rendezvous>,
    nonce: Nonce,
}

impl Registered {
    fn look(&self) -> Option<Visit> {
        let rendezvous = self.rendezvous.upgrade()?;
        rendezvous.waiting().begin(self.nonce);
        rendezvous.look_for(&self.nonce)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(rendezvous) = self.rendezvous.upgrade() {
            rendezvous.waiting().end(&self.nonce);
        }
    }
}

/// A wait for shared memory.
pub struct WaitShared<'a> {
    connection: &'a Connection,
    way: Way,
    pause: Duration,
}

impl Connection {
    /// Waits until both directions go over shared memory, at most for `limit`.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT; EOPNOTSUPP where the kernel carries on for good; EPIPE if the peer is gone; EPROTO.
    pub fn wait_shared(&self, limit: Option<Duration>) -> Result<()> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut wait = self.begin_to_wait()?;
        while !wait.step()? {
            let left = until.map_or(LONGEST, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(timed_out());
            }
            let pause = wait.pause().min(left);
            wait.way.sleep(pause);
        }
        Ok(())
    }

    /// Begins a wait for shared memory.
    ///
    /// # Errors
    ///
    /// EBUSY where another process keeps the receiving side.
    pub fn begin_to_wait(&self) -> Result<WaitShared<'_>> {
        let way = match &*self.lock_rx(Op::Wait)? {
            Rx::Undecided(undecided) => Way::of(undecided),
            _ => Way::Looks,
        };
        Ok(WaitShared { connection: self, way, pause: SHORTEST })
    }
}

/// Returns the error of a wait that has taken as long as it may.
pub fn timed_out() -> Error {
    Error::new(Op::Wait, Errno::TIMEDOUT).because(
        "the peer has not waited for it meanwhile, nor sent what brings it; call it on both sides, or exchange a \
         byte",
    )
}

impl WaitShared<'_> {
    /// Does what can be done now. Returns whether both directions go over shared memory.
    ///
    /// # Errors
    ///
    /// As [`Connection::wait_shared`], but for ETIMEDOUT.
    pub fn step(&mut self) -> Result<bool> {
        let connection = self.connection;
        connection.check(Op::Wait)?;
        connection.step_to_memory(&mut self.way)?;
        if connection.path().is_shared_memory() {
            return Ok(true);
        }
        if control::gone(connection.fd()) {
            return Err(Error::new(Op::Wait, Errno::PIPE));
        }
        Ok(false)
    }

    /// Returns how long to wait before the next step.
    pub fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (2 * pause).min(LONGEST);
        pause
    }
}

impl Connection {
    /// Does what can be done now.
    fn step_to_memory(&self, way: &mut Way) -> Result<()> {
        let stays = |why| Err(Error::new(Op::Wait, Errno::OPNOTSUPP).because(why));
        // A visitor may be slow, so this comes before the lock.
        let visit = match way {
            Way::Receives(waits) => waits.look().filter(|visit| visit.is_of(self.fd())),
            _ => None,
        };
        let mut rx = self.lock_rx(Op::Wait)?;
        self.decide(&mut rx, Op::Wait)?;
        self.kernel_ready(&mut rx)?;
        match &*rx {
            Rx::Plain => {
                return stays("the kernel carries this connection for good: the peer is a plain one");
            }
            Rx::Undecided(_) if self.others().are_there() => {
                return stays("several processes hold the socket, and what has not moved by now never does");
            }
            Rx::Undecided(undecided) => {
                match (&mut *way, undecided.meets()) {
                    (Way::Brings(line), Meets::At(target)) => {
                        if undecided.visit().is_none_or(|line| is_over(line)) {
                            self.handshake.attach_rings(self, &mut rx, true);
                            self.bring(&target, &mut rx);
                        }
                        *line = match &*rx {
                            Rx::Undecided(undecided) => undecided.visit().cloned(),
                            _ => None,
                        };
                    }
                    (Way::Receives(_), _) => {
                        if let Some(Visit { rings, line }) = visit {
                            let joined = self.handshake.join_brought(self, &mut rx, rings, Op::Wait);
                            // This tells the client to look.
                            drop(line);
                            joined?;
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        drop(rx);
        self.adopt_if_free(true);
        Ok(())
    }
}

impl Connection {
    /// Brings the rings that would go with the next bytes to where the two sides can meet.
    fn bring(&self, target: &Target, rx: &mut Rx) {
        let (Rx::Undecided(undecided), Some(rings)) = (rx, self.handshake.rings_to_bring()) else { return };
        match target.bring(self.fd(), rings.as_fd()) {
            Ok(line) => undecided.visits(Arc::new(line)),
            // Whoever has the rendezvous will not be another process next time.
            Err(Errno::ACCESS) => undecided.meets_nowhere(),
            // There is no place, or no descriptor. It is tried again.
            Err(_) => {}
        }
    }
}

/// Whether the server has closed a visit.
fn is_over(line: &OwnedFd) -> bool {
    control::wait(line.as_fd(), PollFlags::IN, Some(Duration::ZERO)).is_ok()
}

impl Way {
    fn of(undecided: &Undecided) -> Way {
        match undecided.meets() {
            Meets::At(_) => Way::Brings(None),
            Meets::Here(rendezvous) => Way::Receives(Registered { rendezvous, nonce: undecided.nonce() }),
            Meets::Nowhere => Way::Looks,
        }
    }

    fn sleep(&self, limit: Duration) {
        match self {
            Way::Brings(Some(line)) if !is_over(line) => {
                let _ = control::wait(line.as_fd(), PollFlags::IN, Some(limit));
            }
            Way::Receives(Registered { rendezvous, .. }) => match rendezvous.upgrade() {
                Some(rendezvous) => rendezvous.wait_for_visit(limit),
                None => std::thread::sleep(limit),
            },
            _ => std::thread::sleep(limit),
        }
    }
}
