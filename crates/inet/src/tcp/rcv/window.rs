//! What the peer may send: how large windows are, what they are made of, and how they grow.
//!
//! As Linux does (net/ipv4/tcp_output.c: tcp_select_initial_window, __tcp_select_window, tcp_select_window; net/ipv4/tcp_input.c:
//! tcp_grow_window, tcp_rcv_space_adjust, tcp_rcvbuf_grow). A buffer counts the memory that data keeps, a window the data: of which share the
//! one is the other is measured.

use super::Moment;
use crate::wire::tcp::Seq;

/// Shares are in 256ths: TCP_RMEM_TO_WIN_SCALE.
const WHOLE: u64 = 256;
/// What is assumed of memory before anything has come: TCP_DEFAULT_SCALING_RATIO.
const HALF: u8 = 128;
/// The least that is believed of a segment's. Neighbours mostly share pages, which the first one cannot know; where they don't, memory
/// is bounded all the same.
const QUARTER: u64 = 64;
/// RFC 7323, section 2.3.
const MAX_SHIFT: u8 = 14;
/// SOCK_MIN_RCVBUF / 2.
const LEAST_CLAMP: u32 = 1152;
/// Segments that a sender begins with: TCP_INIT_CWND.
const FIRST: u32 = 10;

/// What a receiver may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory for what came and was not read, in bytes of pages: SO_RCVBUF as getsockopt says it, the double of what was set; the
    /// second number of tcp_rmem.
    pub buffer: u32,
    /// What it grows to by itself: the third number of tcp_rmem.
    pub most: u32,
    /// What SO_RCVBUF may be set to (net.core.rmem_max): it counts for the scale only.
    pub settable: u32,
    /// Whether the program has set the buffer: it stays what it is.
    pub locked: bool,
    /// The largest window: TCP_WINDOW_CLAMP; 0 for none.
    pub clamp: u32,
}

impl Default for Limits {
    /// As Linux is configured (documentation of tcp_rmem and rmem_max).
    fn default() -> Limits {
        Limits { buffer: 131_072, most: 6_291_456, settable: 212_992, locked: false, clamp: 0 }
    }
}

/// What a SYN says of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes. A SYN writes as many of them as fit into 16 bits, and never shifts them.
    pub window: u32,
    /// By how many bits later ones are shifted, if the peer understands it.
    pub shift: u8,
    /// The largest one to come.
    pub clamp: u32,
}

impl Limits {
    /// What to say in a SYN, with segments of up to `mss` bytes (less the options that each has): tcp_select_initial_window().
    pub fn offer(&self, mss: u16, scaling: bool) -> Offer {
        let full = share(HALF, self.buffer.into()).max(0) as u32;
        let mut clamp = self.clamp;
        if self.locked && (clamp == 0 || clamp > full) {
            clamp = full;
        }
        if clamp == 0 {
            clamp = u32::from(u16::MAX) << MAX_SHIFT;
        }
        let mut window = full.min(clamp);
        if window > mss.into() {
            window -= window % u32::from(mss.max(1));
        }
        let mut shift = 0;
        if scaling {
            let largest = window.max(self.most).max(self.settable).min(clamp);
            shift =
                largest.checked_ilog2().map_or(0, |log| log.saturating_sub(15)).min(MAX_SHIFT.into()) as u8;
        }
        Offer { window, shift, clamp: clamp.min(u32::from(u16::MAX) << shift) }
    }
}

/// The window that was said last, and what the next one is made of.
#[derive(Debug)]
pub(super) struct Windows {
    /// RCV.NXT as it was said last.
    told: Seq,
    /// The window that was said with it (RCV.WND).
    size: u32,
    /// The largest one.
    clamp: u32,
    /// What is said at most for now (rcv_ssthresh): it follows what memory the peer's segments take.
    threshold: u32,
    buffer: u32,
    most: u32,
    /// The longest segment that we take, less the options that each has.
    limit: u16,
    /// What share of memory is data, in 256ths.
    ratio: u8,
    shift: u8,
    locked: bool,
    /// [`Windows::shut`] took some of what was said back.
    taken_back: bool,
    tuning: Tuning,
}

