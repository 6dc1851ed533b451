//! The channel for descriptors of one direction: a socket of its own, made when the first ones are sent.
//!
//! Descriptors never travel with the doorbells: draining a doorbell would destroy them, or hand them to whoever drained it.
//! So the sender makes a socket pair and sends one end of it, once, attached to one byte on the control socket; what
//! lies in it after that is received by who holds the receiving side, when the stream reaches the mark that says so.
//!
//! That one byte needs no agreement before it: the first descriptor that comes over the control socket is the channel,
//! wherever it is met. Who takes doorbells takes them with room for it. Its byte is one more in the queue than doorbells and
//! fillers explain, and bytes are all alike, so one more is taken when it is met
//! (`bytes queued = doorbells + fillers + channel byte`, see [`onecopy_ring::doorbell`]). Where the descriptor is wanted and
//! lies behind doorbells that must stay, it is looked at with MSG_PEEK, which hands out a copy and takes nothing (unix(7)).
//!
//! On a seqpacket control socket its byte is a record, which looks like a doorbell but for its descriptor, and is one more
//! than the sum says, too. MSG_PEEK sees the first record only, so where it is wanted the doorbells before it are taken, and
//! it stays, as the doorbell that must be left ([`crate::connection::rx::RxRing::find_channel`]).
//!
//! # Which message is whose
//!
//! A message and the mark or frame that says that it is there are two things, and a process that shares the end may be
//! killed between them: a sender that has sent the one and not published the other, or a receiver that has taken the one
//! and not saved that it is past the other. So each message has a number, the position in the ring of what announces it
//! (its eight bytes, little-endian). Who comes to a position closes what is older, and of several with its number
//! takes the last one, since who died there announced none. Where several processes may receive and there is none with
//! its number, the descriptors are gone with one of them, and only those (MSG_CTRUNC); else the peer lies.
//!
//! # When a channel is gone
//!
//! The channel is a descriptor, and belongs to the process that met it, and to its later children. Where the last of them
//! ends, and others share the end with it, what lies in the channel is gone, and its sender finds that nobody is at the other
//! end although the connection lives: it makes a new one, as the first was made, and says in the ring how many there were
//! ([`ReaderLine::channels`](onecopy_ring::header::ReaderLine::channels)). Who comes to a mark and has no channel knows by that
//! whether one is still to be met.
//!
//! A look at the queue (MSG_PEEK) gives one process the channel, while its byte stays, for any process to take: which one that
//! is, by its inode, is told to the others, so that its byte is counted once.
//!
//! Two datagram sockets that share memory have a line besides, on which nothing else lies: it is the channel of both
//! directions, from the beginning ([`Inlet::over`]).
//!
//! The channel is also how the sender of references knows that their receiver is gone: its other end is open for as
//! long as anybody may look at a page.

use crate::connection::kind::Kind;
use crate::doorbell::control;
use crate::{Error, Op, Result};
use onecopy_ring::PeerMisbehaved;
pub use onecopy_sys::scm::MAX_FDS;
use onecopy_sys::scm::{self, Message, Space, Ucred};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Most bytes of doorbells and fillers that a channel is looked for behind.
const FAR: usize = 256 << 10;

/// Bytes of a message: its number.
const NUMBER: usize = 8;

/// Most messages that are passed over to find one. The dead have left a few; what goes on for longer is a peer that sends
/// as fast as this takes.
const MANY: usize = 1 << 14;

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

/// Puts descriptors, and who sends, into the channel, as one message, for what will be published at position `number` of
/// the ring. The kernel verifies who sends.
///
/// # Errors
///
/// What sendmsg(2) says: ETOOMANYREFS when too many are in flight; EPERM for credentials that this process may not
/// claim; EAGAIN.
pub fn send(
    channel: BorrowedFd<'_>,
    number: u64,
    fds: &[BorrowedFd<'_>],
    who: Option<Ucred>,
) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    scm::send(channel, &[IoSlice::new(&number.to_le_bytes())], fds, who, flags).map(drop)
}

fn recv(fd: BorrowedFd<'_>, buffer: &mut [u8], space: Space, flags: RecvFlags) -> io::Result<Message> {
    scm::recv(fd, &mut [IoSliceMut::new(buffer)], space, flags | RecvFlags::DONTWAIT)
}

/// As [`recv`], from the channel. What its other end left unread there (of the other direction, where one line is both
/// channels) is an error that the kernel tells once, before what is queued: no matter of this direction's.
fn recv_next(fd: BorrowedFd<'_>, buffer: &mut [u8], space: Space, flags: RecvFlags) -> io::Result<Message> {
    match recv(fd, buffer, space, flags) {
        Err(Errno::CONNRESET) => recv(fd, buffer, space, flags),
        other => other,
    }
}

