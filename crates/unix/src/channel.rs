//! The channel for descriptors of one direction: a socket of its own, made when the first ones are sent.
//!
//! Descriptors never travel with the bells: draining a bell would destroy them, or hand them to whoever drained it.
//! So the sender makes a socket pair and sends one end of it, once, attached to one byte on the control socket; what
//! lies in it after that is received by who holds the receiving side, when the stream reaches the mark that says so.
//!
//! That one byte needs no agreement before it: the first descriptor that comes over the control socket is the channel,
//! wherever it is met. Who takes bells takes them with room for it. Its byte is one more in the queue than bells and
//! fillers explain, and bytes are all alike, so one more is taken when it is met
//! (`bytes queued = bells + fillers + channel byte`, see [`onecopy_ring::bell`]). Where the descriptor is wanted and
//! lies behind bells that must stay, it is looked at with MSG_PEEK, which hands out a copy and takes nothing (unix(7)).
//!
//! The channel is also how the sender of references knows that their receiver is gone: its other end is open for as
//! long as anybody may look at a page.

use crate::{Error, Op, Result, control};
use onecopy_ring::Lie;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Most descriptors in one message (SCM_MAX_FD, linux/include/net/scm.h).
pub const MAX_FDS: usize = 253;
/// Most bytes of bells and fillers that a channel is looked for behind.
const FAR: usize = 256 << 10;

