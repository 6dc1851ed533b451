//! A device that a test makes up: what a kernel does now and then, at will.

use super::device::Device;
use super::header::{self, Header};
use super::receive::{Pools, Receiver};
use super::stats::Stats;
use super::transmit::{BATCH, FRAGMENTS, Transmitter};
use crate::capabilities::{Capabilities, Medium};
use crate::packet::{Gso, Packet, Train};
use crate::registered::Registered;
use crate::rx::{Queues, Rule, Sorted};
use onecopy_chain::notify::{Config, Lender, Segment};
use onecopy_chain::{Chain, Checksum, Fragment, Kind, Writer};
use onecopy_pool::provider::{Heap, Opaque};
use onecopy_pool::{DeviceId, DeviceMemory, PagePool, PoolConfig};
use onecopy_sys::map::Span;
use onecopy_sys::spans::{read_scattered, write_gathered};
use onecopy_uring::Unmapped;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Packets are those of a socket, so that the kernel itself gathers and scatters them; what it says is at will.
pub(super) struct Made {
    near: OwnedFd,
    far: OwnedFd,
    /// What it says of the next writes; none: what the kernel says.
    pub(super) says: VecDeque<Option<Errno>>,
    /// Headers that it does not take.
    pub(super) refuses: fn(&Header) -> bool,
    /// It takes payload from where nothing is mapped.
    pub(super) gathers: bool,
    /// How many packets each call gathered.
    pub(super) gathered: Vec<usize>,
    pub(super) written: Vec<(Header, Vec<u8>)>,
}

impl Made {
    pub(super) fn new() -> Made {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (says, gathered, written) = Default::default();
        Made { near, far, says, refuses: |_| false, gathers: false, gathered, written }
    }

    fn arrives(&self, header: Header, bytes: &[u8]) {
        let mut packet = header.to_bytes().to_vec();
        packet.extend_from_slice(bytes);
        assert_eq!(rustix::io::write(&self.far, &packet), Ok(packet.len()));
    }
}

