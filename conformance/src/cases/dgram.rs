//! Datagrams: boundaries, full receivers, peers that are gone.

use std::net::Shutdown;
use std::sync::Barrier;
use std::time::Duration;

use crate::case::Source::{Both, FreeBsd, Linux};
use crate::case::{Case, Ctx, Expect};
use crate::cases::datagrams::{bound, dg, named_pair, same};
use crate::cases::messages::{
    many, msg_trunc, no_interleave, peek, poll_data, recv_zero, sleeper, too_long, vectored, waitall, whole,
    zero_length,
};
use crate::impls::{End, Kind, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, TX_NOW, asleep, errno, ok, poll_now, rx, said, tx};

/// A case of streams, tried with datagrams: whatever the kernel answers is right.
pub fn again(case: &Case) -> Case {
    let expect = if matches!(case.expect, Expect::Same(_)) { Expect::Oracle } else { case.expect };
    let name = format!("dgram/{}", case.name);
    Case { name: name.leak(), expect, ..*case }.of(Kind::Dgram)
}

/// Cases that wait for an end, which datagrams don't have, listen, or cut what was sent.
pub const NOT_AGAIN: &[&str] = &[
    "poll.low_water",
    "rights.sender_gone",
    "creds.before_accept",
    "shutdown.peer_wr",
    "shutdown.both",
    "shutdown.wakes_peer_recv",
    "shutdown.queued_survives_rdwr",
    "shutdown.shut_both_at_once",
    "poll.data",
];

