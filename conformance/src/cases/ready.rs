//! Readiness that never lies: readable if and only if a receive would not block, from connect on, whoever speaks first.
//!
//! Ends come fresh here, by connect and accept, where those of the other cases have moved to shared memory before anybody looks.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::descriptors::{give, take};
use crate::cases::poll::brim;
use crate::impls::{Conn, End, Listening, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{self, NOW, asleep, drain, readiness, rx, said, tx, wait_asleep};

pub const CASES: &[Case] = &[
    Case::same(
        "ready.before_accept",
        "connected, and not accepted yet: not readable, and writable",
        Both,
        "OUT, OUT, 1",
        before_accept,
    ),
    Case::same(
        "ready.silent",
        "accepted, and nobody has spoken: not readable, writable, however often it is asked",
        Both,
        "3 x OUT and OUT",
        silent,
    ),
    Case::same(
        "ready.silent_unlooked",
        "the same, where poll alone is asked and nobody receives",
        Both,
        "3 x OUT and OUT",
        silent_unlooked,
    ),
    Case::same(
        "ready.silent_server_first",
        "the same, where the server is the first to look",
        Both,
        "3 x OUT and OUT",
        silent_server_first,
    ),
    Case::same(
        "ready.silent_waits",
        "nobody has spoken: who receives waits, blocking or not",
        Both,
        "EAGAIN EAGAIN, OUT OUT; EAGAIN EAGAIN, OUT OUT",
        silent_waits,
    ),
    Case::same("ready.silent_fionread", "nobody has spoken: FIONREAD is 0", Both, "0 0", silent_fionread),
    Case::same(
        "ready.poller_sleeps_on",
        "a client that polls is not woken by the accept, but by the first byte",
        Both,
        "sleeps on, IN, \"x\"",
        poller_sleeps_on,
    ),
    Case::same(
        "ready.client_spoke",
        "the client has sent: the server alone is readable, until it has received",
        Both,
        "OUT IN+OUT, OUT OUT",
        client_spoke,
    ),
    Case::same(
        "ready.server_spoke",
        "the server has sent: the client alone is readable, until it has received",
        Both,
        "IN+OUT OUT, OUT OUT",
        server_spoke,
    ),
    Case::same(
        "ready.both_spoke",
        "both have sent at once: both are readable, each until it has received",
        Both,
        "IN+OUT IN+OUT, OUT IN+OUT, OUT OUT",
        both_spoke,
    ),
    Case::same(
        "ready.early",
        "sent before the accept: the server is readable from the accept on, until it has received",
        Both,
        "OUT IN+OUT, OUT IN+OUT, OUT OUT",
        early,
    ),
    Case::same(
        "ready.turns",
        "to and fro, received to the byte: exactly who was spoken to is readable, each time",
        Both,
        "12 turns",
        turns,
    ),
    Case::same(
        "ready.turns_short",
        "to and fro, received into buffers that are longer: exactly who was spoken to is readable, each time",
        Both,
        "12 turns",
        turns_short,
    ),
    Case::same(
        "ready.turns_looked",
        "to and fro, with a look by PEEK each time",
        Both,
        "12 turns",
        turns_looked,
    ),
    Case::same(
        "ready.client_talks",
        "only the client ever sends: the server is readable until it has received, the client never",
        Both,
        "20 x right",
        client_talks,
    ),
    Case::same(
        "ready.server_talks",
        "only the server ever sends: the client is readable until it has received, the server never",
        Both,
        "20 x right",
        server_talks,
    ),
    Case::same(
        "ready.burst",
        "several sends of either side before anybody receives: readable until the last is received",
        Both,
        "right 5 times, right 5 times",
        burst,
    ),
    Case::same(
        "ready.shut_wr",
        "SHUT_WR before anybody has spoken: the end for the peer; the other direction is as it was",
        Both,
        "OUT IN+OUT+RDHUP, end, IN+OUT IN+OUT+RDHUP, \"x\", OUT IN+OUT+RDHUP",
        shut_wr,
    ),
    Case::same(
        "ready.shut_rd",
        "SHUT_RD before anybody has spoken: the end for this one, EPIPE for the peer",
        Linux,
        "IN+OUT+RDHUP OUT, end, EPIPE",
        shut_rd,
    ),
    Case::same(
        "ready.client_closes",
        "a client that closes and never spoke: the end, hung up",
        Both,
        "IN+OUT+RDHUP+HUP, end, EPIPE",
        client_closes,
    ),
    Case::same(
        "ready.server_closes",
        "a server that closes and never spoke: the end, hung up, and no reset",
        Both,
        "IN+OUT+RDHUP+HUP, end, EPIPE",
        server_closes,
    ),
    Case::same(
        "ready.closed_before_accept",
        "a client that closed before the accept: the end, hung up",
        Both,
        "IN+OUT+RDHUP+HUP, end",
        closed_before_accept,
    ),
    Case::same(
        "ready.spoke_and_closed",
        "a peer that sent and closed: readable, and the end",
        Both,
        "IN+OUT+RDHUP+HUP, \"bye\", end",
        spoke_and_closed,
    ),
    Case::same(
        "ready.full_before_accept",
        "filled before the accept: not writable, before and after it, until the server has received",
        Both,
        "nothing, nothing IN+OUT, OUT OUT",
        full_before_accept,
    ),
    Case::same(
        "ready.server_fills",
        "filled by a server whose client never spoke: not writable until the client has received",
        Both,
        "IN+OUT nothing, OUT OUT",
        server_fills,
    ),
    Case::same(
        "ready.credentials",
        "who asks for credentials is not readable by that, nor is the peer",
        Both,
        "OUT OUT, OUT IN+OUT, OUT OUT, IN+OUT OUT, OUT OUT",
        credentials,
    ),
    Case::same(
        "ready.descriptors",
        "descriptors as the first thing that is sent: readable until they are received, the other never",
        Both,
        "OUT IN+OUT, 1 with 1, OUT OUT, IN+OUT OUT, 1 with 1, OUT OUT",
        descriptors,
    ),
];

pub fn listener(cx: &Ctx<'_>) -> Result<Box<dyn Listening>, Stop> {
    Ok(cx.imp.listen(cx.kind, &cx.path("s"), None)?)
}

pub fn client(cx: &Ctx<'_>) -> Result<Conn, Stop> {
    Ok(cx.imp.connect(cx.kind, &cx.path("s"))?)
}

/// A client and the server's end of its connection, that have done nothing but connect and accept.
pub fn fresh(cx: &Ctx<'_>) -> Result<(Conn, Conn), Stop> {
    let server = listener(cx)?;
    let client = client(cx)?;
    Ok((client, server.accept()?))
}

/// The readiness of both, with a look at what a receive would do.
fn both(client: &dyn End, server: &dyn End) -> Outcome {
    Ok(format!("{} {}", readiness(client)?, readiness(server)?))
}

fn before_accept(cx: &Ctx<'_>) -> Outcome {
    let server = listener(cx)?;
    let client = client(cx)?;
    let first = format!("{}, {}", readiness(&*client)?, readiness(&*client)?);
    let sent = said(client.send(b"x", Tx { dontwait: true, ..Tx::default() }))?;
    drop(server);
    Ok(format!("{first}, {sent}"))
}

/// The same answer some times over.
fn again(ask: impl Fn() -> Outcome) -> Outcome {
    let mut all = vec![ask()?, ask()?, ask()?];
    let count = all.len();
    all.dedup();
    Ok(if all.len() == 1 { format!("{count} x {}", all[0]) } else { all.join(", ") })
}

fn silent(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    again(|| Ok(format!("{} and {}", readiness(&*client)?, readiness(&*server)?)))
}

fn silent_unlooked(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    again(|| Ok(format!("{} and {}", tools::poll_now(&*client)?, tools::poll_now(&*server)?)))
}

fn silent_server_first(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    again(|| {
        let server = readiness(&*server)?;
        Ok(format!("{server} and {}", readiness(&*client)?))
    })
}

fn silent_waits(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    let mut all = Vec::new();
    for nonblocking in [false, true] {
        let mut came = Vec::new();
        for end in [&client, &server] {
            end.set_nonblocking(nonblocking)?;
            end.set_read_timeout(Some(Duration::from_millis(20)))?;
            came.push(rx(&**end, 9, Rx::default())?);
        }
        all.push(format!("{}, {}", came.join(" "), both(&*client, &*server)?));
    }
    Ok(all.join("; "))
}

fn silent_fionread(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    Ok(format!("{} {}", said(client.readable_bytes())?, said(server.readable_bytes())?))
}

fn poller_sleeps_on(cx: &Ctx<'_>) -> Outcome {
    let listener = listener(cx)?;
    let client = client(cx)?;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        let poller = asleep(s, || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
            tools::poll(client.fd(), PollFlags::IN, tools::SOON)
        });
        let server = listener.accept()?;
        let tid = told.recv().map_err(Stop::broken)?;
        wait_asleep(tid);
        let slept = if poller.is_finished() { "woken" } else { "sleeps on" };
        tx(&*server, b"x")?;
        let polled = poller.join().map_err(|_| Stop::broken("the poller panicked"))??;
        Ok(format!("{slept}, {polled}, {}", rx(&*client, 9, NOW)?))
    })
}

