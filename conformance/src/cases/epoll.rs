//! Readiness as epoll tells it, level and edge.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use rustix::event::epoll::EventFlags;

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::poll::{brim, for_an_end};
use crate::impls::End;
use crate::stop::{Outcome, Stop};
use crate::tools::{Epoll, NOW, SOON, asleep, drain, rx, tx};

pub const CASES: &[Case] = &[
    Case::same("epoll.level", "level: told again until drained", Both, "IN, IN, IN, nothing", level),
    Case::same(
        "epoll.edge",
        "edge: told once, and not again before more arrives",
        Linux,
        "IN, nothing, IN, nothing",
        edge,
    ),
    Case::same(
        "epoll.edge_partial",
        "edge: a partial read is no edge, new data is one, drained or not",
        Linux,
        "IN, nothing, IN",
        edge_partial,
    ),
    Case::same(
        "epoll.edge_late",
        "edge: data that was there at EPOLL_CTL_ADD is told",
        Both,
        "IN",
        edge_late,
    ),
    Case::same(
        "epoll.edge_rearm",
        "edge: EPOLL_CTL_MOD tells what is ready again",
        Both,
        "IN, nothing, IN",
        edge_rearm,
    ),
    Case::same(
        "epoll.edge_eof",
        "edge: the end of stream is an edge",
        Both,
        "IN, nothing, IN+RDHUP",
        edge_eof,
    ),
    Case::same(
        "epoll.edge_hup",
        "edge: the peer's close is an edge",
        Both,
        "nothing, IN+RDHUP+HUP",
        edge_hup,
    ),
    Case::same(
        "epoll.edge_out",
        "edge: EPOLLOUT once, and again when there is room after it was full",
        Both,
        "OUT, nothing, nothing, OUT",
        edge_out,
    ),
    Case::same("epoll.oneshot", "EPOLLONESHOT: once until armed again", Both, "IN, nothing, IN", oneshot),
    Case::same(
        "epoll.two_level_edge",
        "several epolls on one end: all are told, and the drain is known to all",
        Both,
        "level IN, edge IN, level nothing, edge nothing, level IN, edge IN",
        two_epolls,
    ),
    Case::same(
        "epoll.two_edges",
        "several epolls on one end, edge: each is told of each arrival",
        Linux,
        "IN IN, nothing nothing, IN IN",
        two_edges,
    ),
    Case::same(
        "epoll.shared",
        "one epoll, two waiting threads, edge: data wakes one at least",
        Linux,
        "woken",
        shared,
    ),
    Case::same(
        "epoll.exclusive",
        "EPOLLEXCLUSIVE: of several epolls that are waited for, one at least is told",
        Linux,
        "woken",
        exclusive,
    ),
    Case::same(
        "epoll.exclusive_again",
        "EPOLLEXCLUSIVE: each arrival after a drain wakes one at least",
        Linux,
        "100 times woken",
        exclusive_again,
    ),
    Case::same(
        "epoll.level_out",
        "level: EPOLLOUT goes off when full, and comes with room",
        Both,
        "OUT, nothing, OUT",
        level_out,
    ),
    Case::same(
        "epoll.oneshot_out",
        "EPOLLONESHOT: EPOLLOUT once until armed again",
        Both,
        "OUT, nothing, nothing, OUT",
        oneshot_out,
    ),
    Case::same(
        "epoll.in_and_out",
        "one registration, edge, both directions: room is told although data was and stays unread",
        Linux,
        "OUT, nothing, IN, IN+OUT",
        in_and_out,
    ),
    Case::same(
        "epoll.two_out",
        "several epolls on one end, edge: each is told of room",
        Linux,
        "OUT OUT, nothing nothing, OUT OUT",
        two_out,
    ),
    Case::same(
        "epoll.level_hup",
        "level: EPOLLHUP and EPOLLRDHUP stay, without being asked for but RDHUP",
        Both,
        "IN+HUP, IN+HUP, IN+RDHUP+HUP",
        level_hup,
    ),
    Case::same(
        "epoll.err",
        "EPOLLERR is told without being asked for, until SO_ERROR takes it",
        Linux,
        "HUP+ERR, HUP",
        err,
    ),
    Case::same(
        "epoll.nested",
        "an epoll that is watched by another one tells of its ends",
        Both,
        "nothing, IN, nothing",
        nested,
    ),
    Case::same(
        "epoll.mod_out",
        "edge: EPOLLOUT asked for later by EPOLL_CTL_MOD is told if there is room, and not if there is none",
        Both,
        "OUT, nothing",
        mod_out,
    ),
];

const IN: EventFlags = EventFlags::IN;
const OUT: EventFlags = EventFlags::OUT;
const EDGE: EventFlags = EventFlags::ET;
const RDHUP: EventFlags = EventFlags::RDHUP;

