//! Programs by chance.

use crate::worlds::{AGAIN, Cable, Done, End, Watched, eventually, kernel_pair, polled};
use rustix::event::PollFlags;
use std::net::Shutdown;
use std::os::fd::AsFd;

/// xorshift64*.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Send(usize),
    Recv(usize),
    Peek(usize),
    Shutdown(Shutdown),
    Error,
    /// Sends until no more is taken, and nothing is under way.
    Fill,
    /// Receives until nothing is there.
    Drain,
    Close,
    Reset,
}

fn call(chance: &mut Chance) -> Call {
    match chance.below(100) {
        0..30 => Call::Send(1 + chance.below(3000) as usize),
        30..55 => Call::Recv(1 + chance.below(4000) as usize),
        55..62 => Call::Peek(1 + chance.below(4000) as usize),
        62..72 => Call::Drain,
        72..80 => Call::Fill,
        80..84 => Call::Shutdown(Shutdown::Write),
        84..86 => Call::Shutdown(Shutdown::Read),
        86..88 => Call::Shutdown(Shutdown::Both),
        88..94 => Call::Error,
        94..98 => Call::Close,
        _ => Call::Reset,
    }
}

/// Sends until no more is taken, though all that was under way has arrived.
fn fill<E: End>(end: &mut Watched<E>, mut settle: impl FnMut()) -> (usize, i32) {
    let mut all = 0;
    loop {
        let could = end.poll().contains(PollFlags::OUT);
        let mut sent = 0;
        let ended = loop {
            match end.send(64 << 10) {
                Ok(n) => sent += n,
                Err(errno) => break errno,
            }
        };
        assert!(!could || sent > 0 || ended != AGAIN, "poll says that it can be written, and it cannot");
        // Nothing happens between the call and this: what a call has found is what poll says.
        all += sent;
        if ended != AGAIN || sent == 0 {
            return (all, ended);
        }
        settle();
    }
}

fn drain<E: End>(end: &mut Watched<E>, mut settle: impl FnMut()) -> (usize, Done) {
    let mut all = 0;
    loop {
        match end.recv(64 << 10, false) {
            Ok(n) if n > 0 => all += n,
            ended => {
                settle();
                if end.end.unread() == 0 {
                    return (all, ended);
                }
            }
        }
    }
}

struct Both {
    cable: Cable,
    ours: [Option<Watched<onecopy_net::tcp::Stream>>; 2],
    kernels: [Option<Watched<std::net::TcpStream>>; 2],
    /// More was sent from there than either takes, so that they do not hold the same.
    filled: [bool; 2],
}

impl Both {
    fn new() -> Both {
        let cable = Cable::new();
        let ours = cable.pair().map(|end| Some(Watched::new(end)));
        Both { cable, ours, kernels: kernel_pair().map(|end| Some(Watched::new(end))), filled: [false; 2] }
    }

    /// How much may wait unsent where poll says that it can be written (TCP_NOTSENT_LOWAT).
    fn waits_little(&self, bytes: u32) {
        for (our, kernel) in self.ours.iter().flatten().zip(self.kernels.iter().flatten()) {
            our.end.set(|settings| settings.notsent_lowat = Some(bytes)).unwrap();
            onecopy_sys::sockopt::set_int(kernel.end.as_fd(), 6, 25, bytes as i32).unwrap();
        }
    }

