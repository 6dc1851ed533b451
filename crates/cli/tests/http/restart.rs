//! A proxy or a daemon that is replaced by another one while clients come.

use crate::harness::*;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// Clients that come one after the other until told to stop; each of their requests is answered.
struct Stream {
    /// Whether it is to end, and how many were answered.
    state: Arc<Mutex<(bool, usize)>>,
    thread: std::thread::JoinHandle<()>,
}

impl Stream {
    /// At a proxy.
    fn start(addr: SocketAddr) -> Stream {
        Stream::of(move || ask(Client::connect(addr), "/f", 30_000))
    }

    /// Past the proxy, at a daemon.
    fn at(socket: &Path) -> Stream {
        let socket = socket.to_owned();
        Stream::of(move || {
            let stream = UnixStream::connect(&socket).expect("nobody is refused");
            stream.set_read_timeout(Some(SOON)).unwrap();
            ask(Client::over(stream), "/f", 30_000);
        })
    }

    /// Where health is told.
    fn health(addr: SocketAddr) -> Stream {
        Stream::of(move || ask(Client::connect(addr), "/healthz", 3))
    }

    fn of(ask: impl Fn() + Send + 'static) -> Stream {
        let state = Arc::new(Mutex::new((false, 0)));
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            while !shared.lock().unwrap().0 {
                ask();
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

/// One request on a connection of its own, which is answered.
fn ask<S: Read + Write>(mut client: Client<S>, path: &str, length: usize) {
    client.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    let response = client.response("GET");
    assert_eq!((response.status, response.body.len(), response.short), (200, length, false));
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

/// The counters are asked for at one address all the time, and each program is well.
#[test]
fn the_counters_are_handed_over_too() {
    let pair = Pair::start("", "");
    pair.file("f", 30_000);
    let meet = format!("--takeover unix:{}", pair.dir.path().join("meet").display());
    let (mut proxy, addr) = start_proxy(pair.dir.path(), &format!("{meet} --metrics 127.0.0.1:0"));
    let metrics = metrics(&proxy);
    let streams = [Stream::start(addr), Stream::health(metrics)];
    let flags = format!("{meet} --metrics {metrics}");
    for _ in 0..3 {
        streams.iter().for_each(|stream| stream.more(20));
        until("it waits for a successor", || pair.dir.path().join("meet").exists());
        let next = start_again(&pair, addr, &flags);
        next.line("took over from the one that ran");
        assert_eq!(proxy.end(), Some(0));
        proxy = next;
    }
    streams.iter().for_each(|stream| stream.more(20));
    streams.into_iter().for_each(Stream::end);
    // Who wants them elsewhere, or not at all, does not get them, and nobody else keeps them.
    until("it waits for a successor", || pair.dir.path().join("meet").exists());
    let elsewhere = start_again(&pair, addr, &format!("{meet} --metrics 127.0.0.2:0"));
    assert_eq!(proxy.end(), Some(0));
    assert!(std::net::TcpStream::connect(metrics).is_err());
    ask(Client::connect(self::metrics(&elsewhere)), "/healthz", 3);
    ask(Client::connect(addr), "/f", 30_000);
}

/// Where a program says that its counters are.
fn metrics(program: &Running) -> SocketAddr {
    let line = program.line("metrics on http://");
    line.split("http://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap()
}

/// A daemon with a proxy in front of it, with clients that come to both, and one who looks after it.
#[test]
fn a_daemon_is_handed_over() {
    for (daemon, proxy) in [
        ("--cache 1M", ""),
        ("--direct", "--direct --trust-backend"),
        ("--transport kernel", "--transport kernel"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("files")).unwrap();
        std::fs::write(dir.path().join("files/f"), noise(30_000, 1)).unwrap();
        let (socket, meet) = (dir.path().join("s"), dir.path().join("meet"));
        let flags = format!("{daemon} --takeover unix:{} --metrics", meet.display());
        let mut daemon = start_daemon(dir.path(), &format!("{flags} 127.0.0.1:0"));
        let metrics = metrics(&daemon);
        let flags = format!("{flags} {metrics}");
        let (_proxy, addr) = start_proxy(dir.path(), proxy);
        let streams = [Stream::start(addr), Stream::at(&socket), Stream::health(metrics)];
        for _ in 0..3 {
            streams.iter().for_each(|stream| stream.more(20));
            until("it waits for a successor", || meet.exists());
            let next = start_daemon(dir.path(), &flags);
            next.line("took over from the one that ran");
            assert_eq!(daemon.end(), Some(0));
            daemon.line("a successor took over");
            assert!(!daemon.said("were cut"));
            daemon = next;
        }
        streams.iter().for_each(|stream| stream.more(20));
        streams.into_iter().for_each(Stream::end);
        // The file is the last one's, who removes it.
        assert!(socket.exists());
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.end(), Some(0));
        let left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["files"]);
    }
}

/// A successor that was given the sockets and cannot serve takes nothing along.
#[test]
fn a_daemon_outlives_a_successor_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/f"), noise(30_000, 1)).unwrap();
    let meet = dir.path().join("meet");
    let flags = format!("--takeover unix:{}", meet.display());
    let mut daemon = start_daemon(dir.path(), &flags);
    until("it waits for a successor", || meet.exists());
    let listen = format!("unix:{}", dir.path().join("s").display());
    let root = dir.path().join("nothing");
    let mut args = vec!["serve", "--root", root.to_str().unwrap(), "--listen", &listen];
    args.extend(flags.split(' '));
    let mut next = Running::start(&args);
    assert_eq!(next.end(), Some(1));
    daemon.line("did not get to serve");
    let upgraded = UnixStream::connect(dir.path().join("s")).expect("it is still there");
    ask(Client::over(upgraded), "/f", 30_000);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    assert!(!dir.path().join("s").exists());
}

/// What is no offer, or an offer of something else, is refused.
#[test]
fn who_is_at_the_meeting_place_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let meet = dir.path().join("meet");
    let meeting = UnixListener::bind(&meet).unwrap();
    let odd = thread(
        &meeting,
        vec![b"onecopy-takeover 1\n".to_vec(), b"onecopy-takeover 2 listen\n".to_vec(), vec![]],
    );
    for _ in 0..3 {
        let meet = format!("unix:{}", meet.display());
        let args = ["proxy", "--listen", "127.0.0.1:0", "--backend", "unix:@x", "--takeover", &meet];
        let mut next = Running::start(&args);
        assert_eq!(next.end(), Some(1));
        next.line("does not hand over its listener");
    }
    odd.join().unwrap();
}

/// Answers each who comes with one of these.
fn thread(meeting: &UnixListener, words: Vec<Vec<u8>>) -> std::thread::JoinHandle<()> {
    let meeting = meeting.try_clone().unwrap();
    std::thread::spawn(move || {
        for word in words {
            meeting.accept().unwrap().0.write_all(&word).unwrap();
        }
    })
}

/// Waits at `meet` for a successor, gives it `listener`, and returns the line to it once it serves.
fn predecessor(meeting: &UnixListener, listener: impl AsFd) -> UnixStream {
    loop {
        let (mut stream, _) = meeting.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let descriptors = [listener.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&descriptors));
        let offer = [IoSlice::new(b"onecopy-takeover 2 listen\n")];
        let offered = sendmsg(&stream, &offer, &mut beside, SendFlags::NOSIGNAL).is_ok();
        // (Who only looks whether somebody is there has left.)
        if offered && stream.read_exact(&mut [0; b"ready\n".len()]).is_ok() {
            return stream;
        }
    }
}

