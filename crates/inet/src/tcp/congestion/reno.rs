//! Reno (RFC 5681), counted in packets: what Cubic also does below `ssthresh`, and is compared with above.

/// Half of the window, but for the smallest one that fast retransmit works with.
pub(super) fn ssthresh(cwnd: u32) -> u32 {
    (cwnd / 2).max(2)
}

/// Slow start: one packet more for each that was acknowledged, up to `ssthresh`. Gives the window, and how many of the acknowledged are
/// left for what comes after slow start.
pub(super) fn slow_start(cwnd: u32, ssthresh: u32, packets: u32) -> (u32, u32) {
    let grown = cwnd.saturating_add(packets).min(ssthresh).max(cwnd);
    (grown, packets - (grown - cwnd).min(packets))
}

/// Congestion avoidance: one packet more for every `per` that were acknowledged. `credit` counts those that have not paid off yet.
pub(super) fn avoid(mut cwnd: u32, credit: &mut u32, per: u32, packets: u32) -> u32 {
    let per = per.max(1);
    if *credit >= per {
        // Earned under a larger window: it counts once.
        *credit = 0;
        cwnd = cwnd.saturating_add(1);
    }
    let earned = credit.saturating_add(packets);
    *credit = earned % per;
    cwnd.saturating_add(earned / per)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_ends_at_its_threshold_and_says_what_is_left() {
        assert_eq!(slow_start(10, 100, 3), (13, 0));
        assert_eq!(slow_start(10, 12, 3), (12, 1));
        assert_eq!(slow_start(12, 12, 3), (12, 3));
        assert_eq!(slow_start(u32::MAX - 1, u32::MAX, 5), (u32::MAX, 4));
    }

    #[test]
    fn avoidance_pays_one_packet_for_a_window_of_them() {
        let mut credit = 0;
        let mut cwnd = 10;
        for _ in 0..9 {
            cwnd = avoid(cwnd, &mut credit, 10, 1);
        }
        assert_eq!((cwnd, credit), (10, 9));
        cwnd = avoid(cwnd, &mut credit, 10, 4);
        assert_eq!((cwnd, credit), (11, 3));
        // A stretched acknowledgement of several windows.
        assert_eq!(avoid(11, &mut credit, 4, 9), 14);
        assert_eq!(credit, 0);
        // What was earned towards a larger window is no burst in a smaller one.
        credit = 90;
        assert_eq!(avoid(5, &mut credit, 5, 1), 6);
        assert_eq!(credit, 1);
    }

    #[test]
    fn half_is_never_less_than_two() {
        assert_eq!([0, 1, 3, 4, 5, 100].map(ssthresh), [2, 2, 2, 2, 2, 50]);
    }
}
