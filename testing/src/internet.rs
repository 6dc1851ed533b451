//! The checksum of the internet, as its RFC says it.

/// Returns the ones' complement sum of the 16-bit words of `bytes`, word for word as in RFC 1071, section 1.
pub fn internet_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for (i, byte) in bytes.iter().enumerate() {
        sum += if i % 2 == 0 { u32::from(*byte) << 8 } else { u32::from(*byte) };
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    sum as u16
}
