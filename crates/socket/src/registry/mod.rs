//! The table in which a process shows its sockets. `onecopy ss` reads it from outside.
//!
//! A process that uses onecopy keeps one memfd, [`NAME`], and makes it with its first socket. The memfd holds
//! a header and a row for each socket. The row says what the socket is, and the counters themselves are in
//! it. No copy exists.
//!
//! Only the process can write the table (F_SEAL_FUTURE_WRITE). A process that may open its /proc/PID/fd, so
//! one of the same user, reads it. The table ends with the process. If the memfd is refused or full, a socket
//! counts in memory that nobody sees.
//!
//! A forked child still counts in its parent's table for the sockets that the two share. It makes its own
//! table with its first new socket. The maker of a row that was there at a fork does not use it again, since
//! the child may still count in it. Whether such a row lives is seen from the processes that hold its socket.

mod layout;
mod listing;
mod table;
#[cfg(test)]
mod tests;

pub use layout::{NAME, Protocol, SIZE, Type};
pub use listing::{Entry, Listing, Refused, read};
pub use table::Row;

#[cfg(test)]
pub(crate) use layout::WORDS;
pub(crate) use layout::{Words, word};
