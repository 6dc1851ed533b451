//! The bytes that ncdevmem's `-v` expects: 1, 2 ... N-1, newline, and again.

/// Which byte stands where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Bytes until it repeats; not 0.
    period: u8,
}

/// Wrong bytes after which there is no use in going on.
pub const MOST_ERRORS: u64 = 20;

/// A byte that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Which one of the stream.
    pub at: u64,
    /// What should be there.
    pub expected: u8,
    /// What is.
    pub actual: u8,
}

impl Pattern {
    /// That of `period` bytes.
    pub fn new(period: u8) -> Pattern {
        Pattern { period: period.max(1) }
    }

    /// Byte `at` of the stream.
    pub fn byte(self, at: u64) -> u8 {
        match (at + 1) % u64::from(self.period) {
            0 => b'\n',
            seed => seed as u8,
        }
    }

    /// Writes what stands from `at` on.
    pub fn fill(self, at: u64, bytes: &mut [u8]) {
        let period = usize::from(self.period);
        let head = period.min(bytes.len());
        for (index, byte) in bytes[..head].iter_mut().enumerate() {
            *byte = self.byte(at + index as u64);
        }
        let mut done = head;
        while done < bytes.len() {
            // Whole periods, so that the phase stays.
            let len = (done - done % period).min(bytes.len() - done);
            bytes.copy_within(..len, done);
            done += len;
        }
    }

    /// Calls `wrong` for each byte that is not what stands from `at` on; `scratch` is room to work in.
    pub fn compare(self, at: u64, bytes: &[u8], scratch: &mut Vec<u8>, mut wrong: impl FnMut(Wrong)) {
        scratch.resize(bytes.len(), 0);
        self.fill(at, scratch);
        if scratch[..] == *bytes {
            return;
        }
        for (index, (expected, actual)) in scratch.iter().zip(bytes).enumerate() {
            if expected != actual {
                wrong(Wrong { at: at + index as u64, expected: *expected, actual: *actual });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_yes_writes_it() {
        let mut bytes = [0; 16];
        Pattern::new(7).fill(0, &mut bytes);
        assert_eq!(&bytes, b"\x01\x02\x03\x04\x05\x06\n\x01\x02\x03\x04\x05\x06\n\x01\x02");
        let mut one = [0; 3];
        Pattern::new(1).fill(5, &mut one);
        assert_eq!(&one, b"\n\n\n");
    }

    #[test]
    fn any_piece_of_it_is_that_piece_and_a_wrong_byte_is_found() {
        for period in [1, 2, 3, 7, 254, 255] {
            let pattern = Pattern::new(period);
            let mut scratch = Vec::new();
            for (at, len) in [(0, 0), (0, 1), (3, 5), (6, 1000), (1 << 33, 4097)] {
                let mut bytes = vec![0; len];
                pattern.fill(at, &mut bytes);
                for (index, byte) in bytes.iter().enumerate() {
                    assert_eq!(*byte, pattern.byte(at + index as u64), "{period} {at} {len} {index}");
                }
                pattern.compare(at, &bytes, &mut scratch, |wrong| panic!("{wrong:?}"));
                if let Some(last) = bytes.last_mut() {
                    *last ^= 0x80;
                    let (actual, place) = (*last, at + len as u64 - 1);
                    let mut found = Vec::new();
                    pattern.compare(at, &bytes, &mut scratch, |wrong| found.push(wrong));
                    assert_eq!(found, [Wrong { at: place, expected: actual ^ 0x80, actual }]);
                }
            }
        }
    }
}
