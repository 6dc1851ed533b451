//! Readiness as poll tells it.

use std::net::Shutdown;

use rustix::event::PollFlags;

use crate::case::Source::{Both, FreeBsd, Linux};
use crate::case::{Case, Ctx};
use crate::cases::setup::raw;
use crate::impls::{End, Kind, Rx};
use crate::stop::{Outcome, Stop};
use crate::tools::{self, NOW, PEEK, SOON, asleep, drain, fill, poll_now, rx, tx};

pub const CASES: &[Case] = &[
    Case::same("poll.idle", "nothing to read, room to write: POLLOUT", Both, "OUT", idle),
    Case::same("poll.data", "data: POLLIN until it is drained", Both, "IN+OUT, IN+OUT, OUT", data),
    Case::same("poll.peek", "PEEK leaves POLLIN", Both, "\"abc\", IN+OUT", peek),
    Case::same(
        "poll.many_sends",
        "POLLIN stays as long as any of many sends is unread",
        Both,
        "IN+OUT 100 times, OUT",
        many_sends,
    ),
    Case::same("poll.peer_shut_wr", "peer SHUT_WR: POLLIN|POLLRDHUP", Both, "IN+OUT+RDHUP", peer_shut_wr),
    Case::same("poll.peer_shut_rd", "peer SHUT_RD: nothing new but POLLOUT", Linux, "OUT", peer_shut_rd),
    Case::same("poll.peer_close", "peer close POLLHUP", Both, "IN+OUT+RDHUP+HUP", peer_close),
    Case::same(
        "poll.peer_close_unread",
        "peer close with unread data: POLLERR until SO_ERROR takes it",
        Linux,
        "IN+OUT+RDHUP+HUP+ERR, IN+OUT+RDHUP+HUP",
        peer_close_unread,
    ),
    Case::same(
        "poll.peer_close_data",
        "peer close with data for us: readable, hung up, and so after the drain",
        Both,
        "IN+OUT+RDHUP+HUP, IN+OUT+RDHUP+HUP",
        peer_close_data,
    ),
    Case::same("poll.own_shut_rd", "own SHUT_RD: POLLIN|POLLRDHUP", Linux, "IN+OUT+RDHUP", own_shut_rd),
    Case::same("poll.own_shut_wr", "own SHUT_WR: still POLLOUT", Linux, "OUT", own_shut_wr),
    Case::same(
        "poll.own_shut_rdwr",
        "SHUT_RDWR: POLLHUP on both ends",
        Linux,
        "IN+OUT+RDHUP+HUP on both",
        own_shut_rdwr,
    ),
    Case::same("poll.both_shut_wr", "both ends SHUT_WR: POLLHUP", Linux, "IN+OUT+RDHUP+HUP", both_shut_wr),
    Case::same("poll.unconnected", "unconnected POLLOUT|POLLHUP", Linux, "OUT+HUP", unconnected),
    Case::same("poll.full", "full: not POLLOUT", Both, "nothing", full),
    Case::same("poll.full_then_drained", "POLLOUT again once drained", Both, "nothing, OUT", full_drained),
    Case::better(
        "poll.full_half_drained",
        "writable again once space >= low-water (Linux: at <= a quarter used)",
        FreeBsd,
        "nothing",
        "OUT",
        full_half_drained,
    ),
    Case::each(
        "poll.low_water",
        "full, and a byte less than the low-water mark (a quarter) drained: still no POLLOUT; one more: POLLOUT",
        "*",
        "nothing, OUT",
        "*",
        low_water,
    ),
    Case::same(
        "poll.full_other_way",
        "full: the other direction is as it was",
        Both,
        "IN, IN+OUT, \"x\"",
        full_other_way,
    ),
    Case::same(
        "poll.full_peer_shut_wr",
        "full, and the peer SHUT_WR: no POLLOUT",
        Linux,
        "IN+RDHUP",
        full_peer_shut_wr,
    ),
    Case::same(
        "poll.full_peer_close",
        "full, and the peer closes: POLLOUT, POLLHUP, POLLERR",
        Linux,
        "IN+OUT+RDHUP+HUP+ERR",
        full_peer_close,
    ),
    Case::same("poll.hup_only", "HUP-only poller woken by SHUT_RDWR", Linux, "HUP", hup_only),
    Case::same("poll.woken_by_data", "a poller is woken by data", Both, "IN", woken_by_data),
    Case::same(
        "poll.woken_by_close",
        "a poller is woken by the peer's close",
        Both,
        "IN+HUP",
        woken_by_close,
    ),
    Case::same(
        "poll.woken_by_shut_wr",
        "peer SHUT_WR wakes POLLIN|POLLRDHUP",
        Both,
        "IN+RDHUP",
        woken_by_shut_wr,
    ),
    Case::same(
        "poll.woken_by_room",
        "a poller for POLLOUT is woken by the drain",
        Both,
        "OUT",
        woken_by_room,
    ),
];

fn idle(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    poll_now(&*a)
}

