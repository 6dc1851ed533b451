//! O_NONBLOCK as others set and clear it, on the descriptor or a copy of it: fcntl(2), FIONBIO, another process. A call heeds it as
//! it is when the call begins.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use onecopy_sys::fork::child;

use crate::case::Source::Both;
use crate::case::{Case, Ctx};
use crate::cases::transfer::to_and_fro;
use crate::impls::{End, Listening, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, PEEK, WAITALL, asleep, fill, ok, others_set, poll_now, rx, said, tx};

pub const CASES: &[Case] = &[
    Case::same(
        "nonblocking.empty",
        "O_NONBLOCK set by others: every receive EAGAIN, each end",
        Both,
        "EAGAIN, EAGAIN, EAGAIN, EAGAIN, EAGAIN, OUT; EAGAIN, EAGAIN, EAGAIN, EAGAIN, EAGAIN, OUT",
        empty,
    ),
    Case::same(
        "nonblocking.full",
        "O_NONBLOCK set by others: every send EAGAIN once there is no room, each end",
        Both,
        "EAGAIN, EAGAIN, EAGAIN, nothing, OUT; EAGAIN, EAGAIN, EAGAIN, nothing, OUT",
        full,
    ),
    Case::same(
        "nonblocking.large",
        "O_NONBLOCK set by others: of more than there is room for a part is sent, then EAGAIN",
        Both,
        "short count, EAGAIN; short count, EAGAIN",
        large,
    ),
    Case::same(
        "nonblocking.timeouts",
        "O_NONBLOCK set by others comes before SO_RCVTIMEO and SO_SNDTIMEO",
        Both,
        "EAGAIN, EAGAIN; EAGAIN, EAGAIN",
        timeouts,
    ),
    Case::same(
        "nonblocking.waitall",
        "O_NONBLOCK set by others: WAITALL takes what is there",
        Both,
        "\"abc\", EAGAIN",
        waitall,
    ),
    Case::same(
        "nonblocking.ways",
        "O_NONBLOCK by FIONBIO, and by a copy of the descriptor",
        Both,
        "EAGAIN, \"x\", EAGAIN, \"x\"",
        ways,
    ),
    Case::same(
        "nonblocking.cleared",
        "O_NONBLOCK set by the call for it, and cleared by others: receives wait",
        Both,
        "EAGAIN, waits, \"hi\", EAGAIN",
        cleared,
    ),
    Case::same(
        "nonblocking.cleared_full",
        "O_NONBLOCK set by the call for it, and cleared by others: sends wait",
        Both,
        "EAGAIN, waits, 1000",
        cleared_full,
    ),
    Case::same(
        "nonblocking.cleared_timeout",
        "O_NONBLOCK cleared by others: timeouts hold again",
        Both,
        "EAGAIN, EAGAIN, EAGAIN, waits, \"hi\"",
        cleared_timeout,
    ),
    Case::same(
        "nonblocking.asleep",
        "O_NONBLOCK set while a receive sleeps: that one sleeps on, the next is EAGAIN",
        Both,
        "waits, \"hi\", EAGAIN",
        goes_on,
    ),
    Case::same(
        "nonblocking.asleep_full",
        "O_NONBLOCK set while a send sleeps: that one sleeps on, and others are EAGAIN meanwhile",
        Both,
        "waits, EAGAIN, 1000",
        goes_on_full,
    ),
    Case::same(
        "nonblocking.two_readers",
        "O_NONBLOCK set while a receive sleeps: others are EAGAIN meanwhile",
        Both,
        "waits, EAGAIN, \"hi\"",
        two_readers,
    ),
    Case::same(
        "nonblocking.transfer",
        "O_NONBLOCK set by others: both ways in one thread, short counts and all",
        Both,
        "intact, intact",
        transfer,
    ),
    Case::same(
        "nonblocking.fresh",
        "O_NONBLOCK set by others on a connection that was not used yet",
        Both,
        "client EAGAIN, server EAGAIN; client full EAGAIN, server full EAGAIN",
        fresh,
    ),
    Case::same(
        "nonblocking.accept",
        "O_NONBLOCK of a listener set by others: accept EAGAIN; cleared: it waits",
        Both,
        "EAGAIN, waits, ok",
        accept,
    ),
    Case::same(
        "nonblocking.child",
        "O_NONBLOCK set by a child holds for its parent",
        Both,
        "EAGAIN, EAGAIN, then \"x\"",
        by_child,
    ),
];

/// Cases of streams that ask for a part of what is sent, which records are not cut to.
pub const NOT_OF_RECORDS: &[&str] = &["nonblocking.large", "nonblocking.transfer"];
/// Cases that ask for connections besides, or for two processes with one end.
pub const NOT_OF_DATAGRAMS: &[&str] = &[
    "nonblocking.large",
    "nonblocking.transfer",
    "nonblocking.fresh",
    "nonblocking.accept",
    "nonblocking.child",
];

