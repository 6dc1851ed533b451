//! A thread that serves its share of the connections, edge-triggered: an edge that is missed is a stall that is seen.

use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use onecopy_conformance::tools::Dice;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::party::{Party, Tally};

/// Nothing happens on a connection that is not over for so long: an edge was lost.
const STALL: Duration = Duration::from_secs(15);
/// Steps of one connection before others have their turn.
const TURN: usize = 16;

/// What the threads of a process share.
#[derive(Default)]
pub struct Common {
    /// All is to end.
    pub stop: OnceLock<()>,
    /// The first thing that did not hold.
    pub wrong: Mutex<Option<String>>,
    /// Generations of workers that were killed, or told to end.
    pub gone: Mutex<HashSet<u32>>,
    /// What has been verified so far.
    pub tally: Mutex<Tally>,
    /// Live connections.
    pub live: Mutex<usize>,
}

/// A lock whose holder panicked guards a number that is still one.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Common {
    /// Notes what did not hold, and ends all.
    pub fn fail(&self, what: String) {
        eprintln!("onecopy-soak, process {}: {what}", std::process::id());
        lock(&self.wrong).get_or_insert(what);
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
    refill: Option<Box<dyn FnMut() -> Result<Party, String> + Send>>,
    parties: BTreeMap<u64, (Party, Instant)>,
    /// Keys of those that have something to do.
    active: Vec<u64>,
    next: u64,
    dice: Dice,
}

impl Crowd {
    /// Of parties that come through `inbox`.
    pub fn new(
        common: Arc<Common>,
        inbox: Receiver<Party>,
        refill: Option<Box<dyn FnMut() -> Result<Party, String> + Send>>,
        seed: u64,
    ) -> Crowd {
        Crowd {
            common,
            inbox,
            refill,
            parties: BTreeMap::new(),
            active: Vec::new(),
            next: 0,
            dice: Dice(seed),
        }
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
        let mut events = Vec::with_capacity(256);
        let mut buf = vec![0; 64 << 10];
        let mut looked = Instant::now();
        while self.common.stop.get().is_none() {
            while let Ok(party) = self.inbox.try_recv() {
                self.take_in(&ep, party)?;
            }
            let wait = Timespec { tv_sec: 0, tv_nsec: if self.active.is_empty() { 20_000_000 } else { 0 } };
            events.clear();
            match epoll::wait(&ep, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(format!("epoll_wait: {e}")),
            }
            let now = Instant::now();
            for event in &events {
                let key = event.data.u64();
                let Some((party, since)) = self.parties.get_mut(&key) else { continue };
                let was = party.is_active();
                let ended = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                let flags = event.flags;
                party.readable |= flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP | ended);
                party.writable |= flags.intersects(epoll::EventFlags::OUT | ended);
                *since = now;
                if !was && party.is_active() {
                    self.active.push(key);
                }
            }
            let mut tally = Tally::default();
            for _ in 0..64.min(self.active.len()) {
                let at = self.dice.roll() as usize % self.active.len();
                self.turn(at, &ep, &mut buf, &mut tally)?;
                if self.active.is_empty() {
                    break;
                }
            }
            lock(&self.common.tally).add(&tally);
            if looked.elapsed() > Duration::from_secs(1) {
                looked = Instant::now();
                let stalled = self
                    .parties
                    .values()
                    .find(|(party, since)| !party.is_active() && since.elapsed() > STALL);
                if let Some((party, _)) = stalled {
                    let death = if self.is_gone(party) { ", though the peer is dead" } else { "" };
                    return Err(format!("nothing happens for {STALL:?}{death}: {}", party.tell()));
                }
            }
        }
        Ok(())
    }

    fn is_gone(&self, party: &Party) -> bool {
        lock(&self.common.gone).contains(&party.plan.generation())
    }

    fn take_in(&mut self, ep: &impl std::os::fd::AsFd, party: Party) -> Result<(), String> {
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(ep, &party.socket, epoll::EventData::new_u64(self.next), flags)
            .map_err(|e| format!("epoll_ctl: {e}"))?;
        self.parties.insert(self.next, (party, Instant::now()));
        self.active.push(self.next);
        self.next += 1;
        *lock(&self.common.live) += 1;
        Ok(())
    }

    fn turn(
        &mut self,
        at: usize,
        ep: &impl std::os::fd::AsFd,
        buf: &mut [u8],
        tally: &mut Tally,
    ) -> Result<(), String> {
        let key = self.active[at];
        let Some((party, since)) = self.parties.get_mut(&key) else {
            self.active.swap_remove(at);
            return Ok(());
        };
        let generation = party.plan.generation();
        let gone = || lock(&self.common.gone).contains(&generation);
        for _ in 0..TURN {
            if party.is_over() || !party.is_active() {
                break;
            }
            party.step(&mut self.dice, buf, tally, gone)?;
        }
        *since = Instant::now();
        if party.is_over() {
            match gone() {
                true => tally.cut += 1,
                false => tally.ended += 1,
            }
            tally.shared += u64::from(party.socket.is_shared() && !gone());
            self.parties.remove(&key);
            self.active.swap_remove(at);
            *lock(&self.common.live) -= 1;
            if let Some(refill) = &mut self.refill {
                let party = refill()?;
                self.take_in(ep, party)?;
            }
        } else if !party.is_active() {
            self.active.swap_remove(at);
        }
        Ok(())
    }
}
