//! Records as Linux keeps them: one send is one record.

use crate::case::Source::{Both, FreeBsd, Linux};
use crate::case::{Case, Ctx, Expect};
use crate::cases::messages::{
    many, msg_trunc, no_interleave, peek, poll_data, recv_zero, sleeper, too_long, vectored, waitall, whole,
    zero_length,
};
use crate::cases::setup::raw;
use crate::impls::{End, Kind, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, PEEK, TX_NOW, asleep, rx, said, tx};

/// A case of streams, tried with records: whatever the kernel answers is right.
pub fn again(case: &Case) -> Case {
    let expect = if matches!(case.expect, Expect::Same(_)) { Expect::Oracle } else { case.expect };
    let name = format!("seqpacket/{}", case.name);
    Case { name: name.leak(), expect, ..*case }.of(Kind::SeqPacket)
}

/// Cases that speak of bytes, which records cut otherwise; [`CASES`] has what is said of records instead.
pub const NOT_AGAIN: &[&str] = &[
    "poll.low_water",
    // Names and connections, tried otherwise here, or of other kinds.
    "setup.dgram_listen",
    "poll.data",
    "poll.many_sends",
    "wait.send_woken",
    "wait.sndtimeo_partly",
    "wait.waitall_timeo",
    "wait.send_eintr_partly",
    "wait.waitall_eintr",
    "wait.writer_freed_by_close",
    "wait.writer_freed_by_close_no_signal",
    "wait.writer_freed_by_shut_rd",
    "wait.writer_freed_by_own_shut_wr",
    "wait.waitall",
    "wait.waitall_large",
    "wait.waitall_close",
    "wait.waitall_reset",
];

const fn same(
    name: &'static str,
    rule: &'static str,
    source: crate::case::Source,
    expect: &'static str,
    run: fn(&Ctx<'_>) -> Outcome,
) -> Case {
    Case::same(name, rule, source, expect, run).of(Kind::SeqPacket)
}

pub const CASES: &[Case] = &[
    same("seqpacket.one_record", "one send one record", Linux, "\"abc\", \"def\", EAGAIN", one_record),
    same(
        "seqpacket.short_recv",
        "short recv drops the rest, MSG_TRUNC set",
        Linux,
        "3 cut, EAGAIN",
        short_recv,
    ),
    same("seqpacket.eor", "MSG_EOR changes nothing, and is not returned", Linux, "6, 6 whole, EAGAIN", eor),
    same("seqpacket.msg_trunc", "MSG_TRUNC flag returns the full length", Linux, "6 cut, 6 cut", msg_trunc),
    same(
        "seqpacket.too_long",
        "record over the limit EMSGSIZE, and nothing of it is sent",
        Linux,
        "EMSGSIZE, EAGAIN, \"x\"",
        too_long,
    ),
    same(
        "seqpacket.too_long_closed",
        "over the limit to a closed peer: EMSGSIZE all the same",
        Linux,
        "EMSGSIZE, EPIPE",
        too_long_closed,
    ),
    same(
        "seqpacket.zero_length",
        "zero-length record delivered, and polled for",
        Linux,
        "0, IN+OUT, 0 whole, \"x\", EAGAIN, OUT",
        zero_length,
    ),
    same(
        "seqpacket.zero_length_closed",
        "a zero-length record to a closed peer EPIPE",
        Linux,
        "EPIPE",
        zero_closed,
    ),
    same("seqpacket.recv_zero", "recv of 0 bytes takes the record", Linux, "0 cut, EAGAIN", recv_zero),
    same("seqpacket.recv_unconnected", "recv unconnected ENOTCONN", Both, "ENOTCONN", recv_unconnected),
    same("seqpacket.send_unconnected", "send unconnected ENOTCONN", Both, "ENOTCONN", send_unconnected),
    same(
        "seqpacket.error_first",
        "error precedes queued data",
        Linux,
        "ECONNRESET, \"y\", end, end",
        error_first,
    ),
    same(
        "seqpacket.error_first_send",
        "unread data at close: a send gets the reset, once",
        Linux,
        "ECONNRESET, EPIPE, \"y\", end",
        error_first_send,
    ),
    same("seqpacket.closed_peer", "closed peer EPIPE, again and again", Both, "EPIPE, EPIPE", closed_peer),
    same("seqpacket.close_then_recv", "close then recv 0", Both, "\"abc\", \"d\", end, end", close_then_recv),
    same("seqpacket.empty", "empty nonblocking EAGAIN", Both, "EAGAIN", empty),
    same(
        "seqpacket.full",
        "full nonblocking EAGAIN, and no part of a record is sent",
        Both,
        "EAGAIN, all of 1000 bytes each, EAGAIN",
        full,
    ),
    same(
        "seqpacket.peek",
        "PEEK sees one record, repeatable",
        Both,
        "\"abc\", \"abc\", \"abc\", \"def\"",
        peek,
    ),
    same("seqpacket.peek_short", "a short PEEK takes nothing", Linux, "3 cut, \"abcdef\"", peek_short),
    same("seqpacket.waitall", "WAITALL has no effect", Linux, "\"abc\", \"def\"", waitall),
    same("seqpacket.fionread", "FIONREAD = bytes of all records", Linux, "0, 5, 2, 0", fionread),
    same(
        "seqpacket.vectored",
        "sendmsg gathers one record, recvmsg scatters it",
        Both,
        "6, 6, \"ab\", \"cdef\"",
        vectored,
    ),
    same(
        "seqpacket.poll_data",
        "POLLIN as long as a record is queued",
        Both,
        "IN+OUT, IN+OUT, OUT",
        poll_data,
    ),
    same(
        "seqpacket.send_before_accept",
        "send before accept delivered",
        Both,
        "\"one\", \"two\", \"back\"",
        before_accept,
    ),
    same("seqpacket.wrong_type", "wrong type EPROTOTYPE", Both, "EPROTOTYPE", wrong_type),
    same("seqpacket.sleeper", "a sleeping receiver is woken by a record", Both, "\"abc\"", sleeper),
    same("seqpacket.sleeper_close", "a sleeping receiver is woken by the close", Both, "end", sleeper_close),
    same(
        "seqpacket.sleeping_sender",
        "a sender asleep for room is woken when there is, and its record is whole",
        Both,
        "1000, 1000 whole",
        sleeping_sender,
    ),
    same("seqpacket.sender_close", "blocked sender, peer closes", Linux, "ECONNRESET", sender_close),
    same(
        "seqpacket.no_interleave",
        "records of concurrent senders stay whole and in order",
        FreeBsd,
        "4000 messages, whole and in order",
        no_interleave,
    ),
    same(
        "seqpacket.many",
        "records of all sizes, from empty to 20000 bytes, come as they went",
        Both,
        "2000 messages, intact",
        many,
    ),
];

fn one_record(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    Ok(format!("{}, {}, {}", rx(&*b, 20, Rx::default())?, rx(&*b, 20, Rx::default())?, rx(&*b, 20, NOW)?))
}

fn short_recv(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    Ok(format!("{}, {}", whole(&*b, 3, Rx::default())?, rx(&*b, 9, NOW)?))
}

fn eor(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = said(a.send(b"abcdef", Tx { eor: true, nosignal: true, ..Tx::default() }))?;
    Ok(format!("{sent}, {}, {}", whole(&*b, 9, Rx::default())?, rx(&*b, 9, NOW)?))
}

fn too_long_closed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    Ok(format!("{}, {}", tx(&*a, &vec![1; 16 << 20])?, tx(&*a, b"x")?))
}

