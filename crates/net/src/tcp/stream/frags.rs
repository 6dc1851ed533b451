//! Receiving by reference, from whatever memory: device memory TCP's recvmsg(2).

use super::Stream;
use crate::devmem::{Frag, Frags, Rx, TokenRange, Tokens};
use crate::error::of;
use crate::socket::Way;
use crate::tcp::endpoint::Options;
use crate::view::View;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Kind};
use onecopy_inet::tcp::{Error as Cause, Received};
use onecopy_pool::provider::CopyError;
use onecopy_socket::{Error, Op, RecvFlags, Result};
use rustix::io::Errno;
use std::sync::Arc;

/// Ranges that one call takes (net/core/sock.c: MAX_DONTNEED_TOKENS).
const MOST_RANGES: usize = 128;

/// ETOOSMALL, which has a number only inside of the kernel (include/linux/errno.h).
const TOO_SMALL: i32 = 525;

/// What one receive came to, under the stack's lock.
enum Got {
    End,
    Thrown(usize),
    TooSmall,
    Host(Segment<Chain>),
    /// With what is said of each fragment, and how many of the bytes were copied to the device from pages of the host's.
    Device(Segment<Chain>, Vec<Frag>, usize),
}

/// Waits, without the stack's lock, until what was placed is there: the program, or the device, looks at it next.
fn settle(placed: &Chain) -> Result<()> {
    let mut last = None;
    for page in placed.fragments().map(|fragment| fragment.page()) {
        if last.replace(page.pool_id()) != Some(page.pool_id()) {
            page.settle().map_err(|error| {
                let errno = match error {
                    CopyError::Io(errno) => errno,
                    _ => Errno::IO,
                };
                Error::new(Op::Recv, errno).because(
                    "the device has lost what was placed in its memory; close the connection and open the device again",
                )
            })?;
        }
    }
    Ok(())
}

