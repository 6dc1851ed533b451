//! TCP's rules as scripts, one readable file for each RFC and state (`scripts/tcp`), in the language of
//! [packetdrill](https://github.com/google/packetdrill): what a program calls, what the peer sends, and what has to come out, and when.
//!
//! The same file runs over IPv4 and over IPv6, where it does not speak of IP itself, on two hosts:
//!
//! - on **our** stack, in virtual time: no thread, no clock, every run the same;
//! - on **the kernel** of this machine, as oracle, in real time: a TUN device in a network namespace of its own. That needs root.
//!
//! Like packetdrill without `--strict`, the runner takes several packets for an expected one where they are its parts. Unlike it, it
//! looks at every byte of the payload, at the clock in timestamps, and at what still comes when the script is at its end.
//!
//! | file | what |
//! |---|---|
//! | `lex`, `parse/`, `script` | the language |
//! | `expression` | what is said of TCP_INFO |
//! | `segment`, `wire`, `compare` | packets: as scripts write them, as bytes, and one beside the other |
//! | `run/` | runs a script on a host |
//! | `host` | what a host is |
//! | `ours`, `kernel` | the two of them |
//! | `defaults` | sysctls that all scripts begin with |

#![forbid(unsafe_code)]

mod compare;
mod constants;
mod defaults;
mod expression;
mod host;
mod kernel;
mod lex;
mod ours;
mod parse;
mod run;
mod script;
mod segment;
mod wire;

pub use defaults::shell as defaults_for_packetdrill;
pub use kernel::{Outcome, on_kernel};
pub use ours::on_ours;
pub use parse::parse;
pub use script::Script;
pub use wire::Family;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;
