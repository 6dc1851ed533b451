//! The link without a kernel: its rings' other sides are the test's, which does as the kernel does, or as no kernel would.

use super::receive::{LAST, Receiver};
use super::ring::tests::Other;
use super::ring::{Emptied, Entry, Filled};
use super::stats::Stats;
use super::transmit::Transmitter;
use super::umem::Umem;
use crate::capabilities::{Capabilities, Medium};
use crate::packet::Packet;
use onecopy_chain::notify::{Config, Lender, Segment};
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use onecopy_sys::xdp::{CONTINUES, FRAME, HEADROOM};
use rustix::io::Errno;

/// Frames; entries of fill and RX, and of TX and completion.
const FRAMES: u32 = 256;
const RX: u32 = 128;
const TX: u32 = 32;
/// Pages beside them.
const OTHERS: u32 = 10;

/// A link, and the kernel's side of it.
struct Bench {
    umem: Umem,
    receiver: Receiver,
    transmitter: Transmitter,
    stats: Stats,
    fill: Other,
    rx: Other,
    tx: Other,
    completion: Other,
    /// Frames that the kernel has taken out of the fill ring and not used yet.
    given: Vec<u64>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(1500, 0)
    }

    fn with(mtu: u32, lent: usize) -> Bench {
        let (fill, fill_other) = Other::ring(RX);
        let (rx, rx_other) = Other::ring(RX);
        let (tx, tx_other) = Other::ring(TX);
        let (completion, completion_other) = Other::ring(TX);
        let capabilities = Capabilities::none(Medium::Ethernet, mtu);
        let (tx, completion) = (Filled::new(tx), Emptied::new(completion));
        let pages = PagePool::new(PoolConfig::new().limit(OTHERS), Heap::new()).unwrap();
        let mut bench = Bench {
            umem: Umem::new(FRAMES, TX).unwrap(),
            receiver: Receiver::new(Filled::new(fill), Emptied::new(rx), RX, pages, true, mtu),
            transmitter: Transmitter::new(tx, completion, capabilities, lent, lent > 0),
            stats: Stats::default(),
            fill: fill_other,
            rx: rx_other,
            tx: tx_other,
            completion: completion_other,
            given: Vec::new(),
        };
        assert!(bench.receiver.fill(&mut bench.umem, &mut bench.stats));
        bench
    }

    /// The kernel takes frames out of the fill ring.
    fn take_frames(&mut self) {
        let (from, to) = (self.fill.consumer(), self.fill.producer());
        let count = to.wrapping_sub(from);
        assert!(count <= RX);
        self.given.extend((0..count).map(|n| self.fill.place((from.wrapping_add(n) % RX) as usize)));
        self.fill.set_consumer(to);
    }

    /// The kernel says that it has received.
    fn say(&self, entries: &[Entry]) {
        let from = self.rx.producer();
        for (n, entry) in entries.iter().enumerate() {
            self.rx.set_entry((from.wrapping_add(n as u32) % RX) as usize, *entry);
        }
        self.rx.set_producer(from.wrapping_add(entries.len() as u32));
    }

    /// The next frame of those that the kernel was given, as an entry of so many bytes.
    fn frame(&mut self, len: usize, options: u32) -> Entry {
        self.take_frames();
        Entry { place: self.given.remove(0) + HEADROOM as u64, len: len as u32, options }
    }

    fn receive(&mut self) -> Option<Packet> {
        let packet = self.receiver.receive(&mut self.umem, &mut self.stats);
        self.receiver.fill(&mut self.umem, &mut self.stats);
        packet
    }

    fn put(&mut self, packet: Packet) {
        self.transmitter.put(&mut self.umem, &mut self.stats, packet);
    }

    /// The kernel sends all there is: the entries. They are not given back yet.
    fn send(&mut self) -> Vec<Entry> {
        let Bench { transmitter, stats, tx, .. } = self;
        let mut sent = Vec::new();
        let _ = transmitter.hand_over(stats, || {
            let (from, to) = (tx.consumer(), tx.producer());
            let count = to.wrapping_sub(from);
            assert!(count <= TX);
            sent.extend((0..count).map(|n| tx.entry((from.wrapping_add(n) % TX) as usize)));
            tx.set_consumer(to);
            Ok(())
        });
        sent
    }

    /// It gives places back.
    fn complete(&self, places: &[u64]) {
        let from = self.completion.producer();
        for (n, place) in places.iter().enumerate() {
            self.completion.set_place((from.wrapping_add(n as u32) % TX) as usize, *place);
        }
        self.completion.set_producer(from.wrapping_add(places.len() as u32));
    }

    fn take_back(&mut self) {
        self.transmitter.take_back(&mut self.umem, &mut self.stats);
    }
}

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(), Heap::new()).unwrap()
}

