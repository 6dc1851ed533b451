//! Why a file was not moved.

use onecopy_pool::provider::CopyError;
use rustix::io::Errno;
use std::fmt;

/// Why a file was not moved, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageError {
    /// The file ends before.
    Short {
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that there were.
        had: u64,
    },
    /// The bytes would not lie inside of the memory.
    Outside {
        /// Where they begin.
        at: u64,
        /// How many there are.
        len: u64,
        /// Bytes of the memory.
        memory: u64,
    },
    /// The file is open with O_DIRECT, which takes whole blocks.
    Unaligned {
        /// What is no multiple.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Of what.
        by: u64,
    },
    /// The bytes are ones that the CPU cannot read: a device's.
    Unreadable,
    /// The pool has too few pages free.
    NoMemory,
    /// The device's copy failed.
    Device(CopyError),
    /// What the kernel says.
    Io(Errno),
}

impl StorageError {
    /// The errno that says it best.
    pub fn errno(self) -> Errno {
        match self {
            StorageError::Short { .. } => Errno::NODATA,
            StorageError::Outside { .. } | StorageError::Unreadable => Errno::FAULT,
            StorageError::Unaligned { .. } => Errno::INVAL,
            StorageError::NoMemory => Errno::NOBUFS,
            StorageError::Device(CopyError::Io(errno)) | StorageError::Io(errno) => errno,
            StorageError::Device(_) => Errno::FAULT,
        }
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageError::Short { wanted, had } => {
                write!(f, "the file has {had} of the {wanted} bytes; ask for those that there are")
            }
            StorageError::Outside { at, len, memory } => write!(
                f,
                "{len} bytes from {at} are not inside of the memory, which has {memory}; ask for fewer, or make it larger"
            ),
            StorageError::Unaligned { what, value, by } => write!(
                f,
                "{what} is {value}, which is no multiple of {by}; that is asked for by O_DIRECT: align it, or open the file without"
            ),
            StorageError::Unreadable => {
                f.write_str("the bytes lie in a device's memory; write them with Storage::write")
            }
            StorageError::NoMemory => {
                f.write_str("too few pages are free; give some back, or make a larger pool")
            }
            StorageError::Device(error) => write!(f, "the device's memory: {error}"),
            StorageError::Io(Errno::ISDIR) => f.write_str("it is a folder; name a file"),
            StorageError::Io(Errno::BADF) => {
                f.write_str("the file is not open for that; open it for reading, or for writing")
            }
            StorageError::Io(errno) => write!(f, "the file: {errno}"),
        }
    }
}

impl std::error::Error for StorageError {}
