//! Readiness under traffic: an event that is missed once in many shows as a wait that ends by its limit.

use std::net::Shutdown;

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;

use crate::case::Source::Both;
use crate::case::{Case, Ctx};
use crate::impls::{End, Rx};
use crate::stop::{Outcome, Stop};
use crate::tools::{self, Dice, Epoll, NOW, Pattern, TX_NOW, tx};

pub const CASES: &[Case] = &[
    Case::same(
        "epoll.refill_edge",
        "edge, drained to EAGAIN while it is refilled: no arrival is missed",
        Both,
        "2097152 bytes, intact, end",
        refill_edge,
    ),
    Case::same(
        "epoll.refill_level",
        "level, small reads while it is refilled: no arrival is missed",
        Both,
        "2097152 bytes, intact, end",
        refill_level,
    ),
    Case::same(
        "epoll.room_edge",
        "edge EPOLLOUT, filled to EAGAIN while it is drained: no room is missed",
        Both,
        "2097152 bytes, intact, end",
        room_edge,
    ),
    Case::same(
        "poll.room",
        "poll for POLLOUT, filled to EAGAIN: no room is missed",
        Both,
        "2097152 bytes, intact, end",
        room_poll,
    ),
    Case::same(
        "poll.ping_pong",
        "3000 round trips by poll and non-blocking calls: none is missed",
        Both,
        "3000 round trips",
        ping_pong,
    ),
];

const SUM: usize = 2 << 20;

/// Sends the pattern in pieces of random size, blocking, with a pause now and then, and shuts down.
fn send_pattern(a: &dyn End, pattern: Pattern, dice: &mut Dice) -> Result<(), Stop> {
    let mut at = 0;
    while at < SUM {
        let n = dice.size(30_000).min(SUM - at);
        at += a.send(&pattern.bytes(at, n), Default::default())?;
        match dice.roll() % 16 {
            0 => std::thread::sleep(std::time::Duration::from_micros(dice.roll() % 200)),
            1..4 => std::thread::yield_now(),
            _ => {}
        }
    }
    Ok(a.shutdown(Shutdown::Write)?)
}

/// Receives it; `ready` is called when a non-blocking recv says EAGAIN, and must not return for nothing for long.
fn recv_pattern(
    b: &dyn End,
    pattern: Pattern,
    piece: usize,
    mut ready: impl FnMut() -> Result<(), Stop>,
    after_each: bool,
) -> Outcome {
    let mut buf = vec![0; piece];
    let mut at = 0;
    loop {
        match b.recv(&mut buf, NOW) {
            Ok(0) => return Ok(format!("{at} bytes, intact, end")),
            Ok(n) => {
                pattern.check(at, &buf[..n])?;
                at += n;
                if after_each {
                    ready()?;
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => ready()?,
            Err(e) => return Err(Stop::broken(format!("after {at} bytes: {e}"))),
        }
    }
}

fn told(ep: &Epoll, what: &str) -> Result<(), Stop> {
    match ep.wait(3000)?.as_str() {
        "nothing" => Err(Stop::broken(format!("no event in three seconds: {what} was missed"))),
        _ => Ok(()),
    }
}

fn refill(cx: &Ctx<'_>, flags: EventFlags, piece: usize, after_each: bool) -> Outcome {
    let (a, b) = cx.pair()?;
    let (pattern, mut dice) = (Pattern(11), Dice(12));
    let ep = Epoll::watching(&*b, flags)?;
    std::thread::scope(|s| {
        let sender = s.spawn(|| send_pattern(&*a, pattern, &mut dice));
        let got = recv_pattern(&*b, pattern, piece, || told(&ep, "an arrival"), after_each);
        if got.is_err() {
            b.shutdown(Shutdown::Both)?; // frees the sender, so that the error is told
        }
        let sent = sender.join().map_err(|_| Stop::broken("the sender panicked"))?;
        let got = got?;
        sent?;
        Ok(got)
    })
}

fn refill_edge(cx: &Ctx<'_>) -> Outcome {
    refill(cx, EventFlags::IN | EventFlags::ET, 7_000, false)
}

fn refill_level(cx: &Ctx<'_>) -> Outcome {
    refill(cx, EventFlags::IN, 3_000, true)
}

fn filling(
    cx: &Ctx<'_>,
    room: impl Fn(&dyn End) -> Result<Box<dyn FnMut() -> Result<(), Stop>>, Stop>,
) -> Outcome {
    let (a, b) = cx.pair()?;
    let pattern = Pattern(21);
    let mut wait = room(&*a)?;
    std::thread::scope(|s| {
        let receiver = s.spawn(|| {
            let (mut dice, mut buf, mut at) = (Dice(22), vec![0; 20_000], 0);
            loop {
                let max = dice.size(buf.len());
                match b.recv(&mut buf[..max], Rx::default())? {
                    0 => return Ok::<String, Stop>(format!("{at} bytes, intact, end")),
                    n => {
                        pattern.check(at, &buf[..n])?;
                        at += n;
                    }
                }
                if dice.one_in(64) {
                    std::thread::sleep(std::time::Duration::from_micros(dice.roll() % 300));
                }
            }
        });
        let sent = (|| {
            let (mut dice, mut at) = (Dice(23), 0);
            while at < SUM {
                let n = dice.size(60_000).min(SUM - at);
                match a.send(&pattern.bytes(at, n), TX_NOW) {
                    Ok(n) => at += n,
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => wait()?,
                    Err(e) => return Err(Stop::broken(format!("after {at} bytes: {e}"))),
                }
            }
            Ok(())
        })();
        a.shutdown(Shutdown::Write)?;
        let got = receiver.join().map_err(|_| Stop::broken("the receiver panicked"))?;
        sent?;
        got
    })
}

fn room_edge(cx: &Ctx<'_>) -> Outcome {
    filling(cx, |a| {
        let ep = Epoll::watching(a, EventFlags::OUT | EventFlags::ET)?;
        Ok(Box::new(move || told(&ep, "room")))
    })
}

fn room_poll(cx: &Ctx<'_>) -> Outcome {
    filling(cx, |a| {
        let fd = a.fd().try_clone_to_owned()?;
        Ok(Box::new(move || match tools::poll(&fd, PollFlags::OUT, 3000)?.as_str() {
            "nothing" => Err(Stop::broken("no POLLOUT in three seconds: room was missed")),
            _ => Ok(()),
        }))
    })
}

fn ping_pong(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let turn = |end: &dyn End, byte: u8| -> Result<(), Stop> {
        loop {
            let mut got = [0];
            match end.recv(&mut got, NOW) {
                Ok(1) if got[0] == byte => return Ok(()),
                Ok(n) => return Err(Stop::broken(format!("{n} bytes, {} instead of {byte}", got[0]))),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    if tools::poll(end.fd(), PollFlags::IN, 3000)? == "nothing" {
                        return Err(Stop::broken("no POLLIN in three seconds"));
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    };
    std::thread::scope(|s| {
        let echo = s.spawn(|| {
            (0..3000u32).try_for_each(|i| {
                turn(&*b, i as u8)?;
                tx(&*b, &[i as u8]).map(|_| ())
            })
        });
        let mine = (0..3000u32).try_for_each(|i| {
            tx(&*a, &[i as u8])?;
            turn(&*a, i as u8)
        });
        if mine.is_err() {
            a.shutdown(Shutdown::Both)?;
        }
        let theirs = echo.join().map_err(|_| Stop::broken("the echo panicked"))?;
        mine?;
        theirs?;
        Ok("3000 round trips".to_owned())
    })
}