/// How much a program reads in a round trip (dynamic right-sizing), which is how long a window takes to come.
#[derive(Debug, Default)]
struct Tuning {
    /// When the window that ends at `until` was said.
    at: u64,
    /// When bytes were counted last...
    since: u64,
    /// ...from this one on.
    from: Seq,
    until: Seq,
    /// Eight round trips, in microseconds; 0 for none yet.
    trips: u32,
    /// The timestamp that was echoed last: each counts once.
    echo: u32,
    /// Bytes read in a round trip, at most.
    space: u32,
    /// The furthest that the peer was ever told to stop at: it may have sent so much before it hears that less is left. (It stands here
    /// since there is room for it.)
    furthest: Seq,
}

impl Windows {
    pub fn new(nxt: Seq, limits: &Limits, offer: &Offer, scaled: bool, limit: u16) -> Windows {
        let Offer { window, shift, clamp } = *offer;
        let largest = u32::from(u16::MAX) << if scaled { shift } else { 0 };
        let (window, clamp) = (window.min(largest), clamp.min(largest));
        Windows {
            told: nxt,
            size: window,
            clamp,
            threshold: window,
            buffer: limits.buffer,
            most: limits.most,
            limit,
            ratio: HALF,
            shift: if scaled { shift } else { 0 },
            locked: limits.locked,
            taken_back: false,
            tuning: Tuning { furthest: nxt.plus(window), ..Tuning::default() },
        }
    }

    /// The connection is established (tcp_init_buffer_space).
    pub fn established(&mut self, now: u64, read: Seq) {
        let full = share(self.ratio, self.buffer.into()).max(0) as u32;
        let limit = u32::from(self.limit);
        self.clamp = self.clamp.min(full);
        // One segment stays in reserve.
        if self.clamp > 2 * limit && self.clamp + limit > full {
            self.clamp = (2 * limit).max(full.saturating_sub(limit));
        }
        self.threshold = self.threshold.min(self.clamp);
        self.tuning.space = self.threshold.min(self.size).min(FIRST * limit);
        (self.tuning.since, self.tuning.from) = (now, read);
    }

    pub fn told(&self) -> Seq {
        self.told
    }

    pub fn size(&self) -> u32 {
        self.size
    }

    pub fn shift(&self) -> u8 {
        self.shift
    }

    pub fn limit(&self) -> u16 {
        self.limit
    }

    pub fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    pub fn clamp(&self) -> u32 {
        self.clamp
    }

    pub fn buffer(&self) -> u32 {
        self.buffer
    }

    pub fn threshold(&self) -> u32 {
        self.threshold
    }

    pub fn space(&self) -> u32 {
        self.tuning.space
    }

    pub fn trips(&self) -> u32 {
        self.tuning.trips
    }

    /// Where the peer has to stop: it never goes back, but as [`Windows::shut`] says.
    pub fn edge(&self) -> Seq {
        self.told.plus(self.size)
    }

    /// Behind which nothing is the peer's: [`Windows::edge`], or an earlier one that was taken back since. Of what lies between these two
    /// the ACK counts, at least (RFC 7323, section 2.4): where both sides take their windows back, all that they send lies there.
    pub fn furthest(&self) -> Seq {
        self.tuning.furthest
    }

    /// Whether `seq`, which lies before all that is the peer's, may be where the peer had to stop once, since its window was taken back.
    pub fn was_edge(&self, seq: Seq) -> bool {
        self.taken_back && seq.before(self.told) && self.told.since(seq) as u32 <= self.buffer
    }

    /// What is left of the window that was said last.
    pub fn left(&self, nxt: Seq) -> u32 {
        self.edge().since(nxt).max(0) as u32
    }

    /// The window that would be said with `held` bytes of memory in use (__tcp_select_window), and whether half of it is gone.
    pub fn select(&self, held: u64, mss: u32) -> (u32, bool) {
        let free = share(self.ratio, i64::from(self.buffer) - held as i64);
        let allowed = share(self.ratio, self.buffer.into());
        let full = allowed.min(self.clamp.into());
        let mss = i64::from(mss).min(full);
        if mss <= 0 {
            return (0, false);
        }
        let unit = 1_i64 << self.shift;
        let cramped = free < full >> 1;
        let mut free = free;
        if cramped {
            free &= !(unit - 1);
            // Shut it before memory runs out, which comes sooner than windows say.
            if free < allowed >> 4 || free < mss {
                return (0, true);
            }
        }
        free = free.min(self.threshold.into());
        let window = if self.shift > 0 {
            // What is there is not to be shifted away.
            (free + unit - 1) & !(unit - 1)
        } else {
            // (Linux does not look whether a segment is more than what is said at most: it would say 0 for ever.)
            let (last, mss) = (i64::from(self.size), mss.min(self.threshold.max(1).into()));
            if last <= free - mss || last > free {
                free - free % mss
            } else if mss == full && free > last + (full >> 1) {
                free
            } else {
                last
            }
        };
        (window as u32, cramped)
    }

