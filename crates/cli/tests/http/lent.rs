//! Bodies that the daemon lends to the proxy.

use crate::harness::*;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

#[test]
fn whole_bodies_and_single_parts_are_lent() {
    let pair = Pair::start("--cache 64M", "");
    let content = pair.file("f", 300_000);
    let mut client = pair.client();
    assert!(client.get("/f").body == content);
    pair.counts(&[("lent", 1)]);
    assert!(pair.get("/f", "Range: bytes=100000-299998\r\n").body == content[100_000..299_999]);
    pair.counts(&[("lent", 2), ("lent_bytes", 499_999)]);
    // Neither a few bytes nor what is put together of parts, nor what nobody will send.
    assert!(pair.get("/f", "Range: bytes=-10\r\n").body == content[299_990..]);
    assert_eq!(pair.get("/f", "Range: bytes=0-99999,200000-\r\n").status, 206);
    client.send("HEAD /f HTTP/1.1\r\nHost: x\r\n\r\n");
    let head = client.response("HEAD");
    assert_eq!((head.status, head.field("Content-Length")), (200, Some("300000")));
    assert!(client.get("/f").body == content, "the connection goes on");
    pair.counts(&[("lent", 3), ("lent_bytes", 799_999), ("body_bytes", 10 + 200_000)]);
}

/// In each way that there is, ranges too: of files and of memory, of a size that takes one call and of one that takes several.
#[test]
fn they_arrive_whatever_way_they_are_sent() {
    for way in ["auto", "sendfile", "splice", "map"] {
        for cache in ["", "--cache 64M"] {
            let pair = Pair::start(cache, &format!("--send-lent {way}"));
            let (small, large) = (pair.file("small", 40_000), pair.file("large", 5_000_001));
            let mut client = pair.client();
            assert!(client.get("/small").body == small, "{way} {cache}");
            assert!(client.get("/large").body == large, "{way} {cache}");
            for (from, to) in [(1, 4_999_999), (4096, 3_000_000), (123_457, 200_000)] {
                let part = pair.get("/large", &format!("Range: bytes={from}-{to}\r\n"));
                assert!(part.body == large[from..=to], "{way} {cache} {from}-{to}");
            }
            let stats = pair.proxy.stats(|stats| stats["requests"] == 5);
            // (A kernel that does not say what the page cache holds lends no files.)
            assert!(stats["lent"] == 5 || cache.is_empty() && stats["lent"] == 0, "{stats:#}");
        }
    }
}

/// A client that takes nothing for a while has nothing in the way of others, and misses nothing: what did not fit into its
/// socket is sent later.
#[test]
fn a_stalled_client_gets_all_of_it_later() {
    for (cache, way) in [("", "splice"), ("--cache 64M", "splice"), ("--cache 64M", "map")] {
        let pair = Pair::start(cache, &format!("--threads 1 --send-timeout 10m --send-lent {way}"));
        let (large, other) = (pair.file("large", 16 << 20), pair.file("other", 3 << 20));
        let mut stalled: Vec<_> = (0..3).map(|_| pair.client()).collect();
        for client in &mut stalled {
            client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
        }
        for _ in 0..3 {
            assert!(pair.get("/other", "").body == other);
        }
        for client in &mut stalled {
            assert!(client.response("GET").body == large, "{cache} {way}");
        }
    }
}

/// What was lent is sent again without asking, for as long as --revalidate says, and to nobody who asks for something else.
#[test]
fn what_was_lent_is_sent_again() {
    let pair = Pair::start("--cache 64M --revalidate 10m", "--threads 1");
    let content = pair.file("f", 300_000);
    for _ in 0..3 {
        assert!(pair.get("/f", "").body == content);
    }
    assert!(pair.get("/f", "Range: bytes=100000-299998\r\n").body == content[100_000..299_999]);
    let tag = pair.get("/f", "").field("ETag").unwrap().to_owned();
    assert_eq!(pair.get("/f", &format!("If-None-Match: {tag}\r\n")).status, 304);
    assert!(pair.get("/f?x", "").body == content);
    let old = pair.raw(b"GET /f HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /f HTTP/1.0\r\n\r\n");
    assert_eq!(old.matches("HTTP/1.1 200").count(), 2, "in words of its own version");
    assert_eq!(old.matches("Connection: keep-alive").count(), 1);
    let stats = pair.proxy.stats(|stats| stats["requests"] == 9);
    assert_eq!((&stats["lent"], &stats["lent_again"]), (&3.into(), &5.into()), "{stats:#}");
    pair.counts(&[("requests", 4)]);
}