/// There are bytes, and no room for a fragment.
pub(crate) fn too_small() -> Error {
    Error::new(Op::Recv, Errno::from_raw_os_error(TOO_SMALL))
        .about("most")
        .because("there is no room for a fragment; take one at least")
}

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
        if let Some(received) = self.socket.recv_frags(n, most, flags) {
            return received;
        }
        let (peeks, throws) = (flags.contains(RecvFlags::PEEK), flags.contains(RecvFlags::TRUNC));
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        let (got, copies) =
            self.socket.on_stack()?.call(Op::Recv, Way::Read, dont_wait, |shard, id, now| {
                let copies = shard.kernel_copies();
                let (rx, inet) = shard.rx_mut();
                if n == 0 {
                    return Ok((Got::Thrown(0), copies));
                }
                let of = |data: Segment<Chain>, rx: &Rx| match data.payload().kind() {
                    Some(Kind::Device) => {
                        let (told, placed) = rx.tell(data.payload());
                        Got::Device(data, told, placed)
                    }
                    _ => Got::Host(data),
                };
                if most == usize::MAX && !peeks && !throws {
                    // Nothing has to be known before.
                    return match inet.tcp_receive(now, id, n)? {
                        Received::End => Ok((Got::End, copies)),
                        Received::Data(data) => Ok((of(data, rx), copies)),
                    };
                }
                let seen = inet.tcp_peek(id, 0, n);
                let Some(seen) = seen.filter(|seen| !seen.payload().is_empty()) else {
                    // Nothing is there: a receive says why.
                    return match inet.tcp_receive(now, id, n)? {
                        Received::End => Ok((Got::End, copies)),
                        Received::Data(data) => Ok((Got::Host(data), copies)),
                    };
                };
                if throws {
                    let mut thrown = 0;
                    while thrown < n
                        && let Ok(Received::Data(data)) = inet.tcp_receive(now, id, n - thrown)
                    {
                        thrown += data.payload().len();
                    }
                    return Ok((Got::Thrown(thrown), copies));
                }
                if most == 0 {
                    return Ok((Got::TooSmall, copies));
                }
                let device = seen.payload().kind() == Some(Kind::Device);
                let room: usize = match device {
                    true => seen.payload().fragments().take(most).map(|fragment| fragment.len()).sum(),
                    false => n,
                };
                let data = match peeks {
                    true if room < seen.payload().len() => seen.range(0, room).map_err(|_| Cause::Invalid)?,
                    true => seen,
                    false => {
                        // So that what is taken is not held twice.
                        drop(seen);
                        match inet.tcp_receive(now, id, n.min(room))? {
                            Received::Data(data) => data,
                            Received::End => return Ok((Got::End, copies)),
                        }
                    }
                };
                Ok((of(data, rx), copies))
            })?;
        let count = |len: usize, placed: usize| {
            if !peeks {
                let counters = self.socket.counters();
                counters.received.add(len);
                counters.referenced.add(len);
                counters.kernel_copied.add(usize::from(copies) * len + placed);
            }
        };
        if let Got::Device(data, ..) = &got {
            settle(data.payload())?;
        }
        Ok(match got {
            Got::End => Frags::of_none(0),
            Got::Thrown(len) => {
                self.socket.counters().received.add(len);
                Frags::of_none(len)
            }
            Got::TooSmall => {
                return Err(too_small());
            }
            Got::Host(data) => {
                count(data.payload().len(), 0);
                Frags::of_linear(View::of(data, self.socket.common().weak_row()))
            }
            Got::Device(_, told, _) if peeks => Frags::of_device(told, None),
            Got::Device(data, told, placed) => {
                count(data.payload().len(), placed);
                let tokens = self.socket.on_stack()?.tokens_or_new();
                let mut frags = Vec::with_capacity(told.len());
                tokens.give_out(data.into_parts().0.into_fragments().zip(told), &mut frags);
                Frags::of_device(frags, Some(Arc::clone(tokens)))
            }
        })
    }

    /// Gives tokens back that [`Frags::into_device`] left to the program (SO_DEVMEM_DONTNEED). Up to 1,024 fragments a call are looked
    /// at, those that are not there among them; the call returns then, and what is behind waits for another one. A token that is unknown, or
    /// was given back before, is passed over. Returns how many fragments are free.
    ///
    /// # Errors
    ///
    /// EINVAL for more than 128 ranges.
    pub fn dont_need(&self, ranges: &[TokenRange]) -> Result<usize> {
        if ranges.len() > MOST_RANGES {
            return Err(Error::new(Op::Option, Errno::INVAL)
                .about("ranges")
                .because("a call takes up to 128 ranges; give them back in several"));
        }
        Ok(self.tokens_made().map_or(0, |tokens| tokens.give_back(ranges)))
    }

    /// As [`Stream::dont_need`], of ranges as setsockopt(2) takes them: struct dmabuf_token, 8 bytes each, in this machine's byte order. (Its
    /// tokens have 32 bits: those above have no such form.)
    ///
    /// # Errors
    ///
    /// EINVAL for a length that is no multiple of 8, and for more than 128 ranges.
    pub fn dont_need_bytes(&self, ranges: &[u8]) -> Result<usize> {
        if !ranges.len().is_multiple_of(8) {
            return Err(Error::new(Op::Option, Errno::INVAL)
                .about("ranges")
                .because("a range has 8 bytes: its first token, and how many there are"));
        }
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let ranges: Vec<TokenRange> = ranges
            .chunks_exact(8)
            .map(|range| TokenRange { start: word(range).into(), count: word(&range[4..]) })
            .collect();
        self.dont_need(&ranges)
    }

    /// Fragments of device memory that the program has, or forgot to give back.
    pub fn tokens_held(&self) -> usize {
        self.tokens_made().map_or(0, |tokens| tokens.held())
    }

    fn tokens_made(&self) -> Option<&Arc<Tokens>> {
        self.socket.tokens()
    }

    /// That bytes which the CPU cannot read are next: what a receive into a buffer says.
    pub(crate) fn unreadable() -> Error {
        of(Op::Recv, Cause::DeviceMemory)
    }
}
