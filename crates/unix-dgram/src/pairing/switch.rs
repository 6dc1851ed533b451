//! The peer's proof, and what follows from it: each direction moves from the kernel's queue to a ring.

use crate::fan_in::lane::Lane;
use crate::pairing::offer::{Incoming, OfferedRing, halves};
use crate::pairing::state::{Head, Line, Pairing, Phase, State};
use crate::socket::Socket;
use crate::wire::control_message::ControlMessage;
use crate::wire::proof;
use onecopy_ring::{Consumer, PeerMisbehaved, Producer};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sys::scm::{self, MAX_FDS};
use onecopy_unix::ancillary::attached::SendAncillary;
use onecopy_unix::ancillary::channel::Inlet;
use onecopy_unix::connection::rx::Rx;
use onecopy_unix::connection::tx::Tx;
use onecopy_unix::control;
use onecopy_unix::generation::forks;
use onecopy_unix::handshake::upgrade::Nonce;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, sockopt};
use std::io::IoSlice;

impl Socket {
    /// Handles a datagram from the kernel's queue, and the `proof` that came with it.
    pub fn received_datagram(&self, pairing: &Pairing, proof: Option<ControlMessage>) {
        if proof.is_none() && !pairing.is_counting() {
            return;
        }
        let mut state = pairing.state.lock();
        match proof {
            Some(ControlMessage::Proof { secret, cookie, number }) => {
                self.read_proof(pairing, &mut state, secret, cookie, number);
            }
            _ => {
                if let Some(Incoming { count: Some(count), .. }) = &mut state.incoming {
                    *count += 1;
                }
            }
        }
    }

    /// Handles a proof, in which the peer says which end of which line is its own.
    #[cold]
    fn read_proof(&self, pairing: &Pairing, state: &mut State, secret: Nonce, cookie: u64, number: u32) {
        if matches!(state.phase, Phase::Answered) && self.go_on(pairing, state).is_err() {
            // The peer gives its ring and token on the line before it sends its proof. They must be taken
            // first, or they would be met there later as what comes with datagrams.
            return self.give_up(pairing, state);
        }
        let (Some(line), Some(incoming)) = (&state.line, &mut state.incoming) else { return };
        if line.cookie != cookie {
            // The proof is the peer's, but another process is at the other end of the line.
            return self.give_up(pairing, state);
        }
        if incoming.forks != forks() || control::gone(line.fd.as_fd()) {
            // Another process receives from this queue too, or the peer will send no more.
            return;
        }
        incoming.count = Some(1);
        pairing.counting.store(1, Relaxed);
        let info = &incoming.ring.header().info.0;
        for (half, control) in halves(&secret).iter().zip(&info.nonce) {
            control.store(*half, Relaxed);
        }
        // Release pairs with the Acquire load in `is_taken`.
        info.joined.store(number, Release);
        // The other end of the line is the peer's, so what came over it is the peer's too.
        self.set_lifeline(line.fd.clone());
    }

    #[cold]
    fn give_up(&self, pairing: &Pairing, state: &mut State) {
        self.counters().fallbacks.add(1);
        self.drop_pairing(pairing, state);
        state.incoming = None;
        pairing.counting.store(0, Relaxed);
    }

    /// Ends the pairing, except for what has succeeded by now. A proof may still come, and must be known for
    /// one.
    pub(super) fn drop_pairing(&self, pairing: &Pairing, state: &mut State) {
        state.phase = Phase::Met;
        state.offer = None;
        pairing.rides.store(0, Relaxed);
        pairing.offered.store(0, Relaxed);
        pairing.open.store(0, Relaxed);
        state.incoming.take_if(|incoming| incoming.count.is_none());
    }

    /// Looks whether the next message in the kernel's queue is a datagram. Called before each receive from
    /// there while the peer may have switched. The caller holds the receiving side.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`].
    pub fn look_for_switch(&self, pairing: &Pairing, rx: &mut Rx) -> Result<Head, PeerMisbehaved> {
        // In this order: the peer says where it has switched before it rings its first doorbell.
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::TRUNC;
        let next = match rustix::net::recv(self.fd(), &mut [0u8; 1][..], flags) {
            Err(Errno::CONNRESET) => {
                // The kernel tells it once; the next receive reports it.
                self.note_reset();
                Head::Other
            }
            Err(Errno::AGAIN) => Head::Nothing,
            _ => Head::Other,
        };
        let mut state = pairing.state.lock();
        let Some(Incoming { ring, count: Some(received), .. }) = &state.incoming else { return Ok(next) };
        // Acquire pairs with the Release store in `adopt_offer`.
        let (at, received) = (ring.header().writer.0.switch_at.load(Acquire), *received);
        match at.checked_sub(1) {
            None => Ok(next),
            Some(at) if at > received => Ok(next),
            Some(at) if at < received => Err(PeerMisbehaved::Switch { at, received }),
            // Datagrams that came on lanes before this side was connected are first, and the message here is
            // no datagram.
            Some(_) if self.fan_in().is_some_and(|fan_in| fan_in.has_left_over()) => Ok(Head::Nothing),
            Some(_) => {
                self.switch_rx(pairing, &mut state, rx);
                Ok(Head::Switched)
            }
        }
    }

