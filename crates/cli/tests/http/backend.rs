//! Backends that are away, silent, killed, or that make no sense.

use crate::harness::*;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

#[test]
fn away_and_back() {
    for transport in ["", "--transport kernel"] {
        let mut pair = Pair::start(transport, transport);
        pair.file("a", 5);
        let mut client = pair.client();
        assert_eq!(client.get("/a").status, 200);
        pair.daemon.signal(Signal::TERM);
        assert_eq!(pair.daemon.end(), Some(0));
        // The client's connection is kept through it all.
        assert_eq!(client.get("/a").status, 502);
        pair.daemon = start_daemon(pair.dir.path(), transport);
        assert_eq!(client.get("/a").status, 200);
        // Killed and restarted between two requests: the kept backend connection is dead, the request is not.
        pair.daemon.signal(Signal::KILL);
        pair.daemon.end();
        pair.daemon = start_daemon(pair.dir.path(), transport);
        assert_eq!(client.get("/a").status, 200);
    }
}

#[test]
fn killed_in_the_middle_of_a_body() {
    for (daemon, proxy) in WAYS {
        let mut pair = Pair::start(daemon, proxy);
        std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
        let mut client = pair.client();
        client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
        let (status, head) = client.head();
        assert_eq!(status, 200);
        assert!(head.contains("Content-Length: 268435456\r\n"));
        client.tcp.read_exact(&mut [0; 100_000]).unwrap();
        pair.daemon.signal(Signal::KILL);
        pair.daemon.end();
        // The client sees an end, before all has come.
        assert!(client.rest().len() < 256 << 20, "{daemon} | {proxy}");
        assert_eq!(pair.get("/large", "").status, 502, "{daemon} | {proxy}");
    }
}

/// A backend that answers each connection with `answer`, and then closes it or holds it open; and a proxy with these flags before it.
fn fake(
    answer: &'static [u8],
    hold: bool,
    flags: &str,
) -> (tempfile::TempDir, Running, std::net::SocketAddr) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("s")).unwrap();
    std::thread::spawn(move || {
        let mut held: Vec<UnixStream> = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
            if hold {
                held.push(stream);
            }
        }
    });
    let (proxy, addr) = start_proxy(dir.path(), flags);
    (dir, proxy, addr)
}

fn ask(addr: std::net::SocketAddr) -> Response {
    let mut client = Client::connect(addr);
    client.get("/")
}

/// For a backend that is to be given up.
const SHORT: &str = "--backend-timeout 1s";

#[test]
fn silent() {
    let (_dir, _proxy, addr) = fake(b"", true, SHORT);
    assert_eq!(ask(addr).status, 504);
    let (_dir, _proxy, addr) = fake(b"HTTP/1.1 200 OK\r\nContent-", true, SHORT);
    assert_eq!(ask(addr).status, 504);
}

#[test]
fn without_sense() {
    for answer in [
        &b""[..],
        b"HTTP/1.1 200 OK\r\nContent-",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ] {
        let (_dir, _proxy, addr) = fake(answer, false, "");
        assert_eq!(ask(addr).status, 502, "{}", String::from_utf8_lossy(answer));
    }
}

#[test]
fn a_short_body_is_never_passed_off_as_whole() {
    for (hold, flags) in [(false, ""), (true, SHORT)] {
        let (_dir, _proxy, addr) =
            fake(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this", hold, flags);
        // (One without a CPU may be late with that, too.)
        let mut response = ask(addr);
        until("it answers in time", || {
            let late = hold && response.status == 504;
            if late {
                response = ask(addr);
            }
            !late
        });
        assert_eq!((response.status, response.short, &*response.body), (200, true, &b"only this"[..]));
    }
}

#[test]
fn a_head_in_pieces_and_interim_answers() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("s")).unwrap();
    let (_proxy, addr) = start_proxy(dir.path(), "");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        loop {
            if stream.read(&mut [0; 4096]).unwrap_or(0) == 0 {
                return;
            }
            let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
            for piece in answer.as_bytes().chunks(7) {
                stream.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut client = Client::connect(addr);
    for _ in 0..3 {
        let response = client.get("/");
        assert_eq!((response.status, &*response.body), (200, &b"hello"[..]));
    }
}

#[test]
fn a_full_house() {
    let pair = Pair::start("", "--backends 1 --queue 0");
    std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
    pair.file("a", 5);
    let mut holder = pair.client();
    holder.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(holder.head().0, 200);
    assert_eq!(pair.get("/a", "").status, 503);
    drop(holder);
    until("the connection is free again", || pair.get("/a", "").status == 200);

    let pair = Pair::start("", "--backends 1 --backend-timeout 1s");
    std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
    // (A daemon without a CPU may be too late for the one that is to hold the connection.)
    until("who comes second is told in time", || {
        let mut holder = pair.client();
        holder.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
        holder.head().0 == 200 && pair.get("/a", "").status == 504
    });

    // The daemon's own limit is its 503, passed on.
    let pair = Pair::start("--max-connections 1", "");
    pair.file("a", 5);
    assert_eq!(pair.get("/a", "").status, 200);
    let mut second = UnixStream::connect(pair.dir.path().join("s")).unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).unwrap();
    assert_eq!(status_of(&answer), 503);
    // It says so before it was asked anything, or behind the request: the same to the client.
    let pair = Pair::start("--max-connections 1", "");
    let mut only = Client::over(UnixStream::connect(pair.dir.path().join("s")).unwrap());
    assert_eq!(only.get("/none").status, 404);
    for _ in 0..20 {
        assert_eq!(pair.get("/a", "").status, 503);
    }
}

