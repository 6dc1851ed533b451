//! What daemon and proxy agree on: which sockets carry the bytes between them, how large their buffers are, and whose they are.

use rustix::fd::AsFd;

/// Which sockets carry the bytes between daemon and proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// Shared memory where both sides can, the kernel's unix sockets otherwise.
    #[default]
    Onecopy,
    /// The kernel's unix sockets only.
    Kernel,
}

impl Transport {
    /// The buffer size that was asked for, or the one that measured best: four rings of 512 KiB (as Linux doubles)
    /// were up to 1.2 times as fast as four of 2 MiB with a second-level cache of 2 MiB.
    pub fn buffer(self, asked: Option<usize>) -> usize {
        asked.unwrap_or(match self {
            Transport::Onecopy => 256 << 10,
            Transport::Kernel => 1 << 20,
        })
    }
}

/// The largest send buffer up to `size` that this process may have: beyond net.core.wmem_max only with
/// CAP_NET_ADMIN.
pub fn send_buffer(socket: impl AsFd, size: usize) {
    use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
    // Smaller buffers work too, only slower: nothing to do about an error.
    let _ = set_socket_send_buffer_size_force(&socket, size)
        .or_else(|_| set_socket_send_buffer_size(&socket, size));
}

/// Whether the process at the other end belongs to this process's user.
pub fn same_user(stream: impl AsFd) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}
