//! All that a script acts on: the stack, the descriptors, and the time, which passes only when somebody lets it.
//!
//! packetdrill has two threads: one that runs the script, and one for calls that the script says will block. A blocked call sleeps in a
//! futex, since packetdrill looks at its thread's state. When something happens it is woken, looks again, and either sleeps once more or
//! returns; until it has done so, *and asked for the time* (which packetdrill compares with the script), no time passes for anybody.

use crate::environment::Environment;
use crate::errno::{Errno, Outcome, Stop};
use crate::socket::Socket;
use crate::tcp::Tcp;
use crate::watched::Epoll;
use onecopy_chain::notify::zerocopy::{Account, Allowance, Small};
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
use onecopy_sync::atomic::Ordering;
use onecopy_sync::{Mutex, MutexGuard, Word};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::{self, ThreadId};

/// Nanoseconds that pass by each look at the clock, and by each packet that leaves. packetdrill spins on its clock; and no two packets of
/// a real host leave at the same moment, which RACK and the scripts rely on.
pub(crate) const TICK: u64 = 1_000;

/// Where the clock begins: some day, so that it looks like the time of day.
const EPOCH: u64 = 1_700_000_000_000_000_000;

/// How far the time may run ahead while packetdrill waits for a packet: as far as a script's patience (2 s behind what it expects, and no
/// script expects a packet after more than 120 s, the longest retransmission timeout).
const PATIENCE: u64 = 130_000_000_000;

/// What stands behind a descriptor. (Pipes and files are the kernel's own.)
#[derive(Debug)]
pub(crate) enum File {
    Socket(Box<Socket>),
    Epoll(Epoll),
}

