//! How a failure is told: one line, what happened and what to do next.

use std::fmt;
use std::io::{self, ErrorKind};

use crate::address::Address;
use anyhow::Error;

/// The command line asks for what there is not, or for what excludes each other: told, and with the exit status, as clap
/// tells of a flag that it does not know.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

impl Usage {
    /// What to print, and how to end: as `command` of `program`, whose usage is shown.
    pub fn exit(&self, mut program: clap::Command, command: &str) -> ! {
        program.build(); // what it is called in a usage
        let kind = clap::error::ErrorKind::ValueValidation;
        match program.find_subcommand_mut(command) {
            Some(command) => command.error(kind, &self.0).exit(),
            None => program.error(kind, &self.0).exit(),
        }
    }
}

/// The line for standard error, without its end.
pub fn line(error: &Error) -> String {
    let style = clap::builder::Styles::styled();
    let red = style.get_error();
    // Sources that bring lines of their own (a TOML error draws the place) are folded into one.
    let text = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    let advice = advice(error).map_or(String::new(), |advice| format!("; {advice}"));
    format!("{red}onecopy:{red:#} {text}{advice}")
}

/// What keeps the proxy from its backend, and what to do about it.
pub fn unreachable(error: &io::Error) -> String {
    let advice = match error.kind() {
        ErrorKind::NotFound => {
            "; there is no such socket: start `onecopy serve`, or name its address in --backend"
        }
        ErrorKind::ConnectionRefused => "; nobody listens there, or it is no socket: start `onecopy serve`",
        ErrorKind::PermissionDenied => "; let this user write to the socket, and pass the folders above it",
        _ => "",
    };
    format!("the backend cannot be reached: {error}{advice}")
}

/// The backend cannot be reached as the proxy starts: no reason not to, since either may be started first.
pub fn not_there(backend: &Address, error: &io::Error) -> String {
    let advice = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("start `onecopy serve --root DIR --listen {backend}`, or name its address in --backend")
        }
        ErrorKind::PermissionDenied => {
            "let this user write to the socket, and pass the folders above it".to_owned()
        }
        _ => "name the socket of `onecopy serve` in --backend".to_owned(),
    };
    format!("nobody can be reached at {backend}: {error}; clients get 502 until then: {advice}")
}

/// What to do about a bare error of the operating system. Errors of our own rooms say so themselves.
fn advice(error: &Error) -> Option<&'static str> {
    let bare = error.chain().find_map(|cause| cause.downcast_ref::<rustix::io::Errno>());
    let bare = bare.map(|errno| io::Error::from(*errno));
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()).or(bare.as_ref())?;
    if io.get_ref().is_some() {
        return None;
    }
    Some(match io.kind() {
        ErrorKind::AddrInUse => "another program listens there: stop it, or choose another address",
        ErrorKind::AddrNotAvailable => "no interface here has that address: 127.0.0.1 always works",
        ErrorKind::PermissionDenied => "run as the owner, or choose a path or port that this user may use",
        ErrorKind::ConnectionRefused => "nobody listens there: start the other side first",
        ErrorKind::NotFound => "check the path",
        ErrorKind::NotADirectory => "name a folder",
        _ => match rustix::io::Errno::from_io_error(io)? {
            rustix::io::Errno::MFILE => "raise the limit on open files (ulimit -n)",
            rustix::io::Errno::NOTSOCK => "that is not a socket: choose another path",
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn plain(error: &Error) -> String {
        anstream::adapter::strip_str(&line(error)).to_string()
    }

    #[test]
    fn a_failure_is_one_line_with_advice() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = std::net::TcpListener::bind(taken.local_addr().unwrap())
            .context("--listen could not be bound")
            .unwrap_err();
        let line = plain(&error);
        assert!(line.starts_with("onecopy: --listen could not be bound: Address"), "{line}");
        assert!(line.ends_with("choose another address"), "{line}");
    }

    #[test]
    fn lines_of_a_source_are_folded() {
        let error = anyhow::anyhow!("first\n   second").context("outer");
        assert_eq!(plain(&error), "onecopy: outer: first second");
    }
}
