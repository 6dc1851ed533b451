//! The conformance suite: what a socket must answer, asked of every implementation.
//!
//! A case ([`Case`]) is data: a name, the sentence it checks, where the rule comes from, what is expected, and a
//! function that uses a socket and tells in words what it saw. Every case is put to every implementation of its kind
//! ([`impls::of`]): the kernel's AF_UNIX, which is the oracle for rules that come from Linux, and ours, over
//! shared memory, over the kernel, and against plain peers; or the kernel's TCP and that of our stacks. Where ours answers differently, `skips.toml` says
//! what it answers and why; an entry that is not needed is an error, as is a difference without an entry.
//!
//! Each case runs in a process of its own (`onecopy-conformance one CASE IMPLEMENTATION`), so a signal, a leak
//! or a hang stays with the case that caused it; a hang is cut after [`run::Limits`] and named.
//!
//! Adding a family of sockets (seqpacket, dgram, descriptors) means adding a file under `cases/` and its list
//! to [`cases::all`], and calls to the traits in [`impls`] where they lack any.

#![forbid(unsafe_code)]

pub mod case;
pub mod cases;
pub mod hostile;
pub mod impls;
pub mod lender;
pub mod liar;
pub mod memory;
pub mod peer;
pub mod run;
pub mod skips;
pub mod socket;
pub mod stop;
pub mod table;
pub mod tools;

pub use case::{Case, Expect, Source};
pub use stop::{Outcome, Stop};
