//! Sends whose buffer comes back: with the kernel's second step, and as truly told as that is.

use crate::world::{anywhere, counter, pattern, stack, stack_with, until, with_std};
use onecopy_chain::{Chain, Writer};
use onecopy_net::kernel::ZeroCopy;
use onecopy_net::tcp::Stream;
use onecopy_net::zerocopy::{Allowance, Small};
use onecopy_net::{SendFlags, Stack, Transport, Wait};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::future::Future;
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::pin::pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new().limit(2048), Heap::new()).unwrap()
}

fn chain(pool: &PagePool, bytes: &[u8]) -> Chain {
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, bytes).unwrap();
    chain
}

fn bytes(chain: &Chain) -> Vec<u8> {
    chain.host().unwrap().to_vec()
}

/// Nobody else has a page of it: neither the ring nor the socket.
fn is_ours_alone(pool: &PagePool, chain: Chain) -> bool {
    drop(chain);
    let stats = pool.stats();
    stats.in_flight - stats.in_cache - stats.in_ring == 0
}

#[test]
fn the_chain_comes_back_after_the_second_step_and_says_who_copied() {
    for zero_copy in [ZeroCopy::Never, ZeroCopy::Auto, ZeroCopy::Always] {
        let Some(stack) = stack_with(zero_copy, Wait::Block) else { return };
        let (ours, mut theirs) = with_std(&stack);
        let (pool, data) = (pool(), pattern(100_000));
        let sent = ours.send_zerocopy(chain(&pool, &data)).unwrap();
        assert_eq!(sent.len(), data.len());
        let mut got = vec![0; data.len()];
        theirs.read_exact(&mut got).unwrap();
        let (back, how) = sent.wait();
        // The loopback copies when it delivers, and says so of a notification that was alone; else the kernel copied at once.
        assert!(how.copied && !how.unknown && !how.dropped, "{zero_copy:?} {how:?}");
        assert!(got == data && bytes(&back) == data && is_ours_alone(&pool, back));
        let stats = ours.stats();
        assert_eq!((stats.user_copied_in, stats.referenced), (0, 100_000));
        until(|| ours.stats().kernel_copied == 100_000);
        until(|| counter(&stack, "zero_copy_sends") == u64::from(zero_copy != ZeroCopy::Never));
        assert_eq!((stack.zerocopy_counts().lent, stack.pinned_pages()), (1, 0));
    }
}

#[test]
fn what_the_kernel_says_of_stacked_ones_is_not_believed() {
    let Some(stack) = stack_with(ZeroCopy::Always, Wait::Block) else { return };
    // So little room that most of it waits here, and so do both notifications.
    let listener = TcpListener::bind(anywhere()).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let ours = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
    ours.set(|settings| settings.send_buffer = Some(400_000)).unwrap();
    let (mut theirs, _) = listener.accept().unwrap();
    let pool = pool();
    let first = ours.send_zerocopy(chain(&pool, &pattern(60_000))).unwrap();
    until(|| counter(&stack, "zero_copy_sends") == 1);
    let second = ours.send_zerocopy(chain(&pool, &pattern(20_000))).unwrap();
    until(|| counter(&stack, "zero_copy_sends") == 2);
    assert_eq!(counter(&stack, "notifications"), 0);
    theirs.read_exact(&mut vec![0; 80_000]).unwrap();
    for sent in [first, second] {
        let (_, how) = sent.wait();
        assert!(how.unknown && !how.copied && !how.dropped, "{how:?}");
    }
    until(|| counter(&stack, "notifications_unknown") == 2);
    // Alone, it is believed again.
    let third = ours.send_numbered(chain(&pool, &pattern(20_000)), SendFlags::empty()).unwrap();
    theirs.read_exact(&mut vec![0; 20_000]).unwrap();
    let range = ours.wait_notice(None).unwrap().unwrap();
    assert_eq!((Some(range.lo), range.copied, range.unknown), (third.number, true, false));
}

#[test]
fn the_kernel_copies_what_is_small_and_a_program_may_say_otherwise() {
    let Some(stack) = stack() else { return };
    let (ours, _theirs) = with_std(&stack);
    let pool = pool();
    let (back, how) = ours.send_zerocopy(chain(&pool, &pattern(999))).unwrap().wait();
    assert!(how.copied && is_ours_alone(&pool, back));
    assert_eq!((counter(&stack, "zero_copy_sends"), ours.stats().user_copied_in), (0, 0));
    ours.set_small(Some(Small::Below(0))).unwrap();
    ours.send_zerocopy(chain(&pool, &pattern(999))).unwrap().wait();
    until(|| counter(&stack, "zero_copy_sends") == 1);
    assert_eq!(ours.stats().user_copied_in, 0);
}