/// The predecessor hands over, and stays where the successor is to wait: that ends by an error. Those who were taken in, by each thread,
/// get all of their answers, and the log has them.
#[test]
fn who_was_taken_in_is_answered_and_logged_where_a_program_ends_by_an_error() {
    let pair = Pair::start("", "");
    let length = 64 << 20;
    std::fs::File::create(pair.path("f")).unwrap().set_len(length).unwrap();
    let path = |name: &str| pair.dir.path().join(name);
    let meeting = UnixListener::bind(path("meet")).unwrap();
    let meet = format!("unix:{}", path("meet").display());
    let ends =
        |name: &str, args: &[&str], listener: &dyn AsFd, connect: &dyn Fn() -> Client<Box<dyn Both>>| {
            let log = path(name);
            let operate = ["--takeover", &meet, "--access-log", log.to_str().unwrap()];
            let mut program = Running::start(&[args, &operate].concat());
            let before = predecessor(&meeting, listener);
            let mut clients = [connect(), connect()];
            for client in &mut clients {
                client.send("GET /f HTTP/1.1\r\nHost: x\r\n\r\n");
                assert_eq!(client.head().0, 200);
            }
            drop(before);
            program.line("took over from the one that ran");
            for client in &mut clients {
                assert_eq!(client.count() as u64, length, "{name}");
            }
            assert_eq!(program.end(), Some(1));
            program.line("another process listens there");
            let lines = std::fs::read_to_string(log).unwrap();
            assert_eq!(lines.matches(" whole ").count(), 2, "{lines}");
        };

    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, backend) = (tcp.local_addr().unwrap(), format!("unix:{}", path("s").display()));
    let listen = at.to_string();
    let args = ["proxy", "--listen", &listen, "--backend", &backend, "--threads", "2"];
    ends("proxy", &args, &tcp, &|| Client::over(Box::new(Client::connect(at).tcp)));

    let unix = UnixListener::bind(path("daemon")).unwrap();
    let (root, listen) = (path("files"), format!("unix:{}", path("daemon").display()));
    let args = ["serve", "--root", root.to_str().unwrap(), "--listen", &listen];
    ends("serve", &args, &unix, &|| {
        let stream = UnixStream::connect(path("daemon")).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Client::over(Box::new(stream))
    });
}

/// A connection of either kind.
trait Both: Read + Write {}
impl<S: Read + Write> Both for S {}

