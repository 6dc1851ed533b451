//! What the program does with its terminal: colours, and a reader of standard output that went away.

use std::ffi::OsString;
use std::io::{self, Write};
use std::panic;
use std::process;

use clap::{ColorChoice, ValueEnum};

/// Standard output has no reader any more (`onecopy doctor | head -1`): nobody to tell, nothing failed.
#[derive(Debug)]
pub struct ReaderGone;

impl std::fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output was closed by its reader")
    }
}

impl std::error::Error for ReaderGone {}

/// Writes to standard output, with escape codes only where colours are wanted.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        done => Ok(done?),
    }
}

/// A line on standard error. Whether anybody can read it is not asked: `eprintln!` panics where its terminal or pipe is
/// gone, and a daemon has to outlive those.
pub fn tell(line: std::fmt::Arguments<'_>) {
    let _ = anstream::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// [`tell`], with the arguments of `format!`.
macro_rules! tell {
    ($($what:tt)*) => { $crate::terminal::tell(format_args!($($what)*)) };
}

/// Makes a `println!` whose reader went away end the program quietly.
///
/// Rust ignores SIGPIPE and `println!` panics on EPIPE. Giving SIGPIPE its default action back would be wrong
/// here: a daemon that writes to a client who hung up must get the error and live.
pub fn end_quietly_without_reader() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // (`payload_as_str` does the same since Rust 1.91. A message with arguments is a String.)
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let message = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
        if message.starts_with("failed printing to stdout") && message.contains("Broken pipe") {
            process::exit(0);
        }
        usual(info);
    }));
}

/// The value of `--color`, read before clap does, so that clap's own help and errors follow it.
pub fn color_asked(args: impl Iterator<Item = OsString>) -> ColorChoice {
    let mut choice = ColorChoice::Auto;
    let mut args = args.skip(1).map(|arg| arg.to_string_lossy().into_owned());
    while let Some(arg) = args.next() {
        let value = match arg.split_once('=') {
            Some(("--color", value)) => Some(value.to_owned()),
            _ if arg == "--color" => args.next(),
            _ if arg == "--" => break,
            _ => None,
        };
        if let Some(Ok(asked)) = value.map(|value| ColorChoice::from_str(&value, false)) {
            choice = asked;
        }
    }
    choice
}

/// From here on `anstream` keeps or strips colours as asked.
pub fn set_color(choice: ColorChoice) {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> ColorChoice {
        color_asked(line.split(' ').map(OsString::from))
    }

    #[test]
    fn color_is_read_before_clap() {
        assert_eq!(asked("onecopy doctor"), ColorChoice::Auto);
        assert_eq!(asked("onecopy --color never doctor"), ColorChoice::Never);
        assert_eq!(asked("onecopy doctor --color=always"), ColorChoice::Always);
        assert_eq!(asked("onecopy doctor --color=mauve"), ColorChoice::Auto);
        assert_eq!(asked("onecopy serve -- --color=always"), ColorChoice::Auto);
    }
}
