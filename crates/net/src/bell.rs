//! A socket's descriptor for poll(2): one end of a pair of unix sockets, whose other end the stack plays, so that it is ready for what the
//! socket is ready for.
//!
//! A byte from the stack's end makes it readable; a message that nobody takes fills its send buffer, so that it is not writable; shutting the
//! stack's end down gives the hang-ups, and closing it an error, until that was asked for. Whoever waits with EPOLLET hears of what comes
//! after a receive has found nothing, or less than it asked for, and after a send that did not take all: by then the byte was taken back and
//! the buffer filled, or it is said again that there is more.
//!
//! Two things differ from what the kernel's sockets say. A hang-up is always readable, too (EPOLLIN, EPOLLRDHUP), as a receive would not wait;
//! the kernel's is not after shutdown(2) of a listener or of a connection that was being made. And what arrives while there is something
//! unread is no edge of its own.

use onecopy_inet::tcp::Readiness;
use onecopy_sync::atomic::Ordering::{Acquire, Release};
use onecopy_sync::{Mutex, Word};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
    sockopt,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// Longer than a quarter of the least send buffer that the kernel gives (SOCK_MIN_SNDBUF, 4608 bytes, of which a socket is writable with a
/// quarter in use: unix_writable()).
const FILLER: usize = 2048;

#[derive(Debug)]
pub(crate) struct Bell {
    /// What the program polls.
    theirs: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The stack's end; none once there was an error.
    ours: Option<OwnedFd>,
    /// What it shows.
    shown: Readiness,
    /// The stack's end is shut down: nothing changes any more but errors.
    ended: bool,
}

impl Bell {
    /// Shows that the socket is ready to be written, and nothing else.
    pub fn new() -> rustix::io::Result<Bell> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // It gives its least.
        sockopt::set_socket_send_buffer_size(&theirs, 1)?;
        Ok(Bell {
            theirs,
            state: Mutex::new(State { ours: Some(ours), shown: Readiness::WRITE, ended: false }),
        })
    }

    /// Has it show `ready`.
    pub fn show(&self, ready: Readiness) {
        let mut state = self.state.lock();
        let changed = state.shown ^ ready;
        if changed.is_empty() {
            return;
        }
        state.shown = ready;
        let on = changed & ready;
        let ends = on.intersects(Readiness::HUNG_UP | Readiness::ERROR) && !state.ended;
        if let Some(ours) = &state.ours {
            if ends {
                // For an error, should there be one: an end that is closed with something unread is one at the other (ECONNRESET), and
                // behind a hang-up nothing can be sent any more.
                let _ = until_done(|| send(&self.theirs, &[0], SendFlags::NOSIGNAL));
            }
            // An end that is closed, below, says the rest at once. (POLLOUT, should there be a filler, a moment later.)
            if !on.contains(Readiness::ERROR) {
                self.hang_up(ours, on, ends);
                let hung_up = Readiness::PEER_CLOSED | Readiness::HUNG_UP | Readiness::ERROR;
                if changed.contains(Readiness::READ) && !ready.intersects(hung_up) {
                    self.read(ours, ready.contains(Readiness::READ));
                }
                if changed.contains(Readiness::WRITE) {
                    self.write(ours, ready.contains(Readiness::WRITE));
                }
            }
        }
        state.ended |= ends;
        match (changed.contains(Readiness::ERROR), ready.contains(Readiness::ERROR)) {
            (true, true) => state.ours = None,
            // It was told of: asking for it takes it away (SO_ERROR).
            (true, false) => drop(sockopt::socket_error(&self.theirs)),
            (false, _) => {}
        }
    }

    /// Shows the hang-ups that have come. Each makes it readable, too, in the same call, so that whoever this wakes is told of both, as
    /// by the kernel. (A byte before it would have woken them to POLLIN alone.)
    fn hang_up(&self, ours: &OwnedFd, on: Readiness, ends: bool) {
        let _ = if ends {
            shutdown(ours, Shutdown::Both)
        } else if on.contains(Readiness::PEER_CLOSED) {
            shutdown(ours, Shutdown::Write)
        } else {
            Ok(())
        };
    }

    /// Says again that it can be read, to whoever waits for edges: a receive has taken less than it asked for, and something is there.
    pub fn read_again(&self) {
        let state = self.state.lock();
        let over = Readiness::PEER_CLOSED | Readiness::HUNG_UP | Readiness::ERROR;
        if let Some(ours) = &state.ours
            && state.shown & (Readiness::READ | over) == Readiness::READ
        {
            self.read(ours, false);
            self.read(ours, true);
        }
    }

    /// Says again that it can be written: a send has given less than it was to, and there is room.
    pub fn write_again(&self) {
        let state = self.state.lock();
        let over = Readiness::HUNG_UP | Readiness::ERROR;
        if let Some(ours) = &state.ours
            && state.shown & (Readiness::WRITE | over) == Readiness::WRITE
        {
            self.write(ours, false);
            self.write(ours, true);
        }
    }

    fn read(&self, ours: &OwnedFd, ready: bool) {
        let _ = match ready {
            true => until_done(|| send(ours, &[1], SendFlags::NOSIGNAL)),
            false => until_done(|| recv(&self.theirs, &mut [0; 8], RecvFlags::DONTWAIT).map(|(n, _)| n)),
        };
    }

    fn write(&self, ours: &OwnedFd, ready: bool) {
        let _ = match ready {
            true => until_done(|| recv(ours, &mut [0; FILLER], RecvFlags::DONTWAIT).map(|(n, _)| n)),
            false => until_done(|| send(&self.theirs, &[0; FILLER], SendFlags::NOSIGNAL)),
        };
    }
}

