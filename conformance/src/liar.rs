//! A peer that speaks the upgrade by hand, and so can lie at any point of it.
//!
//! Nothing here comes from the crates under test: the wire is written down a second time, from its description,
//! and shared memory is read and written by pread and pwrite on the memfds. An honest conversation of this peer
//! is a case of its own, so that a change of the wire is not mistaken for resistance to lies.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags,
};

use crate::impls::kernel::{Kernel, Plain, address};
use crate::impls::{Kind, Name, Socket};

/// The name that a capable client is bound to: this, 32 hex digits of nonce, `-`, its send buffer in hex.
pub const INVITATION: &str = "onecopy-3-";
/// The first bytes of a hello.
pub const MAGIC: [u8; 8] = *b"onecopy\x03";
/// Bytes of a hello: magic, nonce (16), capacity (8), send buffer (8), zeroes.
pub const HELLO_LEN: usize = 64;
/// Bytes before the data of a ring.
pub const HEADER_LEN: u64 = 4096;
/// The seals that a ring must carry.
pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The fields of a ring's header, by their place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Sender: bytes published.
    Head,
    /// Sender: 1 + the byte at which it left the kernel.
    SwitchAt,
    /// Receiver: bytes given back.
    Tail,
    /// Receiver: 1 when it receives no more.
    Shut,
    /// 1 when the next byte must ring.
    Armed,
    /// 0 free, 1 a filler under way, 2 parked.
    Parked,
    /// Bytes of the filler.
    Filler,
    /// Room that the parked sender waits for.
    Wanted,
    /// For persons.
    Magic,
    /// For persons.
    Capacity,
    /// Sender: marks laid.
    Marks,
    /// Receiver: bytes of the sender's pools that it maps.
    MaxShared,
    /// Receiver: pages given back, the first 64 slots.
    Returned,
    /// Sender: 1 while it sleeps for pages.
    Asleep,
}

impl Field {
    /// All of them.
    pub const ALL: [Field; 14] = [
        Field::Head,
        Field::SwitchAt,
        Field::Tail,
        Field::Shut,
        Field::Armed,
        Field::Parked,
        Field::Filler,
        Field::Wanted,
        Field::Magic,
        Field::Capacity,
        Field::Marks,
        Field::MaxShared,
        Field::Returned,
        Field::Asleep,
    ];

    /// Its place, and whether it has four bytes instead of eight.
    fn place(self) -> (u64, bool) {
        match self {
            Field::Head => (0, false),
            Field::SwitchAt => (8, false),
            Field::Armed => (16, true),
            Field::Shut => (280, true),
            Field::Tail => (128, false),
            Field::Wanted => (136, false),
            Field::Parked => (144, true),
            Field::Filler => (148, true),
            Field::Magic => (256, false),
            Field::Capacity => (264, false),
            Field::Marks => (24, false),
            Field::MaxShared => (272, false),
            Field::Returned => (384, false),
            Field::Asleep => (448, true),
        }
    }
}

/// A ring by its memfd.
#[derive(Debug)]
pub struct Memory {
    /// The memfd.
    pub file: File,
    /// Bytes of data room.
    pub capacity: u64,
}

impl Memory {
    /// A ring as it should be, armed.
    ///
    /// # Errors
    ///
    /// memfd_create's, ftruncate's, fcntl's.
    pub fn honest(capacity: u64) -> io::Result<Memory> {
        let memory = Memory::unsealed(capacity)?;
        rustix::fs::fcntl_add_seals(&memory.file, SEALS)?;
        Ok(memory)
    }

