//! What a client says by the name that it is bound to, and how large rings become.

use crate::config::Config;
use crate::config::Records;
use crate::core::kind::Kind;
use onecopy_ring::memory::Nonce;
use onecopy_ring::round_capacity;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// The version of the layout and of the upgrade. A peer of another version is plain to us, and we to it.
pub const VERSION: u8 = 4;

/// The default data room of a ring in bytes.
pub const DEFAULT_BUFFER: usize = 256 << 10;

const PREFIX: &str = "onecopy-4-";

/// The end of the name of a client that keeps stream records.
const STREAM_RECORDS: &str = "-s";

/// Makes a nonce that nobody has seen.
///
/// # Errors
///
/// What getrandom(2) returns.
pub fn nonce() -> rustix::io::Result<Nonce> {
    let mut nonce = Nonce::default();
    if rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())? != nonce.len() {
        return Err(Errno::IO);
    }
    Ok(nonce)
}

/// What a client says by the name that it is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The label of this connection's rings.
    pub nonce: Nonce,
    /// Bytes of send buffer that the client asked for, doubled; 0 for none in particular.
    pub send_buffer: u64,
    /// Bytes of receive buffer that the client asked for, in the same way.
    pub receive_buffer: u64,
    /// Bytes of the largest ring that the client accepts.
    pub max_ring: u64,
    /// How the client keeps its records.
    pub records: Records,
}

/// Whether the abstract `name` (without the leading zero byte) is one by which a client invites its server to share
/// memory, and that no program gave it. /proc/net/unix and sock_diag(7) show such names.
pub fn is_invitation(name: &[u8]) -> bool {
    Invitation::parse(name).is_some()
}

impl Invitation {
    pub(super) fn new(records: Records, config: &Config) -> rustix::io::Result<Invitation> {
        Ok(Invitation {
            nonce: nonce()?,
            send_buffer: wish(config.send_buffer),
            receive_buffer: wish(config.receive_buffer),
            max_ring: config.max_ring as u64,
            records,
        })
    }

    fn name(&self) -> String {
        let nonce = self.nonce.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let records = if self.records == Records::Stream { STREAM_RECORDS } else { "" };
        let Invitation { send_buffer, receive_buffer, max_ring, .. } = self;
        format!("{PREFIX}{nonce}-{send_buffer:x}-{receive_buffer:x}-{max_ring:x}{records}")
    }

    /// Returns the invitation in a peer's abstract name, if it is one.
    pub fn parse(name: &[u8]) -> Option<Invitation> {
        let rest = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
        let (rest, records) = match rest.strip_suffix(STREAM_RECORDS) {
            Some(rest) => (rest, Records::Stream),
            None => (rest, Records::Atomic),
        };
        let mut parts = rest.split('-');
        let hex = parts.next().filter(|hex| hex.len() == 32 && hex.is_ascii())?;
        let mut nonce = Nonce::default();
        for (byte, digits) in nonce.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let (send_buffer, receive_buffer, max_ring) = (number()?, number()?, number()?);
        let invitation = Invitation { nonce, send_buffer, receive_buffer, max_ring, records };
        parts.next().is_none().then_some(invitation)
    }

    pub(crate) fn of(name: Option<SocketAddrUnix>) -> Option<Invitation> {
        Invitation::parse(name?.abstract_name()?)
    }
}

impl Invitation {
    /// Returns the data room of a server's rings: of the one to its client, and of the one from there.
    pub(crate) fn capacities(&self, kind: Kind, config: &Config) -> [usize; 2] {
        let most = config.max_ring.min(usize::try_from(self.max_ring).unwrap_or(usize::MAX));
        [
            capacity_of(kind, [self.receive_buffer, wish(config.send_buffer)], most),
            capacity_of(kind, [wish(config.receive_buffer), self.send_buffer], most),
        ]
    }
}

/// Returns what Linux makes of a buffer size that was asked for: it doubles the size (socket(7), SO_SNDBUF).
/// 0 stays 0.
pub fn wish(bytes: Option<usize>) -> u64 {
    bytes.map_or(0, |bytes| bytes.saturating_mul(2)) as u64
}

/// Returns the data room of a stream's ring: the larger of what its receiver and its sender asked for.
fn capacity(wishes: [u64; 2], max_ring: usize) -> usize {
    let asked = usize::try_from(wishes[0].max(wishes[1])).unwrap_or(usize::MAX);
    round_capacity(if asked == 0 { DEFAULT_BUFFER } else { asked }, max_ring)
}