    /// Says `window`, or what is left of the last one if that is more, with `nxt`; as it is to be written (tcp_select_window).
    pub fn say(&mut self, window: u32, nxt: Seq) -> u16 {
        let left = self.left(nxt);
        let unit = 1_u32 << self.shift;
        let window = if window < left { left.next_multiple_of(unit) } else { window };
        let window = window.min(u32::from(u16::MAX) << self.shift);
        (self.told, self.size) = (nxt, window);
        if self.edge().after(self.tuning.furthest) {
            self.tuning.furthest = self.edge();
        }
        (window >> self.shift) as u16
    }

    /// Says none, though there was more: for what came there was no memory. The one case in which the edge goes back: the peer asks then,
    /// instead of sending in vain until it gives up.
    pub fn shut(&mut self, nxt: Seq) {
        self.taken_back |= self.left(nxt) > 0;
        (self.told, self.size) = (nxt, 0);
    }

    /// `len` bytes came that take `taken` bytes of memory, with which `held` are in use: more may come if memory allows it (tcp_grow_window). True if so.
    pub fn grow(&mut self, len: u32, taken: u64, held: u64, mss: u32) -> bool {
        let free = share(self.ratio, i64::from(self.buffer) - held as i64);
        let room = free.min(self.clamp.into()) - i64::from(self.threshold);
        if room <= 0 {
            return false;
        }
        let by = match share(self.ratio, taken as i64) {
            data if data <= len.into() => 2 * u32::from(self.limit),
            data => self.grow_little(data >> 1, len.into(), mss),
        };
        if by > 0 {
            let by = i64::from(by.max(2 * len));
            self.threshold += room.min(by) as u32;
        }
        by > 0
    }

    /// Segments that take more memory than they should still fit into a small window (__tcp_grow_window).
    fn grow_little(&self, mut data: i64, len: i64, mss: u32) -> u32 {
        let mut window = share(self.ratio, self.most.into()) >> 1;
        while i64::from(self.threshold) <= window && window > 0 {
            if data <= len {
                return 2 * mss;
            }
            (data, window) = (data >> 1, window >> 1);
        }
        0
    }

    /// Measures which share of memory is data, by a segment (tcp_measure_rcv_mss).
    pub fn measure(&mut self, len: u32, true_size: u64) {
        let ratio = (u64::from(len) * WHOLE / true_size.max(1)).clamp(QUARTER, u8::MAX.into()) as u8;
        if ratio != self.ratio {
            self.ratio = ratio;
            self.set_clamp(share(ratio, self.buffer.into()) as u32);
            self.tuning.space = self.tuning.space.min(self.clamp);
        }
    }

    /// The largest window (tcp_set_window_clamp).
    pub fn set_clamp(&mut self, clamp: u32) {
        let clamp = clamp.max(LEAST_CLAMP);
        let before = std::mem::replace(&mut self.clamp, clamp);
        self.threshold =
            if clamp < before { self.threshold.min(clamp) } else { self.threshold.max(self.size.min(clamp)) };
    }

    /// SO_RCVBUF, as getsockopt says it.
    pub fn set_buffer(&mut self, bytes: u32) {
        (self.buffer, self.locked) = (bytes, true);
    }

    /// SO_RCVLOWAT: the buffer has to hold that much (tcp_set_rcvlowat). Returns what is taken of it.
    pub fn make_room(&mut self, low_water: u32) -> u32 {
        let most = if self.locked { self.buffer >> 1 } else { self.most >> 1 };
        let low_water = low_water.min(most);
        let space = self.memory(low_water.into());
        if !self.locked && space > self.buffer {
            self.buffer = space;
            if self.clamp < low_water {
                self.set_clamp(low_water);
            }
        }
        low_water.max(1)
    }

    /// `held` is more than the buffer: it grows with it, where that is ours to say (tcp_clamp_window).
    pub fn overrun(&mut self, held: u64) {
        if !self.locked && self.buffer < self.most {
            let held = u32::try_from(held).unwrap_or(u32::MAX);
            self.buffer = self.buffer.max(held.min(self.most));
        }
        if held > self.buffer.into() {
            self.threshold = self.clamp.min(2 * u32::from(self.limit));
        }
    }

