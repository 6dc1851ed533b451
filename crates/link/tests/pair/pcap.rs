//! Captures: their bytes, and what others read in them.

use crate::frames::{Frame, TCP, chain, pool};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Checksum, Fragment, Kind};
use onecopy_link::pair::{Pair, PairConfig, Path};
use onecopy_link::pcap::{Pcap, PcapConfig, PcapStats};
use onecopy_link::{Capabilities, Link, Medium, Packet, Sink, Train};
use onecopy_pool::provider::{Heap, Opaque};
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgParser};
use std::io::{self, ErrorKind, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A packet as pcap-file reads it.
#[derive(Debug, PartialEq)]
struct Read {
    at: Duration,
    len: u32,
    data: Vec<u8>,
    flags: u32,
    dropped: u64,
    comments: Vec<String>,
}

/// The link's type, its snap length, and the packets.
fn read(file: &[u8]) -> (DataLink, u32, Vec<Read>) {
    let (mut rest, mut parser) = PcapNgParser::new(file).unwrap();
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let (behind, block) = parser.next_block(rest).unwrap();
        rest = behind;
        let Block::EnhancedPacket(packet) = block else {
            assert!(matches!(block, Block::InterfaceDescription(_)) && packets.is_empty(), "{block:?}");
            continue;
        };
        let mut one = Read {
            at: packet.timestamp,
            len: packet.original_len,
            data: packet.data.to_vec(),
            flags: 0,
            dropped: 0,
            comments: Vec::new(),
        };
        for option in packet.options {
            match option {
                EnhancedPacketOption::Comment(said) => one.comments.push(said.into_owned()),
                EnhancedPacketOption::Flags(flags) => one.flags = flags,
                EnhancedPacketOption::DropCount(count) => one.dropped = count,
                other => panic!("{other:?}"),
            }
        }
        packets.push(one);
    }
    let [interface] = parser.interfaces() else { panic!("{:?}", parser.interfaces()) };
    assert_eq!(interface.options, [InterfaceDescriptionOption::IfTsResol(9)]);
    (interface.linktype, interface.snaplen, packets)
}

/// What a link of IP wrote to memory.
fn captured(config: PcapConfig, packets: impl IntoIterator<Item = Packet>) -> (Vec<Read>, PcapStats) {
    let mut link = Pcap::new(Sink::new(), Vec::new(), config);
    packets.into_iter().for_each(|packet| link.transmit(0, packet));
    let stats = link.stats();
    (read(&link.into_parts().1).2, stats)
}

#[test]
fn blocks_are_these_bytes() {
    let pool = pool();
    let config = PcapConfig::new().snap(7).clock(UNIX_EPOCH + Duration::new(1, 2), 0x2_0000_0000);
    let mut link = Pcap::new(Sink::new(), Vec::new(), config);
    let mut packet = Packet::new(&[1, 2, 3, 4, 5], chain(&pool, &[6, 7, 8, 9])).unwrap();
    packet.set_checksum(Checksum::Partial { start: 0, offset: 2 }).unwrap();
    link.transmit(0x3_0000_0000, packet);
    link.flush().unwrap();
    assert_eq!(link.stats(), PcapStats { packets: 1, cut: 1, ..PcapStats::default() });
    let stamp = 0x1_0000_0000 + 1_000_000_002u64;
    #[rustfmt::skip]
    let golden = [
        // Section Header Block.
        &[0x0a, 0x0d, 0x0d, 0x0a][..], &[44, 0, 0, 0], &[0x4d, 0x3c, 0x2b, 0x1a], &[1, 0, 0, 0], &[0xff; 8],
        &[4, 0, 7, 0], b"onecopy\0", &[0; 4], &[44, 0, 0, 0],
        // Interface Description Block: LINKTYPE_RAW, if_tsresol.
        &[1, 0, 0, 0], &[32, 0, 0, 0], &[101, 0, 0, 0], &[7, 0, 0, 0],
        &[9, 0, 1, 0], &[9, 0, 0, 0], &[0; 4], &[32, 0, 0, 0],
        // Enhanced Packet Block: 7 of 9 bytes; outbound, checksum not ready.
        &[6, 0, 0, 0], &[52, 0, 0, 0], &[0; 4], &((stamp >> 32) as u32).to_le_bytes(), &(stamp as u32).to_le_bytes(),
        &[7, 0, 0, 0], &[9, 0, 0, 0], &[1, 2, 3, 4, 5, 6, 7, 0],
        &[2, 0, 4, 0], &[2, 2, 0, 0], &[0; 4], &[52, 0, 0, 0],
    ]
    .concat();
    assert_eq!(link.writer(), &golden);
}