/// Ethernet and IPv4 of another protocol than those that are known, so that all behind is payload.
fn packet(payload: impl Into<Segment<Chain>>) -> Packet {
    let mut head = [0; 34];
    head[12..15].copy_from_slice(&[8, 0, 0x45]);
    Packet::new(&head, payload).unwrap()
}

fn payload(pool: &PagePool, len: usize) -> Chain {
    let mut chain = Chain::new();
    let mut left = len;
    while left > 0 {
        let mut page = pool.alloc().unwrap();
        let part = left.min(page.len());
        page.bytes_mut().unwrap()[..part].iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * 3) as u8);
        chain.append(Fragment::new(page, 0, part).unwrap()).unwrap();
        left -= part;
    }
    chain
}

#[test]
fn frames_are_the_kernel_s_again_when_nobody_has_them() {
    let mut bench = Bench::new();
    bench.take_frames();
    assert_eq!((bench.given.len(), bench.umem.filled()), (RX as usize, RX));
    let mut places = bench.given.clone();
    places.sort_unstable();
    places.dedup();
    assert!(places.len() == RX as usize && places.iter().all(|place| place % FRAME as u64 == 0));
    // With payload it stays away as long as somebody has the packet: all zeroes, as fresh memory is.
    let entry = bench.frame(100, 0);
    bench.say(&[entry]);
    let packet = bench.receive().unwrap();
    assert_eq!((packet.head().len(), packet.payload().payload().len()), (14, 86));
    let part = packet.payload().payload().fragments().next().unwrap();
    assert_eq!(part.page().place() + part.offset() as u64, entry.place + 14, "where the kernel put it");
    assert_eq!(bench.umem.filled(), RX - 1);
    drop(packet);
    // Without, it is given back at once.
    let entry = bench.frame(14, 0);
    bench.say(&[entry]);
    assert_eq!(bench.receive().unwrap().len(), 14);
    assert_eq!(bench.umem.filled(), RX - 1);
    bench.take_frames();
    assert_eq!(bench.given.last(), Some(&(entry.place - HEADROOM as u64)));
    assert_eq!((bench.stats.received, bench.stats.foreign, bench.stats.astray), (2, 0, 0));
}

#[test]
fn a_packet_in_several_frames_is_there_when_all_of_it_is() {
    let mut bench = Bench::new();
    let entries = [bench.frame(3840, CONTINUES), bench.frame(3840, CONTINUES), bench.frame(1, 0)];
    bench.say(&entries[..2]);
    assert!(bench.receive().is_none());
    bench.say(&entries[2..]);
    let packet = bench.receive().unwrap();
    assert_eq!((packet.len(), packet.payload().payload().fragment_count()), (7681, 3));
    assert_eq!((bench.stats.received, bench.stats.received_several), (1, 1));
}

