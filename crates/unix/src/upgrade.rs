//! How a kernel connection becomes a shared-memory one, in place.
//!
//! 1. A capable client binds itself to an abstract name `onecopy-3-<nonce>-<send buffer>` before it connects. An
//!    incapable server does not care; a capable one sees it at accept.
//! 2. A capable server sends a [`Hello`] with the nonce and the memfd of *its* ring, before anything else.
//! 3. The client finds it at the head of what it receives (anything else there: a plain server), and before its
//!    next send notes in the server's ring how many bytes it has sent over the kernel, sends its own hello with
//!    the memfd of its ring, and from then on sends through the server's ring.
//! 4. The server finds that hello after exactly so many bytes, notes in the client's ring how many bytes *it* has
//!    sent over the kernel since its hello, and from then on sends through the client's ring.
//!
//! So each direction switches at an exact byte ([`WriterLine::switch_at`]), nobody ever waits for the other to
//! take part, and either may stay silent, or plain, for ever. A receiver asks how many bytes the kernel holds
//! *before* it reads `switch_at`: bytes that it was told of without a switch are bytes of the stream.
//!
//! [`WriterLine::switch_at`]: onecopy_ring::header::WriterLine

use crate::config::Config;
use crate::end::End;
use crate::making::Kind;
use crate::rx::{Rx, Switching};
use crate::tx::{Tx, UNKNOWN};
use crate::{Error, Op, Records, Result, control};
use onecopy_ring::{Consumer, Producer, Ring, round_capacity};
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use onecopy_sys::memfd::Refused;
use onecopy_sys::scm::{self, Space};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketAddrUnix, sockopt};
use std::io::IoSliceMut;

/// Version of the layout and of the upgrade. A peer of another version is plain to us, and we to it.
pub const VERSION: u8 = 3;
/// Bytes of a hello on the wire.
pub const HELLO_LEN: usize = 64;
/// Default data room of a ring in bytes.
pub const DEFAULT_BUFFER: usize = 256 << 10;

const MAGIC: [u8; 8] = *b"onecopy\x03";
const PREFIX: &str = "onecopy-3-";
/// What the name of a client ends with that keeps stream records.
const STREAM_RECORDS: &str = "-s";

/// What names one upgrade: guessed by nobody who has not seen the client's address.
pub type Nonce = [u8; 16];

/// One that nobody has seen.
///
/// # Errors
///
/// What getrandom(2) says.
pub fn nonce() -> rustix::io::Result<Nonce> {
    let mut nonce = Nonce::default();
    if rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())? != nonce.len() {
        return Err(Errno::IO);
    }
    Ok(nonce)
}

/// What a client tells by the name it is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// To be repeated in both hellos.
    pub nonce: Nonce,
    /// Bytes of send buffer that the client asked for, doubled; 0 for none in particular.
    pub send_buffer: u64,
    /// How the client keeps its records.
    pub records: Records,
}

impl Invitation {
    fn new(records: Records, config: &Config) -> rustix::io::Result<Invitation> {
        Ok(Invitation { nonce: nonce()?, send_buffer: wish(config.send_buffer) as u64, records })
    }

    fn name(&self) -> String {
        let nonce = self.nonce.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let records = if self.records == Records::Stream { STREAM_RECORDS } else { "" };
        format!("{PREFIX}{nonce}-{:x}{records}", self.send_buffer)
    }

    /// The invitation in a peer's abstract name, if it is one.
    pub fn parse(name: &[u8]) -> Option<Invitation> {
        let rest = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
        let (rest, records) = match rest.strip_suffix(STREAM_RECORDS) {
            Some(rest) => (rest, Records::Stream),
            None => (rest, Records::Atomic),
        };
        let (hex, buffer) = rest.split_once('-')?;
        if hex.len() != 32 || !hex.is_ascii() {
            return None;
        }
        let mut nonce = Nonce::default();
        for (byte, digits) in nonce.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Invitation { nonce, send_buffer: u64::from_str_radix(buffer, 16).ok()?, records })
    }
}

