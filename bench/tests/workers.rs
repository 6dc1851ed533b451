//! What a run says of what it does not have, and workers that fail. (That each row runs is `cargo xtask test bench`.)

use onecopy_bench::proc::Launcher;
use onecopy_bench::row::Scale;
use onecopy_bench::runner::Choice;
use onecopy_bench::{Options, run};

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