#[test]
fn what_the_kernel_was_not_given_is_refused() {
    let end = u64::from(FRAMES) * FRAME as u64;
    let mut bench = Bench::new();
    bench.take_frames();
    let filled = bench.given.clone();
    let spare = (0..FRAMES as u64).map(|n| n * FRAME as u64).find(|place| !filled.contains(place)).unwrap();
    let there = filled[0] + HEADROOM as u64;
    let bad = [
        (end, 64),
        (u64::MAX, 64),
        (u64::MAX - 63, 64),
        (1 << 48 | there, 64),
        (spare + HEADROOM as u64, 64),
        (there, (FRAME - HEADROOM) as u32 + 1),
        (there, u32::MAX),
        (filled[0] + FRAME as u64 - 1, 2),
    ];
    for (at, (place, len)) in bad.into_iter().enumerate() {
        bench.say(&[Entry { place, len, options: 0 }]);
        assert!(bench.receive().is_none(), "{place:#x}, {len} bytes");
        assert_eq!(bench.stats.foreign, at as u64 + 1, "{place:#x}, {len} bytes");
    }
    // One twice is one's, and then nobody's.
    let entry = bench.frame(64, 0);
    bench.say(&[entry, entry]);
    assert!(bench.receive().is_some());
    let before = bench.stats.foreign;
    assert!(bench.receive().is_none());
    assert_eq!(bench.stats.foreign, before + 1);
    // Of a packet with a bad part nothing is left, and its good ones are free.
    let entries =
        [bench.frame(64, CONTINUES), Entry { place: end, len: 1, options: CONTINUES }, bench.frame(64, 0)];
    bench.say(&entries);
    assert!(bench.receive().is_none());
    assert_eq!(bench.stats.foreign, before + 2);
    let stats = bench.umem.pool().stats();
    let out = stats.in_flight - stats.in_cache - stats.in_ring;
    assert_eq!(u64::from(bench.umem.filled()) + bench.umem.spare() as u64, out, "{stats:?}");
    // And it all goes on.
    let entry = bench.frame(64, 0);
    bench.say(&[entry]);
    assert!(bench.receive().is_some());
}

#[test]
fn words_that_went_astray_bring_nothing() {
    let mut bench = Bench::new();
    let entry = bench.frame(64, 0);
    bench.say(&[entry]);
    for word in [RX + 1, u32::MAX, 1 << 31] {
        let before = bench.stats.astray;
        bench.rx.set_producer(word);
        assert!(bench.receive().is_none(), "{word}");
        assert!(bench.stats.astray > before, "{word}");
    }
    bench.rx.set_producer(1);
    assert!(bench.receive().is_some());
    // A ring of entries none of which is a packet's last one.
    let endless = vec![Entry { place: 0, len: 1, options: CONTINUES }; RX as usize];
    bench.say(&endless);
    assert!(bench.receive().is_none());
    // What was sent, and how much of what is to be sent was taken.
    let pool = pool();
    for word in [TX + 1, 1 << 31] {
        bench.completion.set_producer(word);
        bench.tx.set_consumer(word);
        let before = bench.stats.astray;
        bench.put(packet(payload(&pool, 10)));
        assert!(bench.transmitter.room(&bench.umem) == 0 && bench.stats.astray > before, "{word}");
    }
    assert_eq!((bench.stats.full, bench.stats.transmitted), (2, 0));
    bench.completion.set_producer(0);
    bench.tx.set_consumer(0);
    bench.put(packet(payload(&pool, 10)));
    assert_eq!(bench.send().len(), 1);
}

