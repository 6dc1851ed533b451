//! Whose hardware address a neighbour's address is: the cache of ARP (RFC 826; RFC 1122, section 2.3.2) and of NDP (RFC 4861).
//!
//! # What becomes of an entry
//!
//! | state | what | leaves it |
//! |---|---|---|
//! | incomplete | asked everybody (in IPv6 the solicited-node group), packets wait | an answer; [`ASKS`] questions without one, and it is gone |
//! | reachable | it answered a question, or a transport heard of it, in the last [`REACHABLE_NS`] or so | time, used or not |
//! | stale | it may have moved | a packet goes there |
//! | delayed | a packet went there, and a transport may still hear of it | [`DELAY_NS`] |
//! | probed | asked itself alone | an answer; [`ASKS`] questions without one, and it is gone |
//!
//! So as in RFC 4861, section 7.3.2, with the kernel's times; a packet is held back in the first state only.
//!
//! # Strangers
//!
//! Whoever is on the link may say anything. So only a packet of ours makes an entry. An answer counts as one where a question is open; what
//! else comes changes known entries, as hosts that move need it, at most once in [`LOCK_NS`], and leaves them stale: they are asked
//! themselves once they are used. Entries are bounded, as are packets that wait and questions in a second.

mod cache;

pub use cache::{Cache, Heard, Hop};

/// Questions without an answer after which a neighbour is given up: the kernel's mcast_solicit and ucast_solicit.
pub const ASKS: u8 = 3;
/// Between two of them: the kernel's retrans_time.
pub const ASK_NS: u64 = 1_000_000_000;
/// How long an answer is good for, on average: the kernel's base_reachable_time. Each time it is between half and one and a half of that.
pub const REACHABLE_NS: u64 = 30_000_000_000;
/// How long a transport is given to hear of it before it is asked: the kernel's delay_first_probe_time.
pub const DELAY_NS: u64 = 5_000_000_000;
/// How long nobody but who was asked changes an entry that was changed: the kernel's locktime.
pub const LOCK_NS: u64 = 1_000_000_000;
/// Packets that wait for one neighbour; the oldest goes for a newer one. As many as the kernel's (unres_qlen): many connections that begin
/// at once lose none of their SYNs, which would be sent again a second later.
pub const WAITING: usize = 101;
/// Packets that wait for all of them. Where there are as many, each neighbour has [`WAITING_EACH`] all the same: silent hosts, however many,
/// take nothing from others.
pub const WAITING_ALL: usize = 1024;
/// See [`WAITING_ALL`].
pub const WAITING_EACH: usize = 3;