impl Device for Made {
    fn read(&mut self, into: &[Span<'_>]) -> Result<usize, Errno> {
        read_scattered(&self.near, into)
    }

    fn gather(&mut self, pages: &mut Unmapped, mut became: impl FnMut(Result<(), Errno>)) {
        self.gathered.push(pages.added());
        if !self.gathers {
            return (0..pages.forget_added()).for_each(|_| became(Err(Errno::OPNOTSUPP)));
        }
        let mut taken = Vec::new();
        pages.write_added(&self.near, |len| taken.push(len));
        taken.into_iter().for_each(|len| became(len.and_then(|len| self.took(len))));
    }

    fn write(&mut self, from: &[Span<'_>]) -> Result<(), Errno> {
        let len = write_gathered(&self.near, from)?;
        self.took(len)
    }
}

impl Made {
    /// So many bytes were written: what it says of them.
    fn took(&mut self, len: usize) -> Result<(), Errno> {
        let mut bytes = vec![0; len];
        assert_eq!(rustix::io::read(&self.far, &mut bytes), Ok(len));
        let header = Header::of_bytes(bytes[..header::LEN].try_into().unwrap());
        if let Some(errno) = self.says.pop_front().flatten() {
            return Err(errno);
        }
        if (self.refuses)(&header) {
            return Err(Errno::INVAL);
        }
        self.written.push((header, bytes.split_off(header::LEN)));
        Ok(())
    }
}

pub(super) fn pool(pages: u32) -> PagePool {
    PagePool::new(PoolConfig::new().limit(pages), Heap::new()).unwrap()
}

/// Ethernet, IPv4 with so many words of options, TCP with so many; whole, with its checksum still to be finished.
pub(super) fn head(ip_options: usize, tcp_options: usize, payload: usize) -> Vec<u8> {
    let (ip, tcp) = (20 + ip_options * 4, 20 + tcp_options * 4);
    let mut head = vec![0; 14 + ip + tcp];
    head[12] = 8;
    head[14] = 0x40 | (ip / 4) as u8;
    head[16..18].copy_from_slice(&((ip + tcp + payload) as u16).to_be_bytes());
    head[20] = 0x40;
    head[14 + 9] = 6;
    head[14 + ip + 12] = (tcp as u8 / 4) << 4;
    head
}

pub(super) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

#[test]
fn headers_are_in_the_head_and_payload_in_pages() {
    let (mut device, mut stats) = (Made::new(), Stats::default());
    let mut receiver = Receiver::new(Medium::Ethernet, 65536 + 22, Pools::of(pool(64)));
    assert!(receiver.receive(&mut device, &mut stats).is_none());
    let mut expected = Stats::default();
    // Whatever headers the packet before had, and however little payload there is.
    for ip_options in [0, 1, 10] {
        for tcp_options in [0, 3, 8, 10, 0] {
            for payload in [0, 1, 2, 40, 60, 100, 1448, 3968, 3969, 4064, 4096, 8064, 8065, 65000, 0, 3] {
                let head = head(ip_options, tcp_options, payload);
                if head.len() > 128 {
                    continue;
                }
                let mut whole = head.clone();
                whole.extend(bytes(payload));
                device.arrives(Header::default(), &whole);
                let packet = receiver.receive(&mut device, &mut stats).unwrap();
                assert_eq!(
                    (&**packet.head(), packet.gso(), packet.checksum()),
                    (&head[..], None, Checksum::None)
                );
                assert_eq!(packet.to_vec().unwrap(), whole, "{ip_options} {tcp_options} {payload}");
                let count = packet.payload().payload().fragment_count();
                assert!(count <= payload.div_ceil(4096) + 1, "{payload} bytes in {count} fragments");
                // It has no page that it has no byte in: what was not needed is there for the next one.
                assert_eq!(packet.payload().payload().true_size(), count * 4096);
                expected.received += 1;
                expected.received_bytes += whole.len() as u64;
            }
        }
    }
    assert!(stats.moved > 0 && stats.moved_bytes < stats.moved * 128);
    assert_eq!(stats, Stats { moved: stats.moved, moved_bytes: stats.moved_bytes, ..expected });
    let monitor = receiver.pools().first().monitor();
    drop(receiver);
    assert_eq!(monitor.in_flight(), 0);
}

#[test]
fn a_super_segment_has_few_parts_and_a_small_packet_little_memory() {
    let (mut device, mut stats) = (Made::new(), Stats::default());
    let mut receiver = Receiver::new(Medium::Ethernet, 65536 + 22, Pools::new().unwrap());
    // Each with the parts it may have, and the memory: the first 3968 bytes or so lie in a page of 4 KiB, the others in ones of 16 KiB.
    let each = [(1, 1, 4096), (1448, 1, 4096), (9000, 2, 20_480), (65_000, 5, 69_632), (64, 1, 4096)];
    let mut held = Vec::new();
    for (payload, parts, memory) in each.into_iter().cycle().take(50) {
        let mut whole = head(0, 3, payload);
        whole.extend(bytes(payload));
        device.arrives(Header::default(), &whole);
        let packet = receiver.receive(&mut device, &mut stats).unwrap();
        assert_eq!(packet.to_vec().unwrap(), whole);
        let chain = packet.payload().payload();
        assert_eq!((chain.fragment_count(), chain.true_size()), (parts, memory), "{payload} bytes");
        held.push(packet);
    }
    assert!(
        held.iter()
            .all(|packet| packet.to_vec().unwrap().ends_with(&bytes(packet.payload().payload().len())))
    );
    let monitors = receiver.pools().all().map(PagePool::monitor);
    let monitors: Vec<_> = monitors.collect();
    drop((held, receiver));
    assert_eq!(monitors.iter().map(|monitor| monitor.in_flight()).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn headers_that_are_as_long_as_before_move_nothing() {
    let (mut device, mut stats) = (Made::new(), Stats::default());
    let mut receiver = Receiver::new(Medium::Ethernet, 1522, Pools::of(pool(64)));
    for payload in [1448, 0, 1448, 3, 700] {
        let mut whole = head(0, 3, payload);
        whole.extend(bytes(payload));
        device.arrives(Header::default(), &whole);
        let packet = receiver.receive(&mut device, &mut stats).unwrap();
        let places: Vec<_> = packet.payload().payload().fragments().map(Fragment::offset).collect();
        assert_eq!(places, if payload == 0 { vec![] } else { vec![128] });
    }
    assert_eq!((stats.received, stats.moved), (5, 0));
}

#[test]
fn what_the_kernel_says_of_a_packet_is_told() {
    let (mut device, mut stats) = (Made::new(), Stats::default());
    let mut receiver = Receiver::new(Medium::Ethernet, 65536 + 22, Pools::of(pool(64)));
    let mut train = head(0, 3, 20_000);
    train.extend(bytes(20_000));
    let said = Header { flags: 1, gso_type: 1, header_len: 66, gso_size: 1448, start: 34, offset: 16 };
    device.arrives(said, &train);
    let packet = receiver.receive(&mut device, &mut stats).unwrap();
    assert_eq!(packet.gso(), Some(Gso { train: Train::Tcp, size: 1448, network: 14 }));
    assert_eq!(packet.checksum(), Checksum::Partial { start: 34, offset: 16 });
    assert_eq!((packet.to_vec().unwrap(), stats.received_trains), (train.clone(), 1));

    device.arrives(Header { flags: 2, ..Header::default() }, &train[..100]);
    assert_eq!(receiver.receive(&mut device, &mut stats).unwrap().checksum(), Checksum::Verified);
    // A header that nobody here knows has its checksum's place in the head all the same.
    let mut sctp = train[..100].to_vec();
    sctp[14 + 9] = 132;
    device.arrives(Header { flags: 1, start: 34, offset: 8, ..Header::default() }, &sctp);
    let packet = receiver.receive(&mut device, &mut stats).unwrap();
    assert_eq!((packet.head().len(), packet.to_vec().unwrap()), (44, sctp));

    // What makes no sense is dropped, and the next packet comes.
    for wrong in [
        Header { flags: 1, start: 120, offset: 16, ..Header::default() },
        Header { flags: 1, start: u16::MAX, offset: u16::MAX, ..Header::default() },
        Header { gso_type: 3, ..said },
        Header { gso_size: 0, ..said },
    ] {
        device.arrives(wrong, &train);
    }
    rustix::io::write(&device.far, b"short").unwrap();
    device.arrives(Header::default(), &train[..66]);
    assert_eq!(receiver.receive(&mut device, &mut stats).unwrap().len(), 66);
    assert_eq!((stats.bad_header, stats.received), (5, 4));
}

#[test]
fn a_packet_that_is_too_long_is_dropped() {
    let (mut device, mut stats) = (Made::new(), Stats::default());
    let mut receiver = Receiver::new(Medium::Ethernet, 1522, Pools::of(pool(64)));
    device.arrives(Header::default(), &bytes(9000));
    device.arrives(Header::default(), &bytes(1522));
    assert_eq!(receiver.receive(&mut device, &mut stats).unwrap().to_vec().unwrap(), bytes(1522));
    assert_eq!((stats.too_long, stats.no_page), (1, 0));
}

#[test]
fn without_pages_acknowledgements_still_come() {
    let (mut device, mut stats) = (Made::new(), Stats::default());
    let mut receiver = Receiver::new(Medium::Ethernet, 1522, Pools::of(pool(1)));
    let mut data = head(0, 3, 1000);
    data.extend(bytes(1000));
    device.arrives(Header::default(), &data);
    let held = receiver.receive(&mut device, &mut stats).unwrap();
    device.arrives(Header::default(), &data);
    device.arrives(Header::default(), &head(0, 3, 0));
    let ack = receiver.receive(&mut device, &mut stats).unwrap();
    assert_eq!((ack.head().len(), ack.len(), stats.no_page), (66, 66, 1));
    // Few bytes have no place either.
    device.arrives(Header::default(), &data[..70]);
    assert!(receiver.receive(&mut device, &mut stats).is_none());
    assert_eq!(stats.no_page, 2);
    drop(held);
    device.arrives(Header::default(), &data);
    assert_eq!(receiver.receive(&mut device, &mut stats).unwrap().to_vec().unwrap(), data);
}

pub(super) fn capabilities() -> Capabilities {
    Capabilities { fragments: FRAGMENTS, unreadable: false, ..Capabilities::all(Medium::Ethernet, 1500) }
}

/// A super-segment with so much payload, of segments of 1448 bytes.
pub(super) fn train(pool: &PagePool, payload: usize) -> Packet {
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, &bytes(payload)).unwrap();
    let mut packet = Packet::new(&head(0, 3, payload), chain).unwrap();
    packet.set_checksum(Checksum::Partial { start: 34, offset: 16 }).unwrap();
    packet.set_gso(Some(Gso { train: Train::Tcp, size: 1448, network: 14 }));
    packet
}

#[test]
fn a_packet_is_gathered_and_its_sends_are_told_of_the_copy() {
    let (mut device, mut stats, pool) = (Made::new(), Stats::default(), pool(64));
    let mut transmitter = Transmitter::new(capabilities(), BATCH);
    let mut packet = train(&pool, 30_000);
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut lent = pool.alloc().unwrap();
    lent.bytes_mut().unwrap().fill(7);
    let loan = lender.send(packet.payload_mut(), lent, 0).unwrap();
    let whole = packet.to_vec().unwrap();
    transmitter.transmit(&mut device, &mut stats, packet);
    let header = Header { flags: 1, gso_type: 1, header_len: 66, gso_size: 1448, start: 34, offset: 16 };
    assert_eq!(device.written, [(header, whole.clone())]);
    let (page, how) = loan.try_take().unwrap();
    assert!(page.is_unique() && how.copied && !how.dropped);
    let expected = Stats {
        transmitted: 1,
        transmitted_bytes: whole.len() as u64,
        transmitted_trains: 1,
        ..Stats::default()
    };
    assert_eq!((stats, transmitter.room()), (expected, usize::MAX));
}

#[test]
fn while_the_kernel_takes_none_there_is_no_room() {
    let (mut device, mut stats, pool) = (Made::new(), Stats::default(), pool(64));
    let mut transmitter = Transmitter::new(capabilities(), BATCH);
    device.says.extend([Errno::AGAIN; 3].map(Some));
    transmitter.transmit(&mut device, &mut stats, train(&pool, 3000));
    assert_eq!((transmitter.room(), stats.waited, device.written.len()), (0, 1, 0));
    // Who does not ask for room has his packet dropped, and this one still waits.
    transmitter.transmit(&mut device, &mut stats, train(&pool, 1000));
    transmitter.flush(&mut device, &mut stats);
    assert_eq!((transmitter.room(), stats.waited, stats.full), (0, 3, 1));
    transmitter.flush(&mut device, &mut stats);
    assert_eq!((transmitter.room(), stats.transmitted, device.written.len()), (usize::MAX, 1, 1));
    assert_eq!(device.written[0].1, train(&pool, 3000).to_vec().unwrap());
}

/// What a card makes of it, by the same room's own means; finished.
fn cut(packet: Packet) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    packet
        .cut(|mut part| {
            part.finish().unwrap();
            parts.push(part.to_vec().unwrap());
        })
        .unwrap();
    parts
}

#[test]
fn segmentation_that_is_refused_is_done_here() {
    let (mut device, mut stats, pool) = (Made::new(), Stats::default(), pool(64));
    let mut transmitter = Transmitter::new(capabilities(), BATCH);
    device.refuses = |header| header.gso_type != 0;
    // It has to wait in the middle, too.
    device.says.extend([Errno::INVAL, Errno::AGAIN].map(Some));
    transmitter.transmit(&mut device, &mut stats, train(&pool, 5000));
    assert_eq!((transmitter.room(), stats.offload_refused), (0, 0));
    assert!(transmitter.capabilities().tcp_segmentation);
    transmitter.flush(&mut device, &mut stats);
    let left = Capabilities { tcp_segmentation: false, ..capabilities() };
    assert_eq!(transmitter.capabilities(), left);
    assert_eq!((stats.cut, stats.offload_refused, stats.transmitted, stats.finished), (1, 1, 4, 0));
    // What was promised before is taken, and the kernel not asked again.
    transmitter.transmit(&mut device, &mut stats, train(&pool, 2000));
    assert_eq!((stats.cut, stats.offload_refused, stats.transmitted, stats.transmitted_trains), (2, 1, 6, 0));
    let finished: Vec<Vec<u8>> = device
        .written
        .iter()
        .map(|(header, bytes)| {
            assert_eq!((header.flags, header.start, header.offset), (1, 34, 16));
            let mut packet = Packet::new(&bytes[..66], Segment::default()).unwrap();
            Writer::new(&pool).append(packet.payload_mut().payload_mut(), &bytes[66..]).unwrap();
            packet.set_checksum(Checksum::Partial { start: 34, offset: 16 }).unwrap();
            packet.finish().unwrap();
            packet.to_vec().unwrap()
        })
        .collect();
    let expected = [cut(train(&pool, 5000)), cut(train(&pool, 2000))].concat();
    assert_eq!(finished, expected);
}

#[test]
fn checksums_that_are_refused_are_finished_here() {
    let (mut device, mut stats, pool) = (Made::new(), Stats::default(), pool(64));
    let mut transmitter = Transmitter::new(capabilities(), BATCH);
    device.refuses = |header| header.flags != 0;
    transmitter.transmit(&mut device, &mut stats, train(&pool, 4000));
    transmitter.transmit(&mut device, &mut stats, train(&pool, 100));
    let kernel = transmitter.capabilities();
    assert_eq!((kernel.checksum, kernel.tcp_segmentation, kernel.udp_segmentation), (false, false, false));
    assert_eq!((stats.cut, stats.finished, stats.offload_refused, stats.transmitted), (2, 4, 1, 4));
    let written: Vec<Vec<u8>> = device.written.iter().map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(written, [cut(train(&pool, 4000)), cut(train(&pool, 100))].concat());
    assert!(device.written.iter().all(|(header, _)| *header == Header::default()));
}

#[test]
fn what_is_wrong_with_one_packet_ends_no_offload() {
    let (mut device, mut stats, pool) = (Made::new(), Stats::default(), pool(64));
    let mut transmitter = Transmitter::new(capabilities(), BATCH);
    let mut broken = train(&pool, 2000);
    broken.head_mut()[46] = 0xf0;
    device.says.push_back(Some(Errno::INVAL));
    transmitter.transmit(&mut device, &mut stats, broken);
    assert_eq!((stats.not_taken, stats.cut), (1, 0));
    device.says.extend([Errno::INVAL; 2].map(Some));
    let mut single = train(&pool, 1000);
    single.set_gso(None);
    transmitter.transmit(&mut device, &mut stats, single.share());
    assert_eq!((stats.refused, stats.finished), (1, 1));
    assert_eq!((transmitter.capabilities(), stats.offload_refused), (capabilities(), 0));
    transmitter.transmit(&mut device, &mut stats, single);
    assert_eq!((stats.transmitted, transmitter.room()), (1, usize::MAX));
}

#[test]
fn what_is_dropped_is_counted_by_the_reason() {
    let (mut device, mut stats, pool) = (Made::new(), Stats::default(), pool(64));
    let mut transmitter = Transmitter::new(capabilities(), BATCH);
    device.says.extend([Errno::IO, Errno::NOMEM, Errno::NOBUFS, Errno::BADFD, Errno::PERM].map(Some));
    for _ in 0..5 {
        transmitter.transmit(&mut device, &mut stats, train(&pool, 2000));
    }
    assert_eq!((stats.down, stats.no_memory, stats.gone, stats.failed), (1, 2, 1, 1));
    // A device's memory has no address to give the kernel.
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(1))).unwrap();
    let fragment = Fragment::new(gpu.alloc().unwrap(), 0, 1000).unwrap();
    transmitter.transmit(
        &mut device,
        &mut stats,
        Packet::new(&head(0, 3, 1000), Chain::from(fragment)).unwrap(),
    );
    let mut long = train(&pool, 1449);
    long.set_gso(None);
    transmitter.transmit(&mut device, &mut stats, long);
    let mut unsummed = train(&pool, 3000);
    unsummed.set_checksum(Checksum::None).unwrap();
    transmitter.transmit(&mut device, &mut stats, unsummed);
    assert_eq!((stats.not_taken, stats.transmitted, transmitter.room()), (3, 0, usize::MAX));
    assert!(device.written.is_empty());
}

