//! A thread that serves its share of the connections, edge-triggered: an edge that is missed is a stall that is seen.
//! Whether a stall is one is for both ends to tell ([`crate::mail`]).

use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use onecopy_conformance::tools::Dice;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::mail::{Line, Post, State, lock};
use crate::party::{Party, Tally};

/// Nothing happens on a connection that is not over for so long: the peer is asked. No answer is judged by time.
const STALL: Duration = Duration::from_secs(5);
/// Questions of one thread that are not answered yet.
const ASKED: usize = 2;
/// Times that the peer's process may say that it knows nothing of a connection, a stall apart.
const STRANGE: u32 = 24;
/// Steps of one connection before others have their turn.
const TURN: usize = 16;
/// How long a worker waits for the survivor to hear what did not hold.
const PATIENCE: Duration = Duration::from_secs(10);
/// Events fetched at a time.
const EVENTS: usize = 256;

/// What the threads of a process share.
pub struct Common {
    /// All is to end.
    pub stop: OnceLock<()>,
    /// The first thing that did not hold.
    pub wrong: Mutex<Option<String>>,
    /// Those workers that were killed, or told to end.
    pub gone: Mutex<Generations>,
    /// Of these, those that have ended: their sockets are closed.
    pub dead: Mutex<Generations>,
    /// What threads and processes ask each other.
    pub post: Post,
    /// What happens to the first connection that waits is told to nobody: a stall that must be found.
    pub deaf: bool,
    /// Each connection leaves something behind: memory that must be missed.
    pub leaky: bool,
    /// What has been verified so far.
    pub tally: Mutex<Tally>,
    /// Live connections.
    pub live: Mutex<usize>,
    /// Threads that have made what they keep.
    pub begun: Mutex<usize>,
}

/// Some workers, of which there come ever more.
#[derive(Debug, Default)]
pub struct Generations {
    /// All from the first to this one are among them.
    all_to: u32,
    others: HashSet<u32>,
}

impl Generations {
    /// That one is among them from here on.
    pub fn add(&mut self, generation: u32) {
        self.others.insert(generation);
    }

    /// All up to that one are, so that they need not be kept one by one.
    pub fn add_all_to(&mut self, generation: u32) {
        *self = Generations { all_to: generation, others: HashSet::new() };
    }

    /// Whether it is among them.
    pub fn contains(&self, generation: u32) -> bool {
        generation <= self.all_to || self.others.contains(&generation)
    }
}

/// Threads that serve connections in each process.
pub const THREADS: usize = 2;

impl Common {
    /// Of a process that has done nothing yet.
    pub fn new(deaf: bool, leaky: bool) -> Common {
        Common {
            stop: OnceLock::new(),
            wrong: Mutex::default(),
            gone: Mutex::default(),
            dead: Mutex::default(),
            post: Post::new(THREADS),
            deaf,
            leaky,
            tally: Mutex::default(),
            live: Mutex::default(),
            begun: Mutex::default(),
        }
    }

    /// Notes what did not hold, and ends all.
    pub fn fail(&self, what: String) {
        eprintln!("onecopy-soak, process {}: {what}", std::process::id());
        lock(&self.wrong).get_or_insert_with(|| what.clone());
        if crate::is_worker() {
            // The survivor hears of it before connections end that should not, which would be told in its place.
            self.post.send(&Line::Wrong(what));
            let until = Instant::now() + PATIENCE;
            while self.stop.get().is_none() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = self.stop.set(());
    }

    /// What did not hold.
    pub fn wrong(&self) -> Option<String> {
        lock(&self.wrong).clone()
    }
}

/// One thread's connections.
pub struct Crowd {
    common: Arc<Common>,
    inbox: Receiver<Party>,
    /// Makes another connection in place of one that is over.
    refill: Option<Refill>,
    /// By the connection's id.
    parties: BTreeMap<u64, Served>,
    /// Those that have something to do.
    active: Vec<u64>,
    /// Which thread this is.
    home: usize,
    /// The connection whose events are lost.
    deaf: Option<u64>,
    dice: Dice,
}

/// Makes another connection.
pub type Refill = Box<dyn FnMut() -> Result<Party, String> + Send>;

/// A connection and what its thread knows of it.
struct Served {
    party: Party,
    /// When something last happened to it.
    since: Instant,
    /// What was done since something last happened to it.
    silence: Silence,
    /// How often the peer's process knew nothing of it.
    strange: u32,
    /// Its life is over, and pages are with the peer, who is about to die.
    mourns: bool,
}

/// What was done on a connection to which nothing happens.
#[derive(Debug, Default)]
struct Silence {
    /// The peer was asked.
    asked: bool,
    /// It was seen that the peer is dead.
    bereft: bool,
}

impl Silence {
    /// Sees that the peer is dead. Returns whether that was seen before: then all events have been fetched since. (A peer may die
    /// behind the last events, and after it was asked.)
    fn goes_on_beyond_death(&mut self) -> bool {
        std::mem::replace(&mut self.bereft, true)
    }
}

impl Served {
    fn stirs(&mut self) {
        self.since = Instant::now();
        self.silence = Silence::default();
    }
}

impl Crowd {
    /// Of parties that come through `inbox`, for thread `home`.
    pub fn new(
        common: Arc<Common>,
        home: usize,
        inbox: Receiver<Party>,
        refill: Option<Refill>,
        seed: u64,
    ) -> Crowd {
        let (parties, active) = (BTreeMap::new(), Vec::new());
        Crowd { common, inbox, refill, parties, active, home, deaf: None, dice: Dice(seed) }
    }