/// Nor does a thread ask for what another one was lent.
#[test]
fn what_one_thread_was_lent_all_send_again() {
    let pair = Pair::start("--cache 64M --revalidate 10m", "--threads 4");
    let content = pair.file("f", 300_000);
    // All are connected at once: each is another thread's.
    let mut clients: Vec<_> = (0..4).map(|_| pair.client()).collect();
    for client in &mut clients {
        assert!(client.get("/f").body == content);
    }
    let stats = pair.proxy.stats(|stats| stats["requests"] == 4);
    assert_eq!((&stats["lent"], &stats["lent_again"]), (&1.into(), &3.into()), "{stats:#}");
    pair.counts(&[("requests", 1)]);
}

/// Where the time is short, or nothing may be kept, each request is the daemon's.
#[test]
fn what_was_lent_is_let_go() {
    let pair = Pair::start("--cache 64M --revalidate 0", "--threads 1");
    pair.file("f", 300_000);
    pair.get("/f", "");
    pair.get("/f", "");
    let stats = pair.proxy.stats(|stats| stats["requests"] == 2);
    assert_eq!(stats["lent_again"], 0, "{stats:#}");
    let pair = Pair::start("--cache 64M --revalidate 1ms", "--threads 1");
    let before = pair.proxy.descriptors();
    for i in 0..20 {
        pair.file(&format!("f{i}"), 300_000);
        pair.get(&format!("/f{i}"), "");
    }
    // Nobody asks for any of them again. (The connection to the daemon has some of its own.)
    until("the descriptors are closed", || pair.proxy.descriptors() < before + 10);
}

/// A file that is changed is not sent as it was, however long it would be kept.
#[test]
fn what_was_changed_is_asked_for_again() {
    let pair = Pair::start("--revalidate 10m", "--threads 1");
    let content = pair.file("f", 300_000);
    assert!(pair.get("/f", "").body == content);
    if pair.daemon_counter("lent") == 0 {
        return println!("lacking: a kernel that says what the page cache holds, so no file is lent");
    }
    let requests = || pair.daemon_counter("requests");
    let before = requests();
    let file = File::options().write(true).open(pair.path("f")).unwrap();
    file.write_at(b"changed", 5).unwrap();
    // (A file system may tell dates of one tick only.)
    file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(10)).unwrap();
    pair.get("/f", "");
    // (Each question for the counter is a request, too, and a request counts when its answer has left.)
    let mut asked = 0;
    until("the daemon is asked", || {
        asked += 1;
        requests() > before + asked
    });
}

/// Nor is what the kernel has let go of by then: who sends it would wait for the disk, and all the clients of that thread.
#[test]
fn what_lies_on_the_disk_alone_is_asked_for_again() {
    let pair = Pair::start("--revalidate 10m", "--threads 1");
    let content = pair.file("f", 300_000);
    let file = File::open(pair.path("f")).unwrap();
    let leaves = || {
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        onecopy_sys::page_cache::holds(&file, 0, 300_000) == Ok(false)
    };
    if !leaves() {
        return println!("lacking: a file system that lets files go from memory, or a kernel that says so");
    }
    std::fs::read(pair.path("f")).unwrap();
    assert!(pair.get("/f", "").body == content);
    assert_eq!(pair.proxy.stats(|stats| stats["requests"] == 1)["lent"], 1);
    // (What is on its way to a client does not leave.)
    until("it leaves", leaves);
    assert!(pair.get("/f", "").body == content);
    let stats = pair.proxy.stats(|stats| stats["requests"] == 2);
    assert_eq!((&stats["lent"], &stats["lent_again"]), (&1.into(), &0.into()), "{stats:#}");
}

