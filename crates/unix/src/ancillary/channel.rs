//! The channel for descriptors of one direction: a socket of its own, made when the first ones are sent.
//!
//! Descriptors never travel with the doorbells: a process that drains a doorbell would destroy them, or get
//! what is not meant for it. So the sender makes a socket pair, and sends one end of it, once, attached to
//! one byte on the control socket. The process that holds the receiving side receives from the channel when
//! the stream reaches a mark that announces something there.
//!
//! # How the receiver finds the channel
//!
//! That one byte needs no agreement before it. The first descriptor that comes over the control socket is the
//! channel, wherever it is met. A process that takes doorbells leaves room for it.
//!
//! - *Streams.* The channel's byte is one more in the queue than doorbells and fillers explain. Bytes are all
//!   alike, so one more is taken when it is met (`bytes queued = doorbells + fillers + channel byte`, see
//!   [`onecopy_ring::doorbell`]). If the descriptor is wanted and is behind doorbells that must stay,
//!   MSG_PEEK looks for it: that hands out a copy and takes nothing (unix(7)).
//! - *Seqpacket control sockets.* The channel's byte is a record. It looks like a doorbell but for its
//!   descriptor, and it too is one more than the sum says. MSG_PEEK sees the first record only. So if the
//!   channel is wanted, the doorbells before it are taken, and its record stays as the doorbell that must be
//!   left (`Accounting::meet_channel`).
//! - *Datagrams.* Two datagram sockets that share memory have a line besides, which carries nothing else. It
//!   is the channel of both directions from the beginning ([`Inlet::over`]).
//!
//! # Which message belongs to which mark
//!
//! A message is one thing, and the mark or frame that announces it is another. A process that shares the end
//! may be killed between the two. A sender then has sent the message and not published the mark. A receiver
//! has taken the message and not saved that it is past the mark. So each message has a number: the position
//! in the ring of what announces it, in eight bytes, little-endian.
//!
//! A receiver that comes to a position closes the older messages. Of several with its number it takes the
//! last one, since a sender that died there announced none. If several processes may receive and no message
//! has the number, the descriptors are gone with one of these processes, and only those (MSG_CTRUNC).
//! Otherwise the peer misbehaves.
//!
//! # When a channel is gone
//!
//! The channel is a descriptor. It belongs to the process that met it, and to the children that this process
//! forks later. If the last of them ends while others share the end, what is in the channel is gone. Its
//! sender finds that nobody has the other end although the connection lives. It makes a new channel, as it
//! made the first one, and says in the ring how many there were
//! ([`ReaderLine::channels`](onecopy_ring::header::ReaderLine::channels)). A receiver that comes to a mark
//! and has no channel knows by that number whether one is still to be met.
//!
//! A look at the queue (MSG_PEEK) gives one process the channel, while its byte stays, for any process to
//! take. That process tells the others which channel it is, by its inode, so that its byte is counted once.
//!
//! # What else it is for
//!
//! The channel also tells the sender of references when their receiver is gone: its other end is open for as
//! long as any process may look at a page.

use crate::control;
use crate::core::kind::Kind;
use onecopy_ring::PeerMisbehaved;
use onecopy_socket::{Error, Op, Result};
pub use onecopy_sys::scm::MAX_FDS;
use onecopy_sys::scm::{self, Message, Space, Ucred};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Most bytes of doorbells and fillers behind which a channel is looked for.
const FAR: usize = 256 << 10;

/// Bytes of a message: its number.
const NUMBER: usize = 8;

/// Most messages that are passed over to find one. Processes that died have left a few. If there are more,
/// the peer sends as fast as this process takes.
const MANY: usize = 1 << 14;

