//! Sending from a device's memory.

use super::Stream;
use crate::devmem::{TxBinding, TxRange};
use crate::zerocopy::{NotSent, Numbered, Sent};
use onecopy_chain::Chain;
use onecopy_socket::{Error, Op, Result, SendFlags};
use rustix::io::Errno;

impl Stream {
    /// Sends bytes of a device's memory from where they lie, one range after the other: sendmsg(2) with MSG_ZEROCOPY and
    /// SCM_DEVMEM_DMABUF, whose addresses are offsets (Documentation/networking/devmem.rst). Waits for room until all of it is taken. When the peer
    /// has acknowledged it [`Sent`] says so: before that nobody should write there.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_zerocopy`], and [`TxBinding::chain`]; ENODEV where the binding is another stack's.
    pub fn send_device(&self, from: &TxBinding, ranges: &[TxRange]) -> Result<Sent> {
        self.send_device_with_flags(from, ranges, SendFlags::empty())
    }

    /// As [`Stream::send_device`], with flags. With [`SendFlags::DONTWAIT`] it takes what there is room for: [`Sent::len`] says how much.
    ///
    /// Where the kernel carries the bytes [`SendFlags::MORE`] keeps none of a device's back: the write that takes them has no such flag. For few and full
    /// segments set [`Settings::cork`](crate::tcp::Settings::cork) before such sends, and take it back once they are complete.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_device`]; EAGAIN where there is no room at all.
    pub fn send_device_with_flags(
        &self,
        from: &TxBinding,
        ranges: &[TxRange],
        flags: SendFlags,
    ) -> Result<Sent> {
        let chain = self.device_chain(from, ranges)?;
        self.send_zerocopy_with_flags(chain, flags).map_err(|NotSent { error, .. }| error)
    }

    /// As [`Stream::send_device_with_flags`]; a notice tells of it ([`Stream::send_numbered`]).
    ///
    /// # Errors
    ///
    /// As [`Stream::send_device_with_flags`] and [`Stream::send_numbered`].
    pub fn send_device_numbered(
        &self,
        from: &TxBinding,
        ranges: &[TxRange],
        flags: SendFlags,
    ) -> Result<Numbered> {
        let chain = self.device_chain(from, ranges)?;
        self.send_numbered(chain, flags).map_err(|NotSent { error, .. }| error)
    }

    fn device_chain(&self, from: &TxBinding, ranges: &[TxRange]) -> Result<Chain> {
        if !from.is_of(&self.stack) {
            self.stack.refused().count(|refused| &refused.send_foreign);
            return Err(Error::new(Op::Send, Errno::NODEV)
                .about("from")
                .because("the memory is bound to another stack; bind it to the stream's"));
        }
        from.chain(ranges)
    }
}
