//! When to leave slow start before packets are lost.
//!
//! Two ways, of which a connection has one:
//!
//! - **HyStart** (S. Ha, I. Rhee: "Taming the Elephants"), as Linux's CUBIC does it by default: slow start ends for good when the
//!   acknowledgements of one round come in a train longer than half of the shortest round trip, or when the shortest of 8 round trips
//!   and more in a round is longer than the shortest ever by an eighth (at least 4 ms, at most 16).
//! - **HyStart++** (RFC 9406): no trains; when the shortest of a round is longer than that of the round before by an eighth, the window
//!   grows at a quarter of the speed for five rounds (conservative slow start), and then slow start ends; unless the round trips get
//!   short again, when it was jitter, and slow start goes on.

use crate::wire::Seq;

/// HyStart does not look at windows smaller than this.
const LOW_WINDOW: u32 = 16;
/// Acknowledgements no further apart than this are of one train.
const TRAIN_GAP_US: u32 = 2_000;
/// Round trips of a round that have to be known.
const MIN_SAMPLES: u8 = 8;
/// What is longer by an eighth, is so by at least 4 ms and by 16 ms at most.
const LONGER_US: (u32, u32) = (4_000, 16_000);
/// In conservative slow start the window grows by one for so many acknowledged.
const CONSERVATIVE_DIVISOR: u32 = 4;
/// How many rounds it lasts.
const CONSERVATIVE_ROUNDS: u8 = 5;
/// Of one acknowledgement HyStart++ lets so many packets count, as nothing paces what they let out.
const MOST_AT_ONCE: u32 = 8;

/// How slow start ends, beside by loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowStart {
    /// By HyStart, as in Linux.
    #[default]
    HyStart,
    /// By HyStart++ (RFC 9406).
    HyStartPlusPlus,
}

/// What an acknowledgement tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// The time, in microseconds, which wrap.
    pub now_us: u32,
    pub rtt_us: u32,
    pub una: Seq,
    pub nxt: Seq,
    pub cwnd: u32,
    /// By how much the two hosts' gathering of packets lengthens a round trip at this rate.
    pub cushion_us: u32,
}

/// What is known of the current round: from one acknowledgement until all that was sent by then is acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Hystart {
    /// The shortest round trip so far; 0 before there is one.
    shortest: u32,
    /// Where the round ends.
    end: Seq,
    /// The shortest of the round.
    round_shortest: u32,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// There was no round yet.
    Fresh { way: SlowStart },
    /// HyStart looks.
    Train { samples: u8, round_start_us: u32, last_us: u32 },
    /// HyStart++ looks.
    Jitter {
        samples: u8,
        /// Rounds of conservative slow start, this one included; 0 in slow start.
        conservative: u8,
        /// Packets acknowledged that are not a packet more yet.
        credit: u8,
        /// The shortest of the round before.
        before: u32,
        /// The round trip that was too long; while it stays so, slow start does not come back.
        baseline: u32,
    },
    /// It is over.
    Found { way: SlowStart },
}

impl Hystart {
    pub fn new(way: SlowStart) -> Hystart {
        Hystart { shortest: 0, end: Seq(0), round_shortest: u32::MAX, state: State::Fresh { way } }
    }

    /// Which of the two it is.
    pub fn way(&self) -> SlowStart {
        match self.state {
            State::Fresh { way } | State::Found { way } => way,
            State::Train { .. } => SlowStart::HyStart,
            State::Jitter { .. } => SlowStart::HyStartPlusPlus,
        }
    }

    /// After a timeout all is forgotten, and a round begins.
    pub fn reset(&mut self, now_us: u32, nxt: Seq) {
        *self = Hystart::new(self.way());
        if self.way() == SlowStart::HyStart {
            self.begin(now_us, nxt);
        }
    }

    /// The shortest round trip so far; 0 before there is one.
    pub fn shortest_us(&self) -> u32 {
        self.shortest
    }

