//! Every row runs for a moment: opened, verified and run once, with no time asserted.

use onecopy_bench::proc::Launcher;
use onecopy_bench::row::Scale;
use onecopy_bench::runner::{Choice, RowResult};
use onecopy_bench::{Options, rows, run};

fn options(row: &str) -> Options {
    Options {
        rows: vec![row.to_owned()],
        scale: Scale::Smoke,
        choice: Choice { rounds: 1, ..Choice::default() },
        json: false,
        report: None,
        record: None,
        launcher: Launcher { program: env!("CARGO_BIN_EXE_onecopy-bench-worker").into(), args: vec![] },
    }
}

/// Rivals that need not be there, or that this user may not start.
const OPTIONAL: &[&str] = &["nginx", "nginx-log", "kernel-512"];

/// What a reason says where a rival, a right or a device is missing, which is no fault of the row. (The last one: memory of devices is
/// nothing for the kernel's TCP through io_uring.)
const MISSING: &[&str] = &[
    "is not built",
    "needs root",
    "there is no ip (iproute2)",
    "a TAP needs",
    "the kernel carries its bytes",
];

#[test]
#[ignore = "`cargo xtask test bench` runs it, optimised: unoptimised it is a quarter of all that the tests cost"]
fn every_row_runs() {
    for row in rows::ROWS {
        let results: Vec<RowResult> = match run(&options(row.name)) {
            // All of its engines want what is not here.
            Err(error) if MISSING.iter().any(|missing| error.to_string().contains(missing)) => {
                eprintln!("skipped {}: {error}", row.name);
                continue;
            }
            results => results.unwrap(),
        };
        let cases = &results[0].cases;
        assert_eq!(cases.len(), (row.cases)(Scale::Smoke).len(), "{}: {:?}", row.name, results[0].notes);
        for (case, engine) in cases.iter().flat_map(|case| case.engines.iter().map(move |e| (case, e))) {
            let at = format!("{} {} {}", row.name, case.case, engine.engine);
            match &engine.reason {
                Some(reason) => assert!(
                    OPTIONAL.contains(&engine.engine)
                        || MISSING.iter().any(|missing| reason.contains(missing)),
                    "{at}: {reason}"
                ),
                None => assert!(!engine.figures.is_empty(), "{at}: no figures"),
            }
        }
    }
}

#[test]
fn an_unknown_row_names_the_known_ones() {
    let error = run(&options("unix-bluk")).unwrap_err().to_string();
    assert!(error.contains("no row unix-bluk") && error.contains("unix-bulk"), "{error}");
}

#[test]
fn a_worker_that_fails_says_why() {
    let launcher = options("").launcher;
    let life = std::time::Duration::from_secs(60);
    let mut worker = launcher.start("no/such", &serde_json::json!({}), None, life).unwrap();
    let error = worker.figures().unwrap_err().to_string();
    assert!(error.contains("no worker role no/such"), "{error}");
}

#[test]
fn a_worker_that_is_killed_or_hangs_is_reported_and_reaped() {
    let (long, short) = (std::time::Duration::from_secs(60), std::time::Duration::from_millis(300));
    let shell = |script: &str| Launcher { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()] };
    let start = |script, life| shell(script).start("victim", &serde_json::json!({}), None, life).unwrap();
    let error = start("kill -SEGV $$", long).figures().unwrap_err().to_string();
    assert!(error.contains("died of signal 11"), "{error}");
    let mut hanging = start("exec sleep 60", short);
    let pid = hanging.pid();
    let error = hanging.figures().unwrap_err().to_string();
    assert!(error.contains("its time was over"), "{error}");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "the worker was not reaped");
}