    fn step(&mut self, which: usize, call: Call) {
        let (Some(our), Some(kernel)) = (&mut self.ours[which], &mut self.kernels[which]) else { return };
        let peer = 1 - which;
        let settle = || self.cable.settle();
        let yields = std::thread::yield_now;
        match call {
            // The kernel's buffers and ours have other lengths.
            Call::Send(_) if self.filled[which] => return,
            // What of it is still to come differs, too, and resets whoever has shut that way down.
            Call::Shutdown(_) if self.filled != [false; 2] => return,
            Call::Close | Call::Reset if self.filled[which] => return,
            Call::Send(len) => assert_eq!(our.send(len), kernel.send(len)),
            Call::Recv(len) => assert_eq!(our.recv(len, false), kernel.recv(len, false)),
            Call::Peek(len) => assert_eq!(our.recv(len, true), kernel.recv(len, true)),
            Call::Shutdown(how) => assert_eq!(our.end.shut(how), kernel.end.shut(how)),
            Call::Error => assert_eq!(our.end.error(), kernel.end.error()),
            Call::Fill => {
                let (sent, ended) = fill(our, settle);
                let could = our.poll();
                assert!(ended != AGAIN || !could.contains(PollFlags::OUT), "{could:?} after EAGAIN");
                let (theirs, theirs_ended) = fill(kernel, yields);
                assert_eq!(ended, theirs_ended);
                self.filled[which] |= sent > 0 || theirs > 0;
            }
            Call::Drain => {
                let (all, ended) = drain(our, settle);
                let (theirs, theirs_ended) = drain(kernel, yields);
                assert_eq!(ended, theirs_ended);
                assert!(all == theirs || self.filled[peer], "{all} and {theirs}");
                // What is still to come is not the same, either.
                self.filled[peer] &= self.ours[peer].is_some();
                return self.refill(peer);
            }
            Call::Close | Call::Reset => {
                if matches!(call, Call::Reset) {
                    our.end.reset_on_close();
                    kernel.end.reset_on_close();
                }
                self.ours[which] = None;
                self.kernels[which] = None;
            }
        }
        self.agree();
    }

    /// After the receiver has taken all: so often that nothing is left on the way.
    fn refill(&mut self, from: usize) {
        let to = 1 - from;
        while self.filled[from] {
            self.cable.settle();
            // Looked at before the receivers take what has come: what is acknowledged lies with them then.
            // (The kernel counts what was dropped with a reset for ever.)
            let ours = self.ours[from].as_ref().map_or(0, |end| end.end.unacknowledged_bytes().unwrap());
            let theirs_left = self.kernels[from].as_ref().map_or(0, |end| match polled(&end.end) {
                flags if flags.contains(PollFlags::HUP) => 0,
                _ => onecopy_sys::socket::unread_memory(&end.end).unwrap(),
            });
            let (Some(our), Some(kernel)) = (&mut self.ours[to], &mut self.kernels[to]) else { break };
            let (more, _) = drain(our, || self.cable.settle());
            let (theirs, _) = drain(kernel, std::thread::yield_now);
            let over = PollFlags::RDHUP | PollFlags::HUP;
            let ended = self.ours[to].as_ref().is_none_or(|end| polled(&end.end).intersects(over))
                && self.kernels[to].as_ref().is_none_or(|end| polled(&end.end).intersects(over));
            let closed = self.ours[from].is_none() && !ended;
            self.filled[from] = more > 0 || theirs > 0 || ours > 0 || theirs_left > 0 || closed;
        }
        self.agree();
    }

    /// Both worlds say the same.
    fn agree(&mut self) {
        self.cable.settle();
        for which in 0..2 {
            let (Some(our), Some(kernel)) = (&mut self.ours[which], &mut self.kernels[which]) else {
                continue;
            };
            let mut compared = if self.filled[which] { !PollFlags::OUT } else { PollFlags::all() };
            let unlike = self.filled[1 - which];
            if unlike {
                // An end comes behind the rest.
                compared -= PollFlags::RDHUP | PollFlags::HUP;
            }
            let have = |n: usize| if unlike { n.min(4096) } else { n };
            let expected = (our.poll() & compared, have(our.end.unread()), true);
            eventually("poll", expected, || {
                (kernel.poll() & compared, have(kernel.end.unread()), kernel.knows())
            });
            assert!(our.knows(), "no edge told of {:?}, but of {:?}", our.poll(), our.known);
            let mask = our.poll();
            if !mask.contains(PollFlags::ERR) {
                let would_wait = our.recv(1, true) == Err(AGAIN);
                assert_eq!(would_wait, !mask.contains(PollFlags::IN), "{mask:?}");
            }
        }
    }
}

const SEEDS: u64 = 100;

#[test]
fn any_program_hears_of_ours_what_it_hears_of_the_kernels() {
    for seed in 1..=SEEDS {
        let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut both = Both::new();
        if seed % 3 == 0 {
            both.waits_little(16 << 10);
        }
        let mut said = Vec::new();
        let steps = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            both.agree();
            for _ in 0..40 {
                let (which, call) = (chance.below(2) as usize, call(&mut chance));
                said.push((which, call));
                both.step(which, call);
            }
        }));
        if let Err(panic) = steps {
            eprintln!("seed {seed}: {said:?}");
            std::panic::resume_unwind(panic);
        }
    }
}
