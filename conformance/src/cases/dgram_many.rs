//! Datagrams: one receiver, connected to nobody, and many senders that are connected to it.

use std::net::Shutdown;
use std::os::fd::AsFd;

use crate::case::Source::{Both, FreeBsd, Linux, Own};
use crate::case::{Case, Ctx, Expect};
use crate::cases::datagrams::{bound, dg, same, short};
use crate::cases::descriptors::{closed, give, pipe, take};
use crate::cases::messages::whole;
use crate::cases::nonblocking::{LONG, until_refused, waits_for};
use crate::impls::{End, Name, Rx, Socket};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, PEEK, TX_NOW, asleep, others_set, poll_now, rx, said, tx};

pub const CASES: &[Case] = &[
    Case {
        expect: Expect::Each {
            kernel: "EAGAIN, EAGAIN; nothing, nothing; 0 of another sender among the first 20",
            shared: "1, 1; nothing, OUT; 2 of another sender among the first 20",
            on_kernel: "EAGAIN, EAGAIN; nothing, nothing; 0 of another sender among the first 20",
        },
        ..same(
            "dgram_many.no_starving",
            "one sender cannot starve others: while one has filled what it may, others have their own room, and their turn",
            FreeBsd,
            "",
            no_starving,
        )
    },
    same(
        "dgram_many.names",
        "recvfrom tells which of many senders it was, and who got its name later",
        Both,
        "\"1\" from unnamed, \"2\" from /two, \"3\" from @three, \"4\" from /later",
        names,
    ),
    same(
        "dgram_many.in_order",
        "what one sender sends stays in order, however the way changes",
        Both,
        "3 x 500 in order",
        in_order,
    ),
    Case {
        expect: Expect::Each {
            kernel: "\"1\", \"2\", \"3\", \"4\"",
            shared: "\"1\", \"3\", \"2\", \"4\"",
            on_kernel: "\"1\", \"2\", \"3\", \"4\"",
        },
        ..same(
            "dgram_many.order_across",
            "what two senders sent, 1 and 2, then 3 and 4: in turns, which is the one deviation in what is received",
            Own,
            "",
            order_across,
        )
    },
    same(
        "dgram_many.poll",
        "POLLIN as long as a datagram of any sender is there",
        Both,
        "OUT, 12 x IN+OUT, OUT, EAGAIN",
        poll,
    ),
    same(
        "dgram_many.peek",
        "PEEK sees the datagram that is received next",
        Both,
        "12 x the same, EAGAIN",
        peek,
    ),
    same(
        "dgram_many.cut",
        "truncation, and the real length with MSG_TRUNC, of what has a sender among many",
        Both,
        "6 cut, 3 cut, 0 whole, EAGAIN",
        cut,
    ),
    same("dgram_many.fionread", "FIONREAD = bytes of the next datagram", Linux, "0, 3, 2, 0", fionread),
    same(
        "dgram_many.sleeper",
        "a sleeping receiver is woken by any of many senders",
        Both,
        "\"1\", \"2\"",
        sleeper,
    ),
    same(
        "dgram_many.sender_gone",
        "what a sender had sent that is gone is received",
        Both,
        "\"x\", \"y\", EAGAIN",
        sender_gone,
    ),
    same(
        "dgram_many.receiver_gone",
        "the receiver closed: ECONNREFUSED for each of its senders, then ENOTCONN",
        Linux,
        "ECONNREFUSED, ENOTCONN; ECONNREFUSED, ENOTCONN",
        receiver_gone,
    ),
    same(
        "dgram_many.receiver_again",
        "another receiver of the same name: connect again",
        Both,
        "ECONNREFUSED, \"new\"",
        receiver_again,
    ),
    same(
        "dgram_many.shut_peer_rd",
        "the receiver's SHUT_RD: send EPIPE, and what is queued is received",
        Linux,
        "EPIPE, \"q\", EAGAIN, end",
        shut_peer_rd,
    ),
    same(
        "dgram_many.shut_own_wr",
        "a sender's SHUT_WR: send EPIPE, of that sender alone",
        Linux,
        "EPIPE, 1, \"x\", EAGAIN",
        shut_own_wr,
    ),
    same(
        "dgram_many.connects",
        "a receiver that connects to one of its senders keeps what it was sent, and refuses the others: EPERM",
        Linux,
        "EPERM, 1; \"a\", \"b\", \"c\"",
        connects,
    ),
    same(
        "dgram_many.elsewhere",
        "a sender that connects to another receiver: what it sent stays",
        Both,
        "\"1\", \"2\", EAGAIN",
        elsewhere,
    ),
    same(
        "dgram_many.by_name",
        "sendto the receiver that it is connected to, and another one, by name: in order",
        Both,
        "\"a\", \"b\", \"c\"; \"o\"",
        by_name,
    ),
    same(
        "dgram_many.nonblocking",
        "O_NONBLOCK set by others, of a sender among many and of their receiver",
        Both,
        "EAGAIN, \"f\" and then EAGAIN, waits, \"hi\"",
        lanes,
    ),
    same(
        "dgram_many.rights",
        "descriptors come with exactly the datagram that they were sent with",
        Both,
        "1 with 0, 2 with 2, 3 with 1, all closed",
        rights,
    ),
    same(
        "dgram_many.too_long",
        "over maximum EMSGSIZE, and nothing of it is sent",
        Both,
        "EMSGSIZE, \"x\"",
        too_long,
    ),
];

