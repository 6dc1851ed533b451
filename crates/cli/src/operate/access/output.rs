//! Where the lines of an access log go.

use super::journal::Journal;
use anyhow::Context;
use rustix::fs::OFlags;
use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;

/// As written on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    File(PathBuf),
    Journal,
    Stdout,
}

impl FromStr for Destination {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Destination, Infallible> {
        Ok(match text {
            "-" => Destination::Stdout,
            "journal" => Destination::Journal,
            path => Destination::File(path.into()),
        })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::File(path) => path.display().fmt(f),
            Destination::Journal => f.write_str("journal"),
            Destination::Stdout => f.write_str("-"),
        }
    }
}

/// Where they go, opened.
#[derive(Debug)]
pub enum Output {
    File(File),
    Journal(Journal),
    Stdout,
}

impl Output {
    pub fn open(to: &Destination) -> anyhow::Result<Output> {
        Ok(match to {
            Destination::Stdout => Output::Stdout,
            Destination::Journal => Output::Journal(Journal::open()?),
            Destination::File(path) => {
                // A named pipe without a reader would be waited for: it is an error (ENXIO) instead.
                let nonblock = OFlags::NONBLOCK.bits() as i32;
                let mut options = File::options();
                let options = options.append(true).create(true).mode(0o640).custom_flags(nonblock);
                let cannot = || format!("the access log {} cannot be opened", path.display());
                let file = options.open(path).with_context(cannot)?;
                // From here on its writer may wait: it has a thread of its own.
                let flags = rustix::fs::fcntl_getfl(&file).with_context(cannot)?;
                rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).with_context(cannot)?;
                Output::File(file)
            }
        })
    }

    /// Whether each line is a message of its own.
    pub fn takes_one(&self) -> bool {
        matches!(self, Output::Journal(_))
    }

    pub fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Output::File(file) => file.write_all(lines),
            Output::Journal(journal) => journal.send(lines),
            Output::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                out.flush()
            }
        }
    }
}
