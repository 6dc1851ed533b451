//! The peer's sign, and what follows from it: each direction moves from the kernel's queue to a ring.

use super::{Line, Meeting, Next, PRESENT, Phase, SWITCHED, State, hear, open_ring};
use crate::channel::Inlet;
use crate::control;
use crate::dgram::hello::{HELLO_LEN, Hello};
use crate::dgram::lane::Lane;
use crate::end::End;
use crate::rx::Rx;
use crate::tx::Tx;
use crate::{Error, Op, Result};
use onecopy_ring::{Consumer, Producer, Ring};
use onecopy_sync::atomic::Ordering::Relaxed;
use rustix::fd::AsFd;
use rustix::io::{self, Errno};
use rustix::net::RecvFlags;
use std::sync::Arc;

impl End {
    /// Takes the peer's sign, if it is what comes next in the queue, and does what is to be done.
    pub(super) fn find_nonce(&self, meeting: &Meeting, state: &mut State, rx: &mut Rx) -> Next {
        let Some((_, nonce)) = &state.incoming else { return Next::Other };
        if self.crowd().is_some_and(|crowd| crowd.left_over.load(Relaxed) != 0) {
            return Next::Other; // what came on lanes, before this side was connected, is first
        }
        let mut first = [0; HELLO_LEN];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::TRUNC;
        match rustix::net::recv(&self.fd, &mut first[..], flags) {
            Ok((HELLO_LEN, HELLO_LEN)) => {}
            Err(Errno::CONNRESET) => {
                // The kernel tells it once; it is for whoever receives.
                self.reset.store(1, Relaxed);
                return Next::Other;
            }
            Err(Errno::AGAIN) => return Next::Nothing,
            _ => return Next::Other,
        }
        let Some(sign) = Hello::decode(&first).filter(|sign| sign.nonce == *nonce) else {
            return Next::Other;
        };
        let _ = rustix::net::recv(&self.fd, &mut first[..], RecvFlags::DONTWAIT);
        let (cookie, what) = (sign.capacity, sign.send_buffer);
        match std::mem::replace(&mut state.phase, Phase::Met) {
            Phase::Answered(line) if what == PRESENT && cookie == line.cookie => {
                // The ring was sent before the sign was.
                let theirs = hear(line.fd.as_fd()).ok().flatten();
                match theirs.and_then(|(hello, memfd)| open_ring(&hello, memfd, &self.config)) {
                    Some(ring) => self.trust(meeting, state, line, ring),
                    None => self.give_up(meeting, state),
                }
            }
            Phase::Shown(line, ring, true) if what == SWITCHED && cookie == line.cookie => {
                self.trust(meeting, state, line, ring);
                self.switch_rx(meeting, state, rx);
            }
            Phase::Met if what == SWITCHED && state.trusted == Some(cookie) => {
                self.switch_rx(meeting, state, rx);
            }
            // Of a peer that this side has left meanwhile.
            Phase::Alone => {
                state.phase = Phase::Alone;
                state.incoming = None;
                meeting.expecting.store(0, Relaxed);
                return Next::Sign;
            }
            // The peer's, but not of who is at the other end of the line.
            _ => self.give_up(meeting, state),
        }
        self.adopt_now(meeting, state);
        Next::Sign
    }

    /// The peer has said that the other end of the line is its own, so the ring that came over it is, too.
    pub(super) fn trust(&self, meeting: &Meeting, state: &mut State, line: Line, ring: Ring) {
        state.trusted = Some(line.cookie);
        state.offer = Some((ring, line.nonce));
        meeting.offered.store(1, Relaxed);
        let _ = self.life.set(Arc::new(line.fd));
    }

    #[cold]
    pub(super) fn give_up(&self, meeting: &Meeting, state: &mut State) {
        self.counters.fallbacks.add(1);
        state.incoming = None;
        meeting.expecting.store(0, Relaxed);
        meeting.open.store(0, Relaxed);
    }