fn level(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*b, IN)?;
    tx(&*a, b"abc")?;
    let (first, second) = (ep.wait(SOON)?, ep.wait(0)?);
    rx(&*b, 2, NOW)?;
    let third = ep.wait(0)?;
    rx(&*b, 9, NOW)?;
    Ok(format!("{first}, {second}, {third}, {}", ep.wait(20)?))
}

fn edge(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*b, IN | EDGE)?;
    tx(&*a, b"abc")?;
    let (first, second) = (ep.wait(SOON)?, ep.wait(20)?);
    rx(&*b, 9, NOW)?;
    rx(&*b, 9, NOW)?;
    tx(&*a, b"def")?;
    Ok(format!("{first}, {second}, {}, {}", ep.wait(SOON)?, ep.wait(20)?))
}

fn edge_partial(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*b, IN | EDGE)?;
    tx(&*a, b"abc")?;
    let first = ep.wait(SOON)?;
    rx(&*b, 2, NOW)?;
    let second = ep.wait(20)?;
    tx(&*a, b"d")?;
    // (In vain where it is no edge, as conformance/skips.toml has it.)
    Ok(format!("{first}, {second}, {}", ep.wait(500)?))
}

fn edge_late(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    rx(&*b, 2, NOW)?;
    // What is there is told at once, and of a record there is nothing any more.
    Epoll::watching(&*b, IN | EDGE)?.wait(20)
}

fn edge_rearm(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*b, IN | EDGE)?;
    tx(&*a, b"abc")?;
    let first = ep.wait(SOON)?;
    rx(&*b, 2, NOW)?;
    let second = ep.wait(20)?;
    ep.watch(&*b, IN | EDGE)?;
    // As above.
    Ok(format!("{first}, {second}, {}", ep.wait(20)?))
}

fn edge_eof(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*b, IN | RDHUP | EDGE)?;
    tx(&*a, b"abc")?;
    let (first, second) = (ep.wait(SOON)?, ep.wait(20)?);
    a.shutdown(Shutdown::Write)?;
    Ok(format!("{first}, {second}, {}", ep.wait(for_an_end(cx))?))
}

fn edge_hup(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*b, IN | RDHUP | EDGE)?;
    let first = ep.wait(20)?;
    drop(a);
    Ok(format!("{first}, {}", ep.wait(for_an_end(cx))?))
}

fn edge_out(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*a, OUT | EDGE)?;
    let (first, second) = (ep.wait(SOON)?, ep.wait(20)?);
    let n = brim(&*a)?;
    let third = ep.wait(20)?;
    drain(&*b, n)?;
    Ok(format!("{first}, {second}, {third}, {}", ep.wait(SOON)?))
}

fn oneshot(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*b, IN | EventFlags::ONESHOT)?;
    tx(&*a, b"abc")?;
    let first = ep.wait(SOON)?;
    tx(&*a, b"d")?;
    let second = ep.wait(20)?;
    ep.watch(&*b, IN | EventFlags::ONESHOT)?;
    Ok(format!("{first}, {second}, {}", ep.wait(SOON)?))
}

fn two_epolls(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (level, edge) = (Epoll::watching(&*b, IN)?, Epoll::watching(&*b, IN | EDGE)?);
    let mut all = Vec::new();
    tx(&*a, b"abc")?;
    all.push(format!("level {}, edge {}", level.wait(SOON)?, edge.wait(SOON)?));
    rx(&*b, 9, NOW)?;
    rx(&*b, 9, NOW)?;
    all.push(format!("level {}, edge {}", level.wait(20)?, edge.wait(20)?));
    tx(&*a, b"def")?;
    all.push(format!("level {}, edge {}", level.wait(SOON)?, edge.wait(SOON)?));
    Ok(all.join(", "))
}

fn two_edges(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (one, two) = (Epoll::watching(&*b, IN | EDGE)?, Epoll::watching(&*b, IN | EDGE)?);
    let mut all = Vec::new();
    tx(&*a, b"abc")?;
    all.push(format!("{} {}", one.wait(SOON)?, two.wait(SOON)?));
    rx(&*b, 9, NOW)?;
    rx(&*b, 9, NOW)?;
    all.push(format!("{} {}", one.wait(20)?, two.wait(20)?));
    tx(&*a, b"d")?;
    all.push(format!("{} {}", one.wait(SOON)?, two.wait(SOON)?));
    Ok(all.join(", "))
}

fn shared(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*b, IN | EDGE)?;
    let (pipe, end) = rustix::pipe::pipe()?;
    ep.tells_of_the_end_of(&pipe)?;
    either(&*a, [&ep, &ep], end)
}

