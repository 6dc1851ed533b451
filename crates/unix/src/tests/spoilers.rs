//! Hostile members. A process may share an end since a fork, or since it was given the end. Or it passed one
//! on and kept copies of its descriptors. It does anything at all to the page, the rings, the control socket
//! and the channels of the end, while the others go on. At most this costs them the connection, and no
//! process is kept waiting without end.

use super::sharing::Stranger;
use super::{Random, Wire, alone, pair, send, small, wild};
use crate::connection::Connection;
use crate::{Config, Records, RecvFlags, Result, SendFlags, SeqPacket, Stream};
use onecopy_ring::Ring;
use onecopy_ring::page::SidePage;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::fork::{Ended, child};
use onecopy_sys::scm;
use onecopy_testing::slept;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io::IoSlice;
use std::time::{Duration, Instant};

const SEND: SendFlags = SendFlags::DONTWAIT;
const RECV: RecvFlags = RecvFlags::DONTWAIT;
/// No call that does not wait sleeps for longer than this: it would wait for another process then.
const BOUND: Duration = Duration::from_secs(5);

/// Returns the seeds of each test's rounds. SPOILERS_ROUNDS=20000, for example, makes more of them.
fn seeds(from: u64) -> std::ops::Range<u64> {
    let rounds = std::env::var("SPOILERS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    from..from + rounds.unwrap_or(200)
}

/// Overwrites one word of one direction. `friend` is a member that lives and never lets go.
fn spoil_side(page: &SidePage, random: &mut Random, friend: u32) {
    match random.below(16) {
        0 => {
            page.lock.spoil([friend, friend | 1 << 31, random.next() as u32, 1, u32::MAX, 0][random.below(6)])
        }
        1 => page.state.spoil(wild(random, page.state.last())),
        2 => page.doing.store([1, 2, 2 | wild(random, 0) << 8, random.next()][random.below(4)], Relaxed),
        _ => {
            let (_, mut words) = page.state.load();
            for _ in 0..1 + random.below(2) {
                // Most of these words have a meaning.
                let at = [random.below(18), random.below(words.len())][random.below(2)];
                words[at] = wild(random, words[at]);
            }
            page.state.save(&words);
        }
    }
}

fn spoil_ring(ring: &Ring, random: &mut Random) {
    let header = ring.header();
    let (writer, reader, info) = (&header.writer.0, &header.reader.0, &header.info.0);
    match random.below(11) {
        0 => writer.head.store(wild(random, writer.head.load(Relaxed)), Relaxed),
        1 => reader.tail.store(wild(random, reader.tail.load(Relaxed)), Relaxed),
        2 => writer.marks.store(wild(random, writer.marks.load(Relaxed)), Relaxed),
        3 => writer.armed.store(wild(random, 0) as u32, Relaxed),
        4 => reader.parked.store(random.below(4) as u32, Relaxed),
        5 => reader.filler.store(wild(random, 0) as u32, Relaxed),
        6 => reader.wanted.store(wild(random, 0), Relaxed),
        7 => info.shut.store(random.below(4) as u32, Relaxed),
        8 => info.asks_identity.store(random.next() as u32, Relaxed),
        9 => info.renamed.store(random.below(2) as u32, Relaxed),
        _ => ring.set_word(random.below(ring.capacity() / 8) * 8, wild(random, 0)),
    }
}

/// Overwrites one word that the members of `end` share.
fn spoil(end: &Connection, random: &mut Random, friend: u32) {
    let Some(sharing) = end.others().sharing() else { return };
    let words = sharing.words();
    match random.below(12) {
        0..4 => spoil_side(&words.rx.0, random, friend),
        4..8 => spoil_side(&words.tx.0, random, friend),
        8 => words.about.0.turned_away.store(random.next() as u32, Relaxed),
        9 => match random.below(3) {
            0 => words.members.0.leave(friend),
            1 => words.members.0.leave(sharing.me()),
            _ => words.members.0.enter(random.next() as u32, |other| other & 4 != 0),
        },
        10 => {
            if let Some(ring) = end.rx_ring() {
                spoil_ring(ring, random);
            }
        }
        _ => {
            if let Some(ring) = end.tx_ring() {
                spoil_ring(ring, random);
            }
        }
    }
}

fn is_told<T>(seed: u64, call: impl FnOnce() -> Result<T>) {
    let (done, asleep) = slept(call);
    assert!(asleep < BOUND, "seed {seed}: a call that does not wait slept for {asleep:?}");
    let known = [
        Errno::PROTO,
        Errno::AGAIN,
        Errno::PIPE,
        Errno::CONNRESET,
        Errno::BUSY,
        Errno::MSGSIZE,
        Errno::OWNERDEAD,
    ];
    if let Err(error) = done {
        assert!(known.map(Errno::raw_os_error).contains(&error.raw_os_error()), "seed {seed}: {error}");
    }
}

/// A call on either end of a connection.
trait Calls: Sized {
    fn call(&self, peer: &Self, random: &mut Random) -> Result<usize>;
    fn end(&self) -> &Connection;
    fn fds(self) -> Result<Vec<OwnedFd>>;
    fn of(fds: Vec<OwnedFd>) -> Result<Self>;
}

impl Calls for Stream {
    fn call(&self, peer: &Stream, random: &mut Random) -> Result<usize> {
        let (mut buffer, n) = ([1; 3000], random.below(3000));
        match random.below(10) {
            0 => self.send_with_flags(&buffer[..n], SEND),
            1 => self.recv_with_flags(&mut buffer[..n], RECV),
            2 => self.recv_with_flags(&mut buffer[..n], RECV | RecvFlags::PEEK),
            3 => self.recv_borrowed_with_flags(n, RECV).map(|view| view.copy_to(&mut [0; 100])),
            4 => self.readable_bytes(),
            5 => self.send_fds_with_flags(&buffer[..9], &[peer.as_fd()], SEND),
            6 => self.recv_fds_with_flags(&mut buffer[..n], RECV).map(|(n, _)| n),
            7 => self.reserve_with_flags(n, SEND).and_then(|mut slot| {
                slot.copy_from(&buffer[..n]);
                slot.commit()
            }),
            8 => peer.send_with_flags(&buffer[..n], SEND),
            _ => peer.recv_with_flags(&mut buffer[..n], RECV),
        }
    }

    fn end(&self) -> &Connection {
        Stream::end(self)
    }

    fn fds(self) -> Result<Vec<OwnedFd>> {
        self.into_fds().map_err(|refused| refused.error)
    }

    fn of(fds: Vec<OwnedFd>) -> Result<Stream> {
        Stream::from_fds(fds)
    }
}

impl Calls for SeqPacket {
    fn call(&self, peer: &SeqPacket, random: &mut Random) -> Result<usize> {
        let (mut buffer, n) = ([1; 3000], random.below(1900));
        let flags = if random.below(2) == 0 { SEND } else { SEND | SendFlags::EOR };
        match random.below(9) {
            0 => self.send_with_flags(&buffer[..n], flags),
            1 => self.recv_with_flags(&mut buffer[..n], RECV),
            2 => self.recv_with_flags(&mut buffer[..n], RECV | RecvFlags::PEEK),
            3 => self.recv_borrowed_with_flags(n, RECV).map(|(view, _)| view.copy_to(&mut [0; 100])),
            4 => self.readable_bytes(),
            5 => self.send_fds_with_flags(&buffer[..9], &[peer.as_fd()], flags),
            6 => self.recv_fds_with_flags(&mut buffer[..n], RECV).map(|(got, _)| got.len),
            7 => peer.send_with_flags(&buffer[..n], flags),
            _ => peer.recv_with_flags(&mut buffer[..n], RECV),
        }
    }

    fn end(&self) -> &Connection {
        SeqPacket::end(self)
    }

    fn fds(self) -> Result<Vec<OwnedFd>> {
        self.into_fds().map_err(|refused| refused.error)
    }

    fn of(fds: Vec<OwnedFd>) -> Result<SeqPacket> {
        SeqPacket::from_fds(fds)
    }
}

/// Runs rounds of calls, between which words are spoiled. Returns how many connections were lost.
fn rounds<S: Calls>(seeds: std::ops::Range<u64>, make: impl Fn(&mut Random) -> (S, S)) -> usize {
    let mut lost = 0;
    for seed in seeds {
        let random = &mut Random::new(seed);
        let (a, b) = make(random);
        let bystander = pair(&small());
        let wire = Wire::new();
        let keeper = child(|| {
            let Some(sharing) = a.end().others().sharing() else { return 1 };
            wire.tell(u64::from(sharing.me()));
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let keeper = keeper.unwrap();
        let friend = wire.hear() as u32;
        for _ in 0..12 {
            is_told(seed, || a.call(&b, random));
            if random.below(3) == 0 {
                spoil(a.end(), random, friend);
            }
        }
        lost += usize::from(a.end().counters().read().protocol_errors > 0);
        assert!(slept(|| drop((a, b))).1 < BOUND, "seed {seed}");
        // Other connections, which the same processes share, are not affected.
        send(&bystander.0, &[seed as u8; 100]);
        assert_eq!(bystander.1.recv_with_flags(&mut [0; 200], RECV).unwrap(), 100, "seed {seed}");
        assert_eq!(bystander.1.stats().protocol_errors, 0);
        drop(keeper);
    }
    lost
}

#[test]
fn who_spoils_a_shared_stream_loses_it_and_nothing_else() {
    alone!();
    let lost = rounds(seeds(0), |_| Stream::pair_with(&small()).unwrap());
    assert!(lost * 10 > seeds(0).count(), "{lost}");
}

#[test]
fn who_spoils_shared_records_loses_them_and_nothing_else() {
    alone!();
    let lost = rounds(seeds(1 << 32), |random| {
        let records = [Records::Atomic, Records::Stream][random.below(2)];
        SeqPacket::pair_with(&Config { records, ..small() }).unwrap()
    });
    assert!(lost * 10 > seeds(0).count(), "{lost}");
}

/// Two threads make all kinds of calls, mostly on `a`, while another process spoils it. `shares` says whether
/// they also share it again.
fn use_for_a_while(a: &Stream, b: &Stream, seed: u64, shares: bool) {
    let until = Instant::now() + Duration::from_millis(150);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let random = &mut Random::new(seed * 2 + thread);
                while Instant::now() < until {
                    is_told(seed, || a.call(b, random));
                    let mut buffer = [2; 3000];
                    let n = random.below(3000);
                    is_told(seed, || match random.below(5) {
                        0 => a.send(&buffer[..n]),
                        1 => a.recv(&mut buffer[..n]),
                        2 if shares => a.share_fds().map(|fds| fds.len()).or(Ok(0)),
                        _ => Ok(0),
                    });
                }
            });
        }
    });
}

