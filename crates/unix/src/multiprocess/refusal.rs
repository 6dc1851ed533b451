//! Errors that say why a socket is not passed on, or not taken up.

use onecopy_socket::{Error, Op};
use onecopy_sys::memfd::Refused;
use rustix::io::Errno;

pub fn error(errno: Errno, why: &'static str) -> Error {
    Error::new(Op::Pass, errno).because(why)
}

pub fn plain(errno: Errno) -> Error {
    Error::new(Op::Pass, errno)
}

/// Makes the error for a page or descriptors that are not what `into_fds` gave.
pub fn wrong(why: &'static str) -> Error {
    error(Errno::INVAL, why).about("fds")
}

/// Makes the error for memory that was refused, as a peer's memory is.
pub fn refuse(refused: Refused, why: &'static str) -> Error {
    match refused {
        Refused::NoMapping(errno) => plain(errno),
        _ => wrong(why),
    }
}

/// Makes the error for words that no honest process writes.
pub fn invalid() -> Error {
    wrong("the page says what cannot be of a socket: the process that wrote it is broken or misbehaves")
}
