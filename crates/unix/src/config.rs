//! What a socket is made with.

pub use onecopy_chain::Credentials;
use onecopy_socket::{Policy, Reader, Transport, Wait};

/// How a seqpacket socket keeps its records. Both ends must agree: a client says which in the name it is
/// bound to. A listener of stream records closes connections that do not keep them so, and accept says ECONNABORTED.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Records {
    /// As Linux does: one send is one record, whole or not at all. A short receive drops the rest.
    #[default]
    Atomic,
    /// As FreeBSD does: a stream with marks. A record ends where [`SendFlags::EOR`](crate::SendFlags::EOR)
    /// was given, and may be larger than any buffer. A short receive leaves the rest. Needs shared memory.
    Stream,
}

/// What a socket is made with. `Config::default()` is right for most.
///
/// ```
/// use onecopy_unix::{Config, Stream, Wait};
/// let config = Config { send_buffer: Some(1 << 20), wait: Wait::Block, ..Config::default() };
/// let (a, _b) = Stream::pair_with(&config)?;
/// assert!(a.capacity().0 >= 2 << 20);
/// # Ok::<(), onecopy_unix::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The value for SO_RCVBUF in bytes, doubled as Linux does. None: the default.
    pub receive_buffer: Option<usize>,
    /// The value for SO_SNDBUF in bytes, doubled as Linux does. None: the default. A direction's ring has the
    /// larger of its sender's send buffer and its receiver's receive buffer. So programs that tune only
    /// SO_SNDBUF, which alone counts on Linux, get what they asked for.
    pub send_buffer: Option<usize>,
    /// The largest ring in bytes that this end makes or accepts (default 16 MiB): a peer may fill it.
    pub max_ring: usize,
    /// The most bytes of the peer's pools that this end maps (default 256 MiB), to receive pages by
    /// reference. A peer may have them charged to the process that touches them first. 0: the peer copies
    /// instead.
    pub max_shared: usize,
    /// Which stores copies into the ring use.
    pub policy: Policy,
    /// Who reads what this end sends.
    pub reader: Reader,
    /// How blocking calls wait.
    pub wait: Wait,
    /// Which way the bytes may take.
    pub transport: Transport,
    /// How records are kept (seqpacket sockets only).
    pub records: Records,
    /// Whether receives tell who sent (SO_PASSCRED), from the first byte on. Later
    /// [`Stream::set_pass_credentials`](crate::Stream::set_pass_credentials) and its like change it.
    pub pass_credentials: bool,
    /// Whether the socket may be passed on to a process that is no child of this one
    /// ([`Stream::into_fds`](crate::Stream::into_fds)), or shared with one
    /// ([`Stream::share_fds`](crate::Stream::share_fds)). It then keeps descriptors of its memory: two more
    /// for each connection, and a third one once it is shared or forked. (At a fork without room for that one
    /// the socket stays the parent's alone.)
    pub passable: bool,
    /// How many connections may wait for accept (listeners only).
    pub backlog: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            receive_buffer: None,
            send_buffer: None,
            max_ring: 16 << 20,
            max_shared: 256 << 20,
            policy: Policy::Auto,
            reader: Reader::OtherCore,
            wait: Wait::Adaptive,
            transport: Transport::Auto,
            records: Records::Atomic,
            pass_credentials: false,
            passable: false,
            backlog: 4096,
        }
    }
}
