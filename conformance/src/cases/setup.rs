//! Names, listeners, connecting.

use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::impls::kernel::Kernel;
use crate::impls::{Kind, Name, Rx, Socket};
use crate::stop::{Outcome, Stop};
use crate::tools::{self, NOW, asleep, ok, rx, said, tx};

pub const CASES: &[Case] = &[
    Case::same("setup.socketpair", "socketpair of three types", Both, "2, \"hi\", 2, \"ho\"", socketpair),
    Case::same("setup.bind_twice", "bind twice EINVAL", Both, "ok, EINVAL", bind_twice),
    Case::same("setup.bind_used_path", "bind used path EADDRINUSE", Both, "EADDRINUSE", bind_used_path),
    Case::same("setup.bind_over_a_file", "bind used path EADDRINUSE", Both, "EADDRINUSE", bind_over_file),
    Case::same(
        "setup.path_stays",
        "bind used path EADDRINUSE, its owner gone or not",
        Both,
        "EADDRINUSE, after unlink ok",
        path_stays,
    ),
    Case::same("setup.listen_unbound", "listen unbound EINVAL", Linux, "EINVAL", listen_unbound),
    Case::same("setup.listen_connected", "listen connected EINVAL", Both, "EINVAL", listen_connected),
    Case::same("setup.relisten", "relisten ok", Linux, "ok, ok", relisten),
    Case::same("setup.dgram_listen", "dgram listen EOPNOTSUPP", Linux, "EOPNOTSUPP", dgram_listen),
    Case::same("setup.connect_missing", "connect missing ENOENT", Both, "ENOENT", connect_missing),
    Case::same(
        "setup.connect_abstract_missing",
        "connect to an abstract name that nobody has ECONNREFUSED",
        Linux,
        "ECONNREFUSED",
        connect_abstract_missing,
    ),
    Case::same(
        "setup.connect_non_listener",
        "connect non-listener ECONNREFUSED",
        Both,
        "ECONNREFUSED",
        connect_non_listener,
    ),
    Case::same(
        "setup.connect_after_listener_closed",
        "connect non-listener ECONNREFUSED, a path left behind",
        Both,
        "ECONNREFUSED",
        connect_after_close,
    ),
    Case::same("setup.connect_wrong_type", "wrong type EPROTOTYPE", Both, "EPROTOTYPE", connect_wrong_type),
    Case::same("setup.connect_no_permission", "no permission EACCES", Both, "EACCES", connect_no_permission),
    Case::same(
        "setup.connect_non_socket",
        "non-socket path ECONNREFUSED",
        Linux,
        "ECONNREFUSED",
        connect_non_socket,
    ),
    Case::same("setup.connect_twice", "connect twice EISCONN", Both, "ok, EISCONN", connect_twice),
    Case::same(
        "setup.backlog_full",
        "backlog full nonblocking EAGAIN",
        Linux,
        "ok, EAGAIN, after accept ok",
        backlog_full,
    ),
    Case::same(
        "setup.backlog_waits",
        "backlog full, blocking waits",
        Linux,
        "waits, after accept connected",
        backlog_waits,
    ),
    Case::same(
        "setup.accept_non_listener",
        "accept on non-listener EINVAL",
        Both,
        "EINVAL",
        accept_non_listener,
    ),
    Case::same(
        "setup.accept_nonblocking",
        "accept, nobody there, nonblocking EAGAIN",
        Both,
        "EAGAIN",
        accept_none,
    ),
    Case::same(
        "setup.accept_woken",
        "a blocked accept is woken by a connect",
        Both,
        "2, \"hi\"",
        accept_woken,
    ),
    Case::same(
        "setup.accept_shutdown",
        "a blocked accept is woken by shutdown of the listener",
        Linux,
        "EINVAL",
        accept_shutdown,
    ),
    Case::same(
        "setup.send_before_accept",
        "send before accept delivered",
        Both,
        "2, \"hi\"",
        send_before_accept,
    ),
    Case::same(
        "setup.close_before_accept",
        "send before accept delivered, the sender gone",
        Both,
        "\"hi\", end",
        close_before_accept,
    ),
    Case::same(
        "setup.silent_client",
        "a silent client stalls nobody: the next one is served",
        Both,
        "\"hi\", \"ho\"",
        silent_client,
    ),
    Case::same(
        "setup.listener_gone",
        "listener closed before accept: recv ECONNRESET once, send EPIPE",
        Linux,
        "ECONNRESET, EPIPE, end",
        listener_gone,
    ),
    Case::same(
        "setup.listener_gone_send",
        "the same, where the client sends first: EPIPE, and then recv ECONNRESET (a record's send ECONNRESET, and then recv end)",
        Linux,
        "EPIPE, EPIPE, ECONNRESET",
        listener_gone_send,
    ),
    Case::same(
        "setup.getpeername_unconnected",
        "getpeername unconnected ENOTCONN",
        Both,
        "ENOTCONN",
        getpeername_unconnected,
    ),
    Case::same(
        "setup.names",
        "getsockname of listener and server, getpeername of client: the bound name",
        Both,
        "listener /s, server /s, client sees /s",
        names,
    ),
    Case::same(
        "setup.names_client",
        "the client's own name: none unless bound",
        Both,
        "unnamed, unnamed",
        names_client,
    ),
    Case::same("setup.autobind", "autobind NUL + 5 hex", Linux, "NUL + 5 hex", autobind),
    Case::same(
        "setup.abstract",
        "abstract name freed on close, duplicate EADDRINUSE",
        Linux,
        "EADDRINUSE, after close ok, \"hi\"",
        abstract_name,
    ),
    Case::same(
        "setup.long_names",
        "a name longer than sun_path EINVAL, bind and connect; as long as it is right",
        Linux,
        "path ok, EINVAL, EINVAL; abstract ok, EINVAL, EINVAL",
        long_names,
    ),
    Case::same(
        "setup.peercred",
        "SO_PEERCRED is fixed at connect, listen or socketpair",
        Linux,
        "pair me me, client sees me, server sees me",
        peercred,
    ),
    Case::same(
        "setup.listener_poll",
        "a listener polls POLLIN when a client waits",
        Both,
        "nothing, IN, nothing",
        listener_poll,
    ),
    Case::same(
        "setup.listener_fionread",
        "FIONREAD on a listener EINVAL",
        Linux,
        "EINVAL",
        listener_fionread,
    ),
];

