//! Datagrams: random programs of calls on three named sockets, of which two begin connected to each other.
//!
//! Bytes, names, flags and descriptors of whatever is received are compared between the kernel and ours.

use std::fmt::Write;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

use onecopy_conformance::impls::kernel::{Kernel, meet};
use onecopy_conformance::impls::onecopy::Onecopy;
use onecopy_conformance::impls::{Came, End, Impl, Kind, Name, Rx, Socket};
use onecopy_conformance::tools::{NOW, TX_NOW, errno, poll_now};
use onecopy_testing::alone;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError};

use crate::world::{set_nonblocking, tokens};
use crate::{held, name};

/// How the two come about.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// As the table's implementations do.
    As(Onecopy),
    /// Just connected: what the program does lets them meet.
    Fresh,
    /// The second is connected to nobody, and receives from the first, which has a lane there.
    Many,
}

const WAYS: [Way; 6] = [
    Way::Many,
    Way::As(Onecopy::Connected),
    Way::Fresh,
    Way::As(Onecopy::Kernel),
    Way::As(Onecopy::ToPlain),
    Way::As(Onecopy::FromPlain),
];

#[derive(Clone, Debug)]
enum Call {
    /// send()
    Send(usize),
    /// sendto()
    SendTo {
        to: usize,
        len: usize,
    },
    /// sendmsg() with descriptors, to the peer or by name
    SendFds {
        to: Option<usize>,
        len: usize,
        count: usize,
    },
    /// send() for the kernel, and ours written where the peer reads it
    SendInPlace(usize),
    /// send() of more than any buffer here takes
    SendTooLong,
    /// send() until there is no room, and all of it received by the peer that it is connected to
    Fill,
    /// recvmsg(), with the sender's name, and room for descriptors or without
    Recv {
        max: usize,
        with: bool,
        flags: Rx,
    },
    /// recvmsg() into three pieces, without a name
    RecvPieces {
        max: [usize; 3],
        flags: Rx,
    },
    /// recvmsg() for the kernel, and ours read where it lies
    RecvInPlace(usize),
    /// connect(), to itself even
    Connect(usize),
    /// connect() to none
    Disconnect,
    Shutdown(Shutdown),
    Close,
    /// O_NONBLOCK, by the call for it or by others
    Nonblocking {
        on: bool,
        others: bool,
    },
    Poll,
    /// SIOCINQ
    Queued,
    /// SO_ERROR
    Error,
    /// getpeername()
    Peer,
}

#[derive(Clone, Debug)]
struct Step {
    at: usize,
    call: Call,
}

/// Small ones, and few: how many fill a queue depends on how it is accounted.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 2 => Just(1), 4 => 1usize..12, 3 => 1usize..400, 1 => Just(64)]
}

fn flags() -> impl Strategy<Value = Rx> {
    let one_in = |n: u32| prop::bool::weighted(1.0 / f64::from(n));
    (prop::bool::weighted(0.95), one_in(4), one_in(8), one_in(6))
        .prop_map(|(dontwait, peek, waitall, trunc)| Rx { dontwait, peek, waitall, trunc, oob: false })
}

fn call() -> impl Strategy<Value = Call> {
    let who = 0usize..3;
    let how = prop_oneof![Just(Shutdown::Read), Just(Shutdown::Write), Just(Shutdown::Both)];
    prop_oneof![
        20 => size().prop_map(Call::Send),
        8 => (who.clone(), size()).prop_map(|(to, len)| Call::SendTo { to, len }),
        8 => (prop::option::weighted(0.3, who.clone()), size(), 1usize..4)
            .prop_map(|(to, len, count)| Call::SendFds { to, len, count }),
        8 => size().prop_map(Call::SendInPlace),
        1 => Just(Call::SendTooLong),
        1 => Just(Call::Fill),
        24 => (size(), any::<bool>(), flags()).prop_map(|(max, with, flags)| Call::Recv { max, with, flags }),
        6 => ([size(), size(), size()], flags()).prop_map(|(max, flags)| Call::RecvPieces { max, flags }),
        8 => size().prop_map(Call::RecvInPlace),
        4 => who.prop_map(Call::Connect),
        1 => Just(Call::Disconnect),
        2 => how.prop_map(Call::Shutdown),
        1 => Just(Call::Close),
        2 => any::<(bool, bool)>().prop_map(|(on, others)| Call::Nonblocking { on, others }),
        8 => Just(Call::Poll),
        4 => Just(Call::Queued),
        3 => Just(Call::Error),
        2 => Just(Call::Peer),
    ]
}

