//! A stack of several shards is one stack: whatever queue a packet comes by, the socket that it is for gets it.

mod datagrams;
mod kernel;
mod limits;
mod listeners;
mod streams;
mod world;
