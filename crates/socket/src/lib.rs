//! What all families of sockets share.
//!
//! A family makes sockets and moves bytes: unix sockets, and TCP on a stack of the program's own. This crate has the errors,
//! the flags of calls, the counters and the settings. It opens no socket and moves no byte.
//!
//! | module | what |
//! |---|---|
//! | `byte_stream` | [`ByteStream`] and what goes with it, for code that takes streams of any family |
//! | `error` | [`Error`]: which call failed, its errno, why, and what to do next |
//! | `flags` | [`SendFlags`] and [`RecvFlags`] of one call, [`ReceivedFlags`] of one record |
//! | `path` | [`Path`]: which way the bytes take, and [`Transport`], which way they may |
//! | `settings` | [`Settings`]: what may be changed while a socket is in use |
//! | `stats` | [`Counters`], and [`Stats`], a copy of them |
//! | [`registry`] | the table in which a process shows counters and settings of its sockets to others |
#![forbid(unsafe_code)]

mod byte_stream;
mod error;
mod flags;
#[cfg(feature = "mio")]
mod mio;
mod path;
pub mod registry;
mod settings;
mod stats;
#[cfg(feature = "tokio")]
#[doc(hidden)]
pub mod tokio;

pub use byte_stream::{ByteListener, ByteSlot, ByteStream, ByteView};
pub use error::{Error, Op, Result};
pub use flags::{ReceivedFlags, RecvFlags, SendFlags};
pub use onecopy_copy::{Learned, Policy, Reader, Reason, Store};
pub use onecopy_sync::spin::Wait;
pub use path::{Carrier, Path, Transport};
pub use settings::Settings;
pub use stats::{Counter, Counters, Stats};
