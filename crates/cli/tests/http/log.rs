//! The access log, and what the programs say of themselves.

use crate::harness::*;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The lines of a log, once there are so many.
fn lines(path: &Path, count: usize) -> Vec<String> {
    let read = || std::fs::read_to_string(path).unwrap_or_default();
    until("lines of the log", || read().matches('\n').count() >= count);
    read().lines().map(str::to_owned).collect()
}

fn logged(format: &str) -> (Pair, std::path::PathBuf, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap().keep();
    let (front, back) = (dir.join("front"), dir.join("back"));
    let flags = |log: &Path| format!("--access-log {} --access-log-format {format}", log.display());
    (Pair::start(&flags(&back), &flags(&front)), front, back)
}

#[test]
fn a_line_for_each_request() {
    let (pair, front, back) = logged("combined");
    pair.file("a", 1000);
    assert_eq!(pair.get("/a?x=1", "User-Agent: me\r\nReferer: there\r\n").status, 200);
    lines(&front, 1); // threads of the proxy log each on its own
    assert_eq!(pair.get("/none", "").status, 404);
    lines(&front, 2);
    assert_eq!(pair.status("BLA \"\x1b\\\r\n\r\n"), 400);
    let said = lines(&front, 3);
    let parts: Vec<Vec<&str>> = said.iter().map(|line| line.split('"').collect()).collect();
    assert!(parts[0][0].starts_with("127.0.0.1 - - ["), "{said:?}");
    assert_eq!((parts[0][1], parts[0][2]), ("GET /a?x=1 HTTP/1.1", " 200 1000 "));
    assert_eq!((parts[0][3], parts[0][5]), ("there", "me"));
    assert!(parts[0][6].contains(" whole user=0 kernel="), "{said:?}");
    assert_eq!((parts[1][1], &parts[1][2][..5]), ("GET /none HTTP/1.1", " 404 "));
    assert_eq!((parts[2][1], &parts[2][2][..5]), ("BLA \\x22\\x1B\\x5C", " 400 "));
    assert!(lines(&back, 2)[0].contains("\"GET /a?x=1 HTTP/1.1\" 200 "));
    std::fs::remove_dir_all(front.parent().unwrap()).unwrap();
}

/// Every way says itself, and what it copied is what the counters have.
#[test]
fn json_has_the_way_and_its_copies() {
    let dir = tempfile::tempdir().unwrap();
    for (n, (daemon, proxy)) in WAYS.iter().enumerate() {
        let log = dir.path().join(n.to_string());
        let flags = format!("{proxy} --access-log {} --access-log-format json", log.display());
        let pair = Pair::start(daemon, &flags);
        let length = pair.file("f", 300_000).len() as u64;
        assert_eq!(pair.get("/f", "").body.len() as u64, length);
        let line: Value = serde_json::from_str(&lines(&log, 1)[0]).unwrap();
        let counted = pair.proxy.stats(|stats| stats["requests"] == 1);
        assert_eq!((&line["status"], &line["bytes"]), (&200.into(), &length.into()), "{line}");
        for name in ["user_copied", "kernel_copied", "referenced"] {
            assert_eq!(line[name], counted[name], "{daemon} {proxy}: {line}");
        }
        let way = match (counted["lent"].as_u64(), counted["referenced"].as_u64()) {
            (Some(1), _) => "lent",
            (_, Some(1..)) => "referenced",
            _ => "copied",
        };
        assert_eq!((&line["way"], &line["whole"]), (&way.into(), &true.into()), "{line}");
    }
}

#[test]
fn a_log_that_was_moved_away_is_opened_again() {
    let (mut pair, front, back) = logged("combined");
    for (program, log, two) in [(&pair.proxy, &front, "/second"), (&pair.daemon, &back, "/fourth")] {
        pair.get("/one", "");
        lines(log, 1);
        let old = log.with_extension("1");
        std::fs::rename(log, &old).unwrap();
        program.signal(Signal::HUP);
        program.line("opened the access log");
        pair.get(two, "");
        // (The line of a request before may come behind its answer, and so in here, too.)
        until("it is in the new one", || std::fs::read_to_string(log).is_ok_and(|text| text.contains(two)));
        assert!(!std::fs::read_to_string(&old).unwrap().contains(two));
    }
    // Where it cannot be, the old one goes on.
    std::fs::remove_file(&front).unwrap();
    std::fs::create_dir(&front).unwrap();
    pair.proxy.signal(Signal::HUP);
    pair.proxy.line("goes on with the access log that it has");
    assert_eq!(pair.get("/three", "").status, 404);
    pair.proxy.signal(Signal::TERM);
    assert_eq!(pair.proxy.end(), Some(0));
    std::fs::remove_dir_all(front.parent().unwrap()).unwrap();
}

#[test]
fn what_cannot_be_opened_is_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Running::start(&[
        "proxy",
        "--listen",
        "127.0.0.1:0",
        "--backend",
        "unix:@nobody",
        "--access-log",
        dir.path().to_str().unwrap(),
    ]);
    assert_eq!(program.end(), Some(1));
    program.line("cannot be opened");
}

#[test]
fn levels_and_times() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    // Left out, lines are plain: others look for their beginnings.
    let plain = start_daemon(dir.path(), "");
    assert!(plain.line("onecopy serve:").starts_with("onecopy serve: "));
    drop(plain);
    let start = |flags: &str| start_proxy(dir.path(), flags);
    let (loud, addr) = start("--log-level debug");
    let line = loud.line("onecopy proxy: http");
    assert!(line.starts_with("20") && line.contains("Z  INFO onecopy proxy: "), "{line}");
    assert!(loud.line("nobody can be reached").contains(" WARN "));
    let mut client = Client::connect(addr);
    assert_eq!(client.get("/x").status, 502);
    assert!(loud.line("a client came from 127.0.0.1").contains(" DEBUG "));

    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["serve", "--root", "/", "--listen", "unix:@x"]).env("ONECOPY_LOG", "loud");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("may be error, warn, info or debug"));
}
