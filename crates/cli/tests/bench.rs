//! `onecopy bench` as a person meets it: what is asked for in vain, and what a killed run leaves behind.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn onecopy(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onecopy")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Each at once, before anything is measured.
#[test]
fn what_is_not_there_is_named_with_what_is() {
    for (args, what) in [
        (&["bench", "unix-bluk"][..], "there is no row unix-bluk; there are copy, hot-set, unix-bulk"),
        (&["bench", "ping-pong", "--case", "65/spin"], "no case has \"65/spin\" in its name; there are"),
        (&["bench", "pool", "--engine", "magic"], "there is no engine \"magic\"; there are atomic_inc, auto"),
    ] {
        let out = onecopy(args);
        assert_eq!(out.status.code(), Some(2), "{out:?}");
        let told = String::from_utf8(out.stderr).unwrap();
        assert!(told.contains(what) && told.contains("--help") && out.stdout.is_empty(), "{told}");
        assert!(told.contains("Usage: onecopy bench"), "the usage is that of the command: {told}");
    }
    for args in [
        ["bench", "pool", "--report", "/proc/no/report.html"],
        ["bench", "pool", "--record", "/proc/no"],
        ["demo", "--quick", "--report", "/proc/no/report.html"],
    ] {
        let out = onecopy(&args);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        let told = String::from_utf8(out.stderr).unwrap();
        assert!(told.contains("/proc/no") && told.lines().count() == 1 && out.stdout.is_empty(), "{told}");
    }
}

/// A process and its descendants.
fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().flat_map(|child| family(child.parse().unwrap())));
    }
    all
}

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended; who adopted it will see to it.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A long run of the row `http`, once its servers are there: nginx with its workers, or daemon and proxy. With all of its
/// processes.
fn long_run(temp: &Path, engine: &str, server: &str) -> (Child, Vec<u32>) {
    let args = ["bench", "http", "--case", "mem/1M/plain", "--rounds", "1000", "--json", "--engine", engine];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_onecopy"))
        .args(args)
        .env("TMPDIR", temp)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut all = Vec::new();
    until("servers run", || {
        all = family(bench.id());
        let named = |pid: &&u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == server)
        };
        assert!(bench.try_wait().unwrap().is_none(), "the bench ended");
        all[1..].iter().filter(named).count() >= 2
    });
    (bench, all)
}

fn nginx_is_there() -> bool {
    let there = ["/usr/sbin/nginx", "/usr/bin/nginx"].iter().any(|path| Path::new(path).exists());
    if !there {
        println!("lacking: nginx");
    }
    there
}

#[test]
fn a_killed_bench_takes_its_servers_with_it() {
    for (engine, server) in [("nginx", "nginx"), ("auto", "onecopy")] {
        if engine == "nginx" && !nginx_is_there() {
            continue;
        }
        let temp = tempfile::tempdir().unwrap();
        let (mut bench, all) = long_run(temp.path(), engine, server);
        bench.kill().unwrap();
        bench.wait().unwrap();
        until("the servers end", || !all.iter().any(|pid| runs(*pid)));
    }
}

/// Ctrl-C, and what a service manager sends: the files go, too.
#[test]
fn a_bench_that_is_told_to_stop_leaves_nothing() {
    for (engine, server, signal, code) in
        [("nginx", "nginx", Signal::INT, 130), ("auto", "onecopy", Signal::TERM, 143)]
    {
        if engine == "nginx" && !nginx_is_there() {
            continue;
        }
        let temp = tempfile::tempdir().unwrap();
        let (mut bench, all) = long_run(temp.path(), engine, server);
        kill_process(Pid::from_child(&bench), signal).unwrap();
        assert_eq!(bench.wait().unwrap().code(), Some(code));
        until("the servers end", || !all.iter().any(|pid| runs(*pid)));
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "files stay behind");
    }
}
