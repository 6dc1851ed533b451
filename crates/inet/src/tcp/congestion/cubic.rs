//! CUBIC (RFC 9438), in whole numbers, with Linux's constants (net/ipv4/tcp_cubic.c).
//!
//! After a loss at a window of `W` packets, the window is 0.7 `W`, and grows with the time since along `W(t) = C (t - K)^3 + W`: fast at
//! first, hardly at all near `W`, which it reaches after `K`, and then ever faster. Where Reno would be faster (short round trips, small
//! windows), it goes as fast as Reno would on average.
//!
//! Time counts in units of 1/1024 s here. A window may have millions of packets.
//!
//! An undone reduction gives back `cwnd` and `ssthresh`, as in Linux; the curve begins anew from the window at that time. (RFC 9438,
//! section 4.9.1, would have the old curve back as well.)

/// What is left of the window after a loss, in 1/1024: 0.7.
const BETA: u64 = 717;
/// 1, as [`BETA`] counts.
const BETA_ONE: u64 = 1024;
/// `C` of the formula in 1/1024 packets per second cubed: 0.4.
const C: u64 = 410;
/// The bits of `C`'s unit and of three times that of time: `C * t^3 >> SHIFT` is packets.
const SHIFT: u32 = 40;
/// Further from `K` than this (256 s) the curve goes on straight, so that 64 bits hold it: 6.7 million packets away.
const FURTHEST: u64 = 1 << 18;
/// In congestion avoidance without any loss so far, a packet more for so many acknowledged, at least: 5 % a round trip.
const WITHOUT_LOSS: u32 = 20;
/// A packet more for so many acknowledged at most: half a window a round trip.
const FASTEST: u32 = 2;
/// While the window stays, the curve is looked at this often only.
const LOOK_EVERY_MS: u32 = 31;

/// What CUBIC remembers. Made when it is first needed, which most connections never do.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// The window at the last loss; 0 where there was none.
    w_max: u32,
    /// The curve since that loss, or since growth began; none until there is growth.
    curve: Option<Curve>,
}

#[derive(Clone, Debug)]
struct Curve {
    /// When it began (milliseconds, which wrap).
    start: u32,
    /// Where it is flat.
    origin: u32,
    /// How long after `start` it is flat.
    k: u32,
    /// Packets acknowledged that have not yet moved `reno`.
    acked: u32,
    /// The window that Reno would have now, with the same average as it has with halving.
    reno: u32,
    /// So many acknowledged packets are worth one more.
    per: u32,
    /// For which window and when `per` was last told by the curve.
    looked: Option<(u32, u32)>,
}

impl Cubic {
    /// A loss at a window of `cwnd`: ends the curve, gives the new `ssthresh`.
    pub fn reduced(&mut self, cwnd: u32) -> u32 {
        self.curve = None;
        // Fast convergence: who lost before he was back where he lost last time leaves room for a newcomer.
        self.w_max = if cwnd < self.w_max {
            (u64::from(cwnd) * (BETA_ONE + BETA) / (2 * BETA_ONE)) as u32
        } else {
            cwnd
        };
        ssthresh(cwnd)
    }

    /// So many of the packets acknowledged from now on are worth one packet more. `cwnd` is the window, of which `packets` are being
    /// acknowledged; `delay_us` is the shortest round trip, as the window of one round trip ahead is aimed at.
    pub fn per(&mut self, now_ms: u32, cwnd: u32, packets: u32, delay_us: u32) -> u32 {
        let w_max = self.w_max;
        let curve = match &mut self.curve {
            Some(curve) => {
                curve.acked = curve.acked.saturating_add(packets);
                curve
            }
            none => none.insert(Curve::new(now_ms, cwnd, w_max, packets)),
        };
        if let Some((window, at)) = curve.looked {
            let since = now_ms.wrapping_sub(at);
            if window == cwnd && since <= LOOK_EVERY_MS {
                return curve.per;
            }
            if since == 0 {
                curve.as_fast_as_reno(cwnd);
                return curve.per;
            }
        }
        curve.looked = Some((cwnd, now_ms));
        let target = curve.target(now_ms, delay_us);
        curve.per = match target.checked_sub(cwnd) {
            None | Some(0) => cwnd.saturating_mul(100),
            Some(missing) => cwnd / missing,
        };
        if w_max == 0 {
            curve.per = curve.per.min(WITHOUT_LOSS);
        }
        curve.as_fast_as_reno(cwnd);
        curve.per
    }

    /// Nothing was sent for `idle_ms`: that time does not count.
    pub fn idled(&mut self, now_ms: u32, idle_ms: u32) {
        if let Some(curve) = &mut self.curve {
            let age = now_ms.wrapping_sub(curve.start);
            curve.start = now_ms.wrapping_sub(age.saturating_sub(idle_ms));
        }
    }

    /// Whether the curve began less than a second ago.
    pub fn is_young(&self, now_ms: u32) -> bool {
        self.curve.as_ref().is_some_and(|curve| now_ms.wrapping_sub(curve.start) < 1_000)
    }

    /// Whether it knows of a loss.
    pub fn remembers(&self) -> bool {
        self.w_max != 0
    }
}

/// What is left of a window after a loss.
pub(super) fn ssthresh(cwnd: u32) -> u32 {
    ((u64::from(cwnd) * BETA / BETA_ONE) as u32).max(2)
}

impl Curve {
    fn new(now_ms: u32, cwnd: u32, w_max: u32, packets: u32) -> Curve {
        // K is the cube root of what was lost, over C.
        let lost = w_max.saturating_sub(cwnd);
        let k = cube_root((1 << SHIFT) / C * u64::from(lost));
        let origin = w_max.max(cwnd);
        Curve { start: now_ms, origin, k, acked: packets, reno: cwnd, per: FASTEST, looked: None }
    }

