//! Sending and receiving, for whatever has datagrams.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

use super::super::aligned::Aligned;
use super::super::bytes;
use super::super::tcp::add_up;
use super::super::tcp::meter::Meter;
use super::super::tcp::plan::{Plan, Way};
use crate::proc;

/// How many go by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// One.
    One,
    /// As many as there are, up to 64, each by itself.
    Many,
    /// As many as a packet takes, as one train.
    Train,
}

impl Mode {
    pub fn from_job(job: &Value) -> Result<Mode> {
        Ok(Mode::deserialize(&job["mode"])?)
    }

    /// Bytes of a datagram.
    pub fn size(self) -> usize {
        if self == Mode::Train { 1472 } else { 64 }
    }

    /// Datagrams that are sent before the clock is looked at, by one call or by several.
    pub fn batch(self) -> usize {
        if self == Mode::Train { 44 } else { 64 }
    }
}

/// Bursts that are compared.
pub const VERIFIED: u64 = 200;
/// Datagrams of such a burst: no more than every buffer takes.
const BURST: usize = 16;
/// How long a receiver waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(5);

const SEED: u64 = 0x5eed;

/// One side, which is connected to the other.
pub trait Datagrams {
    /// Sends datagrams of `size` bytes each, which lie one after the other in `bytes`. False: nobody is there any more.
    fn send(&mut self, bytes: &[u8], size: usize) -> Result<bool>;
    /// Waits for some, of `size` bytes each, and receives them one after the other into `buffer`; how many bytes.
    fn recv(&mut self, buffer: &mut [u8], size: usize) -> Result<usize>;
}

/// What the side does that is this plan's engine, or its peer, once both know each other.
pub fn go(mut side: impl Datagrams, mode: Mode, plan: &Plan, engine: bool) -> Result<Value> {
    let sends = engine == (plan.way == Way::Send);
    match (plan.verify, sends) {
        (Some(bursts), true) => send_checked(&mut side, mode, bursts),
        (Some(bursts), false) => receive_checked(&mut side, mode, bursts),
        (None, true) => send(&mut side, mode, plan),
        (None, false) => receive(&mut side, mode, plan),
    }
}

/// Sends until its time is over.
fn send(side: &mut impl Datagrams, mode: Mode, plan: &Plan) -> Result<Value> {
    let bytes = Aligned::new(mode.size() * mode.batch(), 0x5a);
    let start = proc::now();
    let until = start + plan.sending();
    let (mut sent, mut now) = (0, start);
    while now < until && side.send(&bytes, mode.size())? {
        sent += mode.batch();
        now = proc::now();
    }
    Ok(json!({"datagrams": sent as f64 / (now - start).max(1e-9)}))
}

/// Receives until the meter has seen all.
fn receive(side: &mut impl Datagrams, mode: Mode, plan: &Plan) -> Result<Value> {
    let mut buffer = room();
    let mut meter = Meter::start(plan);
    let (mut bytes, mut sum) = (0, 0);
    while meter.next().is_some() {
        let n = side.recv(&mut buffer, mode.size())?;
        sum = add_up(sum, &buffer[..n]);
        bytes += n as u64;
        meter.tick(bytes)?;
    }
    std::hint::black_box(sum);
    meter.figures()
}

/// For a batch, and for the longest train.
fn room() -> Aligned {
    Aligned::new(1 << 16, 0)
}

/// Sends burst after burst, each when the one before was answered.
fn send_checked(side: &mut impl Datagrams, mode: Mode, bursts: u64) -> Result<Value> {
    let mut burst = Aligned::new(mode.size() * BURST, 0);
    let mut buffer = room();
    for n in 0..bursts {
        let at = n * burst.len() as u64;
        bytes::fill(&mut burst, SEED, at);
        ensure!(side.send(&burst, mode.size())?, "the receiver is gone");
        side.recv(&mut buffer, mode.size())?;
    }
    Ok(json!({}))
}

/// Compares each burst, and answers.
fn receive_checked(side: &mut impl Datagrams, mode: Mode, bursts: u64) -> Result<Value> {
    let len = mode.size() * BURST;
    let mut buffer = room();
    for n in 0..bursts {
        let mut at = 0;
        while at < len {
            let got = side.recv(&mut buffer, mode.size())?;
            ensure!(got % mode.size() == 0, "a datagram has another length");
            bytes::check(&buffer[..got], SEED, n * len as u64 + at as u64)?;
            at += got;
        }
        if !side.send(&[1], 1)? {
            bail!("the sender is gone");
        }
    }
    Ok(json!({"verified": bursts}))
}
