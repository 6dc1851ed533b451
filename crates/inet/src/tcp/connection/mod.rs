//! One connection, without addresses, clock or link: segments, calls and the time go in, segments and wakes come out.
//!
//! Read in this order: `handshake` (how it comes to be), `arrive` (what a segment does), `transmit` (what leaves, and when), `segment` (how
//! a header is made), `calls` (what the program asks), `close` (how it ends), `timers` (what happens when nothing does).
//!
//! What was sent until it is acknowledged is [`Sender`]'s; what has arrived until it is read is [`Receiver`]'s. This type has what lies
//! between: the state, the bytes that wait to be sent, the peer's window, and the timers that ask whether the peer lives.

mod arrive;
mod calls;
mod close;
mod early;
mod fast_open;
mod handshake;
mod limited;
mod outbox;
mod segment;
mod timers;
mod transmit;
mod unsent;

pub use calls::{Readiness, Received, SendFlags, Side};
pub use handshake::{Agreed, DEFAULT_MSS, Handshake, Offer};

use super::config::Config;
use super::emit::{Context, Wake};
use super::error::Error;
use super::rcv::{Moment, Receiver};
use super::settings::{LEAST_SEND_BUFFER, Settings};
use super::snd::Sender;
use super::state::State;
use crate::wire::{Flags, Seq, Tcp};
use outbox::Outbox;
use std::sync::Arc;

bitflags::bitflags! {
    /// What both sides agreed on, and what the program has said.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Traits: u16 {
        /// Segments carry timestamps (RFC 7323).
        const TIMESTAMPS = 1;
        /// Both understand SACK (RFC 2018).
        const SACK = 2;
        /// Both scale windows.
        const SCALED = 4;
        /// Both take part in ECN (RFC 3168).
        const ECN = 8;
        /// The program has let go of it.
        const ORPHAN = 32;
        /// The program receives no more.
        const SHUT_READ = 64;
        /// The program sends no more.
        const SHUT_WRITE = 128;
        /// The program was told that the connection was made.
        const TOLD = 16;
        /// A connect under way was told of.
        const CONNECTING = 256;
        /// The program was told that there is no room, and waits to hear of some.
        const WANTS_ROOM = 512;
        /// Nothing waits to be sent, and memory is given back when the time of a probe comes.
        const RESTING = 1024;
        /// A SYN's data was taken, ours or the peer's (Fast Open).
        const SYN_DATA = 2048;
        /// Why ours was not: two bits, as Linux numbers it.
        const SYN_DATA_FAIL = 4096 | 8192;
        /// The program found no room since all connections together have no memory left, or no page.
        const SQUEEZED = 16384;
        /// Something waits for the time that pacing lets it leave at.
        const PACED = 32768;
    }
}

/// See the [module](self). (The kernel's tcp_sock; RFC 9293's TCB.)
#[derive(Debug)]
pub struct Connection {
    state: State,
    traits: Traits,
    /// Why it ended; told once.
    error: Option<Error>,
    /// What a router said; told when it ends for want of answers.
    soft_error: Option<Error>,
    /// Probes of a zero window, or of an idle peer, without an answer.
    probes: u8,
    /// How often the wait for a window has doubled.
    probe_backoff: u8,
    /// The longest segment that the peer takes (its MSS option).
    peer_mss: u16,
    /// By how many bits what it says of its window is shifted.
    peer_shift: u8,
    /// Behind the last byte that was sent in a segment that was not full (Minshall's rule).
    small_end: Seq,
    settings: Arc<Settings>,
    snd: Sender,
    out: Outbox,
    rcv: Receiver,
    handshake: Option<Box<Handshake>>,
    /// When the peer's window is asked for, while something waits; when memory is given back, while nothing does. `u64::MAX` for never.
    probe_at: u64,
    /// When an idle peer is asked, or an orphan given up.
    keep_at: u64,
    /// When something was received last, in ms.
    received_at: u32,
    /// When the last ACK went out for what should not have come, in ms; 0 for never.
    scolded_at: u32,
    /// When data was sent last, in µs.
    sent_at: u32,
    /// What the clock of timestamps begins with.
    clock_offset: u32,
    send_buffer: u32,
    /// Packets that came for it, whatever became of them; of these, those with data.
    segments_in: u32,
    data_segments_in: u32,
    limited: limited::Limited,
}

/// What remains to be done with a connection by who drives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It goes on.
    Keep,
    /// It goes on, and the segment that came is answered by a reset.
    Refuse,
    /// It has ended. It is kept as long as the program holds it.
    Ended,
    /// It has ended, and the segment that came is answered by a reset.
    EndedRefuse,
    /// It is to go on in TIME-WAIT's small form, or in FIN-WAIT-2's where nobody holds it.
    TimeWait,
}

/// Never.
const NEVER: u64 = u64::MAX;

fn microseconds(now: u64) -> u32 {
    (now / 1_000) as u32
}

fn milliseconds(now: u64) -> u32 {
    (now / 1_000_000) as u32
}

impl Connection {
    /// Where it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// What the program set.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Whether the program has let go of it.
    pub fn is_orphan(&self) -> bool {
        self.traits.contains(Traits::ORPHAN)
    }

    /// What was sent and is not acknowledged.
    pub fn sender(&self) -> &Sender {
        &self.snd
    }

