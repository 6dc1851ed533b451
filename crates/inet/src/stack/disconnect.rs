//! Sockets that are as new again, after a connection that could not be made, or was given up.

use super::Stack;
use super::slab::Id;
use super::socket::{Fresh, Slot};
use crate::tcp::{Error, State, Wake};
use std::sync::Arc;

impl Stack {
    /// connect(2), called of what is or was a connection: says how it goes. Where it says why it could not be made, the next call begins
    /// anew (__inet_stream_connect()).
    pub(super) fn connect_again(&mut self, id: Id) -> Result<(), Error> {
        let connected = self.sockets.get_mut(id).and_then(Slot::connected_mut).ok_or(Error::NoSuchSocket)?;
        let said = connected.connection.connect_again();
        if connected.connection.has_failed() {
            self.renew(id, None);
        }
        said
    }

    /// Has it be neither connected nor listening (connect(2) to AF_UNSPEC, tcp_disconnect()): a connection is reset, what was not read is
    /// dropped, and [`Stack::tcp_take_error`] says [`Error::Reset`]. It keeps its options, and what it was bound to; a port that was chosen
    /// for it is given back.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSocket`].
    pub fn tcp_disconnect(&mut self, now: u64, id: Id) -> Result<(), Error> {
        match self.sockets.get_mut(id) {
            Some(Slot::Listener(_)) => self.unlisten(now, id),
            Some(Slot::Connection(connected)) => {
                let before = connected.connection.take_error();
                let reset = match connected.connection.state() {
                    State::Closed | State::LastAck | State::Closing => before,
                    _ => Some(Error::Reset),
                };
                self.tcp_abort(now, id);
                self.renew(id, reset);
            }
            Some(Slot::Fresh(fresh)) => {
                let Some(ends) = fresh.deferred.take() else { return Ok(()) };
                fresh.error = Some(Error::Reset);
                if fresh.wake.is_empty() {
                    self.events.push_back(id);
                }
                fresh.wake |= Wake::READ | Wake::WRITE | Wake::STATE;
                if let Some(hold) = fresh.hold.take_if(|_| !fresh.asked.has_port()) {
                    self.ports.release(hold);
                }
                self.demux.disconnect(&ends, id);
            }
            _ => return Err(Error::NoSuchSocket),
        }
        Ok(())
    }

    /// A connection that has ended is a socket without one.
    fn renew(&mut self, id: Id, error: Option<Error>) {
        let Some(slot @ Slot::Connection(_)) = self.sockets.get_mut(id) else { return };
        if let Slot::Connection(mut gone) =
            std::mem::replace(slot, Slot::Fresh(Box::new(Fresh::new(Arc::default()))))
        {
            self.shared.release(&self.config, &gone.charge);
            self.rooms.release(&gone.claim);
            let settings = gone.connection.settings().clone();
            let (hold, asked, wake) = (gone.hold.take(), gone.asked, gone.wake);
            *slot = Slot::Fresh(Box::new(Fresh { settings, asked, hold, error, wake, deferred: None }));
        }
    }
}
