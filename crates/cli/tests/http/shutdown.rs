//! Being asked to stop.

use crate::harness::*;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

const LARGE: usize = 64 << 20;

fn in_flight(flags: &str) -> (Pair, Client) {
    let (pair, mut client) = in_flight_over(flags, flags);
    client.tcp.read_exact(&mut [0; 10]).unwrap();
    (pair, client)
}

/// A large answer has begun to come, and none of it was received.
fn in_flight_over(daemon: &str, proxy: &str) -> (Pair, Client) {
    let pair = Pair::start(daemon, proxy);
    std::fs::File::create(pair.path("large")).unwrap().set_len(LARGE as u64).unwrap();
    let mut client = pair.client();
    client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    client.tcp.peek(&mut [0; 1]).unwrap();
    (pair, client)
}

#[test]
fn the_proxy_finishes_what_is_in_flight() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut pair, mut client) = in_flight("");
        let mut idle = pair.client();
        assert_eq!(idle.get("/none").status, 404);
        pair.proxy.signal(signal);
        assert!(idle.ended(), "an idle client is let go at once");
        until("no new client is taken", || TcpStream::connect(pair.addr).is_err());
        let rest = client.rest();
        assert!(rest.len() + 10 > LARGE, "{}", rest.len());
        assert_eq!(pair.proxy.end(), Some(0));
        pair.proxy.line("copies per byte");
    }
}

#[test]
fn the_daemon_finishes_what_is_in_flight() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut pair, mut client) = in_flight("");
        pair.daemon.signal(signal);
        until("the socket file is gone", || !pair.dir.path().join("s").exists());
        let mut left = LARGE - 10;
        let mut buf = vec![0; 1 << 20];
        while left > 0 {
            let got = client.tcp.read(&mut buf).unwrap();
            assert!(got > 0, "{left} bytes are missing");
            left = left.saturating_sub(got);
        }
        assert_eq!(pair.daemon.end(), Some(0));
    }
}

#[test]
fn but_not_for_ever() {
    let (mut pair, _client) = in_flight("--grace 300ms");
    pair.proxy.signal(Signal::TERM);
    assert_eq!(pair.proxy.end(), Some(0));
    pair.proxy.line("were cut");
    let (mut pair, _client) = in_flight("--grace 300ms");
    pair.daemon.signal(Signal::TERM);
    assert_eq!(pair.daemon.end(), Some(0));
    pair.daemon.line("were cut");
}

/// A person who presses Ctrl-C again, not at once, does not want to wait for those in flight.
#[test]
fn a_later_ctrl_c_ends_at_once() {
    for (of_daemon, first) in [(false, Signal::INT), (true, Signal::TERM)] {
        let (mut pair, _client) = in_flight("--grace 10m");
        let program = if of_daemon { &mut pair.daemon } else { &mut pair.proxy };
        program.signal(first);
        until("it ends", || {
            program.signal(Signal::INT);
            std::thread::sleep(std::time::Duration::from_millis(20));
            program.child.try_wait().unwrap().is_some()
        });
        assert_eq!(program.end(), Some(130));
        program.line("SIGINT again: what was in flight is cut");
        assert!(!of_daemon || !pair.dir.path().join("s").exists());
    }
}

/// Lines of the log gather: those of answers that are whole are written before it ends so.
#[test]
fn a_later_ctrl_c_loses_no_line_of_the_log() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let (mut pair, mut whole) =
        in_flight_over("", &format!("--grace 10m --access-log {}", log.path().display()));
    let mut cut = pair.client();
    cut.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    cut.tcp.peek(&mut [0; 1]).unwrap();
    pair.proxy.signal(Signal::INT);
    // What comes sooner is the same wish.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(whole.rest().len() > LARGE);
    pair.proxy.signal(Signal::INT);
    assert_eq!(pair.proxy.end(), Some(130));
    let text = std::fs::read_to_string(log.path()).unwrap();
    assert!(text.lines().count() == 1 && text.contains(" whole "), "{text:?}");
}

