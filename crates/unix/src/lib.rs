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
mod rendezvous;
mod rights;
mod rx;
mod seqpacket;
mod sharing;
mod side;
mod slot;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(feature = "tokio")]
pub mod tokio;
mod tx;
pub mod upgrade;
mod view;
mod who;

pub use config::{Config, Credentials, Records};
pub use dgram::Datagram;
pub use listener::{Listener, SeqListener};
pub use name::Name;
pub use onecopy_socket::{
    Carrier, Error, Op, Path, Policy, Reader, ReceivedFlags, RecvFlags, Result, SendFlags, Stats, Transport,
    Wait, registry,
};
pub use passing::NotPassed;
pub use reference::{Loan, NotSent, SharedPool};
pub use rights::Ancillary;
pub use seqpacket::{Received, SeqPacket};
pub use slot::Slot;
pub use stream::Stream;
pub use view::View;
