//! The kernel's own TCP and UDP as a transport of the same sockets, through io_uring: for programs without a TAP device or root.
//!
//! A stack has one ring, or one for each of its shards, and one thread makes all requests of a ring (`submitter`), for two reasons: the kernel
//! stacks notifications of one ring and one task only, and it cancels what a thread has asked for when that thread ends. Sockets are the shards' in
//! turn, those that are accepted as well. Programs' threads never touch a ring. They put bytes into pages that the ring then
//! sends, and take pages that it received, under the lock of their socket (`connection`), and sleep there. Datagrams wait for nothing but room,
//! so calls that copy them are made by the program's thread itself; what is sent from where it lies goes through the ring (`outbox`), which
//! owns it until the notification.
//!
//! | module | what |
//! |---|---|
//! | `engine` | all shards, and their ends |
//! | `shared` | what all sockets share |
//! | `submitter` | a shard: a ring, its thread, and who wants its attention |
//! | `config` | [`Config`]: pages, when not to copy, what sockets begin with |
//! | `socket`, `listener` | what programs hold |
//! | `connection`, `listening` | what the ring does for each |
//! | `datagrams` | sockets of UDP, as programs hold them |
//! | `device` | receiving into a device's memory |
//! | `devices`: `landing`, `source` | devices' memory that is bound: to receive into, to send from |
//! | `nic`, `placed` | such memory that a NIC receives into by itself, and what comes of it to a connection |
//! | `zcrx` | a ring that tells of what has come there, in place of device memory TCP |
//! | `outbox` | their sends from where the bytes lie, which the ring makes |
//! | `wait` | how calls wait, and what they say when they fail |
//! | `options`, `address`, `info` | what is set, by setsockopt(2), who is at either end, and what the kernel tells of the way |

mod address;
mod config;
mod connection;
mod datagrams;
mod device;
mod devices;
mod engine;
mod info;
mod landing;
mod listener;
mod listening;
mod nic;
mod options;
mod outbox;
mod placed;
mod shared;
mod socket;
mod source;
mod submitter;
mod wait;
mod zcrx;

pub use config::{Config, ZeroCopy};
pub(crate) use datagrams::{bind as udp_bind, open as udp_open};
pub(crate) use device::not_bound;
pub(crate) use devices::{Devices, NotBound, Taken};
pub(crate) use engine::{Kernel, MOST_SHARDS};
pub(crate) use listener::listen;
pub(crate) use nic::Interface;
pub(crate) use shared::Failed;
pub(crate) use socket::connect;
