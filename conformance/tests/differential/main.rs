//! Random programs of calls, run against the kernel's AF_UNIX and ours: every answer must be the same.
//!
//! Both run step by step in one thread, so that what is answered is determinate; bytes are checked against what was sent in
//! each. What may differ is modelled as narrowly as can be ([`differs`]), each with its reason. A failure is shrunk to a
//! short program and told with all answers. `DIFFERENTIAL_PROGRAMS` says how many programs (for each way that a pair of
//! ours comes about), and `DIFFERENTIAL_SEED` which: a number, or `random` to hunt. Without it they are the same in each run, so
//! that what fails is what was changed.
#![allow(missing_docs, reason = "a test")]

mod dgrams;
mod program;
mod world;

use std::fmt::Write;
use std::io;
use std::sync::Mutex;

use onecopy::unix::{Config, SeqPacket, Stream};
use onecopy_conformance::impls::kernel::Kernel;
use onecopy_conformance::impls::onecopy::{Onecopy, OurPackets, Ours};
use onecopy_conformance::impls::{Conn, Impl, Kind, Name, Rx};
use onecopy_conformance::tools::{NOW, what_stays};
use onecopy_testing::{alone, descriptors};
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use program::{Call, Program, Step, program};
use world::{Answer, World};

/// How a pair of ours comes about.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// As the table's implementations do.
    As(Onecopy),
    /// By name, and not used before: it is upgraded by what the program does.
    Fresh,
    /// Over rings so small that each program goes around them.
    Small,
}

const WAYS: [Way; 6] = [
    Way::As(Onecopy::Connected),
    Way::Small,
    Way::Fresh,
    Way::As(Onecopy::Kernel),
    Way::As(Onecopy::ToPlain),
    Way::As(Onecopy::FromPlain),
];

fn name() -> Name {
    static COUNT: Mutex<u64> = Mutex::new(0);
    let mut n = COUNT.lock().unwrap_or_else(|e| e.into_inner());
    *n += 1;
    Name::Abstract(format!("onecopy-differential-{}-{n}", std::process::id()).into_bytes())
}

fn pair(way: Way, kind: Kind) -> io::Result<(Conn, Conn)> {
    let imp = match way {
        Way::As(Onecopy::Connected) => {
            let Name::Abstract(name) = name() else { return Err(io::ErrorKind::Other.into()) };
            return Onecopy::Connected.pair(kind, String::from_utf8_lossy(&name).as_ref().as_ref());
        }
        Way::As(imp) => imp,
        Way::Fresh => Onecopy::Connected,
        Way::Small => {
            let config =
                Config { receive_buffer: Some(32 << 10), send_buffer: Some(32 << 10), ..Config::default() };
            return Ok(match kind {
                Kind::Stream => {
                    let (a, b) = Stream::pair_with(&config)?;
                    (Box::new(Ours(a)), Box::new(Ours(b)))
                }
                _ => {
                    let (a, b) = SeqPacket::pair_with(&config)?;
                    (Box::new(OurPackets(a)), Box::new(OurPackets(b)))
                }
            });
        }
    };
    let name = name();
    let server = imp.listen(kind, &name, None)?;
    let client = imp.connect(kind, &name)?;
    Ok((client, server.accept()?))
}

/// Whether an answer of ours that is not the kernel's is one that may be.
fn differs(
    call: &Call,
    kernel: &Answer,
    ours: &Answer,
    unsure_of_room: bool,
    over_kernel: bool,
    early: bool,
) -> bool {
    let bits = |answer: &Answer| answer.said.split('+').map(str::to_owned).collect::<Vec<_>>();
    let count = |answer: &Answer| answer.said.split(' ').next().and_then(|n| n.parse::<usize>().ok());
    match call {
        // How full a filled buffer is depends on its size, and POLLOUT on how it is accounted: bytes, not memory. While it is
        // not known what the peer is, each call looks whether rings have come, and such a look takes the error that poll would
        // show: POLLHUP stays, and the next call tells the error.
        Call::Poll => {
            let met = early && bits(kernel).iter().any(|bit| bit == "HUP");
            let sure = |answer: &Answer| {
                let mut bits = bits(answer);
                bits.retain(|bit| !(met && bit == "ERR"));
                bits.retain(|bit| !(unsure_of_room && bit == "OUT" || bit == "nothing"));
                bits
            };
            sure(kernel) == sure(ours)
        }
        // Descriptors come through a channel of their own when the stream reaches them: a peek that has room for them ends
        // before. (Where they come first, it has them. The kernel's peek has even those behind a buffer that is full.)
        Call::RecvFds { flags, .. } if flags.peek => {
            kernel.said.contains("descriptors")
                && !ours.said.contains("descriptors")
                && count(ours) > Some(0)
                && count(ours) <= count(kernel)
        }
        // So does any peek where the bytes leave the kernel: what lies there are not only the caller's descriptors.
        Call::Recv { flags: Rx { peek: true, .. }, .. }
        | Call::RecvPieces { flags: Rx { peek: true, .. }, .. }
            if over_kernel =>
        {
            count(ours) > Some(0) && count(ours) <= count(kernel)
        }
        // SIOCINQ of records is an upper bound while they come over the kernel: doorbells may lie among them.
        Call::Queued if over_kernel => count(ours) >= count(kernel),
        // epoll(7): who has not received all that was there need not be told of more. The kernel tells of each send. What
        // is told must be there in both cases, and more events than the kernel's are no fault.
        Call::Edge => {
            let told = bits(ours);
            !kernel.due || kernel.said == "nothing" || bits(kernel).iter().all(|bit| told.contains(bit))
        }
        _ => false,
    }
}