fn client_spoke(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    tx(&*client, b"x")?;
    let before = both(&*client, &*server)?;
    rx(&*server, 9, Rx::default())?;
    Ok(format!("{before}, {}", both(&*client, &*server)?))
}

fn server_spoke(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    tx(&*server, b"x")?;
    let before = both(&*client, &*server)?;
    rx(&*client, 9, Rx::default())?;
    Ok(format!("{before}, {}", both(&*client, &*server)?))
}

fn both_spoke(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    tx(&*server, b"x")?;
    tx(&*client, b"y")?;
    let before = both(&*client, &*server)?;
    rx(&*client, 9, Rx::default())?;
    let between = both(&*client, &*server)?;
    rx(&*server, 9, Rx::default())?;
    Ok(format!("{before}, {between}, {}", both(&*client, &*server)?))
}

fn early(cx: &Ctx<'_>) -> Outcome {
    let listener = listener(cx)?;
    let client = client(cx)?;
    tx(&*client, b"one")?;
    tx(&*client, b"two")?;
    let server = listener.accept()?;
    let mut all = vec![both(&*client, &*server)?];
    for _ in 0..2 {
        rx(&*server, 3, Rx::default())?;
        all.push(both(&*client, &*server)?);
    }
    Ok(all.join(", "))
}

