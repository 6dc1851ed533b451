//! Sends by reference: pages of shared memory instead of a copy of their bytes.
//!
//! A [`SharedPool`] lies in a memfd that its owner maps and then seals against any other writer. A page of it is
//! loaned, written in place and sent; what goes over the stream is a mark that names it
//! ([`onecopy_ring::marks`]), whose cost does not depend on the size. The peer maps the pool, for reading, when
//! the stream brings it, and receives the page like other bytes: [`crate::Stream::recv_borrowed`] gives a view of it
//! where it lies, [`crate::Stream::recv`] copies it out; of many pages [`crate::Stream::recv_chain`] makes a chain. Once that is done its bit comes back
//! ([`onecopy_ring::lend`]), without a system call, and the owner has the page again.
//!
//! # Trust
//!
//! A pool is bound to the stream that it is first used on: the peer may map all of it and look at all of it, for as
//! long as it likes, whatever was sent. It can never write. What it gives back is checked against what it was lent;
//! what it never gives back is bounded by the pool's size and by [`onecopy_ring::lend::SLOTS`], and comes home when
//! the peer is gone, which the channel for descriptors tells ([`crate::channel`]).
//!
//! | file | what |
//! |---|---|
//! | `pool.rs` | the pool, and pages on loan to their writer |
//! | `domain.rs` | whom a pool is for, as each of its pages knows |
//! | `lender.rs` | what is lent to the peer, and how it comes home |
//! | `send.rs` | sending: a loan, or a chain |
//! | `receive.rs` | receiving chains |
//! | `../seqpacket/lists.rs` | both, of records |
//! | `../pending.rs` | receiving: what a reference means |

pub mod copies;
pub mod domain;
pub mod lender;
pub mod listed;
pub mod piece;
pub mod pool;
pub mod receive;
pub mod records;
pub mod send;