fn program() -> impl Strategy<Value = Vec<Step>> {
    // The two that are connected do most of it.
    let at = prop_oneof![5 => Just(0usize), 5 => Just(1), 1 => Just(2)];
    prop::collection::vec((at, call()).prop_map(|(at, call)| Step { at, call }), 1..36)
}

/// Three sockets with names, and what they have sent.
struct World {
    sockets: [Option<Box<dyn Socket>>; 3],
    names: [Name; 3],
    sent: u8,
}

fn said<T>(result: io::Result<T>, ok: impl FnOnce(T) -> String) -> String {
    result.map_or_else(|e| errno(&e), ok)
}

impl World {
    fn new(way: Way, ours: bool) -> io::Result<World> {
        let names = [name(), name(), name()];
        let imp: &dyn Impl = match &way {
            _ if !ours => &Kernel,
            Way::Fresh | Way::Many => &Onecopy::Connected,
            Way::As(imp) => imp,
        };
        let socket = || imp.socket(Kind::Dgram).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported));
        let (a, b) = match way {
            Way::Many => {
                let pair: (Box<dyn Socket>, Box<dyn Socket>) = (socket()?, socket()?);
                pair.0.bind(&names[0])?;
                pair.1.bind(&names[1])?;
                pair.0.connect(&names[1])?;
                for _ in 0..60 {
                    pair.0.send(b"warm", TX_NOW)?;
                    pair.1.recv(&mut [0; 9], NOW)?;
                }
                if ours && pair.0.path().0 != "shared memory" {
                    return Err(io::Error::other("it has no lane"));
                }
                pair
            }
            Way::Fresh if ours => {
                let pair: (Box<dyn Socket>, Box<dyn Socket>) = (socket()?, socket()?);
                meet(&*pair.0, &*pair.1, &names[0], &names[1])?;
                pair
            }
            _ => imp.datagrams(&names[0], &names[1])?,
        };
        let c: Box<dyn Socket> = socket()?;
        c.bind(&names[2])?;
        for socket in [&a, &b, &c] {
            socket.set_read_timeout(Some(Duration::from_millis(1)))?;
            socket.set_write_timeout(Some(Duration::from_millis(1)))?;
        }
        Ok(World { sockets: [Some(a), Some(b), Some(c)], names, sent: 0 })
    }

    fn which(&self, name: &Name) -> String {
        let known = self.names.iter().position(|known| known == name);
        known.map_or_else(|| format!("{name:?}"), |at| ["a", "b", "c"][at].to_owned())
    }

    fn next(&mut self, len: usize) -> Vec<u8> {
        self.sent = self.sent.wrapping_add(1);
        (0..len).map(|i| self.sent ^ (i as u8).rotate_left(3)).collect()
    }

    /// Whether it must not be tried.
    fn leaves_out(&self, way: Way, at: usize, call: &Call) -> bool {
        // Between senders there is no order: one only sends to who receives from many.
        if matches!(way, Way::Many)
            && at != 0
            && matches!(
                call,
                Call::SendTo { to: 1, .. } | Call::SendFds { to: Some(1), .. } | Call::Connect(1)
            )
        {
            return true;
        }
        let peer = |at: usize| self.sockets[at].as_ref()?.peer_name().ok();
        match call {
            _ if self.sockets[at].is_none() => true,
            // Where each has the other for its peer; the rest is bounded by a count, which the kernel keeps.
            Call::Fill => {
                let to = peer(at).and_then(|name| self.names.iter().position(|known| *known == name));
                !to.is_some_and(|to| to != at && peer(to).as_ref() == Some(&self.names[at]))
            }
            _ => false,
        }
    }

    fn recv(&self, end: &dyn End, max: usize, with: bool, flags: Rx) -> String {
        let mut buf = vec![0; max];
        let got: io::Result<(Came, String)> = if with {
            end.recv_with_from(&mut buf, flags).map(|(came, from)| (came, self.which(&from)))
        } else {
            let came = end.recv_msg(&mut [IoSliceMut::new(&mut buf)], false, flags);
            came.map(|came| (came, "?".into()))
        };
        said(got, |(came, from)| told(&came, &buf, &from))
    }

    fn call(&mut self, at: usize, call: &Call) -> String {
        let Some(end) = self.sockets[at].take() else { return String::new() };
        let text = self.call_on(&*end, at, call);
        if !matches!(call, Call::Close) {
            self.sockets[at] = Some(end);
        }
        text
    }

    fn call_on(&mut self, end: &dyn Socket, at: usize, call: &Call) -> String {
        let ok = |()| "ok".to_owned();
        let count = |n| format!("{n} sent");
        match call {
            Call::Send(len) => said(end.send(&self.next(*len), TX_NOW), count),
            Call::SendTo { to, len } => {
                // (It has no flags, but does not wait: the socket has a timeout.)
                let data = self.next(*len);
                said(end.send_to(&data, &self.names[*to]), count)
            }
            Call::SendFds { to, len, count: fds } => {
                let data = self.next(*len);
                let fds: Vec<_> = tokens().iter().take(*fds).map(AsFd::as_fd).collect();
                match to {
                    None => said(end.send_msg(&[IoSlice::new(&data)], &fds, TX_NOW), count),
                    Some(to) => said(end.send_fds_to(&data, &fds, &self.names[*to]), count),
                }
            }
            Call::SendInPlace(len) => said(end.send_in_place(&self.next(*len), TX_NOW), count),
            Call::SendTooLong => said(end.send(&vec![0; 1 << 20], TX_NOW), count),
            Call::Fill => self.fill(end, at),
            Call::Recv { max, with, flags } => self.recv(end, *max, *with, *flags),
            Call::RecvPieces { max, flags } => {
                let mut bufs = max.map(|max| vec![0; max]);
                let mut slices: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
                let got = end.recv_msg(&mut slices, false, *flags);
                said(got, |came| told(&came, &bufs.concat(), "?"))
            }
            Call::RecvInPlace(max) => said(end.recv_in_place(*max, NOW), |(bytes, returned)| {
                told(&Came { len: bytes.len(), returned, ..Came::default() }, &bytes, "?")
            }),
            Call::Connect(to) => said(end.connect(&self.names[*to]), ok),
            Call::Disconnect => said(end.disconnect(), ok),
            Call::Shutdown(how) => said(end.shutdown(*how), ok),
            Call::Close => "ok".into(),
            Call::Nonblocking { on, others } => said(set_nonblocking(end, *on, *others), ok),
            Call::Poll => poll_now(end).unwrap_or_else(|stop| format!("{stop:?}")),
            Call::Queued => said(end.readable_bytes(), |n| format!("{n} queued")),
            Call::Error => said(end.take_error(), |e| {
                e.map_or("none".into(), |e| errno(&io::Error::from_raw_os_error(e)))
            }),
            Call::Peer => said(end.peer_name(), |name| self.which(&name)),
        }
    }

    /// Says what ended it, and whether the peer got all that was sent, in order.
    fn fill(&mut self, end: &dyn Socket, at: usize) -> String {
        let peer = end.peer_name().ok().and_then(|name| self.names.iter().position(|known| *known == name));
        let Some(peer) = peer.filter(|peer| *peer != at) else { return "nobody".into() };
        let Some(to) = self.sockets[peer].take() else { return "nobody".into() };
        let (mut sent, mut buf) = (0u32, vec![0; 2000]);
        // What was there before does not count.
        while to.recv(&mut buf, NOW).is_ok() {}
        let why = loop {
            let mut data = vec![0; 1500];
            data[..4].copy_from_slice(&sent.to_le_bytes());
            match end.send(&data, TX_NOW) {
                Ok(_) if sent < 1 << 20 => sent += 1,
                Ok(_) => break "endless".into(),
                Err(e) => break errno(&e),
            }
        };
        let mut got = 0;
        while let Ok(n) = to.recv(&mut buf, NOW) {
            if n != 1500 || buf[..4] != u32::to_le_bytes(got) {
                break;
            }
            got += 1;
        }
        self.sockets[peer] = Some(to);
        let all = if got == sent { "all of some" } else { "not all" };
        format!("{why}, {}", if sent == 0 { "none" } else { all })
    }
}