/// Here a process that does nothing else spoils the stream, at any moment.
#[test]
fn who_spoils_a_stream_while_others_use_it_stops_nobody() {
    alone!();
    for seed in 0..12 {
        let (a, b) = pair(&small());
        let bystander = pair(&small());
        for end in [&a, &b] {
            end.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            end.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        }
        let spoiler = child(|| {
            let random = &mut Random::new(seed);
            let friend = a.end().others().sharing().map_or(1, |sharing| sharing.me());
            loop {
                spoil(a.end(), random, friend);
                if seed % 2 == 0 {
                    std::thread::sleep(Duration::from_micros(random.next() % 300));
                }
            }
        });
        let spoiler = spoiler.unwrap();
        use_for_a_while(&a, &b, seed, false);
        drop(spoiler);
        assert!(slept(|| drop((a, b))).1 < BOUND, "seed {seed}");
        send(&bystander.0, &[1; 100]);
        assert_eq!(bystander.1.recv_with_flags(&mut [0; 200], RECV).unwrap(), 100);
    }
}

/// A member received part of a page, and another member then says that another mark is next. The rest of the
/// page is not received.
#[test]
fn who_moves_a_half_received_page_aside_gets_no_more_than_a_lie() {
    alone!();
    let (a, b) = pair(&Config { max_shared: 1 << 20, ..Config::default() });
    let pool = crate::SharedPool::new(4096, 4).unwrap();
    for _ in 0..2 {
        a.send_loan(pool.loan(100).unwrap()).unwrap();
    }
    let keeper = child(|| {
        std::thread::sleep(Duration::from_secs(60));
        0
    });
    let keeper = keeper.unwrap();
    assert_eq!(b.recv_with_flags(&mut [0; 50], RECV).unwrap(), 50);
    // READ, MARKS and AFTER: the second reference is next, and only a byte of its mark is published.
    let sharing = b.end().others().sharing().unwrap();
    let state = &sharing.words().rx.0.state;
    let (_, mut words) = state.load();
    let ring = b.end().rx_ring().unwrap();
    let stride = onecopy_ring::marks::stride(ring.capacity()) as u64;
    assert_eq!(&words[2..5], [stride, 1, stride], "behind the mark of the pool");
    words[2..5].copy_from_slice(&[2 * stride, 2, 2 * stride]);
    state.save(&words);
    ring.header().writer.0.head.store(2 * stride + 1, Relaxed);
    assert_eq!(
        b.recv_with_flags(&mut [0; 50], RECV).unwrap_err().raw_os_error(),
        Errno::PROTO.raw_os_error()
    );
    drop(keeper);
}

