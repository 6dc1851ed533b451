//! Bytes of a device's memory are sent from where they lie.

use crate::world::{World, errno, pattern};
use onecopy_link::{Capabilities, Link, NotRegistered, Packet, Tap};
use onecopy_net::devmem::{Binding, Path, TxBinding, TxRange, Why};
use onecopy_net::tcp::Stream;
use onecopy_net::zerocopy::Allowance;
use onecopy_net::{Port, SendFlags, Stack};
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_uring::Unmapped;
use std::collections::HashMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};

const PAGES: u32 = 512;

/// Memory full of a pattern, and the pattern.
pub fn filled() -> (DeviceMemory, Vec<u8>) {
    let memory = DeviceMemory::opaque(PAGES, DeviceId(3)).unwrap();
    let data = pattern(memory.len() as usize);
    memory.write_at(0, &[IoSlice::new(&data)]).unwrap();
    (memory, data)
}

/// A link that leaves all sums to whoever stands above it.
pub struct SumsNothing(pub Tap);

impl Link for SumsNothing {
    fn capabilities(&self) -> Capabilities {
        Capabilities { checksum: false, tcp_segmentation: false, ..self.0.capabilities() }
    }
    fn room(&self, now: u64) -> usize {
        self.0.room(now)
    }
    fn transmit(&mut self, now: u64, packet: Packet) {
        self.0.transmit(now, packet);
    }
    fn receive(&mut self, now: u64) -> Option<Packet> {
        self.0.receive(now)
    }
    fn deadline(&self) -> Option<u64> {
        self.0.deadline()
    }
}

impl AsFd for SumsNothing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Port for SumsNothing {}

pub fn range(offset: u64, len: u64) -> TxRange {
    TxRange { offset, len }
}

pub fn part(data: &[u8], range: TxRange) -> &[u8] {
    &data[range.offset as usize..][..range.len as usize]
}

/// Receives `len` bytes, wherever they land.
fn received(world: &World, stream: &Stream, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let frags = stream.recv_frags(len - all.len()).unwrap();
        assert!(!frags.is_empty(), "{} of {len}", all.len());
        all.extend(world.bytes(&frags));
    }
    all
}

#[test]
fn from_one_devices_memory_to_anothers() {
    for world in World::each(PAGES) {
        let binding = world.bind();
        let (memory, data) = filled();
        let tx = world.near.bind_tx(&memory).unwrap();
        let (sender, receiver) = world.connect();
        let lengths = [range(0, 1), range(4095, 2), range(5000, 3), range(8192, 300_000), range(77, 100_001)];
        let whole: Vec<u8> = lengths.iter().flat_map(|range| part(&data, *range).to_vec()).collect();
        std::thread::scope(|scope| {
            let got = scope.spawn(|| received(&world, &receiver, 2 * whole.len()));
            // Each by itself, and all as the vector of one send.
            for range in lengths {
                let (chain, how) = sender.send_device(&tx, &[range]).unwrap().wait();
                assert_eq!((chain.len() as u64, how.copied, how.dropped), (range.len, true, false));
            }
            let sent = sender.send_device(&tx, &lengths).unwrap();
            assert_eq!(sent.len(), whole.len());
            assert!(!sent.wait().1.dropped);
            let got = got.join().unwrap();
            assert!(got[..whole.len()] == whole && got[whole.len()..] == whole);
        });
        let (sent, landed) = (sender.stats(), receiver.stats());
        let all = 2 * whole.len() as u64;
        assert_eq!((sent.sent, sent.referenced, sent.user_copied_in), (all, all, 0));
        assert_eq!((landed.received, landed.user_copied_out), (all, 0));
        match world.is_kernels() {
            true => {
                // By the kernel alone: out of one memory, and into the other.
                assert_eq!((sent.kernel_copied, landed.kernel_copied), (all, all));
                assert_eq!((memory.copied().out, world.memory.copied().into), (0, 0));
                assert_eq!((tx.path(), binding.path()), (Path::Direct(None), Path::Direct(None)));
            }
            false => copied(&world, (&sender, &tx, &memory), &binding, all),
        }
        drop((tx, binding, sender, receiver));
        assert_eq!(memory.free(), memory.len());
    }
}

/// Who copied what, over the cable.
fn copied(
    world: &World,
    (sender, tx, memory): (&Stream, &TxBinding, &DeviceMemory),
    binding: &Binding,
    all: u64,
) {
    let counters: HashMap<_, _> = world.near.link_counters().into_iter().collect();
    let (staged, gathered) = (counters["staged_bytes"], counters["gathered_bytes"]);
    // By the cable, and before that out of the device, if the kernel does not take it from there itself.
    let copies = if gathered > 0 { 1 } else { 2 };
    assert_eq!(sender.stats().kernel_copied, copies * all);
    // What was sent came out once, or again where it was sent again; what the device says of its copies.
    assert!(staged + gathered >= all && (staged == 0 || gathered == 0), "{counters:?}");
    assert_eq!(staged, memory.copied().out);
    let lands = Unmapped::new(&*memory.file().unwrap(), memory.len() as usize);
    assert_eq!(gathered > 0, lands.is_ok(), "{lands:?}");
    for path in [tx.path(), binding.path()] {
        match lands {
            Ok(_) => assert_eq!(path, Path::Direct(None)),
            Err(refused) => {
                assert_eq!(path, Path::Staged(Why::Memory(NotRegistered::Refused(refused))));
                assert!(path.to_string().ends_with(&refused.to_string()), "{path}");
            }
        }
    }
}

