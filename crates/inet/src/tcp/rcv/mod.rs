//! What arrives: which segments are acceptable, the bytes in order and those behind a hole, what is said of them (ACKs, blocks, windows),
//! and for how much there is memory.
//!
//! [`Receiver`] knows nothing of a connection's state. Who owns it looks at resets, SYNs and ACK numbers, and asks, for each segment:
//!
//! 1. [`Receiver::paws`]: is it an old duplicate by its timestamp?
//! 2. [`Receiver::check`]: does it lie in the window? If not: [`Receiver::unacceptable`], and an ACK.
//! 3. [`Receiver::note_timestamp`], once its ACK number was found to be right.
//! 4. [`Receiver::accept`]: takes it in, whether it has data or not.
//! 5. whatever there is to send now, and then [`Receiver::check_ack`].
//!
//! Whatever leaves with an ACK takes [`Receiver::window`] and [`Receiver::sack_blocks`] along, and is reported by [`Receiver::ack_sent`].
//!
//! Behaviour and figures are Linux's (6.18), where RFCs leave a choice. What differs:
//!
//! - Of bytes that come twice the first ones stay, also where an in-order segment overlaps what came before it out of order. So nobody can
//!   put other bytes into the place of those that were acknowledged by a block.
//! - A FIN that came out of order ends the stream, whatever comes behind it or over it.
//! - Blocks are reported as they are: whole, also those that were forgotten for want of room, and after others were given up.
//! - Urgent bytes stay among the others (SO_OOBINLINE), and nothing is said of them.
//!
//! # Memory
//!
//! All that was not read counts by the pages that it keeps, against the buffer. Beyond that (by one segment at most) what this process can
//! read is copied together, first what wins a quarter of its memory, then as little as it takes. What lies in as few pages as its bytes
//! need stays, also beyond the buffer: the peer was promised as much. Where that is not so, since bytes cannot be read, lie between
//! holes, or there are no pages to copy to, the highest bytes behind a hole are given up (docs/decisions/0044). So what fills the first hole
//! is taken, but where the bytes in order alone cannot be kept: since nobody can read them here, or since memory is gone for all
//! connections together. Then it is dropped and counted, and the window is shut, the one case in which its edge goes back.

mod accept;
mod ack;
mod memory;
mod reassembly;
mod room;
mod say;
mod timestamps;
mod window;

pub use ack::AckWhen;
pub use timestamps::Paws;
pub use window::{Limits, Offer};

use crate::wire::Ecn;
use crate::wire::tcp::{Seq, Tcp};
use ack::{Acks, Owed};
use onecopy_chain::notify::{Segment, SegmentQueue};
use onecopy_chain::{Chain, Kind};
use reassembly::Reassembly;
use room::Room;
use timestamps::Recent;
use window::Windows;

const _: () = assert!(size_of::<Receiver>() <= 192);

/// The time, and what the rest of the connection knows of its path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Nanoseconds of any steady clock.
    pub now: u64,
    /// The connection's clock for timestamps, in milliseconds.
    pub stamp: u32,
    /// The retransmission timeout as it is now, in nanoseconds.
    pub rto: u64,
    /// The smoothed round trip, in nanoseconds; 0 where none was measured.
    pub srtt: u64,
}

/// What was agreed in the SYNs.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// What we said of our window.
    pub offer: Offer,
    /// Both said a scale: ours counts.
    pub scaled: bool,
    /// Both understand blocks.
    pub sack: bool,
    /// The peer's first timestamp, if both use them.
    pub timestamps: Option<u32>,
    /// Both take part in ECN.
    pub ecn: bool,
    /// The longest segment that we said we take, less the timestamps' bytes.
    pub mss: u16,
}

/// A segment that came.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// Its header.
    pub header: &'a Tcp,
    /// Its data: what is taken in is taken out of there.
    pub payload: &'a mut Segment<Chain>,
    /// Bytes that each of its segments had, if it was put together of several; 0 if it came as it is.
    pub cut: u16,
    /// What its IP header says of congestion.
    pub ecn: Ecn,
}

/// Whether a segment lies in the window: RFC 9293, section 3.10.7.4, as tcp_sequence() has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// It does.
    Acceptable,
    /// All of it was acknowledged before.
    Old,
    /// It begins behind the window.
    Outside,
    /// It ends behind the window, and there is no lack of data to be read.
    EndsOutside,
}