/// Does what any process with a descriptor of a socket may do: takes bytes, puts some there, changes
/// settings.
fn meddle(socket: BorrowedFd<'_>, random: &mut Random) {
    use rustix::net::{self, recv, sockopt};
    let quiet = net::SendFlags::NOSIGNAL | net::SendFlags::DONTWAIT;
    let n = 1 + random.below(9000);
    let mut junk = vec![random.next() as u8; n];
    match random.below(12) {
        0..4 => {
            let _ = recv(socket, &mut junk[..1], net::RecvFlags::DONTWAIT);
        }
        4 => {
            let _ = recv(socket, &mut junk, net::RecvFlags::DONTWAIT);
        }
        5 => {
            let _ = net::send(socket, &junk[..1], quiet);
        }
        6 => {
            let _ = net::send(socket, &junk[..n.min(20)], quiet);
        }
        7 => {
            let _ = net::send(socket, &junk, quiet);
        }
        8 => {
            let number = &junk[..8.min(n)];
            let fds = [socket, socket];
            let _ = scm::send(socket, &[IoSlice::new(number)], &fds[..1 + random.below(2)], None, quiet);
        }
        9 => {
            let limit = [None, Some(Duration::from_millis(1))][random.below(2)];
            let _ = sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, limit);
        }
        10 => {
            let _ = sockopt::set_socket_send_buffer_size(socket, random.below(1 << 16));
        }
        _ => {
            let _ = rustix::io::ioctl_fionbio(socket, random.below(2) == 0);
        }
    }
}

