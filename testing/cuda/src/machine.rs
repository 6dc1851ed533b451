//! The device: what lies in its streams, and what of that is run when.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::hash::Hasher;
use std::rc::Rc;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::faults::Faults;
use crate::memory::Memory;
use crate::ptx::{Kernel, Thread};

pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NOT_INITIALIZED: c_int = 3;
pub const NO_DEVICE: c_int = 100;
pub const INVALID_DEVICE: c_int = 101;
pub const INVALID_CONTEXT: c_int = 201;
pub const INVALID_PTX: c_int = 218;
pub const INVALID_HANDLE: c_int = 400;
pub const NOT_FOUND: c_int = 500;
pub const NOT_READY: c_int = 600;
pub const ILLEGAL_ADDRESS: c_int = 700;
pub const ALREADY_REGISTERED: c_int = 712;
pub const NOT_REGISTERED: c_int = 713;

/// What lies in a stream.
pub enum Op {
    /// To a device address, from pinned memory, which is read when it is run.
    In {
        to: u64,
        from: usize,
        len: usize,
    },
    /// To device addresses, from pinned memory: (to, from, length) each, done in any order.
    Batch {
        pieces: Vec<(u64, usize, usize)>,
    },
    /// To a device address, what was staged.
    Staged {
        to: u64,
        bytes: Vec<u8>,
    },
    /// To an address of the host's.
    Out {
        to: usize,
        from: u64,
        len: usize,
    },
    /// On the device.
    Within {
        to: u64,
        from: u64,
        len: usize,
    },
    Launch {
        kernel: Rc<Kernel>,
        grid: (u32, u32),
        threads: u32,
        arguments: Vec<u64>,
    },
    Record {
        event: u64,
        turn: u64,
    },
    Wait {
        event: u64,
        turn: u64,
    },
    /// What waits for this one, of another stream, may go on.
    Pass {
        event: u64,
    },
}

/// The legacy default stream.
const LEGACY: u64 = 0;

/// Bytes of the host's that were still to be read when something was accepted.
struct Watched {
    at: usize,
    len: usize,
    hash: u64,
}

#[derive(Default)]
struct Stream {
    ops: VecDeque<(Op, Vec<Watched>)>,
    /// Sources since the last event.
    watched: Vec<Watched>,
    failed: c_int,
    /// Not in step with the legacy default stream.
    apart: bool,
}

#[derive(Default)]
struct Event {
    /// How often it was recorded, and how often that was run.
    turn: u64,
    done: u64,
    status: c_int,
    at_ns: u64,
    /// Destroyed: it goes when it has completed.
    ended: bool,
}

/// What takes how long on the device's clock.
struct Costs {
    copy_ns: u64,
    copy_gib: u64,
    /// A piece of a batch, which is a copy otherwise.
    piece_ns: u64,
    kernel_ns: u64,
    kernel_gib: u64,
}

pub struct Machine {
    pub faults: Faults,
    pub memory: Memory,
    pub initialised: bool,
    pub version: c_int,
    pub devices: c_int,
    pub contexts: u64,
    gone: c_int,
    sticky: bool,
    stir: bool,
    watch: bool,
    random: u64,
    clock_ns: u64,
    costs: Costs,
    streams: BTreeMap<u64, Stream>,
    events: BTreeMap<u64, Event>,
    pub modules: BTreeMap<u64, Rc<Kernel>>,
    last: u64,
    torn: u64,
    executed: u64,
    copies: u64,
    launches: u64,
}

struct Only(Machine);

// SAFETY: the one machine of a process lies behind a lock, and none of the Rc in it is given out.
unsafe impl Send for Only {}

static MACHINE: Mutex<Option<Only>> = Mutex::new(None);

/// The machine of this process, locked.
pub struct Locked(MutexGuard<'static, Option<Only>>);

impl std::ops::Deref for Locked {
    type Target = Machine;
    fn deref(&self) -> &Machine {
        &self.0.as_ref().expect("made when it was locked").0
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.0.as_mut().expect("made when it was locked").0
    }
}

/// Made at the first call, as the environment says.
pub fn machine() -> Locked {
    let mut only = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    only.get_or_insert_with(|| {
        let mut machine = Machine::new();
        let settings = std::env::var("ONECOPY_STAND_IN").unwrap_or_default();
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let known = setting.split_once('=').and_then(|(name, value)| match name.strip_prefix("fail.") {
                Some(symbol) => machine.faults.read(symbol, value),
                None => machine.set(name, value.parse().ok()?),
            });
            assert!(known.is_some(), "ONECOPY_STAND_IN: {setting} is no setting");
        }
        Only(machine)
    });
    Locked(only)
}