/// A call that sleeps.
#[derive(Debug)]
struct Sleeper {
    deadline: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct World {
    /// Nanoseconds since 1970, as far as the script knows.
    pub(crate) now: u64,
    pub(crate) tcp: Tcp,
    pub(crate) files: BTreeMap<i32, File>,
    pub(crate) environment: Environment,
    /// Where the bytes of sends lie.
    pub(crate) pool: PagePool,
    /// Of sends with MSG_ZEROCOPY: which are complete, and what they may keep.
    pub(crate) account: Account,
    /// Packets that have left, and when.
    out: VecDeque<(u64, Vec<u8>)>,
    sleepers: Vec<Sleeper>,
    /// Calls that were woken and have neither gone to sleep again nor asked for the time.
    busy: usize,
    /// Of these, the threads whose calls have returned.
    returned: Vec<ThreadId>,
    /// Threads (folders of /proc) that have asked for the time after such a call, and may not have told packetdrill of it yet.
    finishing: Vec<PathBuf>,
    /// Something has happened since sleepers were woken last.
    changed: bool,
}

/// The one world of this process.
pub(crate) struct Shared {
    world: Mutex<World>,
    /// Counts how often sleepers were woken: they sleep on it.
    woken: Word,
    /// Counts how often `busy` fell: who waits for it to be 0 sleeps on it.
    settled: Word,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

/// Makes the world; only the first call does.
pub(crate) fn create(flags: &str) {
    SHARED.get_or_init(|| {
        let environment = Environment::new();
        // As root: memory is not charged. A script says what is sent without a copy.
        let allowance = Allowance { pinned: None, small: Small::Below(0), ..Allowance::default() };
        let pool = PagePool::new(PoolConfig::new(), Heap::new());
        let world = World {
            now: EPOCH,
            tcp: Tcp::default(),
            files: BTreeMap::new(),
            environment,
            pool: pool.expect("a pool on the heap needs nothing"),
            account: Account::new(allowance),
            out: VecDeque::new(),
            sleepers: Vec::new(),
            busy: 0,
            returned: Vec::new(),
            finishing: Vec::new(),
            changed: false,
        };
        if flags.contains("verbose") {
            eprintln!("onecopy: {world:?}");
        }
        Shared { world: Mutex::new(world), woken: Word::new(0), settled: Word::new(0) }
    });
}

/// The world, if there is one: a descriptor of another process's life is asked about before.
pub(crate) fn shared() -> Option<&'static Shared> {
    SHARED.get()
}

/// A call that never sleeps.
pub(crate) fn call<R>(work: impl FnOnce(&mut World) -> Outcome<R>) -> Outcome<R> {
    let shared = shared().ok_or(Errno(libc::ENXIO))?;
    let mut world = shared.enter();
    let result = work(&mut world);
    shared.leave(world);
    result
}

/// A call that sleeps as long as `attempt` says [`Stop::Wait`]. `prepare` says until when at most; `attempt` is told whether that is over.
pub(crate) fn blocking<R>(
    prepare: impl FnOnce(&mut World) -> Outcome<Option<u64>>,
    mut attempt: impl FnMut(&mut World, bool) -> Result<R, Stop>,
) -> Outcome<R> {
    let shared = shared().ok_or(Errno(libc::ENXIO))?;
    let mut world = shared.enter();
    let deadline = match prepare(&mut world) {
        Ok(deadline) => deadline,
        Err(errno) => {
            shared.leave(world);
            return Err(errno);
        }
    };
    let mut woken = false;
    loop {
        let late = deadline.is_some_and(|deadline| deadline <= world.now);
        let result = match attempt(&mut world, late) {
            Ok(result) => Ok(result),
            Err(Stop::Failed(errno)) => Err(errno),
            Err(Stop::Wait) => {
                world.settle();
                world.sleepers.push(Sleeper { deadline });
                if woken {
                    shared.one_settled(&mut world);
                }
                // Whoever wakes changes the word under the lock that we still hold.
                let seen = shared.woken.load(Ordering::Relaxed);
                drop(world);
                while shared.woken.load(Ordering::Relaxed) == seen {
                    shared.woken.wait(seen, None);
                }
                world = shared.world.lock();
                woken = true;
                continue;
            }
        };
        if woken {
            // It is waited for until it asks for the time.
            world.settle();
            world.returned.push(thread::current().id());
        } else {
            shared.leave(world);
        }
        return result;
    }
}

/// The time. Some passes.
pub(crate) fn look_at_the_clock() -> u64 {
    let Some(shared) = shared() else { return EPOCH };
    let mut world = shared.world.lock();
    let me = thread::current().id();
    if let Some(place) = world.returned.iter().position(|thread| *thread == me) {
        world.returned.swap_remove(place);
        world.finishing.extend(own_folder());
        world.now += TICK;
        let now = world.now;
        shared.one_settled(&mut world);
        return now;
    }
    let to = world.now + TICK;
    let world = shared.advance(world, to);
    world.now
}

/// Lets `span` nanoseconds pass.
pub(crate) fn sleep(span: u64) {
    if let Some(shared) = shared() {
        let mut world = shared.quiet(shared.world.lock());
        let to = world.now + span;
        // (The thread of calls that block may be the one that sleeps, before its next call.)
        let (mut finishing, own) = (std::mem::take(&mut world.finishing), own_folder());
        finishing.retain(|thread| Some(thread) != own.as_ref());
        drop(shared.advance(world, to));
        // In real time it would long be through with its call; the next event may be about what that has made.
        finishing.iter().for_each(|thread| wait_asleep(thread));
    }
}

/// This thread's folder of /proc.
fn own_folder() -> Option<PathBuf> {
    std::fs::read_link("/proc/thread-self").ok().map(|link| Path::new("/proc").join(link))
}

/// Waits until a thread sleeps. (packetdrill's lock is free while it calls [`sleep`]: who sleeps now waits for the next call.)
fn wait_asleep(thread: &Path) {
    let sleeps = || {
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('S') || rest.is_empty())
    };
    while !sleeps() {
        thread::yield_now();
    }
}

/// A packet for the stack.
pub(crate) fn deliver(packet: &[u8]) {
    if let Some(shared) = shared() {
        let mut world = shared.enter();
        let now = world.now;
        let World { tcp, pool, .. } = &mut *world;
        tcp.receive(now, packet, pool);
        world.changed = true;
        shared.leave(world);
    }
}

/// The next packet of the stack, and when it left. Time passes until there is one; `None` if there is none to be expected.
pub(crate) fn collect() -> Option<(u64, Vec<u8>)> {
    let shared = shared()?;
    let mut world = shared.enter();
    world.settle();
    let until = world.now + PATIENCE;
    loop {
        if let Some(packet) = world.out.pop_front() {
            shared.leave(world);
            return Some(packet);
        }
        let next = world.deadline().filter(|next| *next <= until)?;
        world = shared.advance(world, next);
    }
}

