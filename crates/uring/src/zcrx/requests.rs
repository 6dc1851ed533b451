//! Receives that are under way, and what completions of 32 bytes say of them (struct io_uring_zcrx_cqe of include/uapi/linux/io_uring.h).
//!
//! The kernel is believed nothing here: where a fragment is not in the memory, or there are more bytes than were asked for, its receive is over with
//! [`End::Wrong`], and what else comes of it goes back to the device.

use crate::table::{Key, Request, Table, Work};
use io_uring::cqueue;
use io_uring::types::IORING_ZCRX_AREA_MASK;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What has happened to a receive. `token` is what the caller gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Bytes have come to the memory. They are given back by a [`Refill`](super::Refill), once.
    Placed {
        /// The caller's name for it.
        token: u64,
        /// Where they lie.
        at: u64,
        /// How many they are, one at least.
        len: u32,
    },
    /// Nothing more comes before the next receive.
    Ended {
        /// The caller's name for it.
        token: u64,
        /// Why.
        end: End,
    },
    /// Bytes have come that nobody is told of: they are to be given back at once.
    Unwanted {
        /// Where they lie.
        at: u64,
        /// How many they are.
        len: u32,
    },
}

/// Why a receive is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer sends no more.
    Stream,
    /// As many bytes have come as were asked for.
    Limit,
    /// The kernel had no room to tell of more (ENOSPC), or gave up for no reason of the socket's: begin again.
    Again,
    /// Bytes that the device has not put into the memory, and no page of it is free to copy them to (ENOMEM).
    NoPage,
    /// The next bytes are not in the memory and cannot be brought there: those of a dma-buf's neighbours, of another queue (EFAULT).
    Elsewhere,
    /// It was cancelled.
    Cancelled,
    /// The socket has failed.
    Failed(Errno),
    /// The kernel says what cannot be.
    Wrong(Wrong),
}

/// What the kernel said that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A fragment of no bytes.
    Empty,
    /// One in other memory than was registered.
    Area(u64),
    /// One that is not in the memory: its first byte, and how many it has.
    Outside(u64, u32),
    /// More than was asked for.
    TooMany(u32),
    /// Bytes of which it does not say where they lie.
    Nowhere(u32),
    /// A result that is neither a count nor an errno, or an errno that more follows.
    Result(i32),
}

/// Errnos are below (MAX_ERRNO of include/linux/err.h).
const ERRNOS: i32 = 4096;

/// Receives that are under way.
pub struct Requests {
    table: Table,
    /// Bytes of the memory.
    len: u64,
    /// What the kernel calls the memory (rq_area_token).
    area: u64,
    events: VecDeque<Arrival>,
    /// Receives that go on in the kernel though nobody is told of what they bring.
    over: Vec<Key>,
    /// Completions of receives that there are not.
    strays: u64,
}

impl Requests {
    /// Into memory of `len` bytes, which the kernel calls `area`.
    pub fn new(len: u64, area: u64) -> Requests {
        Requests { table: Table::default(), len, area, events: VecDeque::new(), over: Vec::new(), strays: 0 }
    }