/// A wrapper passes on what its group got, a service manager loses patience: neither cuts an answer, though each signal
/// interrupts whatever call the program waits in.
#[test]
fn a_second_sigterm_cuts_nothing() {
    for of_daemon in [false, true] {
        // (In pieces, through the daemon's own hands.)
        let (mut pair, mut client) = in_flight_over("--lend never --grace 10m", "--grace 10m");
        let program = if of_daemon { &mut pair.daemon } else { &mut pair.proxy };
        program.signal(Signal::TERM);
        program.signal(Signal::TERM);
        until("it has heard it twice", || {
            program.signal(Signal::TERM);
            program.said("SIGTERM again: still finishing")
        });
        let pid = rustix::process::Pid::from_child(&program.child);
        let (came, done) = std::sync::mpsc::channel();
        let again = std::thread::spawn(move || {
            while done.recv_timeout(std::time::Duration::from_micros(50)).is_err() {
                rustix::process::kill_process(pid, Signal::TERM).unwrap();
            }
        });
        let (status, head) = client.head();
        assert!(status == 200 && head.contains(&format!("Content-Length: {LARGE}\r\n")), "{head}");
        assert_eq!(client.some(LARGE).len(), LARGE);
        came.send(()).unwrap();
        again.join().unwrap();
        drop(client);
        let program = if of_daemon { &mut pair.daemon } else { &mut pair.proxy };
        assert_eq!(program.end(), Some(0));
        assert_eq!(program.count("again"), 1, "it is said once");
        assert!(!program.said("were cut"));
    }
}

/// Its file was removed and another daemon listens there by now: that one keeps its file.
#[test]
fn a_leaving_daemon_leaves_its_successor_alone() {
    for flags in ["", "--direct", "--transport kernel --direct"] {
        let mut pair = Pair::start(flags, "");
        let (path, direct) = (pair.dir.path().join("s"), pair.dir.path().join("s.direct"));
        std::fs::remove_file(&path).unwrap();
        if direct.exists() {
            std::fs::remove_file(&direct).unwrap();
        }
        let mut next = start_daemon(pair.dir.path(), flags);
        pair.daemon.signal(Signal::TERM);
        assert_eq!(pair.daemon.end(), Some(0));
        pair.file("a", 5);
        assert_eq!(pair.get("/a", "").body.len(), 5);
        for path in [&path, &direct] {
            assert!(UnixStream::connect(path).is_ok() || flags.is_empty() && path == &direct, "{flags}");
        }
        next.signal(Signal::TERM);
        assert_eq!(next.end(), Some(0));
        assert!(!path.exists() && !direct.exists(), "each removes its own");
    }
}

/// Two that start at once over what a killed one left behind: one gets the place, and the other is told so.
#[test]
fn one_of_two_daemons_gets_the_place() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap());
        let listen = format!("unix:{}", dir.path().join("s").display());
        let start = || Running::start(&["serve", "--root", "/proc", "--listen", &listen]);
        let both = [start(), start()];
        until("one ends", || both.iter().any(|one| one.said("another process listens there")));
        until("the other serves", || both.iter().any(|one| one.said("onecopy serve:")));
        UnixStream::connect(dir.path().join("s")).unwrap();
        let left = both.iter().position(|one| one.said("onecopy serve:")).unwrap();
        assert!(!both[left].said("another process"));
        both[left].signal(Signal::TERM);
        until("its file is gone", || !dir.path().join("s").exists());
    }
}

/// Neither has to be started first; but who starts the proxy alone hears what it lacks.
#[test]
fn a_backend_that_is_not_there_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/a"), "hello").unwrap();
    let listen = format!("unix:{}", dir.path().join("s").display());
    let told = |proxy: &Running, why: &str| {
        let line = proxy.line("nobody can be reached at");
        assert!(line.contains(why) && line.contains("clients get 502"), "{line}");
        assert!(line.contains(&format!("start `onecopy serve --root DIR --listen {listen}`")), "{line}");
    };
    let (proxy, addr) = start_proxy(dir.path(), "");
    told(&proxy, "No such file");
    assert_eq!(Client::connect(addr).get("/a").status, 502);
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap());
    let (other, _) = start_proxy(dir.path(), "");
    told(&other, "Connection refused");
    let unheard = format!("unix:@onecopy-none-{}", std::process::id());
    let third = Running::start(&["proxy", "--listen", "127.0.0.1:0", "--backend", &unheard]);
    assert!(third.line("nobody can be reached at").contains(&unheard));

    let daemon = start_daemon(dir.path(), "");
    assert_eq!(Client::connect(addr).get("/a").body, b"hello");
    let (proxy, _) = start_proxy(dir.path(), "");
    proxy.stats(|stats| stats["requests"] == 0); // by then it would have said it
    assert!(!proxy.said("nobody"));
    let stats = daemon.stats(|stats| stats["requests"] == 1);
    assert_eq!(stats["connections"], 1, "to look is not to connect");
    // An abstract name, too, is found.
    let listen = format!("unix:@onecopy-some-{}", std::process::id());
    let daemon = Running::start(&["serve", "--root", "/proc", "--listen", &listen]);
    daemon.line("onecopy serve:");
    let proxy = Running::start(&["proxy", "--listen", "127.0.0.1:0", "--backend", &listen]);
    proxy.line("onecopy proxy: http");
    proxy.stats(|stats| stats["requests"] == 0);
    assert!(!proxy.said("nobody"));
}