#[test]
fn both_directions_of_a_pair_are_read_back() {
    let path = Path::new().delay(Duration::from_millis(3));
    let Pair { a, b: mut end, mut wire } = Pair::new(PairConfig::new().both(path));
    let wall = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let mut link = Pcap::new(a, Vec::new(), PcapConfig::new().clock(wall, 0));
    assert_eq!(link.capabilities(), end.capabilities());
    assert_eq!((link.deadline(), link.room(0) > 0, link.receive(0).is_none()), (None, true, true));
    let bytes: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
    let reply = Frame { v4: false, train: Train::Udp, ..TCP };
    link.transmit(1_000, typed(TCP, &bytes, 1448));
    let mut finished = typed(reply, b"echo", 0);
    finished.finish().unwrap();
    finished.set_checksum(Checksum::Verified).unwrap();
    end.transmit(2_000, finished);
    link.transmit(3_000, typed(reply, &bytes[..3000], 1000));
    assert_eq!(link.deadline(), Some(3_002_000));
    let now = wire.advance(4_000_000);
    assert_eq!(link.receive(now).unwrap().len(), reply.head_len() + 4);
    assert_eq!(link.stats(), PcapStats { packets: 3, ..PcapStats::default() });
    let (_, file) = link.into_parts();
    let (kind, snap, packets) = read(&file);
    assert_eq!((kind, snap), (DataLink::ETHERNET, 262_144));
    let since = |at: &Read| UNIX_EPOCH + at.at;
    let flags: Vec<u32> = packets.iter().map(|packet| packet.flags).collect();
    assert_eq!(flags, [2 | 1 << 9 | 1 << 11, 2 | 1 << 9, 1 | 1 << 10]);
    let comments: Vec<&[String]> = packets.iter().map(|packet| &*packet.comments).collect();
    let said = |each: &str| vec![format!("a super-segment: to be cut to {each} bytes of payload")];
    assert_eq!(comments, [&said("TCP segments of 1448")[..], &said("UDP datagrams of 1000"), &[]]);
    assert_eq!(
        packets.iter().map(since).collect::<Vec<_>>(),
        [
            wall + Duration::from_nanos(1_000),
            wall + Duration::from_nanos(3_000),
            wall + Duration::from_nanos(4_000_000),
        ]
    );
    assert!(packets.iter().all(|packet| packet.len as usize == packet.data.len() && packet.dropped == 0));
    // Another eye on the packets themselves.
    let sliced = SlicedPacket::from_ethernet(&packets[0].data).unwrap();
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (&sliced.net, &sliced.transport) else {
        panic!("not what it was");
    };
    assert_eq!((ip.header().source(), tcp.source_port(), tcp.payload()), ([10, 0, 0, 1], 0x1234, &bytes[..]));
    for (packet, payload) in [(&packets[1], &bytes[..3000]), (&packets[2], b"echo")] {
        let sliced = SlicedPacket::from_ethernet(&packet.data).unwrap();
        let (Some(NetSlice::Ipv6(_)), Some(TransportSlice::Udp(udp))) = (&sliced.net, &sliced.transport)
        else {
            panic!("not what it was");
        };
        assert_eq!(udp.payload(), payload);
    }
    tcpdump(&file);
}

