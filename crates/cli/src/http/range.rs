//! The Range field (RFC 9110 section 14).

/// A part of a representation: `start..=end` in bytes, within its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub start: u64,
    /// Last byte, included.
    pub end: u64,
}

impl Part {
    /// Bytes in the part; never 0.
    pub fn len(self) -> u64 {
        self.end - self.start + 1
    }
}

/// What a Range field asks of a representation of a known length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The whole: no field, an unknown unit, or a field that is not well-formed (section 14.2: ignored).
    Whole,
    /// These parts, in the order asked.
    Parts(Vec<Part>),
    /// Well-formed, but no part lies within the representation: 416.
    Nothing,
}

/// Most parts in one answer; who asks for more gets the whole (section 14.2 allows that, 17.15 advises it).
const MAX_PARTS: usize = 16;

/// Reads a Range field's value for a representation of `length` bytes.
pub fn parse(value: &str, length: u64) -> Asked {
    let Some((unit, set)) = value.split_once('=') else { return Asked::Whole };
    if !unit.eq_ignore_ascii_case("bytes") {
        return Asked::Whole;
    }
    let mut parts = Vec::new();
    let mut seen = 0;
    for spec in set.split(',').map(|s| s.trim_matches([' ', '\t'])) {
        if spec.is_empty() {
            continue; // section 5.6.1.2: empty list elements are ignored
        }
        seen += 1;
        match part(spec, length) {
            Some(Some(part)) => parts.push(part),
            Some(None) => {}
            None => return Asked::Whole,
        }
    }
    // Parts that together are longer than the whole overlap: that only serves to make work.
    let total: u64 = parts.iter().fold(0, |sum, p| sum.saturating_add(p.len()));
    match parts.len() {
        0 if seen == 0 => Asked::Whole,
        0 => Asked::Nothing,
        n if n > 1 && (seen > MAX_PARTS || total > length) => Asked::Whole,
        _ => Asked::Parts(parts),
    }
}

/// None: not well-formed. Some(None): well-formed but outside.
fn part(spec: &str, length: u64) -> Option<Option<Part>> {
    let (first, last) = spec.split_once('-')?;
    // Too large for u64 is still well-formed: it is just further than any end.
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        true => Some(text.parse::<u64>().unwrap_or(u64::MAX)),
        false => None,
    };
    if first.is_empty() {
        let suffix = number(last)?.min(length);
        return Some((suffix > 0).then(|| Part { start: length - suffix, end: length - 1 }));
    }
    let start = number(first)?;
    let end = if last.is_empty() { u64::MAX } else { number(last)? };
    if !last.is_empty() && size(last) < size(first) {
        return None;
    }
    Some((start < length).then(|| Part { start, end: end.min(length - 1) }))
}

/// What orders digits as the number that they are, however large it is.
fn size(digits: &str) -> (usize, &str) {
    let digits = digits.trim_start_matches('0');
    (digits.len(), digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(list: &[(u64, u64)]) -> Asked {
        Asked::Parts(list.iter().map(|&(start, end)| Part { start, end }).collect())
    }

    #[test]
    fn one_part() {
        assert_eq!(parse("bytes=0-0", 10), parts(&[(0, 0)]));
        assert_eq!(parse("bytes=2-", 10), parts(&[(2, 9)]));
        assert_eq!(parse("bytes=-3", 10), parts(&[(7, 9)]));
        assert_eq!(parse("bytes=-30", 10), parts(&[(0, 9)]));
        assert_eq!(parse("Bytes=5-99999999999999999999999", 10), parts(&[(5, 9)]));
    }

    #[test]
    fn several_parts() {
        assert_eq!(parse("bytes=0-1, 4-5,,-1", 10), parts(&[(0, 1), (4, 5), (9, 9)]));
        assert_eq!(parse("bytes=0-1,90-", 10), parts(&[(0, 1)]));
    }

    #[test]
    fn nothing_to_give() {
        assert_eq!(parse("bytes=10-", 10), Asked::Nothing);
        assert_eq!(parse("bytes=-0", 10), Asked::Nothing);
        assert_eq!(parse("bytes=0-", 0), Asked::Nothing);
        assert_eq!(parse("bytes=99999999999999999999-", 10), Asked::Nothing);
        assert_eq!(parse("bytes=20000000000000000000-00020000000000000000001", 10), Asked::Nothing);
    }

    #[test]
    fn not_well_formed_is_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "items=0-1",
            "bytes=5-2",
            "bytes=a-b",
            "bytes=-",
            "bytes=+1-2",
            "bytes=0-1,x",
            "bytes=1--2",
            "bytes =0-1",
            " bytes=0-1",
            "bytes\u{a0}=0-1",
            // Beyond 64 bits the first one is still behind the last.
            "bytes=100000000000000000000-18446744073709551615",
            "bytes=99999999999999999999-20000000000000000000",
            "bytes=0018446744073709551617-18446744073709551616",
        ] {
            assert_eq!(parse(value, 10), Asked::Whole, "{value}");
        }
    }

    #[test]
    fn floods_get_the_whole() {
        assert_eq!(parse(&format!("bytes={}", "0-0,".repeat(17)), 1000), Asked::Whole);
        assert_eq!(parse("bytes=0-,0-,0-", 1000), Asked::Whole);
    }

    proptest! {
        #[test]
        fn parts_lie_within(value in "(bytes=)?[0-9,\\- ]{0,40}", length in 0u64..200) {
            if let Asked::Parts(parts) = parse(&value, length) {
                prop_assert!(!parts.is_empty());
                for part in parts {
                    prop_assert!(part.start <= part.end && part.end < length);
                }
            }
        }
    }
}
