//! A stack ends while programs still have what is bound to it, and sends of it are under way.

use crate::tx::{filled, range};
use crate::world::{pattern, server};
use onecopy_chain::{Chain, Fragment};
use onecopy_link::Tap;
use onecopy_net::devmem::{Path, Why};
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::zerocopy::{Allowance, Sent, Small};
use onecopy_net::{Driver, Stack};
use onecopy_pool::provider::Heap;
use onecopy_pool::{DeviceId, DeviceMemory, PagePool, PoolConfig};
use onecopy_sync::atomic::{AtomicU32, Ordering};
use onecopy_testing::{begun, wait_asleep};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Two stacks and a connection between them. Nobody drives the far one any more, so that nothing is acknowledged.
struct World {
    near: Stack,
    stream: Stream,
    _far: (Stack, Stream),
}

impl World {
    /// The near stack does not wait when it ends.
    fn new(driver: Driver) -> World {
        let (a, b) = Tap::cable(1500).unwrap();
        let near = Stack::builder().link(a).address("10.0.0.1/24").driver(driver).linger(Duration::ZERO);
        let near = near.zerocopy(Allowance { small: Small::Below(0), ..Default::default() }).build().unwrap();
        let far =
            Stack::builder().link(b).address("10.0.0.2/24").driver(Driver::Caller).linger(Duration::ZERO);
        let far = far.build().unwrap();
        let listener = Listener::bind(&far, server()).unwrap();
        let (stream, peer) = std::thread::scope(|scope| {
            let stream = scope.spawn(|| Stream::connect(&near, server()).unwrap());
            let peer = listener.accept().unwrap().0;
            // (It may be over with its handshake before the other side is.)
            while !stream.is_finished() {
                far.drive(Duration::from_millis(1)).unwrap();
            }
            (stream.join().unwrap(), peer)
        });
        World { near, stream, _far: (far, peer) }
    }

    /// A send of the host's pages.
    fn send(&self) -> Sent {
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        let mut page = pool.alloc().unwrap();
        page.bytes_mut().unwrap()[..1000].copy_from_slice(&pattern(1000));
        self.stream.send_zerocopy(Chain::from(Fragment::new(page, 0, 1000).unwrap())).unwrap()
    }

    /// The stack ends: with its last handle, as its documentation says.
    fn end(self) -> (Stack, Stream) {
        drop(self.stream);
        drop(self.near);
        self._far
    }
}

/// Counts.
#[derive(Default)]
struct Told(AtomicU32);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A task that waits for `sent` is woken by `end`, and hears that the bytes were dropped.
pub fn is_told(mut sent: Sent, end: impl FnOnce()) {
    let told = Arc::new(Told::default());
    let waker = Waker::from(Arc::clone(&told));
    let mut poll = || Pin::new(&mut sent).poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    end();
    assert_eq!(told.0.load(Ordering::SeqCst), 1);
    let Poll::Ready((chain, how)) = poll() else { panic!("nobody is there any more to bring it to its end") };
    assert!(how.dropped && !chain.is_empty());
}

#[test]
fn a_task_that_waits_for_a_devices_bytes_hears_of_it_while_they_are_bound() {
    for driver in [Driver::Thread, Driver::Caller] {
        let (world, (memory, _)) = (World::new(driver), filled());
        let tx = world.near.bind_tx(&memory).unwrap();
        let sent = world.stream.send_device(&tx, &[range(0, 5000)]).unwrap();
        let mut far = None;
        is_told(sent, || far = Some(world.end()));
        // It says what it is, and gives chains that no stack takes.
        assert!(matches!(tx.path(), Path::Staged(Why::GivenUp | Why::Memory(_))));
        assert_eq!((tx.id(), tx.chain(&[range(1, 2)]).unwrap().len()), (1, 2));
        let other = World::new(driver);
        assert_eq!(other.stream.send_device(&tx, &[range(0, 1)]).unwrap_err().raw_os_error(), 19);
        drop(tx);
        assert_eq!(memory.free(), memory.len());
    }
}

#[test]
fn so_does_one_that_waits_for_the_hosts_while_others_are_bound() {
    for driver in [Driver::Thread, Driver::Caller] {
        let world = World::new(driver);
        let memory = DeviceMemory::opaque(64, DeviceId(7)).unwrap();
        world.near.set_queues(2).unwrap();
        let binding = world.near.bind_rx(&memory, &[1]).unwrap();
        is_told(world.send(), || drop(world.end()));
        assert!(matches!(binding.path(), Path::Staged(Why::GivenUp | Why::Memory(_))));
        assert_eq!((binding.event(), binding.promised(), binding.narrowed()), (None, 0, 0));
        drop(binding);
        // Bound no more: another stack may.
        let other = World::new(driver);
        drop(other.near.bind_tx(&memory).unwrap());
    }
}

#[test]
fn so_does_one_while_a_program_has_tokens() {
    let world = World::new(Driver::Thread);
    let memory = DeviceMemory::opaque(64, DeviceId(7)).unwrap();
    world.near.set_queues(2).unwrap();
    world.near.steer(world.stream.local_addr().unwrap(), 1).unwrap();
    let binding = world.near.bind_rx(&memory, &[1]).unwrap();
    // A send leaves by itself; the acknowledgement waits for nobody.
    world._far.1.send(b"to the device").unwrap();
    let mut tokens = world.stream.recv_frags(100).unwrap().into_tokens();
    let token = tokens.pop().unwrap();
    let hold = token.hold().unwrap();
    is_told(world.send(), || drop(world.end()));
    let mut bytes = [0; 13];
    hold.copy_out(&mut bytes).unwrap();
    assert_eq!(&bytes, b"to the device");
    drop((token, hold, binding));
    assert!(memory.free() + u64::from(memory.page_len()) >= memory.len());
}

#[test]
fn threads_that_wait_hear_of_it_whoever_of_them_drives() {
    for driver in [Driver::Thread, Driver::Caller] {
        let (world, (memory, _)) = (World::new(driver), filled());
        let tx = world.near.bind_tx(&memory).unwrap();
        let sends: Vec<_> =
            (0..3).map(|n| world.stream.send_device(&tx, &[range(n * 100, 100)]).unwrap()).collect();
        std::thread::scope(|scope| {
            let waits: Vec<_> = sends.into_iter().map(|sent| begun(scope, || sent.wait())).collect();
            waits.iter().for_each(|(_, thread)| wait_asleep(*thread));
            let _far = world.end();
            for (wait, _) in waits {
                let (chain, how) = wait.join().unwrap();
                assert!(how.dropped && chain.len() == 100, "{driver:?}");
            }
        });
        drop(tx);
        assert_eq!(memory.free(), memory.len());
    }
}
