//! The implementations under test. A case uses them by their traits.

pub mod kernel;
pub mod onecopy;
pub mod tcp;
mod traits;

pub use traits::{
    ATOMIC, Came, Column, Conn, End, Impl, Kind, Listening, Name, Returned, Rx, Socket, Sockets, Tcp, Tx,
    Who, not_offered,
};

/// Those of unix sockets, the oracle first.
const UNIX: &[&dyn Impl] = {
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
};

/// Those of TCP, the oracle first.
const TCP: &[&dyn Impl] = &[&tcp::Kernel, &tcp::Stack::One, &tcp::Stack::Two, &tcp::Stack::Kernel];

/// Those that have sockets of `kind`, the oracle first.
pub fn of(kind: Kind) -> &'static [&'static dyn Impl] {
    if kind == Kind::Tcp { TCP } else { UNIX }
}

/// Every implementation.
pub fn all() -> impl Iterator<Item = &'static dyn Impl> {
    UNIX.iter().chain(TCP).copied()
}

/// The implementation of that name.
pub fn by_name(name: &str) -> Option<&'static dyn Impl> {
    all().find(|i| i.name() == name)
}
