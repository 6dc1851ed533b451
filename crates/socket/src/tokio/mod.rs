//! What sockets for tokio of all families have in common: how calls wait for readiness, and the methods over that. None of it is for
//! programs; they hold the families' own types.
//!
//! A `Stream` is defined in a module of its own family, over a field `io: Registered<plain stream>`, and gets from here: `registered_methods!`,
//! `ready_methods!` and `tokio_stream!`; `tokio_halves!` beside it defines its halves.

mod methods;
mod registered;
mod split;
mod stream;

pub use registered::{Direction, Registered, fill, refused};
