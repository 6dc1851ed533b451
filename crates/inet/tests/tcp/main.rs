//! Two stacks over a pair of links, in virtual time.

mod as_linux;
mod net;
mod transfer;
