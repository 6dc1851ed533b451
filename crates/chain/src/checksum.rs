//! What is known of a chain's checksum, and what each operation makes of it.

use crate::error::ChainError;
use crate::sum::Sum;

/// What is known of the internet checksum of a chain, as skb->ip_summed.
///
/// | operation | `Partial` | `Verified` | `Known` |
/// |---|---|---|---|
/// | by reference at the end | stays, covers more | lost | lost |
/// | bytes copied in at either end | stays; start moves | lost | stays (RFC 1071 arithmetic, odd places too) |
/// | two chains joined | stays; two of them refused | stays if both are | stays if both are |
/// | cut between | refused, unless before its start | both halves keep it | lost in both |
/// | [`crate::Chain::pull`] | refused past its start | stays | stays (the passed bytes are subtracted) |
/// | overwritten in place | stays | lost | stays (RFC 1624) |
/// | pulled up, collapsed, shared whole | stays | stays | stays |
///
/// An empty chain joined to another leaves the other's state as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing is known (CHECKSUM_NONE).
    #[default]
    None,
    /// To be finished by who sends: the complement of the sum from byte `start` to the end belongs at `offset` bytes
    /// from `start`, where the pseudo-header's sum stands until then (CHECKSUM_PARTIAL; virtio's csum_start and
    /// csum_offset).
    Partial {
        /// First byte covered.
        start: u16,
        /// Where the field is, counted from `start`.
        offset: u16,
    },
    /// It was checked and right (CHECKSUM_UNNECESSARY).
    Verified,
    /// The sum of all bytes of the chain (CHECKSUM_COMPLETE).
    Known(Sum),
}

impl Checksum {
    /// The states of the two sides of a cut at byte `at`, which is neither end.
    pub(crate) fn cut(self, at: usize) -> Result<(Checksum, Checksum), ChainError> {
        match self {
            Checksum::None | Checksum::Known(_) => Ok((Checksum::None, Checksum::None)),
            Checksum::Verified => Ok((Checksum::Verified, Checksum::Verified)),
            Checksum::Partial { start, offset } if at <= usize::from(start) => {
                Ok((Checksum::None, Checksum::Partial { start: start - at as u16, offset }))
            }
            Checksum::Partial { start, .. } => Err(ChainError::Unfinished { at, start: start.into() }),
        }
    }

    /// The state of a chain of `len` bytes followed by another one; neither is empty.
    pub(crate) fn join(self, len: usize, next: Checksum) -> Result<Checksum, ChainError> {
        match (self, next) {
            (Checksum::Partial { .. }, Checksum::Partial { start, .. }) => {
                Err(ChainError::Unfinished { at: len, start: len + usize::from(start) })
            }
            (Checksum::Partial { .. }, _) => Ok(self),
            (_, Checksum::Partial { start, offset }) => match u16::try_from(len + usize::from(start)) {
                Ok(start) => Ok(Checksum::Partial { start, offset }),
                Err(_) => Err(ChainError::Unfinished { at: len, start: len + usize::from(start) }),
            },
            (Checksum::Known(sum), Checksum::Known(next)) => Ok(Checksum::Known(sum.then(next, len))),
            (Checksum::Verified, Checksum::Verified) => Ok(Checksum::Verified),
            _ => Ok(Checksum::None),
        }
    }
}