/// A file is, as long as the kernel has it in memory; what is cut short on its way is never passed off as whole.
#[test]
fn files_are_lent() {
    let pair = Pair::start("", "");
    let content = pair.file("f", 20 << 20);
    assert!(pair.get("/f", "Range: bytes=4097-\r\n").body == content[4097..]);
    until("it is counted", || {
        let stats = pair.daemon_stats();
        ["body_bytes", "lent_bytes"].iter().filter_map(|name| stats[name].as_u64()).sum::<u64>() > 0
    });
    let lent = pair.daemon_counter("lent");
    if lent == 0 {
        return println!("lacking: a kernel that says what the page cache holds, so no file is lent");
    }
    assert_eq!(pair.daemon_counter("lent_bytes"), (20 << 20) - 4097);
    let mut slow = pair.client();
    slow.send("GET /f HTTP/1.1\r\nHost: x\r\n\r\n");
    pair.counts(&[("lent", lent + 1)]);
    // Behind the proxy's own look at the length, of which a 502 would come.
    let (status, head) = slow.head();
    assert!(status == 200 && head.contains(&format!("Content-Length: {}\r\n", 20 << 20)), "{head}");
    File::options().write(true).open(pair.path("f")).unwrap().set_len(1000).unwrap();
    assert!(slow.count() < 20 << 20);
    pair.proxy.line("shorter");
}

#[test]
fn others_are_not() {
    for daemon in ["--cache 64M --lend never", "--lend never", "--lend memory"] {
        let pair = Pair::start(daemon, "");
        let content = pair.file("f", 300_000);
        assert!(pair.get("/f", "").body == content);
        pair.counts(&[("body_bytes", 300_000), ("lent", 0), ("lent_bytes", 0)]);
    }
}

/// A client cannot make the daemon's descriptors come, nor see that they do.
#[test]
fn clients_have_no_part_in_it() {
    let pair = Pair::start("--lend never", "");
    pair.file("f", 300_000);
    let answer = pair.raw(b"GET /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\nOnecopy-Takes: lent\r\n\r\n");
    assert!(!answer.to_ascii_lowercase().contains("\r\nonecopy-"));
    let pair = Pair::start("--cache 64M", "");
    pair.file("f", 300_000);
    let answer = pair.raw(b"GET /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(!answer.to_ascii_lowercase().contains("\r\nonecopy-"));
    pair.counts(&[("lent", 1)]);
}

/// A body that is on its way stays what it was, although its file changes and the cache lets it go.
#[test]
fn what_is_lent_stays() {
    // (A client that takes nothing is given up after a time, and this one has to wait for all of the following.)
    let pair = Pair::start("--cache 40M", "--send-timeout 10m");
    let content = pair.file("large", 20 << 20);
    let mut slow = pair.client();
    slow.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    pair.counts(&[("lent", 1)]);
    for i in 0..3 {
        let other = pair.file(&format!("other{i}"), 18 << 20);
        assert!(pair.get(&format!("/other{i}"), "").body == other);
    }
    let changed = pair.file("large", 1000);
    assert!(pair.get("/large", "").body == changed);
    std::fs::remove_file(pair.path("large")).unwrap();
    let response = slow.response("GET");
    assert!(!response.short, "{} bytes came", response.body.len());
    assert!(response.body == content);
}

/// A backend over the kernel that answers with `head` and, beside it, descriptors.
fn fake(head: &'static str, with: Vec<File>) -> (tempfile::TempDir, Running, std::net::SocketAddr) {
    fake_by(move |_| head, with)
}

/// The same, with a head for each request.
fn fake_by(
    head: impl Fn(&str) -> &'static str + Clone + Send + 'static,
    with: Vec<File>,
) -> (tempfile::TempDir, Running, std::net::SocketAddr) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("s")).unwrap();
    let with = Arc::new(with);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (with, head) = (with.clone(), head.clone());
            std::thread::spawn(move || {
                let mut asked = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut asked) {
                    let head = head(&String::from_utf8_lossy(&asked[..n]));
                    let fds: Vec<_> = with.iter().map(AsFd::as_fd).collect();
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
                    let mut control = SendAncillaryBuffer::new(&mut space);
                    if !fds.is_empty() {
                        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
                    }
                    let bytes = [IoSlice::new(head.as_bytes())];
                    let _ = sendmsg(&stream, &bytes, &mut control, SendFlags::NOSIGNAL);
                }
            });
        }
    });
    let (proxy, addr) = start_proxy(dir.path(), "");
    (dir, proxy, addr)
}

