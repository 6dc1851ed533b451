//! Random programs, on a connection of two sockets of the kernel's over loopback, and on one of the kernel's and one of ours through the
//! TAP, in either place: each call has to say the same, and after each call both sides have to see the same, sooner or later.
//!
//! What is seen is what poll(2) says and how many bytes can be read. Nothing waits for a while: a side that does not see yet what it
//! should is waited for, until its next event, and fails after 20 seconds. `KERNEL_SEED` repeats a program, `KERNEL_CASES` plays more.

use crate::world::{Host, KERNEL, OURS, Setup, World, tool};
use onecopy_chain::Writer;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Error, Readiness, Received, SendFlags, Side};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, accept_with, bind, connect, listen, recv,
    send, shutdown, socket_with, sockopt,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Bytes of every buffer: set, so that no side's grows by itself.
const BUFFER: u32 = 200_000;
/// Bytes that are sent at most, either way: less than any buffer.
const MOST: u64 = 40_000;

/// Numbers from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

/// The sockets of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Connect,
    Accept,
    CloseListener,
    Send(Who, usize),
    Receive(Who, usize),
    Shutdown(Who, Side),
    Close(Who),
    /// SO_LINGER of zero, and close.
    Reset(Who),
    /// SO_ERROR.
    TakeError(Who),
}

fn program(seed: u64) -> Vec<Op> {
    let mut dice = Dice(seed);
    let mut ops = vec![Op::Connect];
    if dice.roll(4) > 0 {
        ops.push(Op::Accept);
    }
    let mut left = [MOST; 2];
    for _ in 0..3 + dice.roll(12) {
        let who = if dice.roll(2) == 0 { Who::Client } else { Who::Server };
        ops.push(match dice.roll(20) {
            0..7 => {
                let most = left[who as usize].min(if dice.roll(2) == 0 { 100 } else { 9000 });
                let len = dice.roll(most + 1);
                left[who as usize] -= len;
                Op::Send(who, len as usize)
            }
            7..9 => Op::Receive(who, 1 + dice.roll(50) as usize),
            9..12 => Op::Receive(who, 1 + dice.roll(50_000) as usize),
            12 => Op::Shutdown(who, Side::Read),
            13 | 14 => Op::Shutdown(who, Side::Write),
            15 => Op::Shutdown(who, Side::Both),
            16 => Op::Close(who),
            17 => Op::Reset(who),
            18 => Op::TakeError(who),
            _ if dice.roll(4) == 0 => Op::CloseListener,
            _ => Op::Accept,
        });
    }
    ops
}

/// What a call says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Done,
    Count(usize),
    Bytes(Vec<u8>),
    Errno(i32),
    /// There is no such socket, as the program knows.
    Nobody,
}

/// What can be seen of a socket: poll's bits, and bytes that can be read.
type Seen = Option<(u16, u64)>;

/// A socket of either kind. The calls are the kernel's, and say what the kernel's say.
trait Sockets {
    fn listen(&mut self, at: SocketAddr);
    fn connect(&mut self, to: SocketAddr) -> Said;
    fn accept(&mut self) -> Said;
    fn close_listener(&mut self) -> Said;
    fn send(&mut self, bytes: &[u8]) -> Said;
    fn receive(&mut self, max: usize) -> Said;
    fn shutdown(&mut self, side: Side) -> Said;
    fn close(&mut self, reset: bool) -> Said;
    fn take_error(&mut self) -> Said;
    fn seen(&mut self) -> [Seen; 2];
}

/// The kernel's. (A socket belongs to the namespace that it was made in: only that needs to be there.)
#[derive(Default)]
struct Theirs {
    listener: Option<OwnedFd>,
    socket: Option<OwnedFd>,
}

fn kernel_socket(world: &World) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = world
        .namespace
        .run(|| socket_with(AddressFamily::INET, SocketType::STREAM, flags, None))
        .unwrap()
        .unwrap();
    sockopt::set_socket_send_buffer_size(&socket, BUFFER as usize).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, BUFFER as usize).unwrap();
    sockopt::set_tcp_nodelay(&socket, true).unwrap();
    socket
}

fn said<T>(result: Result<T, Errno>, of: impl FnOnce(T) -> Said) -> Said {
    result.map_or_else(|error| Said::Errno(error.raw_os_error()), of)
}