/// Runs a program on both; the transcript, and what was wrong.
fn play(way: Way, kind: Kind, program: &Program) -> (String, Result<(), String>) {
    let mut transcript = String::new();
    let set_up = |result: io::Result<(Conn, Conn)>| {
        result
            .and_then(|ends| World::new(kind, ends, program.before))
            .map_err(|e| format!("cannot set up: {e}"))
    };
    let worlds = Kernel.pair(kind, "".as_ref());
    let (mut kernel, mut ours) = match (set_up(worlds), set_up(pair(way, kind))) {
        (Ok(kernel), Ok(ours)) => (kernel, ours),
        (Err(e), _) | (_, Err(e)) => return (transcript, Err(e)),
    };
    for step in &program.steps {
        let (at, call) = (step.end, &step.call);
        if kernel.leaves_out(at, call) || ours.leaves_out(at, call) {
            continue;
        }
        let _ = write!(transcript, "  {}: {call:?}", ["a", "b"][at]);
        let ours_said = ours.call(at, call, None);
        // What lies together of a stream may be less than what is there: the kernel is asked for as much.
        let max = match (&ours_said, kind) {
            (Ok(answer), Kind::Stream) => answer.bytes.filter(|n| *n > 0),
            _ => None,
        };
        let kernel_said = kernel.call(at, call, max);
        let (theirs, mine) = match (kernel_said, ours_said) {
            (Ok(theirs), Ok(mine)) => (theirs, mine),
            (Err(wrong), _) => return (transcript, Err(format!("the kernel: {wrong}"))),
            (_, Err(wrong)) => return (transcript, Err(wrong)),
        };
        let _ = writeln!(transcript, " -> {}", mine.said);
        if theirs.said == mine.said {
            continue;
        }
        let unsure = kernel.partly_full(at) || ours.partly_full(at);
        if mine.said == "not offered" {
            // Nothing was done here, something there: the rest would be another program.
            return (transcript, Ok(()));
        }
        let over_kernel = matches!(way, Way::Fresh) && ours.receives_over_kernel(at);
        let early = !matches!(way, Way::As(Onecopy::Connected) | Way::Small);
        if !differs(call, &theirs, &mine, unsure, over_kernel, early) {
            return (transcript, Err(format!("the kernel says: {}", theirs.said)));
        }
    }
    (transcript, Ok(()))
}

fn held() -> usize {
    what_stays();
    descriptors()
}

/// Makes the programs for one way that a pair of ours comes about, from a seed.
fn runner(way: usize) -> (u64, TestRunner) {
    let cases = std::env::var("DIFFERENTIAL_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(50);
    let seed = match std::env::var("DIFFERENTIAL_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| seed_of_now()),
        Err(_) => 20_261_122,
    };
    let mut bytes = [way as u8; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let runs = Runs { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Runs::default() };
    (seed, TestRunner::new_with_rng(runs, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)))
}

fn seed_of_now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(1, |now| now.as_nanos() as u64)
}

fn compare(kind: Kind) {
    // What the first ones make stays.
    let _ = play(Way::As(Onecopy::Connected), kind, &Program { before: 0, steps: Vec::new() });
    let _ = world::tokens();
    let before = held();
    for (i, way) in WAYS.into_iter().enumerate() {
        let (seed, mut runner) = runner(i);
        let result = runner.run(&program(), |program| match play(way, kind, &program) {
            (_, Ok(())) => Ok(()),
            (transcript, Err(wrong)) => Err(TestCaseError::fail(format!("{transcript}{wrong}"))),
        });
        match result {
            Ok(()) => {}
            Err(TestError::Fail(reason, program)) => {
                let (transcript, wrong) = play(way, kind, &program);
                let wrong = wrong.err().unwrap_or_else(|| format!("(it passes now; it said:)\n{reason}\n"));
                panic!(
                    "seed {seed}, {way:?}, {} bytes before:\n{transcript}{wrong}\n{program:?}",
                    program.before
                );
            }
            Err(TestError::Abort(why)) => panic!("{why}"),
        }
    }
    assert_eq!(before, held(), "descriptors before and after");
}

