//! Sends by reference: pages of shared memory instead of a copy of their bytes.
//!
//! A [`SharedPool`](pool::SharedPool) is in a memfd that its owner maps and then seals against any other
//! writer. The owner loans a page of it, writes it in place and sends it. Over the stream goes a mark that
//! names the page ([`onecopy_ring::marks`]), whose cost does not depend on the size.
//!
//! The peer maps the pool, for reading, when the stream brings it, and receives the page like other bytes.
//! [`crate::Stream::recv_borrowed`] gives a view of it in place, and [`crate::Stream::recv`] copies it out.
//! [`crate::Stream::recv_chain`] makes a chain of many pages. Once the peer is done, the page's bit comes
//! back ([`onecopy_ring::lend`]), without a system call, and the owner has the page again.
//!
//! # Trust
//!
//! A pool is bound to the stream that it is first used on. From then on the peer may map and read all of it
//! at any time, whatever was sent. It can never write. What it gives back is checked against what it was
//! lent. What it never gives back is bounded by the pool's size and by [`onecopy_ring::lend::SLOTS`]. That
//! comes home when the peer is gone, which the channel for descriptors tells (`ancillary/channel.rs`).
//!
//! | file | what |
//! |---|---|
//! | `pool.rs` | the pool, and pages on loan to their writer |
//! | `domain.rs` | the peer that a pool is for, which each of its pages knows |
//! | `lender.rs` | what is lent to the peer, and how it comes home |
//! | `crossing.rs` | up to which size a loan is copied after all |
//! | `piece.rs`, `copies.rs` | receiving chains |
//! | `listed.rs` | the list of a record that lies in pages, as its receiver has read it |
//! | `../connection/{lend,chains,receive_pieces,listed_records}.rs` | the calls that send and receive these |
//! | `../ancillary/pending.rs` | receiving: what a reference means |

pub mod copies;
pub mod crossing;
pub mod domain;
pub mod lender;
pub mod listed;
pub mod piece;
pub mod pool;
