//! Members that are stopped, and members that are gone.

use super::{PATIENCE, Wire, alone, asleep, pair, send, small};
use crate::failpoint::at;
use crate::members::patience::STUCK;
use crate::{Config, RecvFlags, SendFlags, Stream};
use onecopy_sys::fork::{Child, Ended, child};
use onecopy_testing::slept;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use std::time::{Duration, Instant};

const NOW: RecvFlags = RecvFlags::DONTWAIT;

/// Starts a child that receives a byte and is then stopped, with the lock of `b`'s receiving side.
fn stopped(b: &Stream) -> Child {
    let stops = child(|| {
        at("saving", || kill_process(getpid(), Signal::STOP).unwrap());
        assert_eq!(b.recv(&mut [0; 1]).unwrap(), 1);
        0
    });
    let stops = stops.unwrap();
    let pid = Pid::from_raw(stops.pid());
    assert!(waitpid(pid, WaitOptions::UNTRACED).unwrap().unwrap().1.stopped());
    stops
}

#[test]
fn a_holder_that_is_stopped_stops_nobody_who_does_not_wait() {
    alone!();
    let (a, b) = pair(&small());
    send(&a, &[7; 100]);
    let view = b.recv_borrowed(40).unwrap();
    let stops = stopped(&b);
    let again =
        |error: crate::Error| assert_eq!(error.raw_os_error(), Errno::AGAIN.raw_os_error(), "{error}");
    let ((), first) = slept(|| {
        again(b.recv_with_flags(&mut [0; 9], NOW).unwrap_err());
        b.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        again(b.recv(&mut [0; 9]).unwrap_err());
        let error = b.readable_bytes().unwrap_err();
        assert_eq!(error.raw_os_error(), Errno::BUSY.raw_os_error());
        assert!(error.to_string().contains("stopped"), "{error}");
    });
    assert!(b.path().is_shared_memory());
    // Threads with different timeouts do not wait for each other.
    std::thread::scope(|scope| {
        b.set_read_timeout(None).unwrap();
        let waits = asleep(scope, || b.recv(&mut [0; 9]));
        let ((), then) = slept(|| {
            again(b.recv_with_flags(&mut [0; 9], NOW).unwrap_err());
            drop(view);
        });
        // Who waits for who is stopped does so for [`STUCK`].
        assert!(first + then < STUCK / 2, "somebody waited for who is stopped");
        stops.signal(Signal::CONT.as_raw());
        assert_eq!(waits.join().unwrap().unwrap(), 9);
    });
    assert_eq!(stops.wait(), Ended::Returned(0));
    assert_eq!(b.recv_with_flags(&mut [0; 100], NOW).unwrap(), 50);
    assert_eq!(a.unread_bytes().unwrap(), 0, "the view was given back");
    assert_eq!((a.stats().protocol_errors, b.stats().protocol_errors), (0, 0));
}

#[test]
fn a_sender_waits_for_a_holder_that_is_stopped_no_longer_than_for_its_peer() {
    alone!();
    let (a, b) = pair(&small());
    let stops = child(|| {
        at("copied in", || kill_process(getpid(), Signal::STOP).unwrap());
        send(&a, b"x");
        0
    });
    let stops = stops.unwrap();
    assert!(waitpid(Pid::from_raw(stops.pid()), WaitOptions::UNTRACED).unwrap().unwrap().1.stopped());
    let flags = SendFlags::empty();
    assert!(a.send_with_flags(b"y", flags | SendFlags::DONTWAIT).unwrap_err().would_block());
    a.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(a.send_with_flags(b"y", flags).unwrap_err().would_block());
    a.set_write_timeout(None).unwrap();
    std::thread::scope(|scope| {
        let waits = asleep(scope, || a.send_with_flags(b"y", flags));
        assert!(!waits.is_finished());
        // The end is not dropped: the stopped process has it too.
        b.shutdown(std::net::Shutdown::Both).unwrap();
        let error = waits.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Errno::PIPE.raw_os_error());
    });
    drop(stops);
}

/// Returns whether each direction counts as shared. It does not once the end is known to be this process's
/// alone.
fn is_shared(stream: &Stream) -> (bool, bool) {
    let end = stream.end();
    (end.rx().mutex().lock().is_shared(), end.tx().mutex().lock().is_shared())
}

/// Uses both directions of both ends.
fn use_both(a: &Stream, b: &Stream) {
    let mut buffer = [0; 64];
    for (from, to) in [(a, b), (b, a)] {
        send(from, &[5; 64]);
        assert_eq!(to.recv_with_flags(&mut buffer, RecvFlags::WAITALL).unwrap(), 64);
        assert_eq!(buffer, [5; 64]);
    }
    std::thread::sleep(Duration::from_millis(2));
}

