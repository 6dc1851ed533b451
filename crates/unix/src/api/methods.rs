//! The methods that all kinds of sockets have in common.

/// The methods that all kinds of sockets have in common, over their field `end`.
#[doc(hidden)]
#[macro_export]
macro_rules! socket_methods {
    ($socket:ty) => {
        impl $socket {
            /// Which stores copies into the peer's buffer use from here on.
            pub fn set_policy(&self, policy: $crate::Policy) {
                self.end.settings.set_policy(policy);
            }

            /// Who reads what is sent from here on, which [`Policy::Auto`](crate::Policy::Auto) takes into account.
            pub fn set_reader(&self, reader: $crate::Reader) {
                self.end.settings.set_reader(reader);
            }

            /// How blocking calls wait from here on.
            pub fn set_wait(&self, wait: $crate::Wait) {
                self.end.settings.set_wait(wait);
            }

            /// Whether calls fail with EAGAIN instead of waiting (O_NONBLOCK). Who sets or clears it on the descriptor, by fcntl(2)
            /// or FIONBIO, is heeded as well.
            ///
            /// # Errors
            ///
            /// What ioctl(2) says.
            pub fn set_nonblocking(&self, nonblocking: bool) -> $crate::Result<()> {
                self.end.set_nonblocking(nonblocking)
            }

            /// Longest wait of a receive (SO_RCVTIMEO); None: for ever.
            ///
            /// # Errors
            ///
            /// EINVAL for a zero duration.
            pub fn set_read_timeout(&self, limit: Option<std::time::Duration>) -> $crate::Result<()> {
                self.end.set_read_timeout(limit)
            }

            /// Longest wait of a send (SO_SNDTIMEO); None: for ever.
            ///
            /// # Errors
            ///
            /// EINVAL for a zero duration.
            pub fn set_write_timeout(&self, limit: Option<std::time::Duration>) -> $crate::Result<()> {
                self.end.set_write_timeout(limit)
            }

            /// Shuts one or both directions down (shutdown(2)): after `Write` the peer reads what was sent, then the end;
            /// after `Read` the peer's sends fail with EPIPE, and what is queued here can still be received.
            ///
            /// # Errors
            ///
            /// What shutdown(2) says.
            pub fn shutdown(&self, how: std::net::Shutdown) -> $crate::Result<()> {
                self.end.shutdown(how)
            }

            /// Bytes that can be received now without waiting (SIOCINQ).
            ///
            /// # Errors
            ///
            /// What ioctl(2) says; EPROTO.
            pub fn readable_bytes(&self) -> $crate::Result<usize> {
                self.end.readable_bytes()
            }

            /// Bytes sent that the peer has not received yet (SIOCOUTQ, but in bytes). Over the kernel an upper bound:
            /// the kernel counts memory, about 768 bytes for one small send.
            ///
            /// # Errors
            ///
            /// What ioctl(2) says.
            pub fn unread_bytes(&self) -> $crate::Result<usize> {
                self.end.unread_bytes()
            }

            /// Bytes of buffer for what is sent, and for what is received: of the rings, or what SO_SNDBUF and SO_RCVBUF
            /// say where the kernel carries the direction.
            pub fn capacity(&self) -> (usize, usize) {
                self.end.capacity()
            }

            /// Who was at the other end at connect, listen or pair (SO_PEERCRED). Who *sends* may be another process:
            /// `set_pass_credentials` tells.
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says; ENOTCONN for a datagram socket that does not share memory, whose peer the kernel
            /// does not note.
            pub fn peer_cred(&self) -> $crate::Result<$crate::Credentials> {
                self.end.peer_cred()
            }

            /// The name this end is bound to.
            ///
            /// # Errors
            ///
            /// What getsockname(2) says.
            pub fn local_name(&self) -> $crate::Result<$crate::Name> {
                self.end.local_name()
            }

            /// The name the peer is bound to.
            ///
            /// # Errors
            ///
            /// ENOTCONN when it is not connected.
            pub fn peer_name(&self) -> $crate::Result<$crate::Name> {
                self.end.peer_name()
            }

            /// The pending error, once (SO_ERROR).
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says.
            pub fn take_error(&self) -> $crate::Result<Option<$crate::Error>> {
                self.end.take_error()
            }

            /// Which way the bytes take at this moment. A connection begins over the kernel and is upgraded by its first
            /// calls, so ask after the first bytes went both ways: a direction that nothing was sent in since may still say Kernel.
            pub fn path(&self) -> $crate::Path {
                self.end.path()
            }

            /// What this end has done since it was made.
            pub fn stats(&self) -> $crate::Stats {
                self.end.counters.read()
            }
        }

        impl Drop for $socket {
            fn drop(&mut self) {
                self.end.close();
            }
        }

        impl rustix::fd::AsFd for $socket {
            /// The control socket, for poll and epoll: POLLIN, POLLOUT, POLLRDHUP and POLLHUP, level and edge.
            /// Reading or writing it directly breaks the connection; O_NONBLOCK may be set on it, as runtimes do. From the first
            /// call on, readiness costs a system call on each change between empty and not empty.
            fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
                // A lie that is found here is told by the next call.
                let _ = self.end.reflect();
                self.end.fd()
            }
        }

        impl rustix::fd::AsRawFd for $socket {
            fn as_raw_fd(&self) -> rustix::fd::RawFd {
                rustix::fd::AsFd::as_fd(self).as_raw_fd()
            }
        }
    };
}

