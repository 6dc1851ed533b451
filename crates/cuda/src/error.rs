//! Why CUDA is not used, or has failed.

use rustix::io::Errno;
use std::fmt;

/// What went wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The driver's library does not load.
    Absent {
        /// The library.
        library: String,
        /// What the loader says.
        why: String,
    },
    /// It lacks a function that is needed.
    Incomplete {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// It is older than what is needed.
    TooOld {
        /// The CUDA version that it supports: major, minor.
        found: (u32, u32),
    },
    /// There is no device of that ordinal.
    NoDevice {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        devices: u32,
    },
    /// A call failed.
    Failed {
        /// The function.
        call: &'static str,
        /// Its CUresult.
        code: i32,
    },
}

/// CUresults that a person meets, and what they mean.
const KNOWN: [(i32, &str, Errno); 15] = [
    (1, "an argument is not valid", Errno::INVAL),
    (2, "the device's or the host's memory is used up; give less, or end what uses it", Errno::NOMEM),
    (3, "the driver is not initialised in this process; CUDA cannot be used on after a fork", Errno::NODEV),
    (4, "the driver shuts down: the process ends", Errno::NODEV),
    (46, "the device is busy or was given to another process; see nvidia-smi", Errno::BUSY),
    (100, "no CUDA device; see nvidia-smi, and whether a container was given one", Errno::NODEV),
    (101, "no such device", Errno::NODEV),
    (218, "the driver's compiler refused our kernel; take a newer driver", Errno::OPNOTSUPP),
    (222, "the driver's compiler is older than our kernel; take a newer driver", Errno::OPNOTSUPP),
    (304, "the operating system refused; see ulimit -l and dmesg", Errno::NOMEM),
    (
        700,
        "a copy or a kernel met an address that is not mapped; this process cannot use the device any more",
        Errno::IO,
    ),
    (713, "the memory was not registered", Errno::INVAL),
    (719, "a kernel failed; this process cannot use the device any more", Errno::IO),
    (801, "the device does not support it", Errno::OPNOTSUPP),
    (
        803,
        "the driver's library and kernel module differ in version; reboot, or install them anew",
        Errno::NODEV,
    ),
];

impl Error {
    pub(crate) fn failed(call: &'static str, code: i32) -> Error {
        Error::Failed { call, code }
    }

    /// The errno for it: ENODEV where there is no driver or device, EOPNOTSUPP for one that is too old, else what is nearest (EIO).
    pub fn errno(&self) -> Errno {
        match self {
            Error::Absent { .. } | Error::NoDevice { .. } => Errno::NODEV,
            Error::Incomplete { .. } | Error::TooOld { .. } => Errno::OPNOTSUPP,
            Error::Failed { code, .. } => {
                KNOWN.iter().find(|(known, ..)| known == code).map_or(Errno::IO, |(.., errno)| *errno)
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = crate::MINIMUM;
        match self {
            Error::Absent { library, why } => write!(
                f,
                "{library} does not load ({why}); install NVIDIA's driver for CUDA {major}.{minor} or newer, or give the container one"
            ),
            Error::Incomplete { library, symbol } => write!(
                f,
                "{library} has no {symbol}; install NVIDIA's driver for CUDA {major}.{minor} or newer"
            ),
            Error::TooOld { found } => write!(
                f,
                "the driver supports CUDA {}.{}; install one for {major}.{minor} or newer",
                found.0, found.1
            ),
            Error::NoDevice { ordinal, devices } => {
                write!(f, "there is no CUDA device {ordinal}, but {devices} of them, numbered from 0")
            }
            Error::Failed { call, code } => match KNOWN.iter().find(|(known, ..)| known == code) {
                Some((_, what, _)) => write!(f, "{call}: {what} (CUresult {code})"),
                None => write!(f, "{call}: CUresult {code}"),
            },
        }
    }
}

impl std::error::Error for Error {}