/// Copies of an end that was passed on: the control socket, the page, the rings and the ends of the channels,
/// as far as they exist.
struct Copies {
    sockets: Vec<OwnedFd>,
    rings: Vec<Ring>,
    memfds: Vec<OwnedFd>,
}

impl Copies {
    fn of(fds: &[OwnedFd]) -> Copies {
        let mut copies = Copies { sockets: Vec::new(), rings: Vec::new(), memfds: Vec::new() };
        for fd in fds {
            let copy = fd.try_clone().unwrap();
            if rustix::net::sockopt::socket_type(fd).is_ok() {
                copies.sockets.push(copy);
                continue;
            }
            let size = rustix::fs::fstat(fd).unwrap().st_size as usize;
            let ring = size.checked_sub(onecopy_ring::header::HEADER_LEN).map(|len| Ring::open(fd, len));
            copies.rings.extend(ring.and_then(|ring| ring.ok()));
            copies.memfds.push(copy);
        }
        copies
    }

    fn act(&self, random: &mut Random) {
        use rustix::fs::{FallocateFlags, fallocate};
        match random.below(8) {
            0..4 => meddle(self.sockets[random.below(self.sockets.len())].as_fd(), random),
            4..7 if !self.rings.is_empty() => spoil_ring(&self.rings[random.below(self.rings.len())], random),
            _ => {
                let memfd = &self.memfds[random.below(self.memfds.len())];
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                if random.below(4) == 0 {
                    let _ = fallocate(memfd, hole, 0, 1 << 20);
                }
                let word = wild(random, 0).to_ne_bytes();
                let _ = rustix::io::pwrite(memfd, &word, random.below(512) as u64 * 8);
            }
        }
    }
}

