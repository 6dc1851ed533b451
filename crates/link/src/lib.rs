//! Where packets leave and arrive. So far there is one link, the [`Sink`]. [`Stacked`] gathers sends before one.
#![forbid(unsafe_code)]

mod link;
mod sink;
mod stacked;

pub use link::Link;
pub use sink::{Sink, Sunk};
pub use stacked::Stacked;
