//! How a kernel connection becomes one over shared memory, in place.

pub mod invitation;
pub mod rendezvous;
pub mod undecided;
pub mod upgrade;
pub mod visit;
