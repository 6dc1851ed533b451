//! What is told in the end: where bytes went, who copied them, and what the memory really is.

use super::super::report::rate;
use super::pattern::Pattern;
use indicatif::HumanBytes;
use onecopy::advanced::link::rx::QueueStats;
use onecopy::advanced::pool::{Copied, DeviceMemory};
use onecopy::devmem::{Frag, Refusals};
use onecopy::storage::Moved;
use onecopy::{Stack, Stats, tcp};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the memory is, said to everybody.
pub const STAND_IN: &str = "opaque, a stand-in: a memfd that no process maps, since this program has no other kind yet; there is no GPU behind it";

/// What was received.
#[derive(Clone, Debug)]
pub struct Got {
    /// What it should be, if that is looked at.
    pub pattern: Option<Pattern>,
    pub validated: u64,
    pub errors: u64,
    linear: u64,
    device: u64,
    fragments: u64,
    given_back: u64,
    calls: u64,
    /// What went to a file by io_uring.
    pub file: Option<FileMoved>,
    clock: Clock,
}

/// What io_uring moved between the memory and a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileMoved(Moved);

impl FileMoved {
    pub fn add(&mut self, more: Moved) {
        let all = &mut self.0;
        all.bytes += more.bytes;
        all.landed += more.landed;
        all.requests += more.requests;
        all.registered = more.registered;
    }

    fn json(self) -> Value {
        let Moved { bytes, landed, requests, registered, .. } = self.0;
        json!({"by": "io_uring", "bytes": bytes, "landed": landed, "requests": requests, "registered": registered})
    }

    /// A line of what `what` ("read", "written").
    fn line(self, what: &str) -> String {
        let Moved { landed, requests, registered, .. } = self.0;
        let pages = if registered { "registered pages" } else { "pages that are not registered (ulimit -l)" };
        format!(
            "onecopy nc: the file was {what} by io_uring in {requests} requests; {landed} bytes by {pages} of the host's, as the memory has no address"
        )
    }
}

/// What was sent.
#[derive(Clone, Debug)]
pub struct Gave {
    bytes: u64,
    sends: u64,
    /// Sends that were acknowledged whole.
    pub completed: u64,
    /// What came from a file by io_uring.
    pub file: Option<FileMoved>,
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    begun: Instant,
    last: Instant,
}

impl Clock {
    fn start() -> Clock {
        let now = Instant::now();
        Clock { begun: now, last: now }
    }

    fn took(&self) -> Duration {
        self.last - self.begun
    }
}

impl Got {
    pub fn new(pattern: Option<Pattern>) -> Got {
        Got {
            pattern,
            validated: 0,
            errors: 0,
            linear: 0,
            device: 0,
            fragments: 0,
            given_back: 0,
            calls: 0,
            file: None,
            clock: Clock::start(),
        }
    }

    /// Bytes that lie in the host's memory.
    pub fn linear(&mut self, bytes: u64) {
        self.linear += bytes;
        self.clock.last = Instant::now();
    }

    /// Bytes that lie in the device's.
    pub fn device(&mut self, frags: &[Frag]) {
        self.device += frags.iter().map(|frag| u64::from(frag.len)).sum::<u64>();
        self.fragments += frags.len() as u64;
        self.clock.last = Instant::now();
    }

    /// So many tokens by one call.
    pub fn given_back(&mut self, tokens: u64) {
        self.given_back += tokens;
        self.calls += 1;
    }
}

impl Gave {
    pub fn new() -> Gave {
        Gave { bytes: 0, sends: 0, completed: 0, file: None, clock: Clock::start() }
    }

    pub fn sent(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.sends += 1;
        self.clock.last = Instant::now();
    }
}

/// What the counts are taken from.
pub struct Of {
    pub stack: Stack,
    pub memory: DeviceMemory,
    /// The queues that are bound.
    pub queues: Vec<u32>,
    /// Which way payload takes to the memory, or out of it.
    pub path: String,
}

/// What was counted by others.
#[derive(Clone, Debug)]
struct Counts {
    stats: Stats,
    copied: Copied,
    memory: u64,
    queues: Vec<(u32, QueueStats)>,
    refused: Refusals,
    names: (Option<String>, Option<String>),
    path: String,
}

/// One direction. While it runs, its connection is held to be asked.
struct Side<T> {
    what: T,
    live: Option<(Of, tcp::Stream)>,
    counts: Counts,
}