#[test]
fn notices_come_in_order_by_every_way() {
    let Some(stack) = stack() else { return };
    let (ours, mut theirs) = with_std(&stack);
    let pool = pool();
    assert!(ours.notice().is_none());
    assert!(ours.wait_notice(Some(Duration::from_millis(1))).unwrap().is_none());
    let readable = |limit| {
        let fd = ours.notices_fd().unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec { tv_sec: limit, tv_nsec: 0 })).unwrap()
            == 1
    };
    assert!(!readable(0));
    for number in 0..3 {
        let sent = ours.send_numbered(chain(&pool, &pattern(30_000)), SendFlags::empty()).unwrap();
        assert_eq!((sent.number, sent.len, sent.rest.len()), (Some(number), 30_000, 0));
        theirs.read_exact(&mut vec![0; 30_000]).unwrap();
        let range = match number {
            0 => ours.wait_notice(None).unwrap().unwrap(),
            1 => {
                assert!(readable(60));
                let range = ours.notice().unwrap();
                assert!(ours.notice().is_none() && !readable(0));
                range
            }
            _ => {
                let (told, hear) = channel();
                let waker = Waker::from(Arc::new(Tells(Mutex::new(told))));
                loop {
                    match ours.poll_notice(&mut Context::from_waker(&waker)) {
                        Poll::Ready(range) => break range.unwrap(),
                        Poll::Pending => hear.recv_timeout(Duration::from_secs(60)).unwrap(),
                    }
                }
            }
        };
        assert_eq!((range.lo, range.hi, range.bytes, range.dropped), (number, number, 30_000, false));
    }
}

struct Tells(Mutex<Sender<()>>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

#[test]
fn it_comes_back_however_the_connection_ends() {
    for end in ["reset by the peer", "reset", "closed", "stack dropped"] {
        let builder = Stack::builder().transport(Transport::Kernel).linger(Duration::from_millis(50));
        let builder = builder.kernel(|config| config.zero_copy = ZeroCopy::Always);
        let Ok(stack) = builder.build() else { return println!("lacking: io_uring") };
        let (ours, mut theirs) = with_std(&stack);
        let (pool, data) = (pool(), pattern(4 << 20));
        // More than both sides' buffers take: some is under way, some waits.
        let mut sent = ours.send_zerocopy_with_flags(chain(&pool, &data), SendFlags::DONTWAIT).unwrap();
        drop(sent.take_rest());
        let len = sent.len();
        let sent = sent.wait_for(Duration::from_millis(5));
        let whole = match end {
            "reset by the peer" => {
                rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
                drop(theirs);
                false
            }
            "reset" => {
                ours.set_linger(Some(Duration::ZERO)).unwrap();
                drop(ours);
                false
            }
            "closed" => {
                drop(ours);
                let mut all = Vec::new();
                theirs.read_to_end(&mut all).unwrap();
                assert!(all == data[..len]);
                true
            }
            _ => {
                drop((ours, stack));
                drop(theirs);
                false
            }
        };
        // (Should the kernel have taken all of it already, it was over before.)
        let (back, how) = sent.unwrap_or_else(|sent| sent.wait());
        assert!(back.len() == len && bytes(&back) == data[..len], "{end}");
        assert!(!whole || !how.dropped, "{end} {how:?}");
        assert!(is_ours_alone(&pool, back), "{end}");
    }
}

#[test]
fn what_was_not_sent_is_in_the_error() {
    onecopy_testing::alone!();
    let Some(stack) = stack() else { return };
    let (ours, theirs) = with_std(&stack);
    let pool = pool();
    let empty = ours.send_zerocopy(Chain::new()).unwrap();
    assert!(empty.is_empty() && empty.try_wait().unwrap().0.is_empty());
    stack.set_zerocopy_allowance(Allowance { pinned: Some(10 * 4096), ..Allowance::default() });
    let not = ours.send_zerocopy(chain(&pool, &pattern(9 * 4096))).unwrap_err();
    assert_eq!((not.error.raw_os_error(), not.chain.len()), (105, 9 * 4096), "ENOBUFS");
    assert_eq!((stack.zerocopy_counts().refused_pinned, stack.pinned_pages()), (1, 0));
    drop(theirs);
    until(|| ours.recv_with_flags(&mut [0], onecopy_net::RecvFlags::DONTWAIT).is_ok_and(|n| n == 0));
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let not = ours.send_zerocopy(chain(&pool, b"late")).unwrap_err();
    assert_eq!((not.error.kind(), not.chain.len()), (ErrorKind::BrokenPipe, 4));
    assert_eq!(stack.pinned_pages(), 0);
}

/// A waker that calls the stream: whoever wakes it holds no lock of it.
struct Calls(Stream, Mutex<Sender<usize>>);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        let _ = self.0.notice();
        let waiting = self.0.readable_bytes().unwrap();
        let _ = self.1.lock().unwrap().send(waiting);
    }
}

#[test]
fn a_waker_may_call_the_stream() {
    for zero_copy in [ZeroCopy::Never, ZeroCopy::Always] {
        let Some(stack) = stack_with(zero_copy, Wait::Block) else { return };
        let (ours, mut theirs) = with_std(&stack);
        let pool = pool();
        let (told, hear) = channel();
        let waker = Waker::from(Arc::new(Calls(ours.try_clone().unwrap(), Mutex::new(told))));
        let mut sent =
            ours.send_zerocopy_with_flags(chain(&pool, &pattern(4 << 20)), SendFlags::DONTWAIT).unwrap();
        drop(sent.take_rest());
        let len = sent.len();
        let mut sent = pin!(sent);
        let reader = thread::spawn(move || theirs.read_exact(&mut vec![0; len]).map(|()| theirs));
        let (back, how) = loop {
            match sent.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => break done,
                Poll::Pending => drop(hear.recv_timeout(Duration::from_secs(60)).unwrap()),
            }
        };
        assert!(back.len() == len && !how.dropped);
        drop(reader.join().unwrap());
    }
}
