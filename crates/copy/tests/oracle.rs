//! Every kernel against the plainest possible copy: all alignments, all short lengths, random long ones, and buffers
//! that end at an unmapped page.

use onecopy_copy::{Hint, Kernel, Policy, Reader, STREAM_MIN, Store, copy, copy_vectored, fill};
use proptest::prelude::*;
use std::io::IoSlice;

const GUARD: u8 = 0xa5;
const STORES: [Store; 2] = [Store::Cached, Store::NonTemporal];

/// Bytes that don't repeat with any power of two, so that a misplaced line shows.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

/// A destination at `align` bytes past a line, guarded on both sides.
struct Guarded {
    buffer: Vec<u8>,
    start: usize,
}

impl Guarded {
    fn new(room: usize) -> Self {
        Self { buffer: vec![GUARD; room + 256], start: 0 }
    }

    fn at(&mut self, align: usize, len: usize) -> &mut [u8] {
        self.buffer.fill(GUARD);
        self.start = 64 + self.buffer.as_ptr().align_offset(64) + align;
        &mut self.buffer[self.start..self.start + len]
    }

    /// The oracle: what stands in the buffer is `expected` and, on both sides, what stood there before.
    fn check(&self, expected: &[u8], what: impl Fn() -> String) {
        let (before, rest) = self.buffer.split_at(self.start);
        let (written, after) = rest.split_at(expected.len());
        assert!(written == expected, "{}: wrong bytes", what());
        assert!(untouched(before) && untouched(after), "{}: wrote outside", what());
    }
}

/// Compares in blocks: the tests are built without optimisation, where a look at each byte takes its time.
fn untouched(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| *chunk == [GUARD; 256][..chunk.len()])
}

fn one_copy(kernel: &Kernel, store: Store, dst: &mut Guarded, align: usize, src: &[u8]) {
    let used = kernel.copy(dst.at(align, src.len()), src, store);
    assert!(used == Store::Cached || store == Store::NonTemporal && kernel.streams());
    dst.check(src, || format!("{kernel:?} {store:?}: {} bytes to alignment {align}", src.len()));
}

#[test]
fn every_length_to_512_at_every_alignment() {
    let source = pattern(1024, 1);
    let mut dst = Guarded::new(1024);
    for kernel in Kernel::all() {
        for store in STORES {
            for align in 0..64 {
                for len in 0..=512 {
                    // Each pair of alignments is met at many lengths; all pairs at one length are the next test's.
                    let from = (align * 7 + len * 5) % 64;
                    one_copy(kernel, store, &mut dst, align, &source[from..from + len]);
                }
            }
        }
    }
}

#[test]
fn every_pair_of_alignments() {
    let source = pattern(2048, 2);
    let mut dst = Guarded::new(2048);
    for kernel in Kernel::all() {
        for store in STORES {
            for align in 0..64 {
                for from in 0..64 {
                    for len in [200, 1091] {
                        one_copy(kernel, store, &mut dst, align, &source[from..from + len]);
                    }
                }
            }
        }
    }
}

/// The last store of a cached copy has a way of its own where it would cross into a page, whatever the heap gives to other tests.
#[test]
fn copies_that_end_just_behind_a_page() {
    const PAGE: usize = 4096;
    let source = pattern(3 * PAGE, 6);
    let mut dst = Guarded::new(5 * PAGE);
    // Where the buffer's line is in its page.
    let first = dst.at(0, 1).as_ptr() as usize % PAGE;
    for kernel in Kernel::all() {
        for len in [33, 65, 66, 127, 129, 130, 255, 257, 258, 384, 511, 513, 514, 1091, 4095, 4097, 8192] {
            for over in 0..=64 {
                let align = (2 * PAGE + PAGE - first + PAGE + over - len) % PAGE;
                one_copy(kernel, Store::Cached, &mut dst, align, &source[over..over + len]);
            }
        }
    }
}

#[test]
fn long_copies_around_the_interleaving() {
    let source = pattern(600 << 10, 3);
    let mut dst = Guarded::new(600 << 10);
    for kernel in Kernel::all() {
        for store in STORES {
            for len in [4095, 4096, 4097, 16383, 16384, 65535, 65536, 65537, 65600, 262_144, 262_207, 599_999]
            {
                for align in [0, 1, 63] {
                    one_copy(kernel, store, &mut dst, align, &source[align * 2..align * 2 + len]);
                }
            }
        }
    }
}

#[test]
fn fills() {
    let expected = vec![0x5a; 200_000];
    let (mut short, mut long) = (Guarded::new(640), Guarded::new(200_000));
    for kernel in Kernel::all() {
        for store in STORES {
            for len in (0..=512).chain([4096, 65537, 199_900]) {
                let (dst, aligns) = if len > 512 { (&mut long, 0..2) } else { (&mut short, 0..64) };
                for align in aligns {
                    kernel.fill(dst.at(align, len), 0x5a, store);
                    dst.check(&expected[..len], || format!("{kernel:?} {store:?}: fill {len} at {align}"));
                }
            }
        }
    }
}

