//! Calls that wait: what wakes them, and what cuts them short.

use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use onecopy_testing::LONG;
use rustix::process::{Signal, getpid, kill_process};

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::impls::{Conn, End, Kind, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, PEEK, SOON, WAITALL, asleep, drain, fill, rx, said, they_sleep, tx, wait_asleep};

pub const CASES: &[Case] = &[
    Case::same("wait.recv_woken", "a blocked recv is woken by a send", Both, "\"hi\"", recv_woken),
    Case::same("wait.peek_woken", "a blocked PEEK is woken by a send", Both, "\"hi\", \"hi\"", peek_woken),
    Case::same("wait.recv_closed", "a blocked recv is woken by the peer's close", Both, "end", recv_closed),
    Case::same(
        "wait.send_woken",
        "a blocked send is woken by the reader, and whole",
        Both,
        "whole",
        send_woken,
    ),
    Case::same("wait.rcvtimeo", "SO_RCVTIMEO EAGAIN", Both, "EAGAIN in time, then \"x\"", rcvtimeo),
    Case::same("wait.sndtimeo", "SO_SNDTIMEO EAGAIN", Both, "EAGAIN in time, then 1", sndtimeo),
    Case::same(
        "wait.sndtimeo_partly",
        "SO_SNDTIMEO with a part sent: short count",
        Both,
        "short count in time",
        sndtimeo_partly,
    ),
    Case::same(
        "wait.waitall_timeo",
        "WAITALL and SO_RCVTIMEO: what came so far",
        Linux,
        "\"abc\" in time",
        waitall_timeo,
    ),
    Case::same(
        "wait.timeout_off",
        "a timeout of none waits for ever",
        Both,
        "still waits, \"x\"",
        timeout_off,
    ),
    Case::same("wait.recv_eintr", "signal before any data EINTR", Both, "EINTR", recv_eintr),
    Case::same("wait.send_eintr", "signal before any data EINTR, sending", Both, "EINTR", send_eintr),
    Case::same(
        "wait.send_eintr_partly",
        "a signal after a part was sent: short count",
        Both,
        "short count",
        send_eintr_partly,
    ),
    Case::same(
        "wait.waitall_eintr",
        "a signal to WAITALL with a part received: that part",
        Both,
        "\"abc\", \"d\"",
        waitall_eintr,
    ),
    Case::same(
        "wait.recv_restart",
        "with SA_RESTART a signal goes unnoticed",
        Both,
        "signal came, \"x\"",
        recv_restart,
    ),
    Case::same(
        "wait.send_restart",
        "with SA_RESTART a signal goes unnoticed, sending",
        Both,
        "signal came, 1",
        send_restart,
    ),
    Case::same("wait.accept_eintr", "signal to a blocked accept EINTR", Both, "EINTR", accept_eintr),
    Case::same("wait.sigpipe", "closed peer EPIPE + SIGPIPE", Both, "EPIPE, 1 SIGPIPE", sigpipe),
    Case::same("wait.nosignal", "no SIGPIPE with MSG_NOSIGNAL", Both, "EPIPE, 0 SIGPIPE", nosignal),
    Case::same(
        "wait.sigpipe_shutdown",
        "EPIPE after own SHUT_WR comes with SIGPIPE too",
        Both,
        "EPIPE, 1 SIGPIPE",
        sigpipe_shutdown,
    ),
    Case::same(
        "wait.writer_freed_by_close",
        "blocked writer, peer closes: short count, then EPIPE",
        Linux,
        "short count, EPIPE",
        writer_freed_by_close,
    ),
    Case::same(
        "wait.writer_freed_by_close_no_signal",
        "blocked writer, peer closes: the short count comes with no SIGPIPE",
        Linux,
        "short count, 0 SIGPIPE",
        writer_close_signal,
    ),
    Case::same(
        "wait.writer_freed_by_shut_rd",
        "blocked writer, peer SHUT_RD: short count, then EPIPE",
        Linux,
        "short count, EPIPE",
        writer_freed_by_shut_rd,
    ),
    Case::same(
        "wait.writer_freed_by_own_shut_wr",
        "blocked writer, own SHUT_WR from another thread: short count, then EPIPE",
        Linux,
        "short count, EPIPE",
        writer_freed_by_own_shut_wr,
    ),
    Case::same(
        "wait.full_writer_freed_by_close",
        "blocked writer that sent nothing yet, peer closes without reading: ECONNRESET once, then EPIPE",
        Linux,
        "ECONNRESET, EPIPE",
        full_writer_freed_by_close,
    ),
    Case::same("wait.waitall", "WAITALL fills", Both, "\"abcdef\"", waitall),
    Case::same(
        "wait.waitall_large",
        "WAITALL fills, more than the buffer holds",
        Both,
        "3000000 bytes",
        waitall_large,
    ),
    Case::same(
        "wait.waitall_close",
        "WAITALL ends at EOF with a partial count, asleep when the peer closes",
        Both,
        "\"abc\", end",
        waitall_close,
    ),
    Case::same(
        "wait.waitall_reset",
        "WAITALL, asleep when the peer closes with unread data: the part; the reset counts as told",
        Linux,
        "\"abc\", end, end",
        waitall_reset,
    ),
    Case::same(
        "wait.two_readers",
        "two threads blocked in recv, two sends: each gets one",
        Linux,
        "1 and 1",
        two_readers,
    ),
    Case::same(
        "wait.two_readers_close",
        "two threads blocked in recv, peer closes: both get 0",
        Both,
        "0 and 0",
        two_readers_close,
    ),
];

