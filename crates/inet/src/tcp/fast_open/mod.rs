//! Fast Open (RFC 7413): data in the SYN, for who has been here before.
//!
//! A server gives a client a cookie, which proves the next time that the client is where it says it is. A SYN that brings it may bring data,
//! too, and the server's program answers before the handshake is over.
//!
//! | room | what lives there |
//! |---|---|
//! | [`cookie`] | what a server makes cookies of |
//! | [`queue`] | how many connections of a listener may have begun early and not be through |
//! | [`cache`] | what a client remembers of servers |
//!
//! What a connection does of it stands with the connection (`connection/fast_open.rs`), what a stack does with the stack.

pub mod cache;
pub mod cookie;
pub mod queue;

pub use cache::{Attempt, Cache, News};
pub use cookie::Keys;
pub use queue::Queue;

bitflags::bitflags! {
    /// Who uses it, and how (net.ipv4.tcp_fastopen, with its numbers).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Use: u16 {
        /// Programs may connect so.
        const CLIENT = 1;
        /// Listeners may take it.
        const SERVER = 2;
        /// Data goes into a SYN without a cookie, too.
        const CLIENT_NO_COOKIE = 4;
        /// Data is taken without a cookie, too.
        const SERVER_NO_COOKIE = 0x200;
        /// All listeners take it, TCP_FASTOPEN or not.
        const ALL_LISTENERS = 0x400;
    }
}

impl Default for Use {
    fn default() -> Use {
        Use::CLIENT
    }
}

/// Why a SYN's data came to nothing (`enum tcp_fastopen_client_fail`, which TCP_INFO tells).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Fail {
    /// It did not fail, or was not tried.
    #[default]
    None = 0,
    /// There was no cookie.
    NoCookie = 1,
    /// The peer did not take the data.
    NotAcknowledged = 2,
    /// The SYN had to be sent again, and then goes without.
    Retransmitted = 3,
}
