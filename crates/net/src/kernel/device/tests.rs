//! What a receive does while another thread unbinds its memory: each step by itself, so that nothing depends on who comes first. And what it does
//! where it is refused.

use super::*;
use crate::devmem::Binding;
use crate::kernel::connection::Phase;
use crate::kernel::submitter::For;
use crate::{Stack, Transport};
use onecopy_inet::tcp::Settings;
use onecopy_link::Registered;
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_testing::{LONG, begun, wait_asleep};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fmt;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// A connection whose bytes belong in bound memory, its peer, and behind them its stack. None where the kernel cannot do it.
fn connection() -> Option<(Stack, Stream, TcpStream, Binding)> {
    let lacking = |why: &dyn fmt::Display| println!("lacking: device memory by io_uring ({why})");
    let stack = Stack::builder().transport(Transport::Kernel).build().inspect_err(|why| lacking(why)).ok()?;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    stack.set_queues(2).unwrap();
    stack.steer(at, 1).unwrap();
    let memory = DeviceMemory::opaque(64, DeviceId(1)).unwrap();
    let binding = match stack.bind_rx(&memory, &[1]) {
        Err(why) if why.raw_os_error() == 95 => {
            lacking(&why);
            return None;
        }
        binding => binding.unwrap(),
    };
    let peer = TcpStream::connect(at).unwrap();
    let shared = stack.kernel().unwrap().shared();
    let fd = OwnedFd::from(listener.accept().unwrap().0);
    let settings = crate::kernel::options::begin(&fd, shared.config.congestion).unwrap();
    let stream =
        Stream::new(stack.kernel().unwrap().submitters().next(For::Made), fd, Phase::Open, false, settings);
    stream.begin();
    Some((stack, stream, peer, binding))
}

fn patience(stream: &Stream) -> Patience {
    Patience::new(stream.common(), false, Some(LONG))
}

/// As it was found by a receive.
fn landing(stream: &Stream) -> Arc<Landing> {
    match stream.next(&patience(stream)).unwrap() {
        Next::Device(landing, 1) => landing,
        _ => panic!("it goes to the host"),
    }
}

/// Waits until the ring has taken so many bytes.
fn taken(stream: &Stream, bytes: u64) {
    while stream.connection().lock().receive.len() < bytes {
        std::thread::yield_now();
    }
}