impl Shared {
    /// At the beginning of a call: nobody else is at work, and the stack knows of what was changed around it.
    fn enter(&self) -> MutexGuard<'_, World> {
        let mut world = self.quiet(self.world.lock());
        if world.environment.refresh() {
            let World { tcp, environment, .. } = &mut *world;
            tcp.configure(environment);
        }
        world
    }

    /// At its end: what follows from it happens.
    fn leave<'a>(&'a self, mut world: MutexGuard<'a, World>) {
        world.settle();
        drop(self.wake(world));
    }

    /// Wakes who sleeps, if anything has happened, and waits until they are through.
    fn wake<'a>(&'a self, mut world: MutexGuard<'a, World>) -> MutexGuard<'a, World> {
        let late = |world: &World| {
            world
                .sleepers
                .iter()
                .any(|sleeper| sleeper.deadline.is_some_and(|deadline| deadline <= world.now))
        };
        if !world.sleepers.is_empty() && (world.changed || late(&world)) {
            world.changed = false;
            world.busy += world.sleepers.len();
            world.sleepers.clear();
            self.woken.fetch_add(1, Ordering::Relaxed);
            self.woken.wake(u32::MAX);
            world = self.quiet(world);
        }
        world
    }

    /// Waits until no call is under way that was woken.
    fn quiet<'a>(&'a self, mut world: MutexGuard<'a, World>) -> MutexGuard<'a, World> {
        while world.busy > 0 {
            let seen = self.settled.load(Ordering::Relaxed);
            drop(world);
            self.settled.wait(seen, None);
            world = self.world.lock();
        }
        world
    }

    /// A call that was woken sleeps again, or is over.
    fn one_settled(&self, world: &mut World) {
        world.busy -= 1;
        self.settled.fetch_add(1, Ordering::Relaxed);
        self.settled.wake(u32::MAX);
    }

    /// Lets the time pass until `to`, and all that is due happen in its turn.
    fn advance<'a>(&'a self, mut world: MutexGuard<'a, World>, to: u64) -> MutexGuard<'a, World> {
        let mut idle = 0;
        while let Some(next) = world.deadline().filter(|next| *next <= to) {
            // A deadline that stays in the past would keep us here for ever: say so instead.
            idle = if next < world.now { idle + 1 } else { 0 };
            assert!(idle < 100_000, "the stack's deadline {next} stands still at {}", world.now);
            world.now = world.now.max(next);
            let now = world.now;
            world.tcp.advance(now);
            world.settle();
            world = self.wake(world);
        }
        world.now = world.now.max(to);
        self.wake(world)
    }
}

impl World {
    /// When something happens next by itself.
    fn deadline(&self) -> Option<u64> {
        let sleepers = self.sleepers.iter().filter_map(|sleeper| sleeper.deadline);
        sleepers.chain(self.tcp.deadline()).min()
    }

    /// What follows from the last thing done: packets leave, sockets become ready, sends complete.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut quiet = true;
            let Environment { refuses, plain, .. } = self.environment;
            while let Some(packets) = self.tcp.transmit(refuses, !plain) {
                quiet = false;
                for packet in packets {
                    self.out.push_back((self.now, packet));
                    self.now += TICK;
                }
                self.stamp_sent();
            }
            while let Some((id, ready)) = self.tcp.event() {
                quiet = false;
                self.changed = true;
                if let Some((fd, socket)) = self.socket_of(id) {
                    let key = socket.edge(ready);
                    self.notify(fd, key);
                }
            }
            if quiet {
                break;
            }
        }
        self.complete();
    }

    /// The descriptor and the socket of a connection.
    pub(crate) fn socket_of(&mut self, id: crate::tcp::Id) -> Option<(i32, &mut Socket)> {
        self.files.iter_mut().find_map(|(fd, file)| match file {
            File::Socket(socket) if socket.id == id => Some((*fd, &mut **socket)),
            _ => None,
        })
    }

    /// The socket of a descriptor.
    pub(crate) fn socket(&mut self, fd: i32) -> Outcome<&mut Socket> {
        match self.files.get_mut(&fd) {
            Some(File::Socket(socket)) => Ok(socket),
            Some(File::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno(libc::EBADF)),
        }
    }

    /// Whether a descriptor is a socket of ours.
    pub(crate) fn has_socket(&self, fd: i32) -> bool {
        matches!(self.files.get(&fd), Some(File::Socket(_)))
    }

    /// Tells the sets that watch `fd` that `events` have come.
    pub(crate) fn notify(&mut self, fd: i32, events: u32) {
        if events == 0 {
            return;
        }
        for (each, file) in &mut self.files {
            match file {
                File::Epoll(epoll) => epoll.notify(fd, events),
                File::Socket(socket) if *each == fd => socket.told.tell(events),
                File::Socket(_) => {}
            }
        }
    }

    /// Says that something has happened by which a sleeper may go on.
    pub(crate) fn touch(&mut self) {
        self.changed = true;
    }
}