fn recv_woken(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    while_asleep(|| rx(&*b, 9, Rx::default()), || tx(&*a, b"hi").map(|_| ()))
}

fn peek_woken(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let first = while_asleep(|| rx(&*b, 9, PEEK), || tx(&*a, b"hi").map(|_| ()))?;
    Ok(format!("{first}, {}", rx(&*b, 9, Rx::default())?))
}

fn recv_closed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    while_asleep(
        || rx(&*b, 9, Rx::default()),
        move || {
            drop(a);
            Ok(())
        },
    )
}

/// What `call` says, which sleeps until `then` has been done.
fn while_asleep(call: impl FnOnce() -> Outcome + Send, then: impl FnOnce() -> Result<(), Stop>) -> Outcome {
    std::thread::scope(|s| {
        let waiting = asleep(s, call);
        if waiting.is_finished() {
            let early = waiting.join().map_err(|_| Stop::broken("the waiting thread panicked"))??;
            return Ok(format!("did not wait: {early}"));
        }
        then()?;
        waiting.join().map_err(|_| Stop::broken("the waiting thread panicked"))?
    })
}

/// Bytes that no buffer of the default size holds; TCP's grow to megabytes at both ends.
fn large(cx: &Ctx<'_>) -> usize {
    if cx.kind == Kind::Tcp { 64 << 20 } else { 3_000_000 }
}

fn send_large(cx: &Ctx<'_>, end: &dyn End) -> Outcome {
    said(end.send(&vec![b'w'; large(cx)], Tx { nosignal: true, ..Tx::default() }))
}

/// A count as "short count" or "whole".
fn short(cx: &Ctx<'_>, answer: String) -> String {
    match answer.parse::<usize>() {
        Ok(n) if n == large(cx) => "whole".to_owned(),
        Ok(n) if n > 0 && n < large(cx) => "short count".to_owned(),
        _ => answer,
    }
}

fn send_woken(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    while_asleep(|| send_large(cx, &*a), || drain(&*b, large(cx))).map(|n| short(cx, n))
}

/// Whether it is `ms` after `since` now: never before, and not so late that it would have to be for another reason than a machine
/// with much to do.
fn in_time(since: Instant, ms: u64) -> String {
    match since.elapsed().as_millis() as u64 {
        // The kernel counts in jiffies, up to 10 ms each.
        t if t + 10 >= ms && t < ms + SOON => "in time".to_owned(),
        t => format!("after {t} ms instead of {ms}"),
    }
}

fn rcvtimeo(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_read_timeout(Some(Duration::from_millis(80)))?;
    let t = Instant::now();
    let first = rx(&*b, 9, Rx::default())?;
    let time = in_time(t, 80);
    tx(&*a, b"x")?;
    Ok(format!("{first} {time}, then {}", rx(&*b, 9, Rx::default())?))
}

fn sndtimeo(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.set_write_timeout(Some(Duration::from_millis(80)))?;
    let n = fill(&*a, 4096)? + fill(&*a, 1)?;
    let t = Instant::now();
    let first = tx(&*a, b"x")?;
    let time = in_time(t, 80);
    drain(&*b, n)?;
    Ok(format!("{first} {time}, then {}", tx(&*a, b"x")?))
}

