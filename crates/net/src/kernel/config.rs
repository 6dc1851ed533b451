//! How the kernel's sockets are to be used.

use onecopy_inet::tcp::congestion::Algorithm;

/// When bytes are sent from where they lie, instead of being copied by the kernel (IORING_OP_SENDMSG_ZC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// From 16 KiB on, as long as the kernel does not say that it copied them after all: over loopback and veth it does, and a socket that
    /// was told so once copies from then on. (MSG_ZEROCOPY's documentation says 10 KiB.)
    #[default]
    Auto,
    /// Always: to see what it costs.
    Always,
    /// Never.
    Never,
}

impl ZeroCopy {
    /// Bytes from which on [`ZeroCopy::Auto`] does not copy.
    pub const LEAST: usize = 16 << 10;
}

/// How the kernel's sockets are to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// When bytes are sent from where they lie.
    pub zero_copy: ZeroCopy,
    /// Pages of 4 KiB that what is sent may take, all sockets of a shard together. They are registered with the ring if the memory that may be locked is
    /// enough (RLIMIT_MEMLOCK, often 8 MiB): then the kernel need not look each of them up. The sends of a connection that copy into them have no more at
    /// a time, what the kernel keeps without a copy among them, than a quarter of what they leave, and the last quarter of all is for connections that have
    /// none: each may take one. So some tens of peers that do not read slow the others down, and as many as there are pages in that quarter stop them. (What
    /// `reserve` gives is the program's own until it is sent, and is not bounded so.) Whose send finds none waits until some are home, as where there is no
    /// room: EAGAIN, and not writable to poll(2).
    pub send_pages: u32,
    /// Pages of 32 KiB that what was received may take, all sockets of a shard together. What nobody reads takes 1 MiB of a connection at most, and no more
    /// than is left for the others. Where nearly all are taken, calls receive by themselves, into pages of 4 KiB, of which there are as many bytes for all
    /// shards together. Whoever holds many views of both keeps others from receiving.
    pub receive_pages: u32,
    /// The congestion control that sockets of TCP have before they connect or listen; the system's where it is none. (Who has begun with one
    /// that paces, bbr, stays paced with whatever [`Settings::congestion`](crate::tcp::Settings::congestion) chooses later.) Where the kernel
    /// does not take it, connect and listen say why.
    pub congestion: Option<Algorithm>,
}

impl Default for Config {
    /// 4 MiB to send from, 16 MiB to receive into.
    fn default() -> Config {
        Config { zero_copy: ZeroCopy::default(), send_pages: 1024, receive_pages: 512, congestion: None }
    }
}