/// What travels with the memfd of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The client's.
    pub nonce: Nonce,
    /// Bytes of data room in the ring whose memfd is attached.
    pub capacity: u64,
    /// Bytes of send buffer that this side asked for, doubled; 0 for none in particular.
    pub send_buffer: u64,
}

impl Hello {
    /// On the wire: magic and version, nonce, capacity, send buffer (little-endian), zeroes.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut wire = [0; HELLO_LEN];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..24].copy_from_slice(&self.nonce);
        wire[24..32].copy_from_slice(&self.capacity.to_le_bytes());
        wire[32..40].copy_from_slice(&self.send_buffer.to_le_bytes());
        wire
    }

    /// The hello in `wire`, if it is one.
    pub fn decode(wire: &[u8]) -> Option<Hello> {
        let wire: &[u8; HELLO_LEN] = wire.try_into().ok()?;
        if wire[..8] != MAGIC {
            return None;
        }
        let number = |at: usize| wire[at..at + 8].try_into().map(u64::from_le_bytes);
        Some(Hello {
            nonce: wire[8..24].try_into().ok()?,
            capacity: number(24).ok()?,
            send_buffer: number(32).ok()?,
        })
    }
}

/// The peer's ring, and what must still be sent before this end may send into it.
#[derive(Debug)]
pub struct Offer {
    ring: Ring,
    /// A client's answer: its hello and the memfd of its ring.
    answer: Option<(Hello, OwnedFd)>,
}

/// What a buffer size that was asked for becomes: doubled, as Linux does (socket(7), SO_SNDBUF); 0 stays 0.
pub fn wish(bytes: Option<usize>) -> usize {
    bytes.map_or(0, |bytes| bytes.saturating_mul(2))
}

/// Data room of a ring of a stream: the larger of what its receiver and its sender asked for.
fn capacity(receive: Option<usize>, peer_send: u64, max_ring: usize) -> usize {
    let peer_send = usize::try_from(peer_send).unwrap_or(usize::MAX);
    let asked = wish(receive).max(peer_send);
    round_capacity(if asked == 0 { DEFAULT_BUFFER } else { asked }, max_ring)
}

/// Room for the headers of some large records or datagrams, so that two that fill half of what was asked for each lie in
/// the ring together: the kernel takes them, too, and one could not be sent while the other is received.
const FRAMING: usize = 8 * onecopy_ring::record::HEADER;

/// As `capacity`, of a ring for `kind`: what was asked for is room for bytes that are sent.
pub fn capacity_for(kind: Kind, receive: Option<usize>, peer_send: u64, max_ring: usize) -> usize {
    let capacity = capacity(receive, peer_send, max_ring);
    if kind == Kind::Stream { capacity } else { round_capacity(capacity + FRAMING, max_ring) }
}

/// A ring to receive into, which says what its receiver maps besides.
///
/// # Errors
///
/// What memfd_create(2), ftruncate(2) and mmap(2) say.
pub fn new_ring(capacity: usize, config: &Config) -> rustix::io::Result<(Ring, OwnedFd)> {
    let (ring, memfd) = Ring::create(capacity)?;
    if config.passable {
        ring.keep(rustix::io::fcntl_dupfd_cloexec(&memfd, 3)?);
    }
    ring.header().info.0.max_shared.store(config.max_shared as u64, Relaxed);
    ring.header().info.0.asks_who.store(u32::from(config.pass_credentials), Relaxed);
    Ok((ring, memfd))
}

/// Client, before it connects: binds `socket` to an invitation.
pub fn invite(socket: BorrowedFd<'_>, records: Records, config: &Config) -> rustix::io::Result<Invitation> {
    let invitation = Invitation::new(records, config)?;
    rustix::net::bind(socket, &SocketAddrUnix::new_abstract_name(invitation.name().as_bytes())?)?;
    Ok(invitation)
}

