//! Sockets under a program, what is known to lie between them, and whether what poll says of them is true.

mod calls;

use std::io;
use std::sync::Mutex;

use onecopy::unix::{SharedPool, View};
use onecopy_conformance::tools::{self, Epoll, errno};
use rustix::event::epoll::EventFlags;

use crate::Way;
use crate::held::{Got, Held, Listener, Made};
use crate::model::{Flow, Sent, Sort};
use crate::others::Other;
use crate::program::{Call, Program};

/// Most bytes of a send or a receive.
const MOST: usize = 4 << 20;
/// Longest of kernel queues of datagrams: net.unix.max_dgram_qlen, as Linux has it.
const QUEUE: usize = 10;

/// One socket, in this process.
#[derive(Default)]
struct Socket {
    held: Option<Held>,
    /// It was ever there.
    made: bool,
    shut_read: bool,
    shut_write: bool,
    epoll: Option<Epoll>,
    views: Vec<(u64, View)>,
    pool: Option<SharedPool>,
    /// Whom it sends to.
    to: Option<usize>,
    /// What it has sent.
    flow: Flow,
}

/// All of them.
pub struct World {
    sort: Sort,
    made: [Made; 2],
    listener: Option<Listener>,
    sockets: Vec<Socket>,
    others: Vec<Other>,
    stranger: Option<Other>,
    /// Whoever sends says who it is, so there are marks.
    credentials: bool,
    numbers: u64,
    /// From who is readable only since views keep a sender from going on.
    looks_away: bool,
}

/// What was found.
type Found<T> = Result<T, String>;

fn name() -> String {
    static COUNT: Mutex<u64> = Mutex::new(0);
    let mut n = COUNT.lock().unwrap_or_else(|e| e.into_inner());
    *n += 1;
    format!("onecopy-readiness-{}-{n}", std::process::id())
}

/// What a send says that would wait.
fn again() -> String {
    errno(&rustix::io::Errno::AGAIN.into())
}

fn is(e: &io::Error, errno: rustix::io::Errno) -> bool {
    e.raw_os_error() == Some(errno.raw_os_error())
}

impl World {
    pub fn new(sort: Sort, way: Way, program: &Program) -> io::Result<World> {
        let made = |plain, buffer| Made {
            sort,
            plain,
            shares: way != Way::Kernel,
            passable: program.passable && !plain,
            buffer,
        };
        let [client, server] = program.buffers;
        let made = [
            made(matches!(way, Way::FromPlain | Way::Plain), client),
            made(matches!(way, Way::ToPlain | Way::Plain), server),
        ];
        let count = if sort == Sort::Crowd { 4 } else { 2 };
        let mut world = World {
            sort,
            made,
            listener: None,
            sockets: (0..count).map(|_| Socket::default()).collect(),
            others: Vec::new(),
            stranger: None,
            credentials: false,
            numbers: 0,
            looks_away: std::env::var("READINESS_VIEWS").is_err(),
        };
        if program.steps.iter().any(|step| matches!(step.call, Call::Share)) && made[0].passable {
            let none = vec![false; count];
            world.stranger = Some(Other::fork(&mut [const { None }; 2], none, made[0])?);
        }
        for (at, socket) in world.sockets.iter_mut().enumerate() {
            socket.to = if sort == Sort::Crowd { (at > 0).then_some(0) } else { Some(1 - at) };
        }
        match sort {
            Sort::Crowd => world.gather()?,
            _ if way == Way::Pair => {
                let (a, b) = Held::pair(made[0])?;
                world.has(0, a);
                world.has(1, b);
            }
            Sort::Datagrams => {
                let names = [name(), name()];
                let (a, b) = (Held::bind(&names[0], made[0])?, Held::bind(&names[1], made[1])?);
                a.connect_to(&names[1])?;
                b.connect_to(&names[0])?;
                world.has(0, a);
                world.has(1, b);
            }
            _ => {
                let name = name();
                world.listener = Some(Listener::bind(&name, made[1])?);
                world.has(0, Held::connect(&name, made[0])?);
            }
        }
        Ok(world)
    }