fn data(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    let first = poll_now(&*b)?;
    rx(&*b, 2, Rx::default())?;
    let second = poll_now(&*b)?;
    rx(&*b, 9, Rx::default())?;
    Ok(format!("{first}, {second}, {}", poll_now(&*b)?))
}

fn peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    Ok(format!("{}, {}", rx(&*b, 9, PEEK)?, poll_now(&*b)?))
}

fn many_sends(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    for _ in 0..100 {
        tx(&*a, b"x")?;
    }
    for i in 0..100 {
        let r = poll_now(&*b)?;
        if r != "IN+OUT" {
            return Ok(format!("{r} with {} bytes left", 100 - i));
        }
        rx(&*b, 1, Rx::default())?;
    }
    Ok(format!("IN+OUT 100 times, {}", poll_now(&*b)?))
}

fn peer_shut_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.shutdown(Shutdown::Write)?;
    poll_now(&*a)
}

fn peer_shut_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.shutdown(Shutdown::Read)?;
    poll_now(&*a)
}

fn peer_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    poll_now(&*a)
}

fn peer_close_unread(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    drop(b);
    let first = poll_now(&*a)?;
    a.take_error()?;
    Ok(format!("{first}, {}", poll_now(&*a)?))
}

fn peer_close_data(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*b, b"abc")?;
    drop(b);
    let first = poll_now(&*a)?;
    rx(&*a, 9, Rx::default())?;
    Ok(format!("{first}, {}", poll_now(&*a)?))
}

fn own_shut_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    a.shutdown(Shutdown::Read)?;
    poll_now(&*a)
}

fn own_shut_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    a.shutdown(Shutdown::Write)?;
    poll_now(&*a)
}

fn own_shut_rdwr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.shutdown(Shutdown::Both)?;
    let (mine, other) = (poll_now(&*a)?, poll_now(&*b)?);
    Ok(if mine == other { format!("{mine} on both") } else { format!("own {mine}, peer {other}") })
}

fn both_shut_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.shutdown(Shutdown::Write)?;
    b.shutdown(Shutdown::Write)?;
    poll_now(&*a)
}

fn unconnected(cx: &Ctx<'_>) -> Outcome {
    poll_now(&*raw(cx, cx.kind)? as &dyn End)
}

/// Fills it to the brim: big pieces, then single bytes. Programs learn of "full" by EAGAIN, so does this.
pub fn brim(a: &dyn End) -> Result<usize, Stop> {
    Ok(fill(a, 4096)? + fill(a, 1)?)
}

fn full(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    brim(&*a)?;
    poll_now(&*a)
}

fn full_drained(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let n = brim(&*a)?;
    let first = poll_now(&*a)?;
    drain(&*b, n)?;
    Ok(format!("{first}, {}", poll_now(&*a)?))
}

fn full_half_drained(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let n = brim(&*a)?;
    drain(&*b, n / 2)?;
    poll_now(&*a)
}

fn low_water(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let n = brim(&*a)?;
    drain(&*b, n / 4 - 1)?;
    let below = poll_now(&*a)?;
    drain(&*b, 1)?;
    Ok(format!("{below}, {}", poll_now(&*a)?))
}

fn full_other_way(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    brim(&*a)?;
    tx(&*b, b"x")?;
    Ok(format!("{}, {}, {}", poll_now(&*a)?, poll_now(&*b)?, rx(&*a, 9, NOW)?))
}

fn full_peer_shut_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    brim(&*a)?;
    b.shutdown(Shutdown::Write)?;
    poll_now(&*a)
}

fn full_peer_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    brim(&*a)?;
    drop(b);
    poll_now(&*a)
}

/// What a poller that sleeps says once `then` has been done.
fn woken(end: &dyn End, events: PollFlags, then: impl FnOnce() -> Result<(), Stop>) -> Outcome {
    woken_within(SOON, end, events, then)
}

/// How long to wait for what tells of a peer's end, in milliseconds: of datagrams nothing does, and the wait is for nothing.
pub fn for_an_end(cx: &Ctx<'_>) -> u64 {
    if cx.kind == Kind::Dgram { 300 } else { SOON }
}

fn woken_within(
    ms: u64,
    end: &dyn End,
    events: PollFlags,
    then: impl FnOnce() -> Result<(), Stop>,
) -> Outcome {
    std::thread::scope(|s| {
        let poller = asleep(s, || tools::poll(end.fd(), events, ms));
        then()?;
        poller.join().map_err(|_| Stop::broken("the poller panicked"))?
    })
}

fn hup_only(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    woken(&*a, PollFlags::empty(), || Ok(a.shutdown(Shutdown::Both)?))
}

fn woken_by_data(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    woken(&*b, PollFlags::IN, || tx(&*a, b"x").map(|_| ()))
}

fn woken_by_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    woken_within(for_an_end(cx), &*b, PollFlags::IN, move || {
        drop(a);
        Ok(())
    })
}

fn woken_by_shut_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    woken_within(for_an_end(cx), &*b, PollFlags::IN | PollFlags::RDHUP, || Ok(a.shutdown(Shutdown::Write)?))
}

fn woken_by_room(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let n = brim(&*a)?;
    woken(&*a, PollFlags::OUT, || drain(&*b, n))
}
