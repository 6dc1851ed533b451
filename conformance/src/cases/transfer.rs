//! Bytes in bulk: order and integrity, sends from many threads, the moment of the upgrade.

use std::io;
use std::net::Shutdown;

use onecopy::unix::SharedPool;
use onecopy_testing::LONG;

use crate::case::Source::{Both, FreeBsd};
use crate::case::{Case, Ctx};
use crate::impls::{End, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{Dice, NOW, PEEK, Pattern, TX_NOW, poll, rx, tx};

pub const CASES: &[Case] = &[
    Case::better(
        "transfer.no_interleave",
        "concurrent sends never interleave",
        FreeBsd,
        "*",
        "40 sends whole",
        no_interleave,
    ),
    Case::same(
        "transfer.chopped",
        "bytes arrive once and in order, however chopped",
        Both,
        "intact",
        chopped,
    ),
    Case::same("transfer.both_ways", "both directions at once", Both, "intact, intact", both_ways),
    Case::same(
        "transfer.peek_wrap",
        "PEEK sees what recv gets, everywhere in the buffer",
        Both,
        "intact",
        peek_wrap,
    ),
    Case::same(
        "transfer.nonblocking",
        "non-blocking both ways in one thread, short counts and all",
        Both,
        "intact, intact",
        nonblocking,
    ),
    Case::same(
        "transfer.loans",
        "pages by reference, of all sizes, small ones copied where that is faster: bytes arrive once and in order, and each page comes home",
        Both,
        "intact, all home",
        loans,
    ),
    Case::same(
        "upgrade.chopped",
        "the upgrade changes ways at an exact byte: sends before accept, before, in and after it, from both ends",
        Both,
        "20 connections intact",
        upgrade_chopped,
    ),
    Case::same("upgrade.quiet_client", "the upgrade, when only the server talks", Both, "intact", |cx| {
        upgrade_one_way(cx, false)
    }),
    Case::same("upgrade.quiet_server", "the upgrade, when only the client talks", Both, "intact", |cx| {
        upgrade_one_way(cx, true)
    }),
    Case::same(
        "upgrade.close_at_once",
        "connect, send, close at once: what was sent arrives, whatever the upgrade was doing",
        Both,
        "200 times \"bye\" and the end",
        upgrade_close,
    ),
    Case::same(
        "upgrade.half_close",
        "connect, send, SHUT_WR at once, then read the answer: a request as a script makes it",
        Both,
        "100 times asked and answered",
        upgrade_half_close,
    ),
    Case::each(
        "upgrade.path",
        "a connection between two of ours moves to shared memory both ways, and says so",
        "kernel/kernel, kernel/kernel",
        "shared memory/shared memory, shared memory/shared memory",
        "kernel/kernel, kernel/kernel",
        upgrade_path,
    ),
];

pub fn whole(a: &dyn End, data: &[u8]) -> Result<(), Stop> {
    let mut at = 0;
    while at < data.len() {
        at += a.send(&data[at..], Tx { nosignal: true, ..Tx::default() })?;
    }
    Ok(())
}

/// Four threads send 10 pieces each, larger than the room, every byte of a piece the same.
fn no_interleave(cx: &Ctx<'_>) -> Outcome {
    const PIECE: usize = 300_000;
    let (a, b) = cx.pair()?;
    let (a, b) = (&*a, &*b);
    std::thread::scope(|s| {
        let senders: Vec<_> = (0..4u8)
            .map(|who| {
                s.spawn(move || {
                    for i in 0..10u8 {
                        // A thread's pieces differ from one to the next, and from all other threads'.
                        let n = a.send(&vec![who << 6 | (i & 63); PIECE], Tx::default())?;
                        if n != PIECE {
                            return Err(Stop::broken(format!("a blocking send took {n} of {PIECE} bytes")));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let (mut buf, mut whole) = (vec![0; PIECE], 0);
        let mut mixed = None;
        for _ in 0..40 {
            let n = b.recv(&mut buf, Rx { waitall: true, ..Rx::default() })?;
            if n == PIECE && buf.iter().all(|x| *x == buf[0]) {
                whole += 1;
            } else {
                mixed.get_or_insert(format!("{n} bytes with {:#x} and others", buf[0]));
            }
        }
        for t in senders {
            t.join().map_err(|_| Stop::broken("a sender panicked"))??;
        }
        Ok(match mixed {
            None => format!("{whole} sends whole"),
            Some(m) => format!("{whole} sends whole, the others mixed: {m}"),
        })
    })
}

/// Sends `sum` bytes of the pattern, blocking or not as the dice say.
pub fn send_chopped(a: &dyn End, pattern: Pattern, from: usize, sum: usize, seed: u64) -> Result<(), Stop> {
    let (mut dice, mut at) = (Dice(seed), from);
    while at < sum {
        let n = dice.size(100_000).min(sum - at);
        let flags = if dice.one_in(3) { TX_NOW } else { Tx { nosignal: true, ..Tx::default() } };
        match a.send(&pattern.bytes(at, n), flags) {
            Ok(n) => at += n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(e) => return Err(Stop::broken(format!("send after {at} bytes: {e}"))),
        }
        if dice.one_in(32) {
            std::thread::sleep(std::time::Duration::from_micros(dice.roll() % 200));
        }
    }
    Ok(())
}

/// Receives `sum` bytes of the pattern by every kind of call.
pub fn recv_chopped(b: &dyn End, pattern: Pattern, sum: usize, seed: u64) -> Result<(), Stop> {
    let (mut dice, mut at, mut buf) = (Dice(seed), 0, vec![0; 100_000]);
    while at < sum {
        let max = dice.size(buf.len()).min(sum - at);
        let flags = match dice.roll() % 6 {
            0 => NOW,
            1 => PEEK,
            2 => Rx { peek: true, ..NOW },
            3 => Rx { waitall: true, ..Rx::default() },
            _ => Rx::default(),
        };
        if dice.one_in(8) {
            poll(b.fd(), rustix::event::PollFlags::IN, 3000)?;
        }
        match b.recv(&mut buf[..max], flags) {
            Ok(0) => return Err(Stop::broken(format!("end of stream after {at} of {sum} bytes"))),
            Ok(n) => {
                pattern.check(at, &buf[..n])?;
                at += if flags.peek { 0 } else { n };
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(e) => return Err(Stop::broken(format!("recv after {at} bytes: {e}"))),
        }
    }
    Ok(())
}

/// A thread's work, and the end that is shut down when it fails.
pub type Job<'a> = (&'a dyn End, Box<dyn FnOnce() -> Result<(), Stop> + Send + 'a>);

/// Runs senders' and receivers' work at once; frees the others when one fails.
pub fn at_once(jobs: Vec<Job<'_>>) -> Result<(), Stop> {
    std::thread::scope(|s| {
        let threads: Vec<_> = jobs
            .into_iter()
            .map(|(end, job)| {
                s.spawn(move || {
                    job().inspect_err(|_| {
                        let _ = end.shutdown(Shutdown::Both);
                    })
                })
            })
            .collect();
        // The first failure is the cause, whichever thread it is in; the others only hear of the shutdown. Which
        // was first is not known, so prefer one that speaks of bytes.
        let mut failed: Vec<String> = Vec::new();
        for t in threads {
            match t.join() {
                Ok(Ok(())) => {}
                Ok(Err(Stop::Broken(what))) => failed.push(what),
                Ok(Err(other)) => return Err(other),
                Err(_) => failed.push("a thread panicked".to_owned()),
            }
        }
        failed.sort_by_key(|f| !f.starts_with("byte "));
        if failed.is_empty() { Ok(()) } else { Err(Stop::Broken(failed.join("; "))) }
    })
}

fn chopped(cx: &Ctx<'_>) -> Outcome {
    const SUM: usize = 8 << 20;
    let (a, b) = cx.pair()?;
    let (a, b, p) = (&*a, &*b, Pattern(31));
    at_once(vec![
        (a, Box::new(move || send_chopped(a, p, 0, SUM, 32))),
        (b, Box::new(move || recv_chopped(b, p, SUM, 33))),
    ])?;
    Ok("intact".to_owned())
}

fn both_ways(cx: &Ctx<'_>) -> Outcome {
    const SUM: usize = 3 << 20;
    let (a, b) = cx.pair()?;
    let (a, b, there, back) = (&*a, &*b, Pattern(41), Pattern(42));
    at_once(vec![
        (a, Box::new(move || send_chopped(a, there, 0, SUM, 43))),
        (b, Box::new(move || recv_chopped(b, there, SUM, 44))),
        (b, Box::new(move || send_chopped(b, back, 0, SUM, 45))),
        (a, Box::new(move || recv_chopped(a, back, SUM, 46))),
    ])?;
    Ok("intact, intact".to_owned())
}

/// Odd sizes, so that in time the peek spans every seam that a buffer may have.
fn peek_wrap(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let pattern = Pattern(51);
    let mut sent = 0;
    let mut at = 0;
    for i in 0..500 {
        whole(&*a, &pattern.bytes(sent, 4_093))?;
        sent += 4_093;
        let mut buf = vec![0; 4_093];
        // A second piece stays queued, so that a peek spans two sends as well.
        if i > 0 {
            let n = b.recv(&mut buf, PEEK)?;
            pattern.check(at, &buf[..n])?;
            let m = b.recv(&mut buf, Rx { waitall: true, ..Rx::default() })?;
            pattern.check(at, &buf[..m])?;
            if m != 4_093 {
                return Ok(format!("{m} bytes of 4093 with twice as many queued"));
            }
            at += m;
        }
    }
    Ok("intact".to_owned())
}

/// Of 700 bytes so many in a row that a stream compares which way is faster, and then takes that; some smaller ones before and behind; then of any size.
fn loans(cx: &Ctx<'_>) -> Outcome {
    const PAGE: usize = 16 << 10;
    let (a, b) = cx.pair()?;
    let (a, b, pattern) = (&*a, &*b, Pattern(71));
    let mut dice = Dice(72);
    let small = [64, 700, 64].into_iter().flat_map(|size| [size; 8_000]);
    let sizes: Vec<usize> = small.chain((0..2_000).map(|_| dice.size(PAGE))).collect();
    let sum = sizes.iter().sum();
    let send = move || {
        let pool = SharedPool::new(PAGE, 64).map_err(io::Error::from)?;
        let mut at = 0;
        for size in sizes {
            let bytes = pattern.bytes(at, size);
            let mut sent = 0;
            while sent < size {
                sent += a.send_loan(&pool, &bytes[sent..])?;
            }
            at += size;
        }
        while pool.lent() > 0 {
            if pool.reclaim_within(LONG).map_err(io::Error::from)? == 0 && pool.lent() > 0 {
                return Err(Stop::broken(format!("{} pages stay away", pool.lent())));
            }
        }
        Ok(())
    };
    at_once(vec![(a, Box::new(send)), (b, Box::new(move || recv_chopped(b, pattern, sum, 73)))])?;
    Ok("intact, all home".to_owned())
}

fn nonblocking(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    to_and_fro(&*a, &*b, TX_NOW, NOW)
}

/// Both ways in one thread, by calls that do not wait.
pub fn to_and_fro(a: &dyn End, b: &dyn End, tx: Tx, rx: Rx) -> Outcome {
    const SUM: usize = 2 << 20;
    let patterns = [Pattern(61), Pattern(62)];
    let (mut dice, mut sent, mut got) = (Dice(63), [0; 2], [0; 2]);
    let mut buf = vec![0; 70_000];
    let mut idle = 0;
    while got != [SUM; 2] {
        let way = dice.one_in(2) as usize;
        let (from, to) = if way == 0 { (a, b) } else { (b, a) };
        let before = (sent, got);
        if dice.one_in(2) {
            let n = dice.size(70_000).min(SUM - sent[way]);
            match from.send(&patterns[way].bytes(sent[way], n), tx) {
                Ok(n) => sent[way] += n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        } else {
            let max = dice.size(buf.len());
            match to.recv(&mut buf[..max], rx) {
                Ok(0) => return Ok("end of stream".to_owned()),
                Ok(n) => {
                    patterns[way].check(got[way], &buf[..n])?;
                    got[way] += n;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && got[way] == sent[way] => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    return Ok(format!("EAGAIN with {} bytes queued", sent[way] - got[way]));
                }
                Err(e) => return Err(e.into()),
            }
        }
        idle = if (sent, got) == before { idle + 1 } else { 0 };
        if idle > 10_000 {
            return Ok(format!("stuck: sent {sent:?}, got {got:?}"));
        }
    }
    Ok("intact, intact".to_owned())
}

fn upgrade_chopped(cx: &Ctx<'_>) -> Outcome {
    const SUM: usize = 300_000;
    for i in 0..20u64 {
        let name = cx.abstract_name(&format!("s{i}"));
        let server = cx.imp.listen(cx.kind, &name, None)?;
        let client = cx.imp.connect(cx.kind, &name)?;
        let (there, back, mut dice) = (Pattern(100 + i), Pattern(200 + i), Dice(300 + i));
        // Some of it is on its way before there is a server to talk to: that much fits any buffer.
        let early = dice.size(40_000) * dice.one_in(2) as usize;
        whole(&*client, &there.bytes(0, early))?;
        let conn = server.accept()?;
        let (client, conn) = (&*client, &*conn);
        at_once(vec![
            (client, Box::new(move || send_chopped(client, there, early, SUM, 400 + i))),
            (conn, Box::new(move || recv_chopped(conn, there, SUM, 500 + i))),
            (conn, Box::new(move || send_chopped(conn, back, 0, SUM, 600 + i))),
            (client, Box::new(move || recv_chopped(client, back, SUM, 700 + i))),
        ])
        .map_err(|e| match e {
            Stop::Broken(what) => Stop::Broken(format!("connection {i}: {what}")),
            other => other,
        })?;
    }
    Ok("20 connections intact".to_owned())
}

fn upgrade_one_way(cx: &Ctx<'_>, client_talks: bool) -> Outcome {
    const SUM: usize = 2 << 20;
    let name = cx.abstract_name("s");
    let server = cx.imp.listen(cx.kind, &name, None)?;
    let client = cx.imp.connect(cx.kind, &name)?;
    let conn = server.accept()?;
    let (from, to): (&dyn End, &dyn End) = if client_talks { (&*client, &*conn) } else { (&*conn, &*client) };
    let p = Pattern(71);
    at_once(vec![
        (from, Box::new(move || send_chopped(from, p, 0, SUM, 72))),
        (to, Box::new(move || recv_chopped(to, p, SUM, 73))),
    ])?;
    Ok("intact".to_owned())
}

fn upgrade_close(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    for i in 0..200 {
        let (client, conn);
        if i % 2 == 0 {
            client = cx.imp.connect(cx.kind, &cx.path("s"))?;
            conn = server.accept()?;
        } else {
            // The other one speaks and leaves.
            let c = cx.imp.connect(cx.kind, &cx.path("s"))?;
            client = server.accept()?;
            conn = c;
        }
        tx(&*client, b"bye")?;
        drop(client);
        let seen = format!("{} {}", rx(&*conn, 9, Rx::default())?, rx(&*conn, 9, Rx::default())?);
        if seen != "\"bye\" end" {
            return Ok(format!("time {i}: {seen}"));
        }
    }
    Ok("200 times \"bye\" and the end".to_owned())
}

fn upgrade_half_close(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    for i in 0..100 {
        let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
        tx(&*client, b"GET")?;
        client.shutdown(Shutdown::Write)?;
        let conn = server.accept()?;
        let asked = format!("{} {}", rx(&*conn, 9, Rx::default())?, rx(&*conn, 9, Rx::default())?);
        tx(&*conn, b"here")?;
        drop(conn);
        let answer = format!("{} {}", rx(&*client, 9, Rx::default())?, rx(&*client, 9, Rx::default())?);
        if (asked.as_str(), answer.as_str()) != ("\"GET\" end", "\"here\" end") {
            return Ok(format!("time {i}: asked {asked}, answered {answer}"));
        }
    }
    Ok("100 times asked and answered".to_owned())
}

fn upgrade_path(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    let conn = server.accept()?;
    for _ in 0..4 {
        for (from, to) in [(&client, &conn), (&conn, &client)] {
            tx(&**from, b"x")?;
            rx(&**to, 9, Rx::default())?;
        }
    }
    let words = |e: &dyn End| format!("{}/{}", e.path().0, e.path().1);
    Ok(format!("{}, {}", words(&*client), words(&*conn)))
}