fn hash(at: usize, len: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    // SAFETY: what was accepted for reading is mapped until it was read: it is what a user of the driver promises.
    hasher.write(unsafe { slice::from_raw_parts(at as *const u8, len) });
    hasher.finish()
}

impl Machine {
    fn new() -> Machine {
        Machine {
            faults: Faults::default(),
            memory: Memory::default(),
            initialised: false,
            version: 12080,
            devices: 1,
            contexts: 0,
            gone: 0,
            sticky: false,
            stir: true,
            watch: true,
            random: 1,
            clock_ns: 0,
            costs: Costs { copy_ns: 1500, copy_gib: 20, piece_ns: 1000, kernel_ns: 6000, kernel_gib: 20 },
            streams: BTreeMap::from([(LEGACY, Stream::default())]),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            last: 0x1000,
            torn: 0,
            executed: 0,
            copies: 0,
            launches: 0,
        }
    }

    pub fn set(&mut self, name: &str, value: u64) -> Option<()> {
        match name {
            "seed" => self.random = value | 1,
            "version" => self.version = value as c_int,
            "devices" => self.devices = value as c_int,
            "gone" => self.gone = value as c_int,
            "sticky" => self.sticky = value != 0,
            "stir" => self.stir = value != 0,
            "watch" => self.watch = value != 0,
            "run" => self.run_all(),
            "copy_ns" => self.costs.copy_ns = value,
            "copy_gib" => self.costs.copy_gib = value.max(1),
            "piece_ns" => self.costs.piece_ns = value,
            "kernel_ns" => self.costs.kernel_ns = value,
            "kernel_gib" => self.costs.kernel_gib = value.max(1),
            _ => return None,
        }
        Some(())
    }

    pub fn get(&self, name: &str) -> Option<u64> {
        Some(match name {
            "torn" => self.torn,
            "waiting" => self.streams.values().map(|stream| stream.ops.len() as u64).sum(),
            "executed" => self.executed,
            "copies" => self.copies,
            "launches" => self.launches,
            "allocations" => self.memory.allocations() as u64,
            "pinned" => self.memory.pinned() as u64,
            "streams" => self.streams.len() as u64 - 1,
            "events" => self.events.values().filter(|event| !event.ended).count() as u64,
            "contexts" => self.contexts,
            "current" => crate::exports::current() as u64,
            _ => return None,
        })
    }

    /// Whether the device is still there.
    pub fn alive(&self) -> Result<(), c_int> {
        if self.gone == 0 { Ok(()) } else { Err(self.gone) }
    }

    pub fn handle(&mut self) -> u64 {
        self.last += 0x10;
        self.last
    }

    pub fn new_stream(&mut self, apart: bool) -> u64 {
        let handle = self.handle();
        self.streams.insert(handle, Stream { apart, ..Stream::default() });
        handle
    }

    pub fn end_stream(&mut self, stream: u64) -> Result<(), c_int> {
        if stream == LEGACY {
            return Err(INVALID_HANDLE);
        }
        self.streams.remove(&stream).map(drop).ok_or(INVALID_HANDLE)
    }

    pub fn new_event(&mut self) -> u64 {
        let handle = self.handle();
        self.events.insert(handle, Event::default());
        handle
    }

    pub fn end_event(&mut self, event: u64) -> Result<(), c_int> {
        let found = self.events.get_mut(&event).filter(|event| !event.ended).ok_or(INVALID_HANDLE)?;
        found.ended = true;
        if found.done == found.turn {
            self.events.remove(&event);
        }
        Ok(())
    }

    /// Takes something into a stream. It is run later.
    pub fn accept(&mut self, stream: u64, op: Op) -> Result<(), c_int> {
        let watched: Vec<Watched> =
            self.sources(&op).into_iter().map(|(at, len)| Watched { at, len, hash: hash(at, len) }).collect();
        match &op {
            Op::In { .. } | Op::Staged { .. } => self.copies += 1,
            Op::Batch { pieces } => self.copies += pieces.len() as u64,
            Op::Launch { .. } => self.launches += 1,
            _ => {}
        }
        self.keep_step(stream)?;
        self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?.ops.push_back((op, watched));
        Ok(())
    }

    /// What comes to the legacy default stream waits for all that lies in the streams that are not apart, and what comes to those for what lies in it
    /// ("Stream synchronization behavior" in the driver API's reference).
    fn keep_step(&mut self, stream: u64) -> Result<(), c_int> {
        let this = self.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        let waits_for = |(handle, other): &(&u64, &Stream)| {
            let in_step = (**handle == LEGACY) != (stream == LEGACY) && !this.apart && !other.apart;
            in_step && !other.ops.is_empty()
        };
        let before: Vec<u64> = self.streams.iter().filter(waits_for).map(|(handle, _)| *handle).collect();
        for other in before {
            let event = self.handle();
            self.events.insert(event, Event { turn: 1, ended: true, ..Event::default() });
            for (at, op) in [(other, Op::Pass { event }), (stream, Op::Wait { event, turn: 1 })] {
                self.streams.get_mut(&at).ok_or(INVALID_HANDLE)?.ops.push_back((op, Vec::new()));
            }
        }
        Ok(())
    }

