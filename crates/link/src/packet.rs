//! What travels on a link: headers inline, payload by reference.

use crate::not_taken::NotTaken;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, ChainError, Checksum, Kind, Sum};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A packet: its headers by value, its payload by reference.
///
/// Headers stand apart, since the payload's pages are shared with whoever sends it again and with its owner: there is no room before it to
/// write into, and no page is spent on a header. So the payload may be of any kind of memory, and a header is read and written wherever
/// that lies.
///
/// | part | what |
/// |---|---|
/// | [`Head`] | the link's, the network's and the transport's header, at most [`Head::MAX`] bytes |
/// | payload | a [`Segment<Chain>`]: fragments, and the reference that keeps their sends from completing |
/// | [`Checksum`] | what is known of the transport's checksum; its places are counted from the head's first byte |
/// | [`Gso`] | the packet is a super-segment, to be cut |
///
/// Dropped, it says of its payload's bytes what the segment says; [`Packet::free`] says what became of them.
///
/// It is a pointer: on its way from where its bytes come from to where they go it changes hands some twenty times.
#[derive(Debug, Default)]
pub struct Packet {
    inner: Box<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    payload: Segment<Chain>,
    head: Head,
    checksum: Checksum,
    gso: Option<Gso>,
}

const _: () = assert!(size_of::<Inner>() <= 288);

impl Packet {
    /// A packet of these headers.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`]; the payload is dropped.
    pub fn new(head: &[u8], payload: impl Into<Segment<Chain>>) -> Result<Packet, HeadTooLong> {
        let mut packet = Packet::from(payload.into());
        packet.inner.head.push(head.len())?.copy_from_slice(head);
        Ok(packet)
    }

    /// Bytes, headers and payload.
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.head.len() + self.inner.payload.payload().len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The headers.
    #[inline]
    pub fn head(&self) -> &Head {
        &self.inner.head
    }

    /// The headers, to be written. (What is taken off in front, or put there, moves what [`Packet::checksum`] counts.)
    #[inline]
    pub fn head_mut(&mut self) -> &mut Head {
        &mut self.inner.head
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &Segment<Chain> {
        &self.inner.payload
    }

    /// The payload, to be changed: [`Segment::advance`] and its kind keep the references where their bytes are. A [`Checksum::Known`] is
    /// lost, since it is these bytes' sum.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut Segment<Chain> {
        if let Checksum::Known(_) = self.inner.checksum {
            self.inner.checksum = Checksum::None;
        }
        &mut self.inner.payload
    }

    /// Headers and payload; what is known of the checksum is lost.
    pub fn into_parts(self) -> (Head, Segment<Chain>) {
        let Inner { head, payload, .. } = *self.inner;
        (head, payload)
    }

    /// What is known of the transport's checksum. [`Checksum::Known`] is the sum of the payload's bytes alone.
    #[inline]
    pub fn checksum(&self) -> Checksum {
        self.inner.checksum
    }

    /// Says what is known of it.
    ///
    /// # Errors
    ///
    /// [`NotTaken::Malformed`] for a [`Checksum::Partial`] whose field is not in the head.
    pub fn set_checksum(&mut self, checksum: Checksum) -> Result<(), NotTaken> {
        if let Checksum::Partial { start, offset } = checksum
            && usize::from(start) + usize::from(offset) + 2 > self.inner.head.len()
        {
            return Err(NotTaken::Malformed);
        }
        self.inner.checksum = checksum;
        Ok(())
    }

    /// How it is to be cut, if it is a super-segment.
    #[inline]
    pub fn gso(&self) -> Option<Gso> {
        self.inner.gso
    }

    /// Makes it a super-segment, to be cut as `gso` says, or none.
    pub fn set_gso(&mut self, gso: Option<Gso>) {
        self.inner.gso = gso;
    }

    /// The same packet once more: the headers copied, the payload by reference. None of its sends completes before both are free.
    #[must_use]
    pub fn share(&self) -> Packet {
        let Inner { payload, head, checksum, gso } = &*self.inner;
        let (payload, head) = (payload.share(), head.clone());
        let inner = Inner { payload, head, checksum: *checksum, gso: *gso };
        Packet { inner: Box::new(inner) }
    }

    /// The sum of all bytes from byte `from` on, counted from the head's first one. Reads them, but for payload whose sum is known.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unreadable`] where that is a device's memory; [`ChainError::BeyondEnd`] for a place behind the head.
    pub fn sum(&self, from: usize) -> Result<Sum, ChainError> {
        let head = self
            .inner
            .head
            .get(from..)
            .ok_or(ChainError::BeyondEnd { at: from, len: self.inner.head.len() })?;
        let chain = self.inner.payload.payload();
        let payload = match (self.inner.checksum, chain.checksum(), chain.kind()) {
            (Checksum::Known(sum), ..) | (_, Checksum::Known(sum), _) => sum,
            (_, _, Some(Kind::Peer)) => chain.peer()?.sum(),
            _ => chain.host()?.sum(0, chain.len())?,
        };
        Ok(Sum::of(head).then(payload, head.len()))
    }

