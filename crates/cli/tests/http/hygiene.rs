//! What must be refused, and what must not get past the proxy.

use crate::harness::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

#[test]
fn statuses() {
    let pair = Pair::start("", "");
    pair.file("a", 5);
    let get = |fields: &str| pair.status(&format!("GET /a HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
    assert_eq!(get(""), 200);
    assert_eq!(pair.status("GET /a HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(pair.status("GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"), 400);
    assert_eq!(pair.status("\x16\x03\x01\0\x01\x02\n"), 400);
    assert_eq!(pair.status("GET /a\r\n\r\n"), 400);
    assert_eq!(pair.status("GET /% HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
    assert_eq!(pair.status("GET /none HTTP/1.1\r\nHost: x\r\n\r\n"), 404);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"] {
        let text = pair.raw(format!("{method} /a HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(status_of(&text), 405, "{method}");
        assert!(text.contains("\r\nAllow: GET, HEAD\r\n"));
    }
    assert_eq!(pair.status("BREW /a HTTP/1.1\r\nHost: x\r\n\r\n"), 501);
    assert_eq!(pair.status("GET /a HTTP/1.1\r\nHost: x"), 0, "half a head and the end is no request");
    let hasty = Pair::start("", "--head-timeout 300ms");
    let mut client = hasty.client();
    client.send("GET /a HTTP/1.1\r\nHost:");
    assert_eq!(client.response("GET").status, 408);
    assert!(client.ended());
    assert_eq!(get("If-Match: \"x\"\r\n"), 412);
    assert_eq!(get("Range: bytes=5-\r\n"), 416);
    assert_eq!(get("Expect: 100-continue\r\nContent-Length: 5\r\n"), 417);
    assert_eq!(pair.status(&format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(9000))), 414);
    assert_eq!(get(&format!("A: {}\r\n", "b".repeat(17_000))), 431);
    assert_eq!(get(&"A: b\r\n".repeat(70)), 431);
    assert_eq!(pair.status("GET /a HTTP/2.0\r\nHost: x\r\n\r\n"), 505);
    // The daemon refuses the same for who comes to it directly.
    let ask = |text: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(pair.dir.path().join("s")).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.read_to_end(&mut answer).unwrap();
        status_of(&String::from_utf8_lossy(&answer))
    };
    assert_eq!(ask("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), 200);
    assert_eq!(ask("GET /../a HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
    assert_eq!(ask("POST /a HTTP/1.1\r\nHost: x\r\n\r\n"), 405);
    assert_eq!(ask("nonsense\r\n\r\n"), 400);
}

/// The host of an absolute-form target replaces Host (RFC 9112 section 3.2.2), and is what Host may be.
#[test]
fn hosts_of_targets_are_checked_as_host_is() {
    let pair = Pair::start("", "");
    pair.file("a", 5);
    let target = |host: &str| pair.status(&format!("GET http://{host}/a HTTP/1.1\r\nHost: x\r\n\r\n"));
    let field = |host: &str| pair.status(&format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    for host in ["x", "x:8080", "[::1]:80", "a.b-c"] {
        assert_eq!((target(host), field(host)), (200, 200), "{host}");
    }
    for host in ["x,y", "x@y", "x:y", "x:80:80", "[::1", "x\\y", "x\"y", ":80"] {
        assert_eq!((target(host), field(host)), (400, 400), "{host}");
    }
    assert_eq!(pair.status("GET http://x/a HTTP/1.1\r\nHost: a,b\r\n\r\n"), 400, "it is there, and wrong");
    assert_eq!(pair.status("GET http://x/a HTTP/1.1\r\n\r\n"), 400);
}

/// All that the proxy lets through, the daemon takes, with what the proxy adds.
#[test]
fn the_largest_head_gets_through() {
    let pair = Pair::start("", "");
    pair.file("a", 5);
    let get = |fields: &str| pair.status(&format!("GET /a HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
    assert_eq!((get(&"A: b\r\n".repeat(63)), get(&"A: b\r\n".repeat(64))), (200, 431));
    let room = (16 << 10) - "GET /a HTTP/1.1\r\nHost: x\r\nA: \r\n\r\n".len();
    let of = |length: usize| format!("A: {}\r\n", "b".repeat(length));
    assert_eq!((get(&of(room)), get(&of(room + 1))), (200, 431));
    let pair = Pair::start("", "--max-line 64K --max-head 64K");
    let line =
        |length: usize| pair.status(&format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(length)));
    assert_eq!((line(60_000), line(66_000)), (404, 414));
}

#[test]
fn nothing_outside_of_the_root() {
    let pair = Pair::start("", "");
    std::fs::write(pair.dir.path().join("secret"), "secret").unwrap();
    std::fs::create_dir(pair.path("d")).unwrap();
    pair.file("d/a", 5);
    std::os::unix::fs::symlink("../secret", pair.path("link")).unwrap();
    std::os::unix::fs::symlink("..", pair.path("up")).unwrap();
    std::os::unix::fs::symlink("/etc", pair.path("etc")).unwrap();
    std::os::unix::fs::symlink("d/a", pair.path("inside")).unwrap();
    for path in [
        "/../secret",
        "/d/../../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/d/..%2F..%2Fsecret",
        "/./../secret",
        "/%2e%2e%2f%2e%2e%2fetc/passwd",
        "/a%00b",
    ] {
        assert_eq!(pair.get(path, "").status, 400, "{path}");
    }
    for path in ["/link", "/up/secret", "/etc/passwd", "/up/files/d/a", "/..\\secret", "//etc/passwd"] {
        assert_eq!(pair.get(path, "").status, 404, "{path}");
    }
    assert_eq!(pair.get("/inside", "").body.len(), 5);
    assert_eq!(pair.get("/d/../d/a", "").body.len(), 5);
}

/// What one side could read as one request and the other as two ends the connection with a refusal: the
/// second request is never answered.
#[test]
fn nothing_is_smuggled() {
    let pair = Pair::start("", "");
    pair.file("a", 5);
    let hidden = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
    for (status, fields) in [
        (400, "Content-Length: 5\r\nContent-Length: 6\r\n"),
        (400, "Content-Length: 5\r\nContent-Length: 5\r\n"),
        (400, "Content-Length: 5, 5\r\n"),
        (400, "Content-Length: +5\r\n"),
        (400, "Content-Length: 5 5\r\n"),
        (400, "Content-Length : 5\r\n"),
        (400, "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        (411, "Transfer-Encoding: chunked\r\n"),
        (501, "Transfer-Encoding: chunked, identity\r\n"),
        (501, "Transfer-Encoding: \u{b}chunked\r\n"),
        (400, "Transfer-Encoding : chunked\r\n"),
        (400, "X: y\r\n Transfer-Encoding: chunked\r\n"),
        (413, "Content-Length: 1000000\r\n"),
    ] {
        let text =
            pair.raw(format!("GET /a HTTP/1.1\r\nHost: x\r\n{fields}\r\n0\r\n\r\n{hidden}").as_bytes());
        // httparse refuses the vertical tab itself.
        let status = if fields.contains('\u{b}') { 400 } else { status };
        assert_eq!(status_of(&text), status, "{fields}");
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{fields}: {text}");
        assert!(text.contains("\r\nConnection: close\r\n"), "{fields}");
    }
    // A body of a GET has a length and no meaning: dropped, and what follows it is the next request.
    let text = pair.raw(
        format!("GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{hidden}", hidden.len()).as_bytes(),
    );
    assert_eq!(text.matches("HTTP/1.1 200").count(), 1, "{text}");
    let body = "b".repeat(60_000);
    let text = pair
        .raw(format!("GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{body}{hidden}").as_bytes());
    assert_eq!(text.matches("HTTP/1.1 200").count(), 2, "{text}");
}

#[test]
fn the_backend_hears_only_what_it_should() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("s")).unwrap();
    let (_proxy, addr) = start_proxy(dir.path(), "--transport kernel");
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buf = [0; 4096];
        let n = stream.read(&mut buf).unwrap();
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: 9\r\n\
                      Onecopy-Secret: 1\r\nX-End: 1\r\n\r\nok";
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8(buf[..n].to_vec()).unwrap()
    });
    let mut client = Client::connect(addr);
    client.send(
        "GET /p?q HTTP/1.1\r\nHost: x\r\nConnection: X-Mine, keep-alive\r\nX-Mine: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n\
         Onecopy-Reader: no-cpu\r\nONECOPY-X: 1\r\nContent-Length: 2\r\nX-End: 2\r\n\r\nhi",
    );
    let response = client.response("GET");
    assert_eq!((response.status, &*response.body), (200, &b"ok"[..]));
    for gone in ["X-Hop", "Keep-Alive", "Onecopy-Secret", "Connection"] {
        assert_eq!(response.field(gone), None, "{gone}");
    }
    assert_eq!(response.field("X-End"), Some("1"));
    assert_eq!(
        heard.join().unwrap(),
        "GET /p?q HTTP/1.1\r\nHost: x\r\nX-End: 2\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nVia: 1.1 \
         onecopy\r\nOnecopy-Reader: other-core\r\n\r\n"
    );
}

/// Nothing below `/.onecopy/` is for clients, whatever lies there; and even on the daemon's own socket its counters are
/// told only where that was asked for.
#[test]
fn the_daemons_own_pages_are_not_for_clients() {
    const PATHS: [&str; 9] = [
        "/.onecopy/stats",
        "/%2eonecopy/stats",
        "/x/../.onecopy/stats",
        "//.onecopy//stats",
        "/.onecopy/stats?x",
        "/.onecopy",
        "/.onecopy/",
        "/.onecopy/file",
        "/.%6fnecopy/file",
    ];
    let ask = |dir: &std::path::Path, path: &str, fields: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(dir.join("s")).unwrap();
        let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for direct in ["", "--direct"] {
        let pair = Pair::start(direct, direct);
        std::fs::create_dir(pair.path(".onecopy")).unwrap();
        for name in [".onecopy/file", ".onecopy/stats", ".onecopy/index.html", ".onecopyright"] {
            pair.file(name, 5);
        }
        for path in PATHS {
            assert_eq!(pair.get(path, "").status, 404, "{path}");
            let found = status_of(&ask(pair.dir.path(), path, ""));
            assert_eq!(found, if path.contains("stats") { 200 } else { 404 }, "{path}");
            let through = ask(pair.dir.path(), path, "Via: 1.1 somebody\r\n");
            assert_eq!(status_of(&through), 404, "{path}");
        }
        let text = ask(pair.dir.path(), "/.onecopy/stats", "");
        assert!(text.contains("Content-Type: application/json\r\n"), "{text}");
        assert!(text.contains("\"requests\":"), "the file of that name is not what is shown: {text}");
        assert_eq!(pair.get("/.onecopyright", "").body.len(), 5);
    }
    let dir = tempfile::tempdir().unwrap();
    let (root, listen) = (dir.path().display().to_string(), format!("unix:{}/s", dir.path().display()));
    let silent = Running::start(&["serve", "--root", &root, "--listen", &listen]);
    silent.line("onecopy serve:");
    for path in PATHS {
        assert_eq!(status_of(&ask(dir.path(), path, "")), 404, "{path}");
    }
    silent.stats(|stats| stats["requests"] == PATHS.len()); // who may send it signals is told
}

/// Sockets, pipes and devices are not there, and nothing is done to them: a pipe's writer keeps waiting for its reader.
#[test]
fn what_is_no_file_is_left_alone() {
    let pair = Pair::start("", "");
    let fifo = pair.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(pair.path("socket")).unwrap();
    std::os::unix::fs::symlink("fifo", pair.path("link")).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let to = fifo.clone();
    let writer = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        std::fs::write(to, "for its reader")
    });
    let state = format!("/proc/self/task/{}/stat", told.recv().unwrap().as_raw_nonzero());
    until("the writer waits", || std::fs::read_to_string(&state).unwrap().contains(") S "));
    for path in ["/fifo", "/link", "/socket", "/fifo/", "/fifo/x"] {
        assert_eq!(pair.get(path, "").status, 404, "{path}");
    }
    assert!(!writer.is_finished());
    assert_eq!(std::fs::read(&fifo).unwrap(), b"for its reader");
    writer.join().unwrap().unwrap();
}