/// Server, at accept: answers an invitation with its ring. The stream's receiving side.
pub fn welcome(
    socket: BorrowedFd<'_>,
    kind: Kind,
    invitation: &Invitation,
    config: &Config,
) -> rustix::io::Result<(Switching, Ring)> {
    let capacity = capacity_for(kind, config.receive_buffer, invitation.send_buffer, config.max_ring);
    let (ring, memfd) = new_ring(capacity, config)?;
    let hello = Hello {
        nonce: invitation.nonce,
        capacity: capacity as u64,
        send_buffer: wish(config.send_buffer) as u64,
    };
    control::send_fd(socket, &hello.encode(), memfd.as_fd())?;
    Ok((Switching::new(ring.clone(), Some(invitation.nonce)), ring))
}

/// Takes a hello off the queue, if it is one, with its descriptor; that is missing where this process has no room for
/// one, which the last value says (MSG_CTRUNC, unix(7)).
///
/// # Errors
///
/// What recvmsg(2) says.
pub fn receive_hello(socket: BorrowedFd<'_>) -> rustix::io::Result<(Option<Hello>, Option<OwnedFd>, bool)> {
    let mut wire = [0u8; HELLO_LEN];
    let came = scm::recv(socket, &mut [IoSliceMut::new(&mut wire)], Space::Few, RecvFlags::DONTWAIT)?;
    let (n, cut) = (came.bytes, came.control_cut);
    // Every descriptor that was not asked for is closed.
    let memfd = came.fds.into_iter().next();
    Ok((Hello::decode(&wire[..n]), memfd, cut))
}

