//! A stack of the program's own: what it is made of, and who drives it.
//!
//! Everything lies under one lock (`shard`): sockets, protocols, the link. Whoever calls takes the lock, does what he came for, and sends
//! what came of it. Somebody has to be there for what arrives and what is due (`wait`):
//!
//! - A thread that waits for its own socket drives the stack itself while it does: what arrives for it needs no other thread. Others that
//!   wait meanwhile sleep until it tells them.
//! - While no such thread is there, the stack's own does (`runner`), unless the program said that it drives the stack itself
//!   ([`Driver::Caller`]).
//!
//! A stack may have several *shards* ([`Builder::shards`](crate::Builder::shards)): each is all of that once more, with a queue of the device's. They
//! have the address in common, and each connection is one shard's: those of different ones meet nowhere on their way. What comes by another one's
//! queue is handed over (`inbox`).
//!
//! From the top down:
//!
//! | module | what |
//! |---|---|
//! | `listeners`, `tcp`, `udp` | what a carrier does for sockets, done by the protocols (`onecopy_inet`) |
//! | `frags` | receiving from whatever memory |
//! | `lend` | sends without a copy |
//! | `socket` | what sockets of all protocols are, and how their calls wait |
//! | `owner` | what begins a stack, and ends it |
//! | `wait`, `runner` | who drives: a thread that waits, or the stack's own |
//! | `inner` | the lock, and what lies beside it: `lock`, what the thread sleeps on (`sleep`), and a program that drives (`descriptor`) |
//! | `shard` | what lies under the lock |
//! | `rx`, `pages`, `inbox`, `kept`, `waiter`, `interest` | the parts of that: receive queues, memory to send from, what other shards hand over, sockets, who waits, and for what |

mod descriptor;
mod frags;
mod inbox;
mod inner;
mod interest;
mod kept;
mod lend;
mod listeners;
mod lock;
mod owner;
mod pages;
mod runner;
mod rx;
mod shard;
mod sleep;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;
mod wait;
mod waiter;

pub(crate) use inner::Inner;
pub(crate) use listeners::listen;
pub use owner::Driver;
pub(crate) use owner::{Failed, Owner, Setup};
pub(crate) use shard::Shard;
pub(crate) use tcp::connect;
pub(crate) use udp::{bind as udp_bind, open as udp_open};