    /// Which of the host's bytes it will read.
    fn sources(&self, op: &Op) -> Vec<(usize, usize)> {
        match op {
            _ if !self.watch => Vec::new(),
            Op::In { from, len, .. } => vec![(*from, *len)],
            Op::Batch { pieces } => pieces.iter().map(|(_, from, len)| (*from, *len)).collect(),
            Op::Launch { kernel, arguments, .. } if kernel.name() == "onecopy_gather" => {
                let (table, count) = (arguments[0], arguments[1] as usize);
                let Some(entries) = self.memory.resolve(table, count * 24) else { return Vec::new() };
                // SAFETY: that many bytes are there.
                let bytes = unsafe { slice::from_raw_parts(entries, count * 24) };
                let mut all = vec![(entries as usize, bytes.len())];
                for entry in bytes.chunks_exact(24) {
                    let from = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
                    let len = u32::from_le_bytes(entry[16..20].try_into().expect("4 bytes")) as usize;
                    // What lies on the device is no business of the host's.
                    let host = self.memory.resolve(from, len).map(|bytes| bytes as usize);
                    all.extend(host.filter(|at| self.memory.is_pinned(*at, len)).map(|at| (at, len)));
                }
                all
            }
            _ => Vec::new(),
        }
    }

    pub fn record(&mut self, event: u64, stream: u64) -> Result<(), c_int> {
        let found = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        found.turn += 1;
        let turn = found.turn;
        self.accept(stream, Op::Record { event, turn })
    }

    pub fn wait(&mut self, stream: u64, event: u64) -> Result<(), c_int> {
        let turn = self.events.get(&event).ok_or(INVALID_HANDLE)?.turn;
        self.accept(stream, Op::Wait { event, turn })
    }

    /// Some of what lies in streams is run, or nothing; then whether the event has completed.
    pub fn query(&mut self, event: u64) -> Result<(), c_int> {
        self.stir();
        let event = self.events.get(&event).ok_or(INVALID_HANDLE)?;
        match (event.done == event.turn, event.status) {
            (false, _) => Err(NOT_READY),
            (true, 0) => Ok(()),
            (true, status) => Err(status),
        }
    }

    /// Runs what has to be run until the event has completed.
    pub fn finish_event(&mut self, event: u64) -> Result<(), c_int> {
        loop {
            let found = self.events.get(&event).ok_or(INVALID_HANDLE)?;
            if found.done == found.turn {
                return if found.status == 0 { Ok(()) } else { Err(found.status) };
            }
            if !self.step_any() {
                return Err(NOT_READY);
            }
        }
    }

    /// Runs all that lies in the stream, and what it waits for.
    pub fn finish_stream(&mut self, stream: u64) -> Result<(), c_int> {
        loop {
            let found = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
            if found.ops.is_empty() {
                let failed = std::mem::take(&mut found.failed);
                self.verify(stream);
                return if failed == 0 { Ok(()) } else { Err(failed) };
            }
            if !self.step_any() {
                return Err(NOT_READY);
            }
        }
    }

    pub fn elapsed_ns(&self, from: u64, to: u64) -> Result<u64, c_int> {
        let of = |event: u64| self.events.get(&event).ok_or(INVALID_HANDLE);
        let (from, to) = (of(from)?, of(to)?);
        if from.done != from.turn || to.done != to.turn {
            return Err(NOT_READY);
        }
        Ok(to.at_ns - from.at_ns.min(to.at_ns))
    }

