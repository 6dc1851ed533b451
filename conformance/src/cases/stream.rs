//! Sending and receiving, one thread at a time.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::setup::raw;
use crate::impls::{End, Kind, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, PEEK, WAITALL, drain, drain_to_end, errno, fill, ok, rx, said, tx};

pub const CASES: &[Case] = &[
    Case::same("stream.two_sends", "two sends one recv", Both, "\"abcdef\"", two_sends),
    Case::same("stream.short_recv", "a short recv leaves the rest", Both, "\"abc\", \"def\"", short_recv),
    Case::same("stream.send_unconnected", "send unconnected ENOTCONN", Both, "ENOTCONN", send_unconnected),
    Case::same("stream.recv_unconnected", "recv unconnected EINVAL", Linux, "EINVAL", recv_unconnected),
    Case::same("stream.sendto_connected", "sendto connected EISCONN", Linux, "EISCONN", sendto_connected),
    Case::same(
        "stream.sendto_unconnected",
        "sendto unconnected EOPNOTSUPP",
        Linux,
        "EOPNOTSUPP",
        sendto_unconnected,
    ),
    Case::same("stream.send_zero", "send(0) = 0 and nothing queued", Both, "0, EAGAIN, nothing", send_zero),
    Case::same(
        "stream.send_zero_closed",
        "send(0) to a closed peer EPIPE all the same",
        Linux,
        "EPIPE",
        send_zero_closed,
    ),
    Case::same(
        "stream.recv_zero",
        "recv of 0 bytes waits for data like any other, returns 0 and takes nothing",
        Linux,
        "EAGAIN, 0, \"x\"",
        recv_zero,
    ),
    Case::same("stream.empty", "empty nonblocking EAGAIN", Both, "EAGAIN, EAGAIN", empty),
    Case::same(
        "stream.full",
        "full nonblocking EAGAIN, and again, until drained",
        Both,
        "EAGAIN, EAGAIN, 1 after the drain",
        full,
    ),
    Case::same(
        "stream.partly_full",
        "full nonblocking EAGAIN, partly full short count",
        Both,
        "short count, all of it came, intact",
        partly_full,
    ),
    Case::same("stream.closed_peer", "closed peer EPIPE, again and again", Both, "EPIPE, EPIPE", closed_peer),
    Case::same("stream.close_then_recv", "close then recv 0", Both, "\"abc\", end, end", close_then_recv),
    Case::same(
        "stream.unread_at_close",
        "unread data at close: data, ECONNRESET once, 0",
        Linux,
        "\"y\", ECONNRESET, end, end",
        unread_at_close,
    ),
    Case::same(
        "stream.unread_at_close_nothing_sent",
        "unread data at close, nothing for us: ECONNRESET once, 0",
        Linux,
        "ECONNRESET, end",
        unread_at_close_empty,
    ),
    Case::same(
        "stream.unread_at_close_send",
        "unread data at close: a send gets EPIPE, the reset stays for recv",
        Linux,
        "EPIPE, ECONNRESET, end",
        unread_at_close_send,
    ),
    Case::same("stream.so_error", "SO_ERROR gives it once", Linux, "ECONNRESET, none, end", so_error),
    Case::same(
        "stream.peek",
        "PEEK spans sends, repeatable",
        Both,
        "\"abcdef\", \"abcdef\", \"abc\", \"def\"",
        peek,
    ),
    Case::same("stream.peek_empty", "PEEK on nothing: EAGAIN, at the end 0", Both, "EAGAIN, end", peek_empty),
    Case::same("stream.msg_trunc", "MSG_TRUNC ignored", Both, "3, 3", msg_trunc),
    Case::same(
        "stream.waitall_eof",
        "WAITALL ends at EOF with a partial count",
        Both,
        "\"abc\", end",
        waitall_eof,
    ),
    Case::same(
        "stream.waitall_dontwait",
        "WAITALL with DONTWAIT takes what is there",
        Linux,
        "\"abc\", EAGAIN",
        waitall_dontwait,
    ),
    Case::same(
        "stream.waitall_peek",
        "WAITALL with PEEK takes nothing",
        Linux,
        "\"abc\", \"abc\"",
        waitall_peek,
    ),
    Case::same(
        "stream.waitall_peek_short",
        "WAITALL with PEEK does not wait for more than there is",
        Linux,
        "\"abc\", \"abc\"",
        waitall_peek_short,
    ),
    Case::same(
        "stream.oob",
        "MSG_OOB per Linux msg_oob.c: out of band, the stream stops at its mark",
        Linux,
        "1, PRI, \"ab\", \"!\", \"cd\"",
        oob,
    ),
    Case::same("stream.peek_off", "SO_PEEK_OFF advances", Linux, "\"abc\", \"def\", \"abcdef\"", peek_off),
    Case::each(
        "stream.counts_bytes",
        "what fills a buffer: Linux counts memory, some hundreds of one-byte sends; ours counts bytes",
        "hundreds",
        "as many as its bytes",
        "hundreds",
        counts_bytes,
    ),
    Case::each(
        "stream.buffer_doubled",
        "SO_SNDBUF is doubled, and governs; ours has the larger of that and the receiver's SO_RCVBUF, of when they connected",
        "16384 after, fewer bytes",
        "16384 after, as many bytes as before",
        "16384 after, fewer bytes",
        buffer_doubled,
    ),
    Case::same("stream.fionread", "FIONREAD = bytes", Both, "0, 5, 3, 0", fionread),
    Case::same(
        "stream.vectored",
        "sendmsg gathers, recvmsg scatters",
        Both,
        "6, 6, \"ab\", \"cdef\"",
        vectored,
    ),
    Case::same(
        "stream.vectored_empty",
        "pieces of length 0, first, last and between, count for nothing",
        Both,
        "4, 4, \"ab\", \"cd\"",
        vectored_empty,
    ),
];

