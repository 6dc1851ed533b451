//! Strangers that are killed while they hold what they were given.

use super::*;

/// A stranger sends messages of ones until it dies at `point`. Then this process sends messages of twos.
fn a_sender_dies(point: &'static str, namespace: bool) {
    const LEN: usize = 64;
    let full = matches!(point, "parking" | "filled" | "parked");
    let (filled, wire) = (Wire::new(), Wire::new());
    let work = |line: &Line| {
        let a = stream(line);
        arm(point, 2 - u32::from(full));
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            send(&a, &[1; LEN]);
            std::thread::sleep(Duration::from_micros(if full { 0 } else { 300 }));
        }
        1
    };
    let stranger = Stranger::new(|line| {
        if !namespace {
            return work(line);
        }
        if onecopy_sys::fork::unshare_pids().is_err() {
            return 77;
        }
        // The first process of a namespace cannot kill itself, but its child can.
        let init = child(|| i32::from(child(|| work(line)).unwrap().wait() != KILLED));
        match init.unwrap().wait() {
            Ended::Returned(0) => 78,
            _ => 1,
        }
    });
    let (a, b) = pair(&passable());
    b.set_wait_mode(Wait::Block);
    let token = a.share_fds().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            if full {
                filled.hear();
            }
            let (mut twos, mut message) = (0, [0; LEN]);
            while twos < 40 {
                let n = b.recv_with_flags(&mut message, RecvFlags::WAITALL).unwrap();
                assert_eq!(n, LEN, "{point}: the reader waited in vain");
                assert!(message.iter().all(|byte| *byte == message[0]), "{point}: half a send");
                twos += usize::from(message[0] == 2);
            }
        });
        stranger.line.give(token);
        match stranger.child.wait() {
            KILLED if !namespace => {}
            Ended::Returned(78) => {}
            Ended::Returned(77) => println!("no pid namespace could be made here: nothing was tested"),
            other => panic!("{point} is not on this way: {other:?}"),
        }
        if full {
            filled.tell(0);
        }
        for i in 0..40 {
            send(&a, &[2; LEN]);
            if i % 4 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        reader.join().unwrap();
    });
    drop(wire);
    assert_eq!(b.stats().protocol_errors + a.stats().protocol_errors, 0, "{point}");
    send(&b, b"back");
    assert_eq!(a.recv(&mut [0; 9]).unwrap(), 4);
}

const SENDING: [&str; 10] = [
    "copied in",
    "published",
    "saving",
    "saved",
    "ringing",
    "announced",
    "rung",
    "parking",
    "filled",
    "parked",
];

#[test]
fn a_stranger_killed_while_it_sends_leaves_the_others_going() {
    alone!();
    SENDING.iter().for_each(|point| a_sender_dies(point, false));
}

#[test]
fn a_stranger_killed_in_another_pid_namespace_does_so_too() {
    alone!();
    ["copied in", "published", "saving", "announced", "parked"]
        .iter()
        .for_each(|point| a_sender_dies(point, true));
}

/// A stranger receives numbered records until it dies at `point`, and this process receives the rest. `lost`
/// says whether one of them may be lost.
fn a_receiver_dies(point: &'static str, lost: bool) {
    let wire = Wire::new();
    let stranger = Stranger::new(|line| {
        let b = records(line);
        arm(point, 3);
        let mut record = [0; 8];
        while b.recv(&mut record).is_ok() {
            wire.tell(u64::from_ne_bytes(record));
        }
        1
    });
    let (a, b) = SeqPacket::pair_with(&passable()).unwrap();
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    b.set_wait_mode(Wait::Block);
    stranger.line.give(b.share_fds().unwrap());
    let mut next = 0u64;
    let mut child = Some(stranger.child);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| child.take().unwrap().wait());
        let began = Instant::now();
        while !waiter.is_finished() && began.elapsed() < PATIENCE {
            if a.unread_bytes().unwrap() == 0 {
                a.send(&next.to_ne_bytes()).unwrap();
                next += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(waiter.join().unwrap(), KILLED, "{point} is not on this way");
    });
    let returned = wire.hear_all();
    assert!(returned.iter().copied().eq(0..returned.len() as u64), "{point}: {returned:?}");
    let mut expected = returned.len() as u64;
    // The record that may be lost must not be waited for.
    let limit = next + 60;
    for number in next..limit {
        a.send(&number.to_ne_bytes()).unwrap();
    }
    let mut first = true;
    while expected < limit {
        let mut record = [0; 8];
        assert_eq!(b.recv(&mut record).unwrap(), 8, "{point}");
        let number = u64::from_ne_bytes(record);
        if std::mem::take(&mut first) && lost && number == expected + 1 {
            expected += 1;
        }
        assert_eq!(number, expected, "{point}");
        expected += 1;
    }
    assert_eq!(b.stats().protocol_errors + a.stats().protocol_errors, 0, "{point}");
}

#[test]
fn a_stranger_killed_while_it_receives_loses_at_most_what_it_was_receiving() {
    alone!();
    for (point, lost) in [
        ("copied out", false),
        ("taken", false),
        ("saving", false),
        ("saved", true),
        ("flushed", true),
        ("armed", false),
        ("doorbell taken", false),
    ] {
        a_receiver_dies(point, lost);
    }
}