/// As systemd does it: the sockets are there before the program, and outlive it.
fn activated(args: &[&str], sockets: Vec<OwnedFd>) -> Running {
    let (mut script, mut sockets) =
        (format!("LISTEN_PID=$$ LISTEN_FDS={} exec \"$0\" \"$@\"", sockets.len()), sockets);
    let mut command = Command::new("sh");
    // Standard input and output are what a child can be given.
    let first = sockets.remove(0);
    script += " 3<&0 0</dev/null";
    if let Some(second) = sockets.pop() {
        script += " 4<&1 1>/dev/null";
        command.stdout(second);
    }
    command.args(["-c", &script, env!("CARGO_BIN_EXE_onecopy")]).args(args);
    Running::fed(&mut command, Stdio::from(first))
}

/// A proxy in front of the pair's daemon.
fn activated_proxy(pair: &Pair, listener: &TcpListener) -> Running {
    let backend = format!("unix:{}", pair.dir.path().join("s").display());
    let listen = listener.local_addr().unwrap().to_string();
    let args = ["proxy", "--listen", &listen, "--backend", &backend];
    activated(&args, vec![listener.try_clone().unwrap().into()])
}

#[test]
fn a_socket_of_systemds_outlives_the_program() {
    let pair = Pair::start("", "");
    pair.file("f", 30_000);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = Stream::start(listener.local_addr().unwrap());
    for _ in 0..3 {
        let mut proxy = activated_proxy(&pair, &listener);
        stream.more(20);
        proxy.signal(Signal::TERM);
        assert_eq!(proxy.end(), Some(0));
    }
    let _last = activated_proxy(&pair, &listener);
    stream.more(20);
    stream.end();
}

#[test]
fn a_daemon_of_systemds() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/f"), noise(30_000, 1)).unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let counters = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = counters.local_addr().unwrap().to_string();
    let (root, listen) = (dir.path().join("files"), format!("unix:{}", socket.display()));
    let args =
        ["serve", "--root", root.to_str().unwrap(), "--listen", &listen, "--metrics", &at, "--lend", "never"];
    let (_proxy, addr) = start_proxy(dir.path(), "--threads 1");
    let sockets = || vec![listener.try_clone().unwrap().into(), counters.try_clone().unwrap().into()];
    let streams = [Stream::at(&socket), Stream::health(counters.local_addr().unwrap())];
    for _ in 0..3 {
        let mut daemon = activated(&args, sockets());
        streams.iter().for_each(|stream| stream.more(20));
        // A client of the proxy gets shared memory, too.
        for _ in 0..3 {
            ask(Client::connect(addr), "/f", 30_000);
        }
        daemon.stats(|stats| stats["upgraded"].as_u64() == Some(1));
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.end(), Some(0));
        assert!(socket.exists(), "it is systemd's");
    }
    let _last = activated(&args, sockets());
    streams.iter().for_each(|stream| stream.more(20));
    streams.into_iter().for_each(Stream::end);
}

#[test]
fn what_systemd_has_is_what_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let failed = |args: &[&str], sockets: Vec<OwnedFd>, why: &str| {
        let mut program = activated(args, sockets);
        assert_eq!(program.end(), Some(1));
        program.line(why);
    };
    let other = listener();
    let proxy = ["proxy", "--listen", "127.0.0.1:1", "--backend", "unix:@x"];
    failed(&proxy, vec![other.into()], "and this program listens on 127.0.0.1:1: say --listen 127.0.0.1:");
    let one = listener();
    let at = one.local_addr().unwrap().to_string();
    let proxy = ["proxy", "--listen", &at, "--backend", "unix:@x"];
    failed(
        &proxy,
        vec![one.try_clone().unwrap().into(), one.try_clone().unwrap().into()],
        "systemd gave two sockets",
    );
    let no_listener = UnixStream::pair().unwrap();
    failed(&proxy, vec![no_listener.0.into()], "it takes Accept=no");
    let file = std::fs::File::create(dir.path().join("x")).unwrap();
    failed(&proxy, vec![file.into()], "it takes ListenStream=");
    let meet = format!("unix:{}", dir.path().join("meet").display());
    let both = [&proxy[..], &["--takeover", &meet]].concat();
    failed(&both, vec![one.into()], "leave out --takeover");
}

/// By systemd's own program, as far as that goes where systemd has not booted the machine.
#[test]
fn started_by_systemd_socket_activate() {
    if Command::new("systemd-socket-activate").arg("--version").output().is_err() {
        return println!("lacking: systemd-socket-activate (package systemd)");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/f"), noise(30_000, 1)).unwrap();
    let socket = dir.path().join("s");
    let (root, listen) = (dir.path().join("files"), format!("unix:{}", socket.display()));
    let mut command = Command::new("systemd-socket-activate");
    command.arg("--listen").arg(&socket).arg(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["serve", "--root", root.to_str().unwrap(), "--listen", &listen]);
    let mut daemon = Running::with_input(&mut command, Stdio::null());
    until("it listens", || socket.exists());
    // The program is started by the first who comes.
    ask(Client::over(UnixStream::connect(&socket).unwrap()), "/f", 30_000);
    daemon.line("onecopy serve:");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
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