fn two_sends(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    rx(&*b, 20, Rx::default())
}

fn short_recv(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    Ok(format!("{}, {}", rx(&*b, 3, Rx::default())?, rx(&*b, 9, Rx::default())?))
}

fn send_unconnected(cx: &Ctx<'_>) -> Outcome {
    tx(&*raw(cx, Kind::Stream)? as &dyn End, b"x")
}

fn recv_unconnected(cx: &Ctx<'_>) -> Outcome {
    rx(&*raw(cx, Kind::Stream)? as &dyn End, 9, Rx::default())
}

fn sendto_connected(cx: &Ctx<'_>) -> Outcome {
    let _server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let (a, _b) = cx.pair()?;
    said(a.send_to(b"x", &cx.path("s")))
}

fn sendto_unconnected(cx: &Ctx<'_>) -> Outcome {
    let _server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    said(raw(cx, Kind::Stream)?.send_to(b"x", &cx.path("s")))
}

fn send_zero(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = tx(&*a, b"")?;
    let events = crate::tools::poll(b.fd(), rustix::event::PollFlags::IN, 20)?;
    Ok(format!("{sent}, {}, {events}", rx(&*b, 9, NOW)?))
}

fn send_zero_closed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    tx(&*a, b"")
}

fn recv_zero(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let none = said(b.recv(&mut [], NOW))?;
    tx(&*a, b"x")?;
    Ok(format!("{none}, {}, {}", said(b.recv(&mut [], NOW))?, rx(&*b, 9, Rx::default())?))
}

fn empty(cx: &Ctx<'_>) -> Outcome {
    let (_a, b) = cx.pair()?;
    let flag = rx(&*b, 9, NOW)?;
    b.set_nonblocking(true)?;
    Ok(format!("{flag}, {}", rx(&*b, 9, Rx::default())?))
}

fn full(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.set_nonblocking(true)?;
    let mut n = fill(&*a, 4096)?;
    // Linux takes a send if there is any room, and then all that one buffer holds: now it is really full.
    n += fill(&*a, 1)?;
    let (first, second) = (tx(&*a, b"x")?, tx(&*a, b"x")?);
    drain(&*b, n)?;
    Ok(format!("{first}, {second}, {} after the drain", tx(&*a, b"x")?))
}

fn partly_full(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.set_nonblocking(true)?;
    let data: Vec<u8> = (0..8usize << 20).map(|i| (i % 251) as u8).collect();
    let n = a.send(&data, Tx::default())?;
    drop(a);
    let mut back = vec![0; data.len()];
    let mut got = 0;
    loop {
        match b.recv(&mut back[got..], Rx::default())? {
            0 => break,
            m => got += m,
        }
    }
    let short = if n < data.len() { "short count" } else { "everything" };
    let came = if got == n { "all of it came".to_owned() } else { format!("{got} of {n} came") };
    Ok(format!("{short}, {came}, {}", if back[..got] == data[..got] { "intact" } else { "garbled" }))
}

fn closed_peer(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    Ok(format!("{}, {}", tx(&*a, b"x")?, tx(&*a, b"x")?))
}

fn close_then_recv(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    drop(a);
    let data = rx(&*b, 9, Rx::default())?;
    Ok(format!("{data}, {}, {}", rx(&*b, 9, Rx::default())?, rx(&*b, 9, Rx::default())?))
}

fn unread_at_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    tx(&*b, b"y")?;
    drop(b);
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(rx(&*a, 9, Rx::default())?);
    }
    Ok(all.join(", "))
}

fn unread_at_close_empty(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    drop(b);
    Ok(format!("{}, {}", rx(&*a, 9, Rx::default())?, rx(&*a, 9, Rx::default())?))
}

fn unread_at_close_send(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    drop(b);
    let sent = tx(&*a, b"x")?;
    Ok(format!("{sent}, {}, {}", rx(&*a, 9, Rx::default())?, rx(&*a, 9, Rx::default())?))
}

