//! One end in several processes.

use super::{PATIENCE, Wire, alone, asleep, count_whole, pair, send, small, wait_asleep};
use crate::{Config, Listener, RecvFlags, SendFlags, SeqPacket, SharedPool, SocketAddr, Stream};
use onecopy_sys::fork::{Ended, child};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

#[test]
fn senders_in_three_processes_do_not_interleave() {
    alone!();
    const EACH: usize = 300;
    for len in [64, 1000, 3000, 9000] {
        let (a, b) = pair(&small());
        let children: Vec<_> = (1..3u8)
            .map(|id| {
                let work = child(|| {
                    (0..EACH).for_each(|_| send(&a, &vec![id; len]));
                    0
                });
                work.unwrap()
            })
            .collect();
        let counts = std::thread::scope(|scope| {
            let reader = scope.spawn(|| count_whole(&b, len, EACH * 3));
            (0..EACH).for_each(|_| send(&a, &vec![3; len]));
            reader.join().unwrap()
        });
        assert_eq!(counts[1..4], [EACH; 3], "{len}");
        children.into_iter().for_each(|child| assert_eq!(child.wait(), Ended::Returned(0)));
        assert_eq!(b.stats().protocol_errors, 0);
    }
}

/// A lock that another *process* holds does not keep a child of this process away.
#[test]
fn a_fork_while_another_process_sends_leaves_all_of_them_sending() {
    alone!();
    let (a, b) = pair(&small());
    let sleeper = child(|| {
        send(&a, &[1; 50_000]);
        0
    });
    let sleeper = sleeper.unwrap();
    wait_asleep(sleeper.pid());
    assert!(a.unread_bytes().unwrap() >= 4096);
    let second = child(|| {
        send(&a, &[2; 5000]);
        0
    });
    let second = second.unwrap();
    assert!(count_whole(&b, 50_000, 1)[1] == 1 && count_whole(&b, 5000, 1)[2] == 1);
    assert_eq!((sleeper.wait(), second.wait()), (Ended::Returned(0), Ended::Returned(0)));
}

#[test]
fn receivers_in_three_processes_get_each_record_once() {
    alone!();
    const RECORDS: u64 = 3000;
    let (a, b) = SeqPacket::pair_with(&small()).unwrap();
    let wire = Wire::new();
    let receive = |b: &SeqPacket| {
        let mut record = [0; 8];
        loop {
            match b.recv(&mut record) {
                Ok(8) => wire.tell(u64::from_ne_bytes(record)),
                other => return i32::from(!matches!(other, Ok(0))),
            }
        }
    };
    let children: Vec<_> = (0..2).map(|_| child(|| receive(&b)).unwrap()).collect();
    let mut words = std::thread::scope(|scope| {
        // This begins before the pipe is full.
        let ear = scope.spawn(|| (0..RECORDS).map(|_| wire.hear()).collect::<Vec<_>>());
        scope.spawn(|| assert_eq!(receive(&b), 0));
        for i in 0..RECORDS {
            a.send(&i.to_ne_bytes()).unwrap();
        }
        let words = ear.join().unwrap();
        a.shutdown(std::net::Shutdown::Write).unwrap();
        words
    });
    words.sort_unstable();
    assert!(words.into_iter().eq(0..RECORDS));
    children.into_iter().for_each(|child| assert_eq!(child.wait(), Ended::Returned(0)));
}

/// Three processes each ask and wait for an answer, which may be for another one. As many records come as
/// processes wait, and one doorbell may ring for all of them. There is no timeout, which would sleep in
/// another way.
#[test]
fn of_those_asleep_for_records_none_is_left_asleep() {
    alone!();
    const EACH: u64 = 300;
    for forks in [0, 1, 2] {
        let all = child(|| {
            std::thread::spawn(|| {
                std::thread::sleep(PATIENCE);
                std::process::exit(99);
            });
            let (a, b) = SeqPacket::pair_with(&small()).unwrap();
            let trade = || {
                let mut record = [0; 8];
                for i in 0..EACH {
                    b.send(&i.to_ne_bytes()).unwrap();
                    assert_eq!(b.recv(&mut record).unwrap(), 8);
                }
                0
            };
            let children: Vec<_> = (0..forks).map(|_| child(trade).unwrap()).collect();
            std::thread::scope(|scope| {
                for _ in forks..3 {
                    scope.spawn(trade);
                }
                let mut record = [0; 8];
                for _ in 0..EACH * 3 {
                    assert_eq!(a.recv(&mut record).unwrap(), 8);
                    a.send(&record).unwrap();
                }
            });
            children.into_iter().for_each(|child| assert_eq!(child.wait(), Ended::Returned(0)));
            0
        });
        assert_eq!(all.unwrap().wait(), Ended::Returned(0), "{forks}: one is asleep while a record is there");
    }
}