fn told(came: &Came, buf: &[u8], from: &str) -> String {
    let bytes = &buf[..came.len.min(buf.len())];
    let sum = bytes.iter().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    let cut = if came.returned.trunc { " cut" } else { "" };
    let lost = if came.ctrunc { " fds lost" } else { "" };
    format!("{} ({sum:08x}) from {from} with {}{cut}{lost}", came.len, came.fds.len())
}

/// Whether an answer of ours that is not the kernel's is one that may be.
fn differs(call: &Call, kernel: &str, ours: &str, meeting: bool, failed: bool) -> bool {
    match call {
        // A sign of two that meet lies in the queue until the end next receives: there is something to receive where there is
        // nothing (poll(2), BUGS), of 64 bytes. And a look for one is told a reset, which then is this side's to tell.
        Call::Poll if meeting => {
            let without = |answer: &str| {
                let mut bits: Vec<_> = answer.split('+').map(str::to_owned).collect();
                bits.retain(|bit| bit != "IN" && bit != "ERR" && bit != "nothing");
                bits
            };
            without(kernel) == without(ours)
        }
        // A doorbell cannot be taken while an error is pending, which would be told to who takes it. A receive tells that one, and does
        // not wait.
        Call::Poll if kernel.contains("ERR") => ours.replace("IN+", "") == kernel.replace("IN+", ""),
        // For the same reason what lies behind it is not counted then.
        Call::Queued => meeting && ours == "64 queued" || failed && ours == "0 queued",
        _ => false,
    }
}

