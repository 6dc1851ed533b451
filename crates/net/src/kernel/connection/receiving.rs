//! What a connection receives: to where, and what the ring is asked for.

use super::Connection;
use super::state::{Goes, Inner, Phase, RECEIVE_ROOM};
use crate::kernel::address::addresses;
use crate::kernel::devices::Place;
use onecopy_uring::Ring;

impl Connection {
    /// Returns whether it is known where what is received goes, as far as there is a connection.
    pub fn turn_receive(&self, state: &mut Inner, ring: &mut Ring) -> bool {
        let full = state.receive.true_size() >= RECEIVE_ROOM;
        if !self.decide(state) {
            return false;
        }
        match state.receiving {
            Some(key) if (full || state.closed) && !state.cancelled => {
                state.cancelled = true;
                ring.cancel(key);
            }
            Some(_) => {}
            None if state.phase != Phase::Open || state.ended || full => state.starves = false,
            None if matches!(state.goes, Goes::Device(..)) => {
                if state.bell.is_some() && !state.readable {
                    state.receiving = Some(ring.readable(&self.fd, self.token));
                }
            }
            None => {
                state.starves = !ring.has_pages();
                if !state.starves {
                    state.receiving = Some(ring.receive(&self.fd, self.token));
                }
            }
        }
        true
    }

    /// Has the ring tell of a reset behind the end of what is received, where somebody polls, or sends: no receive is under way that would say so.
    pub fn turn_watch(&self, state: &mut Inner, ring: &mut Ring) {
        state.sent_behind |= state.ended && !state.send.is_empty();
        let wanted = state.ended && state.phase == Phase::Open && !state.closed;
        match state.watching {
            Some(key) if (state.closed || state.phase != Phase::Open) && state.watched => {
                state.watched = false;
                ring.cancel(key);
            }
            None if wanted && !state.watched && (state.bell.is_some() || state.sent_behind) => {
                state.watched = true;
                state.watching = Some(ring.hung_up(&self.fd, self.token));
            }
            _ => {}
        }
    }

    /// Finds out where what is received goes, when there is a connection. Returns false where that is not known yet: the thread looks again soon.
    pub fn decide(&self, state: &mut Inner) -> bool {
        match &state.goes {
            Goes::Undecided if state.phase == Phase::Open => {
                let devices = &self.shared().devices;
                let local = if devices.is_used() { addresses(&*self.fd).local } else { None };
                state.goes = match local.map_or(Place::Host, |local| devices.place(local)) {
                    Place::Device(landing, queue) => Goes::Device(landing, queue),
                    Place::Host => Goes::Host,
                    Place::Unsettled => return false,
                };
                self.waiters.tell();
            }
            Goes::Device(landing, _) if !landing.is_bound() => self.is_unbound(state),
            _ => {}
        }
        true
    }
}
