//! Being asked to stop.

use crate::harness::*;
use rustix::process::Signal;
use std::io::Read;
use std::net::TcpStream;

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
