//! Under the kernel's TCP: what is sent is taken out of memory that no process maps, by the send's own copy.

use crate::ends::is_told;
use crate::tx::{filled, part, range};
use crate::world::{World, errno, pattern};
use onecopy_net::devmem::{Path, TxBinding};
use onecopy_net::tcp::Stream;
use onecopy_net::udp::Envelope;
use onecopy_net::zerocopy::{Allowance, Sent};
use onecopy_net::{Builder, SendFlags, Stack, Transport, udp};
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_testing::alone;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{IoSlice, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const EBUSY: i32 = 16;
const EFAULT: i32 = 14;
const ENODEV: i32 = 19;

struct Kernel {
    stack: Stack,
    memory: DeviceMemory,
    /// What lies there.
    data: Vec<u8>,
    listener: TcpListener,
    at: SocketAddr,
}

impl Kernel {
    /// None where the kernel cannot do it.
    fn new() -> Option<(Kernel, TxBinding)> {
        Kernel::of(Stack::builder())
    }

    fn of(builder: Builder) -> Option<(Kernel, TxBinding)> {
        let stack = match builder.transport(Transport::Kernel).build() {
            Ok(stack) => stack,
            Err(error) => {
                println!("lacking: io_uring ({error})");
                return None;
            }
        };
        let (memory, data) = filled();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        match stack.bind_tx(&memory) {
            Ok(binding) => Some((Kernel { stack, memory, data, listener, at }, binding)),
            Err(error) => {
                assert_eq!(error.raw_os_error(), 95, "{error}");
                println!("lacking: device memory by io_uring ({error})");
                None
            }
        }
    }

    /// The sender's end first.
    fn connect(&self) -> (Stream, TcpStream) {
        let sender = Stream::connect(&self.stack, self.at).unwrap();
        let receiver = self.listener.accept().unwrap().0;
        receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        sender.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        (sender, receiver)
    }

    fn gathered(&self) -> u64 {
        let counters = self.stack.link_counters();
        counters.into_iter().find(|(name, _)| *name == "gathered_bytes").unwrap().1
    }

    /// The same with buffers of the kernel's that hold less than a quarter of what waits before them, and 256 KiB that wait: the peer has to read before all
    /// of that is with the kernel.
    fn stuck(&self, tx: &TxBinding) -> (Stream, TcpStream, Sent) {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.listener, 8192).unwrap();
        let (sender, receiver) = self.connect();
        sender.set(|settings| settings.send_buffer = Some(16_384)).unwrap();
        let sent = sender.send_device_with_flags(tx, &[range(0, WAITING)], SendFlags::DONTWAIT).unwrap();
        assert_eq!(sent.len() as u64, WAITING);
        (sender, receiver, sent)
    }
}

/// What a connection keeps for the kernel.
const WAITING: u64 = 256 << 10;

fn received(mut receiver: &TcpStream, len: usize) -> Vec<u8> {
    let mut all = vec![0; len];
    receiver.read_exact(&mut all).unwrap();
    all
}

#[test]
fn bytes_are_taken_from_where_they_lie_by_the_sends_own_copy() {
    let Some((kernel, tx)) = Kernel::new() else { return };
    assert_eq!((tx.path(), tx.id()), (Path::Direct(None), 1));
    let (sender, receiver) = kernel.connect();
    let ranges = [range(0, 1), range(4095, 2), range(5000, 3), range(8192, 300_000), range(77, 1_500_001)];
    let whole: Vec<u8> = ranges.iter().flat_map(|range| part(&kernel.data, *range).to_vec()).collect();
    std::thread::scope(|scope| {
        let got = scope.spawn(|| received(&receiver, 2 * whole.len()));
        // Each by itself, and all as the vector of one send.
        for range in ranges {
            let (chain, how) = sender.send_device(&tx, &[range]).unwrap().wait();
            assert_eq!(
                (chain.len() as u64, how.copied, how.unknown, how.dropped),
                (range.len, true, false, false)
            );
        }
        let sent = sender.send_device(&tx, &ranges).unwrap();
        assert_eq!(sent.len(), whole.len());
        assert!(!sent.wait().1.dropped);
        let got = got.join().unwrap();
        assert!(got[..whole.len()] == whole && got[whole.len()..] == whole);
    });
    let (stats, all) = (sender.stats(), 2 * whole.len() as u64);
    assert_eq!((stats.sent, stats.referenced, stats.user_copied_in, stats.kernel_copied), (all, all, 0, all));
    assert_eq!((kernel.gathered(), kernel.memory.copied().out), (all, 0), "no copy of the device's");
    drop((tx, sender));
    assert_eq!(kernel.memory.free(), kernel.memory.len());
}

