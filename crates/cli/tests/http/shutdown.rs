//! Being asked to stop.

use crate::harness::*;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

const LARGE: usize = 64 << 20;

fn in_flight(flags: &str) -> (Pair, Client) {
    let pair = Pair::start(flags, flags);
    std::fs::File::create(pair.path("large")).unwrap().set_len(LARGE as u64).unwrap();
    let mut client = pair.client();
    client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    client.tcp.read_exact(&mut [0; 10]).unwrap();
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

/// Who asks twice does not wait for those in flight.
#[test]
fn a_second_signal_ends_at_once() {
    for (of_daemon, signal, code) in [(false, Signal::INT, 130), (true, Signal::TERM, 143)] {
        let (mut pair, _client) = in_flight("--grace 10m");
        let program = if of_daemon { &mut pair.daemon } else { &mut pair.proxy };
        program.signal(signal);
        until("it ends", || {
            program.signal(signal);
            std::thread::sleep(std::time::Duration::from_millis(20));
            program.child.try_wait().unwrap().is_some()
        });
        assert_eq!(program.end(), Some(code));
        assert!(!of_daemon || !pair.dir.path().join("s").exists());
    }
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
        return eprintln!("skipped: SIGHUP is ignored here (nohup), and so it is by what is started");
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