#[test]
fn nothing_is_touched_beyond_either_end() {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    const PAGE: usize = 4096;
    const ROOM: usize = 32 * PAGE;

    /// `ROOM` bytes between two pages that nobody may touch.
    fn fenced() -> (*mut std::ffi::c_void, &'static mut [u8]) {
        // SAFETY: a fresh private mapping; the slice is the part that stays accessible, and is not used after the unmapping below.
        unsafe {
            let whole = mmap_anonymous(
                std::ptr::null_mut(),
                ROOM + 2 * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
            .unwrap();
            mprotect(whole, PAGE, MprotectFlags::empty()).unwrap();
            mprotect(whole.byte_add(PAGE + ROOM), PAGE, MprotectFlags::empty()).unwrap();
            (whole, std::slice::from_raw_parts_mut(whole.cast::<u8>().add(PAGE), ROOM))
        }
    }

    let (source_map, source) = fenced();
    let (dst_map, dst) = fenced();
    source.copy_from_slice(&pattern(ROOM, 4));
    for kernel in Kernel::all() {
        for store in STORES {
            for len in (0..=600).chain([4096, 65536, 70001, ROOM]) {
                // Both begin at the first byte, both end at the last, and each with the other.
                for (from, to) in [(0, 0), (ROOM - len, ROOM - len), (0, ROOM - len), (ROOM - len, 0)] {
                    kernel.copy(&mut dst[to..to + len], &source[from..from + len], store);
                    assert!(dst[to..to + len] == source[from..from + len], "{kernel:?} {store:?} {len}");
                    kernel.fill(&mut dst[to..to + len], 7, store);
                }
            }
        }
    }
    // SAFETY: the mappings made above, whose slices are not used any more.
    unsafe {
        munmap(source_map, ROOM + 2 * PAGE).unwrap();
        munmap(dst_map, ROOM + 2 * PAGE).unwrap();
    }
}

#[test]
fn the_answer_is_what_was_asked_for() {
    let source = pattern(8192, 5);
    let mut dst = vec![0; 8192];
    let streams = Kernel::by_name(onecopy_copy::status().stream).unwrap().streams();
    for len in [0, 1, STREAM_MIN, STREAM_MIN + 1, 8192] {
        assert_eq!(copy(&mut dst[..len], &source[..len], Hint::CACHED), Store::Cached);
        assert_eq!(fill(&mut dst[..len], 1, Hint::CACHED), Store::Cached);
        let expected = if streams && len > STREAM_MIN { Store::NonTemporal } else { Store::Cached };
        assert_eq!(copy(&mut dst[..len], &source[..len], Hint::NON_TEMPORAL), expected, "{len}");
        assert_eq!(fill(&mut dst[..len], 1, Hint::NON_TEMPORAL), expected, "{len}");
    }
}

#[test]
#[should_panic(expected = "the destination has 3 bytes, the source 4")]
fn lengths_must_agree() {
    copy(&mut [0; 3], &[0; 4], Hint::AUTO);
}

proptest! {
    #[test]
    fn any_hint_copies_the_same_bytes(
        seed: u32, len in 0usize..300_000, align in 0usize..64, from in 0usize..64,
        policy in prop_oneof![Just(Policy::Cached), Just(Policy::NonTemporal), Just(Policy::Auto)],
        reader in prop_oneof![Just(Reader::SameCore), Just(Reader::OtherCore), Just(Reader::NoCpu), Just(Reader::Unknown)],
        footprint in prop_oneof![Just(0usize), any::<usize>()],
    ) {
        let source = pattern(len + 64, seed);
        let mut dst = Guarded::new(len + 64);
        let hint = Hint { policy, footprint, reader };
        let planned = onecopy_copy::plan(len, hint);
        prop_assert_eq!(copy(dst.at(align, len), &source[from..from + len], hint), planned);
        dst.check(&source[from..from + len], || format!("{hint:?}"));
    }

    #[test]
    fn gathering_is_concatenating(
        lens in prop::collection::vec(prop_oneof![0usize..8, 0usize..600, 0usize..20_000], 0..12), room in 0usize..60_000, streaming: bool,
    ) {
        let pieces: Vec<_> = lens.iter().zip(0..).map(|(&len, seed)| pattern(len, seed)).collect();
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut expected = pieces.concat();
        expected.truncate(room);
        let mut dst = vec![GUARD; room];
        let hint = if streaming { Hint::NON_TEMPORAL } else { Hint::AUTO };
        let (copied, _) = copy_vectored(&mut dst, &slices, hint);
        prop_assert_eq!(copied, expected.len());
        prop_assert!(dst[..copied] == expected && dst[copied..].iter().all(|&byte| byte == GUARD));
    }
}
