//! One test per lie and role.

use std::path::Path;

use libtest_mimic::{Arguments, Failed, Trial};
use onecopy_conformance::hostile;
use onecopy_conformance::run::{self, Limits, Seen};

fn main() {
    let mut args = Arguments::from_args();
    // Most of a lie's time is spent waiting for the victim to give up.
    let cpus = std::thread::available_parallelism().map_or(2, |n| n.get());
    args.test_threads.get_or_insert(cpus * 2);
    let exe = Path::new(env!("CARGO_BIN_EXE_onecopy-conformance"));
    let limits = Limits::default();
    let tests = hostile::all()
        .into_iter()
        .flat_map(|misbehaviour| misbehaviour.roles.iter().map(move |role| (misbehaviour, *role)))
        .map(|(misbehaviour, role)| {
            let who = role.name();
            let trial = Trial::test(format!("{}::by_{who}", misbehaviour.name), move || {
                match run::process(exe, &["misbehaviour", misbehaviour.name, who], limits) {
                    Seen::Value(_) => Ok(()),
                    // What a machine lacks is found out before: no lie that was not told has passed.
                    Seen::Lacking(why) | Seen::NotOffered(why) | Seen::Broken(why) => {
                        Err(Failed::from(format!("{}: {why}", misbehaviour.what)))
                    }
                }
            });
            (misbehaviour, trial)
        })
        .map(|(misbehaviour, trial)| match hostile::lacking(misbehaviour, hostile::huge_memfd) {
            // The reason stands beside the name.
            Some(why) => trial.with_kind(why).with_ignored_flag(true),
            None => trial,
        })
        .collect();
    libtest_mimic::run(&args, tests).exit();
}