    /// A receive of up to `most` bytes; of any number of them for 0. The key is its `user_data`.
    pub fn begin(&mut self, fd: &Arc<OwnedFd>, token: u64, most: u32) -> Key {
        let left = (most > 0).then_some(most);
        let work = Work::Place { left, wrong: false };
        self.table.insert(Request { token, _fd: Arc::clone(fd), work })
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether nothing has happened.
    pub fn is_quiet(&self) -> bool {
        self.events.is_empty()
    }

    /// What has happened, one after the other.
    pub fn event(&mut self) -> Option<Arrival> {
        self.events.pop_front()
    }

    /// A receive that is over with [`End::Wrong`] and goes on in the kernel, once: it is to be cancelled, before the next one of its socket loses bytes to it.
    pub fn to_cancel(&mut self) -> Option<Key> {
        loop {
            let key = self.over.pop()?;
            // Its last word may have come meanwhile.
            if self.table.get(key).is_some() {
                return Some(key);
            }
        }
    }

    /// Completions of receives that there are not.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Takes a completion in: `user_data`, `res` and `flags` of struct io_uring_cqe, and the two words behind it.
    pub fn complete(&mut self, user_data: u64, result: i32, flags: u32, behind: [u64; 2]) {
        let Requests { table, len, area, events, over, strays } = self;
        let Some(Request { token, work: Work::Place { left, wrong }, .. }) = table.get(Key(user_data)) else {
            *strays += 1;
            return;
        };
        let (token, more) = (*token, cqueue::more(flags));
        let mut ends = |end, wrong: &mut bool| {
            let is_wrong = matches!(end, End::Wrong(_));
            if !std::mem::replace(wrong, is_wrong) {
                if is_wrong && more {
                    over.push(Key(user_data));
                }
                events.push_back(Arrival::Ended { token, end });
            }
        };
        match u32::try_from(result) {
            Ok(0) if more => ends(End::Wrong(Wrong::Empty), wrong),
            Ok(0) => ends(if *left == Some(0) { End::Limit } else { End::Stream }, wrong),
            // All that is placed is told of by completions that others follow (io_zcrx_queue_cqe()).
            Ok(count) if !more => ends(End::Wrong(Wrong::Nowhere(count)), wrong),
            Ok(count) => match place(behind[0], count, *area, *len) {
                Err(what) => ends(End::Wrong(what), wrong),
                Ok(at) if *wrong => events.push_back(Arrival::Unwanted { at, len: count }),
                Ok(at) => match left.map(|left| left.checked_sub(count)) {
                    Some(None) => {
                        ends(End::Wrong(Wrong::TooMany(count)), wrong);
                        events.push_back(Arrival::Unwanted { at, len: count });
                    }
                    now => {
                        *left = now.flatten();
                        events.push_back(Arrival::Placed { token, at, len: count });
                    }
                },
            },
            Err(_) if more || result <= -ERRNOS => ends(End::Wrong(Wrong::Result(result)), wrong),
            Err(_) => {
                let end = match Errno::from_raw_os_error(-result) {
                    Errno::NOSPC | Errno::INTR | Errno::AGAIN => End::Again,
                    Errno::NOMEM => End::NoPage,
                    Errno::FAULT => End::Elsewhere,
                    Errno::CANCELED => End::Cancelled,
                    errno => End::Failed(errno),
                };
                ends(end, wrong);
            }
        }
        if !more {
            table.remove(Key(user_data));
        }
    }

    /// The same of bytes as they lie in the ring: none where there are not 32. For who plays the kernel.
    pub fn complete_bytes(&mut self, bytes: &[u8; 32]) {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        self.complete(word(0), half(8).cast_signed(), half(12), [word(16), word(24)]);
    }
}

/// Where a fragment lies in the memory.
fn place(off: u64, count: u32, area: u64, len: u64) -> Result<u64, Wrong> {
    if off & IORING_ZCRX_AREA_MASK != area & IORING_ZCRX_AREA_MASK {
        return Err(Wrong::Area(off));
    }
    let at = off & !IORING_ZCRX_AREA_MASK;
    match at.checked_add(count.into()) {
        Some(end) if end <= len => Ok(at),
        _ => Err(Wrong::Outside(at, count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MORE: u32 = 1 << 1;
    const LEN: u64 = 16 * 4096;
    const AREA: u64 = 2 << 48;

    struct World {
        requests: Requests,
        fd: Arc<OwnedFd>,
    }

    fn world() -> World {
        let fd: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        World { requests: Requests::new(LEN, AREA), fd: Arc::new(fd) }
    }

    impl World {
        fn begin(&mut self, token: u64, most: u32) -> u64 {
            self.requests.begin(&self.fd, token, most).0
        }

        /// What is said of one completion.
        fn told(&mut self, key: u64, result: i32, flags: u32, off: u64) -> Vec<Arrival> {
            self.requests.complete(key, result, flags, [off, 0]);
            std::iter::from_fn(|| self.requests.event()).collect()
        }
    }

    /// struct io_uring_cqe with IORING_SETUP_CQE32: user_data, res, flags (IORING_CQE_F_MORE), and behind it off and padding.
    #[cfg(target_endian = "little")]
    #[test]
    fn a_completion_is_read_as_the_uapi_has_it() {
        let mut world = world();
        let key = world.begin(7, 0);
        assert_eq!(key, 0);
        let golden = [
            0, 0, 0, 0, 0, 0, 0, 0, 0xa8, 5, 0, 0, 2, 0, 0, 0, // the receive's key, 1,448 bytes, more
            0x40, 0x20, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, // area 2, byte 0x2040
        ];
        world.requests.complete_bytes(&golden);
        assert_eq!(world.requests.event(), Some(Arrival::Placed { token: 7, at: 0x2040, len: 1448 }));
        let mut end = [0; 32];
        end[8..12].copy_from_slice(&(-12_i32).to_ne_bytes());
        world.requests.complete_bytes(&end);
        assert_eq!(world.requests.event(), Some(Arrival::Ended { token: 7, end: End::NoPage }));
        assert!(world.requests.is_empty() && world.requests.event().is_none());
        world.requests.complete_bytes(&end);
        assert_eq!((world.requests.event(), world.requests.strays()), (None, 1));
    }

    #[test]
    fn the_end_is_told_from_as_many_bytes_as_were_asked_for() {
        let mut world = world();
        let key = world.begin(1, 100);
        let placed = |at, len| Arrival::Placed { token: 1, at, len };
        let ended = |end| vec![Arrival::Ended { token: 1, end }];
        assert_eq!(world.told(key, 60, MORE, AREA), [placed(0, 60)]);
        assert_eq!(world.told(key, 40, MORE, AREA + LEN - 40), [placed(LEN - 40, 40)]);
        assert_eq!(world.told(key, 0, 0, 0), ended(End::Limit));
        let key = world.begin(1, 100);
        assert_eq!(world.told(key, 99, MORE, AREA), [placed(0, 99)]);
        assert_eq!(world.told(key, 0, 0, 0), ended(End::Stream));
        let key = world.begin(1, 0);
        assert_eq!(world.told(key, i32::from(u16::MAX), MORE, AREA), [placed(0, 65535)]);
        assert_eq!(world.told(key, 0, 0, 0), ended(End::Stream));
        for (errno, end) in [
            (28, End::Again),
            (11, End::Again),
            (4, End::Again),
            (12, End::NoPage),
            (14, End::Elsewhere),
            (125, End::Cancelled),
            (104, End::Failed(Errno::CONNRESET)),
        ] {
            let key = world.begin(1, 10);
            assert_eq!(world.told(key, -errno, 0, u64::MAX), ended(end));
            assert!(world.requests.is_empty());
        }
    }

    #[test]
    fn what_cannot_be_ends_a_receive_and_what_else_comes_of_it_goes_back() {
        let mut world = world();
        for (result, flags, off, what) in [
            (0, MORE, AREA, Wrong::Empty),
            (1, MORE, 0, Wrong::Area(0)),
            (1, MORE, AREA + (1 << 48), Wrong::Area(AREA + (1 << 48))),
            (1, MORE, u64::MAX, Wrong::Area(u64::MAX)),
            (1, MORE, AREA + LEN, Wrong::Outside(LEN, 1)),
            (2, MORE, AREA + LEN - 1, Wrong::Outside(LEN - 1, 2)),
            (i32::MAX, MORE, AREA, Wrong::Outside(0, i32::MAX as u32)),
            (1, 0, AREA, Wrong::Nowhere(1)),
            (i32::MIN, MORE, AREA, Wrong::Result(i32::MIN)),
            (-12, MORE, AREA, Wrong::Result(-12)),
            (-4096, 0, AREA, Wrong::Result(-4096)),
        ] {
            let key = world.begin(1, 1000);
            let wrong = Arrival::Ended { token: 1, end: End::Wrong(what) };
            assert_eq!(world.told(key, result, flags, off), [wrong]);
            if flags == MORE {
                // The kernel's last word comes yet, and is told once; asked for once, too.
                assert!(!world.requests.is_empty());
                assert_eq!(world.requests.to_cancel().map(Key::user_data), Some(key));
                assert_eq!(world.told(key, result, flags, off), []);
                let back = Arrival::Unwanted { at: 5, len: 3 };
                assert_eq!(world.told(key, 3, MORE, AREA + 5), [back]);
                assert_eq!(world.requests.to_cancel(), None);
                assert_eq!(world.told(key, -125, 0, 0), []);
            }
            assert!(world.requests.is_empty() && world.requests.to_cancel().is_none());
        }
        // More than was asked for: in the memory, so it goes back.
        let key = world.begin(1, 10);
        let told = world.told(key, 11, MORE, AREA + 1);
        let wrong = Arrival::Ended { token: 1, end: End::Wrong(Wrong::TooMany(11)) };
        assert_eq!(told, [wrong, Arrival::Unwanted { at: 1, len: 11 }]);
        assert_eq!(world.told(key, i32::MIN, 0, 0), []);
        assert!(world.requests.is_empty());
        // That was its last word: there is nothing to cancel.
        assert_eq!(world.requests.to_cancel(), None);
    }

    #[test]
    fn whatever_it_says_fragments_are_in_the_memory_and_each_receive_ends_once() {
        // ZCRX_SEED repeats one; ZCRX_STEPS plays for longer.
        let given = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let seed = given("ZCRX_SEED").unwrap_or(0x9E37_79B9_7F4A_7C15_u64);
        eprintln!("ZCRX_SEED={seed}");
        let mut state = seed;
        let mut roll = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let mut world = world();
        let (mut live, mut past) = (Vec::new(), Vec::new());
        for n in 0..given("ZCRX_STEPS").unwrap_or(20_000) {
            if live.is_empty() || roll(8) == 0 {
                let most = roll(3) * roll(9000);
                live.push((n, world.begin(n, most as u32), most));
                past.push(live[live.len() - 1].1);
            }
            let pick = roll(live.len() as u64) as usize;
            let (token, key, most) = live[pick];
            let key = match roll(20) {
                0 => roll(1 << 33) << roll(30),
                // Of one that may be over, or have failed.
                1..4 => past[past.len() - 1 - roll(past.len().min(20) as u64) as usize],
                _ => key,
            };
            let result = [0, -(roll(140) as i32) << roll(30), roll(5000) as i32, roll(1 << 31) as i32]
                [roll(4) as usize];
            let off = [AREA, 0, AREA + LEN - roll(5000), roll(u64::MAX >> 33) << roll(40)][roll(4) as usize]
                + roll(5000);
            let flags = if roll(5) == 0 { 0 } else { MORE } | (roll(4) as u32) << 3;
            let told = match roll(20) {
                // Any bytes at all.
                0 => {
                    world.requests.complete_bytes(&std::array::from_fn(|_| roll(256) as u8));
                    std::iter::from_fn(|| world.requests.event()).collect()
                }
                _ => world.told(key, result, flags, off),
            };
            for arrival in told {
                match arrival {
                    Arrival::Placed { token: of, at, len } => {
                        assert!(len > 0 && at + u64::from(len) <= LEN);
                        let one = live.iter_mut().find(|(token, ..)| *token == of).unwrap();
                        assert!(one.2 == 0 || u64::from(len) <= one.2);
                    }
                    Arrival::Unwanted { at, len } => assert!(len > 0 && at + u64::from(len) <= LEN),
                    Arrival::Ended { token: of, .. } => {
                        let before = live.len();
                        live.retain(|(token, ..)| *token != of);
                        assert_eq!(live.len() + 1, before, "{token} {most}: it ends once");
                    }
                }
            }
        }
        assert!(world.requests.strays() > 0);
    }
}
