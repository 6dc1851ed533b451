//! The methods that all kinds of sockets have in common.

/// Defines the methods that all kinds of sockets have in common, over their field `end`.
#[doc(hidden)]
#[macro_export]
macro_rules! socket_methods {
    ($socket:ty) => {
        impl $socket {
            /// Returns another handle of the same socket, with a descriptor of its own, as std's `try_clone`
            /// does. All that is one thing in the kernel is one thing here: what is there to receive, timeouts,
            /// O_NONBLOCK, policies, counters. The last handle that is dropped closes the socket.
            ///
            /// # Errors
            ///
            /// EMFILE.
            pub fn try_clone(&self) -> $crate::Result<$socket> {
                Ok(Self { end: self.end.clone(), handle: self.handle.try_clone(self.end.fd())? })
            }

            /// Sets which stores copies into the peer's buffer use from here on.
            pub fn set_policy(&self, policy: $crate::Policy) {
                self.end.settings().set_policy(policy);
            }

            /// Returns which stores copies into the peer's buffer use.
            pub fn policy(&self) -> $crate::Policy {
                self.end.settings().policy()
            }

            /// Sets who reads what is sent from here on. [`Policy::Auto`](crate::Policy::Auto) takes it into
            /// account.
            pub fn set_reader(&self, reader: $crate::Reader) {
                self.end.settings().set_reader(reader);
            }

            /// Returns who reads what is sent.
            pub fn reader(&self) -> $crate::Reader {
                self.end.settings().reader()
            }

            /// Returns what was learned so far about the stores of what this socket sends. None where there is nothing to be learned: the
            /// policy is not [`Policy::Auto`](crate::Policy::Auto), the ring fits the second level of caches, a kernel was named
            /// (`ONECOPY_COPY`), or nothing as long as 4 KiB was sent.
            pub fn learned(&self) -> Option<$crate::Learned> {
                match self.policy() {
                    $crate::Policy::Auto => self.end.settings().learned(),
                    _ => None,
                }
            }

            /// Sets how blocking calls wait from here on.
            pub fn set_wait_mode(&self, wait: $crate::Wait) {
                self.end.settings().set_wait(wait);
            }

            /// Returns how blocking calls wait.
            pub fn wait_mode(&self) -> $crate::Wait {
                self.end.settings().wait()
            }

            /// Sets whether calls fail with EAGAIN instead of waiting (O_NONBLOCK). It may be set or cleared
            /// on the descriptor as well, by fcntl(2) or FIONBIO.
            ///
            /// # Errors
            ///
            /// What ioctl(2) says.
            pub fn set_nonblocking(&self, nonblocking: bool) -> $crate::Result<()> {
                self.end.set_nonblocking(nonblocking)
            }

            /// Returns whether calls fail with EAGAIN instead of waiting (O_NONBLOCK).
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as socket2's is.
            pub fn nonblocking(&self) -> $crate::Result<bool> {
                Ok(self.end.is_nonblocking())
            }

            /// Sets the longest wait of a receive (SO_RCVTIMEO); None: for ever.
            ///
            /// # Errors
            ///
            /// EINVAL for a zero duration.
            pub fn set_read_timeout(&self, limit: Option<std::time::Duration>) -> $crate::Result<()> {
                self.end.set_read_timeout(limit)
            }

            /// Returns the longest wait of a receive; None: for ever.
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as std's is.
            pub fn read_timeout(&self) -> $crate::Result<Option<std::time::Duration>> {
                Ok(self.end.settings().read_timeout())
            }

            /// Sets the longest wait of a send (SO_SNDTIMEO); None: for ever.
            ///
            /// # Errors
            ///
            /// EINVAL for a zero duration.
            pub fn set_write_timeout(&self, limit: Option<std::time::Duration>) -> $crate::Result<()> {
                self.end.set_write_timeout(limit)
            }

            /// Returns the longest wait of a send; None: for ever.
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as std's is.
            pub fn write_timeout(&self) -> $crate::Result<Option<std::time::Duration>> {
                Ok(self.end.settings().write_timeout())
            }

            /// Sets the mark of what is sent, which packet filters can see (SO_MARK, socket(7)). Takes
            /// CAP_NET_ADMIN. It has no effect on unix sockets of today's kernels; std offers it, too.
            ///
            /// # Errors
            ///
            /// EPERM without the privilege.
            pub fn set_mark(&self, mark: u32) -> $crate::Result<()> {
                self.end.set_mark(mark)
            }

            /// Returns the mark of what is sent (SO_MARK).
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says.
            pub fn mark(&self) -> $crate::Result<u32> {
                self.end.mark()
            }

            /// Shuts one or both directions down (shutdown(2)). After `Write` the peer reads what was sent,
            /// then the end. After `Read` the peer's sends fail with EPIPE, and what is queued here can still
            /// be received.
            ///
            /// # Errors
            ///
            /// What shutdown(2) says.
            pub fn shutdown(&self, how: std::net::Shutdown) -> $crate::Result<()> {
                self.end.shutdown(how)
            }

            /// Returns how many bytes can be received now without waiting (SIOCINQ).
            ///
            /// # Errors
            ///
            /// What ioctl(2) says; EPROTO.
            pub fn readable_bytes(&self) -> $crate::Result<usize> {
                self.end.readable_bytes()
            }

            /// Returns how many sent bytes the peer has not received yet (SIOCOUTQ, but in bytes). Over the
            /// kernel it is an upper bound: the kernel counts memory, about 768 bytes for one small send.
            ///
            /// # Errors
            ///
            /// What ioctl(2) says.
            pub fn unread_bytes(&self) -> $crate::Result<usize> {
                self.end.unread_bytes()
            }

            /// Returns how many bytes of buffer there are for what is sent, and for what is received. They
            /// are the sizes of the rings, or what SO_SNDBUF and SO_RCVBUF say where the kernel carries the
            /// direction.
            pub fn capacity(&self) -> (usize, usize) {
                self.end.capacity()
            }

            /// Returns the credentials of the process that was at the other end at connect, listen or pair
            /// (SO_PEERCRED). Another process may be the one that *sends*: `set_pass_credentials` tells.
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says; ENOTCONN for a datagram socket that does not share memory: the kernel
            /// does not note its peer.
            pub fn peer_cred(&self) -> $crate::Result<$crate::Credentials> {
                self.end.peer_cred()
            }

            /// Returns the name that this end is bound to (getsockname(2)).
            ///
            /// # Errors
            ///
            /// What getsockname(2) says.
            pub fn local_addr(&self) -> $crate::Result<$crate::SocketAddr> {
                self.end.local_addr()
            }

            /// Returns the name that the peer is bound to (getpeername(2)).
            ///
            /// # Errors
            ///
            /// ENOTCONN when it is not connected.
            pub fn peer_addr(&self) -> $crate::Result<$crate::SocketAddr> {
                self.end.peer_addr()
            }

            /// Returns the pending error, once (SO_ERROR).
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says.
            pub fn take_error(&self) -> $crate::Result<Option<$crate::Error>> {
                self.end.take_error()
            }

            /// Returns which way the bytes take at this moment. A connection begins over the kernel and is
            /// upgraded by its first calls, so ask after the first bytes went both ways. A direction in which
            /// nothing was sent yet may still say Kernel.
            pub fn path(&self) -> $crate::Path {
                self.end.path()
            }

            /// Returns what this end has done since it was made.
            pub fn stats(&self) -> $crate::Stats {
                self.end.counters().read()
            }
        }

        impl Drop for $socket {
            fn drop(&mut self) {
                if self.handle.release() {
                    self.end.close();
                }
            }
        }

        impl rustix::fd::AsFd for $socket {
            /// Returns the control socket, for poll and epoll: POLLIN, POLLOUT, POLLRDHUP and POLLHUP, level
            /// and edge. Reading or writing it directly breaks the connection. O_NONBLOCK may be set on it,
            /// as runtimes do. From the first call on, readiness costs a system call on each change between
            /// empty and not empty.
            fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
                // The next call reports a peer that is found to misbehave here.
                let _ = self.end.reflect();
                self.handle.fd(self.end.fd())
            }
        }

        impl rustix::fd::AsRawFd for $socket {
            fn as_raw_fd(&self) -> rustix::fd::RawFd {
                rustix::fd::AsFd::as_fd(self).as_raw_fd()
            }
        }
    };
}

