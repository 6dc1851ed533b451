//! The `onecopy` program.

use clap::{Parser, Subcommand};

mod bench;
mod demo;
mod doctor;
mod proxy;
mod serve;
mod tune;

/// Data that is moved, not looked at: unix streams over shared memory, with the stores you ask for.
#[derive(Debug, Parser)]
#[command(name = "onecopy", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the files below a folder to a proxy on this host.
    Serve(serve::Args),
    /// HTTP/1.1 reverse proxy in front of `onecopy serve`.
    Proxy(proxy::Args),
    /// Serve real files through daemon and proxy beside the same over kernel sockets, and draw the result.
    Demo(demo::Args),
    /// Measure, beside a rival in the same run.
    Bench(bench::Args),
    /// Measure the stores of this machine once and save the profile.
    Tune(tune::Args),
    /// Say what this machine can do, what each feature will use, and why not better.
    Doctor(doctor::Args),
}

fn main() -> std::process::ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onecopy: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
