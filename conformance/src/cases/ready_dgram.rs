//! Readiness that never lies, of datagrams: of two that are connected to each other, and of one that receives from many.

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;

use crate::case::Source::Both;
use crate::case::{Case, Ctx};
use crate::cases::datagrams::{bound, dg, same};
use crate::impls::{Conn, End, Rx, Socket, Sockets};
use crate::stop::{Outcome, Stop};
use crate::tools::{Epoll, NOW, SOON, asleep, poll, poll_now, readable, readiness, rx, tx};

pub const CASES: &[Case] = &[
    same(
        "dgram_ready.silent",
        "connected to each other, and nobody has spoken: not readable, writable, however often it is asked",
        Both,
        "3 x OUT OUT",
        silent,
    ),
    same(
        "dgram_ready.turns",
        "to and fro: exactly who was spoken to is readable, each time",
        Both,
        "60 turns",
        turns,
    ),
    same(
        "dgram_ready.turns_looked",
        "to and fro, with a look by PEEK each time",
        Both,
        "60 turns",
        turns_looked,
    ),
    same(
        "dgram_ready.one_talks",
        "only one of two ever sends: the other is readable until it has received, the one never",
        Both,
        "60 turns",
        one_talks,
    ),
    same(
        "dgram_ready.burst",
        "several of either side before anybody receives: readable until the last is received",
        Both,
        "10 x right",
        burst,
    ),
    same(
        "dgram_ready.pool",
        "8 pairs that know each other, of which one is spoken to: a poll over all tells of exactly this one",
        Both,
        "none, 5, none, 1 6, none",
        pool,
    ),
    same(
        "dgram_ready.edge",
        "edge: no edge without news, and one for each datagram",
        Both,
        "nothing nothing, 60 x one edge, and none for who sent",
        edge,
    ),
    same(
        "dgram_ready.many_silent",
        "senders that have connected and say nothing: not readable, nor is the receiver",
        Both,
        "3 x OUT OUT OUT OUT",
        many_silent,
    ),
    same(
        "dgram_ready.many",
        "many senders in turns: the receiver is readable until it has received, the senders never",
        Both,
        "120 turns",
        many,
    ),
    same(
        "dgram_ready.many_looked",
        "many senders in turns, with a look by PEEK each time",
        Both,
        "120 turns",
        many_looked,
    ),
    same(
        "dgram_ready.many_bursts",
        "one datagram of each sender, then all are received: readable until the last is",
        Both,
        "40 x right",
        many_bursts,
    ),
    same(
        "dgram_ready.many_named",
        "a sender without a name asks who sends, and so gets one with its next datagram: readable until that is received",
        Both,
        "12 x right",
        many_named,
    ),
    same(
        "dgram_ready.many_edges",
        "edge, many senders in turns: one edge for each datagram, and none for who sent",
        Both,
        "nothing, 120 x one edge, and none for who sent",
        many_edges,
    ),
    same(
        "dgram_ready.poller_sleeps_on",
        "a receiver that polls is not woken by a sender that connects, but by its first datagram",
        Both,
        "sleeps on, IN, \"x\"",
        poller_sleeps_on,
    ),
    same(
        "dgram_ready.peer_closes",
        "a peer that closes without a word is no news; what it had sent is received, and then nothing is there",
        Both,
        "OUT; IN+OUT, \"x\", OUT",
        peer_closes,
    ),
];

/// The readiness of all, with `ask`.
fn all(ends: &[&dyn End], ask: impl Fn(&dyn End) -> Outcome) -> Outcome {
    Ok(ends.iter().map(|end| ask(*end)).collect::<Result<Vec<_>, _>>()?.join(" "))
}

/// The same answer some times over.
fn again(ask: impl Fn() -> Outcome) -> Outcome {
    let mut all = vec![ask()?, ask()?, ask()?];
    let count = all.len();
    all.dedup();
    Ok(if all.len() == 1 { format!("{count} x {}", all[0]) } else { all.join(", ") })
}

/// Two that are connected to each other and have done nothing else: that they come to share memory is part of what is looked at.
fn fresh(cx: &Ctx<'_>, a: &str, b: &str) -> Result<Sockets, Stop> {
    let pair = (bound(cx, a)?, bound(cx, b)?);
    pair.0.connect(&cx.path(b))?;
    pair.1.connect(&cx.path(a))?;
    Ok(pair)
}

fn fresh_pair(cx: &Ctx<'_>) -> Result<Sockets, Stop> {
    fresh(cx, "a", "b")
}

fn silent(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = fresh_pair(cx)?;
    again(|| all(&[&*a, &*b], readiness))
}