    /// Serves until told to stop, or until something does not hold.
    pub fn run(mut self) {
        if let Err(what) = self.serve() {
            self.common.fail(what);
        }
        *lock(&self.common.live) -= self.parties.len();
    }

    fn serve(&mut self) -> Result<(), String> {
        let ep = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| format!("epoll_create: {e}"))?;
        *lock(&self.common.begun) += 1;
        let mut buf = vec![0; 64 << 10];
        let mut looked = Instant::now();
        while self.common.stop.get().is_none() {
            while let Ok(party) = self.inbox.try_recv() {
                self.take_in(&ep, party)?;
            }
            // Before the events are fetched: what is answered, and judged, is what stands after them.
            let mail = self.common.post.fetch(self.home);
            self.fetch_events(&ep)?;
            for line in mail {
                self.read(line)?;
            }
            let mut tally = Tally::default();
            for _ in 0..64.min(self.active.len()) {
                let at = self.dice.roll() as usize % self.active.len();
                self.turn(at, &ep, &mut buf, &mut tally)?;
                if self.active.is_empty() {
                    break;
                }
            }
            if looked.elapsed() > Duration::from_secs(1) {
                looked = Instant::now();
                self.look_for_stalls(&mut tally)?;
            }
            lock(&self.common.tally).add(&tally);
        }
        Ok(())
    }

