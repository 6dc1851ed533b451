//! When to acknowledge: at once, later, or with what is sent anyway.
//!
//! As Linux does (net/ipv4/tcp_input.c, tcp_output.c, tcp_timer.c): an ACK for each segment at first, while the sender's window is small
//! and it waits for them; later one for more than a full segment, or after a while that follows the rhythm in which data comes; and
//! none of its own for who answers what he gets. A super-segment counts as what it was cut to.

use super::Moment;
use crate::wire::Flags;

/// RFC 9293, section 3.8.6.3, lets it be 500 ms; TCP_DELACK_MIN, TCP_ATO_MIN.
const SHORTEST: u32 = 40_000;
/// TCP_DELACK_MAX.
const LONGEST: u32 = 200_000;
/// Until a rhythm is known.
const SLOWEST: u32 = 500_000;
/// ACKs at once, at most, before they are delayed: TCP_MAX_QUICKACKS.
pub(super) const QUICK: u8 = 16;
/// Answers after which two talk in turns: TCP_PINGPONG_THRESH.
const TURNS: u8 = 1;
/// What every path carries: TCP_MSS_DEFAULT.
const USUAL: u32 = 536;
/// TCP_MIN_MSS.
const LEAST: u32 = 88;
/// The fixed part of a header.
const HEADER: u32 = 20;

/// Whether an ACK is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckWhen {
    /// There is nothing to acknowledge.
    #[default]
    No,
    /// Send one.
    Now,
    /// Wait for something to send it with until then, in nanoseconds of the caller's clock.
    At(u64),
}

bitflags::bitflags! {
    /// What is owed (icsk_ack.pending).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Owed: u8 {
        /// An ACK, with whatever is sent next.
        const ACK = 1;
        /// At the latest when the timer says so.
        const TIMER = 2;
        /// A small segment came: who reads all of it gets no more soon.
        const PUSHED = 4;
        /// A second one.
        const PUSHED_AGAIN = 8;
        /// At the end of this segment, whatever else holds.
        const AT_ONCE = 16;
        /// There was no memory for what came: the window is shut.
        const NO_MEMORY = 32;
        /// Now.
        const DUE = 64;
    }
}

/// What is owed, and what decides on it. Spans are in microseconds.
#[derive(Debug)]
pub(super) struct Acks {
    /// Counts with [`Owed::TIMER`].
    timeout: u64,
    /// When data came last, in milliseconds: the kernel keeps no more (lrcvtime).
    last_data: u32,
    /// How long an ACK waits (icsk_ack.ato); 0 before the first data.
    delay: u32,
    pub owed: Owed,
    /// ACKs still to be sent at once.
    quick: u8,
    /// Answers to what came.
    turns: u8,
    /// What the peer's full segments have: a guess, low rather than high.
    mss: u16,
    /// A short segment's size, before it is believed.
    last_size: u16,
}

/// What a segment says of the sender's segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of each that it was cut to.
    pub size: u32,
    /// Bytes of its header.
    pub header: u32,
    pub flags: Flags,
    /// Bytes that every header has.
    pub usual_header: u32,
    /// The most that we take in one.
    pub limit: u16,
}

impl Acks {
    pub fn new(now: u64, mss: u16, window: u32) -> Acks {
        let mss = u32::from(mss).min(window / 2).clamp(LEAST, USUAL);
        Acks {
            timeout: 0,
            last_data: millis(now),
            delay: 0,
            owed: Owed::empty(),
            quick: 0,
            turns: 0,
            mss: mss as u16,
            last_size: 0,
        }
    }

    pub fn mss(&self) -> u32 {
        self.mss.into()
    }

    /// In microseconds.
    pub fn delay(&self) -> u32 {
        self.delay
    }

    /// In milliseconds of the caller's clock.
    pub fn last_data(&self) -> u32 {
        self.last_data
    }

    /// Takes the size of the peer's segments from one of them; true if it is a new one (tcp_measure_rcv_mss).
    pub fn measure(&mut self, shape: Shape) -> bool {
        let before = std::mem::take(&mut self.last_size);
        if shape.size >= self.mss() {
            let new = shape.size != self.mss();
            self.mss = shape.size.min(shape.limit.into()).max(1) as u16;
            // The end of what was written, perhaps, and who sent it waits.
            if shape.flags.contains(Flags::PSH) {
                self.owed |= Owed::PUSHED;
            }
            return new;
        }
        // Options come and go: what is compared is header and data.
        let all = shape.size + shape.header;
        let plain = !shape.flags.intersects(Flags::FIN | Flags::URG | Flags::SYN | Flags::PSH);
        if all >= USUAL + HEADER || (all >= LEAST + HEADER && plain) {
            let size = all.saturating_sub(shape.usual_header).clamp(1, u16::MAX.into()) as u16;
            self.last_size = size;
            if size == before {
                self.mss = size;
                return false;
            }
        }
        if self.owed.contains(Owed::PUSHED) {
            self.owed |= Owed::PUSHED_AGAIN;
        }
        self.owed |= Owed::PUSHED;
        false
    }

