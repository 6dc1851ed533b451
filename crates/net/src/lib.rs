//! TCP and UDP sockets on a stack of the program's own.
//!
//! [`Stack`] is an address in a network: a link, the protocols above it (`onecopy_inet`), and whoever drives them. Its sockets are used as
//! std's are.
//!
//! ```no_run
//! use onecopy_net::{Stack, tcp};
//! use std::io::{Read, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stack = Stack::builder().tap("onecopy0").address("10.0.0.2/24").build()?;
//! let mut stream = tcp::Stream::connect(&stack, "10.0.0.1:80".parse()?)?;
//! stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer)?;
//! # Ok(())
//! # }
//! ```
//!
//! The way of a byte: `send` copies it once into a page ([`tcp::Stream::reserve`]: not at all); from there it goes by reference to the link,
//! again if need be, until the peer has acknowledged it. What arrives lies in pages where the link put it; `recv` copies it out,
//! [`tcp::Stream::recv_borrowed`] does not.
//!
//! From the top down; each module uses only those below it:
//!
//! | module | what |
//! |---|---|
//! | [`tcp`] | streams and listeners |
//! | [`udp`] | datagrams |
//! | [`devmem`] | payload of TCP in a device's memory: what is bound |
//! | `stack` | [`Stack`] and [`Builder`]: who carries the bytes |
//! | `own` | a stack of the program's own: the lock around it, who drives it, who waits |
//! | [`kernel`] | the kernel's own TCP and UDP as a transport of the same sockets, through io_uring |
//! | `options` | what is set of sockets of all protocols |
//! | `carrier` | the seam: what `own` and `kernel` do for sockets, and what sockets have on either |
//! | [`zerocopy`] | sends whose buffer comes back |
//! | `view` | received bytes, where they lie |
//! | `bell` | a socket's descriptor for poll(2): a pair of sockets that mirrors what it is ready for |
//! | `port` | [`Port`]: a link that a thread can sleep on |
//! | `sealed` | [`Sealed`]: memory that nobody can change, sent from where it lies |
//! | `error` | what errors are called, and what to do about them |
#![forbid(unsafe_code)]

mod bell;
mod carrier;
pub mod devmem;
mod error;
pub mod kernel;
mod options;
mod own;
mod port;
mod sealed;
mod stack;
pub mod tcp;
pub mod udp;
mod view;
pub mod zerocopy;

pub use onecopy_inet::ip::Cidr;
pub use onecopy_inet::wire::Mac;
pub use onecopy_socket::{
    ByteListener, ByteSlot, ByteStream, ByteView, Carrier, Error, Op, Path, Policy, Reader, RecvFlags,
    Result, SendFlags, Stats, Transport, Wait,
};
pub use onecopy_uring::Refused;
pub use port::Port;
pub use sealed::Sealed;
pub use stack::{BuildError, Builder, Driver, Stack};
