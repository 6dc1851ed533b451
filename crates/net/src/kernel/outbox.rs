//! Datagrams that are sent from where they lie: one at a time, by the ring, which owns them until the kernel's notification.

use super::config::ZeroCopy;
use super::submitter::{Attended, Submitter, Turn, Wanting};
use super::wait::Waiters;
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_chain::notify::zerocopy::HoldWakers;
use onecopy_socket::registry::Row;
use onecopy_sync::Mutex;
use onecopy_uring::{Event, Ring, Send, Usage};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Parts of a datagram, at most: what one request takes.
pub(super) const MAX_PARTS: usize = 64;

pub(super) struct Outbox {
    token: u64,
    submitter: Arc<Submitter>,
    fd: Arc<OwnedFd>,
    /// Where the socket counts, which may be gone before the last notification.
    row: Arc<Row>,
    state: Mutex<Inner>,
    wanting: Wanting,
    waiters: Waiters,
    own: Weak<Outbox>,
}

#[derive(Default)]
struct Inner {
    job: Job,
    /// Sends whose notifications have not come.
    notifications: u32,
    /// The kernel copies them after all.
    copies: bool,
    /// No program has the socket any more.
    closed: bool,
    /// The ring is gone.
    gone: bool,
}

/// What a program waits for.
#[derive(Default)]
enum Job {
    #[default]
    None,
    Asked(Segment<Chain>, Box<Send>),
    UnderWay,
    /// It was refused, and what was to be sent comes with the notification.
    Refused(Errno),
    Done(Answer),
}

/// What the kernel's first word is.
pub(super) enum Answer {
    /// It has taken so many bytes: all.
    Taken(usize),
    /// It has not, and what was to be sent: all of it, unless the ring is gone with it.
    Refused(Errno, Segment<Chain>),
}

impl Outbox {
    pub fn new(submitter: &Arc<Submitter>, fd: &Arc<OwnedFd>, row: Arc<Row>) -> Arc<Outbox> {
        Arc::new_cyclic(|own| Outbox {
            token: submitter.shared.name(),
            submitter: Arc::clone(submitter),
            fd: Arc::clone(fd),
            row,
            state: Mutex::default(),
            wanting: Wanting::default(),
            waiters: Waiters::default(),
            own: own.clone(),
        })
    }

    fn poke(&self) {
        if let Some(own) = self.own.upgrade() {
            self.submitter.attend(own);
        }
    }

    /// Whether the kernel was seen to copy such sends of this socket.
    pub fn copies(&self) -> bool {
        self.state.lock().copies
    }

    /// Has the ring send `data`, and waits for the kernel's first word on it, which comes at once: `how` says not to wait for room. Whoever
    /// calls has the right to send.
    pub fn send(&self, data: Segment<Chain>, how: Send) -> Answer {
        let mut state = self.state.lock();
        if state.gone {
            return Answer::Refused(Errno::CONNABORTED, data);
        }
        state.job = Job::Asked(data, Box::new(how));
        drop(state);
        self.poke();
        loop {
            let mut state = self.state.lock();
            match std::mem::take(&mut state.job) {
                Job::Done(done) => return done,
                other => state.job = other,
            }
            let seen = self.waiters.going_to_sleep();
            drop(state);
            self.waiters.sleep(seen, None);
        }
    }

    /// No program has the socket any more.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.poke();
    }
}

impl Attended for Outbox {
    fn token(&self) -> u64 {
        self.token
    }

    fn wants(&self) -> bool {
        self.wanting.ask()
    }

    fn turn(&self, ring: &mut Ring) -> Turn {
        self.wanting.got();
        let mut state = self.state.lock();
        match std::mem::take(&mut state.job) {
            Job::Asked(data, how) => match ring.send(&self.fd, self.token, data, *how) {
                Ok(()) => state.job = Job::UnderWay,
                // (A device's memory was refused before.)
                Err(errno) => {
                    state.job = Job::Done(Answer::Refused(errno, Chain::new().into()));
                    self.waiters.tell();
                }
            },
            other => state.job = other,
        }
        let idle = matches!(state.job, Job::None | Job::Done(_)) && state.notifications == 0;
        if idle && state.closed { Turn::Over } else { Turn::Waits }
    }

    fn event(&self, event: Event) {
        // What is freed may wake others, who may call the socket.
        let _held = HoldWakers::new();
        let mut state = self.state.lock();
        match event {
            Event::Sent { result, more, back, .. } => {
                state.notifications += u32::from(more);
                state.job = match (result, back) {
                    (Ok(n), _) => {
                        if !more {
                            self.row.counters().kernel_copied.add(n);
                        }
                        Job::Done(Answer::Taken(n))
                    }
                    (Err(errno), Some(back)) => Job::Done(Answer::Refused(errno, back)),
                    (Err(errno), None) => Job::Refused(errno),
                };
            }
            Event::Notified { bytes, usage, back, .. } => {
                state.notifications -= 1;
                match (back, &state.job) {
                    (Some(back), Job::Refused(errno)) => state.job = Job::Done(Answer::Refused(*errno, back)),
                    _ => {
                        if usage != Usage::Referenced {
                            self.row.counters().kernel_copied.add(bytes);
                        }
                        let auto = self.submitter.shared.config.zero_copy == ZeroCopy::Auto;
                        state.copies |= usage == Usage::Copied && auto;
                    }
                }
            }
            _ => {}
        }
        self.waiters.tell();
    }

    fn abort(&self) {
        let mut state = self.state.lock();
        state.gone = true;
        state.job = match std::mem::take(&mut state.job) {
            Job::Asked(data, _) => Job::Done(Answer::Refused(Errno::CONNABORTED, data)),
            Job::UnderWay | Job::Refused(_) => {
                Job::Done(Answer::Refused(Errno::CONNABORTED, Chain::new().into()))
            }
            job => job,
        };
        self.waiters.tell();
    }
}
