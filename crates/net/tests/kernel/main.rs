//! Sockets that the kernel carries, through io_uring, over the loopback.

mod congestion;
mod connects;
mod datagrams;
mod info;
mod options;
mod pages;
mod shards;
mod streams;
mod world;
mod zerocopy;