#[test]
fn streams_answer_as_the_kernel_does() {
    alone!();
    compare(Kind::Stream);
}

#[test]
fn records_are_answered_for_as_by_the_kernel() {
    alone!();
    compare(Kind::SeqPacket);
}

/// Programs in which this test once found something, for the same to be found again.
#[test]
fn what_was_found_once() {
    alone!();
    use Call::*;
    let any = |max| Recv { max, flags: Rx::default() };
    let peek = |max| Recv { max, flags: Rx { peek: true, ..NOW } };
    let send = |len| Send { len, eor: false };
    let (a, b) = (0, 1);
    let programs: [&[(usize, Call)]; 16] = [
        // A peek with room for descriptors, where the first bytes came over the kernel.
        &[
            (b, send(1)),
            (a, send(1)),
            (b, any(0)),
            (b, SendFds { len: 1, count: 1 }),
            (a, RecvFds { max: 1, flags: Rx { peek: true, ..NOW } }),
        ],
        // A peek ended at descriptors, which the kernel's takes the bytes of.
        &[(a, send(1)), (a, SendFds { len: 2, count: 1 }), (b, peek(4)), (b, any(4))],
        // A peek ended where the bytes leave the kernel.
        &[(b, send(1)), (a, send(1)), (b, any(0)), (b, send(1)), (a, peek(9)), (a, any(9))],
        // SIOCINQ counted the room that descriptors take, and forgot records that lie in shared memory.
        &[(b, SendFds { len: 1, count: 1 }), (a, Queued)],
        &[(a, Queued), (b, any(0)), (b, send(1)), (a, Queued)],
        // A send of nothing rang.
        &[
            (a, Nonblocking { on: true, others: false }),
            (b, send(0)),
            (a, Poll),
            (b, SendFds { len: 0, count: 1 }),
            (a, Poll),
        ],
        // A pending error comes before EMSGSIZE.
        &[(b, send(1)), (a, Close), (b, SendTooLong), (b, SendTooLong)],
        // Who receives no more said so before there was a ring to say it in.
        &[(a, Shutdown(std::net::Shutdown::Read)), (a, send(1)), (b, any(1)), (b, send(1))],
        &[
            (b, send(1)),
            (a, Shutdown(std::net::Shutdown::Write)),
            (b, any(0)),
            (a, send(1)),
            (a, Close),
            (b, any(0)),
        ],
        // A receive of nothing was not told of a reset that had been met before the peer was known to be plain.
        &[(a, send(1)), (b, Close), (a, send(1)), (a, any(0)), (a, any(1))],
        // A reset that was met behind what a receive had got already was told to nobody.
        &[(a, Fill), (b, send(1)), (b, Close), (a, Drain), (a, any(1))],
        // A look behind what was received took the error that poll shows.
        &[
            (a, send(1)),
            (b, SendFds { len: 2, count: 1 }),
            (b, Close),
            (a, RecvFds { max: 1, flags: Rx::default() }),
            (a, any(2)),
            (a, Poll),
            (a, any(1)),
        ],
        // A peek of bytes over the kernel, with more behind descriptors in shared memory.
        &[
            (b, send(4)),
            (a, any(0)),
            (b, any(0)),
            (b, SendFds { len: 1, count: 1 }),
            (a, peek(5)),
            (a, any(9)),
        ],
        // A look for the server's rings took the reset, which is told all the same.
        &[(a, send(1)), (b, Close), (a, send(1)), (a, Poll), (a, any(1)), (a, any(1))],
        // The end of a connection that nothing was left of, met by who waits for all of it.
        &[
            (a, send(3)),
            (b, send(3)),
            (b, any(3)),
            (b, Close),
            (a, Poll),
            (a, any(2)),
            (a, Poll),
            (a, any(2)),
        ],
        // A doorbell that was left to whoever had shut its connection down became a reset when the other end closed.
        &[(b, Shutdown(std::net::Shutdown::Both)), (a, Close), (b, Poll)],
    ];
    for kind in [Kind::Stream, Kind::SeqPacket] {
        for way in WAYS {
            for steps in programs {
                let steps = steps.iter().map(|(end, call)| Step { end: *end, call: call.clone() }).collect();
                let (transcript, result) = play(way, kind, &Program { before: 0, steps });
                assert!(result.is_ok(), "{kind:?}, {way:?}:\n{transcript}{result:?}");
            }
        }
    }
}
