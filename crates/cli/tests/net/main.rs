//! `nc` and `stack` as a user runs them: the built program, over the kernel and over our own stack, with the kernel and programs of others
//! at the other side.
//!
//! What goes over a TAP takes root and /dev/net/tun, and the programs of others have to be installed: each test says what it lacks.

mod crowd;
mod devmem;
mod flags;
mod harness;
mod http;
mod iperf;
mod loss;
mod nginx;
mod plain;
mod progress;
mod stack;
mod ways;
mod world;
mod xdp;
