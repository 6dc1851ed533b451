//! What a program sets of any socket.

/// The methods of `$Socket`, whose field `socket` is what a carrier gives, that those of all protocols have.
macro_rules! socket_options {
    ($Socket:ty) => {
        impl $Socket {
            /// Sets the number of hops (IP_TTL).
            ///
            /// # Errors
            ///
            /// EINVAL for less than 1 or more than 255.
            pub fn set_ttl(&self, ttl: u32) -> onecopy_socket::Result<()> {
                let ttl = u8::try_from(ttl).ok().filter(|ttl| *ttl > 0).ok_or_else(|| {
                    onecopy_socket::Error::new(onecopy_socket::Op::Option, rustix::io::Errno::INVAL)
                        .about("ttl")
                        .because("give one from 1 to 255")
                })?;
                self.socket.set(|settings| settings.ttl = ttl)
            }

            /// The number of hops (IP_TTL).
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as std's is.
            pub fn ttl(&self) -> onecopy_socket::Result<u32> {
                Ok(self.socket.get(|settings| u32::from(settings.ttl)))
            }

            /// Sets which stores copies into the stack's pages use from here on.
            pub fn set_policy(&self, policy: onecopy_socket::Policy) {
                self.socket.settings().set_policy(policy);
            }

            /// Which stores copies use.
            pub fn policy(&self) -> onecopy_socket::Policy {
                self.socket.settings().policy()
            }

            /// Sets who reads what is sent next: a link's kernel ([`NoCpu`](crate::Reader::NoCpu) unless it copies), another core.
            pub fn set_reader(&self, reader: onecopy_socket::Reader) {
                self.socket.settings().set_reader(reader);
            }

            /// Who reads what is sent.
            pub fn reader(&self) -> onecopy_socket::Reader {
                self.socket.settings().reader()
            }

            /// Sets how calls wait from here on.
            pub fn set_wait_mode(&self, wait: onecopy_socket::Wait) {
                self.socket.settings().set_wait(wait);
            }

            /// How calls wait.
            pub fn wait_mode(&self) -> onecopy_socket::Wait {
                self.socket.settings().wait()
            }

            /// Sets whether calls fail with EAGAIN instead of waiting.
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as std's is.
            pub fn set_nonblocking(&self, nonblocking: bool) -> onecopy_socket::Result<()> {
                self.socket.settings().set_nonblocking(nonblocking);
                Ok(())
            }

            /// Whether calls fail with EAGAIN instead of waiting.
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as socket2's is.
            pub fn nonblocking(&self) -> onecopy_socket::Result<bool> {
                Ok(self.socket.settings().nonblocking())
            }

            /// Sets the longest wait of a receive (SO_RCVTIMEO); `None`: for ever.
            ///
            /// # Errors
            ///
            /// EINVAL for no time at all.
            pub fn set_read_timeout(&self, limit: Option<std::time::Duration>) -> onecopy_socket::Result<()> {
                crate::carrier::checked(limit)?;
                self.socket.settings().set_read_timeout(limit);
                Ok(())
            }

            /// The longest wait of a receive.
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as std's is.
            pub fn read_timeout(&self) -> onecopy_socket::Result<Option<std::time::Duration>> {
                Ok(self.socket.settings().read_timeout())
            }

            /// Sets the longest wait of a send (SO_SNDTIMEO); `None`: for ever.
            ///
            /// # Errors
            ///
            /// EINVAL for no time at all.
            pub fn set_write_timeout(
                &self,
                limit: Option<std::time::Duration>,
            ) -> onecopy_socket::Result<()> {
                crate::carrier::checked(limit)?;
                self.socket.settings().set_write_timeout(limit);
                Ok(())
            }

            /// The longest wait of a send.
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as std's is.
            pub fn write_timeout(&self) -> onecopy_socket::Result<Option<std::time::Duration>> {
                Ok(self.socket.settings().write_timeout())
            }
        }
    };
}

pub(crate) use socket_options;