/// Through a socket file that nobody listens on: 502, at once.
#[test]
fn not_there() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, addr) = start_proxy(dir.path(), "");
    let mut client = Client::connect(addr);
    assert_eq!(client.get("/").status, 502);
    proxy.line("there is no such socket: start `onecopy serve`");
    drop(UnixListener::bind(dir.path().join("s")).unwrap());
    assert_eq!(client.get("/").status, 502);
}

const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL";

/// A backend that follows its answers with bytes that nobody asked for: the next client must not get them.
#[test]
fn what_a_backend_sends_unasked_reaches_nobody() {
    for (flags, method) in [
        ("", "GET"),
        ("", "HEAD"),
        ("--transport kernel", "HEAD"),
        ("--transport kernel", "GET"),
        ("--transport kernel --forward splice", "GET"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let ((answered, goes_on), (sent, follows)) = (mpsc::channel(), mpsc::channel());
        let goes_on = Arc::new(Mutex::new(goes_on));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (goes_on, sent) = (goes_on.clone(), sent.clone());
                std::thread::spawn(move || {
                    let mut stream = stream;
                    let mut head = [0; 4096];
                    while let Ok(n @ 1..) = stream.read(&mut head) {
                        let first = head[..n].windows(7).any(|word| word == b" /first");
                        let body = if head[..n].starts_with(b"HEAD") { "body" } else { EVIL };
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
                        if !head[..n].starts_with(b"HEAD") {
                            let _ = stream.write_all(b"hello");
                        }
                        if first {
                            // Not with the answer: what comes together is refused together.
                            let _ = goes_on.lock().unwrap().recv();
                            let _ = stream.write_all(body.as_bytes());
                            let _ = sent.send(());
                        }
                    }
                });
            }
        });
        let (proxy, addr) = start_proxy(dir.path(), &format!("{flags} --threads 1"));
        let mut first = Client::connect(addr);
        first.send(&format!("{method} /first HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!(first.response(method).status, 200, "{flags}");
        answered.send(()).unwrap();
        // (Who asks on that connection before it has come cannot tell it from his answer.)
        follows.recv_timeout(SOON).unwrap();
        for _ in 0..2 {
            let next = Client::connect(addr).get("/next");
            assert_eq!((next.status, &*next.body), (200, &b"hello"[..]), "{flags} {method}");
        }
        assert!(!proxy.said("backend gave no answer"));
    }
}

/// Nor over shared memory, where it comes with the answer and the next request at once.
#[test]
fn nor_does_what_lies_in_the_ring() {
    let dir = tempfile::tempdir().unwrap();
    let listener = onecopy::unix::Listener::bind(dir.path().join("s").as_path()).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                while let Ok(1..) = stream.read(&mut head) {
                    let body = if head.starts_with(b"HEAD") { EVIL } else { "hello" };
                    // (In one piece: what comes later cannot be told from the next answer.)
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{body}");
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
        }
    });
    let (_proxy, addr) = start_proxy(dir.path(), "--threads 1");
    let mut client = Client::connect(addr);
    for _ in 0..5 {
        // The first answers on a connection come over the kernel.
        for _ in 0..3 {
            assert_eq!(client.get("/").body, b"hello");
        }
        client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.response("HEAD").status, 200);
        let next = client.response("GET");
        assert_eq!(
            (next.status, &*next.body),
            (200, &b"hello"[..]),
            "{:?}",
            String::from_utf8_lossy(&next.body)
        );
    }
}

/// One that listens and takes nobody: clients are told in time, and stopping does not wait for it.
#[test]
fn one_that_takes_no_connection() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};
    for transport in ["", "--transport kernel"] {
        let dir = tempfile::tempdir().unwrap();
        let make = || socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let name = SocketAddrUnix::new(dir.path().join("s")).unwrap();
        let (listener, first) = (make(), make());
        bind(&listener, &name).unwrap();
        listen(&listener, 0).unwrap();
        connect(&first, &name).unwrap(); // the only one that its queue has room for
        let (mut proxy, addr) = start_proxy(dir.path(), &format!("{transport} --backend-timeout 300ms"));
        assert_eq!(ask(addr).status, 504, "{transport}");
        proxy.line("504 for /, and so on: the backend took too long");
        let before = (proxy.threads(), proxy.descriptors());
        let mut clients: Vec<_> = (0..30).map(|_| Client::connect(addr)).collect();
        clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(clients.iter_mut().all(|client| client.response("GET").status == 504), "{transport}");
        drop(clients);
        until("those who waited have left nothing behind", || {
            proxy.threads() <= before.0 && proxy.descriptors() <= before.1
        });
        proxy.signal(Signal::TERM);
        assert_eq!(proxy.end(), Some(0), "{transport}");
    }
}

/// A path may have control characters of the second set in it, which some terminals obey: the operator is shown them.
#[test]
fn no_client_writes_to_the_operators_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let (proxy, addr) = start_proxy(dir.path(), "");
    assert_eq!(Client::connect(addr).get("/\u{9b}2Jé").status, 502);
    let line = proxy.line("502 for /");
    assert!(line.contains("for /\\u{9b}2Jé, and so on"), "{line:?}");
}

/// What is wrong is for the operator, once; clients are told no more than they need.
#[test]
fn the_operator_hears_of_it_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let (proxy, addr) = start_proxy(dir.path(), "--threads 1");
    for _ in 0..3 {
        let answer = ask(addr);
        assert_eq!(answer.status, 502);
        assert!(!String::from_utf8_lossy(&answer.body).contains("os error"), "{answer:?}");
    }
    proxy.line("502 for /, and so on: the backend cannot be reached: ");
    let _daemon = start_daemon(dir.path(), "");
    assert_eq!(ask(addr).status, 404);
    proxy.line("the backend answers again");
    assert_eq!(proxy.count("502 for"), 1);
}
