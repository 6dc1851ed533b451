//! `onecopy top`: the same sockets, live: what each does in a second.

mod look;
mod screen;

use crate::ss::{self, Which};
use crate::{terminal, units};
use look::Look;
use std::io::IsTerminal;
use std::time::Duration;

const AFTER_HELP: &str = "\
Keys:
  q, Esc, Ctrl-C       end
  up, down, Home, End  move through the sockets
  left, right          show columns that the terminal has no room for

`onecopy ss --help` says what each column is. Here bytes and times are those of
one second; queue is what waits now.";

/// Flags of `onecopy top`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Args {
    /// Time between two looks, 50ms or more
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::interval)]
    interval: Duration,
    /// Look twice, print what was done in between, by the second, and end; so too where there is no terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    which: Which,
}

/// Runs `onecopy top`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if !args.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return screen::run(&args.which, args.interval);
    }
    let mut before = Look::now(&args.which)?;
    std::thread::sleep(args.interval);
    let now = before.again()?;
    terminal::print(&match now.found.sockets.is_empty() {
        true => args.which.none().to_owned(),
        false => ss::lines(&now.found.sockets, Some(&now.rates)),
    })
}