/// A socket in no state yet, where the implementation lets one be held.
pub fn raw(cx: &Ctx<'_>, kind: Kind) -> Result<Box<dyn Socket>, Stop> {
    cx.imp.socket(kind).ok_or(Stop::NotOffered("an unconnected socket cannot be held"))
}

fn socketpair(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let there = format!("{}, {}", tx(&*a, b"hi")?, rx(&*b, 9, Rx::default())?);
    Ok(format!("{there}, {}, {}", tx(&*b, b"ho")?, rx(&*a, 9, Rx::default())?))
}

fn bind_twice(cx: &Ctx<'_>) -> Outcome {
    let s = raw(cx, cx.kind)?;
    Ok(format!("{}, {}", ok(s.bind(&cx.path("a")))?, ok(s.bind(&cx.path("b")))?))
}

fn bind_used_path(cx: &Ctx<'_>) -> Outcome {
    let _first = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    ok(cx.imp.listen(cx.kind, &cx.path("s"), None).map(|_| ()))
}

fn bind_over_file(cx: &Ctx<'_>) -> Outcome {
    std::fs::write(cx.dir.join("s"), "not a socket")?;
    ok(cx.imp.listen(cx.kind, &cx.path("s"), None).map(|_| ()))
}

fn path_stays(cx: &Ctx<'_>) -> Outcome {
    drop(cx.imp.listen(cx.kind, &cx.path("s"), None)?);
    let again = ok(cx.imp.listen(cx.kind, &cx.path("s"), None).map(|_| ()))?;
    std::fs::remove_file(cx.dir.join("s"))?;
    Ok(format!("{again}, after unlink {}", ok(cx.imp.listen(cx.kind, &cx.path("s"), None).map(|_| ()))?))
}

fn listen_unbound(cx: &Ctx<'_>) -> Outcome {
    ok(raw(cx, cx.kind)?.listen(8))
}

fn listen_connected(cx: &Ctx<'_>) -> Outcome {
    let _server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let s = raw(cx, cx.kind)?;
    s.bind(&cx.path("c"))?;
    s.connect(&cx.path("s"))?;
    ok(s.listen(8))
}

fn relisten(cx: &Ctx<'_>) -> Outcome {
    let s = raw(cx, cx.kind)?;
    s.bind(&cx.path("s"))?;
    Ok(format!("{}, {}", ok(s.listen(8))?, ok(s.listen(16))?))
}

fn dgram_listen(cx: &Ctx<'_>) -> Outcome {
    let s = raw(cx, Kind::Dgram)?;
    s.bind(&cx.path("s"))?;
    ok(s.listen(8))
}

fn connect_missing(cx: &Ctx<'_>) -> Outcome {
    ok(cx.imp.connect(cx.kind, &cx.path("nobody")).map(|_| ()))
}

fn connect_abstract_missing(cx: &Ctx<'_>) -> Outcome {
    ok(cx.imp.connect(cx.kind, &cx.abstract_name("nobody")).map(|_| ()))
}

fn connect_non_listener(cx: &Ctx<'_>) -> Outcome {
    let bound = Kernel::open(cx.kind)?;
    bound.bind(&cx.path("s"))?;
    ok(cx.imp.connect(cx.kind, &cx.path("s")).map(|_| ()))
}