/// Why data was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It was in order, and there already.
    Old,
    /// It was out of order, and there already.
    Overlap,
    /// It begins behind the window.
    Outside,
    /// The window is shut: a probe.
    ZeroWindow,
    /// There is no memory for it.
    Memory,
    /// It stands behind the FIN.
    BehindFin,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Bytes more that can be read.
    pub readable: u32,
    /// The FIN has been reached: no more bytes will come.
    pub fin: bool,
    /// It has bytes (or a FIN) that were kept behind a hole.
    pub out_of_order: bool,
    /// Why it was dropped, all of it.
    pub refused: Option<Refused>,
    /// Bytes behind a hole that were given up for want of memory.
    pub reneged: u32,
    /// Memory that was won by copying together.
    pub collapsed: u64,
}

/// What the receiver knows of itself, for TCP_INFO and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Bytes that came in order (tcpi_bytes_received).
    pub received: u64,
    /// The peer's segments (tcpi_rcv_mss).
    pub mss: u32,
    /// How long ACKs wait, in microseconds (tcpi_ato).
    pub delay: u32,
    /// When data came last, in milliseconds of the caller's clock (tcpi_last_data_recv).
    pub last_data: u32,
    /// The most that is said of the window for now (tcpi_rcv_ssthresh).
    pub threshold: u32,
    /// The window that was said last (tcpi_rcv_wnd).
    pub window: u32,
    /// A round trip as it is seen by who receives, in microseconds; 0 for none (tcpi_rcv_rtt).
    pub round_trip: u32,
    /// Bytes read in one (tcpi_rcv_space).
    pub space: u32,
    /// Memory that may be used.
    pub buffer: u32,
    /// Memory that is used.
    pub held: u64,
    /// Packets that came out of order (tcpi_rcv_ooopack).
    pub out_of_order: u32,
    /// The peer's packets said that they can tell of congestion (TCPI_OPT_ECN_SEEN).
    pub ecn_seen: bool,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Is: u16 {
        /// Both understand blocks.
        const SACK = 1;
        /// The FIN has been reached.
        const FINISHED = 2;
        /// `duplicate` is to be reported.
        const DUPLICATE = 4;
        /// Both take part in ECN.
        const ECN = 8;
        /// The peer's segments say so.
        const ECN_SEEN = 16;
        /// Congestion is to be echoed until the peer says that it has slowed down.
        const ECHO = 32;
        /// Memory is short for all connections together.
        const SHORT = 64;
        /// There is none left for them.
        const FULL = 128;
        /// The last window was smaller for want of room.
        const NARROWED = 256;
    }
}

/// The receiving half of a connection.
///
/// Invariant: `behind` is there just while something is behind a hole.
#[derive(Debug)]
pub struct Receiver {
    queue: SegmentQueue,
    behind: Option<Box<Reassembly>>,
    windows: Windows,
    acks: Acks,
    recent: Recent,
    received: u64,
    nxt: Seq,
    low_water: u32,
    /// Packets that came out of order, ever.
    out_of_order: u32,
    room: Room,
    /// What came twice; counts with [`Is::DUPLICATE`].
    duplicate: (Seq, Seq),
    is: Is,
}

impl Receiver {
    /// For a peer whose SYN stands at `irs`. `mss` is the longest segment on the path, as far as it is known.
    pub fn new(moment: &Moment, irs: Seq, limits: &Limits, agreed: &Agreed, mss: u16) -> Receiver {
        let nxt = irs.plus(1);
        let mut is = Is::empty();
        is.set(Is::SACK, agreed.sack);
        is.set(Is::ECN, agreed.ecn);
        Receiver {
            queue: SegmentQueue::new(),
            behind: None,
            windows: Windows::new(nxt, limits, &agreed.offer, agreed.scaled, agreed.mss),
            acks: Acks::new(moment.now, mss.min(agreed.mss), agreed.offer.window),
            recent: Recent::new(moment, agreed.timestamps),
            received: 0,
            nxt,
            low_water: 1,
            out_of_order: 0,
            room: Room::default(),
            duplicate: Default::default(),
            is,
        }
    }

    /// The connection is established: what the program reads is counted from now on.
    pub fn established(&mut self, moment: &Moment) {
        self.windows.established(moment.now, self.read_to());
    }

    /// The next byte that is wanted (RCV.NXT): what is acknowledged.
    #[inline]
    pub fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Where the peer has to stop, as it knows.
    pub fn edge(&self) -> Seq {
        self.windows.edge()
    }

    /// What is left of the window that the peer knows.
    pub fn window_left(&self) -> u32 {
        self.windows.left(self.nxt)
    }

    /// By how many bits windows are shifted.
    pub fn shift(&self) -> u8 {
        self.windows.shift()
    }

    /// Bytes that can be read.
    #[inline]
    pub fn available(&self) -> u64 {
        self.queue.len()
    }