/// So many turns, of which `plan` says who sends; who is `to` receives.
fn talk(
    ends: &[&dyn End],
    turns: usize,
    plan: impl Fn(usize) -> (usize, usize),
    ask: impl Fn(&dyn End) -> Outcome,
) -> Outcome {
    for i in 0..turns {
        let (from, to) = plan(i);
        tx(ends[from], b"some")?;
        let wanted = |at: usize| if at == to { "IN+OUT" } else { "OUT" };
        let want = (0..ends.len()).map(wanted).collect::<Vec<_>>().join(" ");
        let sent = all(ends, &ask)?;
        if sent != want {
            return Ok(format!("turn {i}, {from} to {to}, sent: {sent}"));
        }
        let got = rx(ends[to], 9, Rx::default())?;
        let received = all(ends, &ask)?;
        if got != "\"some\"" || received != ["OUT"].repeat(ends.len()).join(" ") {
            return Ok(format!("turn {i}, {from} to {to}, received {got}: {received}"));
        }
    }
    Ok(format!("{turns} turns"))
}

fn turns(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = fresh_pair(cx)?;
    talk(&[&*a, &*b], 60, |i| (i % 2, 1 - i % 2), poll_now)
}

fn turns_looked(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = fresh_pair(cx)?;
    talk(&[&*a, &*b], 60, |i| (i % 2, 1 - i % 2), readiness)
}

fn one_talks(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = fresh_pair(cx)?;
    talk(&[&*a, &*b], 60, |_| (0, 1), poll_now)
}

fn burst(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = fresh_pair(cx)?;
    let mut right = 0;
    for _ in 0..10 {
        for _ in 0..5 {
            tx(&*a as &dyn End, b"a")?;
            tx(&*b as &dyn End, b"b")?;
        }
        let mut seen = Vec::new();
        for end in [&a, &b] {
            for _ in 0..5 {
                seen.push(poll_now(&**end as &dyn End)? == "IN+OUT");
                rx(&**end as &dyn End, 9, Rx::default())?;
            }
            seen.push(poll_now(&**end as &dyn End)? == "OUT");
        }
        right += usize::from(seen.iter().all(|right| *right));
    }
    Ok(format!("{right} x right"))
}

fn pool(cx: &Ctx<'_>) -> Outcome {
    let mut pairs = Vec::new();
    for i in 0..8 {
        let pair = fresh(cx, &format!("a{i}"), &format!("b{i}"))?;
        for i in 0..40 {
            let (from, to) = if i % 2 == 0 { (&pair.0, &pair.1) } else { (&pair.1, &pair.0) };
            tx(&**from as &dyn End, b"some")?;
            rx(&**to as &dyn End, 9, Rx::default())?;
        }
        for end in [&pair.0, &pair.1] {
            // (What is left of their meeting.)
            while end.recv(&mut [0; 9], NOW).is_ok() {}
        }
        pairs.push(pair);
    }
    let told = || -> Outcome {
        let which = readable(pairs.iter().map(|(a, _)| &**a as &dyn End))?;
        let which: Vec<_> = which.iter().map(usize::to_string).collect();
        Ok(if which.is_empty() { "none".into() } else { which.join(" ") })
    };
    let mut seen = vec![told()?];
    for spoken_to in [&[5][..], &[1, 6]] {
        for at in spoken_to {
            tx(&*pairs[*at].1 as &dyn End, b"x")?;
        }
        seen.push(told()?);
        for at in spoken_to {
            rx(&*pairs[*at].0 as &dyn End, 9, Rx::default())?;
        }
        seen.push(told()?);
    }
    Ok(seen.join(", "))
}

const IN: EventFlags = EventFlags::IN;
const EDGE: EventFlags = EventFlags::ET;

/// So many datagrams, of which `plan` says who sends to whom, and whether each brings exactly one edge.
fn edges(ends: &[&dyn End], turns: usize, plan: impl Fn(usize) -> (usize, usize)) -> Outcome {
    let epolls = ends.iter().map(|end| Epoll::watching(*end, IN | EDGE)).collect::<Result<Vec<_>, _>>()?;
    let before = |to: usize| (0..ends.len()).map(move |at| if at == to { "IN" } else { "nothing" });
    for i in 0..turns {
        let (from, to) = plan(i);
        tx(ends[from], b"x")?;
        let told = epolls.iter().map(|epoll| epoll.wait(0)).collect::<Result<Vec<_>, _>>()?;
        let more = epolls[to].wait(0)?;
        let got = format!("{} {}", rx(ends[to], 9, NOW)?, rx(ends[to], 9, NOW)?);
        let after = epolls.iter().map(|epoll| epoll.wait(0)).collect::<Result<Vec<_>, _>>()?;
        let right = before(to).eq(told.iter().map(String::as_str)) && more == "nothing";
        if !right || got != "\"x\" EAGAIN" || after.iter().any(|told| told != "nothing") {
            return Ok(format!("{i}, {from} to {to}: {told:?} {more}, received {got}, {after:?}"));
        }
    }
    Ok(format!("{turns} x one edge, and none for who sent"))
}