#[test]
fn where_nobody_gives_back_it_is_copied_and_the_last_frames_are_for_acknowledgements() {
    let mut bench = Bench::new();
    let mut kept = Vec::new();
    let all = FRAMES - TX;
    // Nobody gives anything back: all frames but the last ones are soon packets.
    for _ in 0..2 * all {
        if bench.stats.no_frame > 0 {
            break;
        }
        let entry = bench.frame(100, 0);
        bench.say(&[entry]);
        kept.extend(bench.receive());
    }
    assert!(kept.len() as u32 >= all - LAST + OTHERS, "{} kept, {:?}", kept.len(), bench.stats);
    assert_eq!((bench.stats.starved, bench.stats.no_frame), (1, 1));
    let copied = (bench.stats.copied_out, bench.stats.copied_out_bytes);
    assert_eq!(copied, (u64::from(OTHERS), u64::from(OTHERS) * 86));
    let left = bench.umem.filled();
    assert!(left >= LAST - 1, "{left}");
    // Acknowledgements come all the same, as many as there are.
    for _ in 0..1000 {
        let (data, ack) = (bench.frame(100, 0), bench.frame(14, 0));
        bench.say(&[data, ack]);
        assert_eq!(bench.receive().map(|packet| packet.len()), Some(14), "{:?}", bench.stats);
        assert_eq!(bench.umem.filled(), left);
    }
    // Once somebody gives back, payload comes again.
    // (Those came first, before the copies were made.)
    kept.drain(..RX as usize);
    bench.receive();
    assert_eq!(bench.umem.filled(), RX);
    let entry = bench.frame(100, 0);
    bench.say(&[entry]);
    assert_eq!(bench.receive().unwrap().len(), 100);
}

#[test]
fn what_is_sent_is_copied_and_said_to_be() {
    let (mut bench, pool) = (Bench::with(9000, 0), pool());
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut segment = Segment::default();
    let mut page = pool.alloc().unwrap();
    page.bytes_mut().unwrap().fill(7);
    let loan = lender.send(&mut segment, page, 0).unwrap();
    segment.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, 4000).unwrap()).unwrap();
    bench.put(packet(segment));
    let (page, how) = loan.try_take().unwrap();
    assert!(page.is_unique() && how.copied && !how.dropped, "{how:?}");
    let entries = bench.send();
    let lens: Vec<(u32, u32)> = entries.iter().map(|entry| (entry.len, entry.options)).collect();
    assert_eq!(lens, [(4096, CONTINUES), (4034, 0)]);
    assert_eq!((bench.stats.transmitted, bench.stats.copied_bytes), (1, 8096));
    assert_eq!(bench.umem.spare(), TX as usize - 2);
    bench.complete(&[entries[1].place, entries[0].place]);
    assert_eq!(bench.transmitter.room(&bench.umem), (TX / 3) as usize);
    bench.take_back();
    assert_eq!((bench.umem.spare(), bench.stats.foreign), (TX as usize, 0));
}

#[test]
fn room_is_as_much_as_is_taken() {
    let (mut bench, pool) = (Bench::new(), pool());
    assert_eq!(bench.transmitter.room(&bench.umem), TX as usize);
    (0..TX).for_each(|_| bench.put(packet(payload(&pool, 100))));
    assert_eq!((bench.transmitter.room(&bench.umem), bench.stats.full), (0, 0));
    bench.put(packet(Chain::new()));
    assert_eq!((bench.stats.full, bench.stats.transmitted), (1, TX.into()));
    let entries = bench.send();
    assert_eq!((entries.len(), bench.transmitter.room(&bench.umem)), (TX as usize, 0), "none came back");
    bench.complete(&[entries[3].place]);
    assert_eq!(bench.transmitter.room(&bench.umem), 1);
    bench.put(packet(Chain::new()));
    // Longer than a packet may be, and of no headers.
    bench.complete(&[entries[4].place]);
    bench.put(packet(payload(&pool, 1481)));
    bench.put(Packet::new(&[0; 13], Chain::new()).unwrap());
    assert_eq!((bench.stats.not_taken, bench.transmitter.room(&bench.umem)), (2, 1));
}

#[test]
fn frames_that_were_not_sent_do_not_come_back() {
    let (mut bench, pool) = (Bench::new(), pool());
    bench.put(packet(payload(&pool, 100)));
    let sent = bench.send();
    bench.take_frames();
    let bad = [bench.given[0], u64::MAX, u64::from(FRAMES) * FRAME as u64, sent[0].place, sent[0].place];
    bench.complete(&bad);
    bench.take_back();
    assert_eq!((bench.stats.foreign, bench.umem.spare()), (4, TX as usize));
    assert_eq!(bench.umem.filled(), RX, "the frame that was to be received into is still the kernel's");
}