/// Room for the headers of some large records or datagrams. With it, two that each fill half of what was
/// asked for fit into the ring together. The kernel takes them too; without it one could not be sent while
/// the other is received.
const FRAMING: usize = 8 * onecopy_ring::record::HEADER;

/// As `capacity`, of a ring for `kind`. What was asked for is room for bytes that are sent.
pub(crate) fn capacity_of(kind: Kind, wishes: [u64; 2], max_ring: usize) -> usize {
    let capacity = capacity(wishes, max_ring);
    if kind == Kind::Stream { capacity } else { round_capacity(capacity + FRAMING, max_ring) }
}

/// Returns the data room of a ring for `kind`. Its receiver has asked for `receive` bytes, before they are
/// doubled. Its sender has asked for `peer_send` bytes, after that.
pub fn capacity_for(kind: Kind, receive: Option<usize>, peer_send: u64, max_ring: usize) -> usize {
    capacity_of(kind, [wish(receive), peer_send], max_ring)
}

/// Binds `socket` to an invitation. A client does so before it connects.
pub fn invite(socket: BorrowedFd<'_>, records: Records, config: &Config) -> rustix::io::Result<Invitation> {
    let invitation = Invitation::new(records, config)?;
    rustix::net::bind(socket, &SocketAddrUnix::new_abstract_name(invitation.name().as_bytes())?)?;
    Ok(invitation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invitations_come_back_as_they_went() {
        let nonce = *b"0123456789abcdef";
        for records in [Records::Atomic, Records::Stream] {
            let (send_buffer, receive_buffer, max_ring) = (0x1234, u64::MAX, 0);
            let invitation = Invitation { nonce, send_buffer, receive_buffer, max_ring, records };
            assert_eq!(Invitation::parse(invitation.name().as_bytes()), Some(invitation));
            assert!(invitation.name().len() <= 107, "an abstract name has no room for more");
        }
    }

    #[test]
    fn garbage_is_none() {
        for name in [
            "",
            "onecopy-4-",
            "onecopy-4-00-1-1-1",
            "onecopy-3-30313233343536373839616263646566-1-1-1",
            "onecopy-4-30313233343536373839616263646566-1-1",
            "onecopy-4-30313233343536373839616263646566-1-1-1-1",
            "onecopy-4-3031323334353637383961626364656\u{e9}-1-1-1",
        ] {
            assert_eq!(Invitation::parse(name.as_bytes()), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_anybody_says_is_an_invitation_or_none(
            nonce: Nonce, send_buffer: u64, receive_buffer: u64, max_ring: u64, stream: bool,
            at: prop::sample::Index, byte: u8,
        ) {
            let records = if stream { Records::Stream } else { Records::Atomic };
            let invitation = Invitation { nonce, send_buffer, receive_buffer, max_ring, records };
            let mut name = invitation.name().into_bytes();
            prop_assert_eq!(Invitation::parse(&name), Some(invitation));
            let at = at.index(name.len());
            let spoilt = name[at] != byte;
            name[at] = byte;
            // The handshake judges what the name says then. Here it must only have as many digits.
            if let Some(other) = Invitation::parse(&name) {
                prop_assert!(!spoilt || at >= PREFIX.len(), "{}", name.escape_ascii());
                prop_assert!(other.name().len() <= name.len());
            }
            name.truncate(at);
            let _ = Invitation::parse(&name);
        }
    }

    #[test]
    fn the_larger_wish_counts() {
        assert_eq!(capacity([0, 0], 1 << 30), DEFAULT_BUFFER);
        assert_eq!(capacity([16_000, 0], 1 << 30), 16_000);
        assert_eq!(capacity([16_000, 64_000], 1 << 30), 64_000);
        assert_eq!(capacity([16_000, u64::MAX], 1 << 20), 1 << 20);
        assert_eq!(capacity_for(Kind::Stream, Some(8000), 0, 1 << 30), 16_000);
        assert_eq!(capacity_for(Kind::SeqPacket, Some(8000), 0, 1 << 30), 16_064);
        assert_eq!(capacity_for(Kind::Datagram, Some(8000), 0, 1 << 30), 16_064);
        assert_eq!(capacity_for(Kind::SeqPacket, Some(8000), u64::MAX, 1 << 20), 1 << 20);
    }
}
