//! A socket layer in user space for data that is moved, not looked at.
//!
//! Bytes go from the program that made them to the process that uses them in place with at most one copy by a CPU in user
//! space, made with the kind of store that the sender asked for. What really happened is told.
//!
//! # The first connection
//!
//! [`unix::Stream`] and [`unix::Listener`] are used as std's `UnixStream` and `UnixListener` are. Behind the connection is a
//! real AF_UNIX socket, so names, permissions, credentials, poll(2) and the death of a peer are what they always were. Where
//! both sides are onecopy's, the bytes move to shared memory behind the first messages; with any other peer they stay with
//! the kernel.
//!
//! ```
//! use onecopy::unix::{Listener, Stream};
//! use std::io::{Read, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("onecopy-front-{}", std::process::id()));
//! # std::fs::create_dir(&folder)?;
//! # let path = folder.join("store.sock");
//! let listener = Listener::bind(&path)?;
//! let mut client = Stream::connect(&path)?;
//! let (mut server, _from) = listener.accept()?;
//!
//! client.write_all(b"ping")?;
//! let mut buffer = [0; 4];
//! server.read_exact(&mut buffer)?;
//! server.write_all(b"pong")?;
//! client.read_exact(&mut buffer)?;
//! assert_eq!(&buffer, b"pong");
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which copy, and what it came to
//!
//! `send` copies once, into memory that the peer reads from. [`Policy`] says with which stores, for a socket or for one send
//! ([`SendFlags::NTCOPY`]). [`unix::Stream::path`] tells which way the bytes go, and [`unix::Stream::stats`] counts every copy.
//!
//! ```
//! use onecopy::{Policy, SendFlags, unix::Stream};
//!
//! # fn main() -> onecopy::Result<()> {
//! let (a, b) = Stream::pair()?;
//! a.set_policy(Policy::Cached);
//! a.send(b"looked at at once")?;
//! a.send_with_flags(&[7; 50_000], SendFlags::NTCOPY)?; // sent on, never looked at
//! assert!(a.path().is_shared_memory());
//! assert_eq!((a.stats().user_copied_in, a.stats().user_copied_nt), (50_017, 50_000));
//! let mut buffer = [0; 64];
//! b.recv(&mut buffer)?;
//! # Ok(())
//! # }
//! ```
//!
//! # In place
//!
//! A [`unix::View`] is what was received, where it lies: to be passed on ([`unix::View::write_to`]), looked at
//! ([`unix::View::look`]) or read. A [`unix::Slot`] is room where the peer will read: to be written, or filled by pread(2).
//! Neither copies.
//!
//! ```
//! use onecopy::unix::Stream;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (daemon, proxy) = Stream::pair()?;
//! let file = std::fs::File::open("Cargo.toml")?;
//! let mut slot = daemon.reserve(16 << 10)?;
//! let n = slot.read_from(&file, 0)?;
//! slot.commit()?;
//!
//! let view = proxy.recv_borrowed(1 << 20)?;
//! assert_eq!(view.look().find(b"[package]"), Some(0));
//! # let sink = std::fs::File::create("/dev/null")?;
//! view.write_to(&sink)?; // or a TCP socket
//! assert_eq!((view.len(), daemon.stats().user_copied_in), (n, 0));
//! # Ok(())
//! # }
//! ```
//!
//! # Across hosts
//!
//! A [`Stack`] is TCP and UDP in the program's own process, on a TAP device or another link. [`tcp::Stream`] has the calls of
//! [`unix::Stream`], [`udp::Socket`] those of std's `UdpSocket`, and trains, batches and congestion marks besides.
//!
//! ```no_run
//! use onecopy::{Stack, tcp};
//! use std::io::Write;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stack = Stack::builder().tap("onecopy0").address("10.0.0.2/24").build()?;
//! let mut stream = tcp::Stream::connect(&stack, "10.0.0.1:9000".parse()?)?;
//! stream.write_all(b"hello")?;
//! # Ok(())
//! # }
//! ```
//!
//! Without a TAP device or root the kernel's own TCP carries the same sockets, through io_uring: sends without a copy with the same notifications.
//! [`Stack::carrier`] tells which it is.
//!
//! ```no_run
//! use onecopy::{Stack, Transport, tcp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stack = Stack::builder().transport(Transport::Kernel).build()?;
//! let listener = tcp::Listener::bind(&stack, "0.0.0.0:9000".parse()?)?;
//! # Ok(())
//! # }
//! ```
//!
//! Code that takes either is generic over [`ByteStream`] and [`ByteListener`].
//!
//! # What else there is
//!
//! - Records ([`unix::SeqPacket`]) and datagrams ([`unix::Datagram`]), with the same calls.
//! - Descriptors and credentials: [`unix::Stream::send_fds`], [`unix::Stream::send_msg`].
//! - Pages that are written in place and sent by reference, at a cost that does not depend on their size: [`unix::SharedPool`].
//! - A stack whose connections need not wait for each other, on a queue of the device's each: [`Builder::shards`].
//! - One socket in several processes: after a fork, or by [`unix::Stream::share_fds`].
//! - tokio, mio and async-io: the features `tokio` and `mio`, and the module [`unix`].
//! - What it stands on, for who builds more: [`advanced`].
//!
//! # Names
//!
//! A word means one thing. `X_with` takes a [`unix::Config`]; `X_with_flags` takes flags, which no other call asks for; `X_fds`
//! sends or receives descriptors; `send_msg` and `recv_msg` do everything at once. The rest is called as in std.

