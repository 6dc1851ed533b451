//! Two stacks over a pair of links, in virtual time.

mod net;

mod transfer;
