//! A peer that speaks the upgrade by hand, and so can lie at any point of it.
//!
//! Nothing here comes from the crates under test: the wire is written down a second time, from its description. An honest
//! conversation of this peer is a case of its own, so that a change of the wire is not mistaken for resistance to lies.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags,
};

use crate::impls::kernel::{Kernel, Plain, address};
use crate::impls::{Kind, Name, Socket};
pub use crate::memory::{Field, HEADER_LEN, Memory, Rings, SEALS};

/// The name that a capable client is bound to: this, 32 hex digits of nonce, and in hex what it wishes, each behind a `-`.
pub const INVITATION: &str = "onecopy-4-";
/// The name of the socket that a listener is known by: this, a letter for the kind, and the listener's name.
pub const RENDEZVOUS: &str = "onecopy-4-at-";

/// What a client says by its name besides its nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Bytes of its send buffer; 0 for none in particular.
    pub send_buffer: u64,
    /// Bytes of its receive buffer; 0 for none in particular.
    pub receive_buffer: u64,
    /// Bytes of the largest ring that it takes.
    pub max_ring: u64,
}

impl Default for Wishes {
    /// Rings of 64 KiB, and no larger ones.
    fn default() -> Wishes {
        Wishes { send_buffer: 0, receive_buffer: 0, max_ring: 64 << 10 }
    }
}

/// What came over the control socket at once.
#[derive(Debug, Default)]
pub struct Came {
    /// Bytes.
    pub bytes: Vec<u8>,
    /// Descriptors.
    pub fds: Vec<OwnedFd>,
}

/// The hand-made peer of one connection.
#[derive(Debug)]
pub struct Liar {
    /// The control socket.
    pub fd: OwnedFd,
    /// The client's nonce.
    pub nonce: [u8; 16],
    /// The ring that the victim sends into, and this peer receives from.
    pub mine: Option<Memory>,
    /// The ring that the victim receives from, and this peer sends into.
    pub theirs: Option<Memory>,
    /// Whether this peer called, and the victim accepted.
    pub client: bool,
    /// Whether the sockets are seqpacket ones, whose records are counted and framed.
    pub records: bool,
    /// Whether the records are pieces of a stream: over the kernel, a byte before each says whether a record ends with it.
    pub pieces: bool,
    /// Bytes sent into the victim's ring.
    pub head: u64,
    /// Bytes, or records, sent over the kernel.
    pub over_kernel: u64,
    /// How long to wait for what the victim sends.
    pub patience: Duration,
    /// The sender's end of a channel for descriptors, once opened.
    pub channel: Option<OwnedFd>,
}

