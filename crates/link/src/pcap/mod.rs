//! A link whose packets are written down, for Wireshark and tcpdump.
//!
//! ```
//! use onecopy_link::pcap::{Pcap, PcapConfig};
//! use onecopy_link::{Link, Packet, Sink};
//! use onecopy_chain::notify::Segment;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A program gives a BufWriter of a file, and says what the time is: PcapConfig::clock(SystemTime::now(), now_ns).
//! let mut link = Pcap::new(Sink::new(), Vec::new(), PcapConfig::new());
//! link.transmit(1_000, Packet::new(&[0x45; 20], Segment::default())?);
//! link.flush()?;
//! let (_, file) = link.into_parts();
//! assert_eq!(file[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
//! # Ok(())
//! # }
//! ```
//!
//! # The format
//!
//! pcapng, draft-ietf-opsawg-pcapng: one section (4.1) of one interface (4.2) with stamps in nanoseconds (if_tsresol 9), and an Enhanced
//! Packet Block (4.3) for each packet. It is written by hand: the crates that know it take a packet as one slice, and a packet here
//! is a head and pieces, of which a peer's cannot be a slice at all. So its bytes are copied once, to where the block is made, and a block
//! is one write.
//!
//! | what the packet is | what the file says |
//! |---|---|
//! | transmitted, received | epb_flags: outbound, inbound |
//! | its checksum is to be finished | epb_flags, bit 9: what stands in the field is the pseudo-header's sum |
//! | its checksum was verified | bit 10 |
//! | a super-segment | one packet of its true length; for TCP bit 11; a comment says to what it is cut |
//! | longer than [`PcapConfig::snap`] | a captured length below the original one |
//! | of payload that the CPU cannot read | the headers, with the original length, and a comment that says whose memory it is |
//! | others before it could not be written | epb_dropcount |
//!
//! What a peer can still write is written down as it was at that moment; the packet's receiver may see something else.
//!
//! # What is in it
//!
//! What was handed to the link, in the order of the calls, so also what the link then drops, as a kernel's capture has it
//! (net/core/dev.c, dev_queue_xmit_nit); and what the link gave.

mod block;

use crate::capabilities::{Capabilities, Medium};
use crate::link::Link;
use crate::packet::{Gso, Packet, Train};
use block::{Block, flag, kind, option};
use onecopy_chain::{Chain, ChainError, Checksum, Kind};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

/// How packets are to be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapConfig {
    snap: u32,
    base_ns: u64,
}

impl Default for PcapConfig {
    fn default() -> PcapConfig {
        PcapConfig::new()
    }
}

impl PcapConfig {
    /// The most bytes of a packet that are written, and how many are by default: as many as Wireshark reads (wiretap/wtap.h,
    /// WTAP_MAX_PACKET_SIZE_STANDARD) and tcpdump writes (MAXIMUM_SNAPLEN).
    pub const SNAP: u32 = 262_144;

    /// All bytes up to [`PcapConfig::SNAP`], and the caller's own clock as if it had begun in 1970: virtual time.
    pub fn new() -> PcapConfig {
        PcapConfig { snap: PcapConfig::SNAP, base_ns: 0 }
    }

    /// Bytes of each packet that are written at most: from 1 to [`PcapConfig::SNAP`].
    #[must_use]
    pub fn snap(self, bytes: u32) -> PcapConfig {
        PcapConfig { snap: bytes.clamp(1, PcapConfig::SNAP), ..self }
    }

    /// That it is `wall` when the link's caller says `now_ns`. (Stamps are right from 1970 to 2554.)
    #[must_use]
    pub fn clock(self, wall: SystemTime, now_ns: u64) -> PcapConfig {
        let wall = match wall.duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_nanos() as u64,
            Err(before) => (before.duration().as_nanos() as u64).wrapping_neg(),
        };
        // A clock that is ahead of the wall's is as good: the sum wraps back.
        PcapConfig { base_ns: wall.wrapping_sub(now_ns), ..self }
    }
}

/// What was written down, and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcapStats {
    /// Packets that are in the file.
    pub packets: u64,
    /// Of these: longer than the snap length.
    pub cut: u64,
    /// Of these: without their payload, which cannot be read.
    pub elided: u64,
    /// Packets that are not in the file, since the writer took nothing.
    pub lost: u64,
    /// Errors of the writer.
    pub errors: u64,
}

