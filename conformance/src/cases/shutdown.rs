//! Shutting down, half and whole.

use std::net::Shutdown::{Both as Rdwr, Read, Write};
use std::sync::Barrier;

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::setup::raw;
use crate::impls::Rx;
use crate::stop::{Outcome, Stop};
use crate::tools::{asleep, errno, ok, rx, said, tx};

pub const CASES: &[Case] = &[
    Case::same("shutdown.unconnected", "shutdown unconnected 0", Linux, "ok", unconnected),
    Case::same("shutdown.own_wr", "own SHUT_WR: send EPIPE", Both, "EPIPE", own_wr),
    Case::same(
        "shutdown.own_wr_receives",
        "after own SHUT_WR one still receives",
        Both,
        "2, \"hi\"",
        own_wr_receives,
    ),
    Case::same("shutdown.peer_wr", "peer SHUT_WR: drain then 0", Both, "\"abc\", \"def\", end, end", peer_wr),
    Case::same("shutdown.peer_rd", "peer SHUT_RD: send EPIPE", Both, "EPIPE", peer_rd),
    Case::same("shutdown.own_rd", "own SHUT_RD keeps queued data", Linux, "\"q\", end", own_rd),
    Case::same("shutdown.own_rd_sends", "after own SHUT_RD one still sends", Both, "2, \"hi\"", own_rd_sends),
    Case::same(
        "shutdown.both",
        "SHUT_RDWR: send EPIPE, recv 0, on both ends",
        Both,
        "EPIPE, end, EPIPE, end",
        both,
    ),
    Case::same("shutdown.twice", "shutdown twice is no error", Both, "ok, ok, ok", twice),
    Case::same(
        "shutdown.after_peer_closed",
        "shutdown after the peer closed is no error",
        Linux,
        "ok",
        after_close,
    ),
    Case::same(
        "shutdown.wakes_own_recv",
        "own SHUT_RD wakes a blocked recv with 0",
        Linux,
        "end",
        wakes_own_recv,
    ),
    Case::same(
        "shutdown.wakes_peer_recv",
        "peer SHUT_WR wakes a blocked recv with 0",
        Both,
        "end",
        wakes_peer_recv,
    ),
    Case::same(
        "shutdown.rdwr_wakes_own_recv",
        "own SHUT_RDWR wakes a blocked recv with 0",
        Linux,
        "end",
        rdwr_wakes,
    ),
    Case::same(
        "shutdown.queued_survives_rdwr",
        "what was sent before SHUT_RDWR still arrives",
        Linux,
        "\"abc\", end",
        queued_survives,
    ),
    Case::same(
        "shutdown.close_both_at_once",
        "both ends closing at once never errors",
        Both,
        "300 times, nothing but data, end or ECONNRESET",
        close_both,
    ),
    Case::same(
        "shutdown.shut_both_at_once",
        "both ends shutting down at once never errors, and both then read what was sent and the end",
        Both,
        "300 times \"bye\" and end on both",
        shut_both,
    ),
];

fn unconnected(cx: &Ctx<'_>) -> Outcome {
    ok(raw(cx, cx.kind)?.shutdown(Rdwr))
}

fn own_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    a.shutdown(Write)?;
    tx(&*a, b"x")
}

fn own_wr_receives(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.shutdown(Write)?;
    Ok(format!("{}, {}", tx(&*b, b"hi")?, rx(&*a, 9, Rx::default())?))
}

fn peer_wr(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    a.shutdown(Write)?;
    let mut all = Vec::new();
    for max in [3, 9, 9, 9] {
        all.push(rx(&*b, max, Rx::default())?);
    }
    Ok(all.join(", "))
}

fn peer_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.shutdown(Read)?;
    tx(&*a, b"x")
}

fn own_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"q")?;
    b.shutdown(Read)?;
    Ok(format!("{}, {}", rx(&*b, 9, Rx::default())?, rx(&*b, 9, Rx::default())?))
}

