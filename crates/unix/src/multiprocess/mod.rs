//! One end in several processes: forks, sharing, passing on.

pub mod claim;
pub mod fork;
pub mod generation;
pub mod holding;
pub mod membership;
pub mod patience;
pub mod refusal;
pub mod share;
pub mod snapshot;
pub mod transfer;
pub mod wire;
