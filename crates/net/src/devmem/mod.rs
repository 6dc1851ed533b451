//! Device memory TCP: payload of TCP lands in a device's memory, its headers in the host's, and the program gets references;
//! and is sent from a device's memory.
//!
//! It is the kernel's (Documentation/networking/devmem.rst), on a stack of the program's own, with the same meaning and errnos:
//!
//! | the kernel's | here |
//! |---|---|
//! | a dma-buf | [`DeviceMemory`](onecopy_pool::DeviceMemory) |
//! | ethtool -L, -N | [`Stack::set_queues`](crate::Stack::set_queues), [`Stack::steer`](crate::Stack::steer) |
//! | netlink bind-rx, an id, closing the socket of it | [`Stack::bind_rx`](crate::Stack::bind_rx), [`Binding::id`], dropping the [`Binding`] |
//! | recvmsg(MSG_SOCK_DEVMEM), SCM_DEVMEM_DMABUF | [`Stream::recv_frags`](crate::tcp::Stream::recv_frags), [`Frag`] |
//! | recvmsg without the flag: EFAULT | [`Stream::recv`](crate::tcp::Stream::recv): the same |
//! | netlink bind-tx, an id | [`Stack::bind_tx`](crate::Stack::bind_tx), [`TxBinding`] |
//! | sendmsg(MSG_ZEROCOPY) with SCM_DEVMEM_DMABUF, addresses that are offsets | [`Stream::send_device`](crate::tcp::Stream::send_device), [`TxRange`] |
//! | setsockopt(SO_DEVMEM_DONTNEED) | [`Stream::dont_need`](crate::tcp::Stream::dont_need), or dropping [`Frags`] or a [`Token`] |
//! | io_uring's refill ring (IORING_REGISTER_ZCRX_IFQ): no call for each return | [`Stream::refill_ring`](crate::tcp::Stream::refill_ring) |
//!
//! ```
//! use onecopy_link::Tap;
//! use onecopy_net::Stack;
//! use onecopy_net::tcp::{Listener, Stream};
//! use onecopy_pool::{DeviceId, DeviceMemory};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (near, far) = Tap::cable(1500)?;
//! let client = Stack::builder().link(near).address("10.0.0.1/24").build()?;
//! let server = Stack::builder().link(far).address("10.0.0.2/24").build()?;
//!
//! let memory = DeviceMemory::opaque(256, DeviceId(0))?;
//! server.set_queues(2)?;
//! server.steer("10.0.0.2:80".parse()?, 1)?;
//! let binding = server.bind_rx(&memory, &[1])?;
//!
//! let listener = Listener::bind(&server, "10.0.0.2:80".parse()?)?;
//! let sender = Stream::connect(&client, "10.0.0.2:80".parse()?)?;
//! let (receiver, _) = listener.accept()?;
//! sender.send(b"hello, device")?;
//!
//! let frags = receiver.recv_frags(1024)?;
//! for frag in frags.device() {
//!     assert_eq!(frag.binding, binding.id());
//!     let mut bytes = vec![0; frag.len as usize];
//!     memory.read_at(frag.offset, &mut bytes)?; // what a kernel on the device would do in place
//!     assert_eq!(bytes, b"hello, device");
//! }
//! // Dropped, its tokens are given back: the pages are free for more.
//! # Ok(())
//! # }
//! ```

mod binding;
mod nic;
mod path;
mod tx;

pub use crate::carrier::{
    Event, Frag, Frags, Hold, NicSays, NotByNic, Piece, RefillRing, RefillStats, Refusals, Token, TokenRange,
};
pub use binding::Binding;
pub use nic::ask_nic;
pub use path::{Path, Why};
pub use tx::{TxBinding, TxRange};
