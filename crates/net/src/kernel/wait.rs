//! How calls wait, and what they say when they fail.

use super::shared::Shared;
use crate::carrier::{Common, Way};
use crate::error::SILENT;
use onecopy_socket::{Error, Op, Result, Wait};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sync::atomic::spin_loop;
use onecopy_sync::{MutexGuard, Word};
use onecopy_sys::signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Threads that sleep until something happens.
#[derive(Default)]
pub(super) struct Waiters {
    news: Word,
    sleepers: Word,
}

impl Waiters {
    /// What has happened so far. Under the socket's lock; [`Waiters::sleep`] follows without it.
    pub fn going_to_sleep(&self) -> u32 {
        self.sleepers.fetch_add(1, Relaxed);
        // Acquire pairs with the Release in `tell`; whoever asks here holds the lock anyway.
        self.news.load(Acquire)
    }

    /// Returns whether a signal has come.
    pub fn sleep(&self, seen: u32, limit: Option<Duration>) -> bool {
        let signal = self.news.wait(seen, limit);
        self.sleepers.fetch_sub(1, Relaxed);
        signal
    }

    /// Under the socket's lock.
    pub fn tell(&self) {
        // Release pairs with the Acquire in `going_to_sleep`.
        self.news.fetch_add(1, Release);
        if self.sleepers.load(Relaxed) > 0 {
            self.news.wake(u32::MAX >> 1);
        }
    }

    /// Whether something has happened since. Without the lock.
    pub fn is_new(&self, seen: u32) -> bool {
        // Acquire pairs with the Release in `tell`.
        self.news.load(Acquire) != seen
    }

    pub fn awake(&self) {
        self.sleepers.fetch_sub(1, Relaxed);
    }
}

/// How long a call may wait, and how.
pub(super) struct Patience {
    pub none: bool,
    until: Option<Instant>,
    spin: bool,
}

impl Patience {
    pub fn of(common: &Common, way: Way, dont_wait: bool) -> Patience {
        let settings = common.settings();
        let limit = if way == Way::Read { settings.read_timeout() } else { settings.write_timeout() };
        Patience::new(common, dont_wait || settings.nonblocking(), limit)
    }

    pub fn new(common: &Common, none: bool, limit: Option<Duration>) -> Patience {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Patience { none, until, spin: common.settings().wait() == Wait::Spin }
    }

    /// Waits behind the lock of `guard`, up to `most`.
    ///
    /// # Errors
    ///
    /// EAGAIN when its time is over, EINTR for a signal whose handler does not let calls be restarted (signal(7)).
    pub fn wait<T>(
        &self,
        guard: MutexGuard<'_, T>,
        waiters: &Waiters,
        most: Option<Duration>,
    ) -> std::result::Result<(), Errno> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if self.none || left == Some(Duration::ZERO) {
            return Err(Errno::AGAIN);
        }
        let seen = waiters.going_to_sleep();
        drop(guard);
        let limit = left.into_iter().chain(most).min();
        if self.spin {
            let began = Instant::now();
            while !waiters.is_new(seen) && limit.is_none_or(|limit| began.elapsed() < limit) {
                spin_loop();
            }
            waiters.awake();
        } else if waiters.sleep(seen, limit) && !(self.until.is_none() && signal::all_restart()) {
            return Err(Errno::INTR);
        }
        Ok(())
    }
}

impl Patience {
    /// Waits until a descriptor is ready for `what`, up to `most`.
    ///
    /// # Errors
    ///
    /// As [`Patience::wait`].
    pub fn wait_for(&self, fd: impl AsFd, what: PollFlags, most: Duration) -> std::result::Result<(), Errno> {
        let began = Instant::now();
        loop {
            let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
            if self.none || left == Some(Duration::ZERO) {
                return Err(Errno::AGAIN);
            }
            let most = most.saturating_sub(began.elapsed());
            if most.is_zero() {
                return Ok(());
            }
            let limit = if self.spin { Duration::ZERO } else { left.map_or(most, |left| left.min(most)) };
            let limit = Timespec::try_from(limit).ok();
            match poll(&mut [PollFd::new(&fd, what)], limit.as_ref()) {
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(Errno::INTR) if self.until.is_none() && signal::all_restart() => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Refuses to wait where nobody would ever come.
pub(super) fn here(shared: &Shared, op: Op) -> Result<()> {
    if shared.is_here() { Ok(()) } else { Err(explained(op, Errno::OWNERDEAD)) }
}

/// The error of call `op`, and what to do.
pub(super) fn explained(op: Op, errno: Errno) -> Error {
    let why = match (op, errno) {
        (Op::Bind, Errno::ADDRINUSE) => "another socket has that port; choose another, or close that one",
        (Op::Bind, Errno::ADDRNOTAVAIL) => {
            "this host does not have that address; bind to 0.0.0.0, or to one that it has"
        }
        (Op::Bind, Errno::ACCESS) => {
            "ports below 1024 take CAP_NET_BIND_SERVICE (net.ipv4.ip_unprivileged_port_start); choose another"
        }
        (_, Errno::CONNREFUSED) => "nobody listens at that port; start the server",
        (_, Errno::TIMEDOUT) => SILENT,
        (_, Errno::NETUNREACH) => "no route leads there; look at `ip route get`",
        (_, Errno::HOSTUNREACH) => "no such host answers there; is its address right, and its interface up?",
        (_, Errno::CONNRESET) => "the peer ended the connection at once; connect again",
        (_, Errno::PIPE) => "the peer is gone, or this side was shut down for sending; connect again",
        (_, Errno::CONNABORTED) => "the stack was dropped, or io_uring failed; build another one",
        (_, Errno::OWNERDEAD) => {
            "a fork's child has no thread that makes requests; build a stack of its own there"
        }
        (Op::Send, Errno::MSGSIZE) => {
            "it is longer than the way takes in one packet (ping -M do -s finds out how long that is); send it in parts"
        }
        (Op::Send, Errno::DESTADDRREQ) => {
            "nobody was said whom it is for; connect the socket, or use send_to"
        }
        (Op::Send | Op::Connect, Errno::ACCESS) => {
            "that is everybody's address, or a rule forbids it; allow the former with Socket::set_broadcast"
        }
        (_, Errno::AFNOSUPPORT) => {
            "the address is of another family than the socket's own, or this host has not that family; make a socket for each"
        }
        (Op::Connect, Errno::INVAL) => "nobody can have the port 0; give the peer's",
        (Op::Recv, Errno::NOBUFS) => {
            "views that are held keep as much memory as they may; drop some, or allow more (kernel::Config::receive_pages)"
        }
        (Op::Send, Errno::NOBUFS) => {
            "the stack has no page left; let other sockets send what they hold first"
        }
        (Op::Recv, Errno::PROTO) => {
            "the NIC put bytes into other memory than the rule for the connection's address names; have its flow come to queues of that binding alone"
        }
        (Op::Option, Errno::NOPROTOOPT) => {
            "errors that may pass come by a queue of the kernel's that nobody reads here; connect the socket, and the rest of them come to its calls"
        }
        (Op::Send, Errno::FAULT) => {
            "the bytes lie in a device's memory, which the kernel takes where it is bound to be sent from (Stack::bind_tx), and for TCP alone; copy them to the host first"
        }
        _ => return Error::new(op, errno),
    };
    Error::new(op, errno).because(why)
}
