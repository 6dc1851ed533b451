//! The implementations under test. A case uses them by their traits.

pub mod kernel;
pub mod onecopy;
mod traits;

pub use traits::{
    ATOMIC, Came, Column, Conn, End, Impl, Kind, Listening, Name, Returned, Rx, Socket, Sockets, Tx, Who,
    not_offered,
};

/// Every implementation, the oracle first.
pub fn all() -> &'static [&'static dyn Impl] {
    use onecopy::Onecopy;
    &[
        &kernel::Kernel,
        &Onecopy::Connected,
        &Onecopy::Pair,
        &Onecopy::Spin,
        &Onecopy::Kernel,
        &Onecopy::ToPlain,
        &Onecopy::FromPlain,
    ]
}

/// The implementation of that name.
pub fn by_name(name: &str) -> Option<&'static dyn Impl> {
    all().iter().copied().find(|i| i.name() == name)
}
