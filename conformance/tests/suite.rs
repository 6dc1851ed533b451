//! One test per case and implementation, so that a name filters them as usual.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Failed, Trial};
use onecopy_conformance::run::{self, Limits, Seen, Verdict};
use onecopy_conformance::skips::{Elsewhere, Skips};
use onecopy_conformance::{cases, impls};

fn main() {
    let mut args = Arguments::from_args();
    // Most of a case's time is spent asleep.
    let cpus = std::thread::available_parallelism().map_or(2, |n| n.get());
    args.test_threads.get_or_insert(cpus * 2);
    let exe = Path::new(env!("CARGO_BIN_EXE_onecopy-conformance"));
    let limits = Limits::default();
    let skips = Arc::new(Skips::read().expect("conformance/skips.toml"));
    // The oracle's answer, asked for once a case, whichever test comes first.
    let oracle: Arc<HashMap<&str, OnceLock<Seen>>> =
        Arc::new(cases::all().iter().map(|c| (c.name, OnceLock::new())).collect());
    let elsewhere = Elsewhere::read().expect("conformance/elsewhere.toml");
    let is_right = |file, problems: Vec<String>| {
        Trial::test(file, move || match problems {
            none if none.is_empty() => Ok(()),
            some => Err(Failed::from(some.join("\n"))),
        })
    };
    let mut tests =
        vec![is_right("skips.toml", skips.problems()), is_right("elsewhere.toml", elsewhere.problems())];
    for case in cases::all() {
        for imp in impls::of(case.kind) {
            let (skips, oracle) = (skips.clone(), oracle.clone());
            tests.push(Trial::test(format!("{}::{}", case.name, imp.name()), move || {
                let kernel = impls::of(case.kind)[0];
                let expected =
                    oracle[case.name].get_or_init(|| run::apart(exe, case, kernel, limits, &skips));
                let seen = match imp.name() == kernel.name() {
                    true => expected.clone(),
                    false => run::apart(exe, case, *imp, limits, &skips),
                };
                match run::judge(case, *imp, &seen, expected, &skips) {
                    Verdict::Wrong(why) => Err(Failed::from(why)),
                    Verdict::NotTried(tool) => {
                        println!("{} not tried: {tool}", case.name);
                        Ok(())
                    }
                    Verdict::Right | Verdict::Skipped(_) => Ok(()),
                }
            }));
        }
    }
    libtest_mimic::run(&args, tests).exit();
}