    fn has(&mut self, at: usize, held: Held) {
        let socket = &mut self.sockets[at];
        (socket.held, socket.made) = (Some(held), true);
    }

    fn gather(&mut self) -> io::Result<()> {
        let to = name();
        self.has(0, Held::bind(&to, self.made[1])?);
        for at in 1..self.sockets.len() {
            let sender = Held::bind(&name(), self.made[0])?;
            sender.connect_to(&to)?;
            self.has(at, sender);
        }
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.sockets.len()
    }

    /// Accepts the connection, if it was not.
    pub fn accept(&mut self) -> io::Result<bool> {
        let Some(listener) = self.listener.take() else { return Ok(false) };
        let held = listener.accept()?;
        self.has(1, held);
        Ok(true)
    }

    /// An exchange each way: what comes by itself with a connection's first bytes has come.
    pub fn exchange(&mut self) -> Found<()> {
        let rounds = if self.sort.has_datagrams() { 60 } else { 8 };
        for _ in 0..rounds {
            for from in 0..self.sockets.len() {
                let (Some(to), Some(held)) = (self.sockets[from].to, &self.sockets[from].held) else {
                    continue;
                };
                let Some(peer) = &self.sockets[to].held else { continue };
                held.send(from, 1, true).map_err(|e| format!("a first send: {e}"))?;
                peer.recv(9, false, false).map_err(|e| format!("a first receive: {e}"))?;
            }
        }
        Ok(())
    }

    /// Nobody has it any more.
    fn is_gone(&self, at: usize) -> bool {
        let socket = &self.sockets[at];
        let mut others = self.others.iter().chain(&self.stranger);
        socket.made && socket.held.is_none() && !others.any(|other| other.has.get(at) == Some(&true))
    }

    fn senders(&self, at: usize) -> impl Iterator<Item = usize> {
        (0..self.sockets.len()).filter(move |from| self.sockets[*from].to == Some(at))
    }

    /// What it is connected to, of connections.
    fn peer(&self, at: usize) -> Option<usize> {
        self.sockets[at].to.filter(|_| !self.sort.has_datagrams())
    }

    /// It is closed here, and it depends on what no program sees whether that is told: a child may have it that cannot use it, and a
    /// view may keep it open where another process was the last to close it.
    fn may_be_gone(&self, at: usize) -> bool {
        self.sockets[at].made && self.sockets[at].held.is_none()
    }

    /// Nothing more will come, and that is told.
    fn is_over(&self, at: usize) -> bool {
        self.peer(at).is_some_and(|peer| {
            self.is_gone(peer) && self.sockets[peer].views.is_empty()
                || self.sockets[peer].shut_write
                || self.sockets[at].shut_read
        })
    }

    fn is_readable(&self, at: usize) -> bool {
        self.senders(at).any(|from| self.sockets[from].flow.is_readable()) || self.is_over(at)
    }

    /// Whether poll may say that there is no room: Linux does so from a quarter on, and so do we; and for who was refused, until
    /// there is the room that it wanted.
    fn may_lack_room(&self, at: usize) -> bool {
        let socket = &self.sockets[at];
        let Some(held) = &socket.held else { return true };
        // (A peer that has closed, and has views left, has only shut down as yet.)
        if self.peer(at).is_some_and(|peer| self.is_gone(peer) && self.sockets[peer].views.is_empty()) {
            return false;
        }
        let (flow, capacity) = (&socket.flow, held.capacity());
        let room = capacity.saturating_sub(flow.occupied());
        // A receiver's queue is full for all that send there.
        let queued = || -> usize {
            let all: Vec<_> = socket.to.iter().flat_map(|to| self.senders(*to)).collect();
            let waiting: usize = all.iter().map(|from| self.sockets[*from].flow.waiting()).sum();
            // (There lie a doorbell and a word besides, of each that has a lane, and a token of the receiver's own.)
            let is_laned = |held: &Held| self.sort == Sort::Crowd && !held.sends_over_kernel();
            let laned =
                all.iter().filter(|from| self.sockets[**from].held.as_ref().is_some_and(is_laned)).count();
            waiting + 2 * laned + usize::from(laned > 0)
        };
        flow.occupied() > capacity / 4
            || flow.refused > room.saturating_sub(8)
            // (Doorbells and a channel count there, too, which only a very small one shows.)
            || flow.is_readable() && flow.memory() + 4096 > held.send_buffer() / 4
            // (poll(2) looks there, of who has a lane, too.)
            || self.sort.has_datagrams() && queued() >= QUEUE
    }

