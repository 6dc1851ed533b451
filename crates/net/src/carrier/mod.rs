//! The seam between sockets, as programs hold them, and whoever carries their bytes: a stack of the program's own ([`own`](crate::own)), or the
//! kernel ([`kernel`](crate::kernel)).
//!
//! | module | what |
//! |---|---|
//! | `tcp`, `udp` | what a carrier does for a socket: traits, of which a call of a program's makes one call |
//! | `common` | what a socket has whoever carries its bytes: settings, counters, the right to send |
//! | `lend` | how a send without a copy is made |
//! | `meta`, `train` | what is said of a datagram, and which datagrams go together |
//! | `frag`, `frags`, `tokens` | bytes in a device's memory, by reference, and who has them |
//! | `refill`, `hunger` | how they come back without a call, and who waits for them |
//! | `event`, `by_nic` | what is told of memory that is bound, and why no NIC puts payload there |
//! | `refused` | what of it was refused, counted by why |

mod by_nic;
mod common;
mod event;
mod frag;
mod frags;
mod hunger;
mod lend;
mod meta;
mod refill;
mod refused;
pub(crate) mod tcp;
mod tokens;
mod train;
pub(crate) mod udp;

pub use by_nic::{NicSays, NotByNic};
pub(crate) use common::{Common, Counts, PIECE, Way, checked};
pub use event::Event;
pub use frag::{Frag, TokenRange};
pub use frags::{Frags, Piece, Token};
pub(crate) use hunger::{Filled, Hunger};
pub(crate) use lend::{Taken, leave_unfinished, lend};
pub use meta::{Message, Meta};
pub use refill::{RefillRing, RefillStats};
pub use refused::Refusals;
pub(crate) use refused::{NotCounted, Refusal, Refused, Which};
pub use tokens::Hold;
pub(crate) use tokens::Tokens;
pub(crate) use train::{Limits, alike};
