//! Our TCP and the kernel's, through a TAP, in a network namespace of the test's own: it needs root and /dev/net/tun, and says so where it
//! has neither.

mod crowd;
mod echo;
mod http;
mod little;
mod loss;
mod programs;
mod random;
mod six;
mod world;