fn look(socket: &OwnedFd) -> (u16, u64) {
    let all = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut fds = [PollFd::new(socket, all)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    // A listener has none.
    (fds[0].revents().bits(), ioctl_fionread(socket).unwrap_or(0))
}

impl Sockets for Theirs {
    fn listen(&mut self, at: SocketAddr) {
        let socket = self.socket.take().unwrap();
        bind(&socket, &at).unwrap();
        listen(&socket, 4).unwrap();
        self.listener = Some(socket);
    }

    fn connect(&mut self, to: SocketAddr) -> Said {
        said(connect(self.socket.as_ref().unwrap(), &to), |()| Said::Done)
    }

    fn accept(&mut self) -> Said {
        let Some(listener) = &self.listener else { return Said::Nobody };
        if self.socket.is_some() {
            return Said::Nobody;
        }
        said(accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK), |socket| {
            self.socket = Some(socket);
            Said::Done
        })
    }

    fn close_listener(&mut self) -> Said {
        self.listener.take().map_or(Said::Nobody, |_| Said::Done)
    }

    fn send(&mut self, bytes: &[u8]) -> Said {
        let Some(socket) = &self.socket else { return Said::Nobody };
        said(send(socket, bytes, rustix::net::SendFlags::NOSIGNAL), Said::Count)
    }

    fn receive(&mut self, max: usize) -> Said {
        let Some(socket) = &self.socket else { return Said::Nobody };
        let mut buffer = vec![0; max];
        said(recv(socket, &mut buffer[..], RecvFlags::empty()), |(_, n)| {
            buffer.truncate(n);
            Said::Bytes(buffer)
        })
    }

    fn shutdown(&mut self, side: Side) -> Said {
        let Some(socket) = &self.socket else { return Said::Nobody };
        let how = match side {
            Side::Read => Shutdown::Read,
            Side::Write => Shutdown::Write,
            Side::Both => Shutdown::Both,
        };
        said(shutdown(socket, how), |()| Said::Done)
    }

    fn close(&mut self, reset: bool) -> Said {
        let Some(socket) = self.socket.take() else { return Said::Nobody };
        if reset {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        }
        Said::Done
    }

    fn take_error(&mut self) -> Said {
        let Some(socket) = &self.socket else { return Said::Nobody };
        match sockopt::socket_error(socket).unwrap() {
            Ok(()) => Said::Done,
            Err(error) => Said::Errno(error.raw_os_error()),
        }
    }

    fn seen(&mut self) -> [Seen; 2] {
        [self.listener.as_ref().map(look), self.socket.as_ref().map(look)]
    }
}

/// Ours.
struct Ours<'a> {
    host: &'a mut Host,
    state: &'a mut Mine,
}

#[derive(Default)]
struct Mine {
    listener: Option<Id>,
    socket: Option<Id>,
}

impl Ours<'_> {
    fn say<T>(result: Result<T, Error>, of: impl FnOnce(T) -> Said) -> Said {
        result.map_or_else(|error| Said::Errno(error.errno()), of)
    }

    fn look(&self, id: Id) -> (u16, u64) {
        let ready = self.host.stack.tcp_readiness(id);
        let bits = [
            (Readiness::READ, PollFlags::IN),
            (Readiness::WRITE, PollFlags::OUT),
            (Readiness::PEER_CLOSED, PollFlags::RDHUP),
            (Readiness::HUNG_UP, PollFlags::HUP),
            (Readiness::ERROR, PollFlags::ERR),
        ];
        let bits = bits.into_iter().filter(|(ours, _)| ready.contains(*ours));
        let bits = bits.fold(PollFlags::empty(), |all, (_, theirs)| all | theirs);
        let connection = self.host.stack.tcp_connection(id);
        (bits.bits(), connection.map_or(0, |connection| connection.receiver().available()))
    }
}

