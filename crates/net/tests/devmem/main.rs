//! Device memory TCP between two stacks on one cable: payload lands in memory that no process maps, and programs get references.
//! What is alike under the kernel's TCP is tried there, too (`World::each`); conformance has no case of it, as the kernel's own takes a NIC to be
//! the oracle.

mod binding;
mod dma_buf;
mod ends;
mod kernel;
mod kernel_tx;
mod nic;
mod outside;
mod random;
mod receive;
mod refill;
mod refusals;
mod room;
mod tap;
mod tokens;
mod tx;
mod world;