    /// There may have been no room when the SYN was answered, and the window grows from what that said: from two segments on, at least.
    pub fn begin(&mut self) {
        self.threshold = self.threshold.max(self.clamp.min(2 * u32::from(self.limit)));
    }

    /// Memory is short for all connections together: so many segments are let come, until it is not (tcp_adjust_rcv_ssthresh).
    pub fn shrink(&mut self, segments: u32) {
        self.threshold = self.threshold.min(segments * u32::from(self.limit));
    }

    /// Memory that `window` bytes of data take (tcp_space_from_win).
    fn memory(&self, window: u64) -> u32 {
        u32::try_from(window * WHOLE / u64::from(self.ratio)).unwrap_or(u32::MAX)
    }

    /// Measures a round trip by a window that has come in whole (tcp_rcv_rtt_measure). Of these only the shortest says anything.
    pub fn measure_by_window(&mut self, now: u64, nxt: Seq) {
        let tuning = &mut self.tuning;
        if tuning.at != 0 {
            if nxt.before(tuning.until) {
                return;
            }
            let sample = (micros(now.saturating_sub(tuning.at)).max(1)).saturating_mul(8);
            if tuning.trips == 0 || sample < tuning.trips {
                tuning.trips = sample;
            }
        }
        tuning.until = nxt.plus(self.size);
        tuning.at = now;
    }

    /// Measures a round trip by a timestamp that came back with a full segment (tcp_rcv_rtt_measure_ts).
    pub fn measure_by_echo(&mut self, moment: &Moment, echo: u32, full: bool, drained: bool) {
        let tuning = &mut self.tuning;
        if echo == tuning.echo {
            return;
        }
        tuning.echo = echo;
        let millis = moment.stamp.wrapping_sub(echo);
        if !full || millis == 0 || millis >= i32::MAX as u32 / 1000 {
            return;
        }
        let sample = millis * 1000;
        let eight = sample.saturating_mul(8);
        if tuning.trips == 0 || eight < tuning.trips {
            tuning.trips = eight;
        } else if drained {
            tuning.trips = (tuning.trips - (tuning.trips >> 3)).saturating_add(sample);
        }
    }

    /// The program has read up to `read`, of what came up to `nxt` (tcp_rcv_space_adjust).
    pub fn adjust(&mut self, now: u64, read: Seq, nxt: Seq, highest: Option<Seq>) {
        let tuning = &mut self.tuning;
        if tuning.trips == 0 || micros(now.saturating_sub(tuning.since)) < tuning.trips >> 3 {
            return;
        }
        // What it did not read yet it cannot have waited for.
        let bytes = i64::from(read.since(tuning.from)) - i64::from(nxt.since(read));
        (tuning.from, tuning.since) = (read, now);
        if bytes > tuning.space.into() {
            self.enlarge(bytes as u32, nxt, highest);
        }
    }

    /// The buffer is to hold what comes in a round trip, `bytes` so far, and what is sent meanwhile (tcp_rcvbuf_grow).
    pub fn enlarge(&mut self, bytes: u32, nxt: Seq, highest: Option<Seq>) {
        let before = std::mem::replace(&mut self.tuning.space, bytes);
        if self.locked {
            return;
        }
        let (bytes, before) = (u64::from(bytes), u64::from(before.max(1)));
        // It is measured a round trip late, and a sender in slow start doubles what it sends.
        let mut window = bytes * 2;
        window += window * 2 * bytes.saturating_sub(before) / before;
        if let Some(highest) = highest {
            window += highest.since(nxt).max(0) as u64;
        }
        let buffer = self.memory(window.min(u32::MAX.into())).min(self.most);
        if buffer > self.buffer {
            self.buffer = buffer;
            self.clamp = share(self.ratio, buffer.into()) as u32;
        }
    }

    /// As [`Windows::enlarge`], where bytes came behind a hole: what is in front of it is to find room.
    pub fn enlarge_for(&mut self, nxt: Seq, highest: Option<Seq>) {
        self.enlarge(self.tuning.space, nxt, highest);
    }
}

/// Data for which `space` bytes of memory are (tcp_win_from_space): less than 0 where there is less than none.
fn share(ratio: u8, space: i64) -> i64 {
    (space * i64::from(ratio)) >> 8
}

fn micros(nanos: u64) -> u32 {
    u32::try_from(nanos / 1000).unwrap_or(u32::MAX)
}