/// A handler interrupts a process that sleeps among several as it does one that sleeps alone. A handler that
/// has calls restarted does not.
#[test]
fn a_handler_that_restarts_interrupts_nobody_who_sleeps_among_several() {
    alone!();
    for restart in [true, false] {
        let (a, b) = SeqPacket::pair_with(&small()).unwrap();
        let (ready, caught) = (Wire::new(), Wire::new());
        let sleeper = child(|| {
            // Handlers that tests of the same process have installed do not matter here.
            onecopy_sys::signal::catch(10, caught.1.try_clone().unwrap(), restart).unwrap();
            ready.tell(0);
            let got = b.recv(&mut [0; 8]);
            ready.tell(0);
            match got {
                Ok(n) => n as i32,
                Err(error) => i32::from(error.raw_os_error() == Errno::INTR.raw_os_error()) + 100,
            }
        });
        let sleeper = sleeper.unwrap();
        ready.hear();
        wait_asleep(sleeper.pid());
        let mut signals = 0;
        // The first signals may come before the sleep does, and the last may find no sleeper.
        while if restart { signals < 5 } else { !ready.speaks_within(20) } {
            sleeper.signal(10);
            signals += 1;
            if restart {
                assert_eq!(rustix::io::read(&caught.0, &mut [0]).unwrap(), 1);
            }
        }
        if restart {
            a.send(b"awake").unwrap();
            assert_eq!(sleeper.wait(), Ended::Returned(5));
        } else {
            assert_eq!(sleeper.wait(), Ended::Returned(101));
        }
    }
}

#[test]
fn parent_and_child_take_turns_at_both_sides() {
    alone!();
    let (a, b) = pair(&Config::default());
    send(&a, b"before");
    assert_eq!(b.recv(&mut [0; 3]).unwrap(), 3);
    let (go, done) = (Wire::new(), Wire::new());
    let echo = child(|| {
        for _ in 0..100 {
            go.hear();
            let mut buffer = [0; 64];
            let n = b.recv(&mut buffer).unwrap();
            send(&b, &buffer[..n]);
            done.tell(0);
        }
        0
    });
    let echo = echo.unwrap();
    let mut buffer = [0; 64];
    assert_eq!(b.recv(&mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..3], b"ore");
    for i in 0..100u8 {
        send(&a, &[i; 10]);
        go.tell(0);
        assert_eq!(a.recv(&mut buffer).unwrap(), 10);
        assert_eq!(buffer[..10], [i; 10]);
        done.hear();
        // Then the same through the parent.
        send(&a, &[i; 20]);
        assert_eq!(b.recv(&mut buffer).unwrap(), 20);
        send(&b, &[i; 30]);
        assert_eq!(a.recv(&mut buffer).unwrap(), 30);
        assert_eq!(buffer[..30], [i; 30]);
    }
    assert_eq!(echo.wait(), Ended::Returned(0));
}

#[test]
fn one_of_two_that_closes_leaves_the_other_in_peace() {
    alone!();
    let (a, b) = pair(&Config::default());
    send(&a, b"one");
    let mut b = Some(b);
    let leaver = child(|| {
        b = None;
        0
    });
    assert_eq!(leaver.unwrap().wait(), Ended::Returned(0));
    let b = b.unwrap();
    send(&a, b"two");
    let mut buffer = [0; 64];
    assert_eq!(b.recv(&mut buffer).unwrap(), 6);
    // Then the other way round: the parent closes, and the child goes on.
    let wire = Wire::new();
    let stayer = child(|| {
        wire.hear();
        let n = b.recv(&mut buffer).unwrap();
        send(&b, &buffer[..n]);
        0
    });
    let stayer = stayer.unwrap();
    drop(b);
    send(&a, b"three");
    wire.tell(0);
    assert_eq!(a.recv(&mut buffer).unwrap(), 5);
    assert_eq!(stayer.wait(), Ended::Returned(0));
    assert_eq!(a.recv(&mut buffer).unwrap(), 0, "the last one is gone");
}