    /// Takes a round trip, in whatever state the window is.
    pub fn measured(&mut self, rtt_us: u32) {
        let rtt = rtt_us.max(1);
        if self.shortest == 0 || rtt < self.shortest {
            self.shortest = rtt;
        }
    }

    /// In slow start: whether it has to end.
    pub fn heard(&mut self, heard: &Heard) -> bool {
        match self.state {
            State::Fresh { .. } => self.begin(heard.now_us, heard.nxt),
            State::Found { .. } => return false,
            _ if heard.una.after(self.end) => self.begin(heard.now_us, heard.nxt),
            _ => {}
        }
        let way = self.way();
        let found = match way {
            SlowStart::HyStart => heard.cwnd >= LOW_WINDOW && self.train_or_delay(heard),
            SlowStart::HyStartPlusPlus => self.jitter(heard.rtt_us.max(1)),
        };
        if found {
            self.state = State::Found { way };
        }
        found
    }

    /// How many of `packets` acknowledged in slow start are worth one packet more each.
    pub fn worth(&mut self, packets: u32) -> u32 {
        let State::Jitter { conservative, credit, .. } = &mut self.state else { return packets };
        let packets = packets.min(MOST_AT_ONCE);
        if *conservative == 0 {
            return packets;
        }
        let earned = packets + u32::from(*credit);
        *credit = (earned % CONSERVATIVE_DIVISOR) as u8;
        earned / CONSERVATIVE_DIVISOR
    }

    /// Begins a round.
    fn begin(&mut self, now_us: u32, nxt: Seq) {
        self.state = match self.state {
            State::Jitter { conservative, credit, baseline, .. } => State::Jitter {
                samples: 0,
                conservative: if conservative == 0 { 0 } else { conservative.saturating_add(1) },
                credit,
                before: self.round_shortest,
                baseline,
            },
            State::Fresh { way: SlowStart::HyStartPlusPlus } => {
                State::Jitter { samples: 0, conservative: 0, credit: 0, before: u32::MAX, baseline: u32::MAX }
            }
            _ => State::Train { samples: 0, round_start_us: now_us, last_us: now_us },
        };
        self.round_shortest = u32::MAX;
        self.end = nxt;
    }

    fn train_or_delay(&mut self, heard: &Heard) -> bool {
        let shortest = self.shortest;
        let State::Train { samples, round_start_us, last_us } = &mut self.state else { return false };
        let mut found = false;
        if heard.now_us.wrapping_sub(*last_us) <= TRAIN_GAP_US {
            *last_us = heard.now_us;
            let half = shortest.saturating_add(heard.cushion_us) / 2;
            found = heard.now_us.wrapping_sub(*round_start_us) > half;
        }
        // The ninth is the first that is judged.
        self.round_shortest = self.round_shortest.min(heard.rtt_us.max(1));
        if *samples < MIN_SAMPLES {
            *samples += 1;
            return found;
        }
        found || self.round_shortest > longer(shortest)
    }

    fn jitter(&mut self, rtt_us: u32) -> bool {
        self.round_shortest = self.round_shortest.min(rtt_us);
        let round = self.round_shortest;
        let State::Jitter { samples, conservative, credit, before, baseline } = &mut self.state else {
            return false;
        };
        *samples = samples.saturating_add(1);
        if *conservative > CONSERVATIVE_ROUNDS {
            return true;
        }
        if *samples < MIN_SAMPLES {
            return false;
        }
        if *conservative > 0 {
            if round < *baseline {
                (*conservative, *credit, *baseline) = (0, 0, u32::MAX);
            }
        } else if *before != u32::MAX && round >= longer(*before) {
            (*conservative, *baseline) = (1, round);
        }
        false
    }
}

/// A round trip that is longer than `rtt_us` by what counts.
fn longer(rtt_us: u32) -> u32 {
    rtt_us.saturating_add((rtt_us / 8).clamp(LONGER_US.0, LONGER_US.1))
}