pub const CASES: &[Case] = &[
    same("dgram.boundaries", "boundaries kept", Both, "\"abc\", \"def\", EAGAIN", boundaries),
    same(
        "dgram.truncation",
        "truncation sets MSG_TRUNC, the rest is gone",
        Both,
        "3 cut, EAGAIN",
        truncation,
    ),
    same("dgram.msg_trunc", "real length with MSG_TRUNC", Both, "6 cut, 6 cut", msg_trunc),
    same(
        "dgram.peek",
        "PEEK sees one datagram, repeatable",
        Both,
        "\"abc\", \"abc\", \"abc\", \"def\"",
        peek,
    ),
    same("dgram.waitall", "WAITALL has no effect", Linux, "\"abc\", \"def\"", waitall),
    same(
        "dgram.zero_length",
        "zero-length datagram delivered, and polled for",
        Linux,
        "0, IN+OUT, 0 whole, \"x\", EAGAIN, OUT",
        zero_length,
    ),
    same("dgram.recv_zero", "recv of 0 bytes takes the datagram", Linux, "0 cut, EAGAIN", recv_zero),
    same(
        "dgram.too_long",
        "over maximum EMSGSIZE, and nothing of it is sent",
        Both,
        "EMSGSIZE, EAGAIN, \"x\"",
        too_long,
    ),
    same(
        "dgram.vectored",
        "sendmsg gathers one datagram, recvmsg scatters it",
        Both,
        "6, 6, \"ab\", \"cdef\"",
        vectored,
    ),
    same("dgram.fionread", "FIONREAD = bytes of the next datagram", Linux, "0, 3, 2, 0", fionread),
    same("dgram.poll_data", "POLLIN as long as a datagram is queued", Both, "IN+OUT, IN+OUT, OUT", poll_data),
    same(
        "dgram.full",
        "full nonblocking EAGAIN, not POLLOUT; what was sent is whole",
        Linux,
        "EAGAIN, nothing, all of 1000 bytes each, EAGAIN, OUT",
        full,
    ),
    Case {
        expect: Expect::Oracle,
        ..same(
            "dgram.qlen",
            "an unconnected receiver holds net.unix.max_dgram_qlen and one more",
            Linux,
            "",
            qlen,
        )
    },
    same(
        "dgram.qlen_other_sender",
        "a receiver that is full of one sender is full for others: full means all of it",
        Linux,
        "EAGAIN, \"f\", 1",
        qlen_other,
    ),
    same("dgram.full_waits", "full blocks, until there is room", Linux, "1000, 1000 whole", full_waits),
    same(
        "dgram.full_closed",
        "blocked sender, peer closes: ECONNREFUSED",
        Linux,
        "ECONNREFUSED, ENOTCONN",
        full_closed,
    ),
    same("dgram.timeouts", "SO_RCVTIMEO, SO_SNDTIMEO EAGAIN", Both, "EAGAIN, EAGAIN", timeouts),
    same(
        "dgram.closed_peer",
        "peer closed ECONNREFUSED then ENOTCONN",
        Linux,
        "ECONNREFUSED, ENOTCONN, OUT, EAGAIN",
        closed_peer,
    ),
    same(
        "dgram.closed_while_sending",
        "a peer that closes at any moment of a sender that does not wait: ECONNREFUSED once, then ENOTCONN",
        Linux,
        "ECONNREFUSED, ENOTCONN, 200 times",
        closed_while_sending,
    ),
    same(
        "dgram.closed_peer_recv",
        "what a closed peer had sent is received, then nothing comes; unread data at its close is no error",
        Linux,
        "\"y\", \"z\", EAGAIN, no error",
        closed_peer_recv,
    ),
    same(
        "dgram.refused_loses",
        "a send that is refused loses what the closed peer had sent",
        Linux,
        "ECONNREFUSED, EAGAIN",
        refused_loses,
    ),
    same(
        "dgram.closed_peer_again",
        "after a peer that is gone, connect to a new one",
        Both,
        "ECONNREFUSED, ok, 3, \"new\", \"old\"",
        closed_peer_again,
    ),
    same(
        "dgram.shut_peer_rd",
        "peer SHUT_RD: send EPIPE, and no SIGPIPE",
        Linux,
        "EPIPE, EPIPE, \"x\"",
        shut_peer_rd,
    ),
    same("dgram.shut_own_wr", "own SHUT_WR: send EPIPE, and no SIGPIPE", Linux, "EPIPE, \"x\"", shut_own_wr),
    same(
        "dgram.shut_own_rd",
        "own SHUT_RD: what is queued, then 0 where it would wait and EAGAIN where not",
        Linux,
        "\"q\", EAGAIN, end",
        shut_own_rd,
    ),
    same("dgram.shut_peer_wr", "peer SHUT_WR is not seen", Linux, "\"q\", EAGAIN, OUT", shut_peer_wr),
    same("dgram.so_error", "SO_ERROR gives it once", Linux, "OUT+ERR, ECONNRESET, no error, OUT", so_error),
    same("dgram.sleeper", "a sleeping receiver is woken by a datagram", Both, "\"abc\"", sleeper),
    same(
        "dgram.no_interleave",
        "datagrams of concurrent senders stay whole and in order",
        Both,
        "4000 messages, whole and in order",
        no_interleave,
    ),
    same(
        "dgram.many",
        "datagrams of all sizes, from empty to 20000 bytes, come as they went",
        Both,
        "2000 messages, intact",
        many,
    ),
    same(
        "dgram.no_starving",
        "one sender cannot starve others: what came before the connection is received while the peer floods",
        FreeBsd,
        "3 of another sender among the first 10",
        no_starving,
    ),
];

fn boundaries(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    Ok(format!("{}, {}, {}", rx(&*b, 20, Rx::default())?, rx(&*b, 20, Rx::default())?, rx(&*b, 20, NOW)?))
}

fn truncation(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    Ok(format!("{}, {}", whole(&*b, 3, Rx::default())?, rx(&*b, 9, NOW)?))
}

fn fionread(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let none = said(b.readable_bytes())?;
    tx(&*a, b"abc")?;
    tx(&*a, b"de")?;
    let first = said(b.readable_bytes())?;
    rx(&*b, 1, Rx::default())?;
    let second = said(b.readable_bytes())?;
    rx(&*b, 9, Rx::default())?;
    Ok(format!("{none}, {first}, {second}, {}", said(b.readable_bytes())?))
}