#[test]
fn a_slot_and_a_view_belong_to_the_process_that_made_them() {
    alone!();
    let (a, b) = pair(&small());
    send(&a, &[1; 1000]);
    let view = b.recv_borrowed(400).unwrap();
    let mut slot = a.reserve(100).unwrap();
    slot.copy_from(b"kept");
    let (mut slot, mut view) = (Some(slot), Some(view));
    let both = child(|| {
        let mut slot = slot.take().unwrap();
        assert_eq!(slot.copy_from(b"x"), 0);
        assert!(slot.commit().is_err());
        // For all the child knows another thread holds this lock: sending is the parent's.
        assert!(a.send(b"x").unwrap_err().to_string().contains("fork"));
        view = None;
        let mut buffer = [0; 100];
        assert_eq!(b.recv(&mut buffer).unwrap(), 100);
        0
    });
    assert_eq!(both.unwrap().wait(), Ended::Returned(0));
    assert_eq!(a.unread_bytes().unwrap(), 1000, "the child's drop gave nothing back");
    assert_eq!(slot.unwrap().commit().unwrap(), 4);
    let mut buffer = [0; 1000];
    assert_eq!(b.recv(&mut buffer).unwrap(), 504);
    assert_eq!(&buffer[500..504], b"kept");
    drop(view);
    assert_eq!(a.unread_bytes().unwrap(), 0);
    // A sender that was busy at one fork is shared at the next.
    let wire = Wire::new();
    let sender = child(|| {
        send(&a, b"mine");
        wire.tell(0);
        0
    });
    wire.hear();
    send(&a, b"yours");
    assert_eq!(b.recv(&mut buffer).unwrap(), 9);
    assert_eq!(sender.unwrap().wait(), Ended::Returned(0));
}

/// A sender that is in use at a fork stays the parent's. Its sends ring as if there had been no fork.
#[test]
fn a_sender_that_a_fork_found_busy_still_wakes_a_receiver_that_sleeps() {
    alone!();
    let (a, b) = pair(&small());
    b.set_wait_mode(crate::Wait::Block);
    let slot = a.reserve(100).unwrap();
    let wire = Wire::new();
    let member = child(|| {
        wire.hear();
        0
    });
    let member = member.unwrap();
    drop(slot);
    std::thread::scope(|scope| {
        let reader = asleep(scope, || b.recv(&mut [0; 10]).unwrap());
        send(&a, b"awake");
        assert_eq!(reader.join().unwrap(), 5);
    });
    wire.tell(0);
    assert_eq!(member.wait(), Ended::Returned(0));
}

#[test]
fn a_slot_that_a_child_inherits_keeps_other_processes_out_until_its_parent_commits() {
    alone!();
    let (a, b) = pair(&small());
    let (go, done) = (Wire::new(), Wire::new());
    let other = child(|| {
        go.hear();
        let refused = a.send_with_flags(b"x", SendFlags::DONTWAIT);
        done.tell(u64::from(refused.is_err()));
        send(&a, b"other");
        0
    });
    let other = other.unwrap();
    send(&a, b"shared");
    let mut slot = a.reserve(100).unwrap();
    slot.copy_from(b"kept");
    let mut slot = Some(slot);
    for drops in [true, false] {
        let heir = child(|| {
            let slot = slot.take().unwrap();
            if drops {
                drop(slot)
            } else {
                assert!(slot.commit().is_err())
            }
            assert!(a.send(b"x").is_err());
            // A child of this child does not get the end either.
            let own = child(|| i32::from(a.send(b"x").is_ok()));
            i32::from(own.unwrap().wait() != Ended::Returned(0))
        });
        assert_eq!(heir.unwrap().wait(), Ended::Returned(0));
    }
    go.tell(0);
    assert_eq!(done.hear(), 1, "the parent's lock was given up");
    assert_eq!(slot.unwrap().commit().unwrap(), 4);
    assert_eq!(other.wait(), Ended::Returned(0));
    let mut buffer = [0; 15];
    assert_eq!(b.recv_with_flags(&mut buffer, RecvFlags::WAITALL).unwrap(), 15);
    assert_eq!(&buffer, b"sharedkeptother");
}