type Ends = (Box<dyn Socket>, Vec<Box<dyn Socket>>);

/// Who can moves to shared memory meanwhile.
fn warm(from: &dyn End, to: &dyn End) -> Result<(), Stop> {
    for _ in 0..60 {
        if (tx(from, b"warm")?.as_str(), rx(to, 9, NOW)?.as_str()) != ("4", "\"warm\"") {
            return Err(Stop::broken("a datagram did not come"));
        }
    }
    Ok(())
}

fn many(cx: &Ctx<'_>, count: usize) -> Result<Ends, Stop> {
    let to = bound(cx, "to")?;
    let mut senders = Vec::new();
    for _ in 0..count {
        let sender = dg(cx)?;
        sender.connect(&cx.path("to"))?;
        warm(&*sender as &dyn End, &*to as &dyn End)?;
        senders.push(sender);
    }
    Ok((to, senders))
}

fn no_starving(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 2)?;
    let (to, [flood, other]) = (&*to as &dyn End, [0, 1].map(|i| &*senders[i] as &dyn End));
    let mut sent = 0;
    while flood.send(b"flood", TX_NOW).is_ok() {
        sent += 1;
        if sent > 1_000_000 {
            return Err(Stop::broken("a million datagrams went in and there was still room"));
        }
    }
    let said = format!("{}, {}", said(other.send(b"1", TX_NOW))?, said(other.send(b"2", TX_NOW))?);
    let polled = format!("{}, {}", poll_now(flood)?, poll_now(other)?);
    let mut others = 0;
    for _ in 0..20 {
        others += usize::from(rx(to, 1, NOW)? != "\"f\"");
        let _ = flood.send(b"flood", TX_NOW);
    }
    Ok(format!("{said}; {polled}; {others} of another sender among the first 20"))
}

fn names(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    let two = bound(cx, "two")?;
    let three = dg(cx)?;
    let abstract_ = Name::Abstract(format!("three-{}", cx.dir.display()).into_bytes());
    three.bind(&abstract_)?;
    let mut said = Vec::new();
    let mut next = |from: &dyn Socket, data: &[u8]| -> Result<(), Stop> {
        tx(from as &dyn End, data)?;
        let mut buf = [0; 9];
        let (n, name) = to.recv_from(&mut buf, NOW)?;
        let name = if name == abstract_ { "@three".to_owned() } else { short(&name) };
        said.push(format!("\"{}\" from {name}", String::from_utf8_lossy(&buf[..n])));
        Ok(())
    };
    for sender in [&two, &three] {
        sender.connect(&cx.path("to"))?;
        warm(&**sender as &dyn End, &*to as &dyn End)?;
    }
    next(&*senders[0], b"1")?;
    next(&*two, b"2")?;
    next(&*three, b"3")?;
    senders[0].bind(&cx.path("later"))?;
    next(&*senders[0], b"4")?;
    Ok(said.join(", "))
}

fn in_order(cx: &Ctx<'_>) -> Outcome {
    let to = bound(cx, "to")?;
    let senders = [dg(cx)?, dg(cx)?, dg(cx)?];
    for sender in &senders {
        sender.connect(&cx.path("to"))?;
    }
    let mut next = [0u16; 3];
    let mut sent = [0u16; 3];
    while next.iter().any(|n| *n < 500) {
        for (who, sender) in senders.iter().enumerate() {
            // Two ahead of one, then what there is room for.
            for _ in 0..2 {
                let [low, high] = sent[who].to_le_bytes();
                if sent[who] < 500 && sender.send(&[who as u8, low, high], TX_NOW).is_ok() {
                    sent[who] += 1;
                }
            }
        }
        let mut buf = [0; 9];
        for _ in 0..4 {
            if to.recv(&mut buf, NOW).is_err() {
                break;
            }
            let who = usize::from(buf[0]);
            if next.get(who) != Some(&u16::from_le_bytes([buf[1], buf[2]])) {
                return Err(Stop::broken(format!("{buf:?} came, {next:?} were next")));
            }
            next[who] += 1;
        }
    }
    Ok("3 x 500 in order".to_owned())
}

