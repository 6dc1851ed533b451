//! The methods that sockets of the unix family have in common, besides those of all families.

/// Defines what sockets of the unix family have besides.
#[doc(hidden)]
#[macro_export]
macro_rules! credentials_methods {
    ($socket:ident) => {
        impl $socket {
            /// Returns the credentials of the process that was at the other end at connect, listen or pair
            /// (SO_PEERCRED).
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says; ENOTCONN for a datagram socket that does not share memory.
            pub fn peer_cred(&self) -> $crate::Result<$crate::Credentials> {
                self.io.get_ref().peer_cred()
            }

            /// Sets whether receives tell who sent (SO_PASSCRED), as the socket inside says it.
            ///
            /// # Errors
            ///
            /// What setsockopt(2) says.
            pub fn set_pass_credentials(&self, on: bool) -> $crate::Result<()> {
                self.io.get_ref().set_pass_credentials(on)
            }
        }
    };
}

/// Defines the methods of streams and seqpacket sockets for tokio that datagram sockets have not.
macro_rules! upgrade_methods {
    ($socket:ident, $inner:ident) => {
        impl $socket {
            /// Waits until both directions go over shared memory, as
            /// [`wait_shared`](crate::$inner::wait_shared) of the socket inside: both sides call it. Bound it by
            /// [`tokio::time::timeout`].
            ///
            /// # Errors
            ///
            /// As there, but for ETIMEDOUT.
            ///
            /// # Panics
            ///
            /// If it has to wait in a runtime without a timer (`enable_time`).
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: the connection moves then or later, and no byte is lost.
            pub async fn wait_shared(&self) -> onecopy_socket::Result<()> {
                let mut wait = self.get_ref().begin_to_wait()?;
                while !wait.step()? {
                    tokio::time::sleep(wait.pause()).await;
                }
                Ok(())
            }
        }
    };
}
