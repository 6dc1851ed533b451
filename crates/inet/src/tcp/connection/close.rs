//! How a connection ends (RFC 9293, section 3.6; the kernel's __tcp_close(), tcp_shutdown()).

use super::timers::nanos;
use super::{After, Connection, Side, Traits};
use crate::tcp::emit::{Context, Wake};
use crate::tcp::error::Error;
use crate::tcp::state::State;

/// What became of our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// There is none.
    None,
    /// It waits, or is under way.
    Sent,
    /// The peer has it.
    Acknowledged,
}

impl Connection {
    pub(super) fn fin_state(&self) -> Fin {
        if !self.state.has_closed() {
            Fin::None
        } else if self.out.unsent().is_empty() && !self.snd.has_unacked() {
            Fin::Acknowledged
        } else {
            Fin::Sent
        }
    }

    /// The program sends, or receives, no more.
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`].
    pub fn shutdown(&mut self, ctx: &mut Context<'_>, side: Side) -> Result<After, Error> {
        match self.state {
            State::Closed => return Err(Error::NotConnected),
            State::SynSent => {
                // There is nothing yet to be ended in order, whichever side it is (inet_shutdown()).
                self.end(ctx, Some(Error::Reset));
                return Ok(After::Ended);
            }
            _ => {}
        }
        if side != Side::Write {
            self.traits |= Traits::SHUT_READ;
            ctx.wake |= Wake::READ | Wake::STATE;
        }
        if side != Side::Read && !self.traits.contains(Traits::SHUT_WRITE) {
            self.traits |= Traits::SHUT_WRITE;
            ctx.wake |= Wake::WRITE | Wake::STATE;
            self.send_fin(ctx);
        }
        Ok(After::Keep)
    }

    /// Puts FIN behind all that waits; once both sides know each other, where they do not yet. (Who was opened by a SYN's data may send.)
    pub(super) fn send_fin(&mut self, ctx: &mut Context<'_>) {
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::SynReceived if self.opens_early() => State::FinWait1,
            State::CloseWait => State::LastAck,
            _ => return,
        };
        self.out.unsent_mut().fin();
        // FIN goes with what waits, whether that is a full segment or not.
        self.push_all(ctx);
    }

    /// The program lets go of it.
    pub fn close(&mut self, ctx: &mut Context<'_>) -> After {
        self.traits |= Traits::ORPHAN | Traits::SHUT_READ;
        self.keep_at = super::NEVER;
        let unread = self.rcv.discard() > 0;
        match self.state {
            State::Closed | State::Listen => return After::Ended,
            State::SynSent => {
                self.end(ctx, None);
                return After::Ended;
            }
            State::TimeWait => return After::TimeWait,
            _ => {}
        }
        if unread || self.settings.linger.is_some_and(|limit| limit.is_zero()) {
            // RFC 2525, section 2.17: the peer is not to believe that all was read.
            ctx.stats.aborted_on_close += 1;
            if self.state.is_synchronized() || self.state == State::SynReceived {
                self.send_reset(ctx);
            }
            self.end(ctx, None);
            return After::Ended;
        }
        if !self.traits.contains(Traits::SHUT_WRITE) {
            self.traits |= Traits::SHUT_WRITE;
            self.send_fin(ctx);
        }
        if self.state == State::FinWait2 {
            match self.settings.fin_wait {
                Some(limit) if limit.is_zero() => {
                    self.send_reset(ctx);
                    self.end(ctx, None);
                    return After::Ended;
                }
                limit => {
                    let limit = limit.unwrap_or(ctx.config.fin_timeout);
                    self.keep_at = ctx.now.saturating_add(nanos(limit));
                }
            }
        }
        After::Keep
    }

    /// Ends it for both sides at once (the kernel's tcp_disconnect(), tcp_abort()).
    pub fn abort(&mut self, ctx: &mut Context<'_>) -> After {
        if matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2 | State::CloseWait | State::SynReceived
        ) {
            self.send_reset(ctx);
        }
        self.end(ctx, None);
        self.rcv.discard();
        After::Ended
    }

    /// Why it ended, once.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }
}