fn full(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let mut sent = 0;
    let answer = loop {
        match a.send(&[7; 1000], TX_NOW) {
            Ok(1000) if sent < 100_000 => sent += 1,
            other => break said(other)?,
        }
    };
    let events = poll_now(&*a)?;
    for i in 0..sent {
        let got = whole(&*b, 2000, NOW)?;
        if got != "1000 whole" {
            return Err(Stop::broken(format!("datagram {i} of {sent}: {got}")));
        }
    }
    let after = format!("{}, {}", rx(&*b, 9, NOW)?, poll_now(&*a)?);
    Ok(format!("{answer}, {events}, all of 1000 bytes each, {after}"))
}

/// Sends until there is no room; how many went in.
fn flood(a: &dyn End) -> Result<usize, Stop> {
    let mut sent = 0;
    while sent < 100_000 {
        match a.send(b"f", TX_NOW) {
            Ok(_) => sent += 1,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(sent),
            Err(e) => return Err(e.into()),
        }
    }
    Err(Stop::broken("100000 datagrams went in and there was still room"))
}

fn qlen(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = (dg(cx)?, bound(cx, "b")?);
    a.connect(&cx.path("b"))?;
    Ok(format!("{}, then {}", flood(&*a as &dyn End)?, poll_now(&*a as &dyn End)?))
}

fn qlen_other(cx: &Ctx<'_>) -> Outcome {
    let (a, b, c) = (dg(cx)?, bound(cx, "b")?, dg(cx)?);
    a.connect(&cx.path("b"))?;
    c.connect(&cx.path("b"))?;
    flood(&*a as &dyn End)?;
    let other = said(c.send(b"x", TX_NOW))?;
    let got = rx(&*b as &dyn End, 9, NOW)?;
    Ok(format!("{other}, {got}, {}", said(c.send(b"x", TX_NOW))?))
}

fn full_waits(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let mut queued = 0;
    while a.send(&[7; 1000], TX_NOW).is_ok() {
        queued += 1;
    }
    std::thread::scope(|s| {
        let sender = asleep(s, || tx(&*a, &[8; 1000]));
        for _ in 0..queued {
            whole(&*b, 2000, Rx::default())?;
        }
        let sent = sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        Ok(format!("{sent}, {}", whole(&*b, 2000, Rx::default())?))
    })
}

fn full_closed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    while a.send(&[7; 1000], TX_NOW).is_ok() {}
    std::thread::scope(|s| {
        let sender = asleep(s, || tx(&*a, &[8; 1000]));
        drop(b);
        let first = sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        Ok(format!("{first}, {}", tx(&*a, b"x")?))
    })
}

fn timeouts(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    a.set_read_timeout(Some(Duration::from_millis(30)))?;
    a.set_write_timeout(Some(Duration::from_millis(30)))?;
    let received = rx(&*a, 9, Rx::default())?;
    while a.send(&[7; 1000], TX_NOW).is_ok() {}
    Ok(format!("{received}, {}", tx(&*a, &[8; 1000])?))
}

fn closed_peer(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    let sent = format!("{}, {}", tx(&*a, b"x")?, tx(&*a, b"x")?);
    Ok(format!("{sent}, {}, {}", poll_now(&*a)?, rx(&*a, 9, NOW)?))
}

/// Times that a peer closes while this end sends, each a little later.
const CLOSES: u32 = 200;

fn closed_while_sending(cx: &Ctx<'_>) -> Outcome {
    for round in 0..CLOSES {
        let (a, b) = cx.pair()?;
        let begun = Barrier::new(2);
        let told = std::thread::scope(|s| {
            s.spawn(|| {
                begun.wait();
                (0..round * 16).for_each(|_| std::hint::spin_loop());
                drop(b);
            });
            begun.wait();
            let sends = std::iter::repeat_with(|| said(a.send(&[7; 1000], TX_NOW)));
            let mut told = sends.filter(|said| !matches!(said.as_deref(), Ok("1000" | "EAGAIN")));
            told.next().unwrap_or_else(|| Ok(String::new()))
        })?;
        let then = tx(&*a, b"x")?;
        if (&*told, &*then) != ("ECONNREFUSED", "ENOTCONN") {
            return Ok(format!("{told}, {then}, in round {round}"));
        }
    }
    Ok(format!("ECONNREFUSED, ENOTCONN, {CLOSES} times"))
}

