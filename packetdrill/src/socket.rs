//! A socket: what a program sees of a connection beside its bytes.

use crate::errno::Errno;
use crate::tcp::{Id, Readiness, Tcp, Wake};
use onecopy_chain::notify::{Range, Zerocopy};
use std::collections::VecDeque;

/// What was queued for recvmsg(MSG_ERRQUEUE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Sends with MSG_ZEROCOPY are complete.
    Zerocopy(Range),
    /// The last byte of a send has come so far (SCM_TSTAMP_SCHED, SND, ACK) at that time.
    Stamp { kind: u32, key: u32, at: u64 },
}

/// The last byte of a send whose way is stamped (SO_TIMESTAMPING).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// Bytes of the stream up to it.
    pub(crate) end: u64,
    pub(crate) key: u32,
    pub(crate) sent: bool,
}

/// How often who waits for a socket was told of something. Who was told that nothing can be done looks again only then, as the kernel's
/// sleepers do: there may be a little room long before anybody hears of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    read: u64,
    write: u64,
    error: u64,
}

impl Told {
    const READ: i32 = libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP;
    const WRITE: i32 = libc::EPOLLOUT | libc::EPOLLWRNORM;
    const ERROR: i32 = libc::EPOLLERR | libc::EPOLLHUP;

    pub(crate) fn tell(&mut self, events: u32) {
        self.read += u64::from(events & Told::READ as u32 != 0);
        self.write += u64::from(events & Told::WRITE as u32 != 0);
        self.error += u64::from(events & Told::ERROR as u32 != 0);
    }

    /// How often of any of `events`.
    pub(crate) fn of(&self, events: u32) -> u64 {
        let asked = |class: i32, times: u64| if events & class as u32 == 0 { 0 } else { times };
        asked(Told::READ, self.read) + asked(Told::WRITE, self.write) + asked(Told::ERROR, self.error)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) id: Id,
    pub(crate) nonblocking: bool,
    pub(crate) listening: bool,
    pub(crate) reuse: bool,
    /// SO_ZEROCOPY.
    pub(crate) zerocopy: bool,
    /// TCP_INQ.
    pub(crate) inquire: bool,
    /// SO_SNDTIMEO and SO_RCVTIMEO, in nanoseconds.
    pub(crate) send_timeout: Option<u64>,
    pub(crate) receive_timeout: Option<u64>,
    /// Options that are kept and do nothing here, or that their name says all of: (level, name, value).
    pub(crate) kept: Vec<(i32, i32, i32)>,
    /// Sends with MSG_ZEROCOPY; made by the first one.
    pub(crate) sends: Option<Zerocopy>,
    pub(crate) news: VecDeque<News>,
    pub(crate) told: Told,
    /// Bytes that were taken to be sent.
    pub(crate) written: u64,
    /// SO_TIMESTAMPING, and the byte that keys count from.
    pub(crate) stamping: u32,
    pub(crate) key_base: u64,
    pub(crate) watched: VecDeque<Watched>,
}

impl Socket {
    pub(crate) fn new(id: Id) -> Socket {
        Socket {
            id,
            nonblocking: false,
            listening: false,
            reuse: false,
            zerocopy: false,
            inquire: false,
            send_timeout: None,
            receive_timeout: None,
            kept: Vec::new(),
            sends: None,
            news: VecDeque::new(),
            told: Told::default(),
            written: 0,
            stamping: 0,
            key_base: 0,
            watched: VecDeque::new(),
        }
    }

    /// One that was accepted: of its listener it has what Linux hands on.
    pub(crate) fn accepted(&self, id: Id) -> Socket {
        Socket {
            reuse: self.reuse,
            zerocopy: self.zerocopy,
            inquire: self.inquire,
            send_timeout: self.send_timeout,
            receive_timeout: self.receive_timeout,
            kept: self.kept.clone(),
            ..Socket::new(id)
        }
    }

    /// What it is ready for (tcp_poll).
    pub(crate) fn poll(&self, tcp: &Tcp) -> u32 {
        let ready = tcp.ready(self.id);
        let mut mask = 0;
        if ready.contains(Readiness::HUNG_UP) {
            mask |= libc::EPOLLHUP;
        }
        if ready.contains(Readiness::PEER_CLOSED) {
            mask |= libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP;
        }
        if ready.contains(Readiness::READ) {
            mask |= libc::EPOLLIN | libc::EPOLLRDNORM;
        }
        if ready.contains(Readiness::WRITE) {
            mask |= libc::EPOLLOUT | libc::EPOLLWRNORM;
        }
        if ready.contains(Readiness::ERROR) || !self.news.is_empty() {
            mask |= libc::EPOLLERR;
        }
        mask as u32
    }

    /// What those hear who wait for it, of what has happened.
    pub(crate) fn edge(&self, wake: Wake) -> u32 {
        let mut key = 0;
        if wake.contains(Wake::READ) {
            key |= libc::EPOLLIN | libc::EPOLLRDNORM;
        }
        if wake.contains(Wake::WRITE) {
            key |= libc::EPOLLOUT | libc::EPOLLWRNORM;
        }
        if wake.contains(Wake::ERROR) {
            key |= libc::EPOLLERR;
        }
        // sk_state_change wakes whoever waits for anything.
        if wake.contains(Wake::STATE) { u32::MAX } else { key as u32 }
    }

    /// Adds what has completed: to the last range if that ends where this begins (skb_zerocopy_notify_extend).
    pub(crate) fn completed(&mut self, range: Range) {
        if let Some(News::Zerocopy(last)) = self.news.back_mut()
            && last.extend(&range)
        {
            return;
        }
        self.news.push_back(News::Zerocopy(range));
    }

    /// What the kept option was set to.
    pub(crate) fn kept(&self, level: i32, name: i32) -> Option<i32> {
        self.kept.iter().find(|kept| (kept.0, kept.1) == (level, name)).map(|kept| kept.2)
    }

    pub(crate) fn keep(&mut self, level: i32, name: i32, value: i32) {
        self.kept.retain(|kept| (kept.0, kept.1) != (level, name));
        self.kept.push((level, name, value));
    }
}

/// Why a blocking call gives up.
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