/// Makes a channel, and returns the sender's end.
///
/// # Errors
///
/// The errors of socketpair(2) and sendmsg(2); EAGAIN if the control socket has no room.
pub fn open(control: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (mine, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    control::send_fd(control, &[0], theirs.as_fd())?;
    Ok(mine)
}

/// Puts descriptors and the sender's credentials into the channel, as one message. It belongs to what will be
/// published at position `number` of the ring. The kernel verifies the credentials.
///
/// # Errors
///
/// The errors of sendmsg(2): ETOOMANYREFS when too many are in flight; EPERM for credentials that this
/// process may not claim; EAGAIN.
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

/// Receives as [`recv`] does, from the channel. Where one line is the channel of both directions, its other
/// end may have left something of the other direction unread. The kernel reports that as an error, once,
/// before what is queued. It does not concern this direction.
fn recv_next(fd: BorrowedFd<'_>, buffer: &mut [u8], space: Space, flags: RecvFlags) -> io::Result<Message> {
    match recv(fd, buffer, space, flags) {
        Err(Errno::CONNRESET) => recv(fd, buffer, space, flags),
        other => other,
    }
}

/// Receives the next message of the channel, with its number. Returns `None` if there is none, or at the end.
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

/// The receiver's end.
#[derive(Debug, Default)]
pub struct Inlet {
    fd: Option<Arc<OwnedFd>>,
    /// The channel came when this process had no descriptor left.
    lost: bool,
    /// How many channels were met, by whichever process.
    met: u32,
    /// The inode of the last channel that was found in the queue, where its byte may be still; 0 for none.
    found: u64,
    /// Whether the channel passes pidfds.
    pidfds: bool,
    /// The descriptor of a pool that could not be mapped yet, and the number of its message.
    kept: Option<(u64, OwnedFd)>,
}

/// The content of the channel that a mark or a frame announces.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// The number of its message, which is the position of the mark or frame.
    number: u64,
    /// How many descriptors.
    fds: usize,
    /// Whether the sender's identity comes with it.
    who: bool,
    /// Whether another process may have taken it, and died.
    may_be_gone: bool,
}

impl Announced {
    /// Tells of a message: its number, how many descriptors it has, whether the sender's identity comes with it, and whether
    /// another process may have taken it, and died.
    pub fn new(number: u64, fds: usize, who: bool, may_be_gone: bool) -> Announced {
        Announced { number, fds, who, may_be_gone }
    }

    /// Returns the number of the message.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// The bytes that were taken from the control socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Bytes.
    pub bytes: usize,
    /// The channel's byte was among them or is still to come: one more byte must be taken than doorbells and
    /// fillers say.
    pub surplus: bool,
    /// Nothing was left, and the kernel reported the pending error (ECONNRESET), which it does once.
    pub reset: bool,
}

/// A record that was taken from the control socket.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Bytes.
    pub len: usize,
    /// It brought the channel: it is one record more than doorbells and fillers say.
    pub surplus: bool,
}

/// Descriptors that came with a message.
#[derive(Debug, Default)]
pub struct Fds {
    /// The descriptors.
    pub list: Vec<OwnedFd>,
    /// Some were lost for want of room (MSG_CTRUNC).
    pub truncated: bool,
    /// The sender's credentials, if they came with it.
    pub who: Option<Ucred>,
    /// The sender's process, as a descriptor.
    pub pidfd: Option<OwnedFd>,
}

impl Fds {
    /// Stands for a message that is gone.
    pub fn gone() -> Fds {
        Fds { truncated: true, ..Fds::default() }
    }

    /// Adds copies to those in `to`, as a peek hands them out (unix(7)).
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

    /// Returns whether anything came.
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

    /// Calls recvmsg(2), and adds what comes.
    ///
    /// # Errors
    ///
    /// The errors of recvmsg(2).
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
    /// Makes an inlet from a line that is known from the beginning.
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
    /// Those of [`control::take_record`].
    pub fn take_record(&mut self, control: BorrowedFd<'_>) -> io::Result<Option<Record>> {
        if self.fd.is_some() && self.found == 0 {
            let len = control::take_record(control)?;
            return Ok(len.map(|len| Record { len, surplus: false }));
        }
        loop {
            match recv(control, &mut [0], Space::Few, RecvFlags::TRUNC) {
                Ok(came) if came.bytes > 0 => {
                    // A descriptor that comes with a filler is closed with it
                    // ([`Elsewhere::block`](crate::core::elsewhere::Elsewhere::block)).
                    let len = came.bytes;
                    return Ok(Some(Record { len, surplus: len == 1 && self.meet(came, true) }));
                }
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(Errno::CONNRESET),
                _ => return Ok(None),
            }
        }
    }

    /// Keeps the first descriptor that comes, if there is no channel yet. Its byte was `taken` or stays in
    /// the queue. Returns whether the byte is to be counted now.
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

    /// Returns what other processes know of the channels: how many were met, and which of them is in the
    /// queue still.
    pub fn known(&self) -> [u64; 2] {
        [self.met.into(), self.found]
    }

    /// Takes over what [`Inlet::known`] returned in the process that received last.
    pub fn learn(&mut self, [met, found]: [u64; 2]) {
        (self.met, self.found) = (met as u32, found);
    }

