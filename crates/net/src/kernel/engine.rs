//! The thread that makes all requests, and who wants its attention.

use super::config::Config;
use super::devices::Devices;
use super::nic::Interface;
use onecopy_chain::notify::zerocopy::{Account, Allowance};
use onecopy_pool::provider::Heap;
use onecopy_pool::{CommonPool, OpenError, PagePool, PoolConfig};
use onecopy_socket::Wait;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use onecopy_sys::eventfd::EventFd;
use onecopy_sys::signal;
use onecopy_uring::{Event, Refused, Ring};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Requests that are handed over by one call, and pages that wait for what is received.
const ENTRIES: u32 = 256;
const BUFFERS: u16 = 64;

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
    /// Gives up what is not sent yet, and has the kernel give up what it has.
    fn abort(&self);
}

/// What a socket is up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It waits for what was asked for.
    Waits,
    /// It cannot go on, for want of pages or of the kernel's memory.
    Starves,
    /// It is closed, and nothing is under way.
    Over,
}

/// What sockets and the thread share.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    wake: Arc<Wake>,
    /// Where what is sent lies.
    pub(super) pool: CommonPool,
    /// Where datagrams are received that are not copied; made with the first.
    received: OnceLock<CommonPool>,
    pub(super) config: Config,
    /// Memory of devices' that connections receive into, and send from.
    pub(crate) devices: Arc<Devices>,
    /// Sends without a copy that are told of.
    pub(super) account: Account,
    /// How its sockets wait unless they say otherwise.
    pub(super) wait: Wait,
    begun: Instant,
    names: AtomicU64,
    /// Who made it: in a child of a fork there is no thread.
    pid: u32,
    counters: Shown,
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

/// What the ring has counted, to be seen by others.
#[derive(Default)]
struct Shown {
    words: [AtomicU64; 9],
}

/// The descriptor that wakes the ring.
struct Wake(EventFd);

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Shared {
    /// A name for a new socket.
    pub(super) fn name(&self) -> u64 {
        self.names.fetch_add(1, Relaxed)
    }

    /// Has the thread look at `socket`.
    pub(super) fn attend(&self, socket: Arc<dyn Attended>) {
        if !socket.wants() {
            return;
        }
        let mut inbox = self.inbox.lock();
        if inbox.gone {
            drop(inbox);
            return socket.abort();
        }
        inbox.wanting.push(socket);
        let asleep = std::mem::take(&mut inbox.asleep);
        drop(inbox);
        if asleep {
            self.wake.0.ring();
        }
    }

    /// Pages of 4 KiB for datagrams that are not copied: as many bytes as the ring has to receive into.
    pub(super) fn received(&self) -> Result<&CommonPool, Errno> {
        if let Some(pool) = self.received.get() {
            return Ok(pool);
        }
        let limit = self.config.receive_pages.max(1).saturating_mul(8);
        let pool = PagePool::new(PoolConfig::new().limit(limit), Heap::new()).map_err(|_| Errno::NOBUFS)?;
        Ok(self.received.get_or_init(|| CommonPool::new(pool)))
    }

    /// Nanoseconds of a clock of its own.
    pub(super) fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Whether this is the process whose thread it is.
    pub(super) fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }
}

/// The kernel as a transport: ended with its last handle.
pub(crate) struct Kernel {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    linger: Duration,
    registered: bool,
}

/// Why there is none.
pub(crate) enum Failed {
    Refused(Refused),
    Pages(OpenError),
    System(Errno),
}

