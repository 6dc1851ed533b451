//! How long to wait for an acknowledgement: RFC 6298's rules with Linux's bounds.

use onecopy_inet::tcp::rtt::Rtt;
use onecopy_inet::wire::Seq;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const START: Seq = Seq(u32::MAX - 3_000);

/// Samples, each of a window of data of its own. Those windows begin before the wrap, and go on where the last call left off.
fn sampled(rtt: &mut Rtt, una: &mut Seq, samples: impl IntoIterator<Item = u32>) {
    for (at, us) in samples.into_iter().enumerate() {
        *una = una.plus(1_000);
        take(rtt, at as u64 * 100 * MS, us, *una, una.plus(500));
    }
}

/// A round trip of what was sent first and last alike.
fn take(rtt: &mut Rtt, now: u64, us: u32, una: Seq, nxt: Seq) {
    rtt.sample_min(now, us);
    rtt.sample(us, una, nxt);
}

#[test]
fn before_a_sample_it_is_a_second() {
    let rtt = Rtt::new();
    assert_eq!(rtt.rto_ns(), 1_000 * MS);
    assert_eq!((rtt.srtt_us(), rtt.min_us(), rtt.rttvar_us()), (None, None, 0));
}

/// RFC 6298, section 2.2: SRTT = R, RTTVAR = R / 2, RTO = SRTT + 4 RTTVAR; but the second part is 200 ms at least.
#[test]
fn the_first_sample_makes_it_three_round_trips() {
    for (us, rto_us) in [(100_000, 300_000), (150_000, 450_000), (1_000, 201_000), (99, 200_099)] {
        let mut rtt = Rtt::new();
        take(&mut rtt, 0, us, Seq(0), Seq(1));
        assert_eq!(rtt.srtt_us(), Some(us));
        assert_eq!(rtt.rttvar_us(), us / 2);
        assert_eq!(rtt.rto_ns(), rto_us * 1_000, "{us} us");
        assert_eq!(rtt.min_us(), Some(us));
    }
}

/// RFC 6298, section 2.3, in floating point, where neither of Linux's differences shows: round trips get longer.
#[test]
fn rising_round_trips_follow_the_rfc() {
    let mut rtt = Rtt::new();
    let (mut srtt, mut rttvar) = (100_000.0, 50_000.0);
    let mut una = START;
    sampled(&mut rtt, &mut una, [100_000]);
    for sample in (0..40).map(|n| 120_000 + n * n * 500) {
        rttvar = 0.75 * rttvar + 0.25 * (srtt - f64::from(sample)).abs();
        srtt = 0.875 * srtt + 0.125 * f64::from(sample);
        una = una.plus(1_000);
        take(&mut rtt, 0, sample as u32, una, una);
        let near = |got: u32, want: f64| (f64::from(got) - want).abs() <= 20.0;
        assert!(near(rtt.srtt_us().unwrap(), srtt), "{rtt:?} {srtt}");
        assert!(near(rtt.rttvar_us(), rttvar), "{rtt:?} {rttvar}");
    }
}

/// On a steady path the RTO comes down to the round trip and the shortest RTO.
#[test]
fn a_steady_path_leaves_the_shortest_wait() {
    let (mut rtt, mut una) = (Rtt::new(), START);
    sampled(&mut rtt, &mut una, std::iter::repeat_n(400_000, 100));
    assert_eq!(rtt.srtt_us(), Some(400_000));
    assert_eq!(rtt.rto_ns() / MS, 600);
    // And to less where less is allowed.
    rtt.set_bounds(5_000, 120_000_000);
    sampled(&mut rtt, &mut una, std::iter::repeat_n(400_000, 100));
    assert!((405..408).contains(&(rtt.rto_ns() / MS)), "{rtt:?}");
}