    /// What poll says of it, if that is true.
    fn look(&self, at: usize) -> Found<Option<String>> {
        let socket = &self.sockets[at];
        let Some(held) = &socket.held else { return Ok(None) };
        let polled = tools::poll_now(held.end()).map_err(|stop| format!("{stop:?}"))?;
        let says = |event: &str| polled.split('+').any(|bit| bit == event);
        let who = letter(at);
        if let Some(epoll) = &socket.epoll {
            let told = epoll.wait(0).map_err(|stop| format!("{stop:?}"))?;
            if told != polled {
                return Err(format!("{who}: poll says {polled}, and epoll {told}"));
            }
        }
        let hung_up = says("HUP") && self.peer(at).is_some_and(|peer| self.may_be_gone(peer));
        let readable = self.is_readable(at) || hung_up;
        // (A datagram socket that was shut down is told to be readable, and who does not wait is told EAGAIN.)
        let odd = self.sort.has_datagrams() && socket.shut_read;
        let held_up =
            !readable && self.looks_away && self.senders(at).any(|from| self.sockets[from].flow.is_held());
        if says("IN") != readable && !odd && !held_up {
            let why = if readable { "there is something to receive" } else { "nothing is to be received" };
            return Err(format!("{who}: poll says {polled}, and {why}"));
        }
        if !says("OUT") && !self.may_lack_room(at) {
            let flow = &socket.flow;
            let (capacity, refused) = (held.capacity(), flow.refused);
            return Err(format!(
                "{who}: poll says {polled}, with at most {} of {capacity} bytes in use, {refused} refused",
                flow.occupied()
            ));
        }
        Ok(Some(polled))
    }

    /// Whether poll tells the truth about all; what it says.
    pub fn check(&mut self, watched: bool) -> Found<String> {
        if !watched {
            return Ok(String::new());
        }
        let mut all = Vec::new();
        for at in 0..self.sockets.len() {
            let socket = &mut self.sockets[at];
            if let (Some(held), None) = (&socket.held, &socket.epoll) {
                let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP;
                socket.epoll = Some(Epoll::watching(held.end(), flags).map_err(|stop| format!("{stop:?}"))?);
            }
            if let Some(polled) = self.look(at)? {
                if polled.contains("OUT") {
                    self.sockets[at].flow.refused = 0;
                }
                all.push(format!("{} {polled}", letter(at)));
            }
        }
        Ok(all.join(", "))
    }

    /// Has all look at what they would receive, and who is `at` send a byte: what poll has said must have been true.
    pub fn try_out(&mut self, at: usize) -> Found<()> {
        for at in 0..self.sockets.len() {
            let Some(held) = &self.sockets[at].held else { continue };
            let result = held.recv(1, false, true);
            self.was_received(at, result, 1, true)?;
        }
        let Some(polled) = self.look(at)? else { return Ok(()) };
        if polled.contains("OUT") && self.sockets[at].to.is_some() {
            let said = self.send(at, 1, false)?;
            let held_up = self.looks_away && self.sockets[at].flow.is_held();
            if said == again() && !held_up {
                return Err(format!("{}: poll says {polled}, and a byte is refused", letter(at)));
            }
        }
        Ok(())
    }

