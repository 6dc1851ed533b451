//! Receiving by reference, from whatever memory: device memory TCP's recvmsg(2).

use super::Stream;
use crate::carrier::{Frags, RefillRing, TokenRange};
use onecopy_socket::{Error, Op, RecvFlags, Result};
use rustix::io::Errno;

/// Ranges that one call takes (net/core/sock.c: MAX_DONTNEED_TOKENS).
const MOST_RANGES: usize = 128;

/// Entries that a refill ring has at most (io_uring/zcrx.c: IO_RQ_MAX_ENTRIES).
const MOST_ENTRIES: u32 = 32_768;

impl Stream {
    /// Receives up to `n` bytes by reference, and waits where there is nothing: bytes in the host's memory as a view, or fragments of a
    /// device's memory with a token each, whichever comes first; never both in one call, which returns short instead. None at all is the
    /// end (MSG_SOCK_DEVMEM; Documentation/networking/devmem.rst).
    ///
    /// What is told of lies in the device's memory when this returns. It waits for the device's copies where they are not done yet.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`]; what the device says (EIO, mostly) where it has lost what was placed in its memory: these bytes are gone, and each
    /// further receive from that memory says so, too.
    pub fn recv_frags(&self, n: usize) -> Result<Frags> {
        self.recv_frags_with_flags(n, usize::MAX, RecvFlags::empty())
    }

    /// As [`Stream::recv_frags`], in at most `most` pieces (what there is room for in a control buffer), and with flags:
    ///
    /// | flag | what it does |
    /// |---|---|
    /// | [`RecvFlags::PEEK`] | tells what is there without taking it: fragments have no token (0) |
    /// | [`RecvFlags::TRUNC`] | throws up to `n` bytes away, of whatever memory, and says how many; no tokens |
    /// | [`RecvFlags::DONTWAIT`] | does not wait |
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`]; ETOOSMALL (525) where there are bytes and `most` is 0: nothing is taken then.
    pub fn recv_frags_with_flags(&self, n: usize, most: usize, flags: RecvFlags) -> Result<Frags> {
        self.socket.recv_frags(n, most, flags)
    }

    /// Gives tokens back that [`Frags::into_device`] left to the program (SO_DEVMEM_DONTNEED). Up to 1,024 fragments a call are looked
    /// at, those that are not there among them; the call returns then, and what is behind waits for another one. A token that is unknown, or
    /// was given back before, is passed over, and counted ([`Stack::device_refusals`](crate::Stack::device_refusals)). Returns how many fragments are free.
    ///
    /// # Errors
    ///
    /// EINVAL for more than 128 ranges.
    pub fn dont_need(&self, ranges: &[TokenRange]) -> Result<usize> {
        if ranges.len() > MOST_RANGES {
            return Err(self.no_ranges("a call takes up to 128 ranges; give them back in several"));
        }
        Ok(match self.socket.tokens() {
            None if ranges.is_empty() => 0,
            // (Made for who never had any, too: what it gives back is counted.)
            _ => self.socket.tokens_made().give_back(ranges),
        })
    }

    fn no_ranges(&self, why: &'static str) -> Error {
        self.stack.refused().count(|refused| &refused.token_calls);
        Error::new(Op::Option, Errno::INVAL).about("ranges").because(why)
    }

    /// As [`Stream::dont_need`], of ranges as setsockopt(2) takes them: struct dmabuf_token, 8 bytes each, in this machine's byte order. (Its
    /// tokens have 32 bits: those above have no such form.)
    ///
    /// # Errors
    ///
    /// EINVAL for a length that is no multiple of 8, and for more than 128 ranges.
    pub fn dont_need_bytes(&self, ranges: &[u8]) -> Result<usize> {
        if !ranges.len().is_multiple_of(8) {
            return Err(self.no_ranges("a range has 8 bytes: its first token, and how many there are"));
        }
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let ranges: Vec<TokenRange> = ranges
            .chunks_exact(8)
            .map(|range| TokenRange { start: word(range).into(), count: word(&range[4..]) })
            .collect();
        self.dont_need(&ranges)
    }

    /// A ring by which the program gives tokens back without a call for each, with room for so many of them: as many as it has at a time, so that it is
    /// never full. A stream has one at a time, for one thread at a time; [`Stream::dont_need`] goes on beside it. It keeps neither the
    /// stream nor its stack.
    ///
    /// # Errors
    ///
    /// EINVAL for no entries, and for more than 32,768 (io_uring/zcrx.c: IO_RQ_MAX_ENTRIES). EBUSY where the stream has a ring.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn receive(stream: &onecopy_net::tcp::Stream) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ring = stream.refill_ring(1024)?;
    /// loop {
    ///     let frags = stream.recv_frags(1 << 20)?;
    ///     if frags.is_empty() {
    ///         return Ok(());
    ///     }
    ///     let device = frags.into_device();
    ///     // Whatever the device does with the bytes where they lie; and then:
    ///     ring.push_all(&device);
    /// }
    /// # }
    /// ```
    pub fn refill_ring(&self, entries: u32) -> Result<RefillRing> {
        let refused = |errno, what, why| Err(Error::new(Op::Option, errno).about(what).because(why));
        if !(1..=MOST_ENTRIES).contains(&entries) {
            return refused(
                Errno::INVAL,
                "entries",
                "a ring has 1 to 32768 entries; ask for as many as the program has tokens at a time",
            );
        }
        match RefillRing::open(self.socket.tokens_made(), entries as usize) {
            Some(ring) => Ok(ring),
            None => {
                refused(Errno::BUSY, "stream", "it has a ring already; push to that one, or drop it first")
            }
        }
    }

    /// Fragments of device memory that the program has, or forgot to give back.
    pub fn tokens_held(&self) -> usize {
        self.socket.tokens().map_or(0, |tokens| tokens.held())
    }
}
