//! What each kind of memory allows, what is refused and in which words, and where bytes lie after each operation.
#![cfg(not(loom))]

mod memory;
mod places;
mod refused;
mod unreadable;
mod writing;
