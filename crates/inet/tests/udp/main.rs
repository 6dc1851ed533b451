//! Sockets of UDP: two stacks over a pair of links, in virtual time.

mod world;

mod calls;
mod errors;
mod groups;
mod hostile;
mod model;
mod notify;
mod room;
mod trains;
mod trouble;
