//! What the thread that makes requests does for a connection, and what it hears of it.

use super::Connection;
use super::state::Phase;
use crate::kernel::config::ZeroCopy;
use crate::kernel::submitter::{Attended, Turn};
use onecopy_chain::Chain;
use onecopy_chain::notify::zerocopy::HoldWakers;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_uring::{End, Event, Ring, Usage};
use rustix::io::Errno;
use rustix::net::sockopt;

/// The bytes are in the queue still, which says what becomes of them.
fn not_taken(back: Option<Segment<Chain>>) {
    if let Some(back) = back {
        back.free(Fate::Sent);
    }
}

impl Attended for Connection {
    fn token(&self) -> u64 {
        self.token
    }

    fn wants(&self) -> bool {
        self.wanting.ask()
    }

    fn turn(&self, ring: &mut Ring) -> Turn {
        self.wanting.got();
        let _held = HoldWakers::new();
        let (mut state, mut again, mut short) = (self.lock(), false, false);
        match state.phase {
            // Nobody has a handle any more.
            Phase::Connect(_) if state.aborted => state.phase = Phase::Failed,
            Phase::Connect(address) => {
                state.phase = Phase::Connecting;
                ring.connect(&self.fd, self.token, address);
            }
            _ => {}
        }
        let unsettled = !self.turn_receive(&mut state, ring);
        self.turn_watch(&mut state, ring);
        if let Some((source, data)) = self.turn_send(&mut state, ring) {
            // Without the lock, as the kernel's other copies.
            drop(state);
            let taken = source.write(&self.fd, data.payload());
            state = self.lock();
            not_taken(Some(data));
            short = matches!(taken, Err(Errno::NOBUFS | Errno::NOMEM));
            self.written(&mut state, ring, taken);
            again = !short && !state.sending && !state.send.is_empty();
        }
        if state.send.is_empty() {
            state.sources.clear();
        }
        self.finish(&mut state);
        let idle = !state.sending && state.notifications.is_empty() && state.receiving.is_none();
        let idle = idle && state.watching.is_none();
        let left = state.aborted || state.phase == Phase::Failed || state.send.is_empty();
        let turn = match state.closed && idle && left && state.phase != Phase::Connecting {
            true => Turn::Over,
            false => {
                let (memory, room) =
                    (state.starves || short || unsettled, state.short && !state.listed && !state.closed);
                state.listed |= room;
                if memory || room { Turn::Starves { memory, room } } else { Turn::Waits }
            }
        };
        drop(state);
        if again {
            // The next bytes are written when others have had their turn.
            self.poke();
        }
        turn
    }

    fn event(&self, event: Event) {
        let _held = HoldWakers::new();
        let mut state = self.lock();
        let counters = self.common.counters();
        match event {
            Event::Connected { result, .. } if state.aborted => {
                state.phase = Phase::Failed;
                if result.is_ok() {
                    // It was given up before the kernel was asked for it.
                    let _ = rustix::net::connect_unspec(&*self.fd);
                }
            }
            Event::Connected { result: Ok(()), .. } => {
                state.phase = Phase::Open;
                self.named();
            }
            Event::Connected { result, .. } => state.fail(result.err().unwrap_or(Errno::CANCELED)),
            Event::Sent { result, more, back, .. } => {
                not_taken(back);
                state.sending = false;
                let asked = state.asked;
                state.notifications.extend(more.then_some(asked));
                self.sent(&mut state, result, more);
            }
            Event::Notified { bytes, usage, back, .. } => {
                not_taken(back);
                state.notifications.pop_front();
                if usage != Usage::Referenced {
                    counters.kernel_copied.add(bytes);
                }
                state.copies |= usage == Usage::Copied && self.shared().config.zero_copy == ZeroCopy::Auto;
            }
            Event::Received { data, .. } => self.arrived(&mut state, data),
            Event::Ended { end, .. } => {
                state.receiving = None;
                state.cancelled = false;
                match end {
                    End::Stream => (state.ended, state.done) = (true, !state.shut),
                    End::NoPage | End::Again | End::Cancelled => {}
                    End::Failed(errno) => state.fail(errno),
                }
            }
            Event::Readable { .. } => {
                state.receiving = None;
                state.cancelled = false;
                self.may_be_readable(&mut state);
            }
            Event::Writable { .. } => state.sending = false,
            Event::HungUp { more, .. } => {
                if !more {
                    (state.watching, state.watched) = (None, true);
                }
                if !state.closed
                    && let Ok(Err(errno)) = sockopt::socket_error(&*self.fd)
                {
                    state.fail(errno);
                }
            }
            Event::Accepted { .. } => {}
        }
        // Pages of its own may have come home.
        self.looks_at_share(&mut state);
        self.show(&state);
        self.waiters.tell();
    }

    fn fed(&self) -> bool {
        let mut state = self.lock();
        state.listed = false;
        let waited = std::mem::take(&mut state.short) && !state.closed;
        self.show(&state);
        self.waiters.tell();
        waited
    }

    fn abort(&self) {
        let _held = HoldWakers::new();
        let mut state = self.lock();
        // Once: whoever asks for a thread that has ended comes here each time.
        if !state.aborted || state.phase != Phase::Failed {
            state.fail(Errno::CONNABORTED);
            self.give_up(&mut state);
        }
        self.show(&state);
        self.waiters.tell();
    }
}