impl<T> Side<T> {
    fn new(what: T, of: Of, stream: tcp::Stream) -> Side<T> {
        let name = |address: onecopy::Result<std::net::SocketAddr>| address.ok().map(|at| at.to_string());
        let names = (name(stream.local_addr()), name(stream.peer_addr()));
        let counts = Counts {
            stats: Stats::default(),
            copied: Copied::default(),
            memory: of.memory.len(),
            queues: Vec::new(),
            refused: Refusals::default(),
            names,
            path: of.path.clone(),
        };
        Side { what, live: Some((of, stream)), counts }
    }

    fn count(&mut self) {
        let Some((of, stream)) = &self.live else { return };
        self.counts.stats = stream.stats();
        self.counts.copied = of.memory.copied();
        self.counts.refused = of.stack.device_refusals();
        let of_queue = |queue: &u32| of.stack.queue_stats(*queue).map(|stats| (*queue, stats));
        self.counts.queues = of.queues.iter().filter_map(of_queue).collect();
    }

    /// Counted for the last time; the connection is let go.
    fn end(&mut self) -> Option<(Of, tcp::Stream)> {
        self.count();
        self.live.take()
    }
}

/// What is going on, to be told about at any moment.
#[derive(Default)]
pub struct State {
    received: Mutex<Option<Side<Got>>>,
    sent: Mutex<Option<Side<Gave>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub fn receives(&self, got: Got, of: Of, stream: tcp::Stream) {
        *lock(&self.received) = Some(Side::new(got, of, stream));
    }

    pub fn sends(&self, gave: Gave, of: Of, stream: tcp::Stream) {
        *lock(&self.sent) = Some(Side::new(gave, of, stream));
    }

    /// Notes what was received. (Who receives has begun.)
    pub fn got<R>(&self, note: impl FnOnce(&mut Got) -> R) -> R {
        let mut received = lock(&self.received);
        note(&mut received.as_mut().unwrap_or_else(|| unreachable!("nobody receives")).what)
    }

    /// Whether bytes are compared with a pattern.
    pub fn validates(&self) -> bool {
        lock(&self.received).as_ref().is_some_and(|side| side.what.pattern.is_some())
    }

    /// Notes what was sent. (Who sends has begun.)
    pub fn gave<R>(&self, note: impl FnOnce(&mut Gave) -> R) -> R {
        let mut sent = lock(&self.sent);
        note(&mut sent.as_mut().unwrap_or_else(|| unreachable!("nobody sends")).what)
    }

    /// Nothing more is received.
    pub fn received_all(&self) {
        // (Let go without the lock: the last handle of a stack waits.)
        let live = lock(&self.received).as_mut().and_then(Side::end);
        drop(live);
    }

    /// Nothing more is sent.
    pub fn sent_all(&self) {
        let live = lock(&self.sent).as_mut().and_then(Side::end);
        drop(live);
    }

    /// Tells what came of it, if anything began. `cut`: why it ended early.
    pub fn tell(&self, as_json: bool, cut: Option<String>) {
        let (mut received, mut sent) = (lock(&self.received), lock(&self.sent));
        if received.is_none() && sent.is_none() {
            return;
        }
        if let Some(side) = &mut *received {
            side.count();
        }
        if let Some(side) = &mut *sent {
            side.count();
        }
        let (received, sent) = (received.as_ref(), sent.as_ref());
        match as_json {
            true => tell!("{}", object(received, sent, cut.as_deref())),
            false => tell!("{}", lines(received, sent, cut.as_deref())),
        }
    }
}

fn counts_json(counts: &Counts) -> Value {
    json!({
        "local": counts.names.0,
        "peer": counts.names.1,
        "memory": counts.memory,
        "path": counts.path,
        "user_copied": counts.stats.user_copied(),
        "kernel_copied": counts.stats.kernel_copied,
        "referenced": counts.stats.referenced,
        "refused": named(counts.refused.each()),
        "device_copied": {"into": counts.copied.into, "out": counts.copied.out},
    })
}

fn queue_json((queue, stats): &(u32, QueueStats)) -> Value {
    let mut object = named(stats.each());
    object.insert("queue".into(), (*queue).into());
    Value::Object(object)
}

