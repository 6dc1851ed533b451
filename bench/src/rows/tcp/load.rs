//! Sending, receiving and round trips, for all that blocks as the kernel's sockets do: a thread for each stream.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use onecopy_sync::atomic::{AtomicU64, Ordering};
use serde_json::{Value, json};

use super::super::aligned::Aligned;
use super::super::bytes;
use super::meter::Meter;
use super::plan::{Plan, Way};
use super::{add_up, check, seed};
use crate::proc;

/// One end of a connection.
pub trait End: Send {
    /// Sends all of it.
    fn send_all(&mut self, bytes: &[u8]) -> Result<()>;
    /// Up to so many bytes; 0 at the end.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize>;
    /// As [`End::recv`], and adds up what it was; where that is done in place, nothing is in the buffer.
    fn read(&mut self, buffer: &mut [u8], sum: u64) -> Result<(usize, u64)> {
        let len = self.recv(buffer)?;
        Ok((len, add_up(sum, &buffer[..len])))
    }
    /// Says that nothing more comes.
    fn finish(&mut self) -> Result<()>;
}

/// What an end does that is this plan's engine, or its peer.
pub fn go<E: End>(mut ends: Vec<E>, plan: &Plan, engine: bool) -> Result<Value> {
    match (plan.way, engine) {
        (Way::Send, true) | (Way::Recv, false) => source(ends, plan),
        (Way::Send, false) | (Way::Recv, true) => sink(ends, plan),
        (Way::RoundTrips, true) => round_trips(ends.first_mut().context("no stream")?, plan),
        (Way::RoundTrips, false) => echo(ends.first_mut().context("no stream")?, plan),
    }
}

/// Each stream on a thread of its own; the first error, once all have ended.
fn each<E: End>(
    ends: Vec<E>,
    act: impl Fn(usize, E) -> Result<()> + Sync,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let act = &act;
    thread::scope(|scope| {
        let ends = ends.into_iter().enumerate();
        let threads: Vec<_> = ends.map(|(stream, end)| scope.spawn(move || act(stream, end))).collect();
        let meanwhile = meanwhile();
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.into_iter().try_for_each(|done| done.map_err(|_| anyhow!("a stream's thread panicked"))?)?;
        meanwhile
    })
}

/// Sends until its time is over, or so many bytes; then ends the stream, and waits until the other side has.
fn source<E: End>(ends: Vec<E>, plan: &Plan) -> Result<Value> {
    let until = proc::now() + plan.sending();
    let send = |stream: usize, mut end: E| -> Result<()> {
        let mut piece = Aligned::new(plan.piece, 0x5a);
        if let Some(total) = plan.verify {
            let mut at = 0;
            while at < total {
                let len = (total - at).min(piece.len() as u64) as usize;
                bytes::fill(&mut piece[..len], seed(stream), at);
                end.send_all(&piece[..len])?;
                at += len as u64;
            }
        } else {
            while proc::now() < until {
                end.send_all(&piece)?;
            }
        }
        end.finish()?;
        ensure!(end.recv(&mut piece)? == 0, "the reader of stream {stream} sent something");
        Ok(())
    };
    each(ends, send, || Ok(()))?;
    Ok(json!({}))
}

/// Receives until each stream's end, and says how much it was while the clock ran.
fn sink<E: End>(ends: Vec<E>, plan: &Plan) -> Result<Value> {
    let counts: Vec<AtomicU64> = ends.iter().map(|_| AtomicU64::new(0)).collect();
    // Relaxed: nothing else is read because of them.
    let all = || counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
    let mut meter = Meter::start(plan);
    let receive = |stream: usize, mut end: E| -> Result<()> {
        let mut piece = Aligned::new(plan.piece, 0);
        let (mut at, mut sum) = (0, 0);
        loop {
            let len = if plan.verify.is_some() {
                let len = end.recv(&mut piece)?;
                check(stream, at, &piece[..len])?;
                len
            } else {
                let (len, added) = end.read(&mut piece, sum)?;
                sum = added;
                len
            };
            if len == 0 {
                break;
            }
            at += len as u64;
            counts[stream].store(at, Ordering::Relaxed);
        }
        std::hint::black_box(sum);
        Ok(())
    };
    let look = || -> Result<()> {
        while let Some(next) = meter.next().filter(|_| plan.verify.is_none()) {
            let left = next - proc::now();
            if left > 0.0 {
                thread::sleep(Duration::from_secs_f64(left));
            }
            meter.tick(all())?;
        }
        Ok(())
    };
    each(ends, receive, look)?;
    if plan.verify.is_some() { Ok(json!({"verified": all()})) } else { meter.figures() }
}

/// Receives all of a message; false at the end.
fn recv_all(end: &mut impl End, message: &mut [u8]) -> Result<bool> {
    let mut filled = 0;
    while filled < message.len() {
        match end.recv(&mut message[filled..])? {
            0 if filled == 0 => return Ok(false),
            0 => bail!("the stream ended within a message"),
            len => filled += len,
        }
    }
    Ok(true)
}

/// Gives back what comes.
fn echo(end: &mut impl End, plan: &Plan) -> Result<Value> {
    let mut message = vec![0; plan.piece];
    while recv_all(end, &mut message)? {
        end.send_all(&message)?;
    }
    Ok(json!({}))
}

/// How long round trips took.
pub struct Trips {
    took: Histogram<u64>,
    began: f64,
    warm: f64,
    end: f64,
    number: u64,
    verify: bool,
}

impl Trips {
    /// The clock starts.
    pub fn start(plan: &Plan) -> Result<Trips> {
        let began = proc::now();
        let warm = began + plan.warm;
        // Nanoseconds, up to a second.
        let took = Histogram::new_with_bounds(1, 1_000_000_000, 3)?;
        Ok(Trips { took, began, warm, end: warm + plan.seconds, number: 0, verify: plan.verify.is_some() })
    }

    /// Puts the next message there, and says when it was; `None` when enough were sent.
    pub fn message(&mut self, message: &mut [u8]) -> Option<f64> {
        if self.verify {
            bytes::fill(message, seed(0), self.number * message.len() as u64);
        }
        let now = proc::now();
        (if self.verify { self.number < 100 } else { now < self.end }).then_some(now)
    }

    /// It has come back.
    pub fn back(&mut self, sent: f64, message: &[u8]) -> Result<()> {
        let now = proc::now();
        if self.verify {
            check(0, self.number * message.len() as u64, message)?;
        }
        if now >= self.warm {
            self.took.saturating_record(((now - sent) * 1e9) as u64);
        }
        self.number += 1;
        Ok(())
    }

    /// What came of it.
    pub fn figures(&self) -> Value {
        let at = |share| self.took.value_at_quantile(share) as f64 / 1e9;
        json!({"seconds": proc::now() - self.began, "p50": at(0.5), "p99": at(0.99), "trips": self.number})
    }
}

fn round_trips(end: &mut impl End, plan: &Plan) -> Result<Value> {
    let mut message = vec![0x5a; plan.piece];
    let mut trips = Trips::start(plan)?;
    while let Some(sent) = trips.message(&mut message) {
        end.send_all(&message)?;
        message.fill(0);
        ensure!(recv_all(end, &mut message)?, "the peer is gone");
        trips.back(sent, &message)?;
    }
    Ok(trips.figures())
}