fn memory(len: usize) -> File {
    let fd = memfd_create("t", MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(fd);
    file.write_all_at(&noise(len, 7), 0).unwrap();
    file
}

#[test]
fn loans_without_sense_are_refused() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 50000\r\nOnecopy-Lent: 14464\r\n\r\n";
    // That one is right, and the second descriptor nobody asked for.
    let (_dir, proxy, addr) = fake(HEAD, vec![memory(64_464), memory(9)]);
    let mut client = Client::connect(addr);
    let mut first = None;
    for _ in 0..30 {
        let response = client.get("/");
        assert_eq!(response.status, 200);
        assert!(response.body == noise(64_464, 7)[14_464..]);
        first.get_or_insert_with(|| proxy.descriptors());
    }
    // (What the proxy opens once, whenever that is, is no leak.)
    until("both are closed again each time", || Some(proxy.descriptors()) <= first.map(|first| first + 10));

    let null = File::open("/dev/zero").unwrap();
    let short = tempfile::tempfile().unwrap();
    short.set_len(64_463).unwrap();
    let real = tempfile::NamedTempFile::new().unwrap();
    real.as_file().set_len(64_464).unwrap();
    let path = rustix::fs::open(real.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let write_only = File::options().write(true).open(real.path()).unwrap();
    for (what, head, with) in [
        ("no descriptor", HEAD, vec![]),
        ("a byte too few", HEAD, vec![memory(64_463)]),
        ("a device", HEAD, vec![null]),
        ("a folder", HEAD, vec![File::open("/").unwrap()]),
        ("a file that is too short", HEAD, vec![short]),
        ("a descriptor that only names a file", HEAD, vec![path.into()]),
        ("a descriptor to write with", HEAD, vec![write_only]),
        (
            "beyond all numbers",
            "HTTP/1.1 200 OK\r\nContent-Length: 50000\r\nOnecopy-Lent: 18446744073709551615\r\n\r\n",
            vec![memory(64_464)],
        ),
    ] {
        let (_dir, proxy, addr) = fake(head, with);
        let mut client = Client::connect(addr);
        assert_eq!(client.get("/").status, 502, "{what}");
        proxy.line("lent"); // the operator is told
        // Nobody asks for the loan of a body that he does not want.
        client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.response("HEAD").status, 502, "{what}: lent unasked");
        let before = proxy.descriptors();
        for _ in 0..20 {
            assert_eq!(client.get("/").status, 502, "{what}");
        }
        until("what was lent is closed", || proxy.descriptors() <= before + 6);
        proxy.stats(|stats| stats["backend_bad"] == 22 && stats["refused"] == 22);
    }
}

/// Only a whole answer is the same for all who ask: another is not given again, whatever the backend says.
#[test]
fn only_whole_answers_are_given_again() {
    const WHOLE: &str =
        "HTTP/1.1 200 OK\r\nContent-Length: 50000\r\nOnecopy-Lent: 0\r\nOnecopy-Fresh: 600000\r\n\r\n";
    const PART: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 50000\r\nContent-Range: bytes \
                        0-49999/64464\r\nOnecopy-Lent: 0\r\nOnecopy-Fresh: 600000\r\n\r\n";
    const NONE: &str =
        "HTTP/1.1 404 Not Found\r\nContent-Length: 50000\r\nOnecopy-Lent: 0\r\nOnecopy-Fresh: 600000\r\n\r\n";
    for (head, status, again) in [(WHOLE, 200, 2), (PART, 206, 0), (NONE, 404, 0)] {
        let (_dir, proxy, addr) = fake(head, vec![memory(64_464)]);
        let mut client = Client::connect(addr);
        for _ in 0..3 {
            assert_eq!(client.get("/").status, status);
        }
        let stats = proxy.stats(|stats| stats["requests"] == 3);
        assert_eq!(stats["lent_again"], again, "{status}: {stats:#}");
        assert_eq!(stats["refused"], if status == 404 { 3 } else { 0 }, "{status}: {stats:#}");
    }
}