pub use onecopy_unix::{
    Carrier, Error, Op, Path, Policy, Reader, ReceivedFlags, RecvFlags, Result, SendFlags, Stats, Transport,
    Wait,
};

pub use onecopy_net::{ByteListener, ByteSlot, ByteStream, ByteView};

pub use onecopy_net::{BuildError, Builder, Cidr, Driver, Mac, Port, Refused, Sealed, Stack};

/// The kernel's TCP as a transport of a [`Stack`]'s sockets ([`Builder::transport`]).
pub mod kernel {
    pub use onecopy_net::kernel::*;
}

/// TCP on a [`Stack`]. With the features `tokio` and `mio` it has modules of these names, with the shapes of these crates' own types.
pub mod tcp {
    pub use onecopy_net::tcp::*;
}

/// TCP's payload in a device's memory, on a [`Stack`]. The memory is
/// [`DeviceMemory`](crate::advanced::pool::DeviceMemory); what comes to queues is counted in
/// [`QueueStats`](crate::advanced::link::rx::QueueStats).
pub mod devmem {
    pub use onecopy_net::devmem::*;
}

/// Files to a device's memory and back, and to pages that are sent from where they lie, by io_uring.
pub mod storage {
    pub use onecopy_uring::storage::*;
}

/// A CUDA device's memory: what [`DeviceMemory::new`](crate::advanced::pool::DeviceMemory::new) takes, and so [`Stack::bind_rx`].
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use onecopy_cuda::*;
}

/// UDP on a [`Stack`].
pub mod udp {
    pub use onecopy_net::udp::*;
}

pub use onecopy_net::zerocopy;

