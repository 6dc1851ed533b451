//! What a case saw, or why it saw nothing.

use std::{fmt, io};

/// The reason given with [`Stop::NotOffered`] from a call.
pub const NOT_OFFERED: &str = "no such call";

/// Why a case saw nothing.
#[derive(Debug)]
pub enum Stop {
    /// The implementation has no such call; why.
    NotOffered(&'static str),
    /// A tool that the case needs is not on this machine.
    Lacking(&'static str),
    /// The case could not be carried out: a failure, whatever was expected.
    Broken(String),
}

impl Stop {
    /// A failure told in words.
    pub fn broken(what: impl fmt::Display) -> Stop {
        Stop::Broken(what.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        if e.raw_os_error().is_none() && e.kind() == io::ErrorKind::Unsupported {
            return Stop::NotOffered(NOT_OFFERED);
        }
        Stop::Broken(format!("a step that must succeed failed: {e}"))
    }
}

impl From<rustix::io::Errno> for Stop {
    fn from(e: rustix::io::Errno) -> Stop {
        Stop::from(io::Error::from(e))
    }
}

/// What a case saw, in words.
pub type Outcome = Result<String, Stop>;
