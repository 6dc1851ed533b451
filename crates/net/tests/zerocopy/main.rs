//! Sends without a copy: the buffer is given away, and comes back once.

mod cable;
mod kernel;
mod sealed;
mod udp;
mod waits;
mod world;
