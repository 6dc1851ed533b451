//! Datagrams: names and peers, boundaries, full receivers, peers that are gone.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::time::Duration;

use crate::case::Source::{Both, FreeBsd, Linux};
use crate::case::{Case, Ctx, Expect, Outcome, Stop};
use crate::cases::setup::raw;
use crate::impls::kernel::Kernel;
use crate::impls::{End, Kind, Name, Rx, Socket, Sockets, Tx};
use crate::tools::{NOW, PEEK, TX_NOW, WAITALL, asleep, errno, ok, poll_now, rx, said, tx};

/// A case of streams, tried with datagrams: whatever the kernel answers is right.
pub fn again(case: &Case) -> Case {
    let expect = if matches!(case.expect, Expect::Same(_)) { Expect::Oracle } else { case.expect };
    let name = format!("dgram/{}", case.name);
    Case { name: name.leak(), expect, ..*case }.of(Kind::Dgram)
}

/// Cases that wait for an end, which datagrams don't have, or cut what was sent.
pub const NOT_AGAIN: &[&str] = &[
    "shutdown.peer_wr",
    "shutdown.both",
    "shutdown.wakes_peer_recv",
    "shutdown.queued_survives_rdwr",
    "shutdown.shut_both_at_once",
    "poll.data",
];

