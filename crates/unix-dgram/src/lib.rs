//! Datagram sockets over shared memory.
//!
//! A datagram socket is the kernel's, with its names, its queue and its rules for who may send to whom. Two
//! sockets that are connected *to each other* share memory besides. A datagram is then a frame in the ring,
//! as a record of a seqpacket socket is, and the kernel's sockets carry only doorbells and fillers. The
//! kernel lets nobody else send to a connected socket, so whatever is in its queue is the peer's.
//!
//! The kernel does not tell a datagram socket that its peer is gone, except by refusing what is sent. So
//! there is a lifeline: a pair of seqpacket sockets, of which each side holds one. It hangs up when the peer
//! does. From then on datagrams go to the kernel again, which returns the error: ECONNREFUSED for a peer that
//! is gone, EPERM for one that is connected to another socket. The lifeline is also the channel for
//! descriptors and credentials of both directions.
//!
//! A socket that is bound and connected to nobody receives from many senders, each over a lane of its own.
//!
//! | module | job |
//! |---|---|
//! | `api`, `mio`, `tokio` | what applications hold |
//! | `socket` | the socket: a connection, a pairing, a fan-in receiver |
//! | `send`, `receive`, `connect` | the calls |
//! | `outgoing`, `reserve`, `slots` | what a send brings; room that is written in place, and who may have it |
//! | `to` | where a receive puts a datagram |
//! | `pairing` | how two connected sockets come to share memory |
//! | `fan_in` | how a receiver gives lanes to many senders, and takes from them in turns |
//! | `wire` | the fixed layouts of hellos, proofs and control messages |
//! | `fork_claim` | which process uses a socket after a fork |
//!
//! Three rules hold for datagram sockets only:
//!
//! - A sender rings the doorbell before it unlocks the sending side, not after. A doorbell rung late could
//!   reach another socket, to which this one was connected meanwhile.
//! - The kernel's queue is received from only under the lock of the receiving side, and without waiting. Only
//!   that side knows whether the next message there is a datagram or a doorbell.
//! - `connect` takes the sending side's lock before the receiving side's. A receiver only tries the former.
#![forbid(unsafe_code)]

/// Marks a point at which a test makes something happen ([`onecopy_unix::failpoint`]).
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
#[cfg(feature = "mio")]
pub mod mio;
mod outgoing;
mod pairing;
mod receive;
mod reserve;
mod send;
mod slots;
mod socket;
#[cfg(test)]
mod tests;
mod to;
#[cfg(feature = "tokio")]
pub mod tokio;
mod wire;

pub use api::Datagram;
