//! The sender against scripts: what is sent, what the peer says, and what is expected then.

mod as_linux;
mod disorder;
mod liars;
mod loss;
mod recovery;
mod script;
mod timers;