#[test]
fn many_small_pieces_and_the_hosts_bytes_between_them_arrive_in_order() {
    let Some((kernel, tx)) = Kernel::new() else { return };
    let second = DeviceMemory::opaque(16, DeviceId(4)).unwrap();
    let other = pattern(second.len() as usize);
    second.write_at(0, &[IoSlice::new(&other)]).unwrap();
    let second = kernel.stack.bind_tx(&second).unwrap();
    assert_eq!(second.id(), 2);
    let (sender, mut receiver) = kernel.connect();
    let mut expected = Vec::new();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut all = Vec::new();
            receiver.read_to_end(&mut all).unwrap();
            all
        });
        for round in 0..200_u64 {
            // From one memory, from the other, and from the host's.
            let range = range(round * 37, 1 + round * round % 9000);
            expected.extend_from_slice(part(&kernel.data, range));
            drop(sender.send_device(&tx, &[range]).unwrap());
            expected.extend_from_slice(part(&other, range));
            drop(sender.send_device(&second, &[range]).unwrap());
            let host = pattern(1 + (round * 131 % 3000) as usize);
            expected.extend_from_slice(&host);
            assert_eq!(sender.send(&host).unwrap(), host.len());
        }
        // More pieces than one call of the kernel's takes, none beside the other.
        let ranges: Vec<_> = (0..5000).map(|n| range(n * 7 % 60_000, 3)).collect();
        expected.extend(ranges.iter().flat_map(|range| part(&kernel.data, *range).to_vec()));
        drop(sender.send_device(&tx, &ranges).unwrap());
        sender.shutdown(Shutdown::Write).unwrap();
        assert!(reader.join().unwrap() == expected);
    });
}

#[test]
fn each_send_is_told_of_once_and_memory_outlives_its_binding_while_it_is_under_way() {
    let Some((kernel, tx)) = Kernel::new() else { return };
    // No page of the host's is kept, so none is charged.
    kernel.stack.set_zerocopy_allowance(Allowance { pinned: Some(0), ..kernel.stack.zerocopy_allowance() });
    let (sender, receiver, first) = kernel.stuck(&tx);
    let numbered: Vec<_> = (0..10)
        .map(|n| sender.send_device_numbered(&tx, &[range(n * 1000, 999)], SendFlags::empty()).unwrap())
        .collect();
    assert!(numbered.iter().map(|sent| sent.number).eq((1..11).map(Some)));
    let chain = tx.chain(&[range(0, 1)]).unwrap();
    drop(tx);
    // It is bound no more; and not free, as long as some of it is under way.
    let not = sender.send_zerocopy(chain).unwrap_err();
    assert_eq!((not.chain.len(), errno::<()>(Err(not.error))), (1, EFAULT));
    drop(not.chain);
    assert_eq!(errno(kernel.stack.bind_tx(&kernel.memory)), EBUSY);
    assert!(received(&receiver, WAITING as usize) == kernel.data[..WAITING as usize]);
    assert!(!first.wait().1.dropped);
    let expected: Vec<u8> = (0..10).flat_map(|n| part(&kernel.data, range(n * 1000, 999)).to_vec()).collect();
    assert!(received(&receiver, expected.len()) == expected);
    let mut next = 1;
    while next <= 10 {
        let notice = sender.wait_notice(Some(Duration::from_secs(60))).unwrap().unwrap();
        assert_eq!((notice.lo, notice.copied), (next, true));
        next = notice.hi + 1;
    }
    drop(numbered);
    assert_eq!(kernel.memory.free(), kernel.memory.len());
    // So it can be bound again, and sent from.
    let tx = kernel.stack.bind_tx(&kernel.memory).unwrap();
    drop(sender.send_device(&tx, &[range(5, 5)]).unwrap());
    assert_eq!(received(&receiver, 5), part(&kernel.data, range(5, 5)));
}

#[test]
fn what_cannot_be_has_the_errno_of_a_stack_of_ones_own_and_takes_nothing() {
    let Some((kernel, tx)) = Kernel::new() else { return };
    let (sender, receiver) = kernel.connect();
    let len = kernel.memory.len();
    for bad in [range(len, 1), range(len - 1, 2), range(u64::MAX, 2), range(0, u64::MAX)] {
        assert_eq!(errno(sender.send_device(&tx, &[range(0, 5), bad])), EFAULT, "{bad:?}");
    }
    // Of another stack, either way.
    let world = World::new(64);
    let (own, _) = world.connect();
    let foreign = world.near.bind_tx(&world.memory).unwrap();
    assert_eq!(errno(sender.send_device(&foreign, &[range(0, 5)])), ENODEV);
    assert_eq!(errno(own.send_device(&tx, &[range(0, 5)])), ENODEV);
    let refused = || kernel.stack.zerocopy_counts().refused_unreadable;
    let before = refused();
    let not = sender.send_zerocopy(foreign.chain(&[range(0, 5)]).unwrap()).unwrap_err();
    assert_eq!((errno::<()>(Err(not.error)), refused() - before), (EFAULT, 1));
    assert_eq!(errno(sender.send_chain(foreign.chain(&[range(0, 5)]).unwrap())), EFAULT);
    // Datagrams take none.
    let datagrams = udp::Socket::bind(&kernel.stack, "127.0.0.1:0".parse().unwrap()).unwrap();
    datagrams.connect(datagrams.local_addr().unwrap()).unwrap();
    let not = datagrams.send_zerocopy(tx.chain(&[range(0, 5)]).unwrap(), &Envelope::CONNECTED).unwrap_err();
    assert_eq!(errno::<()>(Err(not.error)), EFAULT);
    // Bound, to whatever; more than can be registered.
    assert_eq!(errno(kernel.stack.bind_tx(&kernel.memory)), EBUSY);
    kernel.stack.set_queues(2).unwrap();
    assert_eq!(errno(kernel.stack.bind_rx(&kernel.memory, &[1])), EBUSY);
    let landing = DeviceMemory::opaque(64, DeviceId(5)).unwrap();
    let rx = kernel.stack.bind_rx(&landing, &[1]).unwrap();
    assert_eq!((rx.id(), errno(kernel.stack.bind_tx(&landing))), (2, EBUSY));
    let large = DeviceMemory::opaque(1 << 18, DeviceId(5)).unwrap();
    assert_eq!(errno(kernel.stack.bind_tx(&large)), 95, "more than 1 GiB");
    // Nothing at all is sent of none.
    assert_eq!(sender.send_device(&tx, &[]).unwrap().len(), 0);
    // All that was refused left no byte behind.
    drop(sender.send_device(&tx, &[range(len - 7, 7)]).unwrap());
    assert!(received(&receiver, 7) == kernel.data[kernel.data.len() - 7..]);
}

