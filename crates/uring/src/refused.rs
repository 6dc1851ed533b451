//! Why there is no ring.

use rustix::io::Errno;
use std::{fmt, io};

/// Why there is no ring, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// io_uring_setup(2) failed.
    Setup(Errno),
    /// The kernel lacks an operation: which, and since when there is one.
    Lacks(&'static str, &'static str),
    /// The pages for what is received could not be given to the kernel.
    Buffers(Errno),
    /// Memory could not be registered.
    Registered(Errno),
    /// There is no memory for pages.
    NoMemory,
}

impl Refused {
    /// The errno that says it best.
    pub fn errno(self) -> Errno {
        match self {
            Refused::Setup(errno) | Refused::Buffers(errno) | Refused::Registered(errno) => errno,
            Refused::Lacks(..) => Errno::OPNOTSUPP,
            Refused::NoMemory => Errno::NOMEM,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Setup(Errno::PERM) => f.write_str(
                "io_uring is forbidden here; kernel.io_uring_disabled says for whom, and containers forbid it by seccomp(2)",
            ),
            Refused::Setup(Errno::NOSYS) => {
                f.write_str("this kernel has no io_uring, or a filter (seccomp(2)) says so; allow io_uring_setup(2)")
            }
            Refused::Setup(Errno::NOMEM) => {
                f.write_str("io_uring gets no memory; raise RLIMIT_MEMLOCK, or free some memory")
            }
            Refused::Setup(errno) => write!(f, "io_uring cannot be set up: {errno}"),
            Refused::Lacks(what, since) => {
                write!(f, "this kernel's io_uring lacks {what}; Linux {since} and later have it")
            }
            Refused::Buffers(errno) => write!(
                f,
                "io_uring takes no pages to receive into: {errno}; Linux 5.19 and later do (io_uring_register_buf_ring(3))"
            ),
            Refused::Registered(Errno::FAULT) => {
                f.write_str("io_uring registers at most 1 GiB as one buffer; give less memory")
            }
            Refused::Registered(errno) => {
                write!(f, "io_uring cannot register the memory: {errno}; raise RLIMIT_MEMLOCK")
            }
            Refused::NoMemory => f.write_str("there is no memory for pages; free some"),
        }
    }
}

impl std::error::Error for Refused {}

/// What the kernel said.
pub(crate) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