    /// Returns whether a channel is to be met, when the peer says that it has made so many. It may also be in
    /// the queue still since another process has found it.
    pub fn may_meet(&self, made: u32) -> bool {
        self.fd.is_none() && (made != self.met || self.found != 0)
    }

    /// Returns whether a channel is to be met that nobody has met yet.
    pub fn has_new(&self, made: u32) -> bool {
        self.fd.is_none() && made != self.met
    }

    /// Notes that none of so many is to be met: the process that met the last one is dead.
    pub fn has_missed(&mut self, made: u32) {
        (self.met, self.found) = (made, 0);
    }

    /// Returns whether this process has the channel.
    pub fn has_channel(&self) -> bool {
        self.fd.is_some()
    }

    /// Returns whether it keeps a pool that could not be mapped when it came.
    pub fn keeps_pool(&self) -> bool {
        self.kept.is_some()
    }

    /// Returns whether this process has met the channel: it has it, or has lost it.
    pub fn is_met(&self) -> bool {
        self.fd.is_some() || self.lost
    }

    /// Looks for the channel in the queue of the control socket, without taking anything: in all of a stream,
    /// or with the first record. Returns whether it was met now.
    ///
    /// # Errors
    ///
    /// EMFILE if this process has no descriptor left: the channel stays where it is. ECONNRESET, which the
    /// kernel reports once.
    #[cold]
    pub fn find(&mut self, control: BorrowedFd<'_>, kind: Kind) -> io::Result<bool> {
        if self.fd.is_some() {
            return Ok(false);
        }
        let mut scratch = vec![0; if kind == Kind::Stream { FAR } else { 1 }];
        match recv(control, &mut scratch, Space::Few, RecvFlags::PEEK) {
            // This is a filler, which may bring a descriptor of its own.
            Ok(came) if came.cut => Ok(false),
            Ok(came) if came.fds.is_empty() && came.control_cut => Err(Errno::MFILE),
            Ok(came) => Ok(self.meet(came, false)),
            Err(Errno::CONNRESET) => Err(Errno::CONNRESET),
            Err(_) => Ok(false),
        }
    }

    /// Takes up the channel of an end that another process has passed on.
    pub fn take_up(&mut self, fd: Option<OwnedFd>, lost: bool) {
        (self.lost, self.fd) = (lost, fd.map(Arc::new));
    }

    /// Returns whether the channel came when this process had no descriptor left.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns what keeps the channel open, if it is here.
    pub fn keep(&self) -> Option<Arc<OwnedFd>> {
        self.fd.clone()
    }

    /// Returns the channel, or `None` if there is none, although a mark says so.
    fn fd(&self) -> Result<Option<BorrowedFd<'_>>> {
        match &self.fd {
            Some(fd) => Ok(Some(fd.as_fd())),
            None if !self.lost => Ok(None),
            None => Err(Error::new(Op::Recv, Errno::MFILE)
                .because("descriptors came when this process could open no more; connect again")),
        }
    }

    /// Receives what was announced, with a pidfd of the sender if that is wanted. Returns `None` if it is
    /// gone.
    ///
    /// # Errors
    ///
    /// EMFILE if the channel itself was lost for want of a descriptor.
    pub fn receive(
        &mut self,
        announced: Announced,
        pidfd: bool,
    ) -> Result<std::result::Result<Option<Fds>, PeerMisbehaved>> {
        let Announced { number, fds, who, may_be_gone } = announced;
        let Some(fd) = &self.fd else { return self.fd().map(|_| Err(PeerMisbehaved::Channel)) };
        if who {
            // The sender has stated its identity, and the kernel has verified it then (net/core/scm.c:
            // scm_check_creds). A sender that has not stated one is nobody.
            let _ = sockopt::set_socket_passcred(fd, true);
            if pidfd != self.pidfds {
                // Linux before 6.5 has no pidfds here.
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

    /// Receives the one descriptor that was announced, of a pool. Returns `None` if it is gone.
    ///
    /// # Errors
    ///
    /// EMFILE if this process has no descriptor left: the message stays.
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
            // This takes a copy first, since a descriptor for which there is no room would be lost with its
            // message.
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

    /// Keeps a descriptor that will be asked for again.
    pub fn keep_pool(&mut self, number: u64, memfd: OwnedFd) {
        self.kept = Some((number, memfd));
    }
}

/// Takes the last message of that number, and closes the older ones. With `look`, this peeks before each
/// message, so that a newer one stays.
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
                // Its descriptors are not even opened: there may be many.
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
