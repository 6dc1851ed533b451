//! What travels besides bytes: descriptors, credentials, and what was met and is not received yet.

pub mod attached;
pub mod channel;
pub mod credentials;
pub mod meet;
pub mod pending;
pub mod rights;
pub mod said;
