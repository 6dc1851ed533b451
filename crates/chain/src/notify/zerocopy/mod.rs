//! Sends without a copy as programs make them: MSG_ZEROCOPY's notices, or a handle for each send.
//!
//! A stack has one [`Account`], a socket one [`Zerocopy`]. A send [begins](Zerocopy::begin) with a chain, becomes a segment that is given
//! to the socket, and [ends](Zerocopy::end) with what the socket has not taken of it:
//!
//! ```
//! use onecopy_chain::notify::zerocopy::{Account, Allowance, Small, Tell};
//! use onecopy_chain::notify::{Config, Fate};
//! use onecopy_chain::{Chain, Fragment, Writer};
//! # use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PagePool::new(PoolConfig::new(), Heap::new())?;
//! let account = Account::new(Allowance { small: Small::Below(1000), ..Allowance::default() });
//! let mut socket = account.socket(Config::default())?;
//! let chain = Chain::from(Fragment::new(pool.alloc()?, 0, 4000)?);
//!
//! let mut send = socket.begin(chain, Tell::Handle, &Writer::new(&pool), 0).map_err(|(_, why)| why)?;
//! let rest = send.data.divide(3000)?; // the socket takes 3000 bytes
//! let taken = std::mem::replace(&mut send.data, rest);
//! let (sent, rest) = socket.end(send);
//! assert_eq!(rest.len(), 1000);
//!
//! taken.free(Fate::Sent); // acknowledged
//! let how = sent.expect("a part was taken").wait();
//! assert!(!how.copied && !how.dropped && account.pinned_pages() == 0);
//! # Ok(())
//! # }
//! ```
//!
//! | told by | who | |
//! |---|---|---|
//! | [`Tell::Handle`] | [`Sent`] | a future and a blocking wait: exactly one for each send |
//! | [`Tell::Notice`] | [`Zerocopy::notice`], [`Zerocopy::poll_notice`] | ranges of numbers, as recvmsg(MSG_ERRQUEUE) gives them |
//!
//! Both are of the same lane, and in the order of its sends. (One that is copied has its notice in its turn, too; its handle is over at
//! once, since its buffer was never lent.)
//!
//! # What it costs others
//!
//! Memory that was lent stays where it is until the send is complete, so it is charged, by the kernel's rule
//! (mm_account_pinned_pages()): two pages more than its bytes come to, against [`Allowance::pinned`], for all sockets of all accounts of the process together. That is this
//! process's RLIMIT_MEMLOCK, or no limit where the kernel has none ([`Allowance::of_process`]), unless the program says otherwise. What an account
//! without a limit keeps is charged to nobody else. Notices
//! that nobody reads are charged as well, to their socket ([`Allowance::unread`]). Beyond either a send is refused, and by ENOBUFS. What
//! is charged is given back when the completion is taken in: by whoever waits, by the next send of any account that would be refused, and by
//! [`Account::collect`], which whoever drives a stack calls after each turn.
//!
//! # Small sends
//!
//! Below some size a copy costs less than being told. Where that is depends on the machine, so it is measured ([`Small::Measured`]) there,
//! once for each of the two ways to be told: a notice that is stacked with others costs less than a handle, and a copy has one, too.
//! A socket may say otherwise for its own sends ([`Zerocopy::set_small`]).

mod account;
mod memlock;
mod others;
mod pinned;
mod sent;
mod shared;
mod socket;
mod wakers;

pub use account::Account;
pub use sent::Sent;
pub use socket::{Begun, Zerocopy};
pub use wakers::HoldWakers;

/// Which sends are copied although they need not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Small {
    /// Those that cost less so, as was measured on this machine for sends that are told of alike ([`Tell`]).
    Measured,
    /// Those of fewer bytes; 0: none.
    Below(u32),
}

/// What sends without a copy may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes that all accounts of this process that have a limit may keep in place together, for a send of this one to be lent; `None` for as many
    /// as there are, which do not count for the others.
    pub pinned: Option<u64>,
    /// Bytes of notices that may wait to be read at a socket (net.core.optmem_max).
    pub unread: u32,
    /// Which sends are copied instead.
    pub small: Small,
}

impl Allowance {
    /// What the kernel would let this process keep: RLIMIT_MEMLOCK, and as much as there is with CAP_IPC_LOCK (in the first user namespace, which
    /// is where the kernel asks for it) or RLIM_INFINITY, as mm_account_pinned_pages() has it in net/core/skbuff.c. It is looked at now, of the thread
    /// that asks, and what changes later changes nothing. The kernel counts for all processes of a user, an [`Account`] for those of this
    /// process, all of them together.
    ///
    /// 128 KiB of notices may wait, as in Linux since 6.7. What is small is measured.
    pub fn of_process() -> Allowance {
        Allowance { pinned: memlock::limit(), unread: 128 << 10, small: Small::Measured }
    }
}

impl Default for Allowance {
    /// As [`Allowance::of_process`].
    fn default() -> Allowance {
        Allowance::of_process()
    }
}

/// How the caller hears of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// By its own handle.
    Handle,
    /// By the socket's notices.
    Notice,
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sends by reference.
    pub lent: u64,
    /// Copied, since a copy costs less than being told.
    pub copied_small: u64,
    /// Copied, since the link takes fewer fragments than a packet of it would have.
    pub copied_fragments: u64,
    /// Refused, as the link does not take a device's memory.
    pub refused_unreadable: u64,
    /// Refused, since too much is kept in place.
    pub refused_pinned: u64,
    /// Refused, since too many notices wait to be read.
    pub refused_unread: u64,
    /// Refused, since as many sends wait for their completion as there are slots.
    pub refused_full: u64,
}