impl Sockets for Ours<'_> {
    fn listen(&mut self, at: SocketAddr) {
        let id = self.state.socket.take().unwrap();
        self.host.stack.tcp_bind(id, at, false).unwrap();
        self.host.stack.tcp_listen(id, 4).unwrap();
        self.state.listener = Some(id);
    }

    fn connect(&mut self, to: SocketAddr) -> Said {
        let result = self.host.stack.tcp_connect(self.host.now, self.state.socket.unwrap(), to);
        Ours::say(result, |()| Said::Done)
    }

    fn accept(&mut self) -> Said {
        let Some(listener) = self.state.listener else { return Said::Nobody };
        if self.state.socket.is_some() {
            return Said::Nobody;
        }
        Ours::say(self.host.stack.tcp_accept(listener), |(id, _)| {
            self.state.socket = Some(id);
            Said::Done
        })
    }

    fn close_listener(&mut self) -> Said {
        let Some(id) = self.state.listener.take() else { return Said::Nobody };
        self.host.stack.tcp_close(self.host.now, id);
        Said::Done
    }

    fn send(&mut self, bytes: &[u8]) -> Said {
        let Some(id) = self.state.socket else { return Said::Nobody };
        let (now, writer) = (self.host.now, Writer::new(&self.host.pool));
        let sent = self.host.stack.tcp_send_bytes(now, id, bytes, &writer, SendFlags::empty());
        Ours::say(sent, Said::Count)
    }

    fn receive(&mut self, max: usize) -> Said {
        let Some(id) = self.state.socket else { return Said::Nobody };
        let mut all = Vec::new();
        loop {
            match self.host.stack.tcp_receive(self.host.now, id, max - all.len()) {
                Ok(Received::Data(data)) => {
                    data.payload().host().unwrap().slices().for_each(|slice| all.extend_from_slice(slice));
                }
                Ok(Received::End) => return Said::Bytes(all),
                Err(error) => return Said::Errno(error.errno()),
            }
            let more = self.host.stack.tcp_connection(id).is_some_and(|of| of.receiver().available() > 0);
            if all.len() == max || !more {
                return Said::Bytes(all);
            }
        }
    }

    fn shutdown(&mut self, side: Side) -> Said {
        let Some(id) = self.state.socket else { return Said::Nobody };
        Ours::say(self.host.stack.tcp_shutdown(self.host.now, id, side), |()| Said::Done)
    }

    fn close(&mut self, reset: bool) -> Said {
        let Some(id) = self.state.socket.take() else { return Said::Nobody };
        let now = self.host.now;
        if reset {
            self.host.stack.tcp_set(now, id, |settings| settings.linger = Some(Duration::ZERO)).unwrap();
        }
        self.host.stack.tcp_close(now, id);
        Said::Done
    }

    fn take_error(&mut self) -> Said {
        let Some(id) = self.state.socket else { return Said::Nobody };
        self.host.stack.tcp_take_error(id).map_or(Said::Done, |error| Said::Errno(error.errno()))
    }

    fn seen(&mut self) -> [Seen; 2] {
        [self.state.listener, self.state.socket].map(|id| id.map(|id| self.look(id)))
    }
}

/// Bytes that a program sends: it tells from which of them one is, and where it stands.
fn bytes(who: Who, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (at * 7 + at / 251 + who as usize * 101) as u8).collect()
}

/// Which of a program's sockets are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    Neither,
    Client,
    Server,
}

/// What was said and seen, call by call.
type Log = Vec<(Op, Said, [[Seen; 2]; 2])>;

/// A run of a program.
struct Run<'a> {
    world: &'a mut World,
    mix: Mix,
    theirs: [Theirs; 2],
    mine: Mine,
    at: SocketAddr,
    sent: [usize; 2],
}

