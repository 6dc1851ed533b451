//! UDP (RFC 768).

use super::malformed::Malformed;
use onecopy_chain::Sum;
use onecopy_link::{Head, HeadTooLong};
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    from: U16,
    to: U16,
    len: U16,
    checksum: U16,
}

/// A datagram's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// The sender's port; 0 where nobody is to answer.
    pub from: u16,
    /// The port that it is for.
    pub to: u16,
    /// Bytes behind the header.
    pub payload_len: u16,
}

impl Udp {
    /// Bytes.
    pub const LEN: usize = size_of::<Layout>();
    /// Where the checksum is.
    pub const CHECKSUM: usize = 6;

    /// Reads a header, and gives whether it has a checksum (over IPv4 it need not), and what is behind it. Whether `payload_len` bytes
    /// are there is the caller's to see.
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`], [`Malformed::Length`].
    pub fn parse(bytes: &[u8]) -> Result<(Udp, bool, &[u8]), Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        let payload_len = layout.len.get().checked_sub(Udp::LEN as u16).ok_or(Malformed::Length)?;
        let udp = Udp { from: layout.from.get(), to: layout.to.get(), payload_len };
        Ok((udp, layout.checksum.get() != 0, rest))
    }

    /// Puts it in front, its checksum to be finished: `pseudo` is the sum of its pseudo-header. (Of a train of datagrams the length is
    /// written as far as 16 bits go: what cuts it writes each one's.)
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head, pseudo: Sum) -> Result<(), HeadTooLong> {
        let layout = Layout {
            from: U16::new(self.from),
            to: U16::new(self.to),
            len: U16::new(self.payload_len.saturating_add(Udp::LEN as u16)),
            checksum: U16::new(pseudo.folded()),
        };
        head.push(Udp::LEN)?.copy_from_slice(layout.as_bytes());
        Ok(())
    }
}