    /// Whether that is as much as the program waits for (SO_RCVLOWAT), or all that will come; or all that can come before it reads, since
    /// there is no room for more (tcp_epollin_ready()).
    pub fn is_readable(&self) -> bool {
        let available = self.available();
        available >= self.low_water.into() || self.finished() || available > 0 && self.is_full()
    }

    fn is_full(&self) -> bool {
        let buffer = u64::from(self.windows.buffer());
        self.held() > buffer - (buffer >> 3)
            || self.window_left() <= self.acks.mss()
            || self.acks.owed.contains(Owed::NO_MEMORY)
    }

    /// Whether the FIN has been reached: all bytes have come.
    pub fn finished(&self) -> bool {
        self.is.contains(Is::FINISHED)
    }

    /// Whether all bytes have come, and were read.
    pub fn end(&self) -> bool {
        self.finished() && self.queue.is_empty()
    }

    /// Bytes of memory that are kept, whoever else keeps them.
    pub fn held(&self) -> u64 {
        self.queue.true_size() + self.behind.as_ref().map_or(0, |behind| behind.held())
    }

    /// Whether there is something behind a hole.
    pub fn has_holes(&self) -> bool {
        self.behind.is_some()
    }

    /// The first byte that was not read.
    fn read_to(&self) -> Seq {
        self.nxt.minus(self.queue.len() as u32 + u32::from(self.finished()))
    }

    fn highest(&self) -> Option<Seq> {
        self.behind.as_ref().and_then(|behind| behind.highest())
    }

    /// Takes up to `max` bytes out, of one kind of memory; `None` when there are none. Whoever has read as much as he wants asks
    /// [`Receiver::window_update_due`].
    pub fn read(&mut self, moment: &Moment, max: usize) -> Option<Segment<Chain>> {
        let taken = self.queue.take(max).expect("no checksum is left to be finished")?;
        let highest = self.highest();
        if !self.is.contains(Is::SHORT) {
            self.windows.adjust(moment.now, self.read_to(), self.nxt, highest);
        }
        Some(taken)
    }

    /// Whose memory the next byte lies in that can be read.
    pub fn next_kind(&self) -> Option<Kind> {
        self.queue.segments().next().and_then(|segment| segment.payload().kind())
    }

    /// Bytes that can be read and lie in one piece of memory with the next one.
    pub fn next_piece(&self) -> usize {
        self.queue.first_piece()
    }

    /// Up to `len` bytes from byte `offset` of those that can be read, by reference; less where memory of another kind begins, none behind the
    /// last one.
    pub fn peek(&self, offset: u64, len: usize) -> Segment<Chain> {
        let left = usize::try_from(self.queue.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        self.queue.range(offset.min(self.queue.len()), len.min(left)).expect("it is inside")
    }

    /// Whether an ACK is to be sent, because of `bytes` that were read (tcp_cleanup_rbuf): one that waited for that, or a window
    /// that is at least twice what the peer knows.
    pub fn window_update_due(&mut self, bytes: u64) -> bool {
        let owed = self.acks.owed;
        if owed.contains(Owed::ACK) {
            let pushed =
                owed.contains(Owed::PUSHED_AGAIN) || (owed.contains(Owed::PUSHED) && !self.acks.in_turns());
            let many = self.nxt.since(self.windows.told()) as u32 > self.acks.mss();
            if many || (bytes > 0 && pushed && self.held() == 0) {
                return true;
            }
        }
        if bytes == 0 || self.finished() {
            return false;
        }
        let left = self.window_left();
        if u64::from(left) * 2 > self.windows.clamp().into() {
            return false;
        }
        let window = self.select_window();
        window > 0 && window >= left.saturating_mul(2)
    }

    /// Drops all that was not read, as close(2) does, and says how many bytes of it could have been.
    pub fn discard(&mut self) -> u64 {
        self.behind = None;
        std::mem::take(&mut self.queue).len()
    }

    /// Whether [`Receiver::rest`] would give memory back.
    pub fn is_restless(&self) -> bool {
        self.queue.is_restless()
    }

    /// Gives back what memory it has for itself and does not need: for an owner that is idle.
    pub fn rest(&mut self) {
        self.queue.rest();
    }

    /// What it knows of itself.
    pub fn figures(&self) -> Figures {
        Figures {
            received: self.received,
            mss: self.acks.mss(),
            delay: self.acks.delay(),
            last_data: self.acks.last_data(),
            threshold: self.windows.threshold(),
            window: self.windows.size(),
            round_trip: self.windows.trips() >> 3,
            space: self.windows.space(),
            buffer: self.windows.buffer(),
            held: self.held(),
            out_of_order: self.out_of_order,
            ecn_seen: self.is.contains(Is::ECN_SEEN),
        }
    }
}
