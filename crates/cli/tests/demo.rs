//! The demo, from start to end and stopped in the middle: nothing stays behind.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn demo(temp: &Path, more: &[&str]) -> Command {
    let root = temp.join("root");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    for (name, length) in [("a.bin", 300_000), ("sub/b.bin", 50_000), ("empty", 0)] {
        std::fs::write(root.join(name), vec![7; length]).unwrap();
    }
    std::fs::create_dir_all(temp.join("tmp")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["demo", "--root"]).arg(&root).arg("--report").arg(temp.join("out.html")).args(more);
    command
        .env("TMPDIR", temp.join("tmp"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processes that have `text` in their command line.
fn processes(text: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|e| {
        std::fs::read(e.path().join("cmdline")).is_ok_and(|c| String::from_utf8_lossy(&c).contains(text))
    })
    .count()
}

fn nothing_stays(temp: &Path) {
    let tmp = temp.join("tmp");
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0, "files stay behind");
    until("the servers end", || processes(tmp.to_str().unwrap()) == 0);
}

#[test]
fn from_start_to_end() {
    let temp = tempfile::tempdir().unwrap();
    let out = demo(temp.path(), &["--quick", "--rounds", "1", "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let lines: Vec<serde_json::Value> =
        String::from_utf8(out.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let value = |case: &str, engine: &str, metric: &str| {
        let line = lines.iter().find(|l| l["case"] == case && l["engine"] == engine && l["metric"] == metric);
        line.unwrap_or_else(|| panic!("no {metric} of {engine} in {case}: {said}"))["median"]
            .as_f64()
            .unwrap()
    };
    for engine in ["kernel", "kernel-splice", "cached", "nt", "auto"] {
        for metric in ["rate", "cpu", "p50", "p99"] {
            assert!(value("mem", engine, metric) > 0.0);
        }
        assert!(value("hot-set/512K", engine, "hot set") > 0.0);
    }
    assert_eq!(value("file", "auto", "user copies"), 0.0);
    assert!(value("file", "kernel", "kernel copies") > 3.9);
    let html = std::fs::read_to_string(temp.path().join("out.html")).unwrap();
    assert!(html.contains("<svg") && !html.contains("src="), "one file, with everything in it");
    nothing_stays(temp.path());
}

fn wait(child: &mut Child) -> Option<i32> {
    until("the demo ends", || child.try_wait().unwrap().is_some());
    child.wait().unwrap().code()
}

#[test]
fn stopped_in_the_middle() {
    use rustix::process::Signal;
    let mut signals = vec![(Signal::INT, 130), (Signal::TERM, 143)];
    // Not where these tests run under nohup(1): what they start ignores it, too.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    if u64::from_str_radix(ignored, 16).unwrap() & 1 == 0 {
        signals.push((Signal::HUP, 129));
    }
    for (signal, code) in signals {
        let temp = tempfile::tempdir().unwrap();
        let tmp = temp.path().join("tmp");
        let mut child = demo(temp.path(), &[]).spawn().unwrap();
        until("servers run", || processes(&format!("{}/ocbench-run", tmp.display())) >= 2);
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        assert_eq!(wait(&mut child), Some(code));
        nothing_stays(temp.path());
    }
}

#[test]
fn a_folder_without_files() {
    let temp = tempfile::tempdir().unwrap();
    let mut command = demo(temp.path(), &["--quick"]);
    std::fs::remove_dir_all(temp.path().join("root")).unwrap();
    let out = command.output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("not a folder"));
    std::fs::create_dir(temp.path().join("root")).unwrap();
    let out = command.output().unwrap();
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no file to serve"));
}