    /// Finishes a [`Checksum::Partial`] (skb_checksum_help()): what is stored is right on any wire then. A zero is stored as 0xffff, which
    /// means the same and is not UDP's "none". Without anything to finish, does nothing.
    ///
    /// # Errors
    ///
    /// As [`Packet::sum`]: only a device can finish that of its own memory.
    pub fn finish(&mut self) -> Result<(), ChainError> {
        let Checksum::Partial { start, offset } = self.inner.checksum else { return Ok(()) };
        let sum = self.sum(start.into())?;
        let stored = if sum.checksum() == 0 { 0xffff } else { sum.checksum() };
        let at = usize::from(start) + usize::from(offset);
        let len = self.inner.head.len();
        let field = self.inner.head.get_mut(at..at + 2).ok_or(ChainError::BeyondEnd { at: at + 2, len })?;
        field.copy_from_slice(&stored.to_be_bytes());
        self.inner.checksum = Checksum::None;
        Ok(())
    }

    /// Says what became of the payload's bytes, once the packet is dropped.
    pub fn set_fate(&mut self, fate: Fate) {
        self.inner.payload.set_fate(fate);
    }

    /// Frees it, and says what became of the payload's bytes.
    #[inline]
    pub fn free(mut self, fate: Fate) {
        self.set_fate(fate);
    }

    /// A copy of all its bytes.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unreadable`] for a device's memory.
    pub fn to_vec(&self) -> Result<Vec<u8>, ChainError> {
        let mut bytes = self.inner.head.to_vec();
        let chain = self.inner.payload.payload();
        match chain.kind() {
            Some(Kind::Peer) => chain.peer()?.for_each_chunk(|chunk| bytes.extend_from_slice(chunk)),
            _ => chain.host()?.slices().for_each(|slice| bytes.extend_from_slice(slice)),
        }
        Ok(bytes)
    }
}

impl From<Segment<Chain>> for Packet {
    /// Without headers.
    #[inline]
    fn from(payload: Segment<Chain>) -> Packet {
        let mut packet = Packet::default();
        packet.inner.payload = payload;
        packet
    }
}

/// How a super-segment is to be cut: what virtio's gso_type and gso_size say. Its checksum is a [`Checksum::Partial`], whose start is the
/// transport's header; where the pseudo-header's sum stands, it is that of the whole length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Of what it is made.
    pub train: Train,
    /// Payload bytes of each packet but the last one.
    pub size: u16,
    /// Where the network's header begins in the head.
    pub network: u8,
}

/// What a super-segment is cut to. (Whether over IPv4 or IPv6 says its network header.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Train {
    /// Segments: VIRTIO_NET_HDR_GSO_TCPV4, GSO_TCPV6.
    Tcp,
    /// Datagrams, each with a header of its own: VIRTIO_NET_HDR_GSO_UDP_L4.
    Udp,
}

/// A packet's headers, inline. They are put in front of each other, as layers do, and taken off so: the room that is left is before them.
#[derive(Clone)]
pub struct Head {
    /// Where they begin. Invariant: at most [`Head::MAX`].
    start: u8,
    bytes: [u8; Head::MAX],
}

impl Head {
    /// Bytes that fit: Ethernet with a tag, IPv6 and TCP with all options come to 118.
    pub const MAX: usize = 128;

    /// None yet.
    #[inline]
    pub const fn new() -> Head {
        Head { start: Head::MAX as u8, bytes: [0; Head::MAX] }
    }

    /// These.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn of(bytes: &[u8]) -> Result<Head, HeadTooLong> {
        let mut head = Head::new();
        head.push(bytes.len())?.copy_from_slice(bytes);
        Ok(head)
    }

    /// Puts `len` zeroes in front, to be written.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`], with nothing done.
    pub fn push(&mut self, len: usize) -> Result<&mut [u8], HeadTooLong> {
        let start = usize::from(self.start);
        let now = start.checked_sub(len).ok_or(HeadTooLong { len: self.len() + len })?;
        self.start = now as u8;
        let room = &mut self.bytes[now..start];
        room.fill(0);
        Ok(room)
    }

    /// Takes the first `len` bytes off; false, with nothing done, if there are fewer.
    pub fn pull(&mut self, len: usize) -> bool {
        let enough = len <= self.len();
        if enough {
            self.start += len as u8;
        }
        enough
    }
}

impl Default for Head {
    #[inline]
    fn default() -> Head {
        Head::new()
    }
}

impl Deref for Head {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[usize::from(self.start).min(Head::MAX)..]
    }
}

impl DerefMut for Head {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[usize::from(self.start).min(Head::MAX)..]
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        **self == **other
    }
}

impl Eq for Head {}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Head({} bytes:", self.len())?;
        self.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
        f.write_str(")")
    }
}

/// Headers that do not fit a [`Head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadTooLong {
    /// Bytes that they would have.
    pub len: usize,
}

impl fmt::Display for HeadTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "headers of {} bytes, where {} fit; put the rest into the payload", self.len, Head::MAX)
    }
}

impl std::error::Error for HeadTooLong {}