fn so_error(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    drop(b);
    let take = || -> Outcome {
        Ok(match a.take_error()? {
            None => "none".to_owned(),
            Some(no) => errno(&std::io::Error::from_raw_os_error(no)),
        })
    };
    Ok(format!("{}, {}, {}", take()?, take()?, rx(&*a, 9, Rx::default())?))
}

fn peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    let peeked = format!("{}, {}", rx(&*b, 20, PEEK)?, rx(&*b, 20, PEEK)?);
    Ok(format!("{peeked}, {}, {}", rx(&*b, 3, Rx::default())?, rx(&*b, 20, Rx::default())?))
}

fn peek_empty(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let none = rx(&*b, 9, Rx { dontwait: true, ..PEEK })?;
    drop(a);
    Ok(format!("{none}, {}", rx(&*b, 9, PEEK)?))
}

fn msg_trunc(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    let flags = Rx { trunc: true, ..Rx::default() };
    let mut buf = [0; 3];
    Ok(format!("{}, {}", said(b.recv(&mut buf, flags))?, said(b.recv(&mut buf, flags))?))
}

fn waitall_eof(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    a.shutdown(Shutdown::Write)?;
    Ok(format!("{}, {}", rx(&*b, 9, WAITALL)?, rx(&*b, 9, WAITALL)?))
}

fn waitall_dontwait(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    let flags = Rx { dontwait: true, ..WAITALL };
    Ok(format!("{}, {}", rx(&*b, 9, flags)?, rx(&*b, 9, flags)?))
}

fn waitall_peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    Ok(format!("{}, {}", rx(&*b, 3, Rx { peek: true, ..WAITALL })?, rx(&*b, 9, Rx::default())?))
}

fn waitall_peek_short(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    Ok(format!("{}, {}", rx(&*b, 9, Rx { peek: true, ..WAITALL })?, rx(&*b, 9, Rx::default())?))
}

fn oob(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"ab")?;
    let sent = said(a.send(b"!", Tx { oob: true, nosignal: true, ..Tx::default() }))?;
    tx(&*a, b"cd")?;
    let events = crate::tools::poll(b.fd(), rustix::event::PollFlags::PRI, 0)?;
    let before = rx(&*b, 9, Rx::default())?;
    let mark = rx(&*b, 1, Rx { oob: true, ..Rx::default() })?;
    Ok(format!("{sent}, {events}, {before}, {mark}, {}", rx(&*b, 9, Rx::default())?))
}

fn peek_off(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    match ok(b.set_peek_off(0))?.as_str() {
        "ok" => {}
        other => return Err(Stop::broken(format!("SO_PEEK_OFF: {other}"))),
    }
    tx(&*a, b"abcdef")?;
    let peeked = format!("{}, {}", rx(&*b, 3, PEEK)?, rx(&*b, 9, PEEK)?);
    Ok(format!("{peeked}, {}", rx(&*b, 9, Rx::default())?))
}

/// One-byte sends until there is no room.
fn counts_bytes(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let n = fill(&*a, 1)?;
    drain(&*b, n)?;
    let all = fill(&*a, 4096)?;
    Ok(match n {
        0..1000 if n < all / 2 => "hundreds".to_owned(),
        _ if n >= all => "as many as its bytes".to_owned(),
        _ => format!("{n} of {all}"),
    })
}

fn buffer_doubled(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let before = fill(&*a, 1024)?;
    drain(&*b, before)?;
    rustix::net::sockopt::set_socket_send_buffer_size(a.fd(), 8192)?;
    let size = rustix::net::sockopt::socket_send_buffer_size(a.fd())?;
    let now = fill(&*a, 1024)?;
    let bytes = if now < before { "fewer bytes" } else { "as many bytes as before" };
    Ok(format!("{size} after, {bytes}"))
}

fn fionread(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let none = said(b.readable_bytes())?;
    tx(&*a, b"abc")?;
    tx(&*a, b"de")?;
    let all = said(b.readable_bytes())?;
    rx(&*b, 2, Rx::default())?;
    let some = said(b.readable_bytes())?;
    drop(a);
    drain_to_end(&*b);
    Ok(format!("{none}, {all}, {some}, {}", said(b.readable_bytes())?))
}

fn vectored(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = said(a.send_vectored(&[IoSlice::new(b"abc"), IoSlice::new(b"d"), IoSlice::new(b"ef")]))?;
    scattered(&*b, sent)
}

fn vectored_empty(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let none = || IoSlice::new(&[]);
    scattered(
        &*b,
        said(a.send_vectored(&[none(), IoSlice::new(b"abc"), none(), IoSlice::new(b"d"), none()]))?,
    )
}

fn scattered(b: &dyn End, sent: String) -> Outcome {
    let (mut x, mut y) = ([0; 2], [0; 9]);
    let got = b.recv_vectored(&mut [
        IoSliceMut::new(&mut []),
        IoSliceMut::new(&mut x),
        IoSliceMut::new(&mut []),
        IoSliceMut::new(&mut y),
    ])?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Ok(format!("{sent}, {got}, \"{}\", \"{}\"", text(&x), text(&y[..got.saturating_sub(2)])))
}