impl Kernel {
    pub fn start(
        config: Config,
        wait: Wait,
        linger: Duration,
        zerocopy: Allowance,
        interface: Option<Interface>,
    ) -> Result<Kernel, Failed> {
        let pool = PagePool::new(PoolConfig::new().limit(config.send_pages.max(1)), Heap::new());
        let pool = CommonPool::new(pool.map_err(Failed::Pages)?);
        let wake = Arc::new(Wake(EventFd::new().map_err(Failed::System)?));
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            wake: Arc::clone(&wake),
            pool: pool.clone(),
            received: OnceLock::new(),
            config,
            devices: Arc::new(Devices::new(interface)),
            account: Account::new(zerocopy),
            wait,
            begun: Instant::now(),
            names: AtomicU64::new(0),
            pid: std::process::id(),
            counters: Shown::default(),
        });
        // The ring belongs to the thread that makes it.
        let (tell, told) = sync_channel(1);
        let inner = Arc::clone(&shared);
        let run = move || {
            let buffers = BUFFERS.min(config.receive_pages.max(1).next_power_of_two() as u16);
            let pages =
                PagePool::new(PoolConfig::new().order(3).limit(config.receive_pages.max(1)), Heap::new());
            let made = pages.map_err(Failed::Pages).and_then(|pages| {
                let config =
                    onecopy_uring::Config { entries: ENTRIES, buffers, pages, region: pool.region() };
                Ring::new(config, wake).map_err(Failed::Refused)
            });
            match made {
                Ok(ring) => {
                    let registered = ring.is_registered();
                    if tell.send(Ok(registered)).is_ok() {
                        inner.run(ring);
                    }
                }
                Err(failed) => drop(tell.send(Err(failed))),
            }
        };
        let thread = thread::Builder::new().name("onecopy-uring".into());
        let thread = signal::blocked(|| thread.spawn(run))
            .map_err(|error| Failed::System(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let registered = told.recv().unwrap_or(Err(Failed::System(Errno::IO)))?;
        Ok(Kernel { shared, thread: Some(thread), linger, registered })
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What is charged for sends without a copy.
    pub fn account(&self) -> &Account {
        &self.shared.account
    }

    pub fn wait_mode(&self) -> Wait {
        self.shared.wait
    }

    /// Whether the thread is there.
    pub fn is_up(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && self.shared.is_here()
    }

    /// What the ring has counted.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        const NAMES: [&str; 9] = [
            "enters",
            "requests",
            "completions",
            "zero_copy_sends",
            "registered_sends",
            "notifications",
            "notifications_copied",
            "notifications_unknown",
            "receives_without_page",
        ];
        let mut all = vec![("pages_registered", u64::from(self.registered))];
        all.extend(NAMES.into_iter().zip(self.shared.counters.words.iter().map(|word| word.load(Relaxed))));
        all.push(("gathered_bytes", self.shared.devices.gathered()));
        all.extend(self.shared.devices.by_nic());
        all
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.shared.is_here() {
            // The child of a fork: the thread, the ring and what they hold are the parent's.
            std::mem::forget(thread);
            return;
        }
        self.shared.inbox.lock().stop = Some(Instant::now() + self.linger);
        self.shared.wake.0.ring();
        // What is freed on the thread may hold the last handle; the thread then ends by itself.
        if thread.thread().id() != thread::current().id() {
            // A panic of it has been told already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Until nobody has a handle any more, and what was sent has left.
    fn run(&self, mut ring: Ring) {
        let mut running = Running { shared: self, sockets: HashMap::new() };
        let sockets = &mut running.sockets;
        let mut starving: Vec<Arc<dyn Attended>> = Vec::new();
        let mut patience = STARVED.0;
        let mut aborted = false;
        loop {
            let (wanting, stop) = {
                let mut inbox = self.inbox.lock();
                // Between here and the wait, whoever wants something rings.
                inbox.asleep = inbox.wanting.is_empty();
                (std::mem::take(&mut inbox.wanting), inbox.stop)
            };
            let idle = wanting.is_empty();
            for socket in wanting {
                sockets.entry(socket.token()).or_insert_with(|| Arc::clone(&socket));
                self.look(socket, &mut ring, sockets, &mut starving);
            }
            if !starving.is_empty() && ring.has_pages() {
                patience = STARVED.0;
                for socket in std::mem::take(&mut starving) {
                    self.look(socket, &mut ring, sockets, &mut starving);
                }
            }
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
                        self.look(socket, &mut ring, sockets, &mut starving);
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
                (true, None) if !starving.is_empty() => {
                    patience = (patience * 2).min(STARVED.1);
                    Some(patience)
                }
                (true, None) => None,
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
                    self.look(socket, &mut ring, sockets, &mut starving);
                }
            }
            self.show(&ring);
        }
    }

    fn look(
        &self,
        socket: Arc<dyn Attended>,
        ring: &mut Ring,
        sockets: &mut HashMap<u64, Arc<dyn Attended>>,
        starving: &mut Vec<Arc<dyn Attended>>,
    ) {
        match socket.turn(ring) {
            Turn::Waits => {}
            Turn::Starves => {
                if !starving.iter().any(|one| one.token() == socket.token()) {
                    starving.push(socket);
                }
            }
            Turn::Over => drop(sockets.remove(&socket.token())),
        }
    }

    fn show(&self, ring: &Ring) {
        let counters = ring.counters();
        let values = [
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

/// The sockets of the thread. However it ends, by a panic even, whoever waits is told.
struct Running<'a> {
    shared: &'a Shared,
    sockets: HashMap<u64, Arc<dyn Attended>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let wanting = {
            let mut inbox = self.shared.inbox.lock();
            inbox.gone = true;
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
        | Event::Writable { token } => *token,
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