impl End {
    /// Client: looks, without waiting, whether a hello is the first thing that came.
    pub fn decide(&self, rx: &mut Rx, op: Op) -> Result<()> {
        let Rx::Undecided(nonce) = *rx else { return Ok(()) };
        let mut first = [0u8; HELLO_LEN];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let n = match rustix::net::recv(&self.fd, &mut first, flags) {
            Ok((_, n)) => n,
            Err(Errno::CONNRESET) => {
                // The kernel tells it once; it is for whoever receives.
                self.reset.store(1, Relaxed);
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        if Hello::decode(&first[..n]).is_none_or(|hello| hello.nonce != nonce) {
            // Something else came first, or the end: a plain server.
            self.counters.fallbacks.add(1);
            *rx = Rx::Plain;
            self.decided_now();
            return Ok(());
        }
        let taken = self.take_ring(op, nonce)?;
        let Some((hello, ring)) = taken.filter(|_| !self.is_shared()) else {
            // (Of processes that share this end one alone would have the rings: the kernel carries on.)
            *rx = Rx::Plain;
            self.decided_now();
            return Ok(());
        };
        let config = &self.config;
        let capacity = capacity_for(self.kind, config.receive_buffer, hello.send_buffer, config.max_ring);
        let Ok((mine, memfd)) = new_ring(capacity, &self.config) else {
            // No memory of our own to offer. The server waits for nothing, and the kernel carries on.
            self.counters.fallbacks.add(1);
            *rx = Rx::Plain;
            self.decided_now();
            return Ok(());
        };
        self.set_rx_ring(mine.clone());
        self.decided_now();
        let send_buffer = wish(self.config.send_buffer) as u64;
        let answer = Hello { nonce, capacity: capacity as u64, send_buffer };
        *rx = Rx::Switching(Switching::new(mine, None));
        self.offer(Offer { ring, answer: Some((answer, memfd)) });
        Ok(())
    }

    /// It is known what the server is, and the ring, if there is one, is in its place: a sender looks at this without a lock, and
    /// takes a peer for one without agreement where it then finds no ring.
    fn decided_now(&self) {
        // Release pairs with the Acquire load in `decided`.
        self.undecided.store(0, Release);
    }

    /// Server: the client's hello is next in the queue, and its ring bytes go through `mine` from here on.
    pub fn accept_answer(&self, op: Op, nonce: Nonce, mine: Ring) -> Result<Rx> {
        // Without the client's ring we go on sending over the kernel, which it never stops to expect.
        let taken = self.take_ring(op, nonce)?;
        point!("hello taken");
        if let Some((_, ring)) = taken.filter(|_| !self.is_shared()) {
            self.offer(Offer { ring, answer: None });
        }
        Ok(Rx::ring(Consumer::new(mine)))
    }

    /// Takes a hello off the queue, checks it and maps the ring that came with it. None where it is this side that
    /// cannot: out of descriptors or address space, or the ring is larger than this side accepts.
    fn take_ring(&self, op: Op, nonce: Nonce) -> Result<Option<(Hello, Ring)>> {
        let (hello, memfd) = self.take_hello(op)?;
        if hello.nonce != nonce {
            return Err(self.bad_hello(op, "the peer's hello has the wrong nonce; this connection is lost"));
        }
        let capacity = usize::try_from(hello.capacity).unwrap_or(usize::MAX);
        let too_large = capacity > self.config.max_ring.max(onecopy_ring::MIN_CAPACITY);
        let opened = match &memfd {
            None => Ok(None),
            Some(memfd) if too_large => Ring::verify(memfd, capacity).map(|()| None),
            Some(memfd) => Ring::open(memfd, capacity).map(Some),
        };
        match opened {
            Ok(Some(ring)) => {
                if let Some(memfd) = memfd.filter(|_| self.config.passable) {
                    ring.keep(memfd);
                }
                Ok(Some((hello, ring)))
            }
            Ok(None) | Err(Refused::NoMapping(_)) => {
                self.counters.fallbacks.add(1);
                Ok(None)
            }
            Err(_) => Err(self
                .bad_hello(op, "the peer's ring is no sealed memfd of the announced size; connection lost")),
        }
    }

    /// Offers the peer's ring to the sending side, which switches at once if it is free, else before its next
    /// bytes.
    fn offer(&self, offer: Offer) {
        *self.offer.lock() = Some(offer);
        self.offered.store(1, Release);
        if let Some(mut tx) = self.tx.try_lock() {
            self.adopt(&mut tx);
            tx.unlock_fenced();
            self.welcome_back();
        }
    }

    /// Before other processes share this end: what was not adopted by now never is.
    pub fn decline_offer(&self) {
        self.offered.store(0, Relaxed);
        *self.offer.lock() = None;
    }

    fn take_hello(&self, op: Op) -> Result<(Hello, Option<OwnedFd>)> {
        let (hello, memfd, cut) = receive_hello(self.fd()).map_err(|errno| Error::new(op, errno))?;
        match (hello, memfd) {
            (Some(hello), memfd) if memfd.is_some() || cut => Ok((hello, memfd)),
            _ => Err(self.bad_hello(op, "the peer's hello is garbled or has no memfd; connection lost")),
        }
    }

    /// Switches the sending side to the offered ring.
    pub fn adopt(&self, tx: &mut Tx) {
        if self.offered.load(Relaxed) == 0 {
            return;
        }
        let Tx::Kernel { sent } = *tx else { return };
        if sent == UNKNOWN {
            return self.decline_offer();
        }
        // Bells must have room behind what the peer has not yet received over the kernel.
        // (A hello and a bell always have it.)
        if sent > 0 {
            let unread = onecopy_sys::socket::unread_memory(&self.fd).unwrap_or(usize::MAX);
            let buffer = sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0);
            if unread > buffer / 2 {
                return;
            }
        }
        let mut slot = self.offer.lock();
        let Some(offer) = slot.take() else { return };
        let switch_at = &offer.ring.header().writer.0.switch_at;
        // Release: the count is there before the hello (and before the first byte in the ring) is.
        switch_at.store(sent + 1, Release);
        if let Some((hello, memfd)) = &offer.answer {
            match control::send_fd(self.fd(), &hello.encode(), memfd.as_fd()) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::INTR) => {
                    // Nothing was sent: the peer cannot have acted on the count. Again before the next send.
                    switch_at.store(0, Release);
                    *slot = Some(offer);
                    return;
                }
                Err(errno) => {
                    // The peer is gone, and the send that follows says so; or too many descriptors are in
                    // flight, say, and the kernel carries on.
                    switch_at.store(0, Release);
                    self.offered.store(0, Relaxed);
                    self.counters.fallbacks.add(usize::from(errno != Errno::PIPE));
                    return;
                }
            }
        }
        self.offered.store(0, Relaxed);
        self.kernel_sent.store(sent, Relaxed);
        self.set_tx_ring(offer.ring.clone());
        *tx = Tx::ring(Producer::new(offer.ring));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invitations_and_hellos_come_back_as_they_went() {
        let nonce = *b"0123456789abcdef";
        for records in [Records::Atomic, Records::Stream] {
            let invitation = Invitation { nonce, send_buffer: 0x1234, records };
            assert_eq!(Invitation::parse(invitation.name().as_bytes()), Some(invitation));
        }
        let hello = Hello { nonce, capacity: 4096, send_buffer: 1 };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }

    #[test]
    fn garbage_is_neither() {
        for name in ["", "onecopy-3-", "onecopy-3-00-1", "onecopy-1-30313233343536373839616263646566-1"] {
            assert_eq!(Invitation::parse(name.as_bytes()), None, "{name}");
        }
        assert_eq!(Invitation::parse("onecopy-3-3031323334353637383961626364656\u{e9}-1".as_bytes()), None);
        assert_eq!(Hello::decode(&[0; HELLO_LEN]), None);
        assert_eq!(Hello::decode(b"onecopy\x03"), None);
    }

    proptest! {
        #[test]
        fn what_anybody_says_is_an_invitation_or_none(
            nonce: Nonce, send_buffer: u64, stream: bool, at: prop::sample::Index, byte: u8,
        ) {
            let records = if stream { Records::Stream } else { Records::Atomic };
            let invitation = Invitation { nonce, send_buffer, records };
            let mut name = invitation.name().into_bytes();
            prop_assert_eq!(Invitation::parse(&name), Some(invitation));
            let at = at.index(name.len());
            let spoilt = name[at] != byte;
            name[at] = byte;
            // What it says then is for the handshake to find out; here it has to be said by the same number of digits.
            if let Some(other) = Invitation::parse(&name) {
                prop_assert!(!spoilt || at >= PREFIX.len(), "{}", name.escape_ascii());
                prop_assert!(other.name().len() <= name.len());
            }
            name.truncate(at);
            let _ = Invitation::parse(&name);
        }

        #[test]
        fn a_hello_is_whole_or_none(nonce: Nonce, capacity: u64, send_buffer: u64, at in 0..HELLO_LEN, byte: u8) {
            let hello = Hello { nonce, capacity, send_buffer };
            let mut wire = hello.encode();
            prop_assert_eq!(Hello::decode(&wire), Some(hello));
            prop_assert_eq!(Hello::decode(&wire[..at]), None);
            let magic = wire[at] != byte && at < 8;
            wire[at] = byte;
            prop_assert_eq!(Hello::decode(&wire).is_none(), magic);
        }
    }

    #[test]
    fn the_larger_wish_counts() {
        assert_eq!(capacity(None, 0, 1 << 30), DEFAULT_BUFFER);
        assert_eq!(capacity(Some(8000), 0, 1 << 30), 16_000);
        assert_eq!(capacity(Some(8000), 64_000, 1 << 30), 64_000);
        assert_eq!(capacity(Some(8000), u64::MAX, 1 << 20), 1 << 20);
        assert_eq!(capacity_for(Kind::Stream, Some(8000), 0, 1 << 30), 16_000);
        assert_eq!(capacity_for(Kind::SeqPacket, Some(8000), 0, 1 << 30), 16_064);
        assert_eq!(capacity_for(Kind::Datagram, Some(8000), 0, 1 << 30), 16_064);
        assert_eq!(capacity_for(Kind::SeqPacket, Some(8000), u64::MAX, 1 << 20), 1 << 20);
    }
}
