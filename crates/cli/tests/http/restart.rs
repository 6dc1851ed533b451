//! A proxy that is replaced by another one while clients come.

use crate::harness::*;
use rustix::process::Signal;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// Clients that come one after the other until told to stop; each of their requests is answered.
struct Stream {
    /// Whether it is to end, and how many were answered.
    state: Arc<Mutex<(bool, usize)>>,
    thread: std::thread::JoinHandle<()>,
}

impl Stream {
    fn start(addr: SocketAddr) -> Stream {
        let state = Arc::new(Mutex::new((false, 0)));
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            while !shared.lock().unwrap().0 {
                let mut client = Client::connect(addr);
                client.send("GET /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                let response = client.response("GET");
                assert_eq!((response.status, response.body.len(), response.short), (200, 30_000, false));
                shared.lock().unwrap().1 += 1;
            }
        });
        Stream { state, thread }
    }

    /// Waits until so many more were answered.
    fn more(&self, n: usize) {
        let answered = || self.state.lock().unwrap().1;
        let now = answered();
        until("more are answered", || {
            assert!(!self.thread.is_finished(), "a request failed");
            answered() >= now + n
        });
    }

    fn end(self) {
        self.state.lock().unwrap().0 = true;
        self.thread.join().expect("no request failed");
    }
}

/// A client that has just come, and whose request is on its way when the proxy is asked to stop, is answered.
#[test]
fn who_was_accepted_is_answered() {
    let mut pair = Pair::start("", "--log-level debug");
    pair.file("f", 30_000);
    let mut client = pair.client();
    pair.proxy.line("a client came");
    pair.proxy.signal(Signal::TERM);
    until("no new client is taken", || std::net::TcpStream::connect(pair.addr).is_err());
    let response = client.get("/f");
    assert_eq!((response.status, response.field("Connection")), (200, Some("close")));
    assert_eq!(pair.proxy.end(), Some(0));
}

/// By hand from one to the next, five times, with clients all the time.
#[test]
fn a_listener_is_handed_over() {
    let pair = Pair::start("", "");
    pair.file("f", 30_000);
    let meet = format!("--takeover unix:{}", pair.dir.path().join("meet").display());
    let (mut proxy, addr) = start_proxy(pair.dir.path(), &meet);
    let streams = [Stream::start(addr), Stream::start(addr)];
    for _ in 0..5 {
        streams.iter().for_each(|stream| stream.more(20));
        until("it waits for a successor", || pair.dir.path().join("meet").exists());
        let next = start_again(&pair, addr, &meet);
        next.line("took over from the one that ran");
        assert_eq!(proxy.end(), Some(0));
        proxy.line("a successor took over");
        proxy = next;
    }
    streams.iter().for_each(|stream| stream.more(20));
    for stream in streams {
        stream.end();
    }
    until("it waits for a successor", || pair.dir.path().join("meet").exists());
    // One that asks for another address does not get it, and the old one serves on.
    let args = ["proxy", "--listen", "127.0.0.2:1", "--backend", "unix:@x"];
    let mut wrong = Running::start(&[&args[..], &meet.split(' ').collect::<Vec<_>>()].concat());
    assert_eq!(wrong.end(), Some(1));
    wrong.line(&format!("say --listen {addr}"));
    proxy.line("did not get to serve");
    assert_eq!(Client::connect(addr).get("/f").status, 200);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.end(), Some(0));
    assert!(!pair.dir.path().join("meet").exists());
}

fn start_again(pair: &Pair, addr: SocketAddr, flags: &str) -> Running {
    let (listen, backend) = (addr.to_string(), format!("unix:{}", pair.dir.path().join("s").display()));
    let args = ["proxy", "--listen", &listen, "--backend", &backend];
    Running::start(&[&args[..], &flags.split(' ').collect::<Vec<_>>()].concat())
}

/// As systemd does it: the socket is there before the program, and outlives it.
fn activated(pair: &Pair, listener: &TcpListener) -> Running {
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 0</dev/null";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_onecopy"), "proxy", "--listen"]);
    command.arg(listener.local_addr().unwrap().to_string()).arg("--backend");
    command.arg(format!("unix:{}", pair.dir.path().join("s").display()));
    Running::with_input(&mut command, Stdio::from(OwnedFd::from(listener.try_clone().unwrap())))
}

#[test]
fn a_socket_of_systemds_outlives_the_program() {
    let pair = Pair::start("", "");
    pair.file("f", 30_000);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = Stream::start(listener.local_addr().unwrap());
    for _ in 0..3 {
        let mut proxy = activated(&pair, &listener);
        stream.more(20);
        proxy.signal(Signal::TERM);
        assert_eq!(proxy.end(), Some(0));
    }
    let _last = activated(&pair, &listener);
    stream.more(20);
    stream.end();
}

/// curl(1) in a loop over a restart.
#[test]
fn curl_sees_no_restart() {
    if Command::new("curl").arg("--version").output().is_err() {
        return println!("lacking: curl, so no program of others' looks at a restart");
    }
    let pair = Pair::start("", "");
    pair.file("f", 30_000);
    let meet = format!("--takeover unix:{}", pair.dir.path().join("meet").display());
    let (mut proxy, addr) = start_proxy(pair.dir.path(), &meet);
    let script = format!(
        "i=0; while [ $i -lt 60 ]; do curl -fsS -o /dev/null http://{addr}/f || exit 1; i=$((i+1)); done"
    );
    let mut curls = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    until("it waits for a successor", || pair.dir.path().join("meet").exists());
    let _next = start_again(&pair, addr, &meet);
    assert_eq!(proxy.end(), Some(0));
    assert!(curls.wait().unwrap().success());
}
