//! What a receive does while another thread unbinds its memory: each step by itself, so that nothing depends on who comes first.

use super::*;
use crate::devmem::Binding;
use crate::kernel::connection::Phase;
use crate::{Stack, Transport};
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_testing::{LONG, begun, wait_asleep};
use std::fmt;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// A connection whose bytes belong in bound memory, its peer, and behind them its stack. None where the kernel cannot do it.
fn connection() -> Option<(Stack, Stream, TcpStream, Binding)> {
    let skipped = |why: &dyn fmt::Display| eprintln!("skipped: {why}");
    let stack = Stack::builder().transport(Transport::Kernel).build().inspect_err(|why| skipped(why)).ok()?;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    stack.set_queues(2).unwrap();
    stack.steer(at, 1).unwrap();
    let memory = DeviceMemory::opaque(64, DeviceId(1)).unwrap();
    let binding = match stack.bind_rx(&memory, &[1]) {
        Err(why) if why.raw_os_error() == 95 => {
            skipped(&why);
            return None;
        }
        binding => binding.unwrap(),
    };
    let peer = TcpStream::connect(at).unwrap();
    let shared = stack.kernel().unwrap().shared();
    let fd = OwnedFd::from(listener.accept().unwrap().0);
    let settings = crate::kernel::options::begin(&fd, shared.config.congestion).unwrap();
    let stream = Stream::new(shared, fd, Phase::Open, false, settings);
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
