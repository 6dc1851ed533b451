//! The receiving half of TCP: rules one by one, as scripts.

mod acks;
mod holes;
mod memory;
mod stamps;
mod windows;
mod world;
