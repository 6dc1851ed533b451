//! Sends without a copy: a buffer is given away, and comes back once the peer has its bytes, or never will.
//!
//! | told by | who makes the send | who waits |
//! |---|---|---|
//! | a handle, [`Sent`] | `send_zerocopy` | [`Sent::wait`], or `.await` in any runtime |
//! | notices, as MSG_ZEROCOPY's | `send_numbered` | `notice`, `wait_notice`, `poll_notice`, or poll(2) on `notices_fd` |
//!
//! [`How`] tells the truth of each: `copied` where the link copied the bytes (a TAP does: one copy by the kernel), or where the send was so
//! small that a copy cost less ([`Small`]), and `dropped` where the connection ended before all of them were acknowledged. Where the kernel
//! carries the bytes ([`kernel`](crate::kernel)), its io_uring says of some that they were copied, true or not: `unknown`.
//!
//! What is under way is charged as the kernel charges it, for all sockets of all stacks of the process together ([`Allowance`]), and the limit is the kernel's:
//! RLIMIT_MEMLOCK of this process, none with CAP_IPC_LOCK ([`Allowance::of_process`]). Beyond, a send fails with ENOBUFS, and the chain is in the
//! error. Without a limit there are still no more than 1023 sends of a socket under way, and as many bytes as its send buffer takes.

mod lender;
mod sent;

pub(crate) use lender::{Lender, Takes};
pub use onecopy_chain::notify::zerocopy::{Allowance, Counts, Small};
pub use onecopy_chain::notify::{How, Range};
pub(crate) use sent::{At, Drives, Waited};
pub use sent::{NotSent, Numbered, Sent};

/// The methods of `$Socket`, whose field `socket` is what a carrier gives, for notices and settings of sends without a copy.
macro_rules! zerocopy_methods {
    ($Socket:ty) => {
        impl $Socket {
            /// The next notice: of numbered sends whose buffers are the caller's again, in their order. Those that follow each other are one
            /// range where all of them were copied, or none (recvmsg(2) with MSG_ERRQUEUE).
            pub fn notice(&self) -> Option<$crate::zerocopy::Range> {
                self.socket.lender().and_then($crate::zerocopy::Lender::notice)
            }

            /// Waits for the next notice, at most for `limit`; `None` once that has come. A signal does not end it.
            ///
            /// # Errors
            ///
            /// ENOBUFS where there are as many sockets as there may be.
            pub fn wait_notice(
                &self,
                limit: Option<std::time::Duration>,
            ) -> onecopy_socket::Result<Option<$crate::zerocopy::Range>> {
                self.socket.wait_notice(limit)
            }

            /// As [`Self::notice`], for a task that polls. Only the last task is woken.
            ///
            /// # Errors
            ///
            /// As [`Self::wait_notice`].
            pub fn poll_notice(
                &self,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<onecopy_socket::Result<$crate::zerocopy::Range>> {
                let lender = self.socket.lender_made()?;
                lender.poll_notice(context).map(Ok)
            }

            /// A descriptor that poll(2) and epoll find readable while there is a notice, and once in a while for one that was taken
            /// already; [`Self::notice`] that finds none ends that. Never read or write it. It is made with the first
            /// call. (The kernel says EPOLLERR on the socket itself. Its descriptor here is a unix socket, of which no error can be taken
            /// back.)
            ///
            /// # Errors
            ///
            /// EMFILE; as [`Self::wait_notice`].
            pub fn notices_fd(&self) -> onecopy_socket::Result<std::os::fd::BorrowedFd<'_>> {
                self.socket.lender_made()?.fd()
            }

            /// Which sends without a copy are copied all the same, whatever the stack says; `None`: what that says. `Small::Below(0)`
            /// copies none for its size. (Where the kernel carries the bytes, it is the kernel that copies small ones; `Small::Measured` and `None`
            /// say what [`ZeroCopy`](crate::kernel::ZeroCopy) says.)
            ///
            /// # Errors
            ///
            /// As [`Self::wait_notice`].
            pub fn set_small(&self, small: Option<$crate::zerocopy::Small>) -> onecopy_socket::Result<()> {
                self.socket.set_small(small)
            }

            /// Up to how many bytes sends without a copy are copied all the same, since that was measured to be cheaper for the last kind of send (with
            /// a handle, or numbered); 0: none is. `None`: nothing was measured, as there was no such send, [`Self::set_small`] says how many, or
            /// the kernel carries the bytes.
            pub fn copied_up_to(&self) -> Option<u32> {
                self.socket.common().settings().copied_up_to()
            }
        }
    };
}

pub(crate) use zerocopy_methods;
