//! Random programs of calls, after each of which poll must have told the truth: readable if and only if a receive would not block,
//! and writable only where a send would not.
//!
//! A model of what lies between the sockets ([`model`]) says what is to be received, so that nobody need look, which would change
//! what is looked at; in a part of the steps calls that do not wait are tried, too. All runs in one thread, step by step, and
//! what other processes do (children, and strangers that share a socket) is asked of them and answered. The kernel's own sockets
//! run the same programs: a rule that they break is a wrong one. A failure is shrunk to a short program and told with all answers.
//!
//! `READINESS_PROGRAMS` says how many programs for each way that sockets come about, `READINESS_SEED` which (a number, or `random`
//! to hunt). `READINESS_WARM=1` has a connection accepted at once, and a byte sent to and fro, before anybody looks, and
//! `READINESS_WITHOUT=Borrow,Fork` leaves out calls of those names: to look for what else there is.
//!
//! One thing is looked away from: who has received everything is told to be readable while views of it keep a sender from going on,
//! whose filler lies in the queue (docs/conformance.md has it among the deviations). `READINESS_VIEWS=1` looks there, too.
#![allow(missing_docs, reason = "a test")]

mod held;
mod model;
mod others;
mod program;
mod world;

use std::fmt::Write;

use onecopy_testing::alone;
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use model::Sort;
use program::{Program, program};
use world::World;

/// How the sockets come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The kernel's on all sides
    Plain,
    /// By name, both ours
    Named,
    /// `pair_with`
    Pair,
    /// By name, both told to stay with the kernel
    Kernel,
    /// The second is a plain socket
    ToPlain,
    /// The first is a plain socket
    FromPlain,
}

fn ways(sort: Sort) -> &'static [Way] {
    match sort {
        // The kernel has none, and ours need shared memory.
        Sort::Pieces => &[Way::Named, Way::Pair],
        Sort::Crowd => &[Way::Plain, Way::Named, Way::Kernel, Way::ToPlain, Way::FromPlain],
        _ => &[Way::Plain, Way::Named, Way::Pair, Way::Kernel, Way::ToPlain, Way::FromPlain],
    }
}

fn without() -> Vec<String> {
    let without = std::env::var("READINESS_WITHOUT").unwrap_or_default();
    without.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn is_warm() -> bool {
    std::env::var("READINESS_WARM").is_ok_and(|on| on != "0")
}

fn play(sort: Sort, way: Way, program: &Program) -> (String, Result<(), String>) {
    let mut transcript = String::new();
    let mut world = match World::new(sort, way, program) {
        Ok(world) => world,
        Err(e) => return (transcript, Err(format!("cannot set up: {e}"))),
    };
    let result = run(&mut world, program, &mut transcript);
    (transcript, result)
}

fn run(world: &mut World, program: &Program, transcript: &mut String) -> Result<(), String> {
    let warm = is_warm();
    let without = without();
    for (i, step) in program.steps.iter().enumerate() {
        let watched = i >= program.watched;
        if (warm || i >= program.accept) && world.accept().map_err(|e| format!("accept: {e}"))? {
            let _ = write!(transcript, "  accept");
            if warm {
                world.exchange()?;
            }
            let _ = writeln!(transcript, " | {}", world.check(watched)?);
        } else if i == 0 {
            if warm {
                world.exchange()?;
            }
            let _ = writeln!(transcript, "  | {}", world.check(watched)?);
        }
        let at = step.at % world.count();
        if without.iter().any(|name| format!("{:?}", step.call).starts_with(name.as_str())) {
            continue;
        }
        let before = transcript.len();
        let _ = write!(transcript, "  {}: {:?}", world::letter(at), step.call);
        let Some(said) = world.call(at, step.call)? else {
            transcript.truncate(before);
            continue;
        };
        let _ = write!(transcript, " -> {said}");
        let _ = write!(transcript, " | {}", world.check(watched)?);
        if step.tried && watched {
            let _ = write!(transcript, " | tried");
            world.try_out(at)?;
            let _ = write!(transcript, " | {}", world.check(watched)?);
        }
        transcript.push('\n');
    }
    Ok(())
}

/// Makes the programs for one way, from a seed.
fn runner(way: usize) -> (u64, TestRunner) {
    let cases = std::env::var("READINESS_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let seed = match std::env::var("READINESS_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| seed_of_now()),
        Err(_) => 20_261_210,
    };
    let mut bytes = [way as u8; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let runs = Runs { cases, failure_persistence: None, max_shrink_iters: 4_000, ..Runs::default() };
    (seed, TestRunner::new_with_rng(runs, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)))
}

fn seed_of_now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(1, |now| now.as_nanos() as u64)
}

/// All ways are tried, whichever fails.
fn holds(sort: Sort) {
    let mut wrong = Vec::new();
    for (i, way) in ways(sort).iter().enumerate() {
        let (seed, mut runner) = runner(i);
        let sockets = if sort == Sort::Crowd { 4 } else { 2 };
        let result = runner.run(&program(sockets), |program| match play(sort, *way, &program) {
            (_, Ok(())) => Ok(()),
            (transcript, Err(wrong)) => Err(TestCaseError::fail(format!("{transcript}\n{wrong}"))),
        });
        match result {
            Ok(()) => {}
            Err(TestError::Fail(reason, program)) => {
                let (transcript, now) = play(sort, *way, &program);
                let now = now.err().unwrap_or_else(|| format!("(it passes now; it said:)\n{reason}"));
                wrong.push(format!("seed {seed}, {sort:?}, {way:?}:\n{transcript}\n{now}\n{program:?}\n"));
            }
            Err(TestError::Abort(why)) => wrong.push(format!("{way:?}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn streams_are_ready_if_and_only_if_they_say_so() {
    alone!();
    holds(Sort::Stream);
}

#[test]
fn records_are_ready_if_and_only_if_they_say_so() {
    alone!();
    holds(Sort::Records);
}

#[test]
fn stream_records_are_ready_if_and_only_if_they_say_so() {
    alone!();
    holds(Sort::Pieces);
}

#[test]
fn datagrams_are_ready_if_and_only_if_they_say_so() {
    alone!();
    holds(Sort::Datagrams);
}

#[test]
fn receivers_of_many_are_ready_if_and_only_if_they_say_so() {
    alone!();
    holds(Sort::Crowd);
}
