//! A measurement for a moment: it ends, its profile survives the file, and the engine obeys it. No time is asserted.

use onecopy_copy::calibrate::{Options, measure};
use onecopy_copy::profile::{Crossover, Profile};
use onecopy_copy::{Hint, Kernel, Policy, Reader, Store, copy, install, plan, status};
use std::time::Duration;

#[test]
fn a_measured_profile_is_saved_read_and_obeyed() {
    let limit = Duration::from_secs(600); // none, on a machine that others load
    let options = Options { max_footprint: 1 << 20, stretch: Duration::from_micros(20), rounds: 1, limit };
    let mut steps = Vec::new();
    let measured = measure(&options, &mut |step| steps.push((step.done, step.total))).unwrap();
    let total = steps.len();
    assert!(steps.iter().enumerate().all(|(i, step)| *step == (i, total)), "{steps:?}");
    assert!(!measured.profile.steps.is_empty());
    assert!(measured.points.iter().any(|point| point.reader == Reader::NoCpu && point.footprint == 1 << 20));
    // (Who reads on another core may be kept from it here.)
    let known = |seconds: Option<f64>| seconds.is_some_and(|seconds| seconds > 0.0);
    let alone = measured.points.iter().filter(|point| point.reader != Reader::OtherCore);
    assert!(
        alone.clone().count() > 0 && alone.clone().all(|point| known(point.cached) && known(point.stream))
    );

    let folder = std::env::temp_dir().join(format!("onecopy-calibrate-{}", std::process::id()));
    let path = folder.join("deeper/tune.toml");
    measured.profile.save(&path).unwrap();
    assert_eq!(Profile::load(&path).unwrap(), measured.profile);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a part file stayed behind");
    std::fs::remove_dir_all(folder).unwrap();

    // What the engine does is what the profile says, whatever was measured in so short a time.
    let row = |reader: &str, footprint, min_len| Crossover { reader: reader.to_owned(), footprint, min_len };
    let profile = Profile {
        crossovers: vec![
            row("other-core", 1 << 20, Some(64 << 10)),
            row("other-core", 4 << 20, None),
            row("no-cpu", 1 << 20, Some(4 << 10)),
        ],
        ..measured.profile
    };
    install(&profile);
    assert_eq!(status().stream, profile.kernels.stream);
    let auto = |reader, footprint, len| plan(len, Hint { policy: Policy::Auto, footprint, reader });
    let streaming = match Kernel::by_name(&profile.kernels.stream).unwrap().streams() {
        true => Store::NonTemporal,
        false => Store::Cached,
    };
    assert_eq!(auto(Reader::OtherCore, 1 << 20, 64 << 10), streaming);
    assert_eq!(auto(Reader::OtherCore, 1 << 20, 63 << 10), Store::Cached);
    assert_eq!(auto(Reader::OtherCore, 1 << 19, 64 << 10), Store::Cached);
    assert_eq!(auto(Reader::OtherCore, 3 << 20, 64 << 10), streaming, "an entry holds up to the next one");
    assert_eq!(auto(Reader::OtherCore, 1 << 30, 64 << 10), Store::Cached);
    assert_eq!(auto(Reader::NoCpu, usize::MAX, 4 << 10), streaming);
    assert_eq!(auto(Reader::SameCore, usize::MAX, 1 << 20), Store::Cached, "not listed: cached");
    let mut dst = vec![0; 64 << 10];
    let hint = Hint { policy: Policy::Auto, footprint: 1 << 20, reader: Reader::NoCpu };
    assert_eq!(copy(&mut dst, &vec![9; 64 << 10], hint), streaming);
    assert!(dst.iter().all(|&byte| byte == 9));
}