    /// Follows the rhythm of what comes (tcp_event_data_recv).
    pub fn data(&mut self, moment: &Moment, window: u32) {
        if self.delay == 0 {
            self.raise(QUICK, window);
            self.delay = SHORTEST;
        } else {
            let rto = micros(moment.rto);
            let gap = self.gap(moment.now);
            if gap <= SHORTEST / 2 {
                self.delay = (self.delay >> 1) + SHORTEST / 2;
            } else if gap < self.delay {
                self.delay = ((self.delay >> 1) + gap).min(rto);
            } else if gap > rto {
                // The sender begins with a small window again, or should.
                self.raise(QUICK, window);
            }
        }
        self.last_data = millis(moment.now);
    }

    /// How long ago data came last.
    fn gap(&self, now: u64) -> u32 {
        millis(now).wrapping_sub(self.last_data).saturating_mul(1000)
    }

    /// Some ACKs at once: as many as half of the window is worth.
    fn raise(&mut self, most: u8, window: u32) {
        let worth = window / (2 * self.mss());
        let worth = if worth == 0 { 2 } else { worth };
        self.quick = self.quick.max(worth.min(most.into()) as u8);
    }

    /// The next `most` ACKs leave at once (tcp_enter_quickack_mode).
    pub fn hurry(&mut self, most: u8, window: u32) {
        self.raise(most, window);
        self.turns = 0;
        self.delay = SHORTEST;
    }

    /// At least one leaves at once: the window grows.
    pub fn hurry_once(&mut self) {
        self.quick |= 1;
    }

    /// What has come says nothing of a rhythm, and is acknowledged.
    pub fn begin_anew(&mut self) {
        (self.delay, self.quick, self.turns, self.owed) = (0, 0, 0, Owed::empty());
    }

    pub fn no_hurry(&mut self) {
        self.quick = 0;
    }

    pub fn set_quick(&mut self, on: bool) {
        self.turns = if on { 0 } else { TURNS };
    }

    pub fn in_hurry(&self) -> bool {
        self.quick > 0 && !self.in_turns()
    }

    pub fn in_turns(&self) -> bool {
        self.turns >= TURNS
    }

    /// Data leaves: an answer, if it does so soon after what came (tcp_event_data_sent).
    pub fn answered(&mut self, now: u64) {
        if self.gap(now) < self.delay {
            self.turns = self.turns.saturating_add(1);
        }
    }

    /// Lets the ACK wait (tcp_send_delayed_ack).
    pub fn later(&mut self, moment: &Moment) {
        let mut delay = self.delay;
        if delay > SHORTEST {
            let slow = !self.in_turns() && !self.owed.contains(Owed::PUSHED);
            let most = if slow { SLOWEST } else { LONGEST };
            let trip = micros(moment.srtt);
            delay = delay.min(if trip > 0 { most.min(trip.max(SHORTEST)) } else { most });
        }
        let delay = u64::from(delay.min(LONGEST)) * 1000;
        let mut timeout = moment.now + delay;
        if self.owed.contains(Owed::TIMER) {
            if self.timeout <= moment.now + delay / 4 {
                self.owed |= Owed::DUE;
                return;
            }
            timeout = timeout.min(self.timeout);
        }
        self.timeout = timeout;
        self.owed |= Owed::ACK | Owed::TIMER;
    }

    /// Lets the ACK wait as long as one may.
    pub fn wait(&mut self, moment: &Moment) {
        self.timeout = moment.now + u64::from(LONGEST) * 1000;
        self.owed |= Owed::ACK | Owed::TIMER;
    }

    /// When the timer ends.
    pub fn deadline(&self) -> Option<u64> {
        self.owed.contains(Owed::TIMER).then_some(self.timeout)
    }

    /// Nothing was sent that it could have gone with (tcp_delack_timer_handler).
    pub fn expired(&mut self, moment: &Moment) {
        if self.deadline().is_none_or(|timeout| moment.now < timeout) {
            return;
        }
        self.owed -= Owed::TIMER;
        if self.owed.contains(Owed::ACK) {
            if self.in_turns() {
                self.turns = 0;
                self.delay = SHORTEST;
            } else {
                self.delay = self.delay.saturating_mul(2).min(micros(moment.rto));
            }
            self.owed |= Owed::DUE;
        }
    }

    /// One has left (tcp_event_ack_sent).
    pub fn sent(&mut self) {
        if self.quick > 0 && self.owed.contains(Owed::ACK) {
            self.quick -= 1;
            if self.quick == 0 {
                self.delay = SHORTEST;
            }
        }
        self.owed = Owed::empty();
    }
}

fn millis(nanos: u64) -> u32 {
    (nanos / 1_000_000) as u32
}

fn micros(nanos: u64) -> u32 {
    u32::try_from(nanos / 1000).unwrap_or(u32::MAX)
}