fn sndtimeo_partly(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    a.set_write_timeout(Some(Duration::from_millis(80)))?;
    let t = Instant::now();
    let n = short(cx, send_large(cx, &*a)?);
    Ok(format!("{n} {}", in_time(t, 80)))
}

fn waitall_timeo(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_read_timeout(Some(Duration::from_millis(80)))?;
    tx(&*a, b"abc")?;
    let t = Instant::now();
    let n = rx(&*b, 9, WAITALL)?;
    Ok(format!("{n} {}", in_time(t, 80)))
}

fn timeout_off(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_read_timeout(Some(Duration::from_millis(30)))?;
    b.set_read_timeout(None)?;
    let said = while_asleep(
        || rx(&*b, 9, Rx::default()),
        || {
            std::thread::sleep(Duration::from_millis(80));
            tx(&*a, b"x").map(|_| ())
        },
    )?;
    Ok(if said.starts_with("did not") { said } else { format!("still waits, {said}") })
}

/// Catches `signal`; the pipe tells how often it came.
fn catch(signal: Signal, restart: bool) -> Result<UnixStream, Stop> {
    let (told, tell) = UnixStream::pair()?;
    tell.set_nonblocking(true)?;
    onecopy_sys::signal::catch(signal.as_raw(), OwnedFd::from(tell), restart)?;
    Ok(told)
}

fn count(told: &UnixStream) -> Result<u64, Stop> {
    Ok(rustix::io::ioctl_fionread(told.as_fd())?)
}

/// Does `call` on this, the main thread, which is where the kernel delivers a signal to the process first; the
/// signal is sent, and then `then` done, once it sleeps.
fn signalled<T>(
    restart: bool,
    call: impl FnOnce() -> T,
    then: impl FnOnce(&UnixStream) + Send,
) -> Result<T, Stop> {
    let told = &catch(Signal::USR1, restart)?;
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let (calling, returned) = mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            wait_asleep(me);
            let _ = kill_process(getpid(), Signal::USR1);
            then(told);
            // A thread that spins may not have come to its call when the signal did; and one that slept may have been woken by the
            // peer at that moment, and sleep again. In user space nobody remembers the signal then, so it gets another.
            let pause = Duration::from_millis(if they_sleep() { 2000 } else { 100 });
            while !restart && returned.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let _ = kill_process(getpid(), Signal::USR1);
            }
        });
        let answer = call();
        drop(calling);
        Ok(answer)
    })
}

fn recv_eintr(cx: &Ctx<'_>) -> Outcome {
    let (_a, b) = cx.pair()?;
    signalled(false, || rx(&*b, 9, Rx::default()), |_| ())?
}

fn send_eintr(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    fill(&*a, 4096)?;
    fill(&*a, 1)?;
    signalled(false, || tx(&*a, b"x"), |_| ())?
}

fn send_eintr_partly(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    signalled(false, || send_large(cx, &*a), |_| ())?.map(|n| short(cx, n))
}

fn waitall_eintr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    let part = signalled(false, || rx(&*b, 9, WAITALL), |_| ())??;
    tx(&*a, b"d")?;
    Ok(format!("{part}, {}", rx(&*b, 9, Rx::default())?))
}

/// Waits for the one signal, and a moment longer for what it might break.
fn came_once(told: &UnixStream) -> String {
    let until = Instant::now() + LONG;
    while count(told).is_ok_and(|n| n == 0) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(20));
    format!("{} came", if count(told).is_ok_and(|n| n == 1) { "signal" } else { "no signal" })
}

fn recv_restart(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let mut came = String::new();
    let got = signalled(
        true,
        || rx(&*b, 9, Rx::default()),
        |told| {
            came = came_once(told);
            let _ = a.send(b"x", Tx::default());
        },
    )??;
    Ok(format!("{came}, {got}"))
}

fn send_restart(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let n = fill(&*a, 4096)? + fill(&*a, 1)?;
    let mut came = String::new();
    let sent = signalled(
        true,
        || tx(&*a, b"x"),
        |told| {
            came = came_once(told);
            let _ = drain(&*b, n);
        },
    )??;
    Ok(format!("{came}, {sent}"))
}

fn accept_eintr(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let answer = signalled(false, || server.accept().map(|_| ()), |_| ())?;
    crate::tools::ok(answer)
}

fn sigpipe(cx: &Ctx<'_>) -> Outcome {
    let told = catch(Signal::PIPE, false)?;
    let (a, b) = cx.pair()?;
    drop(b);
    let sent = said(a.send(b"x", Tx::default()))?;
    Ok(format!("{sent}, {} SIGPIPE", count(&told)?))
}

