//! `onecopy-soak`: many connections between processes, traffic of every kind, random kills; and then no descriptor, no
//! memory, no process and no file may be left. `cargo xtask soak` runs it.
//!
//! One process, the survivor, listens; workers connect, and are killed at random moments. Both ends of a connection
//! know from its seed what must come, and check every byte, record and descriptor. All sockets are served edge-triggered,
//! so that an edge that is lost is a stall. Whether nothing happens because a wake-up was lost, or because the machine
//! has other work, both ends tell, not a clock. At each lap's end all connections close, and what the
//! survivor and the workers still hold is counted.

#![forbid(unsafe_code)]

mod crowd;
mod held;
mod mail;
mod parent;
mod party;
mod plan;
mod worker;

use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts what is allocated and not freed, which no look from outside of the allocator tells.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// Many connections for a long time, with random kills; then nothing may be left.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    args: parent::Args,
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Be a process that connects, and may be killed
    #[command(hide = true)]
    Worker(worker::Args),
}

static WORKER: OnceLock<()> = OnceLock::new();

/// Whether this process is a worker, whose standard output the survivor reads.
fn is_worker() -> bool {
    WORKER.get().is_some()
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.task.is_some() {
        let _ = WORKER.set(());
    }
    let result = match &cli.task {
        Some(Task::Worker(args)) => worker::run(args),
        None => parent::run(&cli.args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onecopy-soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}
