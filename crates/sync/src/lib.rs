//! Atomics facade, lock, places and a queue that pass values without one, a flag of who waits, shared ownership without a locked instruction for each handle, a lock and a state that outlive the death of a process, a word to sleep on, coarse clock and the rule for spinning.
//!
//! All atomics of the project come from [`atomic`]: `--cfg loom` swaps loom's in, so that the models of the
//! ring, the doorbells and the lock run the very code that ships. clippy refuses std's own elsewhere.

pub mod atomic;
pub mod clock;
mod holder;
mod mutex;
mod queue;
mod shelf;
pub mod spin;
#[cfg(not(loom))]
pub mod table;
mod want;
mod weighted;
mod word;

pub use holder::{HolderLock, Snapshot, Taken};
pub use mutex::{Mutex, MutexGuard, OwnedGuard};
pub use queue::{Popper, Pusher, queue};
pub use shelf::{Filler, Taker, shelf};
pub use want::Want;
pub use weighted::WeightedArc;
pub use word::Word;