fn named(counters: impl Iterator<Item = (&'static str, u64)>) -> Map<String, Value> {
    counters.map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// One object for programs.
fn object(received: Option<&Side<Got>>, sent: Option<&Side<Gave>>, cut: Option<&str>) -> Value {
    let merge = |mut object: Value, counts: &Counts| {
        if let (Value::Object(object), Value::Object(more)) = (&mut object, counts_json(counts)) {
            object.extend(more);
        }
        object
    };
    let received = received.map(|side| {
        let got = &side.what;
        let object = json!({
            "bytes": got.device + got.linear,
            "device": got.device,
            "linear": got.linear,
            "fragments": got.fragments,
            "tokens_given_back": got.given_back,
            "give_back_calls": got.calls,
            "seconds": got.clock.took().as_secs_f64(),
            "validated": got.pattern.map(|_| got.validated),
            "wrong": got.pattern.map(|_| got.errors),
            "file": got.file.map(FileMoved::json),
            "queues": side.counts.queues.iter().map(queue_json).collect::<Vec<_>>(),
        });
        merge(object, &side.counts)
    });
    let sent = sent.map(|side| {
        let gave = &side.what;
        let object = json!({
            "bytes": gave.bytes,
            "sends": gave.sends,
            "completed": gave.completed,
            "file": gave.file.map(FileMoved::json),
            "seconds": gave.clock.took().as_secs_f64(),
        });
        merge(object, &side.counts)
    });
    json!({"devmem": "opaque", "stand_in": true, "gpu": null, "about": STAND_IN, "received": received, "sent": sent, "cut": cut})
}

/// Lines for a person.
fn lines(received: Option<&Side<Got>>, sent: Option<&Side<Gave>>, cut: Option<&str>) -> String {
    let mut text = String::new();
    if let Some(side) = received {
        let (got, took) = (&side.what, side.what.clock.took());
        let all = got.device + got.linear;
        let _ = writeln!(
            text,
            "onecopy nc: received {all} bytes ({}) in {:.3} s{}: {} into device memory, {} linear",
            HumanBytes(all),
            took.as_secs_f64(),
            rate(all, took),
            got.device,
            got.linear
        );
        let _ = writeln!(
            text,
            "onecopy nc: {} of {} tokens given back in {} calls",
            got.given_back, got.fragments, got.calls
        );
        if got.pattern.is_some() {
            let _ = writeln!(text, "onecopy nc: validated {} bytes, {} wrong", got.validated, got.errors);
        }
        for (queue, stats) in &side.counts.queues {
            let _ = writeln!(
                text,
                "onecopy nc: queue {queue}: {} packets, {} bytes placed, {} of them by the kernel itself, {} unsplit, {} dropped for want of a page",
                stats.packets, stats.placed_bytes, stats.landed_bytes, stats.unsplit, stats.starved
            );
        }
        if let Some(file) = got.file {
            let _ = writeln!(text, "{}", file.line("written"));
        }
        copies(
            &mut text,
            all,
            &side.counts,
            ("landed and placed", side.counts.copied.out, "read back out of the memory"),
        );
    }
    if let Some(side) = sent {
        let (gave, took) = (&side.what, side.what.clock.took());
        let _ = writeln!(
            text,
            "onecopy nc: sent {} bytes ({}) of device memory in {:.3} s{}, {} of {} sends complete",
            gave.bytes,
            HumanBytes(gave.bytes),
            took.as_secs_f64(),
            rate(gave.bytes, took),
            gave.completed,
            gave.sends
        );
        if let Some(file) = gave.file {
            let _ = writeln!(text, "{}", file.line("read"));
        }
        copies(
            &mut text,
            gave.bytes,
            &side.counts,
            ("staged and sent", side.counts.copied.into, "put into the memory before"),
        );
    }
    let _ = write!(text, "onecopy nc: the memory is {STAND_IN}");
    if let Some(why) = cut {
        let _ = write!(text, "; cut short: {why}");
    }
    text
}

/// Who copied: this program, the kernel on the way, and whoever looked.
fn copies(text: &mut String, all: u64, counts: &Counts, (how, beside, why): (&str, u64, &str)) {
    let per = |bytes: u64| bytes as f64 / all.max(1) as f64;
    let _ = writeln!(
        text,
        "onecopy nc: copies per byte: user {:.2}, kernel {:.2} ({how}); besides, {beside} bytes were {why}",
        per(counts.stats.user_copied()),
        per(counts.stats.kernel_copied)
    );
}