fn play(way: Way, program: &[Step]) -> (String, Result<(), String>) {
    let mut transcript = String::new();
    let (mut kernel, mut ours) = match (World::new(way, false), World::new(way, true)) {
        (Ok(kernel), Ok(ours)) => (kernel, ours),
        (Err(e), _) | (_, Err(e)) => return (transcript, Err(format!("cannot set up: {e}"))),
    };
    for Step { at, call } in program {
        if kernel.leaves_out(way, *at, call) || ours.leaves_out(way, *at, call) {
            continue;
        }
        let _ = write!(transcript, "  {}: {call:?}", ["a", "b", "c"][*at]);
        // Looking at readiness is no more than it is without.
        let failed = matches!(call, Call::Queued) && kernel.call(*at, &Call::Poll).contains("ERR");
        let (theirs, mine) = (kernel.call(*at, call), ours.call(*at, call));
        let _ = writeln!(transcript, " -> {mine}");
        if matches!(way, Way::Many) && *at == 0 && theirs == "EAGAIN" && mine.ends_with("sent") {
            // The kernel's queue is short, and full for all: ours has more room.
            return (transcript, Ok(()));
        }
        if theirs != mine && !differs(call, &theirs, &mine, matches!(way, Way::Fresh | Way::Many), failed) {
            return (transcript, Err(format!("the kernel says: {theirs}")));
        }
    }
    (transcript, Ok(()))
}

#[test]
fn datagrams_are_answered_for_as_by_the_kernel() {
    alone!();
    // What the first ones make stays.
    let _ = (play(WAYS[0], &[]), tokens());
    let before = held();
    for (i, way) in WAYS.into_iter().enumerate() {
        let (seed, mut runner) = super::runner(i);
        let result = runner.run(&program(), |program| match play(way, &program) {
            (_, Ok(())) => Ok(()),
            (_, Err(wrong)) => Err(TestCaseError::fail(wrong)),
        });
        match result {
            Ok(()) => {}
            Err(TestError::Fail(_, program)) => {
                let (transcript, wrong) = play(way, &program);
                let wrong = wrong.err().unwrap_or("(it passes now)".into());
                panic!("seed {seed}, {way:?}:\n{transcript}{wrong}\n{program:?}");
            }
            Err(TestError::Abort(why)) => panic!("{why}"),
        }
    }
    assert_eq!(before, held(), "descriptors before and after");
}