#[test]
fn who_goes_to_wait_for_a_socket_that_the_ring_has_emptied_looks_again() {
    let Some((_stack, stream, mut peer, binding)) = connection() else { return };
    let landing = landing(&stream);
    let patience = patience(&stream);
    // Nothing is there.
    assert!(matches!(landing.read(&stream.connection().fd, 1, 1), Err(NotRead::Errno(Errno::AGAIN))));
    // Before it waits, the memory is unbound, another receive finds that out, and what comes goes to the ring.
    drop(binding);
    assert!(stream.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    peer.write_all(b"x").unwrap();
    taken(&stream, 1);
    // The socket says nothing of it any more.
    stream.not_read(NotRead::Errno(Errno::AGAIN), &patience).unwrap();
    assert!(matches!(stream.next(&patience).unwrap(), Next::Host));
}

#[test]
fn nothing_is_thrown_away_looked_at_or_read_beside_an_unbinding() {
    let Some((_stack, stream, mut peer, binding)) = connection() else { return };
    let landing = landing(&stream);
    peer.write_all(b"first").unwrap();
    while stream.frags(1, 0, RecvFlags::DONTWAIT).unwrap_err().would_block() {}
    for (flags, most) in [(RecvFlags::TRUNC, 1), (RecvFlags::PEEK, 1), (RecvFlags::empty(), 0)] {
        let pages = landing.pages.lock();
        std::thread::scope(|scope| {
            let (receiver, thread) = begun(scope, || stream.frags(3, most, flags));
            // It waits for who holds the memory; or it does not, and is through.
            wait_asleep(thread);
            let there = rustix::io::ioctl_fionread(&*stream.connection().fd).unwrap();
            assert_eq!((there, receiver.is_finished()), (5, false), "{flags:?}");
            drop(pages);
            match receiver.join().unwrap() {
                Ok(thrown) => assert_eq!((flags, thrown.len()), (RecvFlags::TRUNC, 3)),
                Err(error) => assert!([95, 525].contains(&error.raw_os_error()), "{error}"),
            }
        });
        // Those that were thrown away are there again.
        if flags == RecvFlags::TRUNC {
            let left = stream.frags(2, 1, RecvFlags::empty()).unwrap();
            assert_eq!(left.len(), 2);
            peer.write_all(b"first").unwrap();
            while stream.frags(1, 0, RecvFlags::DONTWAIT).unwrap_err().would_block() {}
            while rustix::io::ioctl_fionread(&*stream.connection().fd).unwrap() < 5 {}
        }
    }
    // It is unbound while somebody waits to throw away: what he throws away is what comes first, wherever it lies then.
    let mut pages = landing.pages.lock();
    std::thread::scope(|scope| {
        let (receiver, thread) = begun(scope, || stream.frags(3, 1, RecvFlags::TRUNC));
        wait_asleep(thread);
        drop(pages.take());
        drop(pages);
        assert_eq!(receiver.join().unwrap().unwrap().len(), 3);
    });
    peer.write_all(b", second").unwrap();
    taken(&stream, 2 + 8);
    let left = stream.frags(100, usize::MAX, RecvFlags::empty()).unwrap();
    let left = left.linear().unwrap().to_vec();
    assert_eq!(left[..2], b"st"[..]);
    drop(binding);
}

#[test]
fn a_reset_behind_bytes_that_are_thrown_away_is_told() {
    let Some((_stack, stream, mut peer, _binding)) = connection() else { return };
    peer.write_all(b"first").unwrap();
    while stream.frags(1, 0, RecvFlags::DONTWAIT).unwrap_err().would_block() {}
    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    assert_eq!(stream.frags(100, 1, RecvFlags::TRUNC).unwrap().len(), 5);
    // The kernel tells of it once, and then of an end.
    assert_eq!(stream.frags(100, 1, RecvFlags::empty()).unwrap_err().raw_os_error(), 104);
}

#[test]
fn a_read_that_is_refused_is_told_and_takes_nothing() {
    let Some((_stack, stream, mut peer, binding)) = connection() else { return };
    let landing = landing(&stream);
    peer.write_all(b"hello").unwrap();
    // By io_uring: a file that cannot be read without a wait.
    let file = OwnedFd::from(std::fs::File::open("/proc/self/stat").unwrap());
    let Err(refused) = landing.read(&file, 1, 1) else { panic!("it was read") };
    assert!(matches!(refused, NotRead::Errno(Errno::OPNOTSUPP)));
    let told = stream.not_read(refused, &patience(&stream)).unwrap_err();
    assert_eq!(told.raw_os_error(), Errno::OPNOTSUPP.raw_os_error());
    assert!(told.reason().is_some_and(|why| why.contains("unbind it")), "{told}");
    // And in a receive: its pages are not those that are registered.
    let wrong = Registered::new(&DeviceMemory::opaque(16, DeviceId(2)).unwrap()).unwrap();
    let right = landing.pages.lock().replace(wrong).unwrap();
    let free = right.memory().free();
    for flags in [RecvFlags::empty(), RecvFlags::DONTWAIT] {
        let told = stream.frags(5, 1, flags).unwrap_err();
        assert_eq!(told.raw_os_error(), Errno::FAULT.raw_os_error(), "{told}");
        assert!(told.reason().is_some_and(|why| why.contains("unbind it")), "{told}");
    }
    assert_eq!((right.memory().free(), stream.device_tokens().held()), (free, 0));
    // The connection goes on.
    let wrong = landing.pages.lock().replace(right).unwrap();
    assert_eq!(stream.frags(2, 1, RecvFlags::empty()).unwrap().device()[0].len, 2);
    // What is said helps.
    *landing.pages.lock() = Some(wrong);
    assert!(stream.frags(3, 1, RecvFlags::empty()).is_err());
    drop(binding);
    let rest = stream.frags(3, 1, RecvFlags::empty()).unwrap();
    assert_eq!(rest.linear().unwrap().to_vec(), b"llo");
}

/// A peer that goes on sending does not keep who fetches what there was.
#[test]
fn of_a_connection_that_is_over_no_more_is_fetched_than_there_was() {
    let Some((stack, stream, _peer, _binding)) = connection() else { return };
    // In place of what comes meanwhile: of datagrams the first alone is counted (FIONREAD), and a receive finds the others.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
    for byte in 1..=3 {
        net::send(&far, &[byte; 100], net::SendFlags::empty()).unwrap();
    }
    let over = Stream::new(
        stack.kernel().unwrap().submitters().next(For::Made),
        near,
        Phase::Open,
        false,
        Settings::default(),
    );
    let connection = over.connection();
    let mut state = connection.lock();
    state.goes = Goes::Device(landing(&stream), 1);
    state.fail(Errno::CONNRESET);
    connection.is_unbound(&mut state);
    assert_eq!(state.receive.len(), 100);
    drop(state);
    for byte in 2..=3 {
        let mut left = [0; 100];
        assert_eq!(net::recv(&*connection.fd, &mut left, net::RecvFlags::DONTWAIT).unwrap().0, 100);
        assert_eq!(left, [byte; 100]);
    }
}
