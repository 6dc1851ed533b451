//! One end in several processes, after fork(2).

use std::net::Shutdown::Write;

use onecopy_sys::fork::{Child, Ended, child};

use crate::case::Source::{Both, FreeBsd};
use crate::case::{Case, Ctx};
use crate::impls::{End, Kind, Rx};
use crate::stop::{Outcome, Stop};
use crate::tools::{self, drain_to_end, rx, tx};

pub const CASES: &[Case] = &[
    Case::same(
        "fork.both_send",
        "after fork both processes send on one end",
        Both,
        "\"child\", \"parent\"",
        both_send,
    ),
    Case::same(
        "fork.both_receive",
        "after fork each byte is received once, by whichever process asks first",
        Both,
        "\"def\", \"ghi\"",
        both_receive,
    ),
    Case::same(
        "fork.child_exits",
        "a child that ends, without and with a close, leaves the connection to its parent",
        Both,
        "\"one\", \"two\", EAGAIN",
        child_exits,
    ),
    Case::same(
        "fork.parent_closes",
        "the peer sees the end when the last process has closed",
        Both,
        "EAGAIN, \"still here\", end",
        parent_closes,
    ),
    Case::same(
        "fork.shutdown_by_child",
        "what one process shuts down is shut down for the other",
        Both,
        "EPIPE, end, 2, \"hi\"",
        shutdown_by_child,
    ),
    Case::same(
        "fork.seqpacket_shutdown_by_child",
        "what one process shuts down is shut down for the other",
        Both,
        "EPIPE, end, 2, \"hi\"",
        shutdown_by_child,
    )
    .of(Kind::SeqPacket),
    Case::same(
        "fork.sender_killed",
        "a process killed asleep in a send leaves the end to the other",
        Both,
        "all of ours, and the end",
        sender_killed,
    ),
    Case::same(
        "fork.receiver_killed",
        "a process killed asleep in a receive takes nothing with it",
        Both,
        "\"hello\"",
        receiver_killed,
    ),
    Case::better(
        "fork.whole_sends",
        "sends of several processes never interleave, however long",
        FreeBsd,
        "*",
        "300 whole sends",
        whole_sends,
    ),
    Case::same(
        "fork.records",
        "records of several senders and receivers arrive whole and once",
        Both,
        "600 records, each once",
        records,
    )
    .of(Kind::SeqPacket),
];

fn forked(work: impl FnOnce() -> Result<(), Stop>) -> Result<Child, Stop> {
    Ok(child(|| i32::from(work().is_err()))?)
}

fn ended(child: Child) -> Result<(), Stop> {
    match child.wait() {
        Ended::Returned(0) => Ok(()),
        other => Err(Stop::broken(format!("the child {other:?}"))),
    }
}

fn both_send(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    ended(forked(|| tx(&*a, b"child").map(drop))?)?;
    let first = rx(&*b, 9, Rx::default())?;
    tx(&*a, b"parent")?;
    Ok(format!("{first}, {}", rx(&*b, 9, Rx::default())?))
}

fn both_receive(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdefghi")?;
    ended(forked(|| rx(&*b, 3, Rx::default()).map(drop))?)?;
    Ok(format!("{}, {}", rx(&*b, 3, Rx::default())?, rx(&*b, 9, Rx::default())?))
}

fn child_exits(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    ended(forked(|| Ok(()))?)?;
    tx(&*a, b"one")?;
    let one = rx(&*b, 9, Rx::default())?;
    let (mut a, mut b) = (Some(a), Some(b));
    let closer = forked(|| {
        (a, b) = (None, None);
        Ok(())
    })?;
    ended(closer)?;
    let gone = || Stop::broken("taken by the child alone");
    let (a, b) = (a.ok_or_else(gone)?, b.ok_or_else(gone)?);
    tx(&*a, b"two")?;
    Ok(format!("{one}, {}, {}", rx(&*b, 9, Rx::default())?, tools::said(b.recv(&mut [0; 9], tools::NOW))?))
}

fn parent_closes(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (go, wait) = rustix::pipe::pipe().map(|(read, write)| (write, read))?;
    let stayer = forked(|| {
        rustix::io::read(&wait, &mut [0; 1])?;
        tx(&*a, b"still here").map(drop)
    })?;
    drop(a);
    let before = tools::said(b.recv(&mut [0; 9], tools::NOW))?;
    rustix::io::write(&go, &[0])?;
    let said = rx(&*b, 99, Rx::default())?;
    ended(stayer)?;
    Ok(format!("{before}, {said}, {}", rx(&*b, 9, Rx::default())?))
}