const fn same(
    name: &'static str,
    rule: &'static str,
    source: crate::case::Source,
    expect: &'static str,
    run: fn(&Ctx<'_>) -> Outcome,
) -> Case {
    Case::same(name, rule, source, expect, run).of(Kind::Dgram)
}

pub const CASES: &[Case] = &[
    same("dgram.bind_twice", "bind twice EINVAL", Both, "ok, EINVAL", bind_twice),
    same("dgram.bind_used_path", "bind used path EADDRINUSE", Both, "EADDRINUSE", bind_used),
    same(
        "dgram.path_stays",
        "a path stays when its socket is closed, and nobody is there any more",
        Linux,
        "EADDRINUSE, ECONNREFUSED",
        path_stays,
    ),
    same("dgram.autobind", "autobind NUL + 5 hex", Linux, "NUL + 5 hex", autobind),
    same(
        "dgram.abstract",
        "abstract name freed on close, duplicate EADDRINUSE",
        Linux,
        "EADDRINUSE, after close ok",
        abstract_name,
    ),
    same("dgram.connect_missing", "connect missing ENOENT", Both, "ENOENT, ECONNREFUSED", connect_missing),
    same("dgram.connect_wrong_type", "wrong type EPROTOTYPE", Both, "EPROTOTYPE, EPROTOTYPE", wrong_type),
    same("dgram.getpeername_unconnected", "getpeername unconnected ENOTCONN", Both, "ENOTCONN", no_peer_name),
    same("dgram.send_unconnected", "no peer ENOTCONN", Linux, "ENOTCONN", send_unconnected),
    same("dgram.recv_unconnected", "recv unconnected waits", Linux, "EAGAIN", recv_unconnected),
    same(
        "dgram.sendto",
        "sendto and recvfrom, with the sender's name, and back",
        Both,
        "2, \"hi\" from /a, 2, \"ho\" from /b",
        send_to,
    ),
    same("dgram.sendto_unnamed", "a sender without a name has none", Both, "\"hi\" from unnamed", unnamed),
    same(
        "dgram.sendto_missing",
        "sendto nobody: ENOENT for a path, ECONNREFUSED for an abstract name or a path left behind",
        Linux,
        "ENOENT, ECONNREFUSED, ECONNREFUSED, ECONNREFUSED",
        send_to_missing,
    ),
    same(
        "dgram.sendto_connected",
        "sendto another one than the peer",
        Linux,
        "1 to the other, 1 to the peer by name, 1 to the peer: \"o\", \"p\", \"q\"",
        send_to_connected,
    ),
    same(
        "dgram.names_of_a_pair",
        "connected to each other by name: recvfrom tells it, getpeername too",
        Both,
        "\"x\" from /a, peer /a; \"y\" from /b, peer /b",
        names_of_a_pair,
    ),
    same("dgram.reconnect", "connect again, to another peer", Both, "ok, ok, EAGAIN, \"x\"", reconnect),
    same(
        "dgram.reconnect_loses",
        "connect to another peer loses what was queued, and the old one gets ECONNRESET once",
        Linux,
        "EAGAIN, ECONNRESET, EAGAIN, EPERM",
        reconnect_loses,
    ),
    same(
        "dgram.reconnect_clean",
        "connect to another peer with nothing queued: no ECONNRESET",
        Linux,
        "\"lost\", no error, EAGAIN, EPERM",
        reconnect_clean,
    ),
    same(
        "dgram.reconnect_same",
        "connect again to the same peer changes nothing",
        Linux,
        "ok, \"one\", \"two\"",
        reconnect_same,
    ),
    same(
        "dgram.disconnect",
        "connect to none: no peer, and others may send again",
        Linux,
        "ENOTCONN, ENOTCONN, \"new\"",
        disconnect,
    ),
    same("dgram.self", "self-connect", Both, "\"me\", \"me\" from /s", self_connect),
    same(
        "dgram.target_connected",
        "target connected elsewhere EPERM",
        Linux,
        "EPERM, EPERM",
        target_connected,
    ),
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
        "4000 datagrams, whole and in order",
        no_interleave,
    ),
    same(
        "dgram.many",
        "datagrams of all sizes, from empty to 20000 bytes, come as they went",
        Both,
        "2000 datagrams, intact",
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

fn dg(cx: &Ctx<'_>) -> Result<Box<dyn Socket>, Stop> {
    raw(cx, Kind::Dgram)
}

fn bound(cx: &Ctx<'_>, name: &str) -> Result<Box<dyn Socket>, Stop> {
    let socket = dg(cx)?;
    socket.bind(&cx.path(name))?;
    Ok(socket)
}

/// A name as the last part of its path.
fn short(name: &Name) -> String {
    match name {
        Name::Unnamed => "unnamed".to_owned(),
        Name::Path(p) => format!("/{}", p.file_name().map(|n| n.to_string_lossy()).unwrap_or_default()),
        Name::Abstract(n) => format!("@{}", String::from_utf8_lossy(n)),
    }
}

/// Receives, and tells from whom.
fn rx_from(end: &dyn End) -> Outcome {
    let mut buf = [0; 99];
    let got = end.recv_from(&mut buf, NOW);
    said(got.map(|(n, name)| format!("\"{}\" from {}", String::from_utf8_lossy(&buf[..n]), short(&name))))
}

/// Receives, and tells whether the datagram was cut.
fn whole(end: &dyn End, max: usize, flags: Rx) -> Outcome {
    let mut buf = vec![0; max];
    let got = end.recv_flags(&mut buf, flags);
    said(got.map(|(n, said)| format!("{n} {}", if said.trunc { "cut" } else { "whole" })))
}

fn bind_twice(cx: &Ctx<'_>) -> Outcome {
    let s = dg(cx)?;
    Ok(format!("{}, {}", ok(s.bind(&cx.path("a")))?, ok(s.bind(&cx.path("b")))?))
}

fn bind_used(cx: &Ctx<'_>) -> Outcome {
    let _first = bound(cx, "a")?;
    ok(dg(cx)?.bind(&cx.path("a")))
}

fn path_stays(cx: &Ctx<'_>) -> Outcome {
    drop(bound(cx, "a")?);
    let again = ok(dg(cx)?.bind(&cx.path("a")))?;
    Ok(format!("{again}, {}", ok(dg(cx)?.connect(&cx.path("a")))?))
}

fn autobind(cx: &Ctx<'_>) -> Outcome {
    let s = dg(cx)?;
    s.bind(&Name::Unnamed)?;
    Ok(match s.local_name()? {
        Name::Abstract(n) if n.len() == 5 && n.iter().all(u8::is_ascii_hexdigit) => "NUL + 5 hex".to_owned(),
        other => format!("{other:?}"),
    })
}

fn abstract_name(cx: &Ctx<'_>) -> Outcome {
    let name = cx.abstract_name("n");
    let first = dg(cx)?;
    first.bind(&name)?;
    let second = dg(cx)?;
    let twice = ok(second.bind(&name))?;
    drop(first);
    Ok(format!("{twice}, after close {}", ok(second.bind(&name))?))
}

fn connect_missing(cx: &Ctx<'_>) -> Outcome {
    let s = dg(cx)?;
    Ok(format!("{}, {}", ok(s.connect(&cx.path("x")))?, ok(s.connect(&cx.abstract_name("x")))?))
}

fn wrong_type(cx: &Ctx<'_>) -> Outcome {
    let stream = Kernel::open(Kind::Stream)?;
    stream.bind(&cx.path("s"))?;
    let s = dg(cx)?;
    Ok(format!("{}, {}", ok(s.connect(&cx.path("s")))?, said(s.send_to(b"x", &cx.path("s")))?))
}

fn no_peer_name(cx: &Ctx<'_>) -> Outcome {
    said(dg(cx)?.peer_name().map(|n| format!("{n:?}")))
}

fn send_unconnected(cx: &Ctx<'_>) -> Outcome {
    tx(&*dg(cx)? as &dyn End, b"x")
}

fn recv_unconnected(cx: &Ctx<'_>) -> Outcome {
    rx(&*dg(cx)? as &dyn End, 9, NOW)
}

fn send_to(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = (bound(cx, "a")?, bound(cx, "b")?);
    let there = format!("{}, {}", said(a.send_to(b"hi", &cx.path("b")))?, rx_from(&*b as &dyn End)?);
    Ok(format!("{there}, {}, {}", said(b.send_to(b"ho", &cx.path("a")))?, rx_from(&*a as &dyn End)?))
}

fn unnamed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = (dg(cx)?, bound(cx, "b")?);
    a.send_to(b"hi", &cx.path("b"))?;
    rx_from(&*b as &dyn End)
}

fn send_to_missing(cx: &Ctx<'_>) -> Outcome {
    drop(bound(cx, "gone")?);
    let s = dg(cx)?;
    let to = |name| said(s.send_to(b"x", &name));
    let abstract_ = to(cx.abstract_name("x"))?;
    let (gone, again) = (to(cx.path("gone"))?, to(cx.path("gone"))?);
    Ok(format!("{}, {abstract_}, {gone}, {again}", to(cx.path("x"))?))
}

/// Two sockets with names that are connected to each other, in whatever way the implementation does it.
fn named_pair(cx: &Ctx<'_>) -> Result<Sockets, Stop> {
    cx.imp
        .datagrams(&cx.path("a"), &cx.path("b"))
        .map_err(|e| Stop::broken(format!("cannot connect two datagram sockets to each other: {e}")))
}

fn send_to_connected(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    let other = bound(cx, "o")?;
    let o = said(a.send_to(b"o", &cx.path("o")))?;
    let p = said(a.send_to(b"p", &cx.path("b")))?;
    let q = tx(&*a as &dyn End, b"q")?;
    let (first, second) = (rx(&*b as &dyn End, 9, NOW)?, rx(&*b as &dyn End, 9, NOW)?);
    let seen = format!("{}, {first}, {second}", rx(&*other as &dyn End, 9, NOW)?);
    Ok(format!("{o} to the other, {p} to the peer by name, {q} to the peer: {seen}"))
}

fn names_of_a_pair(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    tx(&*a as &dyn End, b"x")?;
    tx(&*b as &dyn End, b"y")?;
    let at_b = format!("{}, peer {}", rx_from(&*b as &dyn End)?, short(&b.peer_name()?));
    Ok(format!("{at_b}; {}, peer {}", rx_from(&*a as &dyn End)?, short(&a.peer_name()?)))
}

fn reconnect(cx: &Ctx<'_>) -> Outcome {
    let (a, b, c) = (dg(cx)?, bound(cx, "b")?, bound(cx, "c")?);
    let (first, second) = (ok(a.connect(&cx.path("b")))?, ok(a.connect(&cx.path("c")))?);
    tx(&*a as &dyn End, b"x")?;
    Ok(format!("{first}, {second}, {}, {}", rx(&*b as &dyn End, 9, NOW)?, rx(&*c as &dyn End, 9, NOW)?))
}

fn reconnect_loses(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    let _c = bound(cx, "c")?;
    tx(&*b as &dyn End, b"lost")?;
    a.connect(&cx.path("c"))?;
    let mine = rx(&*a as &dyn End, 9, NOW)?;
    let theirs = format!("{}, {}", rx(&*b as &dyn End, 9, NOW)?, rx(&*b as &dyn End, 9, NOW)?);
    Ok(format!("{mine}, {theirs}, {}", tx(&*b as &dyn End, b"x")?))
}

fn reconnect_clean(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    let _c = bound(cx, "c")?;
    tx(&*b as &dyn End, b"lost")?;
    let got = rx(&*a as &dyn End, 9, NOW)?;
    a.connect(&cx.path("c"))?;
    let error =
        b.take_error()?.map_or("no error".to_owned(), |e| errno(&std::io::Error::from_raw_os_error(e)));
    Ok(format!("{got}, {error}, {}, {}", rx(&*b as &dyn End, 9, NOW)?, tx(&*b as &dyn End, b"x")?))
}

fn reconnect_same(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    tx(&*b as &dyn End, b"one")?;
    let again = ok(a.connect(&cx.path("b")))?;
    tx(&*b as &dyn End, b"two")?;
    Ok(format!("{again}, {}, {}", rx(&*a as &dyn End, 9, NOW)?, rx(&*a as &dyn End, 9, NOW)?))
}

fn disconnect(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = named_pair(cx)?;
    let other = dg(cx)?;
    a.disconnect()?;
    let sent = tx(&*a as &dyn End, b"x")?;
    let name = said(a.peer_name().map(|n| format!("{n:?}")))?;
    other.send_to(b"new", &cx.path("a"))?;
    Ok(format!("{sent}, {name}, {}", rx(&*a as &dyn End, 9, NOW)?))
}

fn self_connect(cx: &Ctx<'_>) -> Outcome {
    let s = bound(cx, "s")?;
    s.connect(&cx.path("s"))?;
    tx(&*s as &dyn End, b"me")?;
    let first = rx(&*s as &dyn End, 9, NOW)?;
    tx(&*s as &dyn End, b"me")?;
    Ok(format!("{first}, {}", rx_from(&*s as &dyn End)?))
}

fn target_connected(cx: &Ctx<'_>) -> Outcome {
    let (_a, _b) = named_pair(cx)?;
    let other = dg(cx)?;
    Ok(format!("{}, {}", said(other.send_to(b"x", &cx.path("b")))?, ok(other.connect(&cx.path("b")))?))
}

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

fn msg_trunc(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    let flags = Rx { trunc: true, ..Rx::default() };
    let peeked = whole(&*b, 3, Rx { peek: true, ..flags })?;
    Ok(format!("{peeked}, {}", whole(&*b, 3, flags)?))
}

fn peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    let peeked = format!("{}, {}", rx(&*b, 20, PEEK)?, rx(&*b, 20, PEEK)?);
    Ok(format!("{peeked}, {}, {}", rx(&*b, 20, Rx::default())?, rx(&*b, 20, Rx::default())?))
}

