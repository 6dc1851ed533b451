//! Records and datagrams in bulk: each comes once, whole and in its turn, whatever calls send and receive it, from many
//! moments of a connection; and none is missed by who waits for it.

use std::io::{IoSlice, IoSliceMut};

use rustix::event::epoll::EventFlags;

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::datagrams::bound;
use crate::cases::transfer::at_once;
use crate::impls::{End, Kind, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{Dice, Epoll, NOW, Pattern, TX_NOW, poll};

/// Of both kinds. Their names get that of the kind in front.
const BOTH: &[Case] = &[
    Case::same(
        "chopped",
        "messages of all sizes come once, whole and in order, by whatever calls",
        Both,
        "1500 messages, intact",
        chopped,
    ),
    Case::same("both_ways", "both directions at once", Both, "intact, intact", both_ways),
    Case::same(
        "nonblocking",
        "non-blocking both ways in one thread: EAGAIN only where there is nothing, or no room",
        Both,
        "intact, intact",
        nonblocking,
    ),
    Case::same(
        "refill_edge",
        "edge, drained to EAGAIN while it is refilled: no arrival is missed",
        Both,
        "1500 messages, intact",
        refill_edge,
    ),
    Case::same(
        "room_edge",
        "edge EPOLLOUT, filled to EAGAIN while it is drained: no room is missed",
        Both,
        "1500 messages, intact",
        room_edge,
    ),
];

const RECORDS: &[Case] = &[
    Case::same(
        "seqpacket.upgrade_chopped",
        "the upgrade changes ways at an exact record: sends before accept, before, in and after it, from both ends",
        Both,
        "20 connections intact",
        upgrade_records,
    ),
    Case::same(
        "seqpacket.upgrade_quiet",
        "the upgrade, when only one of the two talks",
        Both,
        "intact, intact",
        upgrade_quiet,
    ),
];

const DATAGRAMS: &[Case] = &[Case::same(
    "dgram.upgrade_chopped",
    "two that are connected to each other may change ways: at an exact datagram, in both directions",
    Linux,
    "10 pairs intact",
    upgrade_datagrams,
)];

/// All of these.
pub fn cases() -> impl Iterator<Item = Case> {
    let named = |prefix: &'static str, kind: Kind| {
        BOTH.iter().map(move |case| Case { name: format!("{prefix}.{}", case.name).leak(), ..*case }.of(kind))
    };
    named("seqpacket", Kind::SeqPacket)
        .chain(RECORDS.iter().map(|case| case.of(Kind::SeqPacket)))
        .chain(named("dgram", Kind::Dgram))
        .chain(DATAGRAMS.iter().map(|case| case.of(Kind::Dgram)))
}

/// How many messages a direction has.
const MANY: u64 = 1500;
/// The longest.
const LONGEST: usize = 20_000;

/// Messages of which each is known from a seed and its number.
#[derive(Clone, Copy)]
struct Mail(u64);

impl Mail {
    fn message(self, number: u64) -> Vec<u8> {
        let seed = self.0 << 32 | number;
        let mut dice = Dice(seed);
        let len = if dice.one_in(10) { 0 } else { dice.size(LONGEST) };
        Pattern(seed).bytes(0, len)
    }

    /// Whether that is what a receive with so much room must give of message `number`.
    fn check(self, number: u64, got: &[u8], cut: bool, room: usize) -> Result<(), Stop> {
        let want = self.message(number);
        if got == &want[..want.len().min(room)] && cut == (want.len() > room) {
            return Ok(());
        }
        let cut = if cut { ", cut" } else { "" };
        Err(Stop::broken(format!(
            "message {number} (seed {:#x}) has {} bytes, of which {room} had room, and {} others came{cut}",
            self.0,
            want.len(),
            got.len(),
        )))
    }
}

/// Sends the messages of these numbers, by every kind of call.
fn post(a: &dyn End, mail: Mail, numbers: std::ops::Range<u64>, seed: u64) -> Result<(), Stop> {
    let mut dice = Dice(seed);
    for number in numbers {
        let message = mail.message(number);
        let sent = loop {
            let sent = match dice.roll() % 5 {
                0 | 1 => a.send(&message, TX_NOW),
                2 if !message.is_empty() => a.send_in_place(&message, Tx { nosignal: true, ..Tx::default() }),
                3 => {
                    let (first, second) = message.split_at(message.len() / 3);
                    a.send_vectored(&[IoSlice::new(first), IoSlice::new(second)])
                }
                _ => a.send(&message, Tx { nosignal: true, ..Tx::default() }),
            };
            match sent {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                sent => break sent,
            }
        };
        match sent {
            Ok(n) if n == message.len() => {}
            Ok(n) => return Err(Stop::broken(format!("{n} bytes of message {number} were sent"))),
            Err(e) => return Err(Stop::broken(format!("sending message {number}: {e}"))),
        }
        if dice.one_in(64) {
            std::thread::sleep(std::time::Duration::from_micros(dice.roll() % 200));
        }
    }
    Ok(())
}

