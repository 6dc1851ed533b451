//! Programs of calls on the two ends of a connection, made at random.

use std::net::Shutdown;

use onecopy_conformance::impls::Rx;
use proptest::prelude::*;

/// What is done with an end.
#[derive(Clone, Debug)]
pub enum Call {
    /// send(); with MSG_EOR where `eor`
    Send { len: usize, eor: bool },
    /// sendmsg() with three pieces
    SendPieces([usize; 3]),
    /// sendmsg() with so many descriptors
    SendFds { len: usize, count: usize },
    /// reserve, write, commit
    SendInPlace(usize),
    /// send() of more than any buffer here takes as one record
    SendTooLong,
    /// recvmsg()
    Recv { max: usize, flags: Rx },
    /// recvmsg() into three pieces
    RecvPieces { max: [usize; 3], flags: Rx },
    /// recvmsg() with room for descriptors
    RecvFds { max: usize, flags: Rx },
    /// A borrow
    RecvInPlace { max: usize },
    /// shutdown()
    Shutdown(Shutdown),
    /// close()
    Close,
    /// O_NONBLOCK, by the call for it or by others
    Nonblocking { on: bool, others: bool },
    /// poll() without waiting
    Poll,
    /// epoll_wait() without waiting, edge-triggered; the epoll is made by the first of these calls
    Edge,
    /// SIOCINQ
    Queued,
    /// SO_ERROR
    Error,
    /// send() until there is no room
    Fill,
    /// recv() until nothing is there
    Drain,
}

/// A call on one of the ends: 0 connected, 1 accepted.
#[derive(Clone, Debug)]
pub struct Step {
    pub end: usize,
    pub call: Call,
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Bytes that have gone each way before, so that a ring's end lies anywhere.
    pub before: usize,
    pub steps: Vec<Step>,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        3 => Just(1),
        6 => 1usize..12,
        4 => 1usize..300,
        3 => 1usize..6_000,
        1 => 6_000usize..16_385,
    ]
}

fn pieces() -> impl Strategy<Value = [usize; 3]> {
    [size(), size(), size()].prop_map(|mut sizes| {
        // Of three of the largest there would be no room.
        sizes.iter_mut().for_each(|size| *size /= 3);
        sizes
    })
}

fn flags() -> impl Strategy<Value = Rx> {
    // Who does not say MSG_DONTWAIT waits for its timeout, where nothing is there: that takes time, so few do.
    let one_in = |n: u32| prop::bool::weighted(1.0 / f64::from(n));
    (prop::bool::weighted(0.9), one_in(4), one_in(5), one_in(6))
        .prop_map(|(dontwait, peek, waitall, trunc)| Rx { dontwait, peek, waitall, trunc, oob: false })
}

fn how() -> impl Strategy<Value = Shutdown> {
    prop_oneof![Just(Shutdown::Read), Just(Shutdown::Write), Just(Shutdown::Both)]
}

fn call() -> impl Strategy<Value = Call> {
    let eor = prop::bool::weighted(0.2);
    prop_oneof![
        24 => (size(), eor).prop_map(|(len, eor)| Call::Send { len, eor }),
        6 => pieces().prop_map(Call::SendPieces),
        8 => (size(), 1usize..4).prop_map(|(len, count)| Call::SendFds { len, count }),
        6 => size().prop_map(Call::SendInPlace),
        1 => Just(Call::SendTooLong),
        24 => (size(), flags()).prop_map(|(max, flags)| Call::Recv { max, flags }),
        6 => (pieces(), flags()).prop_map(|(max, flags)| Call::RecvPieces { max, flags }),
        10 => (size(), flags()).prop_map(|(max, flags)| Call::RecvFds { max, flags }),
        6 => size().prop_map(|max| Call::RecvInPlace { max }),
        3 => how().prop_map(Call::Shutdown),
        2 => Just(Call::Close),
        2 => any::<(bool, bool)>().prop_map(|(on, others)| Call::Nonblocking { on, others }),
        10 => Just(Call::Poll),
        8 => Just(Call::Edge),
        5 => Just(Call::Queued),
        3 => Just(Call::Error),
        1 => Just(Call::Fill),
        5 => Just(Call::Drain),
    ]
}

pub fn program() -> impl Strategy<Value = Program> {
    let step = (0usize..2, call()).prop_map(|(end, call)| Step { end, call });
    let before = prop_oneof![Just(0), 1usize..40_000, Just(65_536 - 8), Just(65_536 - 100)];
    (before, prop::collection::vec(step, 1..32)).prop_map(|(before, steps)| Program { before, steps })
}