/// What tcpdump reads in it, where it is installed.
fn tcpdump(file: &[u8]) {
    let mut command = Command::new("tcpdump");
    command.args(["-n", "-tt", "--nano", "-r", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match command.stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("tcpdump is not installed: pcap-file alone has read the capture");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    child.stdin.take().unwrap().write_all(file).unwrap();
    let out = child.wait_with_output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && !errors.contains("bad dump"), "{said}{errors}");
    let starts = [
        "1800000000.000001000 IP 10.0.0.1.4660 > 10.0.0.2.22136: Flags [.], seq 1:10001, ack 9,",
        "1800000000.000003000 IP6 fdfd:",
        "1800000000.004000000 IP6 fdfd:",
    ];
    assert_eq!(said.lines().count(), 3, "{said}{errors}");
    for (line, start) in said.lines().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
    assert!(said.contains("UDP, length 3000") && said.contains("UDP, length 4"), "{said}");
}

#[test]
fn what_the_cpu_cannot_read_is_left_out_and_said() {
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(3))).unwrap();
    let device = || Chain::from(Fragment::new(gpu.alloc().unwrap(), 0, 4000).unwrap());
    let head = [0x45; 40];
    let both = [Packet::new(&head, device()).unwrap(), Packet::new(&head, Segment::default()).unwrap()];
    let (packets, stats) = captured(PcapConfig::new(), both);
    assert_eq!((packets[0].len, &*packets[0].data), (4040, &head[..]));
    let said =
        "4000 bytes of payload are left out: they lie in memory of device 3, which the CPU cannot read";
    assert_eq!(packets[0].comments, [said]);
    assert_eq!((packets[1].len, packets[1].comments.len()), (40, 0));
    assert_eq!(stats, PcapStats { packets: 2, elided: 1, ..PcapStats::default() });
    // A snap length within the head.
    let (packets, _) = captured(PcapConfig::new().snap(20), [Packet::new(&head, device()).unwrap()]);
    assert_eq!(
        (packets[0].len, packets[0].data.len(), &*packets[0].comments),
        (4040, 20, &[said.into()][..])
    );
}

#[test]
fn a_peers_memory_is_as_it_was_at_that_moment() {
    let pool = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
    let mut page = pool.alloc().unwrap();
    page.bytes_mut().unwrap().fill(7);
    drop(page);
    let (page, offset, _) = pool.alloc_piece(4096).unwrap().into_parts();
    let peers = Chain::from(Fragment::new(page, offset as usize, 1000).unwrap());
    assert_eq!(peers.kind(), Some(Kind::Peer));
    let packet = Packet::new(&[1; 20], peers).unwrap();
    let (packets, stats) = captured(PcapConfig::new(), [packet.share()]);
    assert_eq!((&packets[0].data[..20], &packets[0].data[20..]), (&[1; 20][..], &[7; 1000][..]));
    assert_eq!(stats, PcapStats { packets: 1, ..PcapStats::default() });
    let (packets, stats) = captured(PcapConfig::new().snap(100), [packet]);
    assert_eq!((packets[0].len, packets[0].data.len(), packets[0].data[99]), (1020, 100, 7));
    assert_eq!((stats.cut, stats.elided), (1, 0));
}

#[test]
fn a_snap_length_bounds_what_is_held() {
    let pool = pool();
    let mut long = Chain::new();
    let piece = chain(&pool, &[9; 4096]);
    while long.len() < 1 << 20 {
        long.concat(&mut piece.share()).unwrap();
    }
    for (snap, captures) in [(0, 1), (1, 1), (53, 53), (54, 54), (5000, 5000), (u32::MAX, 262_144)] {
        let packet = Packet::new(&[1; 54], long.share()).unwrap();
        let (packets, stats) = captured(PcapConfig::new().snap(snap), [packet]);
        assert_eq!((packets[0].data.len(), packets[0].len), (captures, 54 + (1 << 20)), "snap {snap}");
        assert_eq!((stats.cut, packets[0].comments.len()), (1, 0));
    }
}

