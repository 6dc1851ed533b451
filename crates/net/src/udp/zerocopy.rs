//! Datagrams without a copy, whose buffer comes back.

use super::send::{explained, whole};
use super::{Envelope, Socket};
use crate::zerocopy::{NotSent, Numbered, Sent, zerocopy_methods};
use onecopy_chain::Chain;
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_socket::SendFlags;

impl Socket {
    /// Gives `chain` away to be sent from where it lies, as one datagram (or one train) that goes as `envelope` says, without a copy in user
    /// space. It comes back once the link has let go of it: whether it arrives nobody knows.
    ///
    /// # Errors
    ///
    /// [`NotSent`] has the chain: as [`Socket::send`]; ENOBUFS and EFAULT as [`tcp::Stream::send_zerocopy`](crate::tcp::Stream::send_zerocopy).
    pub fn send_zerocopy(&self, chain: Chain, envelope: &Envelope) -> Result<Sent, NotSent> {
        self.send_zerocopy_with_flags(chain, envelope, SendFlags::empty())
    }

    /// As [`Socket::send_zerocopy`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Socket::send_zerocopy`]; as [`Socket::send_with_flags`].
    pub fn send_zerocopy_with_flags(
        &self,
        chain: Chain,
        envelope: &Envelope,
        flags: SendFlags,
    ) -> Result<Sent, NotSent> {
        if let Err(error) = whole(flags) {
            return Err(NotSent { chain, error });
        }
        let taken = self.socket.lend(chain, Tell::Handle, envelope, flags);
        taken.map(|taken| taken.sent(self.socket.at())).map_err(told)
    }

    /// As [`Socket::send_zerocopy_with_flags`]; a notice tells of it, by the number that this returns (MSG_ZEROCOPY): [`Socket::notice`].
    ///
    /// # Errors
    ///
    /// As [`Socket::send_zerocopy_with_flags`]; ENOBUFS where as many notices wait to be read as may.
    pub fn send_numbered(
        &self,
        chain: Chain,
        envelope: &Envelope,
        flags: SendFlags,
    ) -> Result<Numbered, NotSent> {
        if let Err(error) = whole(flags) {
            return Err(NotSent { chain, error });
        }
        let taken = self.socket.lend(chain, Tell::Notice, envelope, flags);
        taken.map(|taken| taken.numbered()).map_err(told)
    }
}

fn told(not: NotSent) -> NotSent {
    let len = not.chain.len();
    NotSent { error: explained(not.error, || len), ..not }
}

zerocopy_methods!(Socket);