fn connect_after_close(cx: &Ctx<'_>) -> Outcome {
    drop(cx.imp.listen(cx.kind, &cx.path("s"), None)?);
    ok(cx.imp.connect(cx.kind, &cx.path("s")).map(|_| ()))
}

fn connect_wrong_type(cx: &Ctx<'_>) -> Outcome {
    let bound = Kernel::open(Kind::Dgram)?;
    bound.bind(&cx.path("s"))?;
    ok(cx.imp.connect(cx.kind, &cx.path("s")).map(|_| ()))
}

fn connect_no_permission(cx: &Ctx<'_>) -> Outcome {
    let _server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    std::fs::set_permissions(cx.dir.join("s"), std::fs::Permissions::from_mode(0o000))?;
    // Root passes every mode by this capability; the process is the case's own, so it may give it up.
    let mut mine = capabilities(None)?;
    mine.effective.remove(CapabilitySet::DAC_OVERRIDE);
    set_capabilities(None, mine)?;
    ok(cx.imp.connect(cx.kind, &cx.path("s")).map(|_| ()))
}

fn connect_non_socket(cx: &Ctx<'_>) -> Outcome {
    std::fs::write(cx.dir.join("s"), "not a socket")?;
    ok(cx.imp.connect(cx.kind, &cx.path("s")).map(|_| ()))
}

fn connect_twice(cx: &Ctx<'_>) -> Outcome {
    let _server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let s = raw(cx, cx.kind)?;
    Ok(format!("{}, {}", ok(s.connect(&cx.path("s")))?, ok(s.connect(&cx.path("s")))?))
}

/// The waiting client is a plain one: it is the listener's backlog that is tried.
fn backlog_full(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), Some(0))?;
    let (first, second) = (Kernel::open(cx.kind)?, Kernel::open(cx.kind)?);
    for s in [&first, &second] {
        crate::impls::End::set_nonblocking(s, true)?;
    }
    let before = format!("{}, {}", ok(first.connect(&cx.path("s")))?, ok(second.connect(&cx.path("s")))?);
    let _conn = server.accept()?;
    Ok(format!("{before}, after accept {}", ok(second.connect(&cx.path("s")))?))
}

fn backlog_waits(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), Some(0))?;
    let _first = cx.imp.connect(cx.kind, &cx.path("s"))?;
    std::thread::scope(|s| {
        let second = asleep(s, || cx.imp.connect(cx.kind, &cx.path("s")).map(|_| ()));
        let waits = if second.is_finished() { "does not wait" } else { "waits" };
        let _conn = server.accept()?;
        let then = second.join().map_err(|_| Stop::broken("the connecting thread panicked"))?;
        Ok(format!("{waits}, after accept {}", ok(then)?.replace("ok", "connected")))
    })
}

fn accept_non_listener(cx: &Ctx<'_>) -> Outcome {
    let s = raw(cx, cx.kind)?;
    s.bind(&cx.path("s"))?;
    ok(s.accept().map(|_| ()))
}

fn accept_none(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    server.set_nonblocking(true)?;
    ok(server.accept().map(|_| ()))
}

fn accept_woken(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    std::thread::scope(|s| {
        let accepted = asleep(s, || server.accept());
        let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
        let conn = accepted.join().map_err(|_| Stop::broken("the accepting thread panicked"))??;
        Ok(format!("{}, {}", tx(&*client, b"hi")?, rx(&*conn, 9, Rx::default())?))
    })
}

fn accept_shutdown(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    std::thread::scope(|s| {
        let accepted = asleep(s, || server.accept().map(|_| ()));
        rustix::net::shutdown(server.fd(), rustix::net::Shutdown::Both)?;
        ok(accepted.join().map_err(|_| Stop::broken("the accepting thread panicked"))?)
    })
}

fn send_before_accept(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let sent = tx(&*client, b"hi")?;
    let conn = server.accept()?;
    Ok(format!("{sent}, {}", rx(&*conn, 9, Rx::default())?))
}

fn close_before_accept(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    tx(&*client, b"hi")?;
    drop(client);
    let conn = server.accept()?;
    Ok(format!("{}, {}", rx(&*conn, 9, Rx::default())?, rx(&*conn, 9, Rx::default())?))
}

fn silent_client(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let _silent = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let _first = server.accept()?;
    let conn = server.accept()?;
    tx(&*client, b"hi")?;
    let there = rx(&*conn, 9, Rx::default())?;
    tx(&*conn, b"ho")?;
    Ok(format!("{there}, {}", rx(&*client, 9, Rx::default())?))
}

fn listener_gone(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    drop(server);
    let first = rx(&*client, 9, Rx::default())?;
    Ok(format!("{first}, {}, {}", tx(&*client, b"hi")?, rx(&*client, 9, Rx::default())?))
}