fn zero_closed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    tx(&*a, b"")
}

fn recv_unconnected(cx: &Ctx<'_>) -> Outcome {
    rx(&*raw(cx, Kind::SeqPacket)? as &dyn End, 9, Rx::default())
}

fn send_unconnected(cx: &Ctx<'_>) -> Outcome {
    tx(&*raw(cx, Kind::SeqPacket)? as &dyn End, b"x")
}

fn error_first(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    tx(&*b, b"y")?;
    drop(b);
    let all = (0..4).map(|_| rx(&*a, 9, Rx::default())).collect::<Result<Vec<_>, _>>()?;
    Ok(all.join(", "))
}

fn error_first_send(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    tx(&*b, b"y")?;
    drop(b);
    let sent = format!("{}, {}", tx(&*a, b"x")?, tx(&*a, b"x")?);
    Ok(format!("{sent}, {}, {}", rx(&*a, 9, Rx::default())?, rx(&*a, 9, Rx::default())?))
}

fn closed_peer(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    Ok(format!("{}, {}", tx(&*a, b"x")?, tx(&*a, b"x")?))
}

fn close_then_recv(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"d")?;
    drop(a);
    let all = (0..4).map(|_| rx(&*b, 9, Rx::default())).collect::<Result<Vec<_>, _>>()?;
    Ok(all.join(", "))
}

fn empty(cx: &Ctx<'_>) -> Outcome {
    let (_a, b) = cx.pair()?;
    rx(&*b, 9, NOW)
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
    for i in 0..sent {
        let got = whole(&*b, 2000, NOW)?;
        if got != "1000 whole" {
            return Err(Stop::broken(format!("record {i} of {sent}: {got}")));
        }
    }
    Ok(format!("{answer}, all of 1000 bytes each, {}", rx(&*b, 9, NOW)?))
}

fn peek_short(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    Ok(format!("{}, {}", whole(&*b, 3, PEEK)?, rx(&*b, 9, Rx::default())?))
}

fn fionread(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let none = said(b.readable_bytes())?;
    tx(&*a, b"abc")?;
    tx(&*a, b"de")?;
    let all = said(b.readable_bytes())?;
    rx(&*b, 1, Rx::default())?;
    let some = said(b.readable_bytes())?;
    rx(&*b, 9, Rx::default())?;
    Ok(format!("{none}, {all}, {some}, {}", said(b.readable_bytes())?))
}

fn before_accept(cx: &Ctx<'_>) -> Outcome {
    let name = cx.path("s");
    let server = cx.imp.listen(cx.kind, &name, None)?;
    let client = cx.imp.connect(cx.kind, &name)?;
    tx(&*client, b"one")?;
    tx(&*client, b"two")?;
    let conn = server.accept()?;
    let came = format!("{}, {}", rx(&*conn, 9, Rx::default())?, rx(&*conn, 9, Rx::default())?);
    tx(&*conn, b"back")?;
    Ok(format!("{came}, {}", rx(&*client, 9, Rx::default())?))
}

fn wrong_type(cx: &Ctx<'_>) -> Outcome {
    let name = cx.path("s");
    let _server = cx.imp.listen(Kind::SeqPacket, &name, None)?;
    said(cx.imp.connect(Kind::Stream, &name).map(|_| "connected"))
}

fn sleeper_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let reader = asleep(s, || rx(&*b, 9, Rx::default()));
        drop(a);
        reader.join().map_err(|_| Stop::broken("the reader panicked"))?
    })
}

fn sleeping_sender(cx: &Ctx<'_>) -> Outcome {
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

fn sender_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    while a.send(&[7; 1000], TX_NOW).is_ok() {}
    std::thread::scope(|s| {
        let sender = asleep(s, || tx(&*a, &[8; 1000]));
        drop(b);
        sender.join().map_err(|_| Stop::broken("the sender panicked"))?
    })
}