/// Memory that is promised and not there is not made by who sends it: to map it would fill all of it with zeroes.
#[test]
fn memory_with_holes_is_not_filled() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\nOnecopy-Lent: 0\r\n\r\n";
    let file = File::from(memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(64 << 20).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).unwrap();
    let (_dir, _proxy, addr) = fake(HEAD, vec![file.try_clone().unwrap()]);
    let response = Client::connect(addr).get("/");
    assert!(response.body.len() == 64 << 20 && response.body.iter().all(|byte| *byte == 0));
    assert_eq!(fstat(&file).unwrap().st_blocks, 0);
}

/// A head that was written of another version than the one that came is not given again: it would have the old tag.
#[test]
fn a_head_of_another_version_is_not_given_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().write_all_at(&noise(50_000, 7), 0).unwrap();
    let stat = fstat(file.as_file()).unwrap();
    for (nanos, again) in [(stat.st_ctime_nsec, 2), (stat.st_ctime_nsec ^ 1, 0)] {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 50000\r\nOnecopy-Lent: 0\r\nOnecopy-Fresh: \
             600000\r\nOnecopy-Changed: {}.{nanos}\r\n\r\n",
            stat.st_ctime
        );
        let (_dir, proxy, addr) = fake(head.leak(), vec![file.reopen().unwrap()]);
        let mut client = Client::connect(addr);
        for _ in 0..3 {
            assert!(client.get("/").body == noise(50_000, 7));
        }
        let stats = proxy.stats(|stats| stats["requests"] == 3);
        assert_eq!(stats["lent_again"], again, "{stats:#}");
    }
}

/// How many of its descriptors are of something with that name.
fn held(proxy: &Running, name: &str) -> usize {
    let all = std::fs::read_dir(format!("/proc/{}/fd", proxy.child.id())).unwrap();
    let links = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links.filter(|to| to.to_string_lossy().contains(name)).count()
}

/// What the proxy keeps counts against the daemon's --cache as long as the daemon said that it may be kept.
#[test]
fn what_may_be_sent_again_is_within_the_cache() {
    let pair = Pair::start("--cache 8M --revalidate 10m", "--threads 1");
    for i in 0..12 {
        let content = pair.file(&format!("f{i}"), 4 << 20);
        assert!(pair.get(&format!("/f{i}"), "").body == content);
    }
    pair.counts(&[("requests", 12)]);
    let held = held(&pair.proxy, "memfd:onecopy-object");
    assert!((1..=4).contains(&held), "{held} files of 4M in memory, of a --cache of 8M and as much again");
}

/// What may be kept for a short time is let go then, although something else may be kept for long.
#[test]
fn each_is_let_go_in_its_own_time() {
    const LONG: &str =
        "HTTP/1.1 200 OK\r\nContent-Length: 50000\r\nOnecopy-Lent: 0\r\nOnecopy-Fresh: 600000\r\n\r\n";
    const SHORT: &str =
        "HTTP/1.1 200 OK\r\nContent-Length: 50000\r\nOnecopy-Lent: 0\r\nOnecopy-Fresh: 1\r\n\r\n";
    let head = |asked: &str| if asked.contains("/long") { LONG } else { SHORT };
    let (_dir, proxy, addr) = fake_by(head, vec![memory(64_464)]);
    // (On one thread of the proxy.)
    let mut client = Client::connect(addr);
    assert_eq!(client.get("/long").status, 200);
    for i in 0..20 {
        assert_eq!(client.get(&format!("/short{i}")).status, 200);
    }
    until("they are closed", || held(&proxy, "memfd:t ") == 1);
    assert_eq!(client.get("/long").status, 200);
    assert_eq!(proxy.stats(|stats| stats["requests"] == 22)["lent_again"], 1);
}