fn order_across(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 2)?;
    for (from, data) in [(0, b"1"), (0, b"2"), (1, b"3"), (1, b"4")] {
        tx(&*senders[from] as &dyn End, data)?;
    }
    let got = (0..4).map(|_| rx(&*to as &dyn End, 9, NOW)).collect::<Result<Vec<_>, _>>()?;
    Ok(got.join(", "))
}

fn poll(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 3)?;
    let to = &*to as &dyn End;
    let before = poll_now(to)?;
    for i in 0..9 {
        tx(&*senders[i % 3] as &dyn End, b"x")?;
    }
    let mut events = Vec::new();
    for i in 0..12 {
        if let Some(sender) = senders.get(i) {
            tx(&**sender as &dyn End, b"y")?;
        }
        events.push(poll_now(to)?);
        rx(to, 9, NOW)?;
    }
    events.dedup();
    Ok(format!("{before}, 12 x {}, {}, {}", events.join(", "), poll_now(to)?, rx(to, 9, NOW)?))
}

fn peek(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 3)?;
    let (to, other) = (&*to as &dyn End, dg(cx)?);
    for i in 0..9u8 {
        tx(&*senders[usize::from(i) % 3] as &dyn End, &[b'a' + i])?;
    }
    let mut same = 0;
    for i in 0..12u8 {
        if i < 3 {
            other.send_to(&[b'x' + i], &cx.path("to"))?;
        }
        let looked = [rx(to, 9, PEEK)?, rx(to, 9, PEEK)?];
        let got = rx(to, 9, NOW)?;
        same += usize::from(looked.iter().all(|looked| *looked == got));
    }
    Ok(format!("{same} x the same, {}", rx(to, 9, NOW)?))
}

fn cut(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    let (to, from) = (&*to as &dyn End, &*senders[0] as &dyn End);
    for data in [&b"abcdef"[..], b"abcdef", b""] {
        tx(from, data)?;
    }
    let look = Rx { trunc: true, ..NOW };
    let whole = |flags| whole(to, 3, flags);
    Ok(format!("{}, {}, {}, {}", whole(look)?, whole(NOW)?, whole(NOW)?, rx(to, 9, NOW)?))
}

fn fionread(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    let from = &*senders[0] as &dyn End;
    let none = said(to.readable_bytes())?;
    tx(from, b"abc")?;
    tx(from, b"de")?;
    let first = said(to.readable_bytes())?;
    rx(&*to as &dyn End, 1, NOW)?;
    let second = said(to.readable_bytes())?;
    rx(&*to as &dyn End, 9, NOW)?;
    Ok(format!("{none}, {first}, {second}, {}", said(to.readable_bytes())?))
}

fn sleeper(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 2)?;
    let to = &*to as &dyn End;
    let mut got = Vec::new();
    for (i, sender) in senders.iter().enumerate() {
        got.push(std::thread::scope(|s| {
            let receiver = asleep(s, || rx(to, 9, Rx::default()));
            tx(&**sender as &dyn End, (i + 1).to_string().as_bytes())?;
            receiver.join().map_err(|_| Stop::broken("the receiver panicked"))?
        })?);
    }
    Ok(got.join(", "))
}

fn sender_gone(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    tx(&*senders[0] as &dyn End, b"x")?;
    tx(&*senders[0] as &dyn End, b"y")?;
    drop(senders);
    let to = &*to as &dyn End;
    Ok(format!("{}, {}, {}", rx(to, 9, NOW)?, rx(to, 9, NOW)?, rx(to, 9, NOW)?))
}

fn receiver_gone(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 2)?;
    drop(to);
    let told = |i: usize| -> Outcome {
        let sender = &*senders[i] as &dyn End;
        Ok(format!("{}, {}", tx(sender, b"x")?, tx(sender, b"x")?))
    };
    Ok(format!("{}; {}", told(0)?, told(1)?))
}

fn receiver_again(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    drop(to);
    let refused = tx(&*senders[0] as &dyn End, b"x")?;
    let again = bound(cx, "again")?;
    senders[0].connect(&cx.path("again"))?;
    warm(&*senders[0] as &dyn End, &*again as &dyn End)?;
    tx(&*senders[0] as &dyn End, b"new")?;
    Ok(format!("{refused}, {}", rx(&*again as &dyn End, 9, NOW)?))
}