    /// The window of one round trip ahead.
    fn target(&self, now_ms: u32, delay_us: u32) -> u32 {
        let age_ms = u64::from(now_ms.wrapping_sub(self.start)) + u64::from(delay_us.div_ceil(1_000));
        let (age, k) = (age_ms * 1024 / 1_000, u64::from(self.k));
        let away = age.abs_diff(k).min(FURTHEST);
        let packets = ((C * away * away * away) >> SHIFT) as u32;
        if age < k { self.origin.saturating_sub(packets) } else { self.origin.saturating_add(packets) }
    }

    /// Grows Reno's window, and catches up with it: alpha of RFC 9438, section 4.3, is 8/15 with Linux's figures.
    fn as_fast_as_reno(&mut self, cwnd: u32) {
        let each = (u64::from(cwnd) * 15 / 8).max(1);
        let steps = u64::from(self.acked.saturating_sub(1)) / each;
        self.acked -= (steps * each) as u32;
        self.reno = self.reno.saturating_add(steps as u32);
        if let Some(behind) = self.reno.checked_sub(cwnd).filter(|behind| *behind > 0) {
            self.per = self.per.min(cwnd / behind);
        }
        self.per = self.per.max(FASTEST);
    }
}

/// The largest number whose cube is at most `n`, bit by bit from above.
fn cube_root(n: u64) -> u32 {
    let mut root = 0u64;
    for bit in (0..22).rev() {
        let more = root | 1 << bit;
        // Below 2^22, so that the cube is below 2^66: the last step alone needs the division.
        if more * more <= n / more {
            root = more;
        }
    }
    root as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cube_roots_are_exact() {
        for root in 0..=2_642_245u64 {
            if root % 97 == 0 || !(1_000..=2_642_000).contains(&root) {
                let cube = root * root * root;
                assert_eq!(u64::from(cube_root(cube)), root);
                assert_eq!(u64::from(cube_root(cube.saturating_sub(1))), root.saturating_sub(1));
            }
        }
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }

    proptest! {
        #[test]
        fn cube_roots_are_those_of_floating_point(n: u64, shift in 0u32..64) {
            let n = n >> shift;
            let float = (n as f64).cbrt();
            prop_assert!((f64::from(cube_root(n)) - float).abs() <= 1.0, "{n}: {float}");
        }

        /// The formula in floating point, from any loss, at any age.
        #[test]
        fn the_curve_is_the_formula(w_max in 2u32..1_000_000, age_ms in 0u32..200_000, start: u32) {
            let cwnd = ssthresh(w_max);
            let curve = Curve::new(start, cwnd, w_max, 1);
            let k = (f64::from(w_max.saturating_sub(cwnd)) / 0.4).cbrt();
            prop_assert!((f64::from(curve.k) / 1024.0 - k).abs() < 0.01 + k / 500.0, "{} {k}", curve.k);
            let want = 0.4 * (f64::from(age_ms) / 1000.0 - k).powi(3) + f64::from(w_max.max(cwnd));
            let got = f64::from(curve.target(start.wrapping_add(age_ms), 0));
            prop_assert!((got - want).abs() <= 2.0 + want.abs() / 100.0, "{got} {want}");
        }

        /// Whatever comes, the pace stays between half a window a round trip and 1 % of one.
        #[test]
        fn the_pace_stays_in_its_bounds(
            steps in prop::collection::vec((any::<u32>(), 1u32.., any::<u32>(), any::<u32>(), any::<u8>()), 1..50),
        ) {
            let mut cubic = Cubic::default();
            for (now, cwnd, packets, delay, what) in steps {
                match what {
                    0..32 => prop_assert!((2..=cwnd.max(2)).contains(&cubic.reduced(cwnd))),
                    32..64 => cubic.idled(now, packets),
                    _ => {
                        let per = cubic.per(now, cwnd, packets, delay);
                        prop_assert!(per >= FASTEST, "{per}");
                    }
                }
            }
        }
    }

    #[test]
    fn without_a_loss_one_in_twenty_grows_at_least() {
        assert_eq!(Cubic::default().per(0, 1_000, 1, 0), WITHOUT_LOSS);
        let mut cubic = Cubic::default();
        cubic.reduced(1_000);
        assert!(cubic.per(0, 999, 1, 0) > WITHOUT_LOSS);
    }

    #[test]
    fn it_aims_one_round_trip_ahead() {
        let curve = Curve::new(0, 700, 1_000, 1);
        assert_eq!(curve.target(2_000, 500_000), curve.target(2_500, 0));
        assert!(curve.target(2_000, 500_000) > curve.target(2_000, 0));
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut cubic = Cubic::default();
        cubic.reduced(1_000);
        cubic.per(0, 700, 1, 0);
        let before = cubic.curve.as_ref().unwrap().target(3_000, 0);
        cubic.idled(10_000, 7_000);
        assert_eq!(cubic.curve.as_ref().unwrap().target(10_000, 0), before);
        // No more than there was.
        cubic.idled(11_000, u32::MAX);
        assert_eq!(cubic.curve.as_ref().unwrap().start, 11_000);
    }

    #[test]
    fn who_lost_below_the_last_loss_leaves_room() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.reduced(1_000), 700);
        assert_eq!(cubic.w_max, 1_000);
        cubic.reduced(900);
        assert_eq!(cubic.w_max, 900 * 1741 / 2048);
        cubic.reduced(800);
        assert_eq!(cubic.w_max, 800);
    }
}
