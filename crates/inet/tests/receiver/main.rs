//! The receiving half of TCP: rules one by one, as scripts, and a stream that is cut, overlapped, repeated and reordered against a
//! plain model.

mod acks;
mod holes;
mod memory;
mod model;
mod stamps;
mod windows;
mod world;