/// The sender's end.
///
/// # Errors
///
/// What socketpair(2) and sendmsg(2) say; EAGAIN where the control socket has no room.
pub fn open(control: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (mine, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    control::send_fd(control, &[0], theirs.as_fd())?;
    Ok(mine)
}

/// Puts descriptors into the channel, as one message.
///
/// # Errors
///
/// What sendmsg(2) says: ETOOMANYREFS when too many are in flight; EAGAIN.
pub fn send(channel: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(channel, &[IoSlice::new(&[0])], &mut control, flags).map(drop)
}

/// What came out of a socket.
struct Came {
    bytes: usize,
    fds: Vec<OwnedFd>,
    /// Some were lost for want of room: in the process, or in what was asked for.
    cut: bool,
}

fn recv(fd: BorrowedFd<'_>, buffer: &mut [u8], max: usize, flags: RecvFlags) -> io::Result<Came> {
    let mut one = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut many = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(if max == 1 { &mut one } else { &mut many });
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    Ok(Came { bytes: got.bytes, fds, cut: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// recvmsg(2) with room for descriptors. Returns bytes received.
///
/// # Errors
///
/// What recvmsg(2) says.
pub fn recv_into(
    fd: BorrowedFd<'_>,
    slices: &mut [IoSliceMut<'_>],
    fds: &mut Fds,
    flags: RecvFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(fd, slices, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.list.extend(some);
        }
    }
    fds.truncated |= got.flags.contains(ReturnFlags::CTRUNC);
    Ok(got.bytes)
}

/// The receiver's end.
#[derive(Debug, Default)]
pub struct Inlet {
    fd: Option<Arc<OwnedFd>>,
    /// It came when this process had no descriptor left.
    lost: bool,
}

/// What was taken from the control socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Bytes.
    pub bytes: usize,
    /// The channel's byte was among them or is still to come: one more byte is to be taken than bells and fillers say.
    pub surplus: bool,
}

/// Descriptors that came with a message.
#[derive(Debug, Default)]
pub struct Fds {
    /// Them.
    pub list: Vec<OwnedFd>,
    /// Some were lost for want of room (MSG_CTRUNC).
    pub truncated: bool,
}

impl Inlet {
    /// Takes up to `count` bells or bytes of a filler, and the channel if it is met.
    pub fn take(&mut self, control: BorrowedFd<'_>, count: usize) -> Taken {
        if count == 1 {
            // The common case, without zeroing a scratch buffer.
            return self.take_into(control, &mut [0], 1);
        }
        self.take_into(control, &mut [0; 8192], count)
    }

    fn take_into(&mut self, control: BorrowedFd<'_>, scratch: &mut [u8], count: usize) -> Taken {
        let mut taken = Taken::default();
        while taken.bytes < count {
            let want = (count - taken.bytes).min(scratch.len());
            match recv(control, &mut scratch[..want], 1, RecvFlags::empty()) {
                Ok(came) if came.bytes > 0 => {
                    taken.bytes += came.bytes;
                    taken.surplus |= self.meet(came);
                }
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        taken
    }

    /// Keeps the first descriptor that comes. Returns whether that was it now.
    fn meet(&mut self, came: Came) -> bool {
        if self.fd.is_some() || self.lost || (came.fds.is_empty() && !came.cut) {
            return false;
        }
        self.fd = came.fds.into_iter().next().map(Arc::new);
        self.lost = self.fd.is_none();
        true
    }

    /// Looks for the channel in the queue of the control socket, without taking anything. Returns whether it was met
    /// now.
    ///
    /// # Errors
    ///
    /// EMFILE where this process has no descriptor left: it stays where it is.
    #[cold]
    pub fn find(&mut self, control: BorrowedFd<'_>) -> io::Result<bool> {
        if self.fd.is_some() || self.lost {
            return Ok(false);
        }
        let mut scratch = vec![0; FAR];
        match recv(control, &mut scratch, 1, RecvFlags::PEEK) {
            Ok(came) if came.fds.is_empty() && came.cut => Err(Errno::MFILE),
            Ok(came) => Ok(self.meet(came)),
            Err(_) => Ok(false),
        }
    }

    /// What keeps the channel open, if it is here.
    pub fn keep(&self) -> Option<Arc<OwnedFd>> {
        self.fd.clone()
    }

    /// None where there is no channel, although a mark says so.
    fn fd(&self) -> Result<Option<BorrowedFd<'_>>> {
        match &self.fd {
            Some(fd) => Ok(Some(fd.as_fd())),
            None if !self.lost => Ok(None),
            None => Err(Error::new(Op::Recv, Errno::MFILE)
                .because("descriptors came when this process could open no more; connect again")),
        }
    }

    /// The descriptors of the next message; `announced` is how many a mark said there are. None where there is no
    /// such message.
    ///
    /// # Errors
    ///
    /// EMFILE where the channel itself was lost so.
    pub fn receive(&self, announced: usize) -> Result<std::result::Result<Fds, Lie>> {
        let Some(fd) = self.fd()? else { return Ok(Err(Lie::Channel)) };
        let Ok(came) = recv(fd, &mut [0], MAX_FDS, RecvFlags::empty()) else {
            return Ok(Err(Lie::Channel));
        };
        if came.bytes == 0 || came.fds.len() > announced || (came.fds.len() < announced && !came.cut) {
            return Ok(Err(Lie::Channel));
        }
        Ok(Ok(Fds { list: came.fds, truncated: came.cut }))
    }

    /// A copy of the one descriptor of the next message, which stays.
    ///
    /// # Errors
    ///
    /// EMFILE where this process has no descriptor left.
    pub fn look(&self) -> Result<std::result::Result<OwnedFd, Lie>> {
        let Some(fd) = self.fd()? else { return Ok(Err(Lie::Channel)) };
        let Ok(came) = recv(fd, &mut [0], 1, RecvFlags::PEEK) else {
            return Ok(Err(Lie::Channel));
        };
        match came.fds.into_iter().next() {
            Some(fd) => Ok(Ok(fd)),
            None if came.cut => Err(Error::new(Op::Recv, Errno::MFILE)),
            None => Ok(Err(Lie::Channel)),
        }
    }

    /// Drops the next message.
    pub fn skip(&self) {
        if let Some(fd) = &self.fd {
            let _ = rustix::net::recv(fd, &mut [0u8; 1], RecvFlags::DONTWAIT);
        }
    }
}