/// What becomes of two pollers that sleep when something arrives. One is enough: the other need not be woken by that, and is by the `end` of a
/// pipe, so that nobody waits for what need not come.
fn either(a: &dyn End, polls: [&Epoll; 2], end: OwnedFd) -> Outcome {
    std::thread::scope(|s| {
        let end = end;
        let (tell, told) = mpsc::channel();
        for poll in polls {
            let tell = tell.clone();
            asleep(s, move || tell.send(poll.wait(SOON)));
        }
        tx(a, b"x")?;
        let told = || told.recv().map_err(|_| Stop::broken("a poller panicked"))?;
        let first = told()?;
        drop(end);
        told()?;
        Ok(if first == "IN" { "woken" } else { "both slept on" }.to_owned())
    })
}

fn exclusive(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let flags = IN | EventFlags::EXCLUSIVE;
    let (one, two) = (Epoll::watching(&*b, flags)?, Epoll::watching(&*b, flags)?);
    let (pipe, end) = rustix::pipe::pipe()?;
    one.tells_of_the_end_of(&pipe)?;
    two.tells_of_the_end_of(&pipe)?;
    either(&*a, [&one, &two], end)
}

fn exclusive_again(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let flags = IN | EventFlags::EXCLUSIVE;
    let (one, two) = (Epoll::watching(&*b, flags)?, Epoll::watching(&*b, flags)?);
    for i in 0..100 {
        tx(&*a, b"x")?;
        if one.wait(SOON)? != "IN" && two.wait(0)? != "IN" {
            return Ok(format!("nobody was told of arrival {i}"));
        }
        rx(&*b, 9, NOW)?;
        rx(&*b, 9, NOW)?;
    }
    Ok("100 times woken".to_owned())
}

/// Receives everything that is there.
fn empty(end: &dyn End) {
    while end.recv(&mut [0; 65536], NOW).is_ok_and(|n| n > 0) {}
}

fn level_out(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*a, OUT)?;
    let first = ep.wait(SOON)?;
    brim(&*a)?;
    let second = ep.wait(20)?;
    empty(&*b);
    Ok(format!("{first}, {second}, {}", ep.wait(SOON)?))
}

fn oneshot_out(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*a, OUT | EventFlags::ONESHOT)?;
    let (first, second) = (ep.wait(SOON)?, ep.wait(20)?);
    brim(&*a)?;
    ep.watch(&*a, OUT | EventFlags::ONESHOT)?;
    let third = ep.wait(20)?;
    empty(&*b);
    Ok(format!("{first}, {second}, {third}, {}", ep.wait(SOON)?))
}

fn in_and_out(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*a, IN | OUT | EDGE)?;
    let first = ep.wait(SOON)?;
    brim(&*a)?;
    let second = ep.wait(20)?;
    tx(&*b, b"x")?;
    let third = ep.wait(SOON)?;
    empty(&*b);
    Ok(format!("{first}, {second}, {third}, {}", ep.wait(SOON)?))
}

fn two_out(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (one, two) = (Epoll::watching(&*a, OUT | EDGE)?, Epoll::watching(&*a, OUT | EDGE)?);
    let mut all = vec![format!("{} {}", one.wait(SOON)?, two.wait(SOON)?)];
    brim(&*a)?;
    all.push(format!("{} {}", one.wait(20)?, two.wait(20)?));
    empty(&*b);
    all.push(format!("{} {}", one.wait(SOON)?, two.wait(SOON)?));
    Ok(all.join(", "))
}

fn level_hup(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (plain, asking) = (Epoll::watching(&*b, IN)?, Epoll::watching(&*b, IN | RDHUP)?);
    drop(a);
    Ok(format!("{}, {}, {}", plain.wait(for_an_end(cx))?, plain.wait(0)?, asking.wait(0)?))
}

fn err(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*a, EventFlags::empty())?;
    tx(&*a, b"unread")?;
    drop(b);
    let first = ep.wait(for_an_end(cx))?;
    a.take_error()?;
    Ok(format!("{first}, {}", ep.wait(20)?))
}

fn nested(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let inner = Epoll::watching(&*b, IN)?;
    let readable = |ms| crate::tools::poll(&inner, rustix::event::PollFlags::IN, ms);
    let first = readable(20)?;
    tx(&*a, b"abc")?;
    let second = readable(SOON)?;
    rx(&*b, 9, NOW)?;
    rx(&*b, 9, NOW)?;
    Ok(format!("{first}, {second}, {}", readable(20)?))
}

fn mod_out(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    let ep = Epoll::watching(&*a, IN | EDGE)?;
    ep.watch(&*a, IN | OUT | EDGE)?;
    let first = ep.wait(SOON)?;
    brim(&*a)?;
    ep.watch(&*a, IN | OUT | EDGE)?;
    Ok(format!("{first}, {}", ep.wait(20)?))
}
