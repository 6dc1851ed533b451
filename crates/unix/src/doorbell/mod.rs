//! The control socket, and the accounting of what lies in its queue.

pub mod accounting;
pub mod control;
pub mod elsewhere;