/// A link whose packets, in both directions, are written to `W` as they pass. The [module](self) says how.
///
/// The writer never stops traffic: what it does not take is counted ([`PcapStats::lost`]) and said in the file as soon as it takes something
/// again; the rest of a block that it took in part goes before all others, so that the file stays whole. It is called once for each packet;
/// it should have a buffer ([`io::BufWriter`]), and who is done calls [`Pcap::flush`].
#[derive(Debug)]
pub struct Pcap<L, W> {
    link: L,
    out: W,
    config: PcapConfig,
    /// A block, or the rest of one: at most a packet of the snap length, and what stands about it.
    block: Vec<u8>,
    /// Bytes of it that the writer took.
    taken: usize,
    /// Packets lost since the last one that was written.
    dropped: u64,
    stats: PcapStats,
    error: Option<io::Error>,
}

impl<L: Link, W: Write> Pcap<L, W> {
    /// Writes down what passes `link`. The file's headers are written at once.
    pub fn new(link: L, out: W, config: PcapConfig) -> Pcap<L, W> {
        let mut block = Vec::new();
        section_header(&mut block);
        interface(&mut block, link.capabilities().medium, config.snap);
        let (stats, error) = (PcapStats::default(), None);
        let mut pcap = Pcap { link, out, config, block, taken: 0, dropped: 0, stats, error };
        pcap.drain();
        pcap
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The link, to be changed: what passes it this way is not written down.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// The writer.
    pub fn writer(&self) -> &W {
        &self.out
    }

    /// What was written down.
    pub fn stats(&self) -> PcapStats {
        self.stats
    }

    /// The writer's last error, unless [`Pcap::flush`] has returned it.
    pub fn last_error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Hands all to the writer, and flushes that.
    ///
    /// # Errors
    ///
    /// The writer's. It may be called again.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.drain() {
            return Err(self.error.take().unwrap_or_else(|| ErrorKind::Other.into()));
        }
        self.out.flush().inspect_err(|_| self.stats.errors += 1)
    }

    /// The link and the writer. What the writer did not take is lost: see [`Pcap::flush`].
    pub fn into_parts(self) -> (L, W) {
        (self.link, self.out)
    }

    /// Hands the block to the writer. Whether it took all of it.
    fn drain(&mut self) -> bool {
        /// So often in a row may a signal come.
        const SIGNALS: u32 = 16;
        let mut signals = 0;
        while let Some(rest) = self.block.get(self.taken..).filter(|rest| !rest.is_empty()) {
            let error = match self.out.write(rest) {
                Ok(0) => ErrorKind::WriteZero.into(),
                Ok(n) => {
                    self.taken += n;
                    signals = 0;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted && signals < SIGNALS => {
                    signals += 1;
                    continue;
                }
                Err(error) => error,
            };
            self.stats.errors += 1;
            self.error = Some(error);
            return false;
        }
        self.block.clear();
        self.taken = 0;
        true
    }

    fn record(&mut self, now_ns: u64, direction: u32, packet: &Packet) {
        let mut done = self.drain();
        if done {
            let stamp = self.config.base_ns.wrapping_add(now_ns);
            let lacks = self.enhanced_packet(stamp, direction, packet);
            done = self.drain() || self.taken > 0;
            if done {
                self.dropped = 0;
                self.stats.packets += 1;
                self.stats.cut += u64::from(lacks == Some(Lacks::End));
                self.stats.elided += u64::from(lacks == Some(Lacks::Payload));
            } else {
                self.block.clear();
            }
        }
        if !done {
            self.dropped += 1;
            self.stats.lost += 1;
        }
    }

    /// Makes the block of a packet. Says what of it is not there.
    fn enhanced_packet(&mut self, stamp: u64, direction: u32, packet: &Packet) -> Option<Lacks> {
        let original = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        let snap = self.config.snap as usize;
        let mut block = Block::begin(&mut self.block, kind::ENHANCED_PACKET);
        // The interface.
        block.word(0);
        block.word((stamp >> 32) as u32);
        block.word(stamp as u32);
        let lengths = block.at();
        block.word(0);
        block.word(original);
        let data = block.at();
        let head = packet.head();
        block.bytes(head.get(..snap).unwrap_or(head));
        let chain = packet.payload().payload();
        let readable = front(chain, snap.saturating_sub(head.len()), |piece| block.bytes(piece)).is_ok();
        let captured = (block.at() - data) as u32;
        block.patch(lengths, captured);
        block.pad();
        block.option(option::EPB_FLAGS, &(direction | flags(packet)).to_le_bytes());
        if self.dropped > 0 {
            block.option(option::EPB_DROPCOUNT, &self.dropped.to_le_bytes());
        }
        if let Some(Gso { train, size, .. }) = packet.gso() {
            let each = match train {
                Train::Tcp => "TCP segments",
                Train::Udp => "UDP datagrams",
            };
            let said = format!("a super-segment: to be cut to {each} of {size} bytes of payload");
            block.option(option::COMMENT, said.as_bytes());
        }
        if !readable {
            let whose = match (chain.device(), chain.kind()) {
                (Some(device), _) => format!("memory of {device}, which the CPU cannot read"),
                (None, Some(kind)) => kind.to_string(),
                (None, None) => String::new(),
            };
            let said = format!("{} bytes of payload are left out: they lie in {whose}", chain.len());
            block.option(option::COMMENT, said.as_bytes());
        }
        block.end();
        match readable {
            false => Some(Lacks::Payload),
            true => (captured < original).then_some(Lacks::End),
        }
    }
}