/// Programs in which this test once found something, for the same to be found again.
#[test]
fn what_was_found_once_with_datagrams() {
    use Call::*;
    alone!();
    let (a, b) = (0, 1);
    let any = || Recv { max: 0, with: false, flags: Rx::default() };
    let nonblocking = || Nonblocking { on: true, others: false };
    let nothing = || SendFds { to: None, len: 0, count: 1 };
    let programs: Vec<Vec<(usize, Call)>> = vec![
        // By its name, a peer that is gone is nobody, and stays the peer.
        vec![(b, Close), (a, SendTo { to: 1, len: 0 }), (a, Send(0)), (a, Send(0))],
        // What was there when an end connected to the peer that it had was lost, once it had been shut down.
        vec![
            (b, Shutdown(std::net::Shutdown::Write)),
            (a, Send(0)),
            (b, Send(0)),
            (b, Connect(0)),
            (b, any()),
        ],
        // A pending error comes behind EMSGSIZE.
        vec![(b, Send(0)), (a, Disconnect), (b, SendTooLong), (b, Send(0))],
        // What a peer that had gone on to another one sent over the kernel was not counted.
        vec![(a, Send(0)), (a, Connect(2)), (b, any()), (a, SendTo { to: 1, len: 1 }), (b, Queued)],
        // A reset of what had gone over the kernel before was told to nobody, or not before what was there.
        [(b, nothing()), (b, any()), (b, any()), (a, nothing()), (b, nothing()), (a, Send(0)), (b, Send(0))]
            .into_iter()
            .chain([(b, any()), (b, any()), (a, Connect(2)), (b, any())])
            .collect(),
        [a, a, a]
            .map(|at| (at, Send(0)))
            .into_iter()
            .chain([(a, any())])
            .chain([b, a, b, a, b, b, a, a, b, a, a, a, a].map(|at| (at, Send(0))))
            .chain([(a, any()), (b, Connect(2)), (a, any())])
            .collect(),
        [
            (a, any()),
            (a, nothing()),
            (a, any()),
            (a, Send(0)),
            (b, any()),
            (b, Send(0)),
            (a, Send(0)),
            (a, any()),
        ]
        .into_iter()
        .chain([(a, Send(0)), (a, any()), (b, Disconnect), (a, Send(0))])
        .collect(),
        [a, b, b, a, a, a, b, b, a]
            .map(|at| (at, Send(0)))
            .into_iter()
            .chain([(b, Connect(2)), (a, any())])
            .collect(),
        [(a, Send(0)), (a, Send(0)), (a, any())]
            .into_iter()
            .chain([b, a, b, a].map(|at| (at, Send(0))))
            .chain([(a, any()), (a, any()), (b, Connect(2)), (a, any())])
            .collect(),
        // A sign that was sent for a send by name parted from the peer that was gone.
        [(b, SendTooLong), (b, Send(0)), (b, Fill), (b, any()), (a, Close)]
            .into_iter()
            .chain([(b, SendTo { to: 0, len: 0 }), (b, Send(0))])
            .collect(),
        // Who was shut down for receiving and does not wait was told the end.
        [
            (a, Send(0)),
            (a, Send(0)),
            (a, Fill),
            (a, any()),
            (b, Shutdown(std::net::Shutdown::Read)),
            (a, Send(0)),
        ]
        .into_iter()
        .chain([(b, Recv { max: 0, with: false, flags: NOW })])
        .collect(),
        // There was something to receive where a send had been told the error.
        vec![(b, Send(0)), (a, Disconnect), (b, nonblocking()), (b, Send(0)), (b, Poll)],
        vec![(b, Send(0)), (a, Connect(2)), (b, nonblocking()), (b, any()), (b, Poll)],
        // A reset that a look of this side's was told, and the peer gone: it comes before ENOTCONN.
        [(a, Send(0)), (a, any()), (b, nothing()), (b, Send(0)), (a, nothing()), (a, any()), (b, Connect(2))]
            .into_iter()
            .chain([(a, Disconnect), (a, Send(0))])
            .collect(),
        // What had come on a lane was there when the peer was gone, to which its receiver had connected since.
        vec![(a, nothing()), (b, Connect(0)), (a, Close), (b, Send(0)), (b, any())],
        // And it came before the reset of that peer.
        [(a, Send(0)), (a, Send(0)), (b, Connect(0)), (a, Send(0)), (b, nothing()), (a, Connect(2))]
            .into_iter()
            .chain([(b, any()), (b, any())])
            .collect(),
        // Room was refused because of a shutdown, and an error that comes before that was told to nobody.
        [(a, Send(0)), (b, Send(0)), (b, Shutdown(std::net::Shutdown::Write)), (a, Disconnect)]
            .into_iter()
            .chain([(b, SendInPlace(0)), (b, SendInPlace(0))])
            .collect(),
    ];
    // What a peer's leaving makes, EPIPE say, was told of the one that came after it: at whatever moment of the meeting it left.
    let leave = [Shutdown(std::net::Shutdown::Read), Shutdown(std::net::Shutdown::Both), Close, Disconnect];
    let met = [
        (a, Send(0)),
        (b, any()),
        (b, Send(0)),
        (a, any()),
        (a, Send(0)),
        (b, any()),
        (a, Send(0)),
        (b, Send(0)),
    ];
    let programs = programs.into_iter().chain((0..=met.len()).flat_map(|n| {
        let met = &met[..n];
        leave.iter().flat_map(move |leave| {
            let before = || met.iter().cloned().chain([(b, leave.clone())]);
            let after = [(a, Connect(2)), (a, Send(0)), (a, any()), (a, SendTooLong), (a, Send(1))];
            let told = [(a, Send(0)), (a, Send(0))];
            [before().chain(after.clone()).collect(), before().chain(told).chain(after).collect::<Vec<_>>()]
        })
    }));
    let programs: Vec<Vec<(usize, Call)>> = programs.collect();
    for way in WAYS {
        for steps in &programs {
            let steps: Vec<Step> =
                steps.iter().map(|(at, call)| Step { at: *at, call: call.clone() }).collect();
            let (transcript, result) = play(way, &steps);
            assert!(result.is_ok(), "{way:?}:\n{transcript}{result:?}");
        }
    }
}
