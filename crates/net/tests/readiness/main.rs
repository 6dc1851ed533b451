//! What poll(2) and epoll(7) say of streams and listeners, beside the kernel's TCP on loopback: the same calls on both, one after the other,
//! and after each of them the same answers.

mod phases;
mod random;
mod worlds;
