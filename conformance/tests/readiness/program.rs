//! Programs of calls on a few sockets, made at random.

use std::net::Shutdown;

use proptest::prelude::*;

/// How many bytes a send has.
#[derive(Clone, Copy, Debug)]
pub enum Len {
    /// So many.
    Some(usize),
    /// As many as fill the buffer to the byte, as far as is known.
    Room,
    /// As many as there is room for, and more.
    More,
}

/// How many bytes a receive has room for.
#[derive(Clone, Copy, Debug)]
pub enum Max {
    /// So many.
    Some(usize),
    /// What is there, to the byte.
    Exactly,
    /// More than there can be.
    More,
}

/// What is done with a socket.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// send(); stream records end with it where `eor`
    Send { len: Len, eor: bool },
    /// sendmsg() with descriptors
    SendFds { len: usize, count: usize },
    /// send() of pieces of so many bytes until EAGAIN
    Fill(usize),
    /// reserve, write, a look while it is held, commit or not
    InPlace { len: usize, commit: bool },
    /// A page of a pool of this end's, by reference
    Loan(usize),
    /// recvmsg()
    Recv(Max),
    /// recvmsg() with room for descriptors
    RecvFds(Max),
    /// MSG_PEEK
    Peek(Max),
    /// recvmsg() until EAGAIN, or the end
    Drain,
    /// A borrow, which is kept
    Borrow(Max),
    /// One of the borrows is given back
    GiveBack(usize),
    /// SO_PASSCRED
    Credentials(bool),
    /// O_NONBLOCK
    Nonblocking(bool),
    /// shutdown()
    Shutdown(Shutdown),
    /// close()
    Close,
    /// into_fds, from_fds
    Pass,
    /// share_fds, to a process that is no child
    Share,
    /// fork(2): the child keeps this end, or both
    Fork { both: bool },
    /// send() by another process that has this end
    OtherSends(usize),
    /// recv() by another process that has this end
    OtherReceives(usize),
    /// close() by another process that has this end
    OtherCloses,
    /// Another process ends: of its own accord, or by a signal
    OtherEnds { killed: bool },
}

/// A call, and how closely it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Which socket.
    pub at: usize,
    pub call: Call,
    /// After it, what poll says is held against what a receive and a send would do, which changes what they look at.
    pub tried: bool,
}

/// A program, and what its sockets are made with.
#[derive(Clone, Debug)]
pub struct Program {
    /// Sizes of buffers: of the client, of the server.
    pub buffers: [Option<usize>; 2],
    /// Whether they may be passed on.
    pub passable: bool,
    /// After so many steps the connection is accepted.
    pub accept: usize,
    /// From that step on poll is asked.
    pub watched: usize,
    pub steps: Vec<Step>,
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => Just(1usize),
        4 => 1usize..12,
        4 => 1usize..300,
        3 => 1usize..5_000,
        1 => 5_000usize..70_000,
        1 => Just(0),
    ]
}

fn sends() -> impl Strategy<Value = Len> {
    prop_oneof![8 => len().prop_map(Len::Some), 3 => Just(Len::Room), 1 => Just(Len::More)]
}

fn max() -> impl Strategy<Value = Max> {
    let some = len().prop_map(|len| Max::Some(len.max(1)));
    prop_oneof![5 => some, 4 => Just(Max::Exactly), 3 => Just(Max::More)]
}

fn call() -> impl Strategy<Value = Call> {
    let how = prop_oneof![Just(Shutdown::Read), Just(Shutdown::Write), Just(Shutdown::Both)];
    let piece = prop_oneof![Just(1usize), Just(7), Just(1000), Just(4096), Just(30_000)];
    prop_oneof![
        24 => (sends(), any::<bool>()).prop_map(|(len, eor)| Call::Send { len, eor }),
        4 => (1usize..400, 1usize..4).prop_map(|(len, count)| Call::SendFds { len, count }),
        4 => piece.prop_map(Call::Fill),
        4 => (len(), prop::bool::weighted(0.8)).prop_map(|(len, commit)| Call::InPlace { len, commit }),
        4 => (1usize..4_096).prop_map(Call::Loan),
        20 => max().prop_map(Call::Recv),
        4 => max().prop_map(Call::RecvFds),
        4 => max().prop_map(Call::Peek),
        8 => Just(Call::Drain),
        7 => max().prop_map(Call::Borrow),
        6 => (0usize..4).prop_map(Call::GiveBack),
        2 => any::<bool>().prop_map(Call::Credentials),
        2 => any::<bool>().prop_map(Call::Nonblocking),
        2 => how.prop_map(Call::Shutdown),
        1 => Just(Call::Close),
        2 => Just(Call::Pass),
        1 => Just(Call::Share),
        1 => any::<bool>().prop_map(|both| Call::Fork { both }),
        2 => len().prop_map(Call::OtherSends),
        2 => len().prop_map(|len| Call::OtherReceives(len.max(1))),
        1 => Just(Call::OtherCloses),
        1 => any::<bool>().prop_map(|killed| Call::OtherEnds { killed }),
    ]
}

/// For so many sockets.
pub fn program(sockets: usize) -> impl Strategy<Value = Program> {
    let step = (0..sockets, call(), prop::bool::weighted(0.3));
    let step = step.prop_map(|(at, call, tried)| Step { at, call, tried });
    let buffer = || {
        prop_oneof![
            3 => Just(None),
            3 => Just(Some(4096usize)),
            2 => Just(Some(16_384)),
            1 => Just(Some(100_000)),
            1 => Just(Some(1 << 20)),
        ]
    };
    let accept = prop_oneof![4 => Just(0usize), 2 => 0usize..6];
    let watched = prop_oneof![4 => Just(0usize), 1 => 0usize..20];
    let steps = prop::collection::vec(step, 1..40);
    ([buffer(), buffer()], any::<bool>(), accept, watched, steps).prop_map(
        |(buffers, passable, accept, watched, steps)| Program { buffers, passable, accept, watched, steps },
    )
}