fn edge(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = fresh_pair(cx)?;
    let quiet = [&a, &b].map(|end| Epoll::watching(&**end as &dyn End, IN | EDGE)?.wait(20));
    let [one, two] = quiet;
    Ok(format!("{} {}, {}", one?, two?, edges(&[&*a, &*b], 60, |i| [(0, 1), (0, 1), (1, 0)][i % 3])?))
}

type Ends = (Box<dyn Socket>, Vec<Box<dyn Socket>>);

/// A receiver, and three that are connected to it and have said nothing.
fn fan_in(cx: &Ctx<'_>) -> Result<Ends, Stop> {
    let to = bound(cx, "to")?;
    let mut senders = Vec::new();
    for _ in 0..3 {
        let sender = dg(cx)?;
        sender.connect(&cx.path("to"))?;
        senders.push(sender);
    }
    Ok((to, senders))
}

/// The receiver first.
fn ends((to, senders): &Ends) -> Vec<&dyn End> {
    std::iter::once(&**to as &dyn End).chain(senders.iter().map(|sender| &**sender as &dyn End)).collect()
}

fn many_silent(cx: &Ctx<'_>) -> Outcome {
    let members = fan_in(cx)?;
    again(|| all(&ends(&members), readiness))
}

fn many(cx: &Ctx<'_>) -> Outcome {
    talk(&ends(&fan_in(cx)?), 120, |i| (1 + i % 3, 0), poll_now)
}

fn many_looked(cx: &Ctx<'_>) -> Outcome {
    talk(&ends(&fan_in(cx)?), 120, |i| (1 + i % 3, 0), readiness)
}

fn many_bursts(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = fan_in(cx)?;
    let to = &*to as &dyn End;
    let mut right = 0;
    for _ in 0..40 {
        for sender in &senders {
            tx(&**sender as &dyn End, b"x")?;
        }
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(poll_now(to)? == "IN+OUT");
            rx(to, 9, Rx::default())?;
        }
        seen.push(poll_now(to)? == "OUT");
        right += usize::from(seen.iter().all(|right| *right));
    }
    Ok(format!("{right} x right"))
}

fn many_named(cx: &Ctx<'_>) -> Outcome {
    let to = bound(cx, "to")?;
    let to = &*to as &dyn End;
    let mut right = 0;
    // (At each point of what the two come to.)
    for before in 0..12 {
        let sender = dg(cx)?;
        sender.connect(&cx.path("to"))?;
        let sender = &*sender as &dyn End;
        let mut seen = Vec::new();
        for i in 0..before + 3 {
            if i == before {
                sender.set_pass_credentials(true)?;
            }
            tx(sender, b"x")?;
            seen.push(poll_now(to)? == "IN+OUT" && rx(to, 9, NOW)? == "\"x\"");
            seen.push(poll_now(to)? == "OUT" && rx(to, 9, NOW)? == "EAGAIN");
        }
        right += usize::from(seen.iter().all(|right| *right));
    }
    Ok(format!("{right} x right"))
}

fn many_edges(cx: &Ctx<'_>) -> Outcome {
    let members = fan_in(cx)?;
    let ends = ends(&members);
    let quiet = Epoll::watching(ends[0], IN | EDGE)?.wait(20)?;
    Ok(format!("{quiet}, {}", edges(&ends, 120, |i| (1 + i % 3, 0))?))
}

fn poller_sleeps_on(cx: &Ctx<'_>) -> Outcome {
    let to = bound(cx, "to")?;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        let poller = asleep(s, || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
            poll(to.fd(), PollFlags::IN, SOON)
        });
        let sender = dg(cx)?;
        sender.connect(&cx.path("to"))?;
        crate::tools::wait_asleep(told.recv().map_err(Stop::broken)?);
        let slept = if poller.is_finished() { "woken" } else { "sleeps on" };
        tx(&*sender as &dyn End, b"x")?;
        let polled = poller.join().map_err(|_| Stop::broken("the poller panicked"))??;
        Ok(format!("{slept}, {polled}, {}", rx(&*to as &dyn End, 9, NOW)?))
    })
}

fn peer_closes(cx: &Ctx<'_>) -> Outcome {
    let (a, b): (Conn, Conn) = fresh_pair(cx).map(|(a, b)| (a as Conn, b as Conn))?;
    drop(b);
    let silent = readiness(&*a)?;
    let (c, d) = fresh(cx, "c", "d")?;
    tx(&*d as &dyn End, b"x")?;
    drop(d);
    let c: Conn = c;
    let before = readiness(&*c)?;
    Ok(format!("{silent}; {before}, {}, {}", rx(&*c, 9, NOW)?, readiness(&*c)?))
}
