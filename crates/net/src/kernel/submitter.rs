//! A shard: the thread that makes requests of one ring, and who wants its attention.
//!
//! A socket is one shard's as long as it lives: its bytes go through one ring, in their order, and its notifications are stacked, for which the
//! kernel asks that sends be of one ring and one task. Shards share no lock but those of what all sockets share (`engine`, `devices`).

use super::config::Config;
use super::shared::{Failed, Shared};
use onecopy_pool::provider::Heap;
use onecopy_pool::{CommonPool, Monitor, PagePool, Pages, PoolConfig};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use onecopy_sys::eventfd::EventFd;
use onecopy_sys::signal;
use onecopy_uring::{Event, Ring};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Requests that are handed over by one call, and pages that wait for what is received.
const ENTRIES: u32 = 256;
const BUFFERS: u32 = 64;

/// How often the thread looks for pages while a socket has none to receive into: first and last. (Pages come home without a word.)
const STARVED: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// A socket, as far as the thread that makes requests has to do with it.
pub(super) trait Attended: Send + Sync {
    /// Its name among the sockets of the engine.
    fn token(&self) -> u64;
    /// It wants attention, and did not before.
    fn wants(&self) -> bool;
    /// Asks for what is to be asked for.
    fn turn(&self, ring: &mut Ring) -> Turn;
    /// Takes in what has happened.
    fn event(&self, event: Event);
    /// There are pages again for what it sends. Returns whether that was waited for still.
    fn fed(&self) -> bool {
        false
    }
    /// Gives up what is not sent yet, and has the kernel give up what it has.
    fn abort(&self);
}

/// What a socket is up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It waits for what was asked for.
    Waits,
    /// It cannot go on, for want of what comes home without a word.
    Starves {
        /// Pages to receive into, or memory of the kernel's: it is to look again.
        memory: bool,
        /// A page to put into what its program sends: [`Attended::fed`] says that there is one.
        room: bool,
    },
    /// It is closed, and nothing is under way.
    Over,
}

/// What the sockets of a shard and its thread share.
pub(super) struct Submitter {
    inbox: Mutex<Inbox>,
    wake: Arc<Wake>,
    /// What all shards share.
    pub shared: Arc<Shared>,
    /// Where what is sent lies.
    pub pool: CommonPool,
    counters: Shown,
    /// The thread has ended: no socket is given to it any more.
    gone: AtomicU32,
}

/// All shards of a stack.
pub(super) struct Submitters {
    all: Box<[Arc<Submitter>]>,
    /// Whose turn it is, for each of [`For`].
    turns: [AtomicUsize; 3],
}

/// What a shard is asked for. Each has turns of its own: a proxy that accepts and connects by turns would have all of one kind on every other shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A connection that the program makes.
    Made,
    /// One that a listener accepts.
    Accepted,
    /// A listener, or the sends of a socket of UDP.
    Other,
}

impl Submitters {
    pub fn new(all: Vec<Arc<Submitter>>) -> Submitters {
        Submitters { all: all.into(), turns: [0, 1, 2].map(AtomicUsize::new) }
    }

    pub fn all(&self) -> &[Arc<Submitter>] {
        &self.all
    }

    /// Whose the next socket is: one after the other, of those whose threads have not ended.
    pub fn next(&self, what: For) -> &Arc<Submitter> {
        // Relaxed: nothing else is read because of it.
        let turn = self.turns[what as usize].fetch_add(1, Relaxed) % self.all.len();
        let (behind, first) = self.all.split_at(turn);
        first.iter().chain(behind).find(|one| !one.is_gone()).unwrap_or(&self.all[turn])
    }
}

/// Who wants attention.
#[derive(Default)]
struct Inbox {
    wanting: Vec<Arc<dyn Attended>>,
    /// The thread sleeps, and is to be woken.
    asleep: bool,
    /// The thread has ended: nobody would come.
    gone: bool,
    /// Nobody has a handle any more; until when what was sent may take.
    stop: Option<Instant>,
}

/// What a ring has counted, by name.
pub(super) const RINGS: [&str; 13] = [
    "pages_registered",
    "sockets",
    "enters",
    "requests",
    "completions",
    "zero_copy_sends",
    "registered_sends",
    "notifications",
    "notifications_copied",
    "notifications_unknown",
    "receives_without_page",
    "shortages",
    "receives_outside",
];

/// The places of two that the ring does not count: how often pages to receive into became scarce, and receives that programs' threads made then.
const SHORTAGES: usize = 11;
const RECEIVES_OUTSIDE: usize = 12;

/// The same, to be seen by others.
#[derive(Default)]
struct Shown {
    words: [AtomicU64; RINGS.len()],
}

