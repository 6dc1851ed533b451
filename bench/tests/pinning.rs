//! Rows whose work the bench's own thread does leave it, and what starts from it, the CPUs that it had: the next row's servers
//! begin there.

use onecopy_bench::proc::Launcher;
use onecopy_bench::row::Scale;
use onecopy_bench::runner::Choice;
use onecopy_bench::{Options, run};
use onecopy_testing::alone;

/// Rows that work on this thread, and short cases of theirs.
const ROWS: [(&str, &str); 8] = [
    ("copy", "64/hot"),
    ("hot-set", "512K"),
    ("pool", "0"),
    ("pool", "cross"),
    ("zc", "1200"),
    ("zc", "small/1K"),
    ("tcp", "packet/idle"),
    ("auto", "reference-or-copy/tcp/64K"),
];

/// The CPUs that what this thread starts may use.
fn cpus_of_a_child() -> String {
    let status = std::process::Command::new("cat").arg("/proc/self/status").output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.expect("Cpus_allowed_list (proc_pid_status(5))").trim().to_owned()
}

#[test]
fn the_next_row_has_all_cpus() {
    alone!();
    let before = cpus_of_a_child();
    if before.bytes().all(|b| b.is_ascii_digit()) {
        println!("lacking: a second CPU");
    }
    for (row, case) in ROWS {
        let options = Options {
            rows: vec![row.to_owned()],
            scale: Scale::Smoke,
            choice: Choice { rounds: 1, cases: vec![case.to_owned()], ..Choice::default() },
            json: true,
            report: None,
            record: None,
            launcher: Launcher { program: env!("CARGO_BIN_EXE_onecopy-bench-worker").into(), args: vec![] },
        };
        let results = run(&options).unwrap();
        assert!(!results[0].cases.is_empty(), "{row} {case}");
        assert_eq!(cpus_of_a_child(), before, "after {row} {case}");
    }
}