/// What a call of these does not wait for.
pub const LONG: Duration = Duration::from_secs(3600);
/// Bytes of a piece of what fills a buffer.
const PIECE: usize = 1000;

/// Sends without a flag until that fails.
pub fn until_refused(end: &dyn End) -> Outcome {
    let flags = Tx { nosignal: true, ..Tx::default() };
    for _ in 0..64 << 10 {
        if let Err(error) = end.send(&[b'f'; PIECE], flags) {
            return said(Err::<usize, _>(error));
        }
    }
    Err(Stop::broken("64 MB went in and there was still room"))
}

/// Takes all that is there.
fn empty_out(end: &dyn End) {
    let mut buf = vec![0; 64 << 10];
    while end.recv(&mut buf, NOW).is_ok_and(|n| n > 0) {}
}

/// What `ask` says of the first end, and of the second.
fn of_each(cx: &Ctx<'_>, ask: impl Fn(&dyn End, &dyn End) -> Outcome) -> Outcome {
    let (a, b) = cx.pair()?;
    Ok(format!("{}; {}", ask(&*a, &*b)?, ask(&*b, &*a)?))
}

fn empty(cx: &Ctx<'_>) -> Outcome {
    of_each(cx, |end, _| {
        others_set(end.fd(), true)?;
        let plain = [Rx::default(), PEEK, WAITALL].map(|flags| rx(end, 9, flags));
        let [recv, peek, all] = plain;
        let with = said(end.recv_with(&mut [0; 9], Rx::default()).map(|came| came.len))?;
        let in_place = said(end.recv_in_place(9, Rx::default()).map(|(bytes, _)| bytes.len()))?;
        Ok(format!("{}, {}, {}, {with}, {in_place}, {}", recv?, peek?, all?, poll_now(end)?))
    })
}

fn full(cx: &Ctx<'_>) -> Outcome {
    let null = std::fs::File::open("/dev/null")?;
    of_each(cx, |end, peer| {
        others_set(end.fd(), true)?;
        let refused = until_refused(end)?;
        let flags = Tx { nosignal: true, ..Tx::default() };
        let with = said(end.send_fds(&[0; PIECE], &[null.as_fd()], flags))?;
        let in_place = said(end.send_in_place(&[0; PIECE], flags))?;
        let full = poll_now(end)?;
        empty_out(peer);
        Ok(format!("{refused}, {with}, {in_place}, {full}, {}", poll_now(end)?))
    })
}

fn large(cx: &Ctx<'_>) -> Outcome {
    let data = vec![b'l'; 1 << 20];
    of_each(cx, |end, _| {
        others_set(end.fd(), true)?;
        let flags = Tx { nosignal: true, ..Tx::default() };
        let first = match end.send(&data, flags) {
            Ok(n) if n > 0 && n < data.len() => "short count".to_owned(),
            other => said(other)?,
        };
        // The kernel takes some more where one buffer of its has room.
        let then = (0..64).map(|_| end.send(&data, flags)).find(Result::is_err);
        Ok(format!("{first}, {}", then.map_or(Ok("64 more".into()), said)?))
    })
}

fn timeouts(cx: &Ctx<'_>) -> Outcome {
    of_each(cx, |end, peer| {
        end.set_read_timeout(Some(LONG))?;
        end.set_write_timeout(Some(LONG))?;
        others_set(end.fd(), true)?;
        let received = rx(end, 9, Rx::default())?;
        let refused = until_refused(end)?;
        empty_out(peer);
        Ok(format!("{received}, {refused}"))
    })
}

fn waitall(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    others_set(b.fd(), true)?;
    tx(&*a, b"abc")?;
    Ok(format!("{}, {}", rx(&*b, 9, WAITALL)?, rx(&*b, 9, WAITALL)?))
}

fn ways(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let copy = b.fd().try_clone_to_owned()?;
    let mut seen = Vec::new();
    let by_ioctl = |fd: BorrowedFd<'_>, on| -> io::Result<()> { Ok(rustix::io::ioctl_fionbio(fd, on)?) };
    let by_fcntl = |fd: BorrowedFd<'_>, on| others_set(fd, on);
    for (set, fd) in [(&by_ioctl as &dyn Fn(_, _) -> _, b.fd()), (&by_fcntl, copy.as_fd())] {
        set(fd, true)?;
        seen.push(rx(&*b, 9, Rx::default())?);
        set(fd, false)?;
        tx(&*a, b"x")?;
        seen.push(rx(&*b, 9, Rx::default())?);
    }
    Ok(seen.join(", "))
}

/// What `call` says, once `then` was done; and whether it slept until then.
pub fn waits_for(
    call: impl FnOnce() -> Outcome + Send,
    then: impl FnOnce() -> Result<(), Stop>,
) -> Result<(&'static str, String), Stop> {
    std::thread::scope(|s| {
        let waiting = asleep(s, call);
        let waits = if waiting.is_finished() { "does not wait" } else { "waits" };
        let done = then();
        let said = waiting.join().map_err(|_| Stop::broken("the waiting thread panicked"))??;
        done.map(|()| (waits, said))
    })
}