fn nosignal(cx: &Ctx<'_>) -> Outcome {
    let told = catch(Signal::PIPE, false)?;
    let (a, b) = cx.pair()?;
    drop(b);
    let sent = tx(&*a, b"x")?;
    Ok(format!("{sent}, {} SIGPIPE", count(&told)?))
}

fn sigpipe_shutdown(cx: &Ctx<'_>) -> Outcome {
    let told = catch(Signal::PIPE, false)?;
    let (a, _b) = cx.pair()?;
    a.shutdown(Shutdown::Write)?;
    let sent = said(a.send(b"x", Tx::default()))?;
    Ok(format!("{sent}, {} SIGPIPE", count(&told)?))
}

fn writer_freed(cx: &Ctx<'_>, a: &Conn, then: impl FnOnce() -> Result<(), Stop>) -> Outcome {
    let first = while_asleep(|| send_large(cx, &**a), then).map(|n| short(cx, n))?;
    Ok(format!("{first}, {}", tx(&**a, b"x")?))
}

fn writer_freed_by_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    writer_freed(cx, &a, move || {
        drop(b);
        Ok(())
    })
}

fn writer_close_signal(cx: &Ctx<'_>) -> Outcome {
    let told = catch(Signal::PIPE, false)?;
    let (a, b) = cx.pair()?;
    let first = while_asleep(
        || said(a.send(&vec![b'w'; large(cx)], Tx::default())),
        move || {
            drop(b);
            Ok(())
        },
    )
    .map(|n| short(cx, n))?;
    Ok(format!("{first}, {} SIGPIPE", count(&told)?))
}

fn writer_freed_by_shut_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    writer_freed(cx, &a, || Ok(b.shutdown(Shutdown::Read)?))
}

fn writer_freed_by_own_shut_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    writer_freed(cx, &a, || Ok(a.shutdown(Shutdown::Write)?))
}

fn full_writer_freed_by_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    fill(&*a, 4096)?;
    fill(&*a, 1)?;
    let first = while_asleep(
        || tx(&*a, b"x"),
        move || {
            drop(b);
            Ok(())
        },
    )?;
    Ok(format!("{first}, {}", tx(&*a, b"x")?))
}

fn waitall(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    while_asleep(|| rx(&*b, 6, WAITALL), || tx(&*a, b"defghi").map(|_| ()))
}

fn waitall_large(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let sender = s.spawn(|| said(a.send(&vec![b'w'; 3_000_000], Tx::default())));
        let mut buf = vec![0; 3_000_000];
        let got = said(b.recv(&mut buf, WAITALL))?;
        sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        let right = buf.iter().all(|b| *b == b'w');
        Ok(if right { format!("{got} bytes") } else { format!("{got} bytes, garbled") })
    })
}

fn waitall_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    let first = while_asleep(
        || rx(&*b, 9, WAITALL),
        move || {
            drop(a);
            Ok(())
        },
    )?;
    Ok(format!("{first}, {}", rx(&*b, 9, Rx::default())?))
}

fn waitall_reset(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*b, b"unread")?;
    tx(&*a, b"abc")?;
    let first = while_asleep(
        || rx(&*b, 9, WAITALL),
        move || {
            drop(a);
            Ok(())
        },
    )?;
    Ok(format!("{first}, {}, {}", rx(&*b, 9, Rx::default())?, rx(&*b, 9, Rx::default())?))
}

fn two_readers(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    two(&*b, || {
        tx(&*a, b"x")?;
        // The second is for the other reader: without this the first might take both.
        let until = Instant::now() + LONG;
        while b.recv(&mut [0], Rx { peek: true, ..NOW }).is_ok() && Instant::now() < until {
            std::thread::yield_now();
        }
        tx(&*a, b"y").map(|_| ())
    })
}

fn two_readers_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    two(&*b, move || {
        drop(a);
        Ok(())
    })
}

fn two(b: &dyn End, then: impl FnOnce() -> Result<(), Stop>) -> Outcome {
    std::thread::scope(|s| {
        let mut readers = Vec::new();
        for _ in 0..2 {
            readers.push(asleep(s, || said(b.recv(&mut [0; 9], Rx::default()))));
        }
        then()?;
        let mut all = Vec::new();
        for r in readers {
            all.push(r.join().map_err(|_| Stop::broken("a reader panicked"))??);
        }
        Ok(all.join(" and "))
    })
}