#[test]
fn whoever_receives_into_buffers_sees_bytes_like_any_others_and_in_order() {
    for world in World::each(PAGES) {
        let (memory, data) = filled();
        let tx = world.near.bind_tx(&memory).unwrap();
        let (sender, receiver) = world.connect();
        let mut expected = Vec::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut all, mut buffer) = (Vec::new(), vec![0; 10_000]);
                loop {
                    match receiver.recv(&mut buffer).unwrap() {
                        0 => break all,
                        n => all.extend_from_slice(&buffer[..n]),
                    }
                }
            });
            for round in 0..200_u64 {
                // Host's memory between the device's, small and large: they never are one segment.
                let range = range(round * 37, 1 + round * round % 9000);
                expected.extend_from_slice(part(&data, range));
                let sent = sender.send_device(&tx, &[range]).unwrap();
                let host = pattern(1 + (round * 131 % 3000) as usize);
                expected.extend_from_slice(&host);
                assert_eq!(sender.send(&host).unwrap(), host.len());
                drop(sent);
            }
            sender.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(reader.join().unwrap() == expected);
        });
    }
}

#[test]
fn each_send_is_told_of_once_and_memory_outlives_its_binding_while_it_is_under_way() {
    let world = World::new(PAGES);
    let (memory, data) = filled();
    let tx = world.near.bind_tx(&memory).unwrap();
    let (sender, receiver) = world.connect();
    // No page of the host's is kept, so none is charged.
    world.near.set_zerocopy_allowance(Allowance { pinned: Some(0), ..world.near.zerocopy_allowance() });
    let numbered: Vec<_> = (0..10)
        .map(|n| sender.send_device_numbered(&tx, &[range(n * 1000, 999)], SendFlags::empty()).unwrap())
        .collect();
    assert!(numbered.iter().map(|sent| sent.number).eq((0..10).map(Some)));
    // Before any of it was received.
    drop(tx);
    let expected: Vec<u8> = (0..10).flat_map(|n| part(&data, range(n * 1000, 999)).to_vec()).collect();
    assert!(received(&world, &receiver, expected.len()) == expected);
    let mut next = 0;
    while next < 10 {
        let notice = sender.wait_notice(Some(std::time::Duration::from_secs(60))).unwrap().unwrap();
        assert_eq!(notice.lo, next);
        next = notice.hi + 1;
    }
    drop(numbered);
    assert_eq!(memory.free(), memory.len());
    // So it can be bound again.
    drop(world.near.bind_tx(&memory).unwrap());
}

#[test]
fn what_cannot_be_has_the_kernels_errno_and_takes_nothing() {
    const EBUSY: i32 = 16;
    const EFAULT: i32 = 14;
    const ENODEV: i32 = 19;
    const EOPNOTSUPP: i32 = 95;
    let world = World::new(PAGES);
    let (memory, data) = filled();
    let tx = world.near.bind_tx(&memory).unwrap();
    let (sender, receiver) = world.connect();
    let len = memory.len();
    for bad in [range(len, 1), range(len - 1, 2), range(u64::MAX, 2), range(0, u64::MAX)] {
        assert_eq!(errno(sender.send_device(&tx, &[range(0, 5), bad])), EFAULT, "{bad:?}");
    }
    // Of another stack: the receiver's.
    assert_eq!(errno(receiver.send_device(&tx, &[range(0, 5)])), ENODEV);
    // Bound, to whatever.
    assert_eq!(errno(world.near.bind_tx(&memory)), EBUSY);
    assert_eq!(errno(world.near.bind_rx(&memory, &[0])), EBUSY);
    assert_eq!(errno(world.far.bind_tx(&memory)), EBUSY);
    let landing = world.bind();
    assert_eq!(errno(world.far.bind_tx(&world.memory)), EBUSY);
    let taken = DeviceMemory::opaque(4, DeviceId(1)).unwrap();
    let one = taken.alloc(4096).unwrap();
    assert_eq!(errno(world.near.bind_tx(&taken)), EBUSY);
    drop(one);
    drop(world.near.bind_tx(&taken).unwrap());
    // Nothing at all is sent of none.
    assert_eq!(sender.send_device(&tx, &[]).unwrap().len(), 0);
    // All that was refused left no byte behind.
    drop(sender.send_device(&tx, &[range(len - 7, 7)]).unwrap());
    assert!(received(&world, &receiver, 7) == data[data.len() - 7..]);
    drop(landing);
    // A link that finishes no checksums.
    let (near, _far) = Tap::cable(1500).unwrap();
    let stack = Stack::builder().link(SumsNothing(near)).address("10.0.0.1/24").build().unwrap();
    drop(tx);
    assert_eq!(errno(stack.bind_tx(&memory)), EOPNOTSUPP);
}

#[test]
fn a_reset_tells_that_bytes_were_dropped_and_frees_them() {
    let world = World::new(PAGES);
    let (memory, _) = filled();
    let tx = world.near.bind_tx(&memory).unwrap();
    let (sender, receiver) = world.connect();
    let all = [range(0, memory.len())];
    let sent = sender.send_device_with_flags(&tx, &all, SendFlags::DONTWAIT).unwrap();
    assert!(sent.len() < memory.len() as usize, "it took what there was room for");
    receiver.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(receiver);
    let (chain, how) = sent.wait();
    assert!(how.dropped);
    drop((chain, tx));
    drop(sender);
    assert_eq!(memory.free(), memory.len());
}
