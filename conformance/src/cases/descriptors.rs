//! What cases with descriptors are written with.

use std::fs::File;
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::impls::{Came, End, Rx, Tx};
use crate::stop::Stop;
use crate::tools::said;

/// A send's flags: without a signal.
pub const QUIET: Tx = Tx { dontwait: false, nosignal: true, oob: false, eor: false };

pub fn pipe() -> Result<(File, OwnedFd), Stop> {
    let (r, w) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK)?;
    Ok((File::from(r), w))
}

/// Whether every writing end of a pipe is closed.
pub fn closed(r: &mut File) -> &'static str {
    match r.read(&mut [0]) {
        Ok(0) => "all closed",
        _ => "open",
    }
}

pub fn give(end: &dyn End, data: &[u8], fds: &[BorrowedFd<'_>]) -> Result<String, Stop> {
    said(end.send_fds(data, fds, QUIET))
}

pub fn tell(came: &Came) -> String {
    format!("{} with {}{}", came.len, came.fds.len(), if came.ctrunc { " cut" } else { "" })
}

pub fn take(end: &dyn End, max: usize, flags: Rx) -> Result<String, Stop> {
    said(end.recv_with(&mut vec![0; max], flags).map(|came| tell(&came)))
}