/// The next message of the channel, and its number. None where there is none, or the end.
fn next(
    fd: BorrowedFd<'_>,
    space: Space,
    flags: RecvFlags,
) -> std::result::Result<Option<(u64, Message)>, PeerMisbehaved> {
    let mut number = [0; NUMBER];
    match recv_next(fd, &mut number, space, flags | RecvFlags::TRUNC) {
        Ok(came) if came.bytes == NUMBER => Ok(Some((u64::from_le_bytes(number), came))),
        Ok(came) if came.bytes > 0 => Err(PeerMisbehaved::Channel),
        _ => Ok(None),
    }
}

/// Nobody takes what lies there any more: descriptors are closed.
pub fn empty(channel: BorrowedFd<'_>) {
    loop {
        match rustix::net::recv(channel, &mut [0u8; 1], RecvFlags::DONTWAIT) {
            // (A message of no bytes is a liar's, and looks like the end; those behind it go with the socket.)
            Ok((_, 0)) => return,
            Ok(_) | Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The receiver's end.
#[derive(Debug, Default)]
pub struct Inlet {
    fd: Option<Arc<OwnedFd>>,
    /// It came when this process had no descriptor left.
    lost: bool,
    /// How many were met, by whichever process.
    met: u32,
    /// The inode of the last one that was found in the queue, where its byte may lie still; 0 for none.
    found: u64,
    /// Whether it passes pidfds.
    pidfds: bool,
    /// The descriptor of a pool that could not be mapped yet, and the number of its message.
    kept: Option<(u64, OwnedFd)>,
}

/// What a mark or a frame says that there is in the channel.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// Where it is: the number of its message.
    pub(super) number: u64,
    /// Descriptors.
    pub(super) fds: usize,
    /// Who sends.
    pub(super) who: bool,
    /// Another process may have taken it, and died.
    pub(super) may_be_gone: bool,
}

/// What was taken from the control socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Bytes.
    pub bytes: usize,
    /// The channel's byte was among them or is still to come: one more byte is to be taken than doorbells and fillers say.
    pub surplus: bool,
    /// Nothing was left, and the kernel told the pending error (ECONNRESET), which it does once.
    pub reset: bool,
}

/// A record that was taken from the control socket.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Bytes.
    pub len: usize,
    /// It brought the channel: it is one more than doorbells and fillers say.
    pub surplus: bool,
}

/// Descriptors that came with a message.
#[derive(Debug, Default)]
pub struct Fds {
    /// Them.
    pub list: Vec<OwnedFd>,
    /// Some were lost for want of room (MSG_CTRUNC).
    pub truncated: bool,
    /// Who sent, where that came with it.
    pub who: Option<Ucred>,
    /// The same, as a descriptor of its process.
    pub pidfd: Option<OwnedFd>,
}

impl Fds {
    /// Of a message that is gone.
    pub fn gone() -> Fds {
        Fds { truncated: true, ..Fds::default() }
    }

    /// Hands out copies, as a peek does (unix(7)).
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub fn copy_to(&self, to: &mut Fds) -> Result<()> {
        to.truncated |= self.truncated;
        to.who = self.who.or(to.who);
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|_| Error::new(Op::Recv, Errno::MFILE));
        if let Some(pidfd) = &self.pidfd {
            to.pidfd = Some(copy(pidfd)?);
        }
        for fd in &self.list {
            to.list.push(copy(fd)?);
        }
        Ok(())
    }

    /// Whether anything came.
    pub fn has_some(&self) -> bool {
        !self.list.is_empty() || self.who.is_some() || self.pidfd.is_some()
    }

    /// Adds what came with another message of the same receive.
    pub fn add(&mut self, mut more: Fds) {
        self.list.append(&mut more.list);
        self.truncated |= more.truncated;
        self.who = more.who.or(self.who);
        self.pidfd = more.pidfd.or(self.pidfd.take());
    }

    /// recvmsg(2), which adds to them.
    ///
    /// # Errors
    ///
    /// What recvmsg(2) says.
    pub fn recv(
        &mut self,
        socket: BorrowedFd<'_>,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<Message> {
        let mut came = scm::recv(socket, slices, Space::All, flags)?;
        self.list.append(&mut came.fds);
        self.truncated |= came.control_cut;
        self.who = came.credentials.or(self.who);
        self.pidfd = came.pidfd.take().or(self.pidfd.take());
        Ok(came)
    }
}

