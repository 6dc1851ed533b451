//! `onecopy ss` and `onecopy top`, looking at a daemon and a proxy at work.

use crate::harness::*;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

fn onecopy(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_onecopy")).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// The sockets of these processes.
fn sockets(pids: &[u32]) -> Vec<Value> {
    let output = onecopy(&["ss", "--json"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let all = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|socket| pids.iter().any(|pid| socket["pid"] == *pid)).collect()
}

#[test]
fn what_was_sent_is_what_is_shown() {
    let mut pair = Pair::start("--cache 64M", "");
    let content = pair.file("a", 1_000_000);
    let mut client = pair.client();
    for _ in 0..3 {
        assert!(client.get("/a").body == content);
    }
    let (daemon, proxy) = (pair.daemon.child.id(), pair.proxy.child.id());
    let path = pair.dir.path().join("s").display().to_string();
    let shown = sockets(&[daemon, proxy]);
    let one = |pid: u32, state: &str| {
        let found: Vec<_> = shown.iter().filter(|s| s["pid"] == pid && s["state"] == state).collect();
        assert_eq!(found.len(), 1, "{shown:#?}");
        found[0].clone()
    };
    let listening = one(daemon, "listening");
    assert_eq!(
        (&listening["type"], &listening["path"], &listening["command"]),
        (&"stream".into(), &path.clone().into(), &"onecopy".into())
    );
    let (server, client) = (one(daemon, "connected"), one(proxy, "connected"));
    assert_eq!((&server["peer_pid"], &client["peer_pid"]), (&proxy.into(), &daemon.into()));
    assert_eq!((&server["peer_inode"], &client["peer_inode"]), (&client["inode"], &server["inode"]));
    for end in [&server, &client] {
        assert_eq!(end["path"], path, "{end:#}");
        assert_eq!((&end["receive"], &end["send"]), (&"shared memory".into(), &"shared memory".into()));
        assert_eq!((&end["type"], &end["queue"]), (&"stream".into(), &0.into()));
        assert_eq!((&end["policy"], &end["counters"]["protocol_errors"]), (&"auto".into(), &0.into()));
    }
    assert_eq!((&server["reader"], &client["nonblocking"]), (&"other-core".into(), &true.into()));
    assert_eq!(server["send_capacity"], client["receive_capacity"]);
    let count = |end: &Value, name: &str| end["counters"][name].as_u64().unwrap();
    assert_eq!(count(&server, "sent"), count(&client, "received"));
    assert_eq!(count(&client, "sent"), count(&server, "received"));
    // Three bodies, and heads.
    assert!((3_000_000..3_003_000).contains(&count(&server, "sent")), "{server:#}");
    assert!(count(&server, "user_copied_in") >= 2_000_000 && count(&client, "kernel_copied") >= 3_000_000);
    // For a person: the same, in a table.
    let table = String::from_utf8(onecopy(&["ss"]).stdout).unwrap();
    assert!(table.starts_with("type") && table.contains(&format!("{daemon} onecopy")), "{table}");
    assert!(table.contains("stream listening") && table.contains(&path), "{table}");

    for program in [&mut pair.proxy, &mut pair.daemon] {
        program.signal(Signal::TERM);
        assert_eq!(program.end(), Some(0));
    }
    assert_eq!(sockets(&[daemon, proxy]), Vec::<Value>::new());
}

#[test]
fn what_waits_is_the_queue() {
    let pair = Pair::start("", "");
    std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
    let mut client = pair.client();
    client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().0, 200);
    let proxy = pair.proxy.child.id();
    let daemon = pair.daemon.child.id();
    until("a client that does not read fills the proxy's ring", || {
        let shown = sockets(&[daemon, proxy]);
        let end = |pid: u32| shown.iter().find(|s| s["pid"] == pid && s["state"] == "connected").cloned();
        let (Some(server), Some(end)) = (end(daemon), end(proxy)) else { return false };
        let stalls = server["counters"]["fillers"].as_u64().unwrap();
        end["queue"].as_u64().unwrap() > end["receive_capacity"].as_u64().unwrap() / 4 && stalls > 0
    });
}

#[test]
fn plain_peers_and_killed_processes() {
    let mut pair = Pair::start("", "--transport kernel");
    pair.file("a", 5);
    let mut client = pair.client();
    assert_eq!(client.get("/a").status, 200);
    let daemon = pair.daemon.child.id();
    let shown = sockets(&[daemon]);
    let end = shown.iter().find(|s| s["state"] == "connected").unwrap();
    assert_eq!((&end["send"], &end["counters"]["fallbacks"]), (&"kernel".into(), &1.into()));
    assert_eq!(end["peer_pid"], pair.proxy.child.id());
    pair.daemon.signal(Signal::KILL);
    pair.daemon.end();
    assert!(sockets(&[daemon]).is_empty());
}

#[test]
fn what_only_looks_like_a_table_is_passed_over() {
    let make = |bytes: &[u8]| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("onecopy-stats", flags).unwrap();
        rustix::io::write(&memfd, bytes).unwrap();
        memfd
    };
    let _fakes: Vec<OwnedFd> = vec![make(b""), make(b"ONECOPYS garbage"), make(&noise(100_000, 7))];
    let _pair = Pair::start("", "");
    let output = onecopy(&["ss", "--json", "--verbose"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let mine = format!("passed over: a table of process {}: the memfd lacks seals", std::process::id());
    assert_eq!(said.matches(&mine).count(), 3, "{said}");
    let listening = String::from_utf8(output.stdout).unwrap();
    assert!(listening.contains("\"listening\""), "{listening}");
    // Not a word about it unless asked.
    assert!(onecopy(&["ss"]).stderr.is_empty());
}

#[test]
fn top_without_a_terminal_prints_once() {
    let pair = Pair::start("", "");
    let output = onecopy(&["top", "--interval", "100ms"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(&format!("{} onecopy", pair.daemon.child.id())), "{table}");
    let output =
        Command::new(env!("CARGO_BIN_EXE_onecopy")).args(["top", "--interval", "1ms"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("50ms or more"));
}

/// On a terminal of its own: entered, drawn, and given back, whichever way it ends.
#[test]
#[ignore = "has hung once on a busy machine, for a reason that is not known yet; run it with --ignored"]
fn top_gives_the_terminal_back() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let pair = Pair::start("", "");
    for how in ["q", "\u{3}", "TERM"] {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).and_then(|()| unlockpt(&master)).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let size = rustix::termios::Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let slave = || {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
            rustix::termios::tcsetwinsize(&slave, size).unwrap();
            slave
        };
        let before = rustix::termios::tcgetattr(&master).unwrap().local_modes;
        let mut child = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(["top", "--interval", "100ms"])
            .env("TERM", "xterm")
            .stdin(slave())
            .stdout(slave())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut master = std::fs::File::from(master);
        let mut seen = String::new();
        let mut read_until = |master: &mut std::fs::File, what: &str| {
            let mut bytes = [0; 4096];
            while !seen.contains(what) {
                match master.read(&mut bytes) {
                    Ok(n) if n > 0 => seen += &String::from_utf8_lossy(&bytes[..n]),
                    other => panic!("{other:?} after {seen:?}"),
                }
            }
        };
        read_until(&mut master, "\x1b[?1049h");
        read_until(&mut master, &format!("{} onecopy", pair.daemon.child.id()));
        match how {
            "TERM" => {
                rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap()
            }
            key => master.write_all(key.as_bytes()).unwrap(),
        }
        read_until(&mut master, "\x1b[?1049l");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{how:?}");
        assert_eq!(rustix::termios::tcgetattr(&master).unwrap().local_modes, before, "{how:?}");
    }
}