/// What connections have besides: who the peer is, and who sends.
#[doc(hidden)]
#[macro_export]
macro_rules! credential_methods {
    ($socket:ty) => {
        impl $socket {
            /// The supplementary groups of the same process (SO_PEERGROUPS).
            ///
            /// # Errors
            ///
            /// As `peer_cred`.
            pub fn peer_groups(&self) -> $crate::Result<Vec<u32>> {
                self.end.peer_groups()
            }

            /// A descriptor of the same process (SO_PEERPIDFD, Linux 6.5), which no other process can take the place of:
            /// for pidfd_send_signal(2), and readable once the process has ended.
            ///
            /// # Errors
            ///
            /// As `peer_cred`; ENOPROTOOPT on an older kernel; ESRCH or EINVAL where the process is gone.
            pub fn peer_pidfd(&self) -> $crate::Result<rustix::fd::OwnedFd> {
                self.end.peer_pidfd()
            }

            /// Whether receives tell who sent (SO_PASSCRED, unix(7)): [`Ancillary::credentials`](crate::Ancillary::credentials)
            /// of `recv_with`. Then no receive merges bytes of two senders. What was sent before this was asked comes from
            /// nobody, as in the kernel: process 0, user and group 65534.
            ///
            /// Over the kernel it verifies each send: who says that he is somebody else needs a privilege. **Over shared memory
            /// this tells the user, and not which of his processes it was**; to authenticate a process use `peer_cred` and
            /// `peer_pidfd`, or [`Transport::Kernel`](crate::Transport::Kernel). For the kernel verifies who wrote a message
            /// that says who sends, but the peer chooses the socket on which it comes, and may choose one on which another
            /// process has answered it. So what is said is held against `peer_cred`: unless that was root, user and group must
            /// be the same, or the peer has lied (EPROTO, and the connection is lost). What can be named is another process
            /// of the same user and group, by a peer that was root when it connected anybody, and of users that are not mapped
            /// in this user namespace any as any (all are 65534).
            ///
            /// That holds honest senders to what they were at connect, listen or pair, too: they say their effective ids
            /// (over the kernel it is the real ones), and who was not root then and has changed them since, or claims others by
            /// a capability, is refused so. Said is it before a sender's first byte and whenever it has changed: a process
            /// that gives its end to another one by unknown means lends it its name as well. Where processes share the
            /// receiving end, bytes behind what another one received come from nobody until their sender says it again.
            ///
            /// # Errors
            ///
            /// What setsockopt(2) says.
            pub fn set_pass_credentials(&self, on: bool) -> $crate::Result<()> {
                self.end.set_pass_credentials(on)
            }

            /// Whether receives bring a descriptor of the sender's process (SO_PASSPIDFD, Linux 6.5):
            /// [`Ancillary::pidfd`](crate::Ancillary::pidfd).
            ///
            /// # Errors
            ///
            /// What setsockopt(2) says: ENOPROTOOPT on an older kernel.
            pub fn set_pass_pidfd(&self, on: bool) -> $crate::Result<()> {
                self.end.set_pass_pidfd(on)
            }
        }
    };
}
