//! What applications hold.

pub mod listener;
#[macro_use]
pub mod methods;
pub mod name;
pub mod seqpacket;
pub mod slot;
pub mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod view;