/// A sudden drop of the round trip is no reason to wait longer.
#[test]
fn a_drop_moves_the_variation_little() {
    let (mut up, mut down) = (Rtt::new(), Rtt::new());
    sampled(&mut up, &mut START.clone(), std::iter::repeat_n(500_000, 50));
    sampled(&mut down, &mut START.clone(), std::iter::repeat_n(500_000, 50));
    let before = up.rttvar_us();
    take(&mut up, 0, 900_000, Seq(0), Seq(0));
    take(&mut down, 0, 100_000, Seq(0), Seq(0));
    assert!(up.rttvar_us() - before > 90_000, "{up:?}");
    assert!(down.rttvar_us() - before < 13_000, "{down:?}");
    assert!(down.rto_ns() < up.rto_ns());
}

/// Many samples of one window of data do not shrink it, as they would on a path with a long queue of packets.
#[test]
fn the_variation_shrinks_once_a_window() {
    let mut rtt = Rtt::new();
    take(&mut rtt, 0, 1_000_000, Seq(0), Seq(100_000));
    for una in 1..1_000 {
        take(&mut rtt, 0, 1_000_000, Seq(una), Seq(100_000 + una));
    }
    assert_eq!(rtt.rto_ns() / MS, 3_000);
    take(&mut rtt, 0, 1_000_000, Seq(100_001), Seq(200_000));
    assert_eq!(rtt.rto_ns() / MS, 3_000, "the largest of that window was the first");
    take(&mut rtt, 0, 1_000_000, Seq(200_001), Seq(300_000));
    assert_eq!(rtt.rto_ns() / MS, 1_000 + 2_000 - (2_000 - 200) / 4);
}

#[test]
fn the_shortest_is_of_the_last_five_minutes() {
    let mut rtt = Rtt::new();
    let second = 1_000 * MS;
    take(&mut rtt, 0, 10_000, Seq(0), Seq(0));
    for at in 1..=300 {
        take(&mut rtt, at * second, 20_000, Seq(0), Seq(0));
        assert_eq!(rtt.min_us(), Some(10_000), "after {at} s");
    }
    take(&mut rtt, 301 * second, 20_000, Seq(0), Seq(0));
    assert_eq!(rtt.min_us(), Some(20_000));
    rtt.sample_min(302 * second, 15_000);
    assert_eq!(rtt.min_us(), Some(15_000));
    let smoothed = rtt.srtt_us();
    rtt.sample_min(303 * second, 1);
    assert_eq!(rtt.srtt_us(), smoothed);
}

#[test]
fn an_absurd_round_trip_waits_no_longer_than_the_longest() {
    let mut rtt = Rtt::new();
    take(&mut rtt, 0, u32::MAX, Seq(0), Seq(1));
    assert_eq!(rtt.srtt_us(), Some(1 << 28));
    assert_eq!(rtt.rto_ns(), rtt.rto_max_ns());
}

proptest! {
    /// Whatever is measured, the RTO is within its bounds, and above the smoothed round trip where that is.
    #[test]
    fn the_wait_is_within_its_bounds(
        bounds in prop::option::of((1u32..10_000_000, 1u32..400_000_000)),
        samples in prop::collection::vec((prop_oneof![any::<u32>(), 0u32..1_000_000], any::<u32>(), any::<u32>(), any::<u64>()), 0..100),
    ) {
        let mut rtt = Rtt::new();
        let (min, max) = bounds.map_or((200_000, 120_000_000), |(min, max)| (min, max.max(min)));
        if bounds.is_some() {
            rtt.set_bounds(min, max);
        }
        let mut least = u32::MAX;
        for (us, una, nxt, now) in samples {
            take(&mut rtt, now, us, Seq(una), Seq(nxt));
            least = least.min(us.clamp(1, 1 << 28));
            let rto_us = rtt.rto_ns() / 1_000;
            prop_assert!((u64::from(min)..=u64::from(max)).contains(&rto_us), "{rtt:?}");
            let srtt = rtt.srtt_us().unwrap();
            prop_assert!(rto_us >= u64::from(srtt.min(max)), "{rtt:?}");
            prop_assert!(rtt.min_us().unwrap() >= least);
            prop_assert!(rtt.rto_max_ns() == u64::from(max) * 1_000);
        }
    }
}