/// Defines what streams and seqpacket sockets have in common, and datagram sockets do not.
macro_rules! upgrade_methods {
    ($socket:ty) => {
        impl $socket {
            /// Waits until both directions go over shared memory, at most for `limit` (None: for ever), whether
            /// the socket is non-blocking or not. With a `limit` of zero it looks once.
            ///
            /// A connection moves there by itself, with its first messages. A program that wants it earlier, so
            /// that [`path`](Self::path), pages by reference and sharing mean what they say from the first byte
            /// on, has both sides call this first, in any order. No byte is sent for it, and readiness stays
            /// true. Where only one side calls it, it waits for what the other one sends.
            ///
            /// Both sides must see each other's process (one pid namespace), and the listener must be the one
            /// that a client finds (`docs/protocol/upgrade.md`); else it takes messages, too.
            ///
            /// # Errors
            ///
            /// - ETIMEDOUT: the other side has not called it, and nothing came that has moved the connection.
            /// - EOPNOTSUPP: the kernel carries this connection for good: the peer is plain, or this socket has
            ///   [`Transport::Kernel`](crate::Transport::Kernel), or other processes hold it.
            /// - EPIPE: the peer is gone.
            /// - EPROTO.
            pub fn wait_shared(&self, limit: Option<std::time::Duration>) -> $crate::Result<()> {
                self.end.wait_shared(limit)
            }

            /// Begins a wait that does not sleep by itself.
            #[cfg(feature = "tokio")]
            pub(crate) fn begin_to_wait(
                &self,
            ) -> $crate::Result<$crate::connection::wait_shared::WaitShared<'_>> {
                self.end.begin_to_wait()
            }
        }
    };
}