#[test]
fn sockets_in_the_way() {
    let mut pair = Pair::start("", "");
    pair.daemon.signal(Signal::KILL);
    pair.daemon.end();
    assert!(pair.dir.path().join("s").exists());
    pair.daemon = start_daemon(pair.dir.path(), ""); // over the file that the killed one left behind
    let listen = format!("unix:{}", pair.dir.path().join("s").display());
    let root = pair.path("");
    let mut second = Running::start(&["serve", "--root", root.to_str().unwrap(), "--listen", &listen]);
    assert_eq!(second.end(), Some(1));
    second.line("another process listens there");
    pair.file("plain", 5);
    let listen = format!("unix:{}", pair.path("plain").display());
    let mut third = Running::start(&["serve", "--root", root.to_str().unwrap(), "--listen", &listen]);
    assert_eq!(third.end(), Some(1));
    third.line("not a socket");
    assert_eq!(std::fs::read(pair.path("plain")).unwrap().len(), 5);
    let mut proxy = Running::start(&["proxy", "--listen", &pair.addr.to_string(), "--backend", "unix:@x"]);
    assert_eq!(proxy.end(), Some(1));
    proxy.line("cannot listen on");
}

/// Its terminal is gone: as with SIGTERM. (With TLS the proxy reads its certificate instead.)
#[test]
fn a_hang_up_is_a_reason_to_stop() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    if u64::from_str_radix(ignored, 16).unwrap() & 1 == 1 {
        return println!("lacking: SIGHUP, which is ignored here (nohup), and so it is by what is started");
    }
    let mut pair = Pair::start("", "");
    for program in [&mut pair.proxy, &mut pair.daemon] {
        program.signal(Signal::HUP);
        assert_eq!(program.end(), Some(0));
        program.line("SIGHUP; 0 requests");
    }
    assert!(!pair.dir.path().join("s").exists());
}

/// Started by nohup(1): it stays.
#[test]
fn but_not_where_it_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut command = Command::new("sh");
    let script = "trap '' HUP && exec \"$0\" serve --root / --listen \"unix:$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_onecopy")]).arg(&path);
    let (daemon, _) = unheard(&mut command, "onecopy serve: ");
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::HUP).unwrap();
    ends_well(daemon);
    assert!(!path.exists());
}

/// A program of which nobody reads what it says any more, once that has begun with `first`.
fn unheard(command: &mut Command, first: &str) -> (Child, String) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with(first), "{line}");
    (child, line)
}

fn ends_well(mut child: Child) {
    let pid = rustix::process::Pid::from_child(&child);
    for signal in [Signal::USR1, Signal::TERM] {
        rustix::process::kill_process(pid, signal).unwrap();
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The pipe to its log breaks: it works on, and ends as it should.
#[test]
fn who_reads_its_lines_may_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s").display().to_string();
    let backend = format!("unix:{path}");
    let onecopy = || Command::new(env!("CARGO_BIN_EXE_onecopy"));
    let args = ["proxy", "--listen", "127.0.0.1:0", "--threads", "1", "--backend", &backend];
    let (proxy, line) = unheard(onecopy().args(args), "onecopy proxy: ");
    let addr = line.split_once("http://").unwrap().1.split(' ').next().unwrap();
    let get = || {
        let mut client = TcpStream::connect(addr).unwrap();
        client.write_all(b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    // What it says of each of these, nobody hears.
    assert_eq!([get(), get()], ["502", "502"]);
    let args = ["serve", "--root", "/proc", "--listen", &backend];
    let (daemon, _) = unheard(onecopy().args(args), "onecopy serve: ");
    assert_eq!([get(), get()], ["404", "404"]);
    UnixStream::connect(&path).unwrap();
    ends_well(daemon);
    assert!(!std::path::Path::new(&path).exists());
    ends_well(proxy);
}