fn listener_gone_send(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    drop(server);
    let first = tx(&*client, b"hi")?;
    Ok(format!("{first}, {}, {}", tx(&*client, b"ho")?, rx(&*client, 9, Rx::default())?))
}

fn getpeername_unconnected(cx: &Ctx<'_>) -> Outcome {
    said(raw(cx, cx.kind)?.peer_name().map(|n| format!("{n:?}")))
}

/// A name as the last part of its path.
fn short(name: &Name) -> String {
    match name {
        Name::Unnamed => "unnamed".to_owned(),
        Name::Path(p) => format!("/{}", p.file_name().map(|n| n.to_string_lossy()).unwrap_or_default()),
        Name::Abstract(n) => format!("@{}", String::from_utf8_lossy(n)),
    }
}

fn names(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let conn = server.accept()?;
    Ok(format!(
        "listener {}, server {}, client sees {}",
        short(&server.local_name()?),
        short(&conn.local_name()?),
        short(&client.peer_name()?)
    ))
}

fn names_client(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let conn = server.accept()?;
    Ok(format!("{}, {}", short(&client.local_name()?), short(&conn.peer_name()?)))
}

fn autobind(cx: &Ctx<'_>) -> Outcome {
    let s = raw(cx, cx.kind)?;
    s.bind(&Name::Unnamed)?;
    Ok(match s.local_name()? {
        Name::Abstract(n) if n.len() == 5 && n.iter().all(u8::is_ascii_hexdigit) => "NUL + 5 hex".to_owned(),
        other => format!("{other:?}"),
    })
}

fn abstract_name(cx: &Ctx<'_>) -> Outcome {
    let name = cx.abstract_name("n");
    let first = cx.imp.listen(cx.kind, &name, None)?;
    let twice = ok(cx.imp.listen(cx.kind, &name, None).map(|_| ()))?;
    drop(first);
    let server = cx.imp.listen(cx.kind, &name, None);
    let again = ok(server.as_ref().map(|_| ()).map_err(|e| std::io::Error::from(e.kind())))?;
    let server = server?;
    let client = cx.imp.connect(cx.kind, &name)?;
    tx(&*client, b"hi")?;
    let conn = server.accept()?;
    Ok(format!("{twice}, after close {again}, {}", rx(&*conn, 9, Rx::default())?))
}

/// A path, and an abstract name, of as many bytes as sun_path has; and each with one more.
pub fn longest(cx: &Ctx<'_>) -> [(&'static str, Name, Name); 2] {
    let folder = cx.dir.as_os_str().len() + 1;
    let path = |bytes: usize| cx.path(&"p".repeat(bytes.saturating_sub(folder).max(1)));
    let name = |bytes| match cx.abstract_name("n") {
        Name::Abstract(mut name) => {
            name.resize(bytes, b'n');
            Name::Abstract(name)
        }
        other => other,
    };
    [("path", path(108), path(109)), ("abstract", name(107), name(108))]
}

fn long_names(cx: &Ctx<'_>) -> Outcome {
    let mut seen = Vec::new();
    for (word, fits, long) in longest(cx) {
        let listen = |name| ok(cx.imp.listen(cx.kind, name, None).map(|_| ()));
        let connect = ok(cx.imp.connect(cx.kind, &long).map(|_| ()))?;
        seen.push(format!("{word} {}, {}, {connect}", listen(&fits)?, listen(&long)?));
    }
    Ok(seen.join("; "))
}

fn peercred(cx: &Ctx<'_>) -> Outcome {
    let me = (std::process::id() as i32, rustix::process::getuid().as_raw());
    let who = |cred: (i32, u32)| if cred == me { "me".to_owned() } else { format!("{cred:?}, not {me:?}") };
    let (a, b) = cx.pair()?;
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let conn = server.accept()?;
    Ok(format!(
        "pair {} {}, client sees {}, server sees {}",
        who(a.peer_cred()?),
        who(b.peer_cred()?),
        who(client.peer_cred()?),
        who(conn.peer_cred()?)
    ))
}

fn listener_poll(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let before = tools::poll(server.fd(), PollFlags::IN, 0)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let waits = tools::poll(server.fd(), PollFlags::IN, tools::SOON)?;
    let conn = server.accept()?;
    // Both ends are there and usable, whatever the listener said.
    conn.set_read_timeout(Some(Duration::from_secs(1)))?;
    tx(&*client, b"x")?;
    rx(&*conn, 1, NOW)?;
    client.shutdown(Shutdown::Both)?;
    Ok(format!("{before}, {waits}, {}", tools::poll(server.fd(), PollFlags::IN, 0)?))
}

fn listener_fionread(cx: &Ctx<'_>) -> Outcome {
    said(cx.imp.listen(cx.kind, &cx.path("s"), None)?.readable_bytes())
}