/// One sends and the other receives, in turns, into buffers that are `longer` by so much; `ask` tells readiness.
fn to_and_fro(cx: &Ctx<'_>, longer: usize, ask: impl Fn(&dyn End) -> Outcome) -> Outcome {
    let (client, server) = fresh(cx)?;
    let ends = [&*client, &*server];
    for i in 0..12 {
        let (from, to) = (ends[i % 2], ends[1 - i % 2]);
        let len = [1, 5, 700, 3000][i % 4];
        tx(from, &vec![b'x'; len])?;
        let said = format!("{} {}", ask(from)?, ask(to)?);
        if said != "OUT IN+OUT" {
            return Ok(format!("turn {i}, sent: {said}"));
        }
        let mut buf = vec![0; len + longer];
        let got = to.recv(&mut buf, Rx::default())?;
        let said = format!("{} {}", ask(from)?, ask(to)?);
        if (got, said.as_str()) != (len, "OUT OUT") {
            return Ok(format!("turn {i}, {got} of {len} received: {said}"));
        }
    }
    Ok("12 turns".into())
}

fn turns(cx: &Ctx<'_>) -> Outcome {
    to_and_fro(cx, 0, tools::poll_now)
}

fn turns_short(cx: &Ctx<'_>) -> Outcome {
    to_and_fro(cx, 100, tools::poll_now)
}

fn turns_looked(cx: &Ctx<'_>) -> Outcome {
    to_and_fro(cx, 0, readiness)
}