#[test]
fn payload_of_a_device_goes_by_way_of_the_hosts_memory_or_from_where_it_lies_whatever_the_kernel_refuses() {
    for (registered, gathers) in [(false, false), (true, true), (true, false)] {
        device_payload_goes(registered, gathers);
    }
}

/// With memory that is registered or not, over a descriptor that can gather from it or not.
fn device_payload_goes(registered: bool, gathers: bool) {
    let memory = DeviceMemory::opaque(16, DeviceId(1)).unwrap();
    let pages = memory.alloc_all().unwrap();
    assert_eq!(pages.len(), 1, "one run");
    let data = bytes(65536);
    memory.write_at(0, &[std::io::IoSlice::new(&data)]).unwrap();
    // Two pages in one piece, one that lies before them, an odd beginning and end.
    let parts = [(4, 100, 3996), (5, 0, 4096), (2, 7, 1001)];
    for refuses in
        [|_: &Header| false, |header: &Header| header.gso_type != 0, |header: &Header| header.flags != 0]
    {
        let (mut device, mut stats, host) = (Made::new(), Stats::default(), pool(64));
        (device.refuses, device.gathers) = (refuses, gathers);
        let (mut chain, mut same) = (Chain::new(), Vec::new());
        for (page, offset, len) in parts {
            chain.append(Fragment::new(pages[0].clone(), page * 4096 + offset, len).unwrap()).unwrap();
            same.extend_from_slice(&data[page * 4096 + offset..][..len]);
        }
        let with = |payload: Chain| {
            let mut packet = Packet::new(&head(0, 3, same.len()), payload).unwrap();
            packet.set_checksum(Checksum::Partial { start: 34, offset: 16 }).unwrap();
            packet.set_gso(Some(Gso { train: Train::Tcp, size: 1448, network: 14 }));
            packet
        };
        let mut transmitter = Transmitter::new(Capabilities { unreadable: true, ..capabilities() }, BATCH);
        if registered {
            let registered = match Registered::new(&memory) {
                Ok(registered) => registered,
                Err(why) => return println!("lacking: registered buffers of io_uring ({why})"),
            };
            transmitter.gather_from(registered);
        }
        device.says.push_back(Some(Errno::AGAIN));
        let before = memory.copied().out;
        transmitter.transmit(&mut device, &mut stats, with(chain));
        let waits_there = pages.iter().any(|page| !page.is_unique());
        assert_eq!(waits_there, gathers, "else what waits lies in the host's memory");
        transmitter.flush(&mut device, &mut stats);
        let (count, all) = (memory.copied().out - before, same.len() as u64);
        assert_eq!((count, stats.staged_bytes, stats.unstaged), (all - stats.gathered_bytes, count, 0));
        // What is cut, or finished, here is so in the host's memory.
        let whole =
            refuses(&Header::default()) == refuses(&Header { flags: 1, gso_type: 1, ..Header::default() });
        assert_eq!(stats.gathered_bytes, if gathers && whole { all } else { 0 });
        assert_eq!(transmitter.gathers_from(memory.id()), gathers);
        // As the same bytes of the host's do.
        let mut plain = Chain::new();
        Writer::new(&host).append(&mut plain, &same).unwrap();
        let (mut rival, mut stats) = (Made::new(), Stats::default());
        rival.refuses = refuses;
        Transmitter::new(capabilities(), BATCH).transmit(&mut rival, &mut stats, with(plain));
        assert!(!device.written.is_empty());
        assert_eq!(device.written, rival.written);
    }
}

