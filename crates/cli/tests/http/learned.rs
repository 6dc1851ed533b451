//! What is learned about stores: what is told of it at the end, where it is kept, and that what says otherwise means it.

use crate::harness::*;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// A file that is larger than the ring, and how often it is asked for: more than the first comparison takes.
const LENGTH: usize = 16 << 20;
const TIMES: u64 = 8;

fn start(dir: &Path, flags: &str, variables: &[(&str, &str)]) -> Running {
    let start = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(args).envs(variables.iter().copied());
        Running::with_input(&mut command, Stdio::null())
    };
    start_daemon_by(start, dir, flags)
}

/// A daemon with these flags and variables that has sent the file so often from memory, with its counters; and that has ended.
fn sent(flags: &str, variables: &[(&str, &str)]) -> (Running, Value) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/f"), noise(LENGTH, 1)).unwrap();
    let mut daemon = start(dir.path(), &format!("--cache 64M --buffer 8M {flags}"), variables);
    let (_proxy, addr) = start_proxy(dir.path(), "--threads 1 --buffer 8M");
    let mut client = Client::connect(addr);
    for _ in 0..TIMES {
        assert_eq!(client.get("/f").body.len(), LENGTH);
    }
    let counted = daemon.stats(|stats| stats["requests"] == TIMES);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    daemon.line("copies per byte");
    (daemon, counted)
}

#[test]
fn what_was_learned_is_told_and_saved() {
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("folder/tune.toml");
    let place = profile.to_str().unwrap();
    let (daemon, _) = sent("--lend never --save-profile", &[("ONECOPY_TUNE", place)]);
    let told = daemon.line("onecopy serve: stores: ");
    assert!(told.contains("(reader ") && told.contains(", 1 connection)"), "{told}");
    // Where others disturbed each comparison there is nothing to be saved, and it says so.
    if told.contains("as planned") {
        daemon.line("--save-profile: nothing was measured");
        assert!(!profile.exists());
        return;
    }
    daemon.line(&format!("saved one thing that was learned in {place}"));
    let mut shown = Running::start(&["tune", "--show", "--output", place]);
    assert_eq!(shown.end(), Some(0));
    // The next one begins with it.
    let (next, _) = sent("--lend never", &[("ONECOPY_TUNE", place)]);
    next.line("onecopy serve: stores: ");
}

#[test]
fn without_a_place_to_save_it_nothing_begins() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["serve", "--listen", "unix:@x", "--save-profile", "--root"]).arg(dir.path());
    let mut daemon = Running::with_input(command.env("ONECOPY_TUNE", "off"), Stdio::null());
    assert_eq!(daemon.end(), Some(1));
    daemon.line("unset it, or leave out --save-profile");
    let mut nc = Running::start(&["nc", "--save-profile", "127.0.0.1:1"]);
    assert_eq!(nc.end(), Some(2));
    nc.line("add --unix PATH");
}

#[test]
fn nc_tells_what_it_learned_or_that_it_did_not() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (dir.path().join("s"), dir.path().join("f"));
    std::fs::write(&file, noise(1 << 20, 1)).unwrap();
    let (socket, file) = (socket.to_str().unwrap(), file.to_str().unwrap());
    let mut receiver = Running::start(&["nc", "-l", "--unix", socket, "--recv", "/dev/null"]);
    until("it listens", || Path::new(socket).exists());
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["nc", "--unix", socket, "--send", file, "--sum", "--save-profile"]);
    let place = dir.path().join("tune.toml");
    let mut sender = Running::with_input(command.env("ONECOPY_TUNE", &place), Stdio::null());
    assert_eq!((sender.end(), receiver.end()), (Some(0), Some(0)));
    // A single MiB is no comparison, whatever the ring.
    sender.line("onecopy nc: --save-profile: nothing was measured");
    assert!(!place.exists());
}

/// `--policy` decides alone.
#[test]
fn a_policy_leaves_nothing_to_learn() {
    for (policy, streams) in [("nt", true), ("cached", false)] {
        let (daemon, counted) = sent(&format!("--lend never --policy {policy}"), &[]);
        assert!(!daemon.said("stores: "), "{policy}");
        let count = |name: &str| counted[name].as_u64().unwrap();
        assert!(count("user_copied") > LENGTH as u64 * (TIMES - 1));
        let all = count("user_copied_nt") > count("user_copied") / 10 * 9;
        assert_eq!((all, count("user_copied_nt") > 0), (streams, streams), "{policy}: {counted:#}");
    }
}

/// `ONECOPY_COPY` names what runs, and what has no other stores does not get them.
#[test]
fn a_kernel_that_is_named_leaves_nothing_to_learn() {
    let (daemon, counted) = sent("--lend never", &[("ONECOPY_COPY", "generic")]);
    assert!(!daemon.said("stores: "));
    assert_eq!(counted["user_copied_nt"], 0, "{counted:#}");
    let (_, counted) = sent("--lend never --policy nt", &[("ONECOPY_COPY", "generic")]);
    assert_eq!(counted["user_copied_nt"], 0, "{counted:#}");
}

/// `--lend` decides what is copied at all.
#[test]
fn lending_is_as_it_was_asked_for() {
    for (lend, lent) in [("never", 0), ("memory", TIMES), ("auto", TIMES)] {
        let (daemon, counted) = sent(&format!("--lend {lend}"), &[]);
        assert_eq!(counted["lent"], lent, "{counted:#}");
        let copied = counted["user_copied"].as_u64() > Some(LENGTH as u64);
        assert_eq!(copied, lent == 0, "{counted:#}");
        assert!(lent == 0 || !daemon.said("stores: "), "nothing was copied");
    }
}
