//! What is served: bodies, ranges, conditions, connections that are kept.

use crate::harness::*;

#[test]
fn every_way_brings_every_byte() {
    for (daemon, proxy) in WAYS {
        let pair = Pair::start(daemon, proxy);
        let mut client = pair.client();
        for length in [0, 1, 700, 4095, 65536, 200_000, (1 << 20) + 3, 5_000_000] {
            let content = pair.file("f.bin", length);
            for _ in 0..2 {
                let response = client.get("/f.bin");
                assert_eq!(response.status, 200, "{daemon} | {proxy}");
                assert!(response.body == content, "{daemon} | {proxy}: {length} bytes differ");
            }
        }
    }
}

#[test]
fn heads_and_types() {
    let pair = Pair::start("", "");
    pair.file("a.html", 10);
    pair.age("a.html");
    pair.file("b.css", 10);
    pair.file("c.unknown-ending", 10);
    std::fs::create_dir(pair.path("d e")).unwrap();
    pair.file("d e/index.html", 33);
    assert_eq!(pair.get("/a.html", "").field("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(pair.get("/b.css", "").field("Content-Type"), Some("text/css; charset=utf-8"));
    assert_eq!(pair.get("/c.unknown-ending", "").field("Content-Type"), Some("application/octet-stream"));
    assert_eq!(pair.get("/d%20e/", "").body.len(), 33);
    let moved = pair.get("/d%20e", "");
    assert_eq!((moved.status, moved.field("Location")), (301, Some("/d%20e/")));
    let mut client = pair.client();
    client.send("HEAD /a.html HTTP/1.1\r\nHost: x\r\n\r\nGET /a.html HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, get) = (client.response("HEAD"), client.response("GET"));
    assert_eq!((head.status, head.field("Content-Length")), (200, Some("10")));
    assert_eq!((get.status, get.body.len()), (200, 10));
    for name in ["ETag", "Last-Modified", "Accept-Ranges", "Content-Type", "Content-Length"] {
        assert_eq!(head.field(name), get.field(name), "{name}");
        assert!(head.field(name).is_some(), "{name}");
    }
}

#[test]
fn ranges() {
    for (daemon, proxy) in WAYS {
        let pair = Pair::start(daemon, proxy);
        let content = pair.file("r.txt", 300_000);
        let get = |range: &str| pair.get("/r.txt", &format!("Range: {range}\r\n"));
        for (range, from, to) in [
            ("bytes=0-0", 0, 0),
            ("bytes=5-199999", 5, 199_999),
            ("bytes=299999-", 299_999, 299_999),
            ("bytes=-10", 299_990, 299_999),
        ] {
            let response = get(range);
            assert_eq!(response.status, 206, "{range}");
            assert_eq!(response.field("Content-Range"), Some(&*format!("bytes {from}-{to}/300000")));
            assert!(response.body == content[from..=to], "{range}: {daemon} | {proxy}");
        }
        let outside = get("bytes=300000-");
        assert_eq!((outside.status, outside.field("Content-Range")), (416, Some("bytes */300000")));
        assert_eq!(get("bytes=5-2").status, 200);

        let many = get("bytes=0-9, 150000-290000, -5");
        assert_eq!(many.status, 206);
        let kind = many.field("Content-Type").unwrap();
        let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
        let mut expected = Vec::new();
        for (from, to) in [(0, 9), (150_000, 290_000), (299_995, 299_999)] {
            let lead = if from == 0 { "" } else { "\r\n" };
            expected.extend(
                format!("{lead}--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Range: bytes {from}-{to}/300000\r\n\r\n")
                    .bytes(),
            );
            expected.extend(&content[from..=to]);
        }
        expected.extend(format!("\r\n--{boundary}--\r\n").bytes());
        assert!(many.body == expected, "{daemon} | {proxy}");
    }
}

#[test]
fn conditions() {
    let pair = Pair::start("", "");
    pair.file("c.txt", 1000);
    pair.age("c.txt");
    let first = pair.get("/c.txt", "");
    let (tag, date) = (first.field("ETag").unwrap(), first.field("Last-Modified").unwrap());
    let status = |fields: &str| pair.get("/c.txt", fields).status;
    let unchanged = pair.get("/c.txt", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(
        (unchanged.status, unchanged.field("ETag"), unchanged.field("Content-Length")),
        (304, Some(tag), None)
    );
    assert_eq!(status(&format!("If-Modified-Since: {date}\r\n")), 304);
    assert_eq!(status("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), 200);
    assert_eq!(status("If-None-Match: \"other\"\r\n"), 200);
    assert_eq!(status("If-Match: \"other\"\r\n"), 412);
    assert_eq!(status(&format!("If-Match: {tag}\r\n")), 200);
    assert_eq!(status("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), 412);
    assert_eq!(status(&format!("Range: bytes=0-9\r\nIf-Range: {tag}\r\n")), 206);
    assert_eq!(status(&format!("Range: bytes=0-9\r\nIf-Range: {date}\r\n")), 206);
    assert_eq!(status("Range: bytes=0-9\r\nIf-Range: \"other\"\r\n"), 200);
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(pair.path("c.txt"), "changed").unwrap();
    assert_eq!(status(&format!("If-None-Match: {tag}\r\n")), 200);
    assert_eq!(status(&format!("Range: bytes=0-3\r\nIf-Range: {tag}\r\n")), 200);
}

#[test]
fn connections_are_kept_and_pipelined() {
    for (daemon, proxy) in WAYS {
        let pair = Pair::start(daemon, proxy);
        let small = pair.file("small", 300);
        let large = pair.file("large", 700_000);
        let mut client = pair.client();
        let mut text = String::new();
        for i in 0..60 {
            let path = ["/small", "/large", "/none"][i % 3];
            text += &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        }
        client.send(&text);
        for i in 0..60 {
            let response = client.response("GET");
            assert_eq!(response.status, [200, 200, 404][i % 3], "{daemon} | {proxy}");
            match i % 3 {
                0 => assert!(response.body == small),
                1 => assert!(response.body == large),
                _ => {}
            }
        }
        client.send("GET /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert_eq!(client.response("GET").field("Connection"), Some("close"));
        assert!(client.ended());
    }
}

#[test]
fn http_1_0() {
    let pair = Pair::start("", "");
    pair.file("a", 5);
    let mut client = pair.client();
    client.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(client.response("GET").field("Connection"), Some("keep-alive"));
    client.send("GET /a HTTP/1.0\r\n\r\n");
    assert_eq!(client.response("GET").body.len(), 5);
    assert!(client.ended());
}

#[test]
fn a_file_that_shrinks_is_never_padded() {
    for daemon in ["", "--transport kernel", "--transport kernel --file-send sendfile"] {
        let pair = Pair::start(daemon, "");
        let length = 64 << 20;
        std::fs::File::create(pair.path("s")).unwrap().set_len(length).unwrap();
        let mut client = pair.client();
        client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.head().0, 200);
        std::fs::File::options().write(true).open(pair.path("s")).unwrap().set_len(1000).unwrap();
        let rest = client.rest().len() as u64;
        assert!(rest < length, "{daemon}: {rest}");
    }
}

#[test]
fn copies_are_counted() {
    let pair = Pair::start("--lend never", "--threads 1");
    pair.file("f", 1 << 20);
    // (The first answer on a connection goes over the kernel, and brings the memory for the next.)
    pair.file("empty", 0);
    pair.get("/empty", "");
    pair.get("/f", "");
    // A file is not copied in user space.
    pair.counts(&[("body_bytes", 1 << 20), ("user_copied", 0)]);
    assert!(pair.daemon_counter("kernel_copied") >= 1 << 20);
    let stats = pair.proxy.stats(|stats| stats["body_bytes"] == 1 << 20);
    assert_eq!(stats["user_copied"].as_u64(), Some(0));
    assert!(stats["kernel_copied"].as_u64() >= Some(1 << 20));
    pair.daemon.signal(rustix::process::Signal::USR1);
    assert!(pair.daemon.line("stats {").contains("\"requests\":"));
}

#[test]
fn direct() {
    for daemon in ["--direct", "--direct --cache 64M"] {
        let pair = Pair::start(daemon, "--direct");
        for length in [0, 700, 5_000_000] {
            let content = pair.file("f.bin", length);
            let mut client = pair.client();
            let response = client.get("/f.bin");
            assert_eq!((response.status, response.field("Connection")), (200, Some("close")));
            assert!(response.body == content);
            assert!(client.ended(), "what was lent is not used again");
        }
        pair.counts(&[("direct", 3)]);
        assert_eq!(pair.get("/none", "").status, 404);
        // HEAD and HTTP/1.0 take the usual way.
        assert!(pair.raw(b"GET /f.bin HTTP/1.0\r\n\r\n").len() > 5_000_000);

        let (proxy, addr) = start_proxy(pair.dir.path(), "--direct --trust-backend");
        let mut client = Client::connect(addr);
        let content = pair.file("g.bin", 300_000);
        client.send(&"GET /g.bin HTTP/1.1\r\nHost: x\r\nRange: bytes=5-9,20-\r\n\r\n".repeat(3));
        for _ in 0..3 {
            let response = client.response("GET");
            assert_eq!((response.status, response.field("Connection")), (206, None));
            assert!(response.body.windows(1000).any(|w| w == &content[299_000..]));
        }
        assert!(client.get("/g.bin").body == content);
        drop(proxy);
    }
}

#[test]
fn direct_without_a_willing_daemon_takes_the_usual_way() {
    let pair = Pair::start("", "--direct");
    let content = pair.file("f.bin", 100_000);
    let mut client = pair.client();
    assert!(client.get("/f.bin").body == content && client.get("/f.bin").body == content);
}

#[test]
fn direct_and_killed() {
    let mut pair = Pair::start("--direct", "--direct --trust-backend");
    std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
    let mut client = pair.client();
    client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().0, 200);
    pair.daemon.signal(rustix::process::Signal::KILL);
    pair.daemon.end();
    assert!(client.rest().len() < 256 << 20);
    pair.proxy.line("broke off the body of /large");
}