/// Receives so many messages, by every kind of call: looked at before, or cut, or as a whole.
fn fetch(b: &dyn End, mail: Mail, many: u64, seed: u64) -> Result<(), Stop> {
    let (mut dice, mut number, mut buf) = (Dice(seed), 0, vec![0; LONGEST + 1]);
    while number < many {
        let room = if dice.one_in(6) { dice.size(LONGEST) } else { buf.len() };
        let flags = match dice.roll() % 8 {
            0 => NOW,
            1 => Rx { peek: true, ..Rx::default() },
            2 => Rx { peek: true, ..NOW },
            3 => Rx { trunc: true, ..Rx::default() },
            4 => Rx { waitall: true, ..Rx::default() },
            _ => Rx::default(),
        };
        if dice.one_in(8) {
            poll(b.fd(), rustix::event::PollFlags::IN, 3000)?;
        }
        let came = if !flags.trunc && !flags.peek && dice.one_in(5) {
            b.recv_in_place(buf.len(), flags).map(|(bytes, said)| (bytes, said.trunc, buf.len()))
        } else if !flags.trunc && room > 1 && dice.one_in(5) {
            let (one, two) = buf[..room].split_at_mut(room / 2);
            let got = b.recv_msg(&mut [IoSliceMut::new(one), IoSliceMut::new(two)], false, flags);
            got.map(|got| (buf[..got.len].to_vec(), got.returned.trunc, room))
        } else {
            b.recv_flags(&mut buf[..room], flags)
                .map(|(n, said)| (buf[..n.min(room)].to_vec(), said.trunc, room))
        };
        match came {
            Ok((bytes, cut, room)) => mail.check(number, &bytes, cut, room)?,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && flags.dontwait => {
                std::thread::yield_now();
                continue;
            }
            Err(e) => return Err(Stop::broken(format!("receiving message {number}: {e}"))),
        }
        number += u64::from(!flags.peek);
    }
    Ok(())
}

/// Sends and receives in both directions at once.
fn exchange(a: &dyn End, b: &dyn End, early: u64, many: u64, seed: u64) -> Result<(), Stop> {
    let (there, back) = (Mail(seed), Mail(seed + 1));
    at_once(vec![
        (a, Box::new(move || post(a, there, early..many, seed + 2))),
        (b, Box::new(move || fetch(b, there, many, seed + 3))),
        (b, Box::new(move || post(b, back, 0..many, seed + 4))),
        (a, Box::new(move || fetch(a, back, many, seed + 5))),
    ])
}

fn chopped(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (a, b, mail) = (&*a, &*b, Mail(31));
    at_once(vec![
        (a, Box::new(move || post(a, mail, 0..MANY, 32))),
        (b, Box::new(move || fetch(b, mail, MANY, 33))),
    ])?;
    Ok(format!("{MANY} messages, intact"))
}

fn both_ways(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    exchange(&*a, &*b, 0, MANY / 2, 41)?;
    Ok("intact, intact".to_owned())
}