impl Inlet {
    /// What comes over a line that is known from the beginning.
    pub fn over(line: Arc<OwnedFd>) -> Inlet {
        Inlet { fd: Some(line), ..Inlet::default() }
    }

    /// Takes up to `count` doorbells or bytes of a filler, and the channel if it is met.
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
            match recv(control, &mut scratch[..want], Space::Few, RecvFlags::empty()) {
                Ok(came) if came.bytes > 0 => {
                    taken.bytes += came.bytes;
                    taken.surplus |= self.meet(came, true);
                }
                Err(Errno::INTR) => {}
                other => {
                    taken.reset = matches!(other, Err(Errno::CONNRESET));
                    break;
                }
            }
        }
        taken
    }

    /// Takes one record of a seqpacket control socket, and the channel if it is that.
    ///
    /// # Errors
    ///
    /// As [`control::take_record`].
    pub fn take_record(&mut self, control: BorrowedFd<'_>) -> io::Result<Option<Record>> {
        if self.fd.is_some() && self.found == 0 {
            let len = control::take_record(control)?;
            return Ok(len.map(|len| Record { len, surplus: false }));
        }
        loop {
            match recv(control, &mut [0], Space::Few, RecvFlags::TRUNC) {
                Ok(came) if came.bytes > 0 => {
                    // (What comes with a filler is closed with it: `dgram/lane.rs`.)
                    let len = came.bytes;
                    return Ok(Some(Record { len, surplus: len == 1 && self.meet(came, true) }));
                }
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(Errno::CONNRESET),
                _ => return Ok(None),
            }
        }
    }

    /// Keeps the first descriptor that comes where there is none. Returns whether its byte, which was `taken` or stays, is to be
    /// counted now.
    fn meet(&mut self, came: Message, taken: bool) -> bool {
        if came.fds.is_empty() && !came.control_cut {
            return false;
        }
        let is = came.fds.first().and_then(|fd| rustix::fs::fstat(fd).ok()).map_or(0, |stat| stat.st_ino);
        let counted = is != 0 && self.found == is;
        if counted && taken {
            self.found = 0;
        }
        if self.fd.is_some() {
            return false;
        }
        self.fd = came.fds.into_iter().next().map(Arc::new);
        self.lost |= self.fd.is_none();
        if counted {
            return false;
        }
        if !taken {
            self.found = is;
        }
        self.met = self.met.wrapping_add(1);
        true
    }

    /// What other processes know of the channels: how many were met, and which of them lies in the queue still.
    pub fn known(&self) -> [u64; 2] {
        [self.met.into(), self.found]
    }

    /// As [`Inlet::known`] of the one that received last.
    pub fn learn(&mut self, [met, found]: [u64; 2]) {
        (self.met, self.found) = (met as u32, found);
    }

    /// Whether one is to be met of so many that the peer says it has made, or lies there since another process has found it.
    pub fn may_meet(&self, made: u32) -> bool {
        self.fd.is_none() && (made != self.met || self.found != 0)
    }

    /// Whether one is to be met that nobody has met yet.
    pub fn has_new(&self, made: u32) -> bool {
        self.fd.is_none() && made != self.met
    }

    /// None is to be met of so many: whoever did is dead.
    pub fn has_missed(&mut self, made: u32) {
        (self.met, self.found) = (made, 0);
    }

    /// Whether this process has the channel.
    pub fn has_channel(&self) -> bool {
        self.fd.is_some()
    }

    /// Whether it keeps a pool that could not be mapped when it came.
    pub fn keeps_pool(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether it is known where descriptors come from, or that they are lost.
    pub fn is_met(&self) -> bool {
        self.fd.is_some() || self.lost
    }

    /// Looks for the channel in the queue of the control socket, without taking anything: in all of a stream, or with the
    /// first record. Returns whether it was met now.
    ///
    /// # Errors
    ///
    /// EMFILE where this process has no descriptor left: it stays where it is. ECONNRESET, which the kernel tells once.
    #[cold]
    pub fn find(&mut self, control: BorrowedFd<'_>, kind: Kind) -> io::Result<bool> {
        if self.fd.is_some() {
            return Ok(false);
        }
        let mut scratch = vec![0; if kind == Kind::Stream { FAR } else { 1 }];
        match recv(control, &mut scratch, Space::Few, RecvFlags::PEEK) {
            // A filler, which may bring something of its own.
            Ok(came) if came.cut => Ok(false),
            Ok(came) if came.fds.is_empty() && came.control_cut => Err(Errno::MFILE),
            Ok(came) => Ok(self.meet(came, false)),
            Err(Errno::CONNRESET) => Err(Errno::CONNRESET),
            Err(_) => Ok(false),
        }
    }

    /// Of an end that another process has passed on.
    pub fn take_up(&mut self, fd: Option<OwnedFd>, lost: bool) {
        (self.lost, self.fd) = (lost, fd.map(Arc::new));
    }

    /// Whether it came when this process had no descriptor left.
    pub fn is_lost(&self) -> bool {
        self.lost
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

    /// What was announced, with a pidfd of who sends if that is wanted. None where it is gone.
    ///
    /// # Errors
    ///
    /// EMFILE where the channel itself was lost so.
    pub fn receive(
        &mut self,
        announced: Announced,
        pidfd: bool,
    ) -> Result<std::result::Result<Option<Fds>, PeerMisbehaved>> {
        let Announced { number, fds, who, may_be_gone } = announced;
        let Some(fd) = &self.fd else { return self.fd().map(|_| Err(PeerMisbehaved::Channel)) };
        if who {
            // The sender has said it itself, and the kernel has verified it then (net/core/scm.c: scm_check_creds). One that
            // has not is nobody.
            let _ = sockopt::set_socket_passcred(fd, true);
            if pidfd != self.pidfds {
                // Before Linux 6.5 there is none.
                let _ = scm::set_pass_pidfd(fd, pidfd);
                self.pidfds = pidfd;
            }
        }
        let came = match take(fd.as_fd(), number, may_be_gone) {
            Ok(Some(came)) => came,
            Ok(None) => return Ok(if may_be_gone { Ok(None) } else { Err(PeerMisbehaved::Channel) }),
            Err(misbehaved) => return Ok(Err(misbehaved)),
        };
        point!("received over");
        let cut = came.control_cut;
        if came.fds.len() > fds || (came.fds.len() < fds && !cut) {
            return Ok(Err(PeerMisbehaved::Channel));
        }
        let (who, pidfd) = if who { (came.credentials, came.pidfd) } else { (None, None) };
        Ok(Ok(Some(Fds { list: came.fds, truncated: cut, who, pidfd })))
    }

    /// The one descriptor that was announced, of a pool. None where it is gone.
    ///
    /// # Errors
    ///
    /// EMFILE where this process has no descriptor left: it stays.
    pub fn receive_pool(
        &mut self,
        announced: Announced,
    ) -> Result<std::result::Result<Option<OwnedFd>, PeerMisbehaved>> {
        let Announced { number, may_be_gone, .. } = announced;
        if let Some((_, memfd)) = self.kept.take_if(|(at, _)| *at == number) {
            return Ok(Ok(Some(memfd)));
        }
        let Some(fd) = self.fd()? else { return Ok(Err(PeerMisbehaved::Channel)) };
        let mut found = None;
        for _ in 0..MANY {
            // A copy first, since one that had no room would be lost with its message.
            let (at, came) = match next(fd, Space::Few, RecvFlags::PEEK) {
                Ok(Some((at, came))) if at <= number => (at, came),
                Ok(_) => break,
                Err(misbehaved) => return Ok(Err(misbehaved)),
            };
            let memfd = came.fds.into_iter().next();
            if at == number && memfd.is_none() && came.control_cut {
                return Err(Error::new(Op::Recv, Errno::MFILE));
            }
            if let Err(misbehaved) = next(fd, Space::None, RecvFlags::empty()) {
                return Ok(Err(misbehaved));
            }
            if at == number {
                found = memfd;
            }
        }
        Ok(if found.is_some() || may_be_gone { Ok(found) } else { Err(PeerMisbehaved::Channel) })
    }

    /// That descriptor will be asked for again.
    pub fn keep_pool(&mut self, number: u64, memfd: OwnedFd) {
        self.kept = Some((number, memfd));
    }
}

/// Takes the last message of that number. What is older is closed. `look`: one that is newer must stay.
fn take(
    fd: BorrowedFd<'_>,
    number: u64,
    mut look: bool,
) -> std::result::Result<Option<Message>, PeerMisbehaved> {
    let mut found = None;
    for _ in 0..MANY {
        let mut space = Space::All;
        if look || found.is_some() {
            match next(fd, Space::None, RecvFlags::PEEK)? {
                // Not even opened: there may be many.
                Some((at, _)) if at < number => space = Space::None,
                Some((at, _)) if at == number => {}
                _ => return Ok(found),
            }
        }
        match next(fd, space, RecvFlags::empty())? {
            Some((at, came)) if at == number => found = Some(came),
            Some((at, _)) if at < number => look = true,
            _ => return Ok(found),
        }
    }
    Err(PeerMisbehaved::Channel)
}
