//! What all connections of a stack share.

pub mod demux;
pub mod isn;
pub mod ports;
pub mod slab;
