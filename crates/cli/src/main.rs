//! The `onecopy` program.

// What stands at a flag is help text first: `<FILE>` in it is no HTML.
#![allow(rustdoc::invalid_html_tags)]

use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use operate::config::Given;

#[macro_use]
mod terminal; // first: `tell!`

mod address;
mod bench;
mod counters;
mod demo;
mod doctor;
mod failure;
mod generate;
mod health;
mod http;
mod lessons;
mod nc;
mod operate;
mod own_stack;
mod process;
mod proxy;
mod serve;
mod ss;
mod stack;
mod top;
mod transport;
mod tune;
mod units;

/// Data that is moved, not looked at: unix streams over shared memory, with the stores you ask for
///
/// onecopy serves files from a storage daemon, through a unix stream over shared memory, to a reverse proxy on the
/// same host: one copy in user space at most, made with the kind of store that suits, and counted.
#[derive(Debug, Parser)]
#[command(name = "onecopy", version, after_long_help = AFTER_HELP)]
struct Cli {
    /// When to use colours (NO_COLOR is honoured too)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = ColorChoice::Auto, global = true, display_order = 900)]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Try it:
  onecopy demo      real files, served through all of this and through the kernel
  onecopy doctor    what this machine can do, and what to change

Serve a folder through daemon and proxy:
  onecopy serve --root ./files --listen unix:/tmp/store.sock
  onecopy proxy --listen 127.0.0.1:8080 --backend unix:/tmp/store.sock
  curl http://127.0.0.1:8080/

Move a file from one host to another, over the kernel's TCP or our own:
  onecopy nc -l 9000 --recv image.raw --sum
  onecopy nc 10.0.0.1:9000 --send image.raw --sum

Exit status:
  0  done
  1  it failed: one line on standard error says what, and what to do next
  2  the command line was not understood";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the files below a folder to a proxy on this host
    Serve(serve::Args),
    /// HTTP/1.1 reverse proxy in front of `onecopy serve`
    Proxy(proxy::Args),
    /// Serve real files through daemon and proxy beside the same over kernel sockets, and draw the result
    Demo(demo::Args),
    /// Move bytes between standard input and output, or files, and a connection: TCP, unix or UDP, over the kernel or a stack of our own
    Nc(nc::Args),
    /// Keep a stack of our own up on a TAP, to be tried, watched and tested against
    Stack(stack::Args),
    /// List the live onecopy sockets of this user, and what they have done
    Ss(ss::Args),
    /// Watch these sockets live
    Top(top::Args),
    /// Measure, beside a rival in the same run
    Bench(bench::Args),
    /// Measure the stores of this machine once and save the profile
    Tune(tune::Args),
    /// Say what this machine can do, what each feature will use, and why not better
    Doctor(doctor::Args),
    /// Ask a `serve` or `proxy` with --metrics whether it is well: exit status 0, or 1 and why
    Health(health::Args),
    /// Write manual pages and shell completions, for packagers
    #[command(hide = true)]
    Generate(generate::Args),
}

fn main() -> ExitCode {
    terminal::end_quietly_without_reader();
    let color = terminal::color_asked(std::env::args_os());
    let program = Cli::command().color(color);
    let args = match Given::read(std::env::args_os().collect(), &program) {
        Ok(args) => args,
        Err(error) => {
            tell!("{}", failure::line(&error));
            return ExitCode::from(2);
        }
    };
    let cli = program.try_get_matches_from(&args.all).unwrap_or_else(|error| {
        if let Some(place) = args.place(&error) {
            tell!("onecopy: {place}:");
        }
        error.exit()
    });
    let command = cli.subcommand_name().unwrap_or_default().to_owned();
    let cli = Cli::from_arg_matches(&cli).unwrap_or_else(|error| error.exit());
    terminal::set_color(cli.color);
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Nc(args) => nc::run(&args),
        Command::Stack(args) => stack::run(&args),
        Command::Ss(args) => ss::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Health(args) => health::run(&args),
        Command::Generate(args) => generate::run(&args, Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<terminal::ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(usage) = error.downcast_ref::<failure::Usage>() {
                usage.exit(Cli::command(), &command);
            }
            tell!("{}", failure::line(&error));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
