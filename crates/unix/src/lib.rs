//! Unix sockets over shared memory.
#![forbid(unsafe_code)]

#[macro_use]
mod failpoint;
mod channel;
mod common;
mod config;
mod control;
mod dgram;
mod end;
mod error;
mod flags;
mod front;
mod holders;
mod joining;
mod listener;
mod making;
mod mending;
mod name;
mod passing;
mod receive;
mod reference;
pub mod registry;
mod rendezvous;
mod rights;
mod rx;
mod seqpacket;
mod settings;
mod sharing;
mod side;
mod slot;
mod stats;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(feature = "tokio")]
pub mod tokio;
mod tx;
pub mod upgrade;
mod view;
mod who;

pub use config::{Carrier, Config, Credentials, Path, Records, Transport, Wait};
pub use dgram::Datagram;
pub use error::{Error, Op, Result};
pub use flags::{ReceivedFlags, RecvFlags, SendFlags};
pub use listener::{Listener, SeqListener};
pub use name::Name;
pub use onecopy_copy::{Policy, Reader};
pub use passing::NotPassed;
pub use reference::{Loan, NotSent, SharedPool};
pub use rights::Ancillary;
pub use seqpacket::{Received, SeqPacket};
pub use slot::Slot;
pub use stats::Stats;
pub use stream::Stream;
pub use view::View;