/// Defines the methods that only connections have: the identity of the peer, and of the sender.
#[doc(hidden)]
#[macro_export]
macro_rules! credential_methods {
    ($socket:ty) => {
        impl $socket {
            /// Returns the supplementary groups of the same process (SO_PEERGROUPS).
            ///
            /// # Errors
            ///
            /// As `peer_cred`.
            pub fn peer_groups(&self) -> $crate::Result<Vec<u32>> {
                self.end.peer_groups()
            }

            /// Returns a descriptor of the same process (SO_PEERPIDFD, Linux 6.5). No other process can take
            /// its place. It is for pidfd_send_signal(2), and becomes readable once the process has ended.
            ///
            /// # Errors
            ///
            /// As `peer_cred`; ENOPROTOOPT on an older kernel; ESRCH or EINVAL where the process is gone.
            pub fn peer_pidfd(&self) -> $crate::Result<rustix::fd::OwnedFd> {
                self.end.peer_pidfd()
            }

            /// Sets whether receives tell who sent (SO_PASSCRED, unix(7)), by
            /// [`Ancillary::credentials`](crate::Ancillary::credentials) of `recv_fds`. Then no receive
            /// merges bytes of two senders. What was sent before the peer was asked comes from nobody, as in
            /// the kernel: process 0, user and group 65534.
            ///
            /// Over the kernel, the kernel verifies each send: a sender needs a privilege to claim somebody
            /// else's identity. **Over shared memory this tells the user, and not which process of that user
            /// it was.** To authenticate a process use `peer_cred` and `peer_pidfd`, or
            /// [`Transport::Kernel`](crate::Transport::Kernel). The reason: the kernel verifies who wrote a
            /// message with credentials, but the peer chooses the socket on which the message comes. It may
            /// choose one on which another process has answered. So each message is checked against
            /// `peer_cred`. Unless the peer was root then, user and group must be the same. If they are not,
            /// the peer misbehaves (EPROTO, and the connection is lost).
            ///
            /// So a peer can name another process of the same user and group. A peer that was root when it
            /// connected can name anybody. Users that are not mapped in this user namespace can name each
            /// other, since all of them are 65534.
            ///
            /// The check holds honest senders to what they were at connect, listen or pair, too. They send
            /// their effective ids (over the kernel it is the real ones). It refuses a sender that was not
            /// root then and has changed its ids since, or that claims others by a capability. A sender sends
            /// its identity before its first byte and whenever it has changed. So a process that gives its
            /// end to another one by means unknown to this crate lends it its name as well. Where processes
            /// share the receiving end, bytes behind what another one received come from nobody until their
            /// sender sends its identity again.
            ///
            /// # Errors
            ///
            /// What setsockopt(2) says.
            pub fn set_pass_credentials(&self, on: bool) -> $crate::Result<()> {
                self.end.set_pass_credentials(on)
            }

            /// Returns whether receives tell who sent (SO_PASSCRED).
            pub fn pass_credentials(&self) -> bool {
                self.end.passes_credentials()
            }

            /// Sets whether receives bring a descriptor of the sender's process (SO_PASSPIDFD, Linux 6.5):
            /// [`Ancillary::pidfd`](crate::Ancillary::pidfd).
            ///
            /// # Errors
            ///
            /// What setsockopt(2) says: ENOPROTOOPT on an older kernel.
            pub fn set_pass_pidfd(&self, on: bool) -> $crate::Result<()> {
                self.end.set_pass_pidfd(on)
            }

            /// Returns whether receives bring a descriptor of the sender's process (SO_PASSPIDFD).
            pub fn pass_pidfd(&self) -> bool {
                self.end.passes_pidfd()
            }
        }
    };
}
