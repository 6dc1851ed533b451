//! A pair of links in virtual time: what a path does to packets, and what it never does.

mod frames;
mod packets;
mod path;
mod pcap;
mod program;
mod sums;
mod whose;