    /// What has arrived.
    pub fn receiver(&self) -> &Receiver {
        &self.rcv
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> u32 {
        self.out.unsent().len()
    }

    /// Bytes that were given to be sent and are not acknowledged.
    pub fn queued(&self) -> u64 {
        self.out.len()
    }

    /// Bytes of pages that it keeps: what has arrived and was not read, what was given to be sent and is not acknowledged.
    pub fn memory(&self) -> u64 {
        self.out.true_size() + self.rcv.held()
    }

    /// Memory is short elsewhere: what came behind a hole is given up. Returns bytes of pages that it kept.
    pub fn give_up_holes(&mut self) -> u64 {
        self.rcv.give_up()
    }

    /// The milliseconds that timestamps tell.
    fn clock(&self, now: u64) -> u32 {
        milliseconds(now).wrapping_add(self.clock_offset)
    }

    /// The time, and what is known of the way, for who receives.
    fn moment(&self, now: u64) -> Moment {
        let srtt = self.snd.rtt().srtt_us().map_or(0, |us| u64::from(us) * 1000);
        Moment { now, stamp: self.clock(now), rto: self.snd.rto_ns(), srtt }
    }

    /// For how long nothing has come from the peer, in nanoseconds.
    fn silent(&self, now: u64) -> u64 {
        u64::from(milliseconds(now).wrapping_sub(self.received_at)) * 1_000_000
    }

    /// Bytes under way, FIN among them.
    fn flight(&self) -> u32 {
        self.snd.nxt().since(self.snd.una()) as u32
    }

    /// Whether `seq` is under way: who says something of it knows the connection.
    pub fn has_sent(&self, seq: Seq) -> bool {
        let first = if self.opens_early() { self.snd.iss() } else { self.snd.una() };
        !seq.before(first) && seq.before(self.snd.nxt())
    }

    /// What connect(2) says when it is called again.
    ///
    /// # Errors
    ///
    /// [`Error::Already`] while the connection is being made, then, after it was said once that it is made, [`Error::Connected`]. Why it could
    /// not be made, or ended before anybody was told that it was: [`Error::Aborted`] where that was asked for before.
    pub fn connect_again(&mut self) -> Result<(), Error> {
        match self.state {
            _ if self.traits.contains(Traits::TOLD) => Err(Error::Connected),
            State::SynSent | State::SynReceived => {
                self.traits |= Traits::CONNECTING;
                Err(Error::Already)
            }
            State::Closed => Err(self.error.take().unwrap_or(Error::Aborted)),
            _ => {
                self.traits |= Traits::TOLD;
                Ok(())
            }
        }
    }

    /// The program knows that it is connected (accept(2)).
    pub fn told(&mut self) {
        self.traits |= Traits::TOLD;
    }

    /// Whether it ended before the program knew that it was made: then its socket may connect again (sock->state is not SS_CONNECTED).
    pub fn has_failed(&self) -> bool {
        self.state == State::Closed && !self.traits.contains(Traits::TOLD)
    }

    /// What a segment without data would say now: what is left of a connection that is over answers with it. And what its clock begins
    /// with.
    pub fn last_words(&mut self, now: u64) -> (Tcp, u32) {
        let header = self.header(now, Flags::ACK, self.snd.nxt());
        (header, self.clock_offset)
    }

    /// It is over in order, and goes on elsewhere: here, what has arrived may still be read.
    pub fn over(&mut self) {
        self.state = State::Closed;
        self.traits |= Traits::SHUT_READ | Traits::SHUT_WRITE;
        (self.probe_at, self.keep_at) = (NEVER, NEVER);
        self.out.rest();
    }

    /// Ends it: what waits to be sent is dropped, what has arrived may still be read.
    fn end(&mut self, ctx: &mut Context<'_>, error: Option<Error>) {
        self.error = self.error.or(error);
        self.state = State::Closed;
        self.traits |= Traits::SHUT_READ | Traits::SHUT_WRITE;
        self.out.drop_all();
        self.handshake = None;
        (self.probe_at, self.keep_at) = (NEVER, NEVER);
        ctx.wake |= Wake::READ | Wake::WRITE | Wake::STATE;
        if error.is_some() {
            ctx.wake |= Wake::ERROR;
        }
    }

    /// Whether [`Connection::rest`] would give memory back.
    fn is_restless(&self) -> bool {
        self.snd.is_restless() || self.out.is_restless() || self.rcv.is_restless()
    }

    /// Gives back what it does not need while nothing happens.
    fn rest(&mut self, now: u64) {
        self.out.rest();
        self.snd.rest(now);
        self.rcv.rest();
    }

    /// Has the send buffer be what the program chose, or what the window of congestion needs (the kernel's tcp_sndbuf_expand()).
    fn expand_send_buffer(&mut self, config: &Config) {
        if let Some(chosen) = self.settings.send_buffer {
            // A listener's choice is its connections', too.
            self.send_buffer = chosen;
            return;
        }
        let packets = self.snd.congestion().cwnd().max(10).max(u32::from(config.reordering) + 1);
        // As the kernel counts a packet of such a length, with all that it needs itself.
        let each = (u32::from(self.peer_mss) + 640).next_power_of_two() + 256;
        let wanted = packets.saturating_mul(each).saturating_mul(2).min(config.wmem[2]);
        self.send_buffer = self.send_buffer.max(wanted).max(config.wmem[1]).max(LEAST_SEND_BUFFER);
    }
}

/// A connection in use has no more than this; what only some need is behind pointers.
const _: () = assert!(size_of::<Connection>() <= 512);