#[test]
fn the_kernel_is_asked_until_all_is_sent_or_no_more_is() {
    let (mut bench, pool) = (Bench::new(), pool());
    (0..10).for_each(|_| bench.put(packet(payload(&pool, 100))));
    let Bench { transmitter, stats, tx, .. } = &mut bench;
    // Four a call, and the rest another time.
    let mut calls = 0;
    let waits = transmitter.hand_over(stats, || {
        calls += 1;
        tx.set_consumer(if calls == 1 { 4 } else { 8 });
        Err(Errno::AGAIN)
    });
    assert_eq!(waits, Ok(()));
    assert_eq!((calls, stats.sends, stats.waited), (3, 3, 1));
    assert!(transmitter.is_waiting());
    assert_eq!(transmitter.hand_over(stats, || Err(Errno::NETDOWN)), Err(Errno::NETDOWN));
    assert_eq!((stats.down, stats.sends), (1, 4));
    assert_eq!(transmitter.hand_over(stats, || Err(Errno::NXIO)), Err(Errno::NXIO));
    assert_eq!((stats.failed, transmitter.is_waiting()), (1, true));
    let sent = transmitter.hand_over(stats, || {
        tx.set_consumer(10);
        Ok(())
    });
    assert_eq!(sent, Ok(()));
    assert!(!transmitter.is_waiting());
    assert_eq!(transmitter.hand_over(stats, || unreachable!("there is nothing to send")), Ok(()));
}

/// Payload that lies in frames is sent from there, and its send completes when the kernel has given all back.
#[test]
fn what_lies_in_frames_is_sent_from_there() {
    let mut bench = Bench::with(9000, 17);
    bench.tx.set_flags(onecopy_sys::xdp::NEED_WAKEUP);
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut segment = Segment::default();
    let page = bench.umem.pool().alloc().unwrap();
    let place = page.place();
    let mut loan = lender.send(&mut segment, page, 0).unwrap();
    let first = packet(segment);
    let again = first.share();
    bench.put(first);
    // While it is under way it goes by a copy.
    bench.put(again);
    let entries = bench.send();
    let lens: Vec<(u32, u32)> = entries.iter().map(|entry| (entry.len, entry.options)).collect();
    assert_eq!(lens, [(34, CONTINUES), (4096, 0), (4096, CONTINUES), (34, 0)]);
    assert_eq!(entries[1].place, place);
    assert_eq!((bench.stats.copied_bytes, bench.stats.transmitted), (4096, 2));
    bench.complete(&[entries[1].place, entries[2].place, entries[3].place]);
    bench.take_back();
    loan = loan.try_take().expect_err("of its headers the kernel is not through");
    assert_eq!(bench.stats.by_reference, 0);
    bench.complete(&[entries[0].place]);
    bench.take_back();
    let (page, how) = loan.try_take().unwrap();
    // One of the two was copied.
    assert!(page.is_unique() && how.copied && !how.dropped, "{how:?}");
    assert_eq!((bench.umem.spare(), bench.stats.foreign, bench.stats.by_reference), (TX as usize, 0, 1));
    // Once more, and not copied at all; in a packet that has the same page twice it is.
    let mut segment = Segment::default();
    let loan = lender.send(&mut segment, page, 0).unwrap();
    bench.put(packet(segment));
    let entries = bench.send();
    bench.complete(&[entries[0].place, entries[1].place]);
    bench.take_back();
    let (page, how) = loan.try_take().unwrap();
    assert!(!how.copied && !how.dropped, "{how:?}");
    let mut twice = Chain::new();
    twice.append(Fragment::new(page.clone(), 0, 1000).unwrap()).unwrap();
    twice.append(Fragment::new(page, 2000, 1000).unwrap()).unwrap();
    bench.put(packet(twice));
    assert_eq!(bench.send().len(), 1);
    // So is what lies in pages of another pool, whatever numbers they have.
    bench.put(packet(payload(&pool(), 1000)));
    assert_eq!(bench.send().len(), 1);
    assert_eq!(bench.stats.by_reference, 2);
}