fn closed_peer_recv(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    tx(&*b, b"y")?;
    tx(&*b, b"z")?;
    drop(b);
    let all = (0..3).map(|_| rx(&*a, 9, NOW)).collect::<Result<Vec<_>, _>>()?;
    let error =
        a.take_error()?.map_or("no error".to_owned(), |e| errno(&std::io::Error::from_raw_os_error(e)));
    Ok(format!("{}, {error}", all.join(", ")))
}

fn refused_loses(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*b, b"y")?;
    drop(b);
    Ok(format!("{}, {}", tx(&*a, b"x")?, rx(&*a, 9, NOW)?))
}

fn closed_peer_again(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    drop(b);
    let refused = tx(&*a as &dyn End, b"x")?;
    let c = bound(cx, "c")?;
    let connected = ok(a.connect(&cx.path("c")))?;
    let sent = tx(&*a as &dyn End, b"new")?;
    let got = rx(&*c as &dyn End, 9, NOW)?;
    c.send_to(b"old", &cx.path("a"))?;
    Ok(format!("{refused}, {connected}, {sent}, {got}, {}", rx(&*a as &dyn End, 9, NOW)?))
}

/// Sends in the way that raises SIGPIPE, where something does: it would end the case.
fn loud(end: &dyn End) -> Outcome {
    said(end.send(b"x", Tx::default()))
}

fn shut_peer_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.shutdown(Shutdown::Read)?;
    let sent = format!("{}, {}", loud(&*a)?, loud(&*a)?);
    tx(&*b, b"x")?;
    Ok(format!("{sent}, {}", rx(&*a, 9, NOW)?))
}

fn shut_own_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.shutdown(Shutdown::Write)?;
    let sent = loud(&*a)?;
    tx(&*b, b"x")?;
    Ok(format!("{sent}, {}", rx(&*a, 9, NOW)?))
}

fn shut_own_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"q")?;
    b.shutdown(Shutdown::Read)?;
    Ok(format!("{}, {}, {}", rx(&*b, 9, Rx::default())?, rx(&*b, 9, NOW)?, rx(&*b, 9, Rx::default())?))
}

fn shut_peer_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"q")?;
    a.shutdown(Shutdown::Write)?;
    Ok(format!("{}, {}, {}", rx(&*b, 9, Rx::default())?, rx(&*b, 9, NOW)?, poll_now(&*b)?))
}

fn so_error(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    let _c = bound(cx, "c")?;
    tx(&*b as &dyn End, b"lost")?;
    a.connect(&cx.path("c"))?;
    let events = poll_now(&*b as &dyn End)?;
    let error = || -> Outcome {
        let error = b.take_error()?;
        Ok(error.map_or("no error".to_owned(), |e| errno(&std::io::Error::from_raw_os_error(e))))
    };
    Ok(format!("{events}, {}, {}, {}", error()?, error()?, poll_now(&*b as &dyn End)?))
}

fn no_starving(cx: &Ctx<'_>) -> Outcome {
    let (a, b, other) = (bound(cx, "a")?, bound(cx, "b")?, dg(cx)?);
    for _ in 0..3 {
        other.send_to(b"other", &cx.path("b"))?;
    }
    a.connect(&cx.path("b"))?;
    b.connect(&cx.path("a"))?;
    let (a, b) = (&*a as &dyn End, &*b as &dyn End);
    for _ in 0..100 {
        // (Whoever can move to shared memory does so meanwhile.)
        a.send(b"peer", TX_NOW)?;
        b.send(b"back", TX_NOW)?;
        rx(a, 9, NOW)?;
    }
    let first = (0..10).map(|_| rx(b, 9, NOW)).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{} of another sender among the first 10", first.iter().filter(|s| *s == "\"other\"").count()))
}