impl Liar {
    /// Connects to the victim, as a capable client does.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub fn call(kind: Kind, to: &Name) -> io::Result<Liar> {
        Liar::call_wishing(kind, to, Wishes::default())
    }

    /// As [`Liar::call`], with wishes. Each call has a nonce of its own, and so a name: others call at the same time.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub fn call_wishing(kind: Kind, to: &Name, wishes: Wishes) -> io::Result<Liar> {
        let mut nonce = [0; 16];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        let Wishes { send_buffer, receive_buffer, max_ring } = wishes;
        let what = if kind == Kind::Pieces { "-s" } else { "" };
        let bound =
            format!("{INVITATION}{}-{send_buffer:x}-{receive_buffer:x}-{max_ring:x}{what}", hex(&nonce));
        let socket = Kernel::open(on_the_kernel(kind))?;
        socket.bind(&Name::Abstract(bound.into_bytes()))?;
        socket.connect(to)?;
        Ok(Liar::over(socket.0, nonce, true).of(kind))
    }

    /// Listens for the victim, which sends no rings before it was sent some: nothing tells it that this is not a plain listener.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub fn listen(kind: Kind, at: &Name) -> io::Result<Plain> {
        let socket = Kernel::open(on_the_kernel(kind))?;
        net::bind(&socket.0, &address(at)?)?;
        net::listen(&socket.0, 8)?;
        Ok(socket)
    }

    /// What a listener with that name is known by, as long as this is open: its clients send rings with their second message.
    ///
    /// # Errors
    ///
    /// The socket's; where the name is a path, stat's.
    pub fn rendezvous(kind: Kind, at: &Name) -> io::Result<Plain> {
        let letter = match kind {
            Kind::SeqPacket => "a",
            Kind::Pieces => "r",
            Kind::Stream | Kind::Dgram | Kind::Tcp => "s",
        };
        let mut name = format!("{RENDEZVOUS}{letter}").into_bytes();
        match at {
            Name::Abstract(at) => {
                name.push(b'@');
                name.extend(at);
            }
            Name::Path(path) => {
                let file = std::fs::metadata(path)?;
                name.extend(format!("-{:x}-{:x}", file.dev(), file.ino()).into_bytes());
            }
            Name::Unnamed => return Err(io::ErrorKind::InvalidInput.into()),
        }
        let socket = Kernel::open(Kind::Stream)?;
        net::bind(&socket.0, &address(&Name::Abstract(name))?)?;
        net::listen(&socket.0, 8)?;
        Ok(socket)
    }

    /// Accepts the victim, and reads its nonce from the name that it is bound to.
    ///
    /// # Errors
    ///
    /// The socket's; `InvalidData` where the victim sends no invitation.
    pub fn accept(listener: &Plain) -> io::Result<Liar> {
        let (fd, from) = net::acceptfrom_with(&listener.0, SocketFlags::CLOEXEC)?;
        let name = from.and_then(|a| net::SocketAddrUnix::try_from(a).ok());
        let name = name.as_ref().and_then(|n| n.abstract_name()).unwrap_or_default();
        let name = std::str::from_utf8(name).unwrap_or_default();
        let nonce =
            name.strip_prefix(INVITATION).and_then(|n| n.split_once('-')).and_then(|(hex, _)| unhex(hex));
        let nonce = nonce.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no invitation"))?;
        let records = net::sockopt::socket_type(&fd)? == net::SocketType::SEQPACKET;
        Ok(Liar { records, pieces: name.ends_with("-s"), ..Liar::over(fd, nonce, false) })
    }

    /// One that has said nothing yet on a connected socket, of a stream.
    pub fn over(fd: OwnedFd, nonce: [u8; 16], client: bool) -> Liar {
        Liar {
            fd,
            nonce,
            mine: None,
            theirs: None,
            client,
            records: false,
            pieces: false,
            head: 0,
            over_kernel: 0,
            patience: onecopy_testing::LONG,
            channel: None,
        }
    }

    fn of(self, kind: Kind) -> Liar {
        let records = matches!(kind, Kind::SeqPacket | Kind::Pieces);
        Liar { records, pieces: kind == Kind::Pieces, ..self }
    }

    /// Sends bytes with descriptors over the control socket, as they are.
    ///
    /// # Errors
    ///
    /// sendmsg's.
    pub fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space =
            vec![std::mem::MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(fds).size() + 64];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags)?)
    }

    /// Sends bytes over the control socket as part of the stream, or as a record, with descriptors.
    ///
    /// # Errors
    ///
    /// sendmsg's.
    pub fn say(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let n = if self.pieces {
            self.send_with(&[&[1], bytes].concat(), fds)?
        } else {
            self.send_with(bytes, fds)?
        };
        self.over_kernel += if self.records { 1 } else { n as u64 };
        Ok(())
    }

    /// As [`Liar::say`], without descriptors.
    ///
    /// # Errors
    ///
    /// As [`Liar::say`].
    pub fn send_over_kernel(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.say(bytes, &[])
    }

    /// What comes next over the control socket; nothing at its end. Waits at most `patience`.
    ///
    /// # Errors
    ///
    /// The socket's; `TimedOut`.
    pub fn receive(&self) -> io::Result<Came> {
        let until = Instant::now() + self.patience;
        let mut bytes = vec![0; 1 << 16];
        loop {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let got = net::recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
            match got {
                Err(rustix::io::Errno::AGAIN) => self.wait(until)?,
                got => {
                    bytes.truncate(got?.bytes);
                    let mut fds = Vec::new();
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(more) = message {
                            fds.extend(more);
                        }
                    }
                    return Ok(Came { bytes, fds });
                }
            }
        }
    }

    fn wait(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&limit)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends bytes with the rings of the connection, behind descriptors of the program. From here on they are this peer's: it
    /// sends into the first one.
    ///
    /// # Errors
    ///
    /// sendmsg's.
    pub fn attach(&mut self, bytes: &[u8], with: &[BorrowedFd<'_>], rings: Rings) -> io::Result<()> {
        let memfd = rings.first.file.as_fd();
        self.say(bytes, &[with, &[memfd]].concat())?;
        (self.theirs, self.mine) = (Some(rings.first), Some(rings.second));
        Ok(())
    }

    /// Receives until the victim's rings come, which are this peer's from here on: it receives from the first one. Returns all
    /// that came.
    ///
    /// # Errors
    ///
    /// As [`Liar::receive`]; `InvalidData` where the end comes before.
    pub fn take_rings(&mut self) -> io::Result<Came> {
        let mut all = Came::default();
        loop {
            let came = self.receive()?;
            if came.bytes.is_empty() && !self.records {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the end instead of rings"));
            }
            all.bytes.extend(came.bytes);
            all.fds.extend(came.fds);
            let Some(last) = all.fds.last() else { continue };
            if let Some(rings) = Rings::open(last.try_clone()?, self.nonce)? {
                all.fds.pop();
                (self.mine, self.theirs) = (Some(rings.first), Some(rings.second));
                return Ok(all);
            }
        }
    }

    /// Lets the victim send into its first ring from here on.
    ///
    /// # Errors
    ///
    /// pwrite's.
    pub fn join(&self) -> io::Result<()> {
        self.mine()?.set(Field::Joined, 1)
    }

    /// An honest upgrade with rings of this peer, whose bytes the victim receives in between.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong: then the victim has not joined.
    pub fn upgrade<T>(&mut self, capacity: u64, receive: impl FnOnce() -> T) -> io::Result<T> {
        let rings = Rings::honest([capacity; 2], self.nonce)?;
        self.attach(b"h", &[], rings)?;
        let received = receive();
        match self.theirs()?.get(Field::Joined)? {
            1 => self.switch()?,
            other => return Err(io::Error::other(format!("the victim has not joined: {other}"))),
        }
        Ok(received)
    }

    /// Notes in the victim's ring that all bytes from here on come through it.
    ///
    /// # Errors
    ///
    /// pwrite's.
    pub fn switch(&self) -> io::Result<()> {
        self.theirs()?.set(Field::SwitchAt, self.over_kernel + 1)
    }

    /// The ring that the victim receives from.
    ///
    /// # Errors
    ///
    /// `NotConnected` before there is one.
    pub fn theirs(&self) -> io::Result<&Memory> {
        self.theirs.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The ring that this peer receives from.
    ///
    /// # Errors
    ///
    /// `NotConnected` before there is one.
    pub fn mine(&self) -> io::Result<&Memory> {
        self.mine.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Publishes bytes in the victim's ring and rings if it is armed, as an honest sender does. How many had room.
    ///
    /// # Errors
    ///
    /// pwrite's and the socket's.
    pub fn publish(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let ring = self.theirs()?;
        // A page full of lies, its own perhaps: what makes no sense is no room.
        let used = self.head.saturating_sub(ring.get(Field::Tail)?);
        let room = ring.capacity.saturating_sub(used);
        let n = (bytes.len() as u64).min(room);
        let at = self.head % ring.capacity;
        let first = n.min(ring.capacity - at);
        ring.write(&bytes[..first as usize], HEADER_LEN + at)?;
        ring.write(&bytes[first as usize..n as usize], HEADER_LEN)?;
        ring.set(Field::Head, self.head + n)?;
        let must_ring = ring.rings(self.head + n)?;
        self.head += n;
        if must_ring {
            self.doorbell(1)?;
        }
        Ok(n as usize)
    }

    /// Publishes a frame as an honest sender of records does: a word of length and flags (1 << 32: the record ends),
    /// the bytes, and nothing up to a multiple of eight. How many bytes of it had room.
    ///
    /// # Errors
    ///
    /// As [`Liar::publish`].
    pub fn publish_frame(&mut self, bytes: &[u8], end: bool) -> io::Result<usize> {
        self.publish_framed(bytes.len() as u64 | u64::from(end) << 32, bytes)
    }

    /// As [`Liar::publish_frame`], with any word for its header.
    ///
    /// # Errors
    ///
    /// As [`Liar::publish`].
    pub fn publish_framed(&mut self, word: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut frame = word.to_le_bytes().to_vec();
        frame.extend(bytes);
        frame.resize(frame.len().next_multiple_of(8), 0);
        self.publish(&frame)
    }

    /// Takes what the victim published in our ring. Empty where there is nothing.
    ///
    /// # Errors
    ///
    /// pread's.
    pub fn take(&self) -> io::Result<Vec<u8>> {
        let ring = self.mine()?;
        let (head, tail) = (ring.get(Field::Head)?, ring.get(Field::Tail)?);
        let mut bytes = vec![0; head.saturating_sub(tail).min(ring.capacity) as usize];
        let at = tail % ring.capacity;
        let first = (bytes.len() as u64).min(ring.capacity - at) as usize;
        ring.read(&mut bytes[..first], HEADER_LEN + at)?;
        ring.read(&mut bytes[first..], HEADER_LEN)?;
        ring.set(Field::Tail, tail.wrapping_add(bytes.len() as u64))?;
        Ok(bytes)
    }

    /// Rings so many doorbells. A queue without room for them is no error.
    ///
    /// # Errors
    ///
    /// EPIPE when the victim is gone.
    pub fn doorbell(&self, count: usize) -> io::Result<()> {
        for _ in 0..count {
            match net::send(&self.fd, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// As 32 hex digits.
pub fn hex(nonce: &[u8; 16]) -> String {
    nonce.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(digits: &str) -> Option<[u8; 16]> {
    let mut nonce = [0; 16];
    for (i, byte) in nonce.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(nonce)
}

fn on_the_kernel(kind: Kind) -> Kind {
    if kind == Kind::Pieces { Kind::SeqPacket } else { kind }
}
