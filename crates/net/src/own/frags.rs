//! Receiving by reference, from whatever memory: device memory TCP's recvmsg(2).

use super::rx::Rx;
use super::socket::{Protocol, Socket};
use crate::carrier::{Filled, Frag, Frags, Way};
use crate::error::too_small;
use crate::view::View;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Kind};
use onecopy_inet::tcp::{Error as Cause, Received};
use onecopy_pool::provider::CopyError;
use onecopy_socket::{Error, Op, RecvFlags, Result};
use rustix::io::Errno;
use std::sync::Arc;

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

impl<P: Protocol<Cause = Cause>> Socket<P> {
    /// As [`Stream::recv_frags_with_flags`](crate::tcp::Stream::recv_frags_with_flags).
    pub(super) fn frags(&self, n: usize, most: usize, flags: RecvFlags) -> Result<Frags> {
        let (peeks, throws) = (flags.contains(RecvFlags::PEEK), flags.contains(RecvFlags::TRUNC));
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        if let Some(tokens) = self.tokens() {
            // The stack looks behind the call what is free, and need not be told.
            drop(tokens.taken());
        }
        let (got, copies) = self.call(Op::Recv, Way::Read, dont_wait, |shard, id, now| {
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
                let counters = self.counters();
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
                self.counters().received.add(len);
                Frags::of_none(len)
            }
            Got::TooSmall => {
                return Err(too_small());
            }
            Got::Host(data) => {
                count(data.payload().len(), 0);
                Frags::of_linear(View::of(data, self.counts()))
            }
            Got::Device(_, told, _) if peeks => Frags::of_device(told, None),
            Got::Device(data, told, placed) => {
                count(data.payload().len(), placed);
                let tokens = self.tokens_made();
                let mut frags = Vec::with_capacity(told.len());
                tokens.give_out(data.into_parts().0.into_fragments().zip(told), &mut frags);
                Frags::of_device(frags, Some(Arc::clone(tokens)))
            }
        })
    }
}