/// Uses `a` and `b` until they have had time to look which processes hold them.
fn use_for_a_while(a: &Stream, b: &Stream) {
    let (began, mut rounds) = (Instant::now(), 0);
    // With little CPU the time may be over before the first round is.
    while began.elapsed() < Duration::from_millis(150) || rounds < 40 {
        rounds += 1;
        use_both(a, b);
    }
}

#[test]
fn an_end_is_one_process_s_again_once_the_others_are_gone_however_they_went() {
    alone!();
    // The rings have room for everything behind the views.
    let (a, b) = pair(&Config::default());
    let wire = Wire::new();
    let gone: [(&str, &dyn Fn() -> Ended); 3] = [
        ("ended", &|| child(|| 0).unwrap().wait()),
        ("killed", &|| {
            let killed = child(|| {
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
            let killed = killed.unwrap();
            killed.signal(9);
            killed.wait()
        }),
        ("exec", &|| {
            use std::os::unix::process::CommandExt;
            let exec = child(|| {
                let error = std::process::Command::new("/proc/self/exe")
                    .arg("--list")
                    .stdout(std::process::Stdio::null())
                    .exec();
                panic!("{error}");
            });
            exec.unwrap().wait()
        }),
    ];
    for (how, go) in gone {
        let view = {
            send(&a, &[9; 10]);
            b.recv_borrowed(10).unwrap()
        };
        let stays = child(|| {
            wire.hear();
            0
        });
        let stays = stays.unwrap();
        go();
        use_for_a_while(&a, &b);
        assert_eq!((is_shared(&a), is_shared(&b)), ((true, true), (true, true)), "{how}: one is left");
        assert!(a.end().others().are_there());
        wire.tell(0);
        assert_eq!(stays.wait(), Ended::Returned(0));
        let began = Instant::now();
        while (is_shared(&a), is_shared(&b)) != ((false, false), (false, false)) {
            assert!(began.elapsed() < PATIENCE, "{how}: {:?}, {:?}", is_shared(&a), is_shared(&b));
            use_both(&a, &b);
        }
        assert!(!a.end().others().are_there());
        assert_eq!(view.len(), 10);
        drop(view);
        assert_eq!(a.unread_bytes().unwrap(), 0);
    }
    // So views do not keep the peer from seeing the end.
    send(&a, &[9; 10]);
    let view = b.recv_borrowed(10).unwrap();
    drop(b);
    assert_eq!(a.recv(&mut [0; 1]).unwrap(), 0);
    drop(view);
    assert_eq!(a.stats().protocol_errors, 0);
}

#[test]
fn a_fork_that_fails_leaves_nobody_else() {
    alone!();
    let (a, b) = pair(&small());
    // This runs in a child, whose limit does not affect others.
    let tries = child(|| {
        use rustix::process::{Resource, Rlimit, setrlimit};
        if rustix::process::geteuid().is_root() {
            // Root has no such limit.
            let nobody = rustix::fs::Uid::from_raw(4711);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
        // A wait would take a second each time. With little CPU, one fork may take that long too.
        let waits = (0..5).all(|_| {
            let began = Instant::now();
            assert!(child(|| 0).is_err());
            began.elapsed() > Duration::from_millis(900)
        });
        assert!(!waits, "it waited for a child that never was");
        let end = a.end();
        let sharing = end.others().sharing().unwrap();
        // The parent is the only other member.
        let parents = |member: u32| member != sharing.me() && sharing.lives(member);
        assert!(sharing.words().members.0.has_others(sharing.me(), parents));
        assert!(
            !sharing.words().members.0.has_others(sharing.me(), |_| false),
            "a child that never was is counted"
        );
        0
    });
    assert_eq!(tries.unwrap().wait(), Ended::Returned(0));
    use_for_a_while(&a, &b);
}

#[test]
fn a_thread_that_makes_pages_for_chains_at_a_fork_stops_no_child() {
    alone!();
    let (a, b) = pair(&Config::default());
    let (locked, go, wire) = (Wire::new(), Wire::new(), Wire::new());
    send(&a, &[3; 20]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = b.end();
            let copies = end.copies();
            let (locked, go) = (&locked, &go);
            copies.keep_locked(|| {
                locked.tell(0);
                go.hear();
            });
        });
        locked.hear();
        let heir = child(|| {
            assert_eq!(b.recv_chain(10).unwrap().len(), 10);
            wire.tell(0);
            0
        });
        let heir = heir.unwrap();
        let served = wire.speaks();
        go.tell(0);
        assert!(served, "the child waits for a thread that it does not have");
        assert_eq!(heir.wait(), Ended::Returned(0));
    });
    assert_eq!(b.recv_chain(100).unwrap().len(), 10);
}