/// The descriptor that wakes the ring.
struct Wake(EventFd);

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Submitter {
    /// One, and its thread. Both have what it takes when this returns.
    pub fn start(shared: &Arc<Shared>) -> Result<(Arc<Submitter>, JoinHandle<()>), Failed> {
        let Config { send_pages, receive_pages, .. } = shared.config;
        let (send_pages, receive_pages) = (send_pages.max(1), receive_pages.max(1));
        let pool = PagePool::new(PoolConfig::new().limit(send_pages), Heap::new()).map_err(Failed::Pages)?;
        let pool = CommonPool::new(pool);
        let wake = Arc::new(Wake(EventFd::new().map_err(Failed::System)?));
        let submitter = Arc::new(Submitter {
            inbox: Mutex::default(),
            wake: Arc::clone(&wake),
            shared: Arc::clone(shared),
            pool: pool.clone(),
            counters: Shown::default(),
            gone: AtomicU32::new(0),
        });
        // The ring belongs to the thread that makes it.
        let (tell, told) = sync_channel(1);
        let inner = Arc::clone(&submitter);
        let run = move || {
            // As many again are for who has something unread, at least.
            let buffers = BUFFERS.min(receive_pages.div_ceil(2)).next_power_of_two() as u16;
            let pages = PagePool::new(PoolConfig::new().order(3).limit(receive_pages), Heap::new());
            let made = pages.map_err(Failed::Pages).and_then(|pages| {
                let config =
                    onecopy_uring::Config { entries: ENTRIES, buffers, pages, region: pool.region() };
                Ring::new(config, wake).map_err(Failed::Refused)
            });
            match made {
                Ok(ring) => {
                    inner.show(&ring, 0);
                    if tell.send(Ok(())).is_ok() {
                        inner.run(ring);
                    }
                }
                Err(failed) => drop(tell.send(Err(failed))),
            }
        };
        let thread = thread::Builder::new().name("onecopy-uring".into());
        let thread = signal::blocked(|| thread.spawn(run))
            .map_err(|error| Failed::System(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        told.recv().unwrap_or(Err(Failed::System(Errno::IO)))?;
        Ok((submitter, thread))
    }

    /// Has the thread look at `socket`.
    pub fn attend(&self, socket: Arc<dyn Attended>) {
        let asked = !socket.wants();
        // (Who has asked and is not heard, since the thread has ended meanwhile, comes again.)
        if asked && !self.is_gone() {
            return;
        }
        let mut inbox = self.inbox.lock();
        if inbox.gone {
            drop(inbox);
            return socket.abort();
        }
        if asked {
            return;
        }
        inbox.wanting.push(socket);
        let asleep = std::mem::take(&mut inbox.asleep);
        drop(inbox);
        if asleep {
            self.wake.0.ring();
        }
    }

    /// Whether the thread has ended.
    fn is_gone(&self) -> bool {
        // Relaxed: a word for what the inbox says under its lock.
        self.gone.load(Relaxed) != 0
    }

    /// Nobody has a handle any more: the thread ends when what was sent has left, or gives it up then.
    pub fn stop(&self, until: Instant) {
        self.inbox.lock().stop = Some(until);
        self.wake.0.ring();
    }

    /// Pages to send from that nobody has. (The figures may be some steps apart.)
    pub fn spare(&self) -> u32 {
        spare(self.pool.monitor(), self.shared.config.send_pages.max(1)) as u32
    }

    /// A program's thread has received what the ring was not asked for.
    pub fn received_outside(&self) {
        self.counters.words[RECEIVES_OUTSIDE].fetch_add(1, Relaxed);
    }

    /// What its ring has counted.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        RINGS.into_iter().zip(self.counters.words.iter().map(|word| word.load(Relaxed)))
    }
}

impl Submitter {
    /// Until nobody has a handle any more, and what was sent has left.
    fn run(&self, mut ring: Ring) {
        let mut running = Running { submitter: self, sockets: HashMap::new() };
        let sockets = &mut running.sockets;
        let starving = &mut Starving::default();
        let (mut aborted, mut scarce) = (false, false);
        loop {
            let (wanting, stop) = {
                let mut inbox = self.inbox.lock();
                // Between here and the wait, whoever wants something rings.
                inbox.asleep = inbox.wanting.is_empty();
                (std::mem::take(&mut inbox.wanting), inbox.stop)
            };
            let idle = wanting.is_empty();
            // All of them first: should a look panic, each is told.
            for socket in &wanting {
                sockets.entry(socket.token()).or_insert_with(|| Arc::clone(socket));
            }
            for socket in wanting {
                self.look(socket, &mut ring, sockets, starving);
            }
            starving.forget(sockets);
            let (due, before) = (starving.is_due(), starving.memory.len());
            // In between no more of them than there are pages: all the others would find none.
            let many = if due || before == 0 { before } else { self.home(&mut ring).min(before) };
            for _ in 0..many {
                if let Some(socket) = starving.next() {
                    self.look(socket, &mut ring, sockets, starving);
                }
            }
            let mut eased = starving.memory.len() < before;
            if ring.is_scarce() && !scarce {
                self.counters.words[SHORTAGES].fetch_add(1, Relaxed);
                // Whoever may take a page gives that up.
                let all: Vec<_> = sockets.values().cloned().collect();
                for socket in all {
                    self.look(socket, &mut ring, sockets, starving);
                }
            }
            scarce = ring.is_scarce();
            eased |= self.feed(&mut starving.room);
            starving.plan(due, eased);
            if let Some(stop) = stop
                && idle
            {
                // Sockets whose handles are gone leave when all is sent.
                if sockets.is_empty() {
                    break;
                }
                if !aborted && Instant::now() >= stop {
                    aborted = true;
                    let all: Vec<_> = sockets.values().cloned().collect();
                    for socket in all {
                        socket.abort();
                        self.look(socket, &mut ring, sockets, starving);
                    }
                } else if aborted && Instant::now() >= stop + LAST {
                    break;
                }
            }
            let limit = match (idle, stop) {
                (false, _) => Some(Duration::ZERO),
                (true, Some(stop)) => {
                    Some(stop.saturating_duration_since(Instant::now()).min(LAST / 20).max(STARVED.0))
                }
                (true, None) => starving.due.map(|due| due.saturating_duration_since(Instant::now())),
            };
            match ring.wait(limit) {
                Ok(true) => drop(self.wake.0.drain()),
                Ok(false) => {}
                // Nothing more comes.
                Err(_) => break,
            }
            while let Some(event) = ring.event() {
                let token = token(&event);
                if let Some(socket) = sockets.get(&token).cloned() {
                    socket.event(event);
                    self.look(socket, &mut ring, sockets, starving);
                }
            }
            self.show(&ring, sockets.len());
        }
    }

    fn look(
        &self,
        socket: Arc<dyn Attended>,
        ring: &mut Ring,
        sockets: &mut HashMap<u64, Arc<dyn Attended>>,
        starving: &mut Starving,
    ) {
        match socket.turn(ring) {
            Turn::Waits => {}
            Turn::Starves { memory, room } => {
                if room {
                    starving.room.push_back(Arc::clone(&socket));
                }
                if memory && starving.listed.insert(socket.token()) {
                    starving.memory.push_back(socket);
                }
            }
            Turn::Over => {
                sockets.remove(&socket.token());
                starving.over = true;
            }
        }
    }

    /// Tells as many of those who found no page to send from as there are pages now, those first who wait longest: more of them would find none
    /// again. Returns whether there were any.
    fn feed(&self, lacking: &mut VecDeque<Arc<dyn Attended>>) -> bool {
        if lacking.is_empty() {
            return false;
        }
        let mut pages = self.free(lacking.len());
        let fed = pages > 0;
        while pages > 0
            && let Some(socket) = lacking.pop_front()
        {
            pages -= usize::from(socket.fed());
        }
        fed
    }

    /// Pages to receive into that nobody has, of the ring and of those for who receives by himself.
    fn home(&self, ring: &mut Ring) -> usize {
        if ring.has_pages() && !ring.is_scarce() {
            return usize::MAX;
        }
        self.shared.received().map_or(0, |pool| spare(pool.monitor(), self.shared.received_limit()))
    }

    /// Pages to send from that nobody has, counted up to `most`.
    fn free(&self, most: usize) -> usize {
        let pages = self.pool.reservoir(most);
        // What is drawn goes back at once.
        pages.alloc().map_or(0, |_one| pages.len() + 1)
    }

    fn show(&self, ring: &Ring, sockets: usize) {
        let counters = ring.counters();
        let values = [
            u64::from(ring.is_registered()),
            sockets as u64,
            counters.enters,
            counters.requests,
            counters.completions,
            counters.zero_copy,
            counters.registered,
            counters.notifications,
            counters.copied,
            counters.unknown,
            counters.no_page,
        ];
        for (word, value) in self.counters.words.iter().zip(values) {
            word.store(value, Relaxed);
        }
    }
}

/// Pages that nobody has, of a pool of `limit` of them.
fn spare(pool: &Monitor, limit: u32) -> usize {
    let stats = pool.stats();
    (u64::from(limit) + stats.in_cache + stats.in_ring).saturating_sub(stats.in_flight) as usize
}

/// Those who wait for what comes home without a word.
#[derive(Default)]
struct Starving {
    memory: VecDeque<Arc<dyn Attended>>,
    /// The names of those: each is there once.
    listed: HashSet<u64>,
    /// Each is here once, until it is fed.
    room: VecDeque<Arc<dyn Attended>>,
    /// One of the thread's sockets is over, and may be here still.
    over: bool,
    /// When all are looked at next, and how long after the last time; none where nobody waits.
    due: Option<Instant>,
    pause: Duration,
}

impl Starving {
    /// Lets go of those that are over, whose descriptors are to be closed.
    fn forget(&mut self, sockets: &HashMap<u64, Arc<dyn Attended>>) {
        if std::mem::take(&mut self.over) {
            let stays = |socket: &Arc<dyn Attended>| sockets.contains_key(&socket.token());
            self.memory.retain(stays);
            self.room.retain(stays);
            self.listed.retain(|token| sockets.contains_key(token));
        }
    }

    /// Who waits longest for memory; whoever goes on waiting is listed anew, behind the others.
    fn next(&mut self) -> Option<Arc<dyn Attended>> {
        let socket = self.memory.pop_front()?;
        self.listed.remove(&socket.token());
        Some(socket)
    }

    fn is_due(&self) -> bool {
        self.due.is_some_and(|due| Instant::now() >= due)
    }

    /// Says when all are looked at next: soon where some have got what they waited for, and else later each time it was `due`.
    fn plan(&mut self, due: bool, eased: bool) {
        if self.memory.is_empty() && self.room.is_empty() {
            self.due = None;
        } else if eased || due || self.due.is_none() {
            let soon = eased || self.due.is_none();
            self.pause = if soon { STARVED.0 } else { (self.pause * 2).min(STARVED.1) };
            self.due = Some(Instant::now() + self.pause);
        }
    }
}

/// The sockets of the thread. However it ends, by a panic even, whoever waits is told.
struct Running<'a> {
    submitter: &'a Submitter,
    sockets: HashMap<u64, Arc<dyn Attended>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let wanting = {
            let mut inbox = self.submitter.inbox.lock();
            inbox.gone = true;
            // Relaxed: who does not see it yet finds the inbox's word for it.
            self.submitter.gone.store(1, Relaxed);
            std::mem::take(&mut inbox.wanting)
        };
        self.sockets.values().chain(&wanting).for_each(|socket| socket.abort());
    }
}

