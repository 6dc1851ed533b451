//! Runs a script on a host: one event after the other, each at its time.

mod calls;
mod packets;
mod streams;

use crate::host::Host;
use crate::script::{Action, Event, Script, Time};
use crate::{MILLISECOND, SECOND, constants};
use calls::{Pending, Socket};
use packets::Arrived;
use std::collections::{BTreeMap, VecDeque};
use streams::Streams;

/// How long a packet is waited for that may come whenever.
const PATIENCE: u64 = 200 * SECOND;

/// Runs `script` on `host`. `peer_base` is what is added to the peer's sequence numbers, so that they wrap where a test wants it.
pub(crate) fn run(script: &Script, host: &mut dyn Host, peer_base: u32) -> Result<Ran, String> {
    let start = host.now();
    let mut run = Run {
        host,
        start,
        line: 0,
        last: None,
        arrived: VecDeque::new(),
        streams: Streams::new(peer_base),
        sockets: BTreeMap::new(),
        pending: None,
        about: None,
    };
    for event in &script.events {
        run.line = event.line;
        run.event(event).map_err(|why| format!("{}:{}: {why}", script.file, run.line))?;
    }
    run.end().map_err(|why| format!("{}:{}: {why}", script.file, run.line))?;
    Ok(Ran { first_number: run.streams.first_number() })
}

/// What was seen of a run.
pub(crate) struct Ran {
    /// The host's first sequence number, of its first connection, and when it was first seen.
    pub first_number: Option<(u64, u32)>,
}

struct Run<'a> {
    host: &'a mut dyn Host,
    start: u64,
    /// Of the event that runs.
    line: usize,
    /// When the event before was to be, and whether others may count from there.
    last: Option<(u64, bool)>,
    arrived: VecDeque<Arrived>,
    streams: Streams,
    /// By the script's numbers.
    sockets: BTreeMap<i64, Socket>,
    pending: Option<Pending>,
    /// Whose TCP_INFO is looked at: the last one that was connected or accepted.
    about: Option<i64>,
}

/// When an event is to be, since the script's beginning.
#[derive(Clone, Copy)]
struct Due {
    from: u64,
    until: u64,
    /// What the event before is away, for the tolerance.
    distance: u64,
    any: bool,
}

impl Run<'_> {
    fn now(&self) -> u64 {
        self.host.now() - self.start
    }

    /// How far times may be off: what the host says, or an eighth of the time that has passed since the event before.
    fn tolerance(&self, due: Due) -> u64 {
        self.host.tolerance().max(due.distance / 8)
    }

    fn event(&mut self, event: &Event) -> Result<(), String> {
        let counts = matches!(event.time, Time::At(_) | Time::After(_));
        let base = match self.last {
            Some((at, true)) if counts => at,
            _ => self.now(),
        };
        let before = self.last.map_or(0, |(at, _)| at);
        let (from, until) = match event.time {
            Time::At(at) => (at, at),
            Time::After(more) => (base + more, base + more),
            Time::Between(from, until) => (from, until),
            Time::AfterBetween(from, until) => (base + from, base + until),
            Time::Any => (base, base),
        };
        let due = Due { from, until, distance: from.saturating_sub(before), any: event.time == Time::Any };
        if counts && from < before {
            return Err(format!("it is to be at {}, before the event above it", seconds(from)));
        }
        let outgoing = matches!(&event.action, Action::Packet(packet) if !packet.incoming);
        if !outgoing {
            self.wait_until(from)?;
            self.host.comes_to(self.start + from);
        }
        match &event.action {
            Action::Packet(packet) if packet.incoming => self.inject(packet)?,
            Action::Packet(packet) => self.expect(packet, due)?,
            Action::Call(call) => {
                let whence = if matches!(event.time, Time::At(_) | Time::Between(..)) { 0 } else { base };
                self.call(call, due, call.ends.map(|ends| whence + ends))?;
            }
            Action::Sysctl(all) => {
                for (name, value) in all {
                    self.host.sysctl(name, value)?;
                }
            }
            Action::Assert(claims) => self.assert(claims)?,
        }
        // What prepares the script takes as long as it takes; the time begins behind it.
        if matches!(event.action, Action::Sysctl(_)) && self.last.is_none() {
            self.start = self.host.now();
        } else {
            self.last = Some((if counts { from } else { self.now() }, counts));
        }
        Ok(())
    }

    /// Lets time pass until `target`, since the beginning, and takes what comes meanwhile.
    fn wait_until(&mut self, target: u64) -> Result<(), String> {
        loop {
            self.look()?;
            let now = self.now();
            if now >= target {
                return Ok(());
            }
            // A call that blocks is asked for again every millisecond at least.
            let step = if self.pending.is_some() { target.min(now + MILLISECOND) } else { target };
            self.host.pass(self.start + step)?;
        }
    }

    /// Takes what has come, and lets a call that blocks go on.
    fn look(&mut self) -> Result<(), String> {
        self.collect()?;
        self.go_on()?;
        self.collect()
    }

    fn assert(&mut self, claims: &[(String, crate::expression::Expression)]) -> Result<(), String> {
        let Some(socket) = self.about.and_then(|fd| self.sockets.get(&fd)) else {
            return Err("there is no connection whose TCP_INFO could be asked for".to_owned());
        };
        let info = self
            .host
            .info(socket.handle)
            .map_err(|errno| format!("TCP_INFO: {}", constants::errno_name(errno)))?;
        let name = |name: &str| match name.strip_prefix("tcpi_") {
            Some(field) => info.get(field).copied(),
            None => constants::number(name).map(|number| number as u64),
        };
        for (text, claim) in claims {
            if claim.value(&name)? == 0 {
                let mut names = Vec::new();
                claim.names(&mut names);
                let values: Vec<String> = names
                    .iter()
                    .filter(|name| name.starts_with("tcpi_"))
                    .map(|text| format!("{text} is {}", name(text).unwrap_or_default()))
                    .collect();
                return Err(format!("expected {text}; but {}", values.join(", ")));
            }
        }
        Ok(())
    }

    /// Nothing may be left: no call that blocks, no packet that nobody has asked for.
    fn end(&mut self) -> Result<(), String> {
        self.finish_pending()?;
        self.look()?;
        match self.arrived.front() {
            None => Ok(()),
            Some(_) => Err(format!("the script is at its end, but there came\n{}", self.show_arrived())),
        }
    }
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:06} s", nanos / SECOND, nanos % SECOND / 1000)
}