/// The channel for descriptors belongs to the process that received it or made it, and to those forked from
/// it later.
#[test]
fn descriptors_that_are_another_process_s_are_refused_and_wait_for_it() {
    alone!();
    let fd = std::fs::File::open("/dev/null").unwrap();
    for records in [false, true] {
        let (go, done) = (Wire::new(), Wire::new());
        let (a, b) = if records {
            let (a, b) = SeqPacket::pair_with(&small()).unwrap();
            (Either::Records(a), Either::Records(b))
        } else {
            let (a, b) = pair(&small());
            (Either::Stream(a), Either::Stream(b))
        };
        let without = child(|| {
            for _ in 0..2 {
                go.hear();
                let refused = b.recv_with().unwrap_err();
                assert_eq!(refused.raw_os_error(), rustix::io::Errno::BUSY.raw_os_error());
                done.tell(0);
            }
            go.hear();
            assert_eq!(b.recv_with().unwrap(), (3, 0));
            // In the other direction, the parent has made the channel.
            let refused = a.send_with(b"not", &[fd.as_fd()]).unwrap_err();
            assert_eq!(refused.raw_os_error(), rustix::io::Errno::BUSY.raw_os_error());
            assert_eq!(a.send_with(b"yes", &[]).unwrap(), 3);
            0
        });
        let without = without.unwrap();
        a.send_with(b"one", &[fd.as_fd()]).unwrap();
        assert_eq!(b.recv_with().unwrap(), (3, 1));
        for _ in 0..2 {
            a.send_with(b"two", &[fd.as_fd()]).unwrap();
            go.tell(0);
            done.hear();
            assert_eq!(b.recv_with().unwrap(), (3, 1), "the mark stays");
        }
        a.send_with(b"end", &[]).unwrap();
        go.tell(0);
        assert_eq!(without.wait(), Ended::Returned(0));
        assert_eq!(b.recv_with().unwrap(), (3, 0));
        assert_eq!(b.lies(), 0);
    }
}

enum Either {
    Stream(Stream),
    Records(SeqPacket),
}

impl Either {
    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> crate::Result<usize> {
        let flags = SendFlags::empty();
        match self {
            Either::Stream(stream) => stream.send_fds_with_flags(bytes, fds, flags),
            Either::Records(socket) => socket.send_fds_with_flags(bytes, fds, flags),
        }
    }

    /// Returns the number of bytes and of descriptors received.
    fn recv_with(&self) -> crate::Result<(usize, usize)> {
        let (flags, mut buffer) = (RecvFlags::empty(), [0; 8]);
        match self {
            Either::Stream(stream) => {
                stream.recv_fds_with_flags(&mut buffer, flags).map(|(n, came)| (n, came.fds.len()))
            }
            Either::Records(socket) => {
                socket.recv_fds_with_flags(&mut buffer, flags).map(|(got, came)| (got.len, came.fds.len()))
            }
        }
    }

    fn lies(&self) -> u64 {
        match self {
            Either::Stream(stream) => stream.stats().protocol_errors,
            Either::Records(socket) => socket.stats().protocol_errors,
        }
    }
}

#[test]
fn a_pool_lends_in_the_process_that_made_it_only() {
    alone!();
    let (a, b) = pair(&Config { max_shared: 1 << 20, ..Config::default() });
    let pool = SharedPool::new(4096, 4).unwrap();
    let lend = |byte: u8| {
        let mut loan = pool.loan(100).unwrap();
        loan.fill(byte);
        a.send_loan(loan).unwrap()
    };
    let mut buffer = [0; 300];
    assert_eq!(lend(1), 100);
    let mut inherited = Some(pool.loan(100).unwrap());
    let heir = child(|| {
        let busy = rustix::io::Errno::BUSY.raw_os_error();
        assert_eq!(pool.loan(100).unwrap_err().raw_os_error(), busy);
        assert_eq!(pool.reclaim().unwrap_err().raw_os_error(), busy);
        assert_eq!((pool.reclaim_if_gone(), pool.lent()), (0, 0));
        let refused = a.send_loan(inherited.take().unwrap()).unwrap_err();
        assert_eq!(refused.error.raw_os_error(), busy);
        // Chains of a pool's writer are copied, and so are loans of the child's own pool: the parent lends
        // over this end.
        let mut chain = onecopy_chain::Chain::new();
        pool.writer().append(&mut chain, &[2; 100]).unwrap();
        assert_eq!(a.send_chain(chain).unwrap(), 100);
        let own = SharedPool::new(4096, 4).unwrap();
        let mut loan = own.loan(100).unwrap();
        loan.fill(3);
        assert_eq!(a.send_loan(loan).unwrap(), 100);
        i32::from(a.stats().references_copied == 0)
    });
    assert_eq!(heir.unwrap().wait(), Ended::Returned(0));
    assert_eq!(b.recv_with_flags(&mut buffer, RecvFlags::WAITALL).unwrap(), 300);
    assert!(buffer[..100] == [1; 100] && buffer[100..200] == [2; 100] && buffer[200..] == [3; 100]);
    // The parent's page came back to the parent, and the parent goes on lending.
    assert_eq!(pool.reclaim().unwrap(), 1);
    assert_eq!(lend(4), 100);
    assert_eq!(b.recv(&mut buffer).unwrap(), 100);
    assert_eq!((b.stats().protocol_errors, a.stats().references_copied), (0, 2));
}