/// Unix sockets over shared memory.
///
/// # In runtimes
///
/// The features `tokio` and `mio` add modules of these names. Of async-io (smol, async-std and others stand on it)
/// nothing is needed here: its `Async` makes any socket or listener non-blocking, and waits for it.
///
/// ```
/// use async_io::{Async, block_on};
/// use onecopy::unix::Stream;
/// use std::io::{self, Write};
///
/// # fn main() -> io::Result<()> {
/// let (a, b) = Stream::pair()?;
/// let (a, b) = (Async::new(a)?, Async::new(b)?);
/// block_on(async {
///     a.write_with(|mut socket| socket.write(b"hello")).await?;
///     let view = b.read_with(|socket| Ok(socket.recv_borrowed(1 << 20)?)).await?;
///     assert_eq!(view.into_vec(), b"hello");
///     io::Result::Ok(())
/// })
/// # }
/// ```
///
/// `Async<Stream>` itself is no `AsyncRead`: that asks for async-io's marker `IoSafe`, which is unsafe to implement, and
/// there is no unsafe code in this crate. A program that wants the trait has a type of its own, and needs none either:
///
/// ```
/// use async_io::Async;
/// use futures_lite::{AsyncRead, AsyncReadExt};
/// use onecopy::unix::Stream;
/// use std::io;
/// use std::pin::Pin;
/// use std::task::{Context, Poll, ready};
///
/// struct Reader(Async<Stream>);
///
/// impl AsyncRead for Reader {
///     fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
///         loop {
///             match self.0.get_ref().recv(buffer) {
///                 Err(error) if error.would_block() => ready!(self.0.poll_readable(cx))?,
///                 done => return Poll::Ready(Ok(done?)),
///             }
///         }
///     }
/// }
///
/// # fn main() -> io::Result<()> {
/// # let (a, b) = Stream::pair()?;
/// # let a = std::thread::spawn(move || a.send(b"until the end").map(drop));
/// let mut all = String::new();
/// async_io::block_on(Reader(Async::new(b)?).read_to_string(&mut all))?;
/// assert_eq!(all, "until the end");
/// # a.join().unwrap()?;
/// # Ok(())
/// # }
/// ```
pub mod unix {
    pub use onecopy_unix::{
        Ancillary, Block, Blocks, Config, Credentials, Incoming, Listener, Loan, Look, NotPassed, NotSent,
        Received, Records, SendAncillary, SeqListener, SeqPacket, SharedPool, Slot, SocketAddr, Stream,
        ToSocketAddr, View, Window,
    };
    pub use onecopy_unix_dgram::Datagram;

    /// Sockets and listeners for mio.
    #[cfg(feature = "mio")]
    pub mod mio {
        pub use onecopy_unix::mio::{Listener, SeqListener, SeqPacket, Stream};
        pub use onecopy_unix_dgram::mio::Datagram;
    }

    /// Sockets and listeners for tokio, with the names and the shapes of tokio's own: a program moves over by its `use`
    /// lines, `Stream` for `UnixStream`, `Listener` for `UnixListener`, `Datagram` for `UnixDatagram`.
    ///
    /// Every future may be dropped at any point: no method awaits anything after it has moved something. Async methods
    /// return [`Error`](crate::Error), which has the reason; those that tokio's callers ask for an errno (`try_` and `poll_`) return
    /// [`std::io::Error`].
    #[cfg(feature = "tokio")]
    pub mod tokio {
        pub use onecopy_unix::tokio::*;
        pub use onecopy_unix_dgram::tokio::*;
    }
}

/// What the sockets stand on: for who builds sockets, pools or tools of his own.
///
/// ```
/// use onecopy::advanced::copy::{Hint, copy};
/// let mut to = [0; 5];
/// copy(&mut to, b"bytes", Hint::AUTO);
/// assert_eq!(&to, b"bytes");
/// ```
pub mod advanced {
    /// Chains of fragments, readable or not, and the marks between them.
    pub mod chain {
        pub use onecopy_chain::{
            COPY_BREAK, Chain, ChainError, Checksum, Fragment, Host, Iter, Kind, Mark, Peer, Placed, Reader,
            Slices, Sum, Writer,
        };
    }
    /// The copy engine: policies, kernels, calibration.
    pub mod copy {
        pub use onecopy_copy::{
            Caches, FORCE_VARIABLE, Hint, Kernel, KernelError, Learned, Profile, ProfileError, Reason,
            STREAM_MIN, Status, Store, calibrate, compare, copy, copy_raw, copy_vectored, fill, fill_raw,
            force, install, learned, plan, profile, status,
        };
    }
    pub use onecopy_chain::notify;
    pub use onecopy_link as link;
    pub use onecopy_pool as pool;
    /// What every process shows of its sockets, as `onecopy ss` reads it.
    pub mod registry {
        pub use onecopy_unix::is_invitation;
        pub use onecopy_unix::registry::{Entry, Listing, NAME, Protocol, Refused, SIZE, Type, read};
    }
}

/// The examples in the README are compiled and run with the tests.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
