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
//! | `endpoint` | the seam below: whoever carries the datagrams |
//! | `own` | what sockets are on a stack of the program's own |
//! | `send` | datagrams out |
//! | `zerocopy` | datagrams out, whose buffer comes back |
//! | `receive` | datagrams in |
//! | `meta` | [`Meta`] and [`Message`]: what is said of a datagram beside its bytes |
//! | `tokio` | the same in a tokio runtime |

mod endpoint;
mod meta;
mod own;
mod receive;
mod send;
mod socket;
#[cfg(feature = "tokio")]
pub mod tokio;
mod zerocopy;

pub use crate::view::View;
pub(crate) use endpoint::Endpoint;
pub use meta::{Message, Meta};
pub use onecopy_inet::udp::{Config, Envelope, MAX_LEN, MAX_SEGMENTS, Settings};
pub use onecopy_inet::wire::Ecn;
pub(crate) use own::{bind, open};
pub(crate) use send::{Limits, alike};
pub use socket::Socket;
