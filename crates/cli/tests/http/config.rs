//! Flags from a file, and what SIGHUP changes of them.

use crate::harness::*;
use rustix::process::Signal;
use std::process::Command;

fn refused(program: &str, text: &str, flags: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    let output = command.args([program, "--config", path.to_str().unwrap()]).args(flags).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_is_no_flag_is_told_with_its_line() {
    for (program, text, says) in [
        (
            "proxy",
            "# a\nlisten = \"127.0.0.1:0\"\nidle_timout = \"1s\"\n",
            "line 3: \"idle_timout\" is no flag of `onecopy proxy`; a flag near it is \"idle-timeout\"",
        ),
        (
            "serve",
            "qqq = 1",
            "line 1: \"qqq\" is no flag of `onecopy serve`: `onecopy serve --help` lists them",
        ),
        ("serve", "config = \"x\"", "is no flag"),
        ("serve", "root = \"/\"\nlisten = \"unix:@x\"\nstats = 1", "line 3: stats is true or false"),
        ("serve", "root = \"/\"\nlisten = [1]", "line 2: listen takes a text in quotes"),
        ("serve", "addr = [\"10.0.0.2/24\", true]", "line 1: addr takes a list of texts in quotes"),
        ("serve", "root = \"/\"\nlisten = \"unix:@x\"\naddr = [\"10.0.0.2/24\", \"x\"]", "c.toml line 3:"),
        (
            "serve",
            "root = \"/\"\nlisten = \"unix:@x\"\naddr = [\"10.0.0.2/24\", \"fd00::2/64\"]",
            "add --tap NAME",
        ),
        ("serve", "root = \"/\"\nroot = \"/\"", "line 2: duplicate key"),
        ("serve", "root = \"/", "line 1: "),
        ("serve", "root = \"/\"\nlisten = \"unix:@x\"\n\ncache = \"much\"", "c.toml line 4:"),
        ("serve", "[root]\nx = 1", "line 1: root takes"),
        ("serve", "listen = \"unix:@x\"", "--root"),
    ] {
        let said = refused(program, text, &[]);
        assert!(said.contains(says), "{text}: {said}");
    }
    let said = refused("serve", "cache = \"1G\"", &["--cache", "much"]);
    assert!(!said.contains("line 1"), "the command line's own fault: {said}");
}

#[test]
fn a_file_is_as_good_as_flags_and_a_flag_wins() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/f"), "text").unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let config = format!(
        "root = \"{}\"\nlisten = \"unix:{}\"\nstats = true\ndirect = false\nmax-connections = 7\n",
        path("files"),
        path("wrong")
    );
    std::fs::write(path("c.toml"), config).unwrap();
    let listen = format!("unix:{}", path("s"));
    let daemon = Running::start(&["serve", "--config", &path("c.toml"), "--listen", &listen]);
    assert!(daemon.line("onecopy serve:").ends_with(&path("s")));
    let (_proxy, addr) = start_proxy(dir.path(), "");
    assert_eq!(Client::connect(addr).get("/f").body, b"text");
}

#[test]
fn a_hang_up_changes_what_can_change() {
    let pair = Pair::start("", "");
    let path = pair.dir.path().join("c.toml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write("idle-timeout = \"60m\"\nqueue = 9\n");
    let (mut proxy, addr) = start_proxy(pair.dir.path(), &format!("--grace 9s --config {}", path.display()));
    let mut kept = Client::connect(addr);
    assert_eq!(kept.get("/none").status, 404);

    write("idle-timeout = \"60m\"\nqueu = 9\n");
    proxy.signal(Signal::HUP);
    assert!(proxy.line("goes on with the settings that it has").contains("line 2: \"queu\""));
    write("idle-timeout = \"soon\"\n");
    proxy.signal(Signal::HUP);
    proxy.line("line 1: invalid value 'soon'");

    // The command line has a grace of its own.
    write(
        "idle-timeout = \"20ms\"\nhead-timeout = \"9m\"\nqueue = 8\ngrace = \"1s\"\nlog-level = \"warn\"\n",
    );
    proxy.signal(Signal::HUP);
    assert!(proxy.line("takes effect with a restart").ends_with(": queue"));
    assert!(!proxy.said("changed by --config"), "it says warnings alone by now");
    // Who comes now is let go soon, although nobody asked for anything.
    assert!(Client::connect(addr).ended());
    assert_eq!(kept.get("/none").status, 404);
    assert!(kept.ended());

    write("log-level = \"info\"\nqueue = 8\n");
    proxy.signal(Signal::HUP);
    proxy.line("changed by --config: head-timeout, idle-timeout, log-level");
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.end(), Some(0));

    // And a daemon.
    let listen = format!("unix:{}", pair.dir.path().join("t").display());
    let root = pair.dir.path().join("files");
    let args =
        ["serve", "--listen", &listen, "--root", root.to_str().unwrap(), "--config", path.to_str().unwrap()];
    write("");
    let daemon = Running::start(&args);
    daemon.line("onecopy serve:");
    write("idle-timeout = \"20ms\"\n");
    daemon.signal(Signal::HUP);
    daemon.line("changed by --config: idle-timeout");
    let stream = std::os::unix::net::UnixStream::connect(pair.dir.path().join("t")).unwrap();
    assert!(Client::over(stream).ended());
}