/// Runs rounds in which a process has passed an end on, kept a copy of everything, and uses it. Does so in a
/// process of its own, whose descriptors no other thread opens and closes. Returns how that process ended.
fn kept<S: Calls>(seeds: std::ops::Range<u64>, make: impl Fn(&mut Random) -> (S, S)) -> Ended {
    let rounds = || {
        let mut lost = 0;
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let bystander = pair(&small());
        let before = open();
        let from = seeds.start;
        for seed in seeds.clone() {
            let random = &mut Random::new(seed);
            let (a, b) = make(random);
            for _ in 0..random.below(8) {
                is_told(seed, || a.call(&b, random));
            }
            // This test is not about ends that cannot be passed on now.
            let Ok(fds) = a.fds() else { continue };
            let copies = Copies::of(&fds);
            let a = S::of(fds).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            for _ in 0..16 {
                if random.below(2) == 0 {
                    copies.act(random);
                }
                is_told(seed, || a.call(&b, random));
            }
            lost += usize::from(a.end().counters().read().protocol_errors > 0);
            let ((), asleep) = slept(|| {
                drop(a);
                // The end lives on only in the copies.
                copies.act(random);
                drop((copies, b));
            });
            assert!(asleep < BOUND, "seed {seed}");
            send(&bystander.0, &[seed as u8; 100]);
            assert_eq!(bystander.1.recv_with_flags(&mut [0; 200], RECV).unwrap(), 100, "seed {seed}");
            assert_eq!(bystander.1.stats().protocol_errors, 0);
        }
        assert_eq!(open(), before, "descriptors leak");
        assert!(lost * 10 > (seeds.end - from) as usize, "it is to find some: {lost}");
        0
    };
    child(rounds).unwrap().wait()
}

#[test]
fn who_passes_a_stream_on_and_keeps_its_descriptors_breaks_it_and_nothing_else() {
    alone!();
    let config = Config { passable: true, ..small() };
    assert_eq!(kept(seeds(2 << 32), |_| Stream::pair_with(&config).unwrap()), Ended::Returned(0));
}

#[test]
fn who_passes_records_on_and_keeps_their_descriptors_breaks_them_and_nothing_else() {
    alone!();
    let make = |random: &mut Random| {
        let records = [Records::Atomic, Records::Stream][random.below(2)];
        SeqPacket::pair_with(&Config { records, passable: true, ..small() }).unwrap()
    };
    assert_eq!(kept(seeds(3 << 32), make), Ended::Returned(0));
}

/// A process that was given an end does all of this at once: as a member, and with the end's descriptors.
#[test]
fn a_stranger_who_spoils_what_he_was_given_stops_nobody() {
    alone!();
    for seed in 0..12 {
        let stranger = Stranger::new(|line| {
            let random = &mut Random::new(seed);
            let a = Stream::from_fds(line.take()).unwrap();
            let friend = a.end().others().sharing().map_or(1, |sharing| sharing.me());
            line.give(vec![]);
            loop {
                spoil(a.end(), random, friend);
                if random.below(20) == 0 {
                    meddle(a.end().fd(), random);
                }
                if random.below(10) == 0 {
                    let _ = a.recv_fds_with_flags(&mut [0; 100], RECV);
                }
                if seed % 2 == 0 {
                    std::thread::sleep(Duration::from_micros(random.next() % 300));
                }
            }
        });
        let (a, b) = pair(&Config { passable: true, ..small() });
        let (bystander, its_peer) = pair(&small());
        a.send_fds_with_flags(b"x", &[b.as_fd()], SEND).unwrap();
        b.send_fds_with_flags(b"x", &[b.as_fd()], SEND).unwrap();
        for end in [&a, &b] {
            end.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            end.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        }
        stranger.line.give(a.share_fds().unwrap());
        stranger.line.take();
        use_for_a_while(&a, &b, seed, true);
        drop(stranger.child);
        assert!(slept(|| drop((a, b))).1 < BOUND, "seed {seed}");
        send(&bystander, &[1; 100]);
        assert_eq!(its_peer.recv_with_flags(&mut [0; 200], RECV).unwrap(), 100);
        assert_eq!(its_peer.stats().protocol_errors, 0);
    }
}
