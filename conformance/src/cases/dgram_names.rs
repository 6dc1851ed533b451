//! Datagrams: names, and who is connected to whom.

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::datagrams::{bound, dg, named_pair, same, short};
use crate::cases::setup::longest;
use crate::impls::kernel::Kernel;
use crate::impls::{End, Kind, Name, Socket};
use crate::stop::Outcome;
use crate::tools::{NOW, errno, ok, rx, said, tx};

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
    same(
        "dgram.long_names",
        "a name longer than sun_path EINVAL, bind and connect; as long as it is right",
        Linux,
        "path ok, EINVAL, EINVAL; abstract ok, EINVAL, EINVAL",
        long_names,
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
];

/// Receives, and tells from whom.
fn rx_from(end: &dyn End) -> Outcome {
    let mut buf = [0; 99];
    let got = end.recv_from(&mut buf, NOW);
    said(got.map(|(n, name)| format!("\"{}\" from {}", String::from_utf8_lossy(&buf[..n]), short(&name))))
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

fn long_names(cx: &Ctx<'_>) -> Outcome {
    let mut seen = Vec::new();
    for (word, fits, long) in longest(cx) {
        let (fits, bind) = (ok(dg(cx)?.bind(&fits))?, ok(dg(cx)?.bind(&long))?);
        seen.push(format!("{word} {fits}, {bind}, {}", ok(dg(cx)?.connect(&long))?));
    }
    Ok(seen.join("; "))
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
