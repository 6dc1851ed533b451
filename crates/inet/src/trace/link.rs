//! A link that is watched.

use super::line::Tracer;
use super::seen::{Seen, Way};
use onecopy_link::{Capabilities, Link, Packet};
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

/// Who watches a link.
pub trait Watch {
    /// A packet passes.
    fn packet(&mut self, seen: Seen);
}

impl<F: FnMut(Seen)> Watch for F {
    fn packet(&mut self, seen: Seen) {
        self(seen);
    }
}

/// A link whose packets `T` sees as they pass: what is handed to it, also what it drops then, and what it gives.
#[derive(Debug)]
pub struct Trace<L, T> {
    link: L,
    watch: T,
}

impl<L: Link, T: Watch> Trace<L, T> {
    /// Has `watch` see what passes `link`.
    pub fn new(link: L, watch: T) -> Trace<L, T> {
        Trace { link, watch }
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The link, to be changed.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Who watches.
    pub fn watch(&self) -> &T {
        &self.watch
    }

    /// Who watches, to be changed.
    pub fn watch_mut(&mut self) -> &mut T {
        &mut self.watch
    }

    /// Both.
    pub fn into_parts(self) -> (L, T) {
        (self.link, self.watch)
    }

    fn see(&mut self, now_ns: u64, way: Way, packet: &Packet) {
        self.watch.packet(Seen::of(now_ns, way, self.link.capabilities().medium, packet));
    }
}

impl<L: Link, T: Watch> Link for Trace<L, T> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn room(&self, now_ns: u64) -> usize {
        self.link.room(now_ns)
    }

    fn transmit(&mut self, now_ns: u64, packet: Packet) {
        self.see(now_ns, Way::Out, &packet);
        self.link.transmit(now_ns, packet);
    }

    fn receive(&mut self, now_ns: u64) -> Option<Packet> {
        let packet = self.link.receive(now_ns)?;
        self.see(now_ns, Way::In, &packet);
        Some(packet)
    }

    fn deadline(&self) -> Option<u64> {
        self.link.deadline()
    }
}

/// That of the link.
impl<L: AsFd, T> AsFd for Trace<L, T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The last packets that passed, which become lines when somebody asks: for a test, that asks when it has failed.
#[derive(Clone, Debug)]
pub struct Last {
    most: usize,
    seen: VecDeque<Seen>,
    /// Packets that are no longer there.
    before: u64,
    /// Where their connections' numbers began.
    tracer: Tracer,
}

impl Last {
    /// Keeps `most` of them, of about 200 bytes each.
    pub fn new(most: usize) -> Last {
        Last { most, seen: VecDeque::new(), before: 0, tracer: Tracer::new() }
    }

    /// They, the latest last.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &Seen> {
        self.seen.iter()
    }
}

impl Watch for Last {
    fn packet(&mut self, seen: Seen) {
        self.seen.push_back(seen);
        while self.seen.len() > self.most
            && let Some(gone) = self.seen.pop_front()
        {
            self.tracer.learn(&gone);
            self.before += 1;
        }
    }
}

impl fmt::Display for Last {
    /// A line each. Numbers count from each connection's SYN, also where that is no longer there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.before > 0 {
            writeln!(f, "({} packets before)", self.before)?;
        }
        let mut tracer = self.tracer.clone();
        self.seen.iter().try_for_each(|seen| writeln!(f, "{}", tracer.line(seen)))
    }
}

/// Prints each packet's line as it passes. What cannot be printed is counted, and stops nothing.
#[derive(Debug)]
pub struct Printer<W> {
    tracer: Tracer,
    out: W,
    lost: u64,
}

impl<W: Write> Printer<W> {
    /// Prints to `out` what `tracer` says.
    pub fn new(tracer: Tracer, out: W) -> Printer<W> {
        Printer { tracer, out, lost: 0 }
    }

    /// Lines that could not be printed whole.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The writer.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Watch for Printer<W> {
    fn packet(&mut self, seen: Seen) {
        let mut line = self.tracer.line(&seen);
        line.push('\n');
        self.lost += u64::from(self.out.write_all(line.as_bytes()).is_err());
    }
}