/// One descriptor, and one word to sleep on, for sockets of several shards that are one to the program: ready for what any of them is.
#[derive(Debug)]
pub(crate) struct Joint {
    /// Counts when one of them becomes ready to be read.
    news: Word,
    /// What each of them shows.
    parts: Mutex<Box<[Readiness]>>,
    bell: OnceLock<Bell>,
}

impl Joint {
    /// Of so many, none of which is ready.
    pub fn new(count: usize) -> Joint {
        let parts = Mutex::new(vec![Readiness::empty(); count].into());
        Joint { news: Word::new(0), parts, bell: OnceLock::new() }
    }

    /// Has one of them show `ready`.
    pub fn show(&self, part: usize, ready: Readiness) {
        let mut parts = self.parts.lock();
        let on = ready - parts[part];
        parts[part] = ready;
        if let Some(bell) = self.bell.get() {
            bell.show(all(&parts));
        }
        drop(parts);
        if on.intersects(Readiness::READ | Readiness::HUNG_UP) {
            // Release pairs with the Acquire in `seen`.
            self.news.fetch_add(1, Release);
            self.news.wake(u32::MAX >> 1);
        }
    }

    /// What it has counted; to be asked before it is looked what there is.
    pub fn seen(&self) -> u32 {
        // Acquire pairs with the Release in `show`.
        self.news.load(Acquire)
    }

    /// Sleeps until there is more than `seen`, at most for `limit`. Returns whether a signal has come.
    pub fn sleep(&self, seen: u32, limit: Option<Duration>) -> bool {
        self.news.wait(seen, limit)
    }

    /// The descriptor, made with the first call.
    pub fn fd(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if self.bell.get().is_none() {
            let parts = self.parts.lock();
            let bell = Bell::new()?;
            bell.show(all(&parts));
            // (Only who holds the lock sets it; where somebody did before, his stays.)
            let _ = self.bell.set(bell);
        }
        Ok(self.bell.get().expect("it was set above").as_fd())
    }
}

fn all(parts: &[Readiness]) -> Readiness {
    parts.iter().fold(Readiness::empty(), |all, part| all | *part)
}

fn until_done(mut call: impl FnMut() -> rustix::io::Result<usize>) -> rustix::io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Barrier;

    /// What one that polls all the time is told first.
    fn told_first(shows: Readiness) -> PollFlags {
        let (bell, begin) = (Bell::new().unwrap(), Barrier::new(2));
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| {
                begin.wait();
                loop {
                    let mut fds = [PollFd::new(&bell, PollFlags::IN | PollFlags::RDHUP)];
                    if poll(&mut fds, Some(&Timespec::default())).unwrap() > 0 {
                        return fds[0].revents();
                    }
                }
            });
            begin.wait();
            bell.show(Readiness::WRITE | shows);
            poller.join().unwrap()
        })
    }

    #[test]
    fn nobody_is_told_of_an_end_before_the_hang_up() {
        for shows in [Readiness::PEER_CLOSED, Readiness::PEER_CLOSED | Readiness::HUNG_UP] {
            for round in 0..2000 {
                let told = told_first(Readiness::READ | shows);
                assert!(
                    told.contains(PollFlags::IN | PollFlags::RDHUP),
                    "round {round}: {shows:?}: {told:?}"
                );
            }
        }
    }
}
