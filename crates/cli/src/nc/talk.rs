//! One connection: two directions, each on a thread of its own, and when it is over.

use super::ends::{Sink, Source};
use super::progress::Bars;
use super::report::Report;
use super::tally::Tally;
use super::target::Target;
use super::wire::{Wire, locked};
use super::{Job, Plan, open};
use crate::address::Place;
use std::net::Shutdown;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// See the [module](self).
pub struct Talk {
    unix: bool,
    /// As long as there is a connection.
    wire: Mutex<Option<Arc<Wire>>>,
    /// The file of a socket that is listened at.
    place: Mutex<Option<Place>>,
    tap: Mutex<Option<String>>,
    /// Its own address and the peer's: the kernel forgets the peer's when both sides have ended.
    names: Mutex<(Option<String>, Option<String>)>,
    sent: Arc<Mutex<Tally>>,
    received: Arc<Mutex<Tally>>,
    /// What was to be told when the connection ended.
    last: Mutex<Option<Report>>,
    bars: Mutex<Bars>,
}

/// Which direction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Sent,
    Received,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Talk {
    /// One that has not begun.
    pub fn new(plan: &Plan) -> Talk {
        let tally = || Arc::new(Mutex::new(Tally::new(plan.args.sum)));
        Talk {
            unix: matches!(plan.target, Target::Unix(_)),
            wire: Mutex::new(None),
            place: Mutex::new(None),
            tap: Mutex::new(None),
            names: Mutex::new((None, None)),
            sent: tally(),
            received: tally(),
            last: Mutex::new(None),
            bars: Mutex::new(Bars::hidden()),
        }
    }

    /// Moves the bytes of both directions, until both have ended.
    fn talk(&self, plan: &Plan, wire: &Arc<Wire>, source: Option<Source>, sink: Sink) -> anyhow::Result<()> {
        let (tell, ended) = mpsc::channel();
        let bars = lock(&self.bars).clone();
        let mut left = vec![Way::Received];
        let mut sending = None;
        let typed = source.as_ref().is_some_and(|source| source.terminal);
        if let Some(source) = source {
            left.push(Way::Sent);
            let (wire, tally, tell) = (wire.clone(), self.sent.clone(), tell.clone());
            let (bar, keep) = (bars.sent, plan.args.no_shutdown);
            let send = move || send(&wire, source, &tally, &bar, keep);
            sending = Some(start("send", Way::Sent, tell, send)?);
        }
        let (receiver, tally, bar) = (wire.clone(), self.received.clone(), bars.received);
        let receiving =
            start("receive", Way::Received, tell, move || receive(&receiver, &sink, &tally, &bar))?;
        let mut limit = None;
        while !left.is_empty() {
            let (way, result) = match limit {
                None => ended.recv()?,
                Some(limit) => match ended.recv_timeout(limit) {
                    Err(RecvTimeoutError::Timeout) => break,
                    got => got?,
                },
            };
            result?;
            left.retain(|one| *one != way);
            match way {
                Way::Sent => limit = plan.args.quit,
                Way::Received => {
                    // The peer's end is the end of what has no end of its own.
                    if !left.contains(&Way::Sent) {
                        wire.shutdown(Shutdown::Write);
                    } else if typed {
                        tell!("onecopy nc: the peer has ended; Ctrl-D ends this side, too");
                    }
                }
            }
        }
        wire.settle(plan.args.quit)?;
        if left.contains(&Way::Received) {
            wire.shutdown(Shutdown::Both);
        }
        // They are over, or see the shutdown: from here on nobody else has the connection.
        let _ = receiving.join();
        let _ = sending.map(thread::JoinHandle::join);
        Ok(())
    }

    fn see(&self, wire: &Wire) -> Report {
        Report {
            family: if self.unix { "unix" } else { "tcp" },
            tap: lock(&self.tap).clone(),
            carriers: wire.carriers(),
            names: lock(&self.names).clone(),
            sent: locked(&self.sent).clone(),
            received: locked(&self.received).clone(),
            stats: wire.stats(),
            learned: wire.learned(),
            cut: None,
        }
    }
}

fn start(
    name: &str,
    way: Way,
    tell: Sender<(Way, anyhow::Result<()>)>,
    work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(move || {
        // (Who waits may have given up.)
        let _ = tell.send((way, work()));
    })
}

fn send(
    wire: &Wire,
    mut source: Source,
    tally: &Mutex<Tally>,
    bar: &indicatif::ProgressBar,
    keep: bool,
) -> anyhow::Result<()> {
    let mut buffer = Vec::new();
    while wire.send_from(&mut source, &mut buffer, tally)? {
        bar.set_position(locked(tally).bytes);
    }
    if !keep {
        wire.shutdown(Shutdown::Write);
    }
    Ok(())
}

fn receive(
    wire: &Wire,
    sink: &Sink,
    tally: &Mutex<Tally>,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<()> {
    let mut buffer = Vec::new();
    while wire.receive_to(sink, &mut buffer, tally)? {
        bar.set_position(locked(tally).bytes);
    }
    Ok(())
}

impl Job for Talk {
    fn run(&self, plan: &Plan) -> anyhow::Result<()> {
        // What is not there is told before anybody is connected.
        let source = plan.source()?;
        let stack = plan.args.stack()?;
        *lock(&self.tap) = stack.as_ref().and_then(|(_, name)| name.clone());
        let stack = stack.map(|(stack, _)| stack);
        let wire = Arc::new(open::open(plan, stack.as_ref(), |place| *lock(&self.place) = Some(place))?);
        // The connection keeps the stack.
        drop(stack);
        *lock(&self.names) = wire.names();
        *lock(&self.wire) = Some(wire.clone());
        let sink = plan.sink()?;
        *lock(&self.bars) =
            Bars::new(source.as_ref().filter(|_| plan.args.send.is_some()), plan.args.recv.is_some());
        locked(&self.sent).begin();
        locked(&self.received).begin();
        let done = self.talk(plan, &wire, source, sink);
        lock(&self.bars).clear();
        *lock(&self.last) = Some(self.see(&wire));
        drop(lock(&self.place).take());
        if done.is_ok() {
            // The last handle: a stack of ours waits until the peer knows the end.
            *lock(&self.wire) = None;
            drop(wire);
        } else {
            wire.shutdown(Shutdown::Both);
        }
        done
    }

    fn report(&self, cut: Option<String>) -> Option<Report> {
        let last = lock(&self.last).take();
        let report = last.or_else(|| lock(&self.wire).as_ref().map(|wire| self.see(wire)));
        report.map(|report| Report { cut, ..report })
    }

    fn cut(&self) {
        lock(&self.bars).clear();
        if let Some(wire) = &*lock(&self.wire) {
            wire.shutdown(Shutdown::Both);
        }
        drop(lock(&self.place).take());
    }
}