fn shutdown_by_child(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    ended(forked(|| Ok(a.shutdown(Write)?))?)?;
    let mine = format!("{}, {}", tx(&*a, b"x")?, rx(&*b, 9, Rx::default())?);
    Ok(format!("{mine}, {}, {}", tx(&*b, b"hi")?, rx(&*a, 9, Rx::default())?))
}

fn sender_killed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sleeper = forked(|| tx(&*a, &vec![1; 8 << 20]).map(drop))?;
    // For room.
    tools::wait_asleep(sleeper.pid());
    sleeper.signal(9);
    sleeper.wait();
    std::thread::scope(|s| {
        let sender = s.spawn(|| {
            let said = tx(&*a, &vec![2; 1 << 20])?;
            a.shutdown(Write)?;
            Ok::<_, Stop>(said)
        });
        let (mut twos, mut buffer) = (0, vec![0; 1 << 16]);
        loop {
            let n = b.recv(&mut buffer, Rx::default())?;
            if n == 0 {
                break;
            }
            twos += buffer[..n].iter().filter(|byte| **byte == 2).count();
        }
        sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        Ok(if twos == 1 << 20 { "all of ours, and the end".into() } else { format!("{twos} of ours") })
    })
}

fn receiver_killed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sleeper = forked(|| rx(&*b, 9, Rx::default()).map(drop))?;
    tools::wait_asleep(sleeper.pid());
    sleeper.signal(9);
    sleeper.wait();
    tx(&*a, b"hello")?;
    rx(&*b, 9, Rx::default())
}

fn whole_sends(cx: &Ctx<'_>) -> Outcome {
    const LEN: usize = 300_000;
    let (a, b) = cx.pair()?;
    let send = |a: &dyn End, id: u8| (0..100).try_for_each(|_| tx(a, &vec![id; LEN]).map(drop));
    let children = [forked(|| send(&*a, 1))?, forked(|| send(&*a, 2))?];
    std::thread::scope(|s| {
        let sender = s.spawn(|| send(&*a, 3));
        let mut whole = 0;
        let mut message = vec![0; LEN];
        for _ in 0..300 {
            let n = b.recv(&mut message, tools::WAITALL)?;
            whole += usize::from(n == LEN && message.iter().all(|byte| *byte == message[0]));
        }
        sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        Ok(format!("{whole} whole sends"))
    })
    .and_then(|said| children.into_iter().try_for_each(ended).map(|()| said))
}

fn records(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let send = |a: &dyn End, from: u32| {
        (from..from + 200).try_for_each(|i| tx(a, &i.to_ne_bytes().repeat(50)).map(drop))
    };
    let (ear, mouth) = rustix::pipe::pipe()?;
    let receive = |b: &dyn End| {
        let mut record = [0; 400];
        loop {
            let n = b.recv(&mut record, Rx::default())?;
            if n == 0 {
                return Ok(());
            }
            let number = [record[0], record[1], record[2], record[3]];
            let whole = n == 200 && record[..200].chunks(4).all(|word| word == number);
            rustix::io::write(&mouth, &if whole { number } else { [0xff; 4] })?;
        }
    };
    let receiver = forked(|| receive(&*b))?;
    let senders = [forked(|| send(&*a, 0))?, forked(|| send(&*a, 200))?];
    let mut seen = std::thread::scope(|s| {
        let own = s.spawn(|| receive(&*b));
        send(&*a, 400)?;
        senders.into_iter().try_for_each(ended)?;
        a.shutdown(Write)?;
        own.join().map_err(|_| Stop::broken("the receiver panicked"))??;
        Ok::<_, Stop>(Vec::new())
    })?;
    ended(receiver)?;
    drop(mouth);
    let mut number = [0; 4];
    while rustix::io::read(&ear, &mut number)? == 4 {
        seen.push(u32::from_ne_bytes(number));
    }
    seen.sort_unstable();
    let once = seen.into_iter().eq(0..600);
    let _ = drain_to_end(&*b);
    Ok(if once { "600 records, each once".into() } else { "others".into() })
}
