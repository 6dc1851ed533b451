//! Tagged references.

use std::fmt;
use std::num::NonZeroUsize;

/// Bit 0 of a reference: the memory is a device's. As the kernel's NET_IOV (include/net/netmem.h).
pub(crate) const DEVICE: usize = 1;

/// A reference to a page as a plain word, as the kernel's `netmem_ref`: the address of the page's descriptor, with
/// bit 0 set when the memory behind it is a device's. It owns nothing and gives access to nothing; a
/// [`Page`](crate::Page) does both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Netmem(NonZeroUsize);

impl Netmem {
    #[inline]
    pub(crate) fn new(word: NonZeroUsize) -> Netmem {
        Netmem(word)
    }

    /// Whether the memory is a device's: a test of one bit, without a look at the page.
    #[inline]
    pub fn is_device(self) -> bool {
        self.0.get() & DEVICE != 0
    }

    /// The word, tag included, to be kept where only integers can be: in a token, on a queue.
    #[inline]
    pub fn to_word(self) -> NonZeroUsize {
        self.0
    }

    /// What [`Netmem::to_word`] gave. Any word will do: a pool that is given a wrong one refuses it.
    #[inline]
    pub fn from_word(word: NonZeroUsize) -> Netmem {
        Netmem(word)
    }
}

impl fmt::Debug for Netmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_device() { "device" } else { "host" };
        write!(f, "Netmem({:#x} {kind})", self.0.get() & !DEVICE)
    }
}

/// Which device a page lies on. Providers choose the numbers (CUDA's: the ordinal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}