    /// A ring without its seals.
    ///
    /// # Errors
    ///
    /// memfd_create's, ftruncate's.
    pub fn unsealed(capacity: u64) -> io::Result<Memory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("onecopy-liar", flags)?;
        rustix::fs::ftruncate(&fd, HEADER_LEN + capacity)?;
        let memory = Memory { file: File::from(fd), capacity };
        memory.set(Field::Armed, 1)?;
        Ok(memory)
    }

    /// A field of its header.
    ///
    /// # Errors
    ///
    /// pread's.
    pub fn get(&self, field: Field) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let (at, short) = field.place();
        self.file.read_exact_at(&mut bytes[..if short { 4 } else { 8 }], at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Sets a field of its header.
    ///
    /// # Errors
    ///
    /// pwrite's.
    pub fn set(&self, field: Field, value: u64) -> io::Result<()> {
        let (at, short) = field.place();
        self.file.write_all_at(&value.to_le_bytes()[..if short { 4 } else { 8 }], at)
    }

    /// Punches a hole: header, data, or both.
    ///
    /// # Errors
    ///
    /// fallocate's.
    pub fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, at, len)?)
    }
}

/// What travels with a memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// First eight bytes.
    pub magic: [u8; 8],
    /// The client's.
    pub nonce: [u8; 16],
    /// Announced data room.
    pub capacity: u64,
    /// Announced send buffer.
    pub send_buffer: u64,
}

impl Hello {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut wire = [0; HELLO_LEN];
        wire[..8].copy_from_slice(&self.magic);
        wire[8..24].copy_from_slice(&self.nonce);
        wire[24..32].copy_from_slice(&self.capacity.to_le_bytes());
        wire[32..40].copy_from_slice(&self.send_buffer.to_le_bytes());
        wire
    }

    fn decode(wire: &[u8; HELLO_LEN]) -> Option<Hello> {
        let number = |at: usize| wire[at..at + 8].try_into().map(u64::from_le_bytes);
        Some(Hello {
            magic: wire[..8].try_into().ok()?,
            nonce: wire[8..24].try_into().ok()?,
            capacity: number(24).ok()?,
            send_buffer: number(32).ok()?,
        })
    }
}