    /// What the peer sends comes through the ring from here on.
    pub(super) fn switch_rx(&self, meeting: &Meeting, state: &mut State, rx: &mut Rx) {
        let Some((mine, _)) = state.incoming.take() else { return };
        meeting.expecting.store(0, Relaxed);
        if control::hung_up(self.fd()) {
            mine.header().info.0.shut.store(1, Relaxed);
        }
        if let Ok(name) = self.peer_name() {
            let _ = meeting.sender.set(name);
        }
        self.set_rx_ring(mine.clone());
        // (It is there since the peer was trusted.)
        let inlet = self.life.get().cloned().map_or_else(Inlet::default, Inlet::over);
        *rx = Rx::ring_with(Consumer::new(mine), inlet);
    }

    /// As [`End::find_nonce`], for who holds the receiving side.
    #[cold]
    pub fn look_for_nonce(&self, meeting: &Meeting, rx: &mut Rx) -> Next {
        let mut state = meeting.state.lock();
        self.find_nonce(meeting, &mut state, rx)
    }

    /// Switches the sending side to the peer's ring, if there is one and nobody is sending.
    pub fn adopt_now(&self, meeting: &Meeting, state: &mut State) {
        // To a peer that is gone nothing is sent that it was not asked to send: what it had sent would be lost.
        if (state.offer.is_none() && state.lane.is_none()) || control::gone(self.life()) {
            return;
        }
        let Some(mut tx) = self.tx.try_lock() else { return };
        if let Err(errno) = self.adopt_offer(meeting, state, &mut tx) {
            self.tell_later(meeting, errno);
        }
        tx.unlock_fenced();
        self.welcome_back();
    }

    pub(super) fn adopt_offer(&self, meeting: &Meeting, state: &mut State, tx: &mut Tx) -> io::Result<()> {
        if let Some(lane) = state.lane.take() {
            return self.adopt_lane(meeting, state, lane);
        }
        let Some((ring, nonce)) = state.offer.take() else { return Ok(()) };
        let sent = self.life.get().map_or(Err(Errno::NOTCONN), |line| self.send_sign(line, nonce, SWITCHED));
        match sent {
            Ok(()) => {
                self.set_tx_ring(ring.clone());
                *tx = Tx::ring_with(Producer::new(ring), self.life.get().cloned());
                meeting.offered.store(0, Relaxed);
                meeting.open.store(0, Relaxed);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                state.offer = Some((ring, nonce));
                Ok(())
            }
            Err(errno) => {
                self.counters.fallbacks.add(1);
                meeting.offered.store(0, Relaxed);
                meeting.open.store(0, Relaxed);
                Err(errno)
            }
        }
    }

    fn adopt_lane(&self, meeting: &Meeting, state: &mut State, lane: Lane) -> io::Result<()> {
        match self.switch_to(&lane) {
            Ok(()) => {
                *meeting.lane.lock() = Some(Arc::new(lane));
                meeting.laned.store(1, Relaxed);
                meeting.offered.store(0, Relaxed);
                meeting.open.store(0, Relaxed);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                state.lane = Some(lane);
                Ok(())
            }
            Err(errno) => {
                meeting.offered.store(0, Relaxed);
                Err(errno)
            }
        }
    }

    /// Before a send over the kernel, by who holds the sending side: switches it to the peer's ring, if there is one. `named`: the
    /// send is to a name, and would not part from a peer that is gone, as one to the peer does.
    ///
    /// # Errors
    ///
    /// What the kernel has to say of the peer.
    pub fn adopt_ring(&self, tx: &mut Tx, named: bool) -> Result<()> {
        let Some(meeting) = self.meet.get() else { return Ok(()) };
        if named && control::gone(self.life()) {
            return Ok(());
        }
        if meeting.offered.load(Relaxed) != 0 {
            let adopted = self.adopt_offer(meeting, &mut meeting.state.lock(), tx);
            return adopted.map_err(|errno| Error::new(Op::Send, errno));
        }
        self.tell_untold()
    }

    /// Before a send to the peer, also once there is no meeting any more.
    ///
    /// # Errors
    ///
    /// What the kernel said to a send of this side's own, once.
    pub fn tell_untold(&self) -> Result<()> {
        let untold = self.meet.get().map_or(0, |meeting| meeting.untold.swap(0, Relaxed));
        match untold {
            0 => Ok(()),
            errno => Err(Error::new(Op::Send, Errno::from_raw_os_error(errno as i32))),
        }
    }
}