#[test]
fn a_reset_tells_that_bytes_were_dropped_and_frees_them() {
    let Some((kernel, tx)) = Kernel::new() else { return };
    let (sender, receiver, sent) = kernel.stuck(&tx);
    rustix::net::sockopt::set_socket_linger(&receiver, Some(Duration::ZERO)).unwrap();
    drop(receiver);
    let (chain, how) = sent.wait();
    assert!(how.dropped);
    drop((chain, sender, tx));
    assert_eq!(kernel.memory.free(), kernel.memory.len());
}

#[test]
fn who_waits_for_room_hears_of_it() {
    let Some((kernel, tx)) = Kernel::new() else { return };
    let (sender, receiver, first) = kernel.stuck(&tx);
    const ALL: usize = 4 << 20;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| received(&receiver, ALL));
        let mut sent = first.len();
        while sent < ALL {
            let at = sent as u64 % kernel.memory.len();
            let len = (kernel.memory.len() - at).min((ALL - sent) as u64);
            match sender.send_device_with_flags(&tx, &[range(at, len)], SendFlags::DONTWAIT) {
                Ok(some) => sent += some.len(),
                Err(error) => {
                    assert!(error.would_block(), "{error}");
                    let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
                    assert_eq!(poll(&mut [PollFd::new(&sender, PollFlags::OUT)], Some(&limit)), Ok(1));
                }
            }
        }
        let got = reader.join().unwrap();
        assert!(got.chunks(kernel.data.len()).all(|chunk| chunk == &kernel.data[..chunk.len()]));
    });
}

#[test]
fn what_is_under_way_when_socket_and_binding_go_is_delivered() {
    let Some((kernel, tx)) = Kernel::new() else { return };
    let (sender, mut receiver, sent) = kernel.stuck(&tx);
    drop((sender, tx));
    let mut all = Vec::new();
    receiver.read_to_end(&mut all).unwrap();
    assert!(all == kernel.data[..WAITING as usize]);
    let (chain, how) = sent.wait();
    assert!(how.copied && !how.dropped);
    drop(chain);
    assert_eq!(kernel.memory.free(), kernel.memory.len());
}

#[test]
fn a_task_that_waits_when_the_stack_ends_hears_of_it() {
    let Some((kernel, tx)) = Kernel::of(Stack::builder().linger(Duration::ZERO)) else { return };
    let (sender, receiver, sent) = kernel.stuck(&tx);
    is_told(sent, || drop((sender, kernel.stack)));
    drop((tx, receiver));
    assert_eq!(kernel.memory.free(), kernel.memory.len());
}

#[test]
fn a_peer_that_is_gone_is_an_error_and_no_signal() {
    alone!();
    let Some((kernel, tx)) = Kernel::new() else { return };
    let (told, tell) = UnixStream::pair().unwrap();
    told.set_nonblocking(true).unwrap();
    onecopy_sys::signal::catch(rustix::process::Signal::PIPE.as_raw(), OwnedFd::from(tell), true).unwrap();
    let (sender, receiver) = kernel.connect();
    rustix::net::sockopt::set_socket_linger(&receiver, Some(Duration::ZERO)).unwrap();
    drop(receiver);
    let mut failed = Vec::new();
    while !failed.contains(&32) {
        match sender.send_device(&tx, &[range(0, 100)]) {
            Ok(sent) => drop(sent.wait()),
            Err(error) => failed.push(error.raw_os_error()),
        }
    }
    assert!(failed.iter().all(|errno| [32, 104].contains(errno)), "{failed:?}");
    assert_eq!((&told).read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
