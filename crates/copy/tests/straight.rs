//! What goes to its kernel without a plan gets what the plan says.

use onecopy_copy::profile::{Crossover, Kernels, Profile};
use onecopy_copy::{Hint, Policy, Reader, Store, copy, install, plan};

#[test]
fn every_length_gets_the_stores_of_its_plan() {
    let source: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
    let mut place = vec![0; source.len()];
    let names = Profile::current().kernels;
    let rows = |min_len: Option<u32>| {
        min_len
            .map(|_| Crossover { reader: "other-core".into(), footprint: 1 << 20, min_len })
            .into_iter()
            .collect()
    };
    // Where none streams, where short ones do, and where a kernel for long ones comes first.
    for (min_len, long_from) in
        [(None, 16 << 10), (Some(1000), 16 << 10), (Some(8192), 2000), (Some(300), 257)]
    {
        let kernels = Kernels { long_from, ..names.clone() };
        install(&Profile { kernels, crossovers: rows(min_len), ..Profile::current() });
        let mut streamed = 0;
        for policy in [Policy::Auto, Policy::Cached, Policy::NonTemporal] {
            for footprint in [0, 64 << 10, 8 << 20] {
                let hint = Hint { policy, footprint, reader: Reader::OtherCore };
                for len in
                    (0..source.len()).step_by(37).chain([256, 257, 299, 300, 999, 1000, 1999, 2000, 8192])
                {
                    place.fill(0);
                    let store = copy(&mut place[..len], &source[..len], hint);
                    assert_eq!(store, plan(len, hint), "{len} {hint:?} {min_len:?} {long_from}");
                    assert!(place[..len] == source[..len] && place[len..].iter().all(|byte| *byte == 0));
                    streamed += usize::from(policy == Policy::Auto && store == Store::NonTemporal);
                }
            }
        }
        let can = onecopy_copy::Kernel::by_name(&names.stream).unwrap().streams();
        assert_eq!(streamed > 0, can && min_len.is_some());
    }
}
