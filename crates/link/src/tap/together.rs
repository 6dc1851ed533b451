//! Packets that are handed over together, out of a device's memory.

use super::header::Header;
use super::stats::Stats;
use super::tests::{Made, bytes, capabilities, head, pool, train};
use super::transmit::{BATCH, Transmitter};
use crate::capabilities::Capabilities;
use crate::packet::{Gso, Packet, Train};
use crate::registered::Registered;
use onecopy_chain::{Chain, Checksum, Fragment};
use onecopy_pool::{DeviceId, DeviceMemory, Page};
use rustix::io::Errno;

/// A device's memory that is registered, and packets whose payload lies in it, which say their number; None, and said why, where it cannot be.
struct Many {
    memory: DeviceMemory,
    pages: Vec<Page>,
    registered: Option<Registered>,
}

impl Many {
    fn new() -> Option<Many> {
        let memory = DeviceMemory::opaque(32, DeviceId(1)).unwrap();
        let pages = memory.alloc_all().unwrap();
        memory.write_at(0, &[std::io::IoSlice::new(&bytes(32 * 4096))]).unwrap();
        let registered = Registered::new(&memory)
            .inspect_err(|why| println!("lacking: registered buffers of io_uring ({why})"))
            .ok();
        registered.is_some().then_some(Many { memory, pages, registered })
    }

    fn transmitter(&mut self, batch: usize) -> Transmitter {
        let mut transmitter = Transmitter::new(Capabilities { unreadable: true, ..capabilities() }, batch);
        transmitter.gather_from(self.registered.take().unwrap());
        transmitter
    }

    /// Number `n`, a super-segment.
    fn packet(&self, n: usize) -> Packet {
        let fragment = Fragment::new(self.pages[0].clone(), n * 100, 4000 + n).unwrap();
        let mut packet = Packet::new(&head(0, 3, 4000 + n), Chain::from(fragment)).unwrap();
        packet.set_checksum(Checksum::Partial { start: 34, offset: 16 }).unwrap();
        packet.set_gso(Some(Gso { train: Train::Tcp, size: 1448, network: 14 }));
        packet
    }

    fn all_are_home(&self) -> bool {
        self.pages.iter().all(Page::is_unique)
    }
}

/// The numbers of packets that went whole, in the order in which they did.
fn numbers(device: &Made) -> Vec<usize> {
    let whole = device.written.iter().filter(|(header, _)| header.gso_type != 0);
    whole.map(|(_, bytes)| bytes.len() - 66 - 4000).collect()
}

#[test]
fn packets_that_are_transmitted_at_once_are_gathered_by_one_call_and_in_order() {
    let Some(mut many) = Many::new() else { return };
    let (mut transmitter, mut device, mut stats) = (many.transmitter(BATCH), Made::new(), Stats::default());
    device.gathers = true;
    for n in 0..11 {
        transmitter.transmit_more(&mut device, &mut stats, many.packet(n));
        assert_eq!(transmitter.room(), usize::MAX);
    }
    assert_eq!((numbers(&device), stats.transmitted), ((0..8).collect(), 8), "as many as a call takes");
    transmitter.hand_over(&mut device, &mut stats);
    assert!(many.all_are_home());
    assert_eq!(device.gathered, [8, 3]);
    // One of the host's leaves behind those that were transmitted before it, and one that is transmitted by itself at once.
    let host = pool(8);
    transmitter.transmit_more(&mut device, &mut stats, many.packet(11));
    transmitter.transmit_more(&mut device, &mut stats, train(&host, 4012));
    transmitter.transmit_more(&mut device, &mut stats, many.packet(13));
    transmitter.transmit(&mut device, &mut stats, many.packet(14));
    assert_eq!(numbers(&device), (0..15).collect::<Vec<_>>());
    assert_eq!((&device.gathered[2..], stats.gathers), (&[1, 2][..], 4));
    // And whoever looks for packets has them leave.
    transmitter.transmit_more(&mut device, &mut stats, many.packet(15));
    transmitter.flush(&mut device, &mut stats);
    assert_eq!((numbers(&device).len(), stats.transmitted, stats.waited), (16, 16, 0));
    let payload: u64 = (0..16).filter(|n| *n != 12).map(|n| 4000 + n).sum();
    assert_eq!((stats.gathered_bytes, stats.staged_bytes), (payload, 0));
    // Those whose memory is no longer gathered from go by way of the host's.
    transmitter.transmit_more(&mut device, &mut stats, many.packet(16));
    transmitter.gather_no_more(many.memory.id());
    assert_eq!(transmitter.room(), 0);
    transmitter.flush(&mut device, &mut stats);
    assert_eq!((numbers(&device).last(), stats.staged_bytes), (Some(&16), 4016));
    assert!(many.all_are_home());
}

#[test]
fn of_packets_that_are_handed_over_together_each_one_s_failure_is_its_own() {
    let trial = |says: &[(usize, Errno)], refuses: fn(&Header) -> bool| {
        let mut many = Many::new()?;
        let (mut transmitter, mut device, mut stats) =
            (many.transmitter(BATCH), Made::new(), Stats::default());
        (device.gathers, device.refuses) = (true, refuses);
        let of = |n: usize| says.iter().find(|(number, _)| *number == n).map(|(_, errno)| *errno);
        device.says = (0..5).map(of).collect();
        (0..5).for_each(|n| transmitter.transmit_more(&mut device, &mut stats, many.packet(n)));
        transmitter.hand_over(&mut device, &mut stats);
        Some((many, transmitter, device, stats))
    };
    let whole = |_: &Header| false;
    // The link was down for a moment: it is tried again by itself, and goes.
    for errno in [Errno::IO, Errno::NOBUFS, Errno::NOMEM] {
        let Some((many, transmitter, device, stats)) = trial(&[(1, errno), (3, errno)], whole) else {
            return;
        };
        assert_eq!((numbers(&device), stats.transmitted), (vec![0, 2, 4, 1, 3], 5), "{errno:?}");
        assert_eq!((device.gathered, transmitter.room()), (vec![5, 1, 1], usize::MAX));
        assert!(many.all_are_home());
    }
    // There is no room: it waits, with its page, and nothing is tried before somebody asks.
    let Some((many, mut transmitter, mut device, mut stats)) =
        trial(&[(3, Errno::AGAIN), (4, Errno::AGAIN)], whole)
    else {
        return;
    };
    assert_eq!((numbers(&device), transmitter.room(), stats.waited), (vec![0, 1, 2], 0, 1));
    transmitter.hand_over(&mut device, &mut stats);
    assert!(!many.all_are_home());
    assert_eq!(device.gathered, [5]);
    transmitter.transmit_more(&mut device, &mut stats, many.packet(5));
    transmitter.hand_over(&mut device, &mut stats);
    assert_eq!((numbers(&device), transmitter.room()), (vec![0, 1, 2, 3, 4, 5], usize::MAX));
    assert!(many.all_are_home());
    // The kernel does not segment after all: all five go in parts, in order, once each.
    let Some((many, transmitter, device, stats)) = trial(&[], |header| header.gso_type != 0) else { return };
    assert_eq!((stats.cut, stats.offload_refused, transmitter.room()), (5, 1, usize::MAX));
    assert!(!transmitter.capabilities().tcp_segmentation);
    let payload: Vec<u8> = device.written.iter().flat_map(|(_, bytes)| bytes[66..].to_vec()).collect();
    let data = bytes(32 * 4096);
    let wanted: Vec<u8> = (0..5).flat_map(|n| data[n * 100..][..4000 + n].to_vec()).collect();
    assert!(payload == wanted);
    assert!(many.all_are_home());
}
