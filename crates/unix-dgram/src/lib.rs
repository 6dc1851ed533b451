//! Datagram sockets over shared memory.
//!
//! A datagram socket is the kernel's, with its names, its queue and its rules for who may send to whom. Two of them that
//! are connected *to each other* share memory besides: a datagram is then a frame in the ring, as a record of a seqpacket
//! socket is, and on the kernel's sockets lie doorbells and fillers. Since the kernel lets nobody else send to a socket that
//! is connected, what lies there is the peer's.
//!
//! The kernel does not tell a datagram socket that its peer is gone, except by refusing what is sent. So there is a
//! lifeline, a pair of seqpacket sockets of which each holds one: it hangs up when the peer does. From then on datagrams go
//! to the kernel again, which says what there is to say: ECONNREFUSED of a peer that is gone, EPERM of one that is connected
//! to somebody else. It is also the channel for descriptors and credentials, of both directions.
//!
//! What a datagram socket has of its own:
//!
//! - Doorbells are rung before the sending side is unlocked, not after: a doorbell rung late could reach whoever it was connected
//!   to meanwhile.
//! - The kernel's queue is only ever received from under the lock of the receiving side, without waiting: whether the
//!   next thing in it is a datagram or a doorbell is that side's to know.
//! - `connect` takes the sending side's lock before the receiving side's. A receiver only ever tries the former.
#![forbid(unsafe_code)]

/// A point where a test has something happen ([`onecopy_unix::failpoint`]).
macro_rules! point {
    ($name:literal) => {
        #[cfg(test)]
        onecopy_unix::failpoint::hit($name);
    };
}

mod api;
mod connect;
mod fan_in;
mod fork_claim;
mod pairing;
mod receive;
mod send;
mod socket;
#[cfg(test)]
mod tests;
#[cfg(feature = "tokio")]
pub mod tokio;
mod wire;

pub use api::Datagram;