/// The hand-made peer of one connection.
#[derive(Debug)]
pub struct Liar {
    /// The control socket.
    pub fd: OwnedFd,
    /// The client's nonce.
    pub nonce: [u8; 16],
    /// The ring that the victim sends into: ours.
    pub mine: Option<Memory>,
    /// The ring that the victim receives from: its own.
    pub theirs: Option<Memory>,
    /// Whether this peer called, and the victim accepted.
    pub client: bool,
    /// Whether the sockets are seqpacket ones, whose records are counted and framed.
    pub records: bool,
    /// Bytes sent into the victim's ring.
    pub head: u64,
    /// Bytes sent over the kernel.
    pub over_kernel: u64,
    /// How long to wait for a hello.
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
        Liar::call_for(kind, to, "")
    }

    /// As [`Liar::call`], for records as FreeBSD has them.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub fn call_for_streams_of_records(to: &Name) -> io::Result<Liar> {
        Liar::call_for(Kind::SeqPacket, to, "-s")
    }

    /// Each call has a nonce of its own, and so a name: others call at the same time.
    fn call_for(kind: Kind, to: &Name, what: &str) -> io::Result<Liar> {
        let mut nonce = [0; 16];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        let bound = format!("{INVITATION}{}-0{what}", hex(&nonce));
        let socket = Kernel::open(kind)?;
        socket.bind(&Name::Abstract(bound.into_bytes()))?;
        socket.connect(to)?;
        Ok(Liar { records: kind == Kind::SeqPacket, ..Liar::over(socket.0, nonce, true) })
    }

    /// Listens for the victim.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub fn listen(kind: Kind, at: &Name) -> io::Result<Plain> {
        let socket = Kernel::open(kind)?;
        net::bind(&socket.0, &address(at)?)?;
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
        let nonce = std::str::from_utf8(name)
            .ok()
            .and_then(|n| n.strip_prefix(INVITATION))
            .and_then(|n| n.split_once('-'))
            .and_then(|(hex, _)| unhex(hex));
        let nonce = nonce.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no invitation"))?;
        let records = net::sockopt::socket_type(&fd)? == net::SocketType::SEQPACKET;
        Ok(Liar { records, ..Liar::over(fd, nonce, false) })
    }

    /// One that has said nothing yet on a connected socket.
    pub fn over(fd: OwnedFd, nonce: [u8; 16], client: bool) -> Liar {
        Liar {
            fd,
            nonce,
            mine: None,
            theirs: None,
            client,
            records: false,
            head: 0,
            over_kernel: 0,
            patience: Duration::from_secs(1),
            channel: None,
        }
    }

    /// The hello that an honest peer would send for a ring.
    pub fn hello(&self, capacity: u64) -> Hello {
        Hello { magic: MAGIC, nonce: self.nonce, capacity, send_buffer: 0 }
    }

    /// Sends bytes with descriptors over the control socket.
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

    /// Sends bytes over the control socket as part of the stream.
    ///
    /// # Errors
    ///
    /// send's.
    pub fn send_over_kernel(&mut self, bytes: &[u8]) -> io::Result<()> {
        let n = net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        self.over_kernel += if self.records { 1 } else { n as u64 };
        Ok(())
    }

    /// Receives the victim's hello and its ring, waiting at most `patience`. Bytes of the stream before it are
    /// thrown away.
    ///
    /// # Errors
    ///
    /// The socket's; `InvalidData` where something else came.
    pub fn receive_hello(&mut self) -> io::Result<Hello> {
        let until = Instant::now() + self.patience;
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        loop {
            let mut wire = [0; HELLO_LEN];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let got = net::recvmsg(&self.fd, &mut [IoSliceMut::new(&mut wire)], &mut control, flags);
            let n = match got {
                Err(rustix::io::Errno::AGAIN) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
                got => got?.bytes,
            };
            let mut fds: Vec<OwnedFd> = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    fds.extend(more);
                }
            }
            match (n, fds.pop()) {
                (HELLO_LEN, Some(fd)) => {
                    let hello = Hello::decode(&wire).ok_or_else(|| bad("no hello"))?;
                    if hello.magic != MAGIC || hello.nonce != self.nonce {
                        return Err(bad("a hello with another magic or nonce"));
                    }
                    self.theirs = Some(Memory { file: File::from(fd), capacity: hello.capacity });
                    return Ok(hello);
                }
                (0, _) => return Err(bad("the end instead of a hello")),
                _ if Instant::now() < until => {}
                _ => return Err(bad("no hello in time")),
            }
        }
    }

    /// An honest upgrade, as far as this side goes. The victim must have been used before if it called: it sends
    /// its hello when it next receives or sends.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong.
    pub fn upgrade(&mut self, capacity: u64) -> io::Result<()> {
        let mine = Memory::honest(capacity)?;
        if self.client {
            self.receive_hello()?;
            self.switch()?;
            self.send_with(&self.hello(capacity).encode(), &[mine.file.as_fd()])?;
        }
        self.mine = Some(mine);
        Ok(())
    }

    /// Notes in the victim's ring that all bytes from here on come through it.
    ///
    /// # Errors
    ///
    /// pwrite's.
    pub fn switch(&self) -> io::Result<()> {
        self.theirs()?.set(Field::SwitchAt, self.over_kernel + 1)
    }

    /// The victim's ring.
    ///
    /// # Errors
    ///
    /// `NotConnected` before its hello came.
    pub fn theirs(&self) -> io::Result<&Memory> {
        self.theirs.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Our ring.
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
        ring.file.write_all_at(&bytes[..first as usize], HEADER_LEN + at)?;
        ring.file.write_all_at(&bytes[first as usize..n as usize], HEADER_LEN)?;
        ring.set(Field::Head, self.head + n)?;
        let armed = ring.get(Field::Armed)? == 1;
        if armed {
            ring.set(Field::Armed, 0)?;
        }
        self.head += n;
        if armed {
            self.bell(1)?;
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
        ring.file.read_exact_at(&mut bytes[..first], HEADER_LEN + at)?;
        ring.file.read_exact_at(&mut bytes[first..], HEADER_LEN)?;
        ring.set(Field::Tail, tail.wrapping_add(bytes.len() as u64))?;
        Ok(bytes)
    }

    /// Rings so many bells. A queue without room for them is no error.
    ///
    /// # Errors
    ///
    /// EPIPE when the victim is gone.
    pub fn bell(&self, count: usize) -> io::Result<()> {
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