fn shut_peer_rd(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    tx(&*senders[0] as &dyn End, b"q")?;
    to.shutdown(Shutdown::Read)?;
    let sent = tx(&*senders[0] as &dyn End, b"x")?;
    let to = &*to as &dyn End;
    Ok(format!("{sent}, {}, {}, {}", rx(to, 9, Rx::default())?, rx(to, 9, NOW)?, rx(to, 9, Rx::default())?))
}

fn shut_own_wr(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 2)?;
    senders[0].shutdown(Shutdown::Write)?;
    let told = format!("{}, {}", tx(&*senders[0] as &dyn End, b"x")?, tx(&*senders[1] as &dyn End, b"x")?);
    let to = &*to as &dyn End;
    Ok(format!("{told}, {}, {}", rx(to, 9, NOW)?, rx(to, 9, NOW)?))
}

fn connects(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    let chosen = bound(cx, "chosen")?;
    chosen.connect(&cx.path("to"))?;
    warm(&*chosen as &dyn End, &*to as &dyn End)?;
    tx(&*senders[0] as &dyn End, b"a")?;
    tx(&*chosen as &dyn End, b"b")?;
    to.connect(&cx.path("chosen"))?;
    let told = format!("{}, {}", tx(&*senders[0] as &dyn End, b"x")?, tx(&*chosen as &dyn End, b"c")?);
    let to = &*to as &dyn End;
    let mut got = [rx(to, 9, NOW)?, rx(to, 9, NOW)?, rx(to, 9, NOW)?];
    // (Of different senders: in no order.)
    got[..2].sort();
    Ok(format!("{told}; {}", got.join(", ")))
}

fn elsewhere(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    let other = bound(cx, "other")?;
    tx(&*senders[0] as &dyn End, b"1")?;
    senders[0].connect(&cx.path("other"))?;
    warm(&*senders[0] as &dyn End, &*other as &dyn End)?;
    tx(&*senders[0] as &dyn End, b"2")?;
    let to = &*to as &dyn End;
    Ok(format!("{}, {}, {}", rx(to, 9, NOW)?, rx(&*other as &dyn End, 9, NOW)?, rx(to, 9, NOW)?))
}

fn by_name(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    let other = bound(cx, "other")?;
    tx(&*senders[0] as &dyn End, b"a")?;
    senders[0].send_to(b"b", &cx.path("to"))?;
    senders[0].send_to(b"o", &cx.path("other"))?;
    tx(&*senders[0] as &dyn End, b"c")?;
    let to = &*to as &dyn End;
    let got = format!("{}, {}, {}", rx(to, 9, NOW)?, rx(to, 9, NOW)?, rx(to, 9, NOW)?);
    Ok(format!("{got}; {}", rx(&*other as &dyn End, 9, NOW)?))
}

fn rights(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    let (mut read, write) = pipe()?;
    let (to, from) = (&*to as &dyn End, &*senders[0] as &dyn End);
    give(from, b"1", &[])?;
    give(from, b"22", &[write.as_fd(), write.as_fd()])?;
    give(from, b"333", &[write.as_fd()])?;
    drop(write);
    let got = format!("{}, {}, {}", take(to, 9, NOW)?, take(to, 9, NOW)?, take(to, 9, NOW)?);
    Ok(format!("{got}, {}", closed(&mut read)))
}

fn too_long(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 1)?;
    let long = said(senders[0].send(&vec![0; 1 << 22], TX_NOW))?;
    tx(&*senders[0] as &dyn End, b"x")?;
    Ok(format!("{long}, {}", rx(&*to as &dyn End, 9, NOW)?))
}

fn lanes(cx: &Ctx<'_>) -> Outcome {
    let (to, senders) = many(cx, 2)?;
    let (to, sender) = (&*to as &dyn End, &*senders[0] as &dyn End);
    sender.set_write_timeout(Some(LONG))?;
    to.set_read_timeout(Some(LONG))?;
    others_set(sender.fd(), true)?;
    let refused = until_refused(sender)?;
    others_set(to.fd(), true)?;
    let first = rx(to, 1, Rx::default())?;
    let then = loop {
        match rx(to, 1, Rx::default())? {
            same if same == first => {}
            other => break other,
        }
    };
    others_set(to.fd(), false)?;
    let (waits, came) = waits_for(|| rx(to, 9, Rx::default()), || tx(sender, b"hi").map(drop))?;
    Ok(format!("{refused}, {first} and then {then}, {waits}, {came}"))
}
