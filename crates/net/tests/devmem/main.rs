//! Device memory TCP between two stacks on one cable: payload lands in memory that no process maps, and programs get references.

mod binding;
mod ends;
mod kernel;
mod kernel_tx;
mod random;
mod receive;
mod room;
mod tap;
mod tokens;
mod tx;
mod world;