    fn was_sent(&mut self, at: usize, result: Result<usize, i32>, sent: Sent) -> Found<String> {
        use rustix::io::Errno;
        let (sort, with) = (self.sort, sent.with || self.credentials);
        let socket = &mut self.sockets[at];
        let errno = match result {
            Ok(n) => {
                let capacity = socket.held.as_ref().map_or(MOST, Held::capacity);
                let end = sent.end && n == sent.len;
                socket.flow.was_sent(sort, Sent { len: n, end, with, ..sent }, capacity);
                return Ok(format!("{n} sent"));
            }
            Err(errno) => Errno::from_raw_os_error(errno),
        };
        if errno == Errno::AGAIN {
            socket.flow.refused = socket.flow.refused.max(sent.len);
            if let Some(held) = &socket.held
                && sent.len == 1
            {
                // (Who does not look has no readiness.)
                let polled = tools::poll_now(held.end()).map_err(|stop| format!("{stop:?}"))?;
                let held_up = self.looks_away && socket.flow.is_held();
                if socket.epoll.is_some() && polled.contains("OUT") && !held_up {
                    return Err(format!("a byte was refused (EAGAIN), and poll says {polled}"));
                }
            }
        }
        if errno == Errno::CONNREFUSED
            && let Some(to) = socket.to
        {
            // It parts from a peer that is gone, and loses what that had sent.
            self.sockets[to].flow.is_lost();
        }
        let known = [
            Errno::AGAIN,
            Errno::PIPE,
            Errno::CONNRESET,
            Errno::CONNREFUSED,
            Errno::NOTCONN,
            Errno::MSGSIZE,
            Errno::BUSY,
            Errno::OPNOTSUPP,
        ];
        let said = tools::errno(&errno.into());
        if known.contains(&errno) { Ok(said) } else { Err(format!("a send said {said}")) }
    }

    fn send(&mut self, at: usize, len: usize, eor: bool) -> Found<String> {
        let Some(held) = &self.sockets[at].held else { return Ok(String::new()) };
        let kernel = held.sends_over_kernel();
        let result = held.send(at, len, eor).map_err(|e| crate::others::errno_of(&e));
        self.was_sent(at, result, Sent { len, end: eor, with: false, kernel })
    }

    fn was_received(&mut self, at: usize, result: io::Result<Got>, max: usize, peek: bool) -> Found<String> {
        use rustix::io::Errno;
        let (who, readable, over) = (letter(at), self.is_readable(at), self.is_over(at));
        let odd = self.sort.has_datagrams() && self.sockets[at].shut_read;
        let got = match result {
            Ok(got) => got,
            Err(e) if is(&e, Errno::AGAIN) && readable && !odd => {
                return Err(format!("{who}: a receive says EAGAIN, and there is something to receive"));
            }
            Err(e) => {
                let known = [
                    Errno::AGAIN,
                    Errno::BUSY,
                    Errno::CONNRESET,
                    Errno::OWNERDEAD,
                    Errno::NOTCONN,
                    Errno::CONNREFUSED,
                ];
                return match known.iter().any(|known| is(&e, *known)) {
                    true => Ok(errno(&e)),
                    false => Err(format!("{who}: a receive says {}", errno(&e))),
                };
            }
        };
        let said = format!("{} received{}", got.len, if got.end { ", the end of a record" } else { "" });
        let from = match got.from {
            Some(from) => from,
            None => match self.senders(at).next() {
                Some(from) => from,
                None => return Err(format!("{who}: {said}, and nobody sends to it")),
            },
        };
        if self.sockets.get(from).is_none_or(|socket| socket.to != Some(at)) {
            return Err(format!("{who}: {said}, from nobody that sends to it ({from})"));
        }
        let flow = &mut self.sockets[from].flow;
        if got.over || got.len == 0 && !flow.is_readable() {
            let right = over || odd || self.peer(at).is_some_and(|peer| self.may_be_gone(peer));
            return if right { Ok("end".into()) } else { Err(format!("{who}: an end that is none")) };
        }
        if peek {
            return if got.len <= flow.next(self.sort) { Ok(said) } else { Err(format!("{who}: {said}")) };
        }
        flow.was_received(self.sort, got.len, max, got.end).map_err(|wrong| format!("{who}: {wrong}"))?;
        Ok(said)
    }
}

pub fn letter(at: usize) -> &'static str {
    ["a", "b", "c", "d"][at]
}
