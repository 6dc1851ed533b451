//! Records as Linux keeps them: one send is one record.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;

use crate::case::Source::{Both, FreeBsd, Linux};
use crate::case::{Case, Ctx, Expect, Outcome, Stop};
use crate::cases::setup::raw;
use crate::impls::{End, Kind, Rx, Tx};
use crate::tools::{NOW, PEEK, TX_NOW, WAITALL, asleep, poll_now, rx, said, tx};

/// A case of streams, tried with records: whatever the kernel answers is right.
pub fn again(case: &Case) -> Case {
    let expect = if matches!(case.expect, Expect::Same(_)) { Expect::Oracle } else { case.expect };
    let name = format!("seqpacket/{}", case.name);
    Case { name: name.leak(), expect, ..*case }.of(Kind::SeqPacket)
}

/// Cases that speak of bytes, which records cut otherwise; [`CASES`] has what is said of records instead.
pub const NOT_AGAIN: &[&str] = &["poll.data", "poll.many_sends"];

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
        "4000 records, whole and in order",
        no_interleave,
    ),
    same(
        "seqpacket.many",
        "records of all sizes, from empty to 20000 bytes, come as they went",
        Both,
        "2000 records, intact",
        many,
    ),
];

/// Receives, and tells whether the record was cut.
fn whole(end: &dyn End, max: usize, flags: Rx) -> Outcome {
    let mut buf = vec![0; max];
    said(end.recv_flags(&mut buf, flags).map(|(n, said)| {
        format!("{n} {}{}", if said.trunc { "cut" } else { "whole" }, if said.eor { ", the end" } else { "" })
    }))
}

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

fn msg_trunc(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    let flags = Rx { trunc: true, ..Rx::default() };
    let peeked = whole(&*b, 3, Rx { peek: true, ..flags })?;
    Ok(format!("{peeked}, {}", whole(&*b, 3, flags)?))
}

fn too_long(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = tx(&*a, &vec![1; 16 << 20])?;
    let none = rx(&*b, 9, NOW)?;
    tx(&*a, b"x")?;
    Ok(format!("{sent}, {none}, {}", rx(&*b, 9, Rx::default())?))
}

fn too_long_closed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    Ok(format!("{}, {}", tx(&*a, &vec![1; 16 << 20])?, tx(&*a, b"x")?))
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

fn zero_closed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    tx(&*a, b"")
}

fn recv_zero(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    Ok(format!("{}, {}", whole(&*b, 0, Rx::default())?, rx(&*b, 9, NOW)?))
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

fn peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    let peeked = format!("{}, {}", rx(&*b, 20, PEEK)?, rx(&*b, 20, PEEK)?);
    Ok(format!("{peeked}, {}, {}", rx(&*b, 20, Rx::default())?, rx(&*b, 20, Rx::default())?))
}

fn peek_short(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    Ok(format!("{}, {}", whole(&*b, 3, PEEK)?, rx(&*b, 9, Rx::default())?))
}

fn waitall(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    Ok(format!("{}, {}", rx(&*b, 9, WAITALL)?, rx(&*b, 9, WAITALL)?))
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

fn sleeper(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let reader = asleep(s, || rx(&*b, 9, Rx::default()));
        tx(&*a, b"abc")?;
        reader.join().map_err(|_| Stop::broken("the reader panicked"))?
    })
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

fn no_interleave(cx: &Ctx<'_>) -> Outcome {
    const EACH: u32 = 1000;
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let a = &a;
            s.spawn(move || {
                for i in 0..EACH {
                    let mut record = vec![t; 5 + i as usize % 500];
                    record[1..5].copy_from_slice(&i.to_le_bytes());
                    if a.send(&record, Tx { nosignal: true, ..Tx::default() }).is_err() {
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
                return Err(Stop::broken(format!("record {number} of {t} with {n} bytes")));
            }
            next[t] += 1;
        }
        Ok(format!("{} records, whole and in order", 4 * EACH))
    })
}

fn many(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let bytes = crate::tools::Pattern(77).bytes(0, 40_000);
    let size = |i: usize| if i.is_multiple_of(7) { 0 } else { i * 7919 % 20_001 };
    let (bytes, count) = (&bytes, 2000);
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
                return Err(Stop::broken(format!("record {i} has {n} bytes, or others than were sent")));
            }
        }
        sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        Ok(format!("{count} records, intact"))
    })
}