/// How long what was aborted may take to leave.
const LAST: Duration = Duration::from_secs(2);

fn token(event: &Event) -> u64 {
    match event {
        Event::Sent { token, .. }
        | Event::Notified { token, .. }
        | Event::Received { token, .. }
        | Event::Ended { token, .. }
        | Event::Accepted { token, .. }
        | Event::Connected { token, .. }
        | Event::Readable { token }
        | Event::Writable { token }
        | Event::HungUp { token, .. } => *token,
    }
}

/// Whether a socket has asked for attention that it has not got.
#[derive(Debug, Default)]
pub(super) struct Wanting(AtomicU32);

impl Wanting {
    /// Returns whether it had not asked.
    pub fn ask(&self) -> bool {
        // Relaxed: what it wants is under the socket's lock, which was given up before; the inbox's lock comes behind.
        self.0.swap(1, Relaxed) == 0
    }

    /// The attention is there. Before its state is looked at.
    pub fn got(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::tcp::{Listener, Stream};
    use crate::{BuildError, Stack, Transport};
    use std::net::Ipv4Addr;
    use std::time::{Duration, Instant};

    #[test]
    fn sockets_of_a_thread_that_has_ended_say_so() {
        let stack = match Stack::builder().transport(Transport::Kernel).build() {
            Ok(stack) => stack,
            Err(BuildError::Uring(refused)) => return println!("lacking: io_uring ({refused})"),
            Err(error) => panic!("{error}"),
        };
        let listener = Listener::bind(&stack, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let to = listener.local_addr().unwrap();
        let client = Stream::connect(&stack, to).unwrap();
        let _server = listener.accept().unwrap();
        let submitter = &stack.kernel().unwrap().submitters().all()[0];
        submitter.stop(Instant::now());
        while !submitter.is_gone() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(listener.accept().is_err());
        assert!(Stream::connect(&stack, to).is_err());
        // Each is told once, however often it asks for the thread.
        assert_eq!(client.recv(&mut [0; 9]).unwrap_err().raw_os_error(), 103, "ECONNABORTED");
        let _ = client.poll_fd().unwrap();
        assert_eq!(client.recv(&mut [0; 9]).unwrap(), 0);
        assert!(client.take_error().unwrap().is_none());
        drop(listener);
        assert!(Listener::bind(&stack, to).unwrap().accept().is_err());
    }
}