fn waitall(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    Ok(format!("{}, {}", rx(&*b, 9, WAITALL)?, rx(&*b, 9, WAITALL)?))
}

fn zero_length(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = tx(&*a, b"")?;
    let events = poll_now(&*b)?;
    let empty = whole(&*b, 9, Rx::default())?;
    tx(&*a, b"x")?;
    let next = rx(&*b, 9, Rx::default())?;
    Ok(format!("{sent}, {events}, {empty}, {next}, {}, {}", rx(&*b, 9, NOW)?, poll_now(&*b)?))
}

fn recv_zero(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    Ok(format!("{}, {}", whole(&*b, 0, Rx::default())?, rx(&*b, 9, NOW)?))
}

fn too_long(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = tx(&*a, &vec![1; 16 << 20])?;
    let none = rx(&*b, 9, NOW)?;
    tx(&*a, b"x")?;
    Ok(format!("{sent}, {none}, {}", rx(&*b, 9, Rx::default())?))
}

fn vectored(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let pieces = [IoSlice::new(b"abc"), IoSlice::new(&[]), IoSlice::new(b"d"), IoSlice::new(b"ef")];
    let sent = said(a.send_vectored(&pieces))?;
    let (mut x, mut y) = ([0; 2], [0; 9]);
    let got =
        b.recv_vectored(&mut [IoSliceMut::new(&mut x), IoSliceMut::new(&mut []), IoSliceMut::new(&mut y)])?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Ok(format!("{sent}, {got}, \"{}\", \"{}\"", text(&x), text(&y[..got.saturating_sub(2)])))
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

fn poll_data(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    let first = poll_now(&*b)?;
    rx(&*b, 2, Rx::default())?;
    let second = poll_now(&*b)?;
    rx(&*b, 9, Rx::default())?;
    Ok(format!("{first}, {second}, {}", poll_now(&*b)?))
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

fn sleeper(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let reader = asleep(s, || rx(&*b, 9, Rx::default()));
        tx(&*a, b"abc")?;
        reader.join().map_err(|_| Stop::broken("the reader panicked"))?
    })
}