fn talks(from: &dyn End, to: &dyn End) -> Outcome {
    for i in 0..20 {
        tx(from, b"x")?;
        let sent = format!("{} {}", tools::poll_now(from)?, tools::poll_now(to)?);
        rx(to, 1 + i % 2, Rx::default())?;
        let received = format!("{} {}", tools::poll_now(from)?, tools::poll_now(to)?);
        if (sent.as_str(), received.as_str()) != ("OUT IN+OUT", "OUT OUT") {
            return Ok(format!("{i}: sent {sent}, received {received}"));
        }
    }
    Ok("20 x right".into())
}

fn client_talks(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    talks(&*client, &*server)
}

fn server_talks(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    talks(&*server, &*client)
}

fn burst(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    for _ in 0..5 {
        tx(&*client, b"c")?;
        tx(&*server, b"s")?;
    }
    let mut all = Vec::new();
    for end in [&client, &server] {
        let mut right = 0;
        for _ in 0..5 {
            right += usize::from(readiness(&**end)? == "IN+OUT");
            rx(&**end, 1, Rx::default())?;
        }
        let left = readiness(&**end)?;
        all.push(if left == "OUT" { format!("right {right} times") } else { left });
    }
    Ok(all.join(", "))
}

fn shut_wr(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    client.shutdown(Shutdown::Write)?;
    let mut all = vec![both(&*client, &*server)?, rx(&*server, 9, Rx::default())?];
    tx(&*server, b"x")?;
    all.push(both(&*client, &*server)?);
    all.push(rx(&*client, 9, NOW)?);
    all.push(both(&*client, &*server)?);
    Ok(all.join(", "))
}

fn shut_rd(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    client.shutdown(Shutdown::Read)?;
    let polled = both(&*client, &*server)?;
    Ok(format!("{polled}, {}, {}", rx(&*client, 9, Rx::default())?, tx(&*server, b"x")?))
}

fn client_closes(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    drop(client);
    Ok(format!("{}, {}, {}", readiness(&*server)?, rx(&*server, 9, Rx::default())?, tx(&*server, b"x")?))
}

fn server_closes(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    drop(server);
    Ok(format!("{}, {}, {}", readiness(&*client)?, rx(&*client, 9, Rx::default())?, tx(&*client, b"x")?))
}

fn closed_before_accept(cx: &Ctx<'_>) -> Outcome {
    let listener = listener(cx)?;
    drop(client(cx)?);
    let server = listener.accept()?;
    Ok(format!("{}, {}", readiness(&*server)?, rx(&*server, 9, Rx::default())?))
}

fn spoke_and_closed(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    tx(&*server, b"bye")?;
    drop(server);
    let polled = readiness(&*client)?;
    Ok(format!("{polled}, {}, {}", rx(&*client, 9, Rx::default())?, rx(&*client, 9, Rx::default())?))
}

fn full_before_accept(cx: &Ctx<'_>) -> Outcome {
    let listener = listener(cx)?;
    let client = client(cx)?;
    let n = brim(&*client)?;
    let before = readiness(&*client)?;
    let server = listener.accept()?;
    let accepted = both(&*client, &*server)?;
    drain(&*server, n)?;
    Ok(format!("{before}, {accepted}, {}", both(&*client, &*server)?))
}

fn server_fills(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    let n = brim(&*server)?;
    let full = both(&*client, &*server)?;
    drain(&*client, n)?;
    Ok(format!("{full}, {}", both(&*client, &*server)?))
}

fn credentials(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    server.set_pass_credentials(true)?;
    client.set_pass_credentials(true)?;
    let mut all = vec![both(&*client, &*server)?];
    for (from, to) in [(&client, &server), (&server, &client)] {
        tx(&**from, b"x")?;
        all.push(both(&*client, &*server)?);
        to.recv_with(&mut [0; 9], Rx::default())?;
        all.push(both(&*client, &*server)?);
    }
    Ok(all.join(", "))
}

fn descriptors(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    let (pipe, _) = rustix::pipe::pipe()?;
    let mut all = Vec::new();
    for (from, to) in [(&client, &server), (&server, &client)] {
        give(&**from, b"x", &[pipe.as_fd()])?;
        all.push(both(&*client, &*server)?);
        all.push(take(&**to, 9, Rx::default())?);
        all.push(both(&*client, &*server)?);
    }
    Ok(all.join(", "))
}
