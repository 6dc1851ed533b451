//! Records as FreeBSD keeps them: a stream with marks. Linux has none, so only ours is asked.

use std::net::Shutdown;

use crate::case::Source::FreeBsd;
use crate::case::{Case, Ctx, Expect};
use crate::impls::{Conn, End, Kind, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{Dice, NOW, PEEK, TX_NOW, WAITALL, asleep, poll_now, said};

const fn better(
    name: &'static str,
    rule: &'static str,
    ours: &'static str,
    run: fn(&Ctx<'_>) -> Outcome,
) -> Case {
    let none = "not offered";
    Case { source: FreeBsd, ..Case::each(name, rule, none, ours, none, run) }
}

/// A case of streams, tried with records kept as one: as long as nobody ends a record, all that is said of streams holds.
pub fn again(case: &Case) -> Case {
    let otherwise = OTHERWISE.iter().find(|(name, _)| *name == case.name).map(|(_, shared)| *shared);
    let shared = otherwise.unwrap_or(match case.expect {
        Expect::Same(all) => all,
        Expect::Each { shared, .. } => shared,
        Expect::Oracle => "what the kernel would say, had it such records",
    });
    let expect = Expect::Each { kernel: "not offered", shared, on_kernel: "not offered" };
    let name = format!("records/{}", case.name);
    Case { name: name.leak(), expect, ..*case }.of(Kind::Pieces)
}

/// Where they answer as seqpacket sockets do: nobody is sent SIGPIPE, and bytes with descriptors begin a receive.
const OTHERWISE: &[(&str, &str)] = &[
    ("wait.sigpipe", "EPIPE, 0 SIGPIPE"),
    ("wait.sigpipe_shutdown", "EPIPE, 0 SIGPIPE"),
    ("rights.merge", "4 with 0, 5 with 1"),
];

/// Cases of which the question makes no sense here.
pub const NOT_AGAIN: &[&str] = &[
    // Bytes are counted with their headers.
    "poll.low_water",
    // There are none to be sent by other programs.
    "rights.bad_fd",
    "rights.short_cmsg",
    // A loan is a record of its own.
    "transfer.loans",
    // A client's first send waits for the accept.
    "upgrade.chopped",
    "upgrade.half_close",
    "creds.before_accept",
    "ready.early",
    "ready.full_before_accept",
    // Other programs know no such records.
    "interop.std_client",
    "interop.std_server",
    "interop.std_bulk",
    "interop.curl",
    "interop.socat",
    // They come connected.
    "shutdown.unconnected",
    "poll.unconnected",
    // WAITALL waits for the end of the record, or a full buffer.
    "rights.waitall",
];

pub const CASES: &[Case] = &[
    better(
        "records.eor_ends",
        "only MSG_EOR ends a record, and it is returned",
        "6 the end, 1 the end, nothing",
        eor_ends,
    ),
    better("records.short_recv", "short recv keeps the rest", "2, 2, 2 the end, nothing", short_recv),
    better(
        "records.never_past",
        "a recv never reads past the end of a record, not even under WAITALL",
        "3 the end, 3 the end",
        never_past,
    ),
    better(
        "records.peek",
        "PEEK does not look past it either, and is repeatable",
        "3 the end, 3 the end, 3 the end",
        peek,
    ),
    better(
        "records.waitall",
        "WAITALL waits for the end of the record, or a full buffer",
        "6 the end, 4",
        waitall,
    ),
    better("records.empty", "a record of no bytes is delivered", "0 the end, 1 the end", empty),
    better("records.poll", "POLLIN as long as any of a record is unread", "IN+OUT, IN+OUT, OUT", poll),
    better(
        "records.partly_full",
        "nonblocking: what has room is sent, and the record goes on",
        "short count, then the rest, one record, intact",
        partly_full,
    ),
    better("records.oversized", "an oversized record streams", "1000000 the end, intact", oversized),
    better(
        "records.close_within",
        "close within a record: what came, and no end of it",
        "3, end",
        close_within,
    ),
    better(
        "records.random_eor_and_waitall",
        "100 MiB in random sends, with random ends of records, received by random sizes, some with WAITALL",
        "104857600 bytes, every end where it was",
        random,
    ),
];

const BUFFER: usize = 8192;

fn pair(cx: &Ctx<'_>) -> Result<(Conn, Conn), Stop> {
    Ok(cx.imp.stream_records(&cx.dir, BUFFER)?)
}

fn part(end: &dyn End, bytes: &[u8]) -> Outcome {
    said(end.send(bytes, Tx { nosignal: true, ..Tx::default() }))
}

fn last(end: &dyn End, bytes: &[u8]) -> Outcome {
    said(end.send(bytes, Tx { nosignal: true, eor: true, ..Tx::default() }))
}

fn rx(end: &dyn End, max: usize, flags: Rx) -> Outcome {
    said(end.recv_flags(&mut vec![0; max], flags).map(|(n, said)| match (n, said.eor) {
        (n, true) => format!("{n} the end"),
        (0, false) => "end".to_owned(),
        (n, false) => n.to_string(),
    }))
    .map(|text| if text == "EAGAIN" { "nothing".to_owned() } else { text })
}

fn eor_ends(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    part(&*a, b"abc")?;
    last(&*a, b"def")?;
    last(&*a, b"g")?;
    Ok(format!("{}, {}, {}", rx(&*b, 20, Rx::default())?, rx(&*b, 20, Rx::default())?, rx(&*b, 20, NOW)?))
}

fn short_recv(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    last(&*a, b"abcdef")?;
    let parts = (0..3).map(|_| rx(&*b, 2, Rx::default())).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{}, {}", parts.join(", "), rx(&*b, 2, NOW)?))
}

fn never_past(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    last(&*a, b"abc")?;
    last(&*a, b"def")?;
    Ok(format!("{}, {}", rx(&*b, 20, WAITALL)?, rx(&*b, 20, Rx::default())?))
}

fn peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    last(&*a, b"abc")?;
    last(&*a, b"def")?;
    Ok(format!("{}, {}, {}", rx(&*b, 20, PEEK)?, rx(&*b, 20, PEEK)?, rx(&*b, 20, Rx::default())?))
}

fn waitall(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    part(&*a, b"abc")?;
    std::thread::scope(|s| {
        let reader = asleep(s, || rx(&*b, 20, WAITALL));
        last(&*a, b"def")?;
        let first = reader.join().map_err(|_| Stop::broken("the reader panicked"))??;
        last(&*a, b"ghijkl")?;
        Ok(format!("{first}, {}", rx(&*b, 4, WAITALL)?))
    })
}

fn empty(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    last(&*a, b"")?;
    last(&*a, b"x")?;
    Ok(format!("{}, {}", rx(&*b, 9, Rx::default())?, rx(&*b, 9, Rx::default())?))
}

fn poll(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    last(&*a, b"abc")?;
    let first = poll_now(&*b)?;
    rx(&*b, 2, Rx::default())?;
    let second = poll_now(&*b)?;
    rx(&*b, 2, Rx::default())?;
    Ok(format!("{first}, {second}, {}", poll_now(&*b)?))
}

fn partly_full(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    let data = crate::tools::Pattern(5).bytes(0, 100_000);
    let sent = a.send(&data, Tx { eor: true, ..TX_NOW })?;
    let short = if sent < data.len() { "short count" } else { "everything" };
    let mut back = vec![0; data.len() + 1];
    std::thread::scope(|s| {
        let rest = s.spawn(|| last(&*a, &data[sent..]));
        let (n, said) = b.recv_flags(&mut back, WAITALL)?;
        rest.join().map_err(|_| Stop::broken("the sender panicked"))??;
        let one = if said.eor && n == data.len() { "one record" } else { "cut" };
        Ok(format!("{short}, then the rest, {one}, {}", if back[..n] == data { "intact" } else { "garbled" }))
    })
}

fn oversized(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    let data = crate::tools::Pattern(6).bytes(0, 1_000_000);
    std::thread::scope(|s| {
        let sender = s.spawn(|| last(&*a, &data));
        let mut back = vec![0; data.len() + 1];
        let (n, said) = b.recv_flags(&mut back, WAITALL)?;
        sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        let end = if said.eor { " the end" } else { "" };
        Ok(format!("{n}{end}, {}", if back[..n] == data { "intact" } else { "garbled" }))
    })
}

fn close_within(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = pair(cx)?;
    part(&*a, b"abc")?;
    a.shutdown(Shutdown::Write)?;
    Ok(format!("{}, {}", rx(&*b, 9, WAITALL)?, rx(&*b, 9, WAITALL)?))
}

/// FreeBSD's tests/sys/kern/unix_seqpacket_test.c, random_eor_and_waitall, in our words: the sizes are its, as multiples
/// of the buffer.
fn random(cx: &Ctx<'_>) -> Outcome {
    const TOTAL: usize = 100 << 20;
    let (a, b) = pair(cx)?;
    let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |now| now.as_nanos() as u64);
    let wrong = |what: String| {
        // So that the sender does not wait for ever.
        let _ = b.shutdown(Shutdown::Both);
        Err(Stop::broken(format!("{what} (seed {seed:#x})")))
    };
    // Bytes that repeat with a length that no buffer here divides.
    let period = 1_000_003;
    let mut bytes = crate::tools::Pattern(seed).bytes(0, period);
    bytes.extend_from_within(..4 * BUFFER);
    let bytes = &bytes;
    let mut dice = Dice(seed);
    let mut ends = Vec::new();
    while ends.last().is_none_or(|end| *end < TOTAL) {
        let at = ends.last().unwrap_or(&0) + 1 + dice.roll() as usize % (10 * BUFFER);
        ends.push(at.min(TOTAL));
    }
    let ends = &ends;
    std::thread::scope(|s| {
        let sender = s.spawn(move || {
            let mut dice = Dice(seed ^ 1);
            let mut at = 0;
            for end in ends {
                while at < *end {
                    let len = (dice.roll() as usize % (2 * BUFFER)).min(end - at);
                    let eor = at + len == *end;
                    let from = at % period;
                    match a.send(&bytes[from..from + len], Tx { eor, nosignal: true, ..Tx::default() }) {
                        Ok(n) if n == len => at += len,
                        other => return Err(format!("send of {len} bytes: {other:?}")),
                    }
                }
            }
            Ok(())
        });
        let mut dice = Dice(seed ^ 2);
        let mut buf = vec![0; 4 * BUFFER];
        let (mut at, mut record) = (0, 0);
        while at < TOTAL {
            let len = 1 + dice.roll() as usize % (4 * BUFFER - 1);
            let waitall = len % 2 == 1;
            let (n, said) = b.recv_flags(&mut buf[..len], Rx { waitall, ..Rx::default() })?;
            if n == 0 && !said.eor {
                return wrong(format!("the end at {at}"));
            }
            if waitall && !said.eor && n != len {
                return wrong(format!("WAITALL gave {n} of {len} bytes at {at}"));
            }
            let from = at % period;
            if buf[..n] != bytes[from..from + n] {
                return wrong(format!("other bytes than were sent behind {at}"));
            }
            at += n;
            if at > ends[record] || said.eor != (at == ends[record]) {
                return wrong(format!("at {at}, a record ends at {}, told: {}", ends[record], said.eor));
            }
            record += usize::from(said.eor);
        }
        match sender.join() {
            Ok(Ok(())) => Ok(format!("{at} bytes, every end where it was")),
            Ok(Err(what)) => wrong(what),
            Err(_) => wrong("the sender panicked".to_owned()),
        }
    })
}
