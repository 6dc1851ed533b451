//! What a program builds: a stack of its own, or the kernel's.

mod builder;
mod handle;
#[cfg(feature = "tokio")]
mod tokio;

pub use crate::own::Driver;
pub use builder::{BuildError, Builder};
pub use handle::Stack;
