//! From plain sockets and back.

/// Defines how sockets are made from the kernel's, and become those again. `$std` is std's type, if it has one.
#[doc(hidden)]
#[macro_export]
macro_rules! plain_conversions {
    ($socket:ident $(, $std:ty)?) => {
        impl From<rustix::fd::OwnedFd> for $socket {
            /// Takes a connected socket of the kernel, of the right type, which this does not check. It stays with
            /// the kernel, as with [`Transport::Kernel`](crate::Transport::Kernel).
            fn from(fd: rustix::fd::OwnedFd) -> $socket {
                $socket::plain(fd)
            }
        }

        impl TryFrom<$socket> for rustix::fd::OwnedFd {
            type Error = $crate::NotPassed<$socket>;

            /// Gives the kernel's socket. The error comes with the socket, which is as it was: EOPNOTSUPP once it
            /// has moved to shared memory, EAGAIN while it may still do so, EBUSY where clones of it, views of what
            /// was received, or other processes hold it.
            fn try_from(mut socket: $socket) -> std::result::Result<rustix::fd::OwnedFd, Self::Error> {
                let no_views = || match std::sync::Arc::strong_count(&socket.end) {
                    1 => Ok(()),
                    _ => Err($crate::Error::new($crate::Op::Pass, rustix::io::Errno::BUSY)
                        .because("views of what was received here are left; drop them first")),
                };
                let is_free = socket.handle.is_only().and_then(|()| no_views());
                let fd = is_free.and_then(|()| socket.end.is_plain()).and_then(|()| {
                    rustix::io::fcntl_dupfd_cloexec(socket.end.fd(), 3)
                        .map_err(|errno| $crate::Error::new($crate::Op::Pass, errno))
                });
                match fd {
                    Ok(fd) => {
                        // The connection goes on, so this is no close.
                        socket.handle.release();
                        Ok(fd)
                    }
                    Err(error) => Err($crate::NotPassed { error, socket }),
                }
            }
        }

        $(impl From<$std> for $socket {
            /// Takes std's socket, which stays with the kernel, as with
            /// [`Transport::Kernel`](crate::Transport::Kernel).
            fn from(socket: $std) -> $socket {
                $socket::plain(socket.into())
            }
        }

        impl TryFrom<$socket> for $std {
            type Error = $crate::NotPassed<$socket>;

            /// Gives std's socket, where the kernel's can be given.
            fn try_from(socket: $socket) -> std::result::Result<$std, Self::Error> {
                Ok(rustix::fd::OwnedFd::try_from(socket)?.into())
            }
        })?
    };
}