/// With more entries than the driver takes, what follows would be a packet of its own.
#[test]
fn a_packet_of_more_parts_than_the_driver_takes_is_copied() {
    let mut bench = Bench::with(9000, 3);
    bench.tx.set_flags(onecopy_sys::xdp::NEED_WAKEUP);
    for (parts, by_reference, lens) in
        [(2, 1, vec![(34, CONTINUES), (600, CONTINUES), (600, 0)]), (3, 1, vec![(1834, 0)])]
    {
        let mut chain = Chain::new();
        for _ in 0..parts {
            chain.append(Fragment::new(bench.umem.pool().alloc().unwrap(), 0, 600).unwrap()).unwrap();
        }
        bench.put(packet(chain));
        let entries = bench.send();
        let places: Vec<u64> = entries.iter().map(|entry| entry.place).collect();
        let got: Vec<(u32, u32)> = entries.iter().map(|entry| (entry.len, entry.options)).collect();
        assert_eq!(got, lens);
        bench.complete(&places);
        bench.take_back();
        assert_eq!((bench.stats.by_reference, bench.stats.foreign), (by_reference, 0));
    }
}

/// What was lent comes back by the same ring, and is no frame to copy into.
#[test]
fn payload_that_comes_back_makes_no_room() {
    let mut bench = Bench::with(1500, 2);
    bench.tx.set_flags(onecopy_sys::xdp::NEED_WAKEUP);
    let (mut heads, mut payloads) = (Vec::new(), Vec::new());
    for _ in 0..TX {
        assert!(bench.transmitter.room(&bench.umem) > 0 && !bench.transmitter.lacks_frames(&bench.umem));
        let page = bench.umem.pool().alloc().unwrap();
        let mut chain = Chain::new();
        chain.append(Fragment::new(page, 0, 600).unwrap()).unwrap();
        bench.put(packet(chain));
        let entries = bench.send();
        assert_eq!(entries.len(), 2);
        heads.push(entries[0].place);
        payloads.push(entries[1].place);
    }
    // All entries are free, and no frame: of that the descriptor does not tell.
    assert_eq!(bench.umem.spare(), 0);
    assert!(bench.transmitter.room(&bench.umem) == 0 && bench.transmitter.lacks_frames(&bench.umem));
    bench.complete(&payloads[..8]);
    assert!(bench.transmitter.room(&bench.umem) == 0 && bench.transmitter.lacks_frames(&bench.umem));
    bench.complete(&heads[..3]);
    assert_eq!(bench.transmitter.room(&bench.umem), 3);
    bench.put(packet(Chain::new()));
    assert_eq!((bench.stats.full, bench.stats.not_taken, bench.umem.spare()), (0, 0, 2));
    // Where it is the ring that is full, it does tell.
    let mut bench = Bench::new();
    (0..TX).for_each(|_| bench.put(packet(Chain::new())));
    assert!(bench.transmitter.room(&bench.umem) == 0 && !bench.transmitter.lacks_frames(&bench.umem));
}

/// Datagrams that the sender left to the device to cut apart are not one.
#[test]
fn udp_that_is_longer_than_the_mtu_is_dropped_and_counted() {
    let mut bench = Bench::new();
    for (version, protocol_at) in [(0x45, 23), (0x60, 20)] {
        for (protocol, len, comes) in [(17, 1500, true), (17, 1501, false), (6, 1501, true)] {
            let before = bench.stats;
            let filled = bench.umem.filled();
            let entry = bench.frame(14 + len, 0);
            let mut page = bench.umem.received(entry.place, entry.len).unwrap().0;
            let bytes = &mut page.bytes_mut().unwrap()[HEADROOM..][..14 + len];
            bytes.fill(0);
            bytes[12..15].copy_from_slice(if version == 0x45 { &[8, 0, 0x45] } else { &[0x86, 0xdd, 0x60] });
            bytes[protocol_at] = protocol;
            bench.umem.refill(page);
            bench.say(&[entry]);
            let what = format!("version {version:#x}, protocol {protocol}, {len} bytes");
            assert_eq!(bench.receive().is_some(), comes, "{what}");
            assert_eq!(bench.stats.trains - before.trains, u64::from(!comes), "{what}");
            assert!(comes || bench.umem.filled() == filled, "{what}");
        }
    }
    // In several frames, too.
    let entries = [bench.frame(1000, CONTINUES), bench.frame(600, 0)];
    let mut page = bench.umem.received(entries[0].place, 1000).unwrap().0;
    let bytes = &mut page.bytes_mut().unwrap()[HEADROOM..];
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[23] = 17;
    bench.umem.refill(page);
    bench.say(&entries);
    assert!(bench.receive().is_none());
    assert_eq!((bench.stats.trains, bench.stats.foreign), (3, 0));
}

