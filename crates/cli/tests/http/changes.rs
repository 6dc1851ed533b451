//! Files that change while they are served, or between two requests.

use crate::harness::*;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

const LARGE: usize = 64 << 20;

/// As `WAYS`, and straight into the client's socket.
fn ways() -> impl Iterator<Item = (&'static str, &'static str)> {
    WAYS.into_iter().chain([("--direct", "--direct")])
}

/// A client that has the head of a large file, and the rest of it still to come.
fn begun(daemon: &str, proxy: &str) -> (Pair, Client) {
    let pair = Pair::start(daemon, &format!("{proxy} --send-timeout 10m"));
    File::create(pair.path("large")).unwrap().set_len(LARGE as u64).unwrap();
    pair.age("large");
    let mut client = pair.client();
    client.send("GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let (status, head) = client.head();
    assert!(status == 200 && head.contains(&format!("Content-Length: {LARGE}\r\n")), "{head}");
    (pair, client)
}

/// Written over in place, as `cp` and `rsync --inplace` do: what would come is neither the old version nor the new one. It
/// ends early, so that the client can tell, and is counted by whoever saw it.
#[test]
fn an_overwritten_file_is_not_passed_off_as_whole() {
    for (daemon, proxy) in ways() {
        // (What is kept in memory is whole, below.)
        if daemon.contains("--cache") {
            continue;
        }
        let (pair, mut client) = begun(daemon, proxy);
        let file = File::options().write(true).open(pair.path("large")).unwrap();
        file.write_all_at(&noise(1 << 20, 1), (LARGE - (1 << 20)) as u64).unwrap();
        let came = client.count();
        assert!(came < LARGE, "{daemon} | {proxy}: {came} bytes");
        // The daemon that sent it, or the proxy that was lent it.
        until("it is counted", || {
            let stats = pair.proxy.stats(|_| true);
            stats["changed"].as_u64().unwrap() + pair.daemon_counter("changed") == 1
        });
        assert!(
            pair.get("/large", "").body[LARGE - 5..] == noise(1 << 20, 1)[(1 << 20) - 5..],
            "the next one is whole"
        );
    }
}

/// A log: what it had when it was asked for is still what it was.
#[test]
fn a_file_that_grows_comes_whole() {
    for (daemon, proxy) in ways() {
        let (pair, mut client) = begun(daemon, proxy);
        File::options().append(true).open(pair.path("large")).unwrap().write_all(b"more").unwrap();
        assert_eq!(client.some(LARGE).len(), LARGE, "{daemon} | {proxy}");
        assert_eq!(pair.daemon_counter("changed"), 0);
        assert_eq!(pair.get("/large", "Range: bytes=-4\r\n").body, b"more");
    }
}

/// What is kept in memory is what it was, to its end.
#[test]
fn memory_is_whole() {
    for proxy in ["", "--direct"] {
        let (pair, mut client) = begun(&format!("--cache 256M {proxy}"), proxy);
        let file = File::options().write(true).open(pair.path("large")).unwrap();
        file.write_all_at(&noise(1 << 20, 1), 0).unwrap();
        assert!(client.some(LARGE).iter().all(|byte| *byte == 0));
        assert!(pair.get("/large", "").body[..1 << 20] == noise(1 << 20, 1));
    }
}

/// However long --revalidate is, an open file's own state is asked for by each request.
#[test]
fn the_next_request_sees_the_new_size() {
    for (daemon, proxy) in [
        ("", ""),
        ("--lend never", ""),
        ("--direct", "--direct"),
        ("--transport kernel", "--transport kernel"),
    ] {
        let pair = Pair::start(&format!("{daemon} --revalidate 60m"), proxy);
        let content = pair.file("f", 300_000);
        let mut client = pair.client();
        let mut get = || {
            let answer = client.get("/f");
            if proxy == "--direct" {
                client = pair.client();
            }
            (answer.status, answer.body)
        };
        assert!(get() == (200, content.clone()));
        let file = File::options().write(true).open(pair.path("f")).unwrap();
        file.set_len(100_000).unwrap();
        assert!(get() == (200, content[..100_000].to_vec()), "{daemon} | {proxy}: shorter");
        file.write_all_at(b"more", 100_000).unwrap();
        assert!(get() == (200, [&content[..100_000], b"more"].concat()), "{daemon} | {proxy}: longer");
        // Its name, too: a file that loses one has another time of change.
        std::fs::write(pair.path("g"), "another").unwrap();
        std::fs::rename(pair.path("g"), pair.path("f")).unwrap();
        assert!(get() == (200, b"another".to_vec()), "{daemon} | {proxy}: replaced");
        std::fs::remove_file(pair.path("f")).unwrap();
        assert_eq!(get().0, 404, "{daemon} | {proxy}: removed");
    }
}

/// Two versions of one second have one date between them: nobody puts a part of one to a part of the other by that.
#[test]
fn a_date_joins_no_versions_of_one_second() {
    let pair = Pair::start("", "");
    // The second in which it was changed is never over.
    let second = SystemTime::UNIX_EPOCH + Duration::from_secs(7_258_118_400); // 2200-01-01
    let version = |content: &str, nanos| {
        std::fs::write(pair.path("f.new"), content).unwrap();
        let file = File::options().write(true).open(pair.path("f.new")).unwrap();
        file.set_modified(second + Duration::from_nanos(nanos)).unwrap();
        std::fs::rename(pair.path("f.new"), pair.path("f")).unwrap();
    };
    version("aaaa", 5);
    let first = pair.get("/f", "");
    assert_eq!(first.field("Last-Modified"), None, "it is nobody's own yet");
    let tag = first.field("ETag").unwrap();
    assert_eq!(pair.get("/f", &format!("Range: bytes=2-\r\nIf-Range: {tag}\r\n")).status, 206);
    version("bbbb", 6);
    let date = "Wed, 01 Jan 2200 00:00:00 GMT";
    for field in [date, tag] {
        let answer = pair.get("/f", &format!("Range: bytes=2-\r\nIf-Range: {field}\r\n"));
        assert_eq!((answer.status, &*answer.body), (200, &b"bbbb"[..]), "{field}");
    }
    // Another file, although neither its size nor its date tells.
    let tag = pair.get("/f", "").field("ETag").unwrap().to_owned();
    version("cccc", 6);
    assert_ne!(pair.get("/f", "").field("ETag"), Some(&*tag));
    assert_eq!(pair.get("/f", &format!("Range: bytes=2-\r\nIf-Range: {tag}\r\n")).status, 200);
    // Long after it the date is strong.
    pair.age("f");
    let date = pair.get("/f", "").field("Last-Modified").unwrap().to_owned();
    assert_eq!(pair.get("/f", &format!("Range: bytes=2-\r\nIf-Range: {date}\r\n")).status, 206);
}
