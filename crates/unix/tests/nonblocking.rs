//! O_NONBLOCK, set on the descriptor by other processes, for calls that the kernel's sockets do not have:
//! pages, room in place, chains, records as a stream. The conformance suite has the calls that they do have.
//! Timeouts are so long that a call that waits is seen to hang.
#![allow(missing_docs, reason = "a test")]

use onecopy_chain::Chain;
use onecopy_testing::alone;
use onecopy_unix::*;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::os::fd::AsFd;
use std::time::Duration;

const LONG: Option<Duration> = Some(Duration::from_secs(3600));

fn others_set(socket: &impl AsFd, on: bool) {
    let mut flags = fcntl_getfl(socket).unwrap();
    flags.set(OFlags::NONBLOCK, on);
    fcntl_setfl(socket, flags).unwrap();
}

fn small() -> Config {
    Config { receive_buffer: Some(4096), send_buffer: Some(4096), ..Config::default() }
}

/// Calls `call` until it fails, and checks that it fails because it would have to wait.
fn until_refused<T>(mut call: impl FnMut() -> Result<T>) -> Vec<T> {
    let mut done = Vec::new();
    loop {
        match call() {
            Ok(value) => done.push(value),
            Err(error) => {
                assert!(error.would_block(), "{error}");
                return done;
            }
        }
    }
}

#[test]
fn room_in_place_and_what_lies_in_place_are_not_waited_for() {
    alone!();
    for kind in [Wait::Adaptive, Wait::Block, Wait::Spin] {
        let (a, b) = Stream::pair_with(&Config { wait: kind, ..small() }).unwrap();
        a.set_write_timeout(LONG).unwrap();
        b.set_read_timeout(LONG).unwrap();
        others_set(&a, true);
        others_set(&b, true);
        assert!(b.recv_borrowed(9).unwrap_err().would_block());
        assert!(b.recv_chain(9).unwrap_err().would_block());
        let sent: usize = until_refused(|| {
            let mut slot = a.reserve(1000)?;
            assert_eq!(slot.copy_from(&[7; 1000]), 1000);
            slot.commit()
        })
        .into_iter()
        .sum();
        assert!(sent > 4096, "{sent}");
        let views = until_refused(|| b.recv_borrowed(1500));
        assert_eq!(views.iter().map(View::len).sum::<usize>(), sent);
    }
}

#[test]
fn pages_that_the_peer_holds_are_not_waited_for() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    a.set_write_timeout(LONG).unwrap();
    b.set_read_timeout(LONG).unwrap();
    others_set(&a, true);
    others_set(&b, true);
    let pool = SharedPool::new(4096, 600).unwrap();
    let mut views = Vec::new();
    let mut rest = None;
    // Marks fill the ring before slots run out. The views of what is received keep the slots.
    while rest.is_none() {
        let mut loan = pool.loan(64).unwrap();
        loan.copy_from_slice(&[3; 64]);
        if let Err(not) = a.send_loan(loan) {
            assert!(not.error.would_block(), "{}", not.error);
            let more = until_refused(|| b.recv_borrowed(usize::MAX));
            if more.is_empty() {
                rest = Some(not);
            }
            views.extend(more);
        }
    }
    let rest = rest.unwrap();
    assert!(rest.error.reason().unwrap().contains("holds all the pages"), "{}", rest.error);
    assert_eq!(pool.lent(), views.len());
    // A call that may wait again gets a slot as soon as the peer gives one back.
    others_set(&a, false);
    std::thread::scope(|s| {
        let sender = s.spawn(|| a.send_loan(rest.loan).unwrap());
        views.clear();
        assert_eq!(sender.join().unwrap(), 64);
    });
}

#[test]
fn chains_are_not_waited_for() {
    alone!();
    let (a, b) = SeqPacket::pair_with(&small()).unwrap();
    a.set_write_timeout(LONG).unwrap();
    b.set_read_timeout(LONG).unwrap();
    others_set(&a, true);
    others_set(&b, true);
    assert!(b.recv_chain(&mut [0; 9]).unwrap_err().would_block());
    let sent = until_refused(|| a.send_chain(&[1; 900], Chain::new()).map_err(|not| not.error));
    assert!(sent.len() > 3, "{sent:?}");
    let received = until_refused(|| b.recv_chain(&mut [0; 1000]).map(|(record, _)| record.len));
    assert_eq!(received, sent);
}

#[test]
fn the_kernels_room_for_a_record_is_not_waited_for() {
    alone!();
    let config = Config { transport: Transport::Kernel, ..small() };
    let (a, b) = SeqPacket::pair_with(&config).unwrap();
    a.set_write_timeout(LONG).unwrap();
    others_set(&a, true);
    let reserve = || a.reserve(900).and_then(|slot| slot.commit());
    assert!(until_refused(reserve).len() > 1);
    others_set(&a, false);
    std::thread::scope(|s| {
        let sender = s.spawn(reserve);
        while b.recv_with_flags(&mut [0; 1000], RecvFlags::DONTWAIT).is_ok() {}
        sender.join().unwrap().unwrap();
    });
}

#[test]
fn what_is_shown_is_what_was_last_seen() {
    alone!();
    let (a, _b) = Stream::pair().unwrap();
    let inode = rustix::fs::fstat(&a).unwrap().st_ino;
    let shown = || {
        let tables = std::fs::read_dir("/proc/self/fd").unwrap().map_while(std::result::Result::ok);
        let tables = tables.map(|link| link.path()).filter(|path| {
            std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("onecopy-stats"))
        });
        let listings = tables.filter_map(|path| registry::read(std::fs::File::open(path).ok()?).ok());
        let entries = listings.flat_map(|listing| listing.entries);
        entries.into_iter().find(|entry| entry.inode == inode).unwrap().nonblocking
    };
    for on in [true, false, true] {
        others_set(&a, on);
        if on {
            assert!(a.recv(&mut [0; 9]).unwrap_err().would_block());
        } else {
            a.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            assert!(a.recv(&mut [0; 9]).unwrap_err().would_block());
        }
        assert_eq!(shown(), on);
    }
}
