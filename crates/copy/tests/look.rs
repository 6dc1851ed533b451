//! Blocks, searches and comparisons against the same on slices: all alignments, all short lengths, all seams.

use onecopy_copy::{Block, Blocks, equal, find};
use onecopy_sys::map::{Span, Spans};
use proptest::prelude::*;

/// Bytes at `align` bytes past a line, as two views that meet `cut` bytes behind the front.
fn with_spans<T>(bytes: &[u8], align: usize, cut: usize, look: impl FnOnce(Spans<'_>) -> T) -> T {
    let mut memory = vec![0xee; bytes.len() + 256];
    let start = memory.as_ptr().align_offset(64) + align;
    memory[start..][..bytes.len()].copy_from_slice(bytes);
    // The second view lies elsewhere, as behind the wrap of a ring.
    let mut second = vec![0xee; 3];
    second.extend_from_slice(&bytes[cut..]);
    look([Span::of_shared(&memory[start..][..cut]), Span::of_shared(&second[3..])])
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

fn check_blocks(bytes: &[u8], spans: Spans<'_>) {
    let mut blocks = Blocks::new(spans);
    let mut seen = Vec::new();
    loop {
        assert_eq!(blocks.len(), (bytes.len() - seen.len()).div_ceil(Block::SIZE));
        let Some(block) = blocks.next() else { break };
        assert_eq!(block.len(), (bytes.len() - seen.len()).min(Block::SIZE), "only the last block is short");
        assert_eq!(*block, block.to_bytes()[..block.len()]);
        assert!(block.to_bytes()[block.len()..].iter().all(|byte| *byte == 0), "zeroes behind the end");
        let words: Vec<u8> = block.words().into_iter().flat_map(u64::to_ne_bytes).collect();
        assert_eq!(words, block.to_bytes());
        seen.extend_from_slice(&block);
    }
    assert_eq!(seen, bytes);
    assert!(blocks.next().is_none());
}

#[test]
fn all_lengths_at_all_alignments() {
    let bytes = pattern(300);
    for len in 0..=300 {
        for align in 0..64 {
            with_spans(&bytes[..len], align, len, |spans| check_blocks(&bytes[..len], spans));
        }
    }
}

#[test]
fn all_seams() {
    let bytes = pattern(300);
    for len in [0, 1, 63, 64, 65, 128, 129, 200, 300] {
        for cut in 0..=len {
            with_spans(&bytes[..len], cut % 7, cut, |spans| {
                check_blocks(&bytes[..len], spans);
                assert!(equal(&spans, &bytes[..len]));
            });
        }
    }
}

#[test]
fn one_other_byte_is_seen_wherever_it_is() {
    let bytes = pattern(201);
    for len in [1, 15, 64, 65, 200] {
        for at in 0..len {
            let mut other = bytes[..len].to_vec();
            other[at] ^= 0x10;
            with_spans(&bytes[..len], 5, len / 2, |spans| {
                assert!(!equal(&spans, &other), "byte {at} of {len}");
                assert!(!equal(&spans, &bytes[..len - 1]), "shorter");
                assert!(!equal(&spans, &bytes[..len + 1]), "longer");
            });
        }
    }
}

#[test]
fn a_byte_is_found_wherever_it_is_and_not_behind_the_end() {
    for len in 1..200 {
        for at in 0..len {
            let mut bytes = vec![7; len];
            bytes[at] = 0;
            with_spans(&bytes, 1, len * 2 / 3, |spans| {
                assert_eq!(find(&spans, &[0]), Some(at));
                assert_eq!(
                    find(&spans, &[7]),
                    [Some(1), Some(0)][usize::from(at > 0)].filter(|at| *at < len)
                );
                assert_eq!(find(&spans, &[1]), None);
            });
        }
        // Zeroes behind the end are no bytes.
        with_spans(&vec![7; len], 1, len / 3, |spans| assert_eq!(find(&spans, &[0]), None));
    }
}

fn find_plainly(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    (0..=bytes.len().checked_sub(needle.len())?).find(|at| bytes[*at..].starts_with(needle))
}

proptest! {
    /// Few different bytes, so that much of a needle is often there without the rest.
    #[test]
    fn what_slices_hold_views_hold(
        bytes in prop::collection::vec(0..3u8, 0..400),
        needle in prop::collection::vec(0..3u8, 0..90),
        from in any::<prop::sample::Index>(),
        len in 0..90usize,
        cut in any::<prop::sample::Index>(),
        align in 0..64usize,
    ) {
        let cut = cut.index(bytes.len() + 1);
        // A needle that is there, where the random one hardly is.
        let from = from.index(bytes.len() + 1);
        let part = &bytes[from..][..len.min(bytes.len() - from)];
        with_spans(&bytes, align, cut, |spans| {
            check_blocks(&bytes, spans);
            for needle in [&needle, part, &needle[..needle.len().min(4)]] {
                assert_eq!(find(&spans, needle), find_plainly(&bytes, needle));
            }
            for (i, block) in Blocks::new(spans).enumerate() {
                let ones = (0..block.len()).filter(|at| bytes[Block::SIZE * i + at] == 1);
                assert_eq!(block.matches(1), ones.fold(0, |mask, at| mask | 1 << at));
            }
        });
    }
}