#[test]
fn a_clock_ahead_of_the_walls_wraps_back() {
    let config = PcapConfig::new().clock(UNIX_EPOCH + Duration::from_secs(5), u64::MAX - 10);
    let mut link = Pcap::new(Sink::new(), Vec::new(), config);
    link.transmit(u64::MAX, Packet::new(&[0x45; 20], Segment::default()).unwrap());
    assert_eq!(read(&link.into_parts().1).2[0].at, Duration::new(5, 10));
    let before: SystemTime = UNIX_EPOCH - Duration::from_secs(2);
    let mut link = Pcap::new(Sink::new(), Vec::new(), PcapConfig::new().clock(before, 0));
    link.transmit(3_000_000_000, Packet::new(&[0x45; 20], Segment::default()).unwrap());
    assert_eq!(read(&link.into_parts().1).2[0].at, Duration::from_secs(1));
}

/// Takes as many bytes at each call as the plan says, then all; an error where that is none.
#[derive(Debug)]
struct Moody {
    plan: Vec<Result<usize, ErrorKind>>,
    file: Vec<u8>,
    flushed: bool,
}

impl Moody {
    fn new(plan: impl IntoIterator<Item = Result<usize, ErrorKind>>) -> Moody {
        let mut plan: Vec<_> = plan.into_iter().collect();
        plan.reverse();
        Moody { plan, file: Vec::new(), flushed: false }
    }
}

impl Write for Moody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.plan.pop().unwrap_or(Ok(usize::MAX))?.min(bytes.len());
        self.file.extend_from_slice(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.flushed = true;
        Ok(())
    }
}

/// With the type of what it carries, which nobody else looks at.
fn typed(frame: Frame, payload: &[u8], size: u16) -> Packet {
    let mut packet = frame.packet(chain(&pool(), payload), size);
    let kind = if frame.v4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    packet.head_mut()[12..14].copy_from_slice(&kind);
    packet
}

fn numbered(number: u8) -> Packet {
    Packet::new(&[number; 40], Segment::default()).unwrap()
}

#[test]
fn a_writer_that_fails_stops_no_traffic_and_is_told_of() {
    let Pair { a, mut b, wire: _wire } =
        Pair::new(PairConfig::new().capabilities(Capabilities::none(Medium::Ip, 1500)));
    let full = Err(ErrorKind::StorageFull);
    // The headers in two parts; the first packet; two are lost; the fourth in part, on which the fifth is lost; the sixth finishes it.
    let plan = [Ok(10), full, Ok(1000), Ok(1000), full, Ok(0), Ok(30), full, full];
    let mut link = Pcap::new(a, Moody::new(plan), PcapConfig::new());
    assert_eq!(link.last_error().unwrap().kind(), ErrorKind::StorageFull);
    for number in 1..=6 {
        link.transmit(number.into(), numbered(number));
        assert_eq!(b.receive(number.into()).unwrap().head()[..], [number; 40], "it goes on");
    }
    assert_eq!(link.stats(), PcapStats { packets: 3, lost: 3, errors: 5, ..PcapStats::default() });
    assert_eq!(link.last_error().unwrap().kind(), ErrorKind::StorageFull);
    link.flush().unwrap();
    let (_, writer) = link.into_parts();
    assert!(writer.flushed && writer.plan.is_empty());
    let seen: Vec<_> = read(&writer.file).2.iter().map(|packet| (packet.data[0], packet.dropped)).collect();
    assert_eq!(seen, [(1, 0), (4, 2), (6, 1)]);
}

#[test]
fn signals_cost_nothing_unless_there_are_only_signals() {
    let signals = |count: usize| std::iter::repeat_n(Err(ErrorKind::Interrupted), count);
    let plan = [Ok(1000)].into_iter().chain(signals(16)).chain([Ok(5)]).chain(signals(16));
    let mut link = Pcap::new(Sink::new(), Moody::new(plan), PcapConfig::new());
    link.transmit(0, numbered(1));
    assert_eq!((link.stats().errors, link.stats().packets, link.writer().plan.len()), (0, 1, 0));
    // A writer that gives nothing else is one that fails: it is not asked for ever.
    let mut link = Pcap::new(Sink::new(), Moody::new(signals(100)), PcapConfig::new());
    let asked = 100 - link.writer().plan.len();
    assert_eq!((asked, link.stats().errors), (17, 1));
    assert_eq!(link.flush().unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(link.writer().plan.len(), 66);
}