    /// Makes the receiving side take what the peer sends from the ring.
    fn switch_rx(&self, pairing: &Pairing, state: &mut State, rx: &mut Rx) {
        let Some(Incoming { ring: mine, .. }) = state.incoming.take() else { return };
        pairing.counting.store(0, Relaxed);
        if control::hung_up(self.fd()) {
            mine.header().info.0.shut.store(1, Relaxed);
        }
        if let Ok(name) = self.peer_addr() {
            let _ = pairing.sender.set(name);
        }
        self.set_rx_ring(mine.clone());
        // The lifeline is there since the peer was trusted.
        let inlet = self.lifeline().cloned().map_or_else(Inlet::default, Inlet::over);
        *rx = Rx::ring_with(Consumer::new(mine), inlet);
    }

    /// Switches the sending side to the peer's ring, if it is time and no thread is sending.
    pub fn adopt_now(&self, pairing: &Pairing, state: &mut State) {
        if state.offer.is_none() && state.lane.is_none() {
            return;
        }
        let Some(mut tx) = self.tx().try_lock() else { return };
        self.adopt_offer(pairing, state, &mut tx);
        tx.unlock_fenced();
        self.welcome_back();
    }

    fn adopt_offer(&self, pairing: &Pairing, state: &mut State, tx: &mut Tx) {
        // Behind what was sent over the kernel there must be room for doorbells and fillers. A lost doorbell
        // leaves the peer unreadable, and a lost filler leaves this side writable.
        let has_room = || control::has_room(self.fd());
        if let Some(lane) = state.lane.take_if(|_| has_room()) {
            return self.adopt_lane(pairing, lane);
        }
        let Some(line) = &state.line else { return };
        let taken = |offer: &mut OfferedRing| offer.is_taken() && offer.forks == forks() && has_room();
        // A peer that is gone gets nothing that the kernel has not refused.
        if control::gone(line.fd.as_fd()) {
            return;
        }
        let Some(OfferedRing { ring, since, .. }) = state.offer.take_if(taken) else { return };
        // Only a process that reads the peer's queue knew the secret, so the line is the peer's.
        self.set_lifeline(line.fd.clone());
        // Release pairs with the Acquire load in `look_for_switch`: the switch is there before the first
        // doorbell is.
        ring.header().writer.0.switch_at.store(since + 1, Release);
        self.set_tx_ring(ring.clone());
        *tx = Tx::ring_with(Producer::new(ring), self.lifeline().cloned());
        pairing.rides.store(0, Relaxed);
        pairing.offered.store(0, Relaxed);
        pairing.open.store(0, Relaxed);
    }

    fn adopt_lane(&self, pairing: &Pairing, lane: Lane) {
        lane.switch();
        *pairing.lane.lock() = Some(std::sync::Arc::new(lane));
        pairing.laned.store(1, Relaxed);
        pairing.offered.store(0, Relaxed);
        pairing.open.store(0, Relaxed);
    }

    /// Switches the sending side to the peer's ring if it is time, before a send to the peer over the kernel.
    /// The caller holds the sending side.
    pub fn adopt_ring(&self, tx: &mut Tx) {
        if let Some(pairing) = self.known_pairing()
            && pairing.offered.load(Relaxed) != 0
        {
            self.adopt_offer(pairing, &mut pairing.state.lock(), tx);
        }
    }

    /// Sends one datagram to the peer over the kernel, and with it the proof or join request that is due. The
    /// caller holds the sending side.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) returns.
    pub fn send_with_proof(
        &self,
        pairing: &Pairing,
        to: Option<&SocketAddrUnix>,
        pieces: &[IoSlice<'_>],
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let mut state = pairing.state.lock();
        // If this process has no descriptor left, a later datagram will do.
        let slip = self.slip(&state).ok().flatten();
        let mut fds = attached.fds.to_vec();
        if let Some(slip) = &slip {
            fds.push(slip.as_fd());
            fds.extend(state.offer.as_ref().map(|offer| offer.token.as_fd()));
        }
        let fits = slip.is_some() && fds.len() <= MAX_FDS;
        let with = if fits {
            scm::send_to(self.fd(), to, pieces, &fds, attached.ucred(), flags)
        } else {
            Err(Errno::TOOMANYREFS)
        };
        // Too many descriptors are in flight, maybe only because of ours.
        let sent = match with {
            Err(Errno::TOOMANYREFS) => {
                scm::send_to(self.fd(), to, pieces, attached.fds, attached.ucred(), flags)?
            }
            with => with?,
        };
        state.sent_one(with.is_ok());
        Ok(sent)
    }

    /// Makes the slip that is to go with the next datagram, if any is.
    fn slip(&self, state: &State) -> io::Result<Option<OwnedFd>> {
        let control = match (&state.offer, &state.phase, &state.line) {
            (Some(offer), _, Some(Line { fd, .. })) if offer.is_due() => ControlMessage::Proof {
                secret: offer.secret,
                cookie: sockopt::socket_cookie(fd)?,
                number: offer.number + 1,
            },
            (None, Phase::Joining(joining), _) if joining.is_due() => self.join_request(joining)?,
            _ => return Ok(None),
        };
        proof::slip(&control).map(Some)
    }
}