impl<'a> Run<'a> {
    fn new(world: &'a mut World, mix: Mix, port: u16) -> Run<'a> {
        let address = match mix {
            Mix::Neither => Ipv4Addr::LOCALHOST,
            Mix::Client => KERNEL,
            Mix::Server => OURS,
        };
        let at = SocketAddr::new(address.into(), port);
        let mut run = Run { world, mix, theirs: Default::default(), mine: Mine::default(), at, sent: [0; 2] };
        for who in [Who::Client, Who::Server] {
            if run.is_ours(who) {
                let host = &mut run.world.host;
                let id = host.stack.tcp_open().unwrap();
                // As the kernel doubles what is set, and says.
                let change = |settings: &mut onecopy_inet::tcp::Settings| {
                    settings.send_buffer = Some(2 * BUFFER);
                    settings.receive_buffer = Some(2 * BUFFER);
                    settings.nodelay = true;
                };
                host.stack.tcp_set(host.now, id, change).unwrap();
                run.mine.socket = Some(id);
            } else {
                run.theirs[who as usize].socket = Some(kernel_socket(run.world));
            }
        }
        run.on(Who::Server, |socket| socket.listen(at));
        run
    }

    fn is_ours(&self, who: Who) -> bool {
        matches!((self.mix, who), (Mix::Client, Who::Client) | (Mix::Server, Who::Server))
    }

    fn on<R>(&mut self, who: Who, act: impl FnOnce(&mut dyn Sockets) -> R) -> R {
        if self.is_ours(who) {
            act(&mut Ours { host: &mut self.world.host, state: &mut self.mine })
        } else {
            act(&mut self.theirs[who as usize])
        }
    }

    fn act(&mut self, op: Op) -> Said {
        let at = self.at;
        match op {
            Op::Connect => self.on(Who::Client, |socket| socket.connect(at)),
            Op::Accept => self.on(Who::Server, |socket| socket.accept()),
            Op::CloseListener => self.on(Who::Server, |socket| socket.close_listener()),
            Op::Send(who, len) => {
                let bytes = bytes(who, self.sent[who as usize], len);
                let said = self.on(who, |socket| socket.send(&bytes));
                if let Said::Count(n) = said {
                    self.sent[who as usize] += n;
                }
                said
            }
            Op::Receive(who, max) => self.on(who, |socket| socket.receive(max)),
            Op::Shutdown(who, side) => self.on(who, |socket| socket.shutdown(side)),
            Op::Close(who) => self.on(who, |socket| socket.close(false)),
            Op::Reset(who) => self.on(who, |socket| socket.close(true)),
            Op::TakeError(who) => self.on(who, |socket| socket.take_error()),
        }
    }

    fn seen(&mut self) -> [[Seen; 2]; 2] {
        [Who::Client, Who::Server].map(|who| self.on(who, |socket| socket.seen()))
    }

    /// Waits until all that is under way between the kernel's own sockets has arrived: nothing is in their queues of what was sent.
    fn kernel_settles(&mut self) {
        let port = format!(":{:04X}", self.at.port());
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let read = || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
            let table = self.world.namespace.run(read).unwrap();
            let under_way = table.lines().skip(1).any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let (local, remote, state) = (words.next(), words.next(), words.next());
                let ours = [local, remote].into_iter().flatten().any(|address| address.ends_with(&port));
                let queued = words.next().is_some_and(|queues| !queues.starts_with("00000000:"));
                // 02 and 03: SYN_SENT and SYN_RECV; 0A: LISTEN, whose queue is another one.
                ours && state != Some("0A") && (queued || matches!(state, Some("02" | "03")))
            });
            if !under_way {
                return;
            }
            assert!(Instant::now() < limit, "the kernel does not come to rest:\n{table}");
            std::thread::yield_now();
        }
    }

    /// What the kernel does.
    fn told(mut self, ops: &[Op]) -> Log {
        let mut log = Vec::new();
        for op in ops {
            let said = self.act(*op);
            self.kernel_settles();
            log.push((*op, said, self.seen()));
        }
        log
    }

    /// Does what the kernel did, and compares.
    fn compare(mut self, seed: u64, log: &Log) {
        let place = |number: usize| {
            let before: Vec<_> = log[..=number].iter().map(|step| format!("{step:?}")).collect();
            format!("KERNEL_SEED={seed}, {:?} is ours, the kernel alone:\n{}\n", self.mix, before.join("\n"))
        };
        let told: Vec<_> = (0..log.len()).map(place).collect();
        for ((op, expected, seen), told) in log.iter().zip(told) {
            self.world.settle();
            let said = self.act(*op);
            assert_eq!(said, *expected, "{op:?} {told}");
            let limit = Instant::now() + Duration::from_secs(20);
            loop {
                self.world.settle();
                let now = self.seen();
                if now == *seen {
                    break;
                }
                if Instant::now() > limit {
                    self.world.report();
                    panic!("{op:?}: seen is {now:?}\n{told}");
                }
                self.world.pause();
            }
        }
        self.act(Op::Close(Who::Client));
        self.act(Op::Close(Who::Server));
        self.act(Op::CloseListener);
        self.world.settle();
    }
}

#[test]
fn random_programs_see_what_they_see_of_the_kernel() {
    let Some(mut world) = World::new(Setup::all(1500)) else { return };
    if !tool(&world.namespace, "ip link set lo up") {
        return println!("lacking: a loopback interface that can be set up");
    }
    let env = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let cases: u64 = env("KERNEL_CASES").unwrap_or(60);
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    let (first, cases) = match env("KERNEL_SEED") {
        Some(seed) => (seed, 1),
        None => (now >> 8 & 0xffff_ffff, cases),
    };
    eprintln!("from KERNEL_SEED={first} on");
    let mut port = 2000;
    let mut next = || {
        port = if port == 30_000 { 2000 } else { port + 1 };
        port
    };
    for seed in first..first + cases {
        let ops = program(seed);
        // The machine may be busy, and the kernel's own packets a little late: what counts is what happens twice.
        let mut log = Run::new(&mut world, Mix::Neither, next()).told(&ops);
        let mut tries = 0;
        loop {
            let again = Run::new(&mut world, Mix::Neither, next()).told(&ops);
            if again == log {
                break;
            }
            (log, tries) = (again, tries + 1);
            assert!(tries < 10, "KERNEL_SEED={seed}: the kernel does something else each time: {log:?}");
        }
        for mix in [Mix::Client, Mix::Server] {
            Run::new(&mut world, mix, next()).compare(seed, &log);
        }
    }
    world.finish();
}