proptest::proptest! {
    /// Whatever is written into the rings, at whatever time: no frame is in two hands, and the CPU looks at none that the kernel may write.
    #[test]
    fn no_words_of_the_kernel_s_put_a_frame_into_two_hands(
        steps in proptest::collection::vec(
            (0..9_u8, proptest::num::u64::ANY, 0..300_u32, proptest::num::u32::ANY), 1..200,
        ),
    ) {
        let (mut bench, pool) = (Bench::with(9000, 17), pool());
        bench.tx.set_flags(onecopy_sys::xdp::NEED_WAKEUP);
        let mut kept: Vec<Packet> = Vec::new();
        for (step, wide, near, word) in steps {
            // Places are often those of frames, and lengths those of packets.
            let place = if wide % 4 == 0 { wide } else { u64::from(near) * FRAME as u64 + (wide >> 8) % 300 };
            let len = if word % 4 == 0 { word } else { word % 4000 };
            match step {
                0 => bench.rx.set_entry(near as usize % RX as usize, Entry { place, len, options: word >> 31 }),
                1 => bench.rx.set_producer(if word % 8 == 0 { word } else { bench.rx.consumer().wrapping_add(near % 4) }),
                2 => bench.completion.set_place(near as usize % TX as usize, place),
                3 => bench.completion.set_producer(if word % 8 == 0 { word } else { bench.completion.consumer().wrapping_add(near % 4) }),
                4 => bench.tx.set_consumer(if word % 8 == 0 { word } else { bench.tx.producer() }),
                5 => bench.fill.set_consumer(if word % 8 == 0 { word } else { bench.fill.producer() }),
                6 => kept.extend(bench.receive()),
                7 => {
                    let packet = match kept.get(near as usize % 8) {
                        Some(received) => packet(received.share().into_parts().1),
                        None => packet(payload(&pool, near as usize)),
                    };
                    bench.put(packet);
                }
                _ => {
                    let Bench { transmitter, stats, .. } = &mut bench;
                    let _ = transmitter.hand_over(stats, || Err(Errno::AGAIN));
                    if near % 2 == 0 && !kept.is_empty() {
                        kept.swap_remove(near as usize % kept.len());
                    }
                }
            }
        }
        let mut frames: Vec<u64> = Vec::new();
        for packet in &kept {
            for part in packet.payload().payload().fragments() {
                if bench.umem.region().pool_id() == part.page().pool_id() {
                    proptest::prop_assert!(part.end() <= FRAME && !bench.umem.is_filled(part.page()));
                    frames.push(part.page().place());
                }
            }
        }
        frames.sort_unstable();
        let count = frames.len();
        frames.dedup();
        proptest::prop_assert_eq!(frames.len(), count);
        proptest::prop_assert_eq!(bench.umem.filled() as usize, bench.umem.count_filled());
        // And each of those that are nobody's is in the pool.
        kept.clear();
        let stats = bench.umem.pool().stats();
        let out = stats.in_flight - stats.in_cache - stats.in_ring;
        proptest::prop_assert_eq!(out, bench.umem.kept());
    }
}