impl<L: Link, W: Write> Link for Pcap<L, W> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn room(&self, now_ns: u64) -> usize {
        self.link.room(now_ns)
    }

    fn transmit(&mut self, now_ns: u64, packet: Packet) {
        self.record(now_ns, flag::OUTBOUND, &packet);
        self.link.transmit(now_ns, packet);
    }

    fn receive(&mut self, now_ns: u64) -> Option<Packet> {
        let packet = self.link.receive(now_ns)?;
        self.record(now_ns, flag::INBOUND, &packet);
        Some(packet)
    }

    fn deadline(&self) -> Option<u64> {
        self.link.deadline()
    }
}

/// That of the link.
impl<L: AsFd, W> AsFd for Pcap<L, W> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// What of a packet is not in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lacks {
    End,
    Payload,
}

/// Section 4.1, version 1.0, of a length that is not said.
fn section_header(out: &mut Vec<u8>) {
    let mut block = Block::begin(out, kind::SECTION_HEADER);
    // By which a reader sees the order of bytes.
    block.word(0x1a2b_3c4d);
    block.half(1);
    block.half(0);
    block.bytes(&u64::MAX.to_le_bytes());
    block.option(option::SHB_USERAPPL, b"onecopy");
    block.end();
}

/// Section 4.2.
fn interface(out: &mut Vec<u8>, medium: Medium, snap: u32) {
    let mut block = Block::begin(out, kind::INTERFACE_DESCRIPTION);
    // draft-ietf-opsawg-pcaplinktype: LINKTYPE_ETHERNET, LINKTYPE_RAW.
    block.half(match medium {
        Medium::Ethernet => 1,
        Medium::Ip => 101,
    });
    block.half(0);
    block.word(snap);
    // In units of 10^-9 s.
    block.option(option::IF_TSRESOL, &[9]);
    block.end();
}

fn flags(packet: &Packet) -> u32 {
    let checksum = match packet.checksum() {
        Checksum::Partial { .. } => flag::CHECKSUM_NOT_READY,
        Checksum::Verified => flag::CHECKSUM_VALID,
        Checksum::None | Checksum::Known(_) => 0,
    };
    let tcp = packet.gso().is_some_and(|gso| gso.train == Train::Tcp);
    checksum | if tcp { flag::TCP_SEGMENTATION } else { 0 }
}

/// Shows the first `most` bytes of `chain`, or none where they cannot be read.
fn front(chain: &Chain, most: usize, mut look: impl FnMut(&[u8])) -> Result<(), ChainError> {
    let len = chain.len().min(most);
    match chain.kind() {
        // Not what would be thrown away.
        Some(Kind::Peer) if len < chain.len() => chain.range(0, len)?.peer()?.for_each_chunk(&mut look),
        Some(Kind::Peer) => chain.peer()?.for_each_chunk(&mut look),
        _ => chain.host()?.slices_of(0, len)?.for_each(&mut look),
    }
    Ok(())
}
