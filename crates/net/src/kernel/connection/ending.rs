//! How a connection ends.

use super::Connection;
use super::state::{Fin, Inner, Phase};
use onecopy_chain::notify::Fate;
use onecopy_chain::notify::zerocopy::HoldWakers;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use std::time::Duration;

impl Connection {
    /// Shuts one way down, or both.
    pub fn shutdown(&self, how: std::net::Shutdown) -> Result<(), Errno> {
        // What it frees may wake others, who may call it.
        let _held = HoldWakers::new();
        let mut state = self.lock();
        match state.phase {
            Phase::Open => {}
            Phase::Failed => return Err(Errno::NOTCONN),
            // It is given up, whichever way is meant, as the kernel gives its own up (inet_shutdown(): TCP_SYN_SENT), and who waits for it hears so.
            Phase::Connect(_) | Phase::Connecting => {
                state.fail(Errno::CONNRESET);
                self.give_up(&mut state);
                self.show(&state);
                self.waiters.tell();
                return Ok(());
            }
        }
        if how != std::net::Shutdown::Write {
            (state.ended, state.shut) = (true, true);
            let _ = shutdown(&*self.fd, Shutdown::Read);
        }
        if how != std::net::Shutdown::Read && state.fin == Fin::No {
            state.fin = Fin::Wanted;
            self.finish(&mut state);
        }
        self.show(&state);
        self.waiters.tell();
        drop(state);
        self.poke();
        Ok(())
    }

    /// Says that no more comes, once all is sent.
    pub(super) fn finish(&self, state: &mut Inner) {
        if state.fin == Fin::Wanted && state.send.is_empty() && !state.sending {
            state.fin = Fin::Done;
            // Where it fails the connection is over anyway.
            let _ = shutdown(&*self.fd, Shutdown::Write);
        }
    }

    /// The last handle is gone. What was sent is still delivered; with something unread, or linger of zero, the peer gets a reset at once
    /// (RFC 2525, section 2.17), as the kernel does.
    pub fn close(&self, reset: bool) {
        // What it frees may wake others, who may call it.
        let _held = HoldWakers::new();
        let mut state = self.lock();
        // Nobody waits for pages any more.
        (state.closed, state.ended, state.short) = (true, true, false);
        // What the ring does not receive stays with the kernel until somebody does.
        let unread = !state.receive.is_empty() || state.left(&self.fd) > 0;
        if reset || unread || state.phase != Phase::Open {
            self.give_up(&mut state);
        } else {
            // Whoever has a fragment of it keeps the descriptor open. Bytes behind our FIN get a reset all the same (RFC 1122, section 4.2.2.13).
            let _ = shutdown(&*self.fd, Shutdown::Read);
            state.fin = if state.fin == Fin::No { Fin::Wanted } else { state.fin };
            self.finish(&mut state);
        }
        state.receive.clear(Fate::Dropped);
        self.show(&state);
        drop(state);
        self.poke();
    }

    /// Ends the connection with a reset (tcp_disconnect()): the kernel frees what it has of it, whoever else may have the descriptor.
    pub(super) fn give_up(&self, state: &mut Inner) {
        if !state.aborted {
            state.aborted = true;
            state.drop_unsent();
            let _ = sockopt::set_socket_linger(&*self.fd, Some(Duration::ZERO));
            let _ = rustix::net::connect_unspec(&*self.fd);
        }
    }
}
