//! Seeded bytes for the verification passes: each position of the stream has a value of its own, so that a byte that
//! is lost, doubled, moved or stale is seen, and the error can say where.

use anyhow::{Result, bail};

/// The eight bytes at word `index` of the stream of `seed` (splitmix64).
fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Fills `buffer` with the stream's bytes from `offset` on. (A word at a time: builds that are not optimised spend their time here.)
pub fn fill(buffer: &mut [u8], seed: u64, offset: u64) {
    let skip = (offset % 8) as usize;
    let front = if skip == 0 { 0 } else { (8 - skip).min(buffer.len()) };
    let (front, rest) = buffer.split_at_mut(front);
    front.copy_from_slice(&word(seed, offset / 8)[skip..][..front.len()]);
    let mut index = offset.div_ceil(8);
    let mut words = rest.chunks_exact_mut(8);
    for part in &mut words {
        part.copy_from_slice(&word(seed, index));
        index += 1;
    }
    let last = words.into_remainder();
    last.copy_from_slice(&word(seed, index)[..last.len()]);
}

/// Compares `buffer` with the stream's bytes from `offset` on.
pub fn check(buffer: &[u8], seed: u64, offset: u64) -> Result<()> {
    let mut expected = [0; 4096];
    for (i, part) in buffer.chunks(expected.len()).enumerate() {
        let start = offset + (i * 4096) as u64;
        let expected = &mut expected[..part.len()];
        fill(expected, seed, start);
        if part != expected
            && let Some(at) = part.iter().zip(&*expected).position(|(a, b)| a != b)
        {
            bail!("byte {} of the stream is {:#04x}, not {:#04x}", start + at as u64, part[at], expected[at]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_same_however_it_is_cut() {
        let mut whole = vec![0; 10_000];
        fill(&mut whole, 7, 100);
        for cut in [1, 7, 8, 4095, 9_999] {
            check(&whole[cut..], 7, 100 + cut as u64).unwrap();
        }
    }

    #[test]
    fn a_piece_of_any_length_at_any_place_is_its_words() {
        let byte = |at: u64| word(7, at / 8)[(at % 8) as usize];
        for (offset, len) in (0..20).flat_map(|offset| (0..20).map(move |len| (offset, len))) {
            let mut piece = vec![0; len];
            fill(&mut piece, 7, offset);
            let expected: Vec<u8> = (offset..offset + len as u64).map(byte).collect();
            assert_eq!(piece, expected, "{len} bytes at {offset}");
        }
    }

    #[test]
    fn a_wrong_byte_is_found_with_its_position() {
        let mut bytes = vec![0; 6000];
        fill(&mut bytes, 7, 0);
        bytes[5000] ^= 1;
        assert!(check(&bytes, 7, 0).unwrap_err().to_string().starts_with("byte 5000 of the stream"));
        fill(&mut bytes, 7, 0);
        assert!(check(&bytes[8..], 7, 0).is_err(), "a shifted stream is not the stream");
        assert!(check(&bytes, 8, 0).is_err(), "another seed is not the stream");
    }
}