    /// Puts them into an order that is drawn.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            let other = (self.draw() % (at as u64 + 1)) as usize;
            all.swap(at, other);
        }
    }

    fn draw(&mut self) -> u64 {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Runs up to three things, of whatever streams.
    fn stir(&mut self) {
        let count = if self.stir { self.draw() % 4 } else { 0 };
        for _ in 0..count {
            self.step_any();
        }
    }

    pub fn run_all(&mut self) {
        while self.step_any() {}
    }

    /// Runs one thing, of a stream that is drawn. Whether there was one that could be run.
    fn step_any(&mut self) -> bool {
        let ready: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, stream)| match stream.ops.front() {
                None => false,
                Some((Op::Wait { event, turn }, _)) => {
                    self.events.get(event).is_none_or(|event| event.done >= *turn)
                }
                Some(_) => true,
            })
            .map(|(handle, _)| *handle)
            .collect();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[(self.draw() % ready.len() as u64) as usize];
        self.step(stream);
        true
    }

    fn step(&mut self, handle: u64) {
        let Some(stream) = self.streams.get_mut(&handle) else { return };
        let Some((op, watched)) = stream.ops.pop_front() else { return };
        stream.watched.extend(watched);
        match op {
            Op::Wait { .. } => {}
            Op::Pass { event } => drop(self.events.remove(&event)),
            Op::Record { event, turn } => {
                let status = std::mem::take(&mut stream.failed);
                self.verify(handle);
                let now = self.clock_ns;
                let handle_of = event;
                if let Some(event) = self.events.get_mut(&event) {
                    (event.done, event.status, event.at_ns) = (turn, status, now);
                    if event.ended && event.done == event.turn {
                        self.events.remove(&handle_of);
                    }
                }
            }
            op => {
                self.executed += 1;
                let ran =
                    self.alive().and_then(|()| self.faults.met("execute")).and_then(|()| self.execute(&op));
                if let Err(code) = ran {
                    if self.sticky {
                        self.gone = code;
                    }
                    if let Some(stream) = self.streams.get_mut(&handle) {
                        stream.failed = code;
                    }
                }
            }
        }
    }

    /// Whether what was to be read until now is still as it was when it was accepted.
    fn verify(&mut self, stream: u64) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        let watched = std::mem::take(&mut stream.watched);
        self.torn += watched.iter().filter(|one| hash(one.at, one.len) != one.hash).count() as u64;
    }

    fn execute(&mut self, op: &Op) -> Result<(), c_int> {
        // Blocks are run in any order ("Thread hierarchy" in the programming guide): in one that is drawn.
        let mut blocks = Vec::new();
        if let Op::Launch { grid, .. } = op {
            blocks.extend((0..grid.1).flat_map(|y| (0..grid.0).map(move |x| (x, y))));
            self.shuffle(&mut blocks);
        }
        let bytes = |at: u64, len: usize| self.memory.resolve(at, len).ok_or(ILLEGAL_ADDRESS);
        let (to, from, len) = match op {
            Op::In { to, from, len } => (bytes(*to, *len)?, *from as *const u8, *len),
            Op::Batch { pieces } => {
                for (to, from, len) in pieces {
                    let to = bytes(*to, *len)?;
                    // SAFETY: memory that is mapped, and the host's, which a user of the driver promises to keep until this is done.
                    unsafe { std::ptr::copy(*from as *const u8, to, *len) };
                    self.clock_ns += self.costs.piece_ns + *len as u64 / self.costs.copy_gib;
                }
                self.clock_ns += self.costs.copy_ns;
                return Ok(());
            }
            Op::Staged { to, bytes: staged } => (bytes(*to, staged.len())?, staged.as_ptr(), staged.len()),
            Op::Out { to, from, len } => (*to as *mut u8, bytes(*from, *len)?.cast_const(), *len),
            Op::Within { to, from, len } => (bytes(*to, *len)?, bytes(*from, *len)?.cast_const(), *len),
            Op::Launch { kernel, grid, threads, arguments } => {
                let mut moved = 0;
                for (x, y) in blocks {
                    for thread in 0..*threads {
                        let thread = Thread { block: (x, y), blocks: grid.0, thread, threads: *threads };
                        kernel.run(&self.memory, thread, arguments).map_err(|why| {
                            eprintln!("stand-in: {}: {why}", kernel.name());
                            ILLEGAL_ADDRESS
                        })?;
                    }
                }
                if kernel.name() == "onecopy_gather" {
                    let (table, count) = (arguments[0], arguments[1] as usize);
                    let entries = self.memory.resolve(table, count * 24).ok_or(ILLEGAL_ADDRESS)?;
                    // SAFETY: that many bytes are there.
                    let entries = unsafe { slice::from_raw_parts(entries, count * 24) };
                    let len = |entry: &[u8]| u32::from_le_bytes(entry[16..20].try_into().expect("4 bytes"));
                    moved = entries.chunks_exact(24).map(|entry| u64::from(len(entry))).sum();
                }
                self.clock_ns += self.costs.kernel_ns + moved / self.costs.kernel_gib;
                return Ok(());
            }
            Op::Record { .. } | Op::Wait { .. } | Op::Pass { .. } => return Ok(()),
        };
        // SAFETY: both ends were found in memory that is mapped, or are what a user of the driver promises to keep until this is done.
        unsafe { std::ptr::copy(from, to, len) };
        self.clock_ns += self.costs.copy_ns + len as u64 / self.costs.copy_gib;
        Ok(())
    }
}