/// A sender that is asleep, or holds a slot, uses up all the time that a fork has for senders.
#[test]
fn a_sender_that_is_busy_for_a_moment_is_waited_for_whoever_else_is_busy() {
    use std::time::Duration;
    alone!();
    let (held, _held) = pair(&small());
    let (busy, _busy) = pair(&small());
    let _slot = held.reserve(100).unwrap();
    let stop = onecopy_sync::atomic::AtomicU32::new(0);
    let sends = std::thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load(onecopy_sync::atomic::Ordering::Relaxed) == 0 {
                let slot = busy.reserve(100).unwrap();
                std::thread::sleep(Duration::from_micros(400));
                drop(slot);
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        // The moment is longer where there is little CPU. So this tries until most of 20 children in a row
        // could send. If a fork waits for no sender, one child in ten can.
        let mut last = 0u32;
        let sends = (0..500).any(|_| {
            let heir = child(|| i32::from(busy.send(b"x").is_ok()));
            let could = heir.unwrap().wait() == Ended::Returned(1);
            last = last << 1 & 0xf_ffff | u32::from(could);
            last.count_ones() >= 15
        });
        stop.store(1, onecopy_sync::atomic::Ordering::Relaxed);
        sends
    });
    assert!(sends, "few of 500 children could send");
}

#[test]
fn readiness_that_one_process_watches_is_kept_by_the_other() {
    use rustix::event::{PollFd, PollFlags, poll};
    alone!();
    let (a, b) = pair(&Config::default());
    let (ready, go) = (Wire::new(), Wire::new());
    let reader = child(|| {
        ready.tell(0);
        for _ in 0..2 {
            go.hear();
            let mut buffer = [0; 64];
            assert_eq!(b.recv(&mut buffer).unwrap(), 5);
            ready.tell(0);
        }
        0
    });
    let reader = reader.unwrap();
    ready.hear();
    let readable = |millis: i64| {
        let mut fds = [PollFd::from_borrowed_fd(b.as_fd(), PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
        poll(&mut fds, Some(&limit)).unwrap() == 1
    };
    for _ in 0..2 {
        assert!(!readable(1));
        send(&a, b"hello");
        assert!(readable(20_000));
        go.tell(0);
        ready.hear();
        assert!(!readable(1), "the other process took it");
    }
    assert_eq!(reader.wait(), Ended::Returned(0));
}

#[test]
fn an_end_forked_before_its_upgrade_goes_on_over_the_kernel() {
    alone!();
    let name = SocketAddr::from_abstract_name(format!("onecopy-forks-{}", std::process::id())).unwrap();
    let listener = Listener::bind(&name).unwrap();
    let client = Stream::connect(&name).unwrap();
    let (server, _) = listener.accept().unwrap();
    let wire = Wire::new();
    let mut buffer = [0; 64];
    let both = child(|| {
        let mut buffer = [0; 64];
        for i in 0..20u8 {
            let n = server.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..n], [i; 5]);
            send(&server, &buffer[..n]);
            wire.tell(0);
        }
        0
    });
    let both = both.unwrap();
    for i in 0..20u8 {
        send(&client, &[i; 5]);
        assert_eq!(client.recv(&mut buffer).unwrap(), 5);
        assert_eq!(buffer[..5], [i; 5]);
        wire.hear();
        send(&server, &[i; 7]);
        assert_eq!(client.recv(&mut buffer).unwrap(), 7);
    }
    assert_eq!(both.wait(), Ended::Returned(0));
}
