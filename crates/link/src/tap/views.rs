//! Places for the views of one call.

use onecopy_sys::map::Span;
use onecopy_sys::spans::MAX_GATHER;

/// Views of most calls: virtio's header, the headers, and a super-segment in pages of 16 KiB.
const FEW: usize = 8;

/// Calls `act` with `count` empty views, at most [`MAX_GATHER`]. Those of the longest packet in the smallest pages take 1.5 KiB, which to clear
/// would be a part of what it costs to look whether something has come.
#[inline]
pub(super) fn with<'a, R>(count: usize, act: impl FnOnce(&mut [Span<'a>]) -> R) -> R {
    match count {
        0..=FEW => act(&mut [Span::EMPTY; FEW][..count]),
        _ => act(&mut [Span::EMPTY; MAX_GATHER][..count.min(MAX_GATHER)]),
    }
}