fn cleared(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_nonblocking(true)?;
    let first = rx(&*b, 9, Rx::default())?;
    others_set(b.fd(), false)?;
    let (waits, came) = waits_for(|| rx(&*b, 9, Rx::default()), || tx(&*a, b"hi").map(drop))?;
    others_set(b.fd(), true)?;
    Ok(format!("{first}, {waits}, {came}, {}", rx(&*b, 9, Rx::default())?))
}

fn cleared_full(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.set_nonblocking(true)?;
    let first = until_refused(&*a)?;
    others_set(a.fd(), false)?;
    let (waits, sent) = waits_for(
        || tx(&*a, &[0; PIECE]),
        || {
            empty_out(&*b);
            Ok(())
        },
    )?;
    Ok(format!("{first}, {waits}, {sent}"))
}

fn cleared_timeout(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_read_timeout(Some(LONG))?;
    b.set_nonblocking(true)?;
    let refused = [(); 3].map(|()| rx(&*b, 9, Rx::default()));
    let refused = refused.into_iter().collect::<Result<Vec<_>, _>>()?.join(", ");
    others_set(b.fd(), false)?;
    let (waits, came) = waits_for(|| rx(&*b, 9, Rx::default()), || tx(&*a, b"hi").map(drop))?;
    Ok(format!("{refused}, {waits}, {came}"))
}

fn goes_on(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let then = || {
        others_set(b.fd(), true)?;
        tx(&*a, b"hi").map(drop)
    };
    let (waits, came) = waits_for(|| rx(&*b, 9, Rx::default()), then)?;
    Ok(format!("{waits}, {came}, {}", rx(&*b, 9, Rx::default())?))
}

fn goes_on_full(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    fill(&*a, PIECE)?;
    let mut meanwhile = String::new();
    let then = || {
        others_set(a.fd(), true)?;
        meanwhile = tx(&*a, &[0; PIECE])?;
        empty_out(&*b);
        Ok(())
    };
    let (waits, sent) = waits_for(|| tx(&*a, &[0; PIECE]), then)?;
    Ok(format!("{waits}, {meanwhile}, {sent}"))
}

fn two_readers(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let mut meanwhile = String::new();
    let then = || {
        others_set(b.fd(), true)?;
        meanwhile = rx(&*b, 9, Rx::default())?;
        tx(&*a, b"hi").map(drop)
    };
    let (waits, came) = waits_for(|| rx(&*b, 9, Rx::default()), then)?;
    Ok(format!("{waits}, {meanwhile}, {came}"))
}

fn transfer(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    for end in [&a, &b] {
        others_set(end.fd(), true)?;
    }
    to_and_fro(&*a, &*b, Tx { nosignal: true, ..Tx::default() }, Rx::default())
}

fn fresh(cx: &Ctx<'_>) -> Outcome {
    let listener = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let server = listener.accept()?;
    let (client, server) = (&*client, &*server);
    others_set(client.fd(), true)?;
    others_set(server.fd(), true)?;
    let received =
        format!("client {}, server {}", rx(client, 9, Rx::default())?, rx(server, 9, Rx::default())?);
    Ok(format!("{received}; client full {}, server full {}", until_refused(client)?, until_refused(server)?))
}

fn accept(cx: &Ctx<'_>) -> Outcome {
    let listener = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let accept = |listener: &dyn Listening| ok(listener.accept().map(drop));
    others_set(listener.fd(), true)?;
    let first = accept(&*listener)?;
    others_set(listener.fd(), false)?;
    let then = || cx.imp.connect(cx.kind, &cx.path("s")).map(drop).map_err(Stop::from);
    let (waits, came) = waits_for(|| accept(&*listener), then)?;
    Ok(format!("{first}, {waits}, {came}"))
}

fn by_child(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.set_write_timeout(Some(LONG))?;
    let (told, tell) = rustix::pipe::pipe()?;
    let (ends, end) = rustix::pipe::pipe()?;
    // The child lives while its parent asks: so both have the ends.
    let child = child(|| {
        let set = a.set_nonblocking(true).and_then(|()| b.set_nonblocking(true));
        let _ = rustix::io::write(&tell, &[u8::from(set.is_ok())]);
        let _ = rustix::io::read(&ends, &mut [0; 1]);
        0
    })?;
    let mut set = [0];
    rustix::io::read(&told, &mut set)?;
    if set != [1] {
        return Err(Stop::broken("the child could not set it"));
    }
    let answers = format!("{}, {}", rx(&*b, 9, Rx::default())?, until_refused(&*a)?);
    rustix::io::write(&end, b"x")?;
    child.wait();
    empty_out(&*b);
    tx(&*a, b"x")?;
    Ok(format!("{answers}, then {}", rx(&*b, 9, Rx::default())?))
}