#[test]
fn a_descriptor_that_cannot_land_is_read_as_ever() {
    let mut made = Made::new();
    let pool = PagePool::new(PoolConfig::new().limit(64), Heap::new()).unwrap();
    let mut receiver = Receiver::new(Medium::Ethernet, 65536 + 22, Pools::of(pool));
    let memory = DeviceMemory::opaque(64, DeviceId(0)).unwrap();
    let mut queues = Queues::new(Medium::Ethernet);
    queues.set_len(2).unwrap();
    queues.steer(Rule { to: "0.0.0.0:80".parse().unwrap(), queue: 1 }).unwrap();
    queues.bind(&memory, &[1]).unwrap();
    let registered = match Registered::new(&memory) {
        Ok(registered) => registered,
        Err(why) => return println!("lacking: registered buffers of io_uring ({why})"),
    };
    queues.land(registered);
    let mut packet = vec![0; 54 + 20_000];
    (packet[12], packet[14], packet[23], packet[37], packet[46]) = (8, 0x45, 6, 80, 0x50);
    packet[16..18].copy_from_slice(&20_040_u16.to_be_bytes());
    let header = Header { flags: 1, start: 34, offset: 16, ..Header::default() };
    let mut stats = Stats::default();
    for turn in 0..12 {
        // (None is there: nothing is drawn for good.)
        assert!(receiver.receive_sorted(&mut made, &mut stats, &mut queues).is_none());
        made.arrives(header, &packet);
        let sorted = receiver.receive_sorted(&mut made, &mut stats, &mut queues);
        let Some(Sorted::Bound(1, packet)) = sorted else { panic!("{turn}: {sorted:?}") };
        assert_eq!(packet.payload().payload().kind(), Some(Kind::Device), "{turn}");
        drop(packet);
        assert!(memory.free() + 4096 >= memory.len());
    }
    assert!(queues.foreseen().is_none(), "it was given up");
    assert_eq!((stats.received, stats.failed, stats.misplaced), (12, 0, 0));
}