    /// All events that there are.
    fn fetch_events(&mut self, ep: &impl AsFd) -> Result<(), String> {
        let mut wait = Timespec { tv_sec: 0, tv_nsec: if self.active.is_empty() { 20_000_000 } else { 0 } };
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(ep, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(format!("epoll_wait: {e}")),
            }
            for event in &events {
                let id = event.data.u64();
                let Some(served) = self.parties.get_mut(&id).filter(|_| self.deaf != Some(id)) else {
                    continue;
                };
                let was = served.party.is_active();
                let ended = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                let flags = event.flags;
                let party = &mut served.party;
                party.readable |= flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP | ended);
                party.writable |= flags.intersects(epoll::EventFlags::OUT | ended);
                served.stirs();
                if !was && served.party.is_active() {
                    self.active.push(id);
                }
            }
            if events.len() < EVENTS {
                return Ok(());
            }
            wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        }
    }

    /// Asks of those to which nothing has happened for long; ends at one whose peer is dead.
    fn look_for_stalls(&mut self, tally: &mut Tally) -> Result<(), String> {
        let mut asked = self.parties.values().filter(|served| served.silence.asked).count();
        for (id, served) in &mut self.parties {
            let dead = lock(&self.common.dead).contains(served.party.plan.generation());
            if dead && (served.mourns || served.party.hears_of_no_death()) {
                if !std::mem::take(&mut served.mourns) {
                    served.party.probe_soon()?;
                }
                self.active.push(*id);
                continue;
            }
            if served.party.is_active() || served.since.elapsed() < STALL {
                continue;
            }
            match (dead, served.silence.asked) {
                (true, _) if served.silence.goes_on_beyond_death() => {
                    return Err(format!("the peer's death was not told to {}", served.party.report()));
                }
                (true, _) | (false, true) => {}
                (false, false) if asked < ASKED => {
                    (served.silence.asked, asked) = (true, asked + 1);
                    tally.asked += 1;
                    self.common.post.send(&Line::Ask(*id));
                }
                (false, false) => {}
            }
        }
        Ok(())
    }

    /// A question, or an answer. All events that there were when it came have been fetched.
    fn read(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Wrong(what) => return Err(what),
            Line::Ask(id) => {
                let answer = match self.parties.get(&id) {
                    Some(Served { party, .. }) if party.is_active() => {
                        Line::Is(id, State::Busy, String::new())
                    }
                    Some(Served { party, .. }) => Line::Is(id, State::Waits, party.tell()),
                    None => self.common.post.without_home(id),
                };
                self.common.post.send(&answer);
            }
            Line::Is(id, state, tale) => {
                let Some(served) = self.parties.get_mut(&id) else { return Ok(()) };
                // Something has happened since it was asked.
                if !served.silence.asked || served.party.is_active() {
                    return Ok(());
                }
                served.strange += u32::from(state == State::Unknown);
                if matches!(state, State::Waits | State::Over) || served.strange > STRANGE {
                    let word = match state {
                        State::Waits => "both ends wait, and nothing is under way: a wake-up was lost",
                        State::Over => "the peer has closed, and that was not told: a wake-up was lost",
                        _ => "the peer's process never came to this connection",
                    };
                    return Err(format!("{word}\n this end: {}\n the peer: {tale}", served.party.report()));
                }
                served.stirs();
            }
        }
        Ok(())
    }

    fn take_in(&mut self, ep: &impl AsFd, party: Party) -> Result<(), String> {
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        let id = party.plan.id;
        epoll::add(ep, &party.socket, epoll::EventData::new_u64(id), flags)
            .map_err(|e| format!("epoll_ctl: {e}"))?;
        let served =
            Served { party, since: Instant::now(), silence: Silence::default(), strange: 0, mourns: false };
        if self.parties.insert(id, served).is_some() {
            return Err(format!("two connections with the id {id:#x}"));
        }
        self.active.push(id);
        self.common.post.moves_in(id, self.home);
        *lock(&self.common.live) += 1;
        Ok(())
    }

    fn turn(&mut self, at: usize, ep: &impl AsFd, buf: &mut [u8], tally: &mut Tally) -> Result<(), String> {
        let id = self.active[at];
        let Some(served) = self.parties.get_mut(&id) else {
            self.active.swap_remove(at);
            return Ok(());
        };
        let party = &mut served.party;
        let generation = party.plan.generation();
        let gone = || lock(&self.common.gone).contains(generation);
        for _ in 0..TURN {
            if party.is_over() || !party.is_active() {
                break;
            }
            party.step(&mut self.dice, buf, tally, gone)?;
        }
        if party.is_over() {
            let dead = lock(&self.common.dead).contains(generation);
            if gone() && !dead && party.has_lent() {
                self.active.swap_remove(at);
                served.mourns = true;
                return Ok(());
            }
            if dead && party.has_lent() {
                tally.homes += u64::from(party.pages_are_home()?);
            }
            match gone() {
                true => tally.cut += 1,
                false => tally.ended += 1,
            }
            tally.shared[party.plan.kind as usize] += u64::from(party.was_shared() && !gone());
            self.parties.remove(&id);
            if self.common.leaky {
                // (Without a look at it there would be no allocation.)
                std::hint::black_box(Box::leak(Box::new(id)));
            }
            self.active.swap_remove(at);
            self.common.post.is_over(id);
            *lock(&self.common.live) -= 1;
            if let Some(refill) = &mut self.refill {
                let party = refill()?;
                self.take_in(ep, party)?;
            }
            return Ok(());
        }
        let active = party.is_active();
        served.stirs();
        if !active {
            self.active.swap_remove(at);
            if self.common.deaf {
                self.deaf.get_or_insert(id);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that was asked dies before it answers. Its death is an event that has not been fetched yet.
    #[test]
    fn who_dies_after_a_question_is_not_judged_before_the_events_are_fetched() {
        let mut silence = Silence { asked: true, ..Silence::default() };
        assert!(!silence.goes_on_beyond_death());
        assert!(silence.goes_on_beyond_death());
    }
}
