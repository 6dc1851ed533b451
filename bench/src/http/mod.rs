//! What the HTTP row and `onecopy demo` share: the servers they start, and the clients that drive them.

pub mod load;
pub mod servers;
pub mod session;
pub mod tls;
