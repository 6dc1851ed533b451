//! UDP: sockets in the shape of std's, and what std's cannot: trains, batches, congestion marks, no copy.
//!
//! ```no_run
//! use onecopy_net::{Stack, udp::Socket};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stack = Stack::builder().tap("onecopy0").address("10.0.0.2/24").build()?;
//! let socket = Socket::bind(&stack, "10.0.0.2:7000".parse()?)?;
//! socket.send_to(b"hello", "10.0.0.1:7000".parse()?)?;
//! let mut buffer = [0; 2048];
//! let (n, from) = socket.recv_from(&mut buffer)?;
//! println!("{n} bytes from {from}");
//! # Ok(())
//! # }
//! ```
//!
//! A datagram is at most as long as one packet takes ([`Stack::mtu`](crate::Stack::mtu), less 28 bytes of headers, 48 in IPv6): the stack makes no
//! fragments, and says EMSGSIZE. Several that are alike go as one packet, which the link cuts if it can, where the program says so
//! ([`Socket::send_segments`]) or sends them by one call ([`Socket::send_many`]).
//!
//! | module | what |
//! |---|---|
//! | `socket` | [`Socket`]: addresses, options |
//! | `send` | datagrams out |
//! | `zerocopy` | datagrams out, whose buffer comes back |
//! | `receive` | datagrams in |
//! | `tokio` | the same in a tokio runtime |

mod receive;
mod send;
mod socket;
#[cfg(feature = "tokio")]
pub mod tokio;
mod zerocopy;

pub use crate::carrier::{Message, Meta};
pub use crate::view::View;
pub use onecopy_inet::udp::{Config, Envelope, MAX_LEN, MAX_SEGMENTS, Settings};
pub use onecopy_inet::wire::Ecn;
pub use socket::Socket;