fn own_rd_sends(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.shutdown(Read)?;
    Ok(format!("{}, {}", tx(&*b, b"hi")?, rx(&*a, 9, Rx::default())?))
}

fn both(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.shutdown(Rdwr)?;
    let mine = format!("{}, {}", tx(&*a, b"x")?, rx(&*a, 9, Rx::default())?);
    Ok(format!("{mine}, {}, {}", tx(&*b, b"x")?, rx(&*b, 9, Rx::default())?))
}

fn twice(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    Ok(format!("{}, {}, {}", ok(a.shutdown(Write))?, ok(a.shutdown(Write))?, ok(a.shutdown(Rdwr))?))
}

fn after_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    ok(a.shutdown(Rdwr))
}

fn wakes_own_recv(cx: &Ctx<'_>) -> Outcome {
    let (_a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let reader = asleep(s, || rx(&*b, 9, Rx::default()));
        b.shutdown(Read)?;
        reader.join().map_err(|_| Stop::broken("the reader panicked"))?
    })
}

fn wakes_peer_recv(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let reader = asleep(s, || rx(&*b, 9, Rx::default()));
        a.shutdown(Write)?;
        reader.join().map_err(|_| Stop::broken("the reader panicked"))?
    })
}

fn rdwr_wakes(cx: &Ctx<'_>) -> Outcome {
    let (_a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let reader = asleep(s, || rx(&*b, 9, Rx::default()));
        b.shutdown(Rdwr)?;
        reader.join().map_err(|_| Stop::broken("the reader panicked"))?
    })
}

fn queued_survives(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    a.shutdown(Rdwr)?;
    Ok(format!("{}, {}", rx(&*b, 9, Rx::default())?, rx(&*b, 9, Rx::default())?))
}

fn close_both(cx: &Ctx<'_>) -> Outcome {
    for round in 0..300 {
        let (a, b) = cx.pair()?;
        let start = Barrier::new(2);
        let seen = std::thread::scope(|s| {
            let ends = [(a, false), (b, round % 3 == 0)].map(|(end, reads)| {
                let start = &start;
                s.spawn(move || {
                    let sent = end.send(b"bye", crate::impls::Tx { nosignal: true, ..Default::default() });
                    start.wait();
                    let got = reads.then(|| end.recv(&mut [0; 9], crate::tools::NOW));
                    drop(end);
                    (sent, got)
                })
            });
            ends.map(|t| t.join())
        });
        for end in seen {
            let (sent, got) = end.map_err(|_| Stop::broken("an end panicked"))?;
            said(sent)
                .and_then(|s| if s == "3" { Ok(()) } else { Err(Stop::broken(format!("send: {s}"))) })?;
            match got {
                None | Some(Ok(0 | 3)) => {}
                Some(Err(e)) if ["EAGAIN", "ECONNRESET"].contains(&errno(&e).as_str()) => {}
                Some(other) => return Err(Stop::broken(format!("round {round}: recv {other:?}"))),
            }
        }
    }
    Ok("300 times, nothing but data, end or ECONNRESET".to_owned())
}

fn shut_both(cx: &Ctx<'_>) -> Outcome {
    for round in 0..300 {
        let (a, b) = cx.pair()?;
        let start = Barrier::new(2);
        let seen = std::thread::scope(|s| {
            let ends = [&a, &b].map(|end| {
                let start = &start;
                s.spawn(move || {
                    tx(&**end, b"bye")?;
                    start.wait();
                    end.shutdown(if round % 2 == 0 { Write } else { Rdwr })?;
                    Ok::<String, Stop>(format!(
                        "{} {}",
                        rx(&**end, 9, Rx::default())?,
                        rx(&**end, 9, Rx::default())?
                    ))
                })
            });
            ends.map(|t| t.join())
        });
        for end in seen {
            let got = end.map_err(|_| Stop::broken("an end panicked"))??;
            if got != "\"bye\" end" {
                return Err(Stop::broken(format!("round {round}: {got}")));
            }
        }
    }
    Ok("300 times \"bye\" and end on both".to_owned())
}
