//! An expected packet beside what came, as packetdrill compares them without `--strict`: several packets may be parts of the expected one.
//! All but the last one may then have any of PSH, FIN and CWR.

use crate::segment::{Choice, Ecn, Flags, Segment};

/// What a packet is to the one that is expected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// It, or its last part.
    Whole,
    /// A part of it: so many bytes.
    Part(u32),
    /// Something else: what is different.
    Different(&'static str),
}

/// Compares `came` with `expected`, of which `before` bytes have come, in parts of `each` bytes.
pub(crate) fn compare(expected: &Segment, before: u32, each: u32, came: &Segment) -> Match {
    let rest = expected.len - before.min(expected.len);
    let part = came.len < rest && came.len > 0;
    let loose = Flags::PSH.with(Flags::FIN).with(Flags::CWR);
    let flags = |flags: Flags| if part { flags.without(loose) } else { flags };
    let different = if flags(expected.flags) != flags(came.flags) {
        "the flags"
    } else if expected.seq.wrapping_add(before) != came.seq {
        "the sequence number"
    } else if came.len > rest || (came.len < rest && !part) || !fits(before, each, came.len, part) {
        "the length"
    } else if expected.ack != came.ack {
        "the ack"
    } else if expected.window.is_some() && expected.window != came.window {
        "the window"
    } else if expected.urgent.unwrap_or(0) != came.urgent.unwrap_or(0) {
        "the urgent pointer"
    } else if expected.ecn.is_some() && expected.ecn != Some(came.ecn.unwrap_or(Ecn::None)) {
        "ECN"
    } else if !options_match(expected, came) {
        "the options"
    } else {
        return if part { Match::Part(came.len) } else { Match::Whole };
    };
    Match::Different(different)
}

/// Parts are as long as the one before; the last one may be shorter.
fn fits(before: u32, each: u32, len: u32, part: bool) -> bool {
    before == 0 || len == each || (len < each && !part)
}

/// The values of timestamps are the host's own; what it echoes has to be right.
fn options_match(expected: &Segment, came: &Segment) -> bool {
    let (Some(expected), Some(came)) = (&expected.options, &came.options) else { return true };
    expected.len() == came.len()
        && expected.iter().zip(came).all(|pair| match pair {
            (Choice::Timestamps { echo, .. }, Choice::Timestamps { echo: other, .. }) => echo == other,
            (one, other) => one == other,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use crate::script::{Action, Body};

    fn segment(text: &str) -> Segment {
        let script = parse("f", &format!("0 > {text}")).unwrap();
        match &script.events[0].action {
            Action::Packet(crate::script::Packet { body: Body::Tcp(segment), .. }) => segment.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parts_may_come_one_by_one() {
        let whole = segment("P. 1:3001(3000) ack 1");
        assert_eq!(compare(&whole, 0, 0, &segment("P. 1:2001(2000) ack 1")), Match::Part(2000));
        assert_eq!(compare(&whole, 2000, 2000, &segment("P. 2001:3001(1000) ack 1")), Match::Whole);
        for (came, what) in [
            (". 2001:3001(1000) ack 1", "the flags"),
            ("P. 2001:3002(1001) ack 1", "the length"),
            ("P. 2002:3001(999) ack 1", "the sequence number"),
            ("P. 2001:3001(1000) ack 2", "the ack"),
            ("P. 2001:3001(1000) ack 1 <nop,nop,nop,nop>", "the options"),
        ] {
            assert_eq!(compare(&whole, 2000, 2000, &segment(came)), Match::Different(what), "{came}");
        }
        assert_eq!(
            compare(&whole, 1000, 1000, &segment("P. 1001:3001(2000) ack 1")),
            Match::Different("the length"),
            "no part is longer than the one before"
        );
        assert_eq!(compare(&whole, 0, 0, &segment(". 1:1(0) ack 1")), Match::Different("the flags"));
        assert_eq!(compare(&whole, 0, 0, &segment("P. 1:1(0) ack 1")), Match::Different("the length"));
    }

    #[test]
    fn a_cookie_is_of_the_bytes_that_are_said() {
        let asks = segment("S 0:0(0) <FO,nop,nop>");
        let said = segment("S 0:0(0) <FO 00abcd1234567890,nop,nop>");
        assert_eq!(compare(&said, 0, 0, &said.clone()), Match::Whole);
        for other in [asks, segment("S 0:0(0) <FO 00abcd1234567891,nop,nop>")] {
            assert_eq!(compare(&said, 0, 0, &other), Match::Different("the options"));
        }
    }

    #[test]
    fn a_window_counts_where_it_is_said() {
        let (said, unsaid) = (segment(". 1:1(0) ack 1 win 5"), segment(". 1:1(0) ack 1"));
        let came = segment(". 1:1(0) ack 1 win 6");
        assert_eq!(compare(&unsaid, 0, 0, &came), Match::Whole);
        assert_eq!(compare(&said, 0, 0, &came), Match::Different("the window"));
        let (one, two) =
            (segment("- 1:1(0) <TS val 1 ecr 2,nop,nop>"), segment("- 1:1(0) <TS val 9 ecr 2,nop,nop>"));
        assert_eq!(compare(&one, 0, 0, &two), Match::Whole);
    }
}