fn no_interleave(cx: &Ctx<'_>) -> Outcome {
    const EACH: u32 = 1000;
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let a = &a;
            s.spawn(move || {
                for i in 0..EACH {
                    let mut datagram = vec![t; 5 + i as usize % 500];
                    datagram[1..5].copy_from_slice(&i.to_le_bytes());
                    if a.send(&datagram, Tx { nosignal: true, ..Tx::default() }).is_err() {
                        return;
                    }
                }
            });
        }
        let mut next = [0u32; 4];
        let mut buf = [0; 600];
        for _ in 0..4 * EACH {
            let n = b.recv(&mut buf, Rx::default())?;
            let t = usize::from(buf[0]);
            let number = u32::from_le_bytes([buf[1], buf[2], buf[3], buf[4]]);
            let right = t < 4 && n == 5 + number as usize % 500 && buf[5..n].iter().all(|b| *b == buf[0]);
            if !right || number != next[t] {
                let _ = b.shutdown(Shutdown::Both);
                return Err(Stop::broken(format!("datagram {number} of {t} with {n} bytes")));
            }
            next[t] += 1;
        }
        Ok(format!("{} datagrams, whole and in order", 4 * EACH))
    })
}

fn many(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let bytes = crate::tools::Pattern(77).bytes(0, 40_000);
    let size = |i: usize| if i.is_multiple_of(7) { 0 } else { i * 7919 % 20_001 };
    let (bytes, a, count) = (&bytes, &a, 2000);
    std::thread::scope(|s| {
        let sender = s.spawn(move || {
            (0..count).try_for_each(|i| {
                a.send(&bytes[i..i + size(i)], Tx { nosignal: true, ..Tx::default() }).map(drop)
            })
        });
        let mut buf = vec![0; 20_001];
        for i in 0..count {
            let n = b.recv(&mut buf, Rx::default())?;
            if buf[..n] != bytes[i..i + size(i)] {
                return Err(Stop::broken(format!("datagram {i} has {n} bytes, or others than were sent")));
            }
        }
        sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        Ok(format!("{count} datagrams, intact"))
    })
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