fn nonblocking(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let mails = [Mail(61), Mail(62)];
    let (mut dice, mut sent, mut got) = (Dice(63), [0; 2], [0; 2]);
    let mut buf = vec![0; LONGEST];
    while got != [MANY; 2] {
        let way = dice.one_in(2) as usize;
        let (from, to): (&dyn End, &dyn End) = if way == 0 { (&*a, &*b) } else { (&*b, &*a) };
        let queued = sent[way] - got[way];
        // (Now and then one direction is filled, and then drained.)
        if dice.one_in(2) && sent[way] < MANY {
            let message = mails[way].message(sent[way]);
            match from.send(&message, TX_NOW) {
                Ok(n) if n == message.len() => sent[way] += 1,
                Ok(n) => return Ok(format!("{n} bytes of a message were sent")),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && queued > 0 => {}
                Err(e) => return Ok(format!("with {queued} messages queued a send says {e}")),
            }
        } else {
            let room = if dice.one_in(6) { dice.size(LONGEST) } else { LONGEST };
            match to.recv_flags(&mut buf[..room], NOW) {
                Ok((n, said)) => {
                    mails[way].check(got[way], &buf[..n], said.trunc, room)?;
                    got[way] += 1;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && queued == 0 => {}
                Err(e) => return Ok(format!("with {queued} messages queued a receive says {e}")),
            }
        }
    }
    Ok("intact, intact".to_owned())
}

fn told(ep: &Epoll, what: &str) -> Result<(), Stop> {
    match ep.wait(3000)?.as_str() {
        "nothing" => Err(Stop::broken(format!("no event in three seconds: {what} was missed"))),
        _ => Ok(()),
    }
}

fn refill_edge(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (a, b, mail) = (&*a, &*b, Mail(71));
    let ep = Epoll::watching(b, EventFlags::IN | EventFlags::ET)?;
    at_once(vec![
        (a, Box::new(move || post(a, mail, 0..MANY, 72))),
        (
            b,
            Box::new(move || {
                let (mut number, mut buf) = (0, vec![0; LONGEST]);
                while number < MANY {
                    match b.recv_flags(&mut buf, NOW) {
                        Ok((n, said)) => {
                            mail.check(number, &buf[..n], said.trunc, LONGEST)?;
                            number += 1;
                        }
                        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => told(&ep, "an arrival")?,
                        Err(e) => return Err(Stop::broken(format!("receiving message {number}: {e}"))),
                    }
                }
                Ok(())
            }),
        ),
    ])?;
    Ok(format!("{MANY} messages, intact"))
}

fn room_edge(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (a, b, mail) = (&*a, &*b, Mail(81));
    let ep = Epoll::watching(a, EventFlags::OUT | EventFlags::ET)?;
    at_once(vec![
        (
            a,
            Box::new(move || {
                for number in 0..MANY {
                    let message = mail.message(number);
                    loop {
                        match a.send(&message, TX_NOW) {
                            Ok(_) => break,
                            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => told(&ep, "room")?,
                            Err(e) => return Err(Stop::broken(format!("sending message {number}: {e}"))),
                        }
                    }
                }
                Ok(())
            }),
        ),
        (b, Box::new(move || fetch(b, mail, MANY, 82))),
    ])?;
    Ok(format!("{MANY} messages, intact"))
}

fn upgrade_records(cx: &Ctx<'_>) -> Outcome {
    for i in 0..20u64 {
        let name = cx.abstract_name(&format!("s{i}"));
        let server = cx.imp.listen(cx.kind, &name, None)?;
        let client = cx.imp.connect(cx.kind, &name)?;
        let (seed, mut dice) = (1000 * (i + 1), Dice(300 + i));
        // Some are on their way before there is a server to talk to: so many fit any buffer.
        let early = dice.roll() % 5 * dice.one_in(2) as u64;
        for number in 0..early {
            client.send(&Mail(seed).message(number), Tx { nosignal: true, ..Tx::default() })?;
        }
        let conn = server.accept()?;
        exchange(&*client, &*conn, early, 60, seed)?;
    }
    Ok("20 connections intact".to_owned())
}

fn upgrade_quiet(cx: &Ctx<'_>) -> Outcome {
    let name = cx.abstract_name("s");
    let server = cx.imp.listen(cx.kind, &name, None)?;
    for client_talks in [false, true] {
        let client = cx.imp.connect(cx.kind, &name)?;
        let conn = server.accept()?;
        let (from, to): (&dyn End, &dyn End) =
            if client_talks { (&*client, &*conn) } else { (&*conn, &*client) };
        let mail = Mail(91);
        at_once(vec![
            (from, Box::new(move || post(from, mail, 0..300, 92))),
            (to, Box::new(move || fetch(to, mail, 300, 93))),
        ])?;
    }
    Ok("intact, intact".to_owned())
}

fn upgrade_datagrams(cx: &Ctx<'_>) -> Outcome {
    for i in 0..10u64 {
        let (one, other) = (format!("a{i}"), format!("b{i}"));
        let (a, b) = (bound(cx, &one)?, bound(cx, &other)?);
        a.connect(&cx.path(&other))?;
        b.connect(&cx.path(&one))?;
        exchange(&*a as &dyn End, &*b as &dyn End, 0, 120, 2000 * (i + 1))?;
    }
    Ok("10 pairs intact".to_owned())
}
