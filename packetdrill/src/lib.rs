//! onecopy's TCP for [packetdrill](https://github.com/google/packetdrill): a shared object that it loads in place of the kernel, so that its
//! scripts run on our stack, unmodified and in virtual time.
//!
//! `cargo xtask packetdrill` builds it and runs scripts with it. packetdrill is to be given `--so_filename`, and the object preloaded
//! (`LD_PRELOAD`), since packetdrill does not ask for everything through the table that it has for such objects (`preload`).
//!
//! | file | what |
//! |---|---|
//! | `interface` | the table of functions, in C's terms |
//! | `preload` | what is asked of libc beside it |
//! | `memory` | callers' memory, whose pointers may be bad |
//! | `world` | the stack, the descriptors, and the time, which passes only when somebody lets it |
//! | `control`, `bytes`, `options`, `epoll`, `news` | the calls |
//! | `watched` | what an epoll watches |
//! | `socket` | what a program sees of a connection beside its bytes |
//! | `environment` | sysctls, route and interface, which scripts change by commands |
//! | `tcp` | what is asked of the stack |

mod bytes;
mod control;
mod environment;
mod epoll;
mod errno;
mod info;
mod interface;
mod memory;
mod news;
mod options;
mod preload;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
mod watched;
mod world;

pub use interface::{Table, packetdrill_interface_init};
pub use preload::{getsockopt, mlockall, sched_setscheduler, sendfile, system, times};
