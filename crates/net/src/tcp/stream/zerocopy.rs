//! Sends of a stream without a copy, whose buffer comes back.

use super::Stream;
use crate::zerocopy::{NotSent, Numbered, Sent, zerocopy_methods};
use onecopy_chain::Chain;
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_socket::SendFlags;

impl Stream {
    /// Gives `chain` away to be sent from where it lies, without a copy in user space, waiting for room until all of it is taken. It comes
    /// back once the peer has acknowledged it or the connection has ended, and says how it left: [`Sent`].
    ///
    /// ```
    /// use onecopy_chain::{Chain, Fragment};
    /// use onecopy_net::{Stack, tcp};
    /// # use onecopy_link::Tap;
    /// # use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (a, b) = Tap::cable(1500)?;
    /// # let here = Stack::builder().link(a).address("10.0.0.1/24").build()?;
    /// # let there = Stack::builder().link(b).address("10.0.0.2/24").build()?;
    /// # let listener = tcp::Listener::bind(&there, "10.0.0.2:80".parse()?)?;
    /// let pool = PagePool::new(PoolConfig::new(), Heap::new())?;
    /// let mut page = pool.alloc()?;
    /// page.bytes_mut().ok_or("shared")?.fill(7);
    /// let chain = Chain::from(Fragment::new(page, 0, 4096)?);
    ///
    /// let stream = tcp::Stream::connect(&here, "10.0.0.2:80".parse()?)?;
    /// let sent = stream.send_zerocopy(chain)?; // accepted
    /// let (chain, how) = sent.wait(); // acknowledged, or reset: yours again (or `.await`)
    /// assert!(chain.len() == 4096 && !how.dropped);
    /// assert!(how.copied); // by the cable's kernel call: nothing else of this program copied it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotSent`] has the chain: as [`Stream::send`]; ENOBUFS where such sends keep as much memory as they may, or as many are not complete as
    /// may be; EFAULT for a device's memory that the link does not take.
    pub fn send_zerocopy(&self, chain: Chain) -> Result<Sent, NotSent> {
        self.send_zerocopy_with_flags(chain, SendFlags::empty())
    }

    /// As [`Stream::send_zerocopy`], with flags. With [`SendFlags::DONTWAIT`] it takes what there is room for: [`Sent::take_rest`] has the
    /// rest.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_zerocopy`]; EAGAIN where there is no room at all.
    pub fn send_zerocopy_with_flags(&self, chain: Chain, flags: SendFlags) -> Result<Sent, NotSent> {
        let taken = self.socket.lend(chain, Tell::Handle, flags);
        let sent = taken.map(|taken| taken.sent(self.socket.at()));
        sent.map_err(|not| NotSent { error: self.signalled(not.error, flags), ..not })
    }

    /// As [`Stream::send_zerocopy_with_flags`]; a notice tells of it, by the number that this returns (MSG_ZEROCOPY): [`Stream::notice`].
    ///
    /// # Errors
    ///
    /// As [`Stream::send_zerocopy_with_flags`]; ENOBUFS where as many notices wait to be read as may.
    pub fn send_numbered(&self, chain: Chain, flags: SendFlags) -> Result<Numbered, NotSent> {
        let sent = self.socket.lend(chain, Tell::Notice, flags).map(|taken| taken.numbered());
        sent.map_err(|not| NotSent { error: self.signalled(not.error, flags), ..not })
    }
}

zerocopy_methods!(Stream);
