//! What there is little of: lines to the backend, memory, descriptors, time.

use crate::harness::*;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::{Resource, Rlimit};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A client that has little room of its own for what it does not read.
fn narrow(addr: SocketAddr) -> Client {
    use rustix::net::{AddressFamily, SocketType, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    set_socket_recv_buffer_size(&socket, 4096).unwrap();
    connect(&socket, &addr).unwrap();
    let tcp = TcpStream::from(socket);
    tcp.set_read_timeout(Some(SOON)).unwrap();
    Client::over(tcp)
}

fn slow(addr: SocketAddr) -> Client {
    let mut client = narrow(addr);
    client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().0, 200);
    client
}

/// The proxy's own memory, in KiB (proc(5), RssAnon).
fn own_memory(proxy: &Running) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A lent body needs no line once its descriptor has come: many slow clients leave it to others.
#[test]
fn slow_clients_of_lent_bodies_hold_no_line() {
    for (daemon, threads) in [("--cache 64M", 1), ("--cache 64M", 2), ("", 1)] {
        let pair =
            Pair::start(daemon, &format!("--threads {threads} --backends {threads} --send-timeout 10m"));
        pair.file("large", 20 << 20);
        pair.file("a", 5);
        pair.get("/large", "");
        if pair.daemon_counter("lent") == 0 {
            println!("lacking: a kernel that says what the page cache holds, so no file is lent");
            continue;
        }
        let clients: Vec<_> = (0..30).map(|_| slow(pair.addr)).collect();
        assert_eq!(pair.get("/a", "").status, 200);
        pair.counts(&[("lent", 31)]);
        let mut last = pair.client();
        assert_eq!(last.get("/large").body.len(), 20 << 20);
        assert_eq!(last.get("/a").status, 200, "and the connection goes on");
        drop(clients);
    }
}

/// What README and the manual promise: less than 32 KiB for a slow client of a lent body, and two descriptors.
#[test]
fn a_slow_client_costs_little_memory() {
    let pair = Pair::start("--cache 64M", "--threads 1 --backends 1 --send-timeout 10m");
    pair.file("large", 20 << 20);
    let mut clients: Vec<_> = (0..50).map(|_| slow(pair.addr)).collect();
    let before = (own_memory(&pair.proxy), pair.proxy.descriptors());
    clients.extend((0..200).map(|_| slow(pair.addr)));
    let after = (own_memory(&pair.proxy), pair.proxy.descriptors());
    let each = (after.0.saturating_sub(before.0)) as f64 / 200.0;
    eprintln!("{each:.1} KiB for each of 200 slow clients");
    assert!(each < 32.0, "{each} KiB each");
    assert!(after.1 <= before.1 + 2 * 200 + 6, "{before:?}, then {after:?}");
}

/// Who reads slowly, but reads, is not one who takes nothing: the event that tells of room in a socket comes only when a
/// third of its buffer is free, and that may take him longer than --send-timeout.
#[test]
fn a_slow_reader_is_not_given_up() {
    const LENGTH: usize = 6 << 20;
    let limit = Duration::from_secs(3);
    let ways = [("--cache 64M", ""), ("--lend never", ""), ("", "--transport kernel --forward splice")];
    // Whether it came to an end that says something: a reader without a CPU takes nothing.
    let one = |(daemon, proxy): (&str, &str)| {
        let pair = Pair::start(daemon, &format!("{proxy} --send-timeout 3s"));
        let content = pair.file("large", LENGTH);
        let (mut body, start) = (Vec::<u8>::new(), Instant::now());
        let (mut last, mut paused) = (start, Duration::ZERO);
        let mut client = slow(pair.addr);
        let mut take = |length: usize| {
            let came = client.some_or_end(length.min(LENGTH - body.len()));
            paused = paused.max(last.elapsed());
            last = Instant::now();
            body.extend(&came);
            !came.is_empty()
        };
        // So slowly that there is no such event within the limit, and for longer than that.
        while start.elapsed() < 2 * limit && take(1 << 10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        while take(64 << 10) {}
        let whole = body == content;
        assert!(whole || paused > limit / 3, "{daemon} | {proxy}: {} bytes, {paused:?}", body.len());
        whole
    };
    std::thread::scope(|all| {
        for way in ways {
            all.spawn(move || until("a reader has the CPU that it needs", || one(way)));
        }
    });
}

/// A pair whose proxy may open only a hundred files.
fn limited(flags: &str) -> Pair {
    let mut pair = Pair::start("--cache 64M", "--threads 1");
    (pair.proxy, pair.addr) = start_limited_proxy(pair.dir.path(), &format!("--threads 1 {flags}"), 100);
    pair
}

/// Who was taken in can be served, however many wait outside.
#[test]
fn idle_clients_leave_descriptors_for_the_backend() {
    for flags in ["", "--transport kernel", "--transport kernel --forward splice"] {
        let pair = limited(flags);
        pair.file("a", 5);
        let mut clients: Vec<_> = (0..140).map(|_| pair.client()).collect();
        until("no more are taken", || {
            pair.proxy.said("further clients wait") || pair.proxy.descriptors() > 98
        });
        for client in clients.iter_mut().take(20) {
            assert_eq!(client.get("/a").status, 200, "{flags}");
        }
        // And who waited comes in when others leave.
        clients.drain(..120);
        assert_eq!(clients.last_mut().unwrap().get("/a").status, 200, "{flags}");
    }
}

/// Nor do bodies that are lent take the last: then they are copied.
#[test]
fn loans_leave_descriptors_for_clients() {
    let pair = limited("--send-timeout 10m");
    let content = pair.file("large", 20 << 20);
    let mut clients: Vec<_> = (0..18).map(|_| slow(pair.addr)).collect();
    assert!(pair.get("/large", "").body == content);
    pair.proxy.stats(|stats| stats["refused"] == 0);
    let lent = pair.daemon_counter("lent");
    assert!((5..18).contains(&lent), "{lent}");
    clients.clear();
    until("they can be lent again", || {
        pair.get("/large", "Range: bytes=0-99999\r\n");
        pair.daemon_counter("lent") > lent
    });
}

#[test]
fn more_clients_than_there_can_be() {
    let pair = limited("--max-clients 1000 --backends 50");
    let line = pair.proxy.line("may open 100 files");
    for said in ["--max-clients 1000", "--backends 50", "ulimit -n", "LimitNOFILE"] {
        assert!(line.contains(said), "{line}");
    }
    let pair = limited("--max-clients 10 --backends 2");
    pair.get("/none", "");
    assert!(!pair.proxy.said("may open"));
}

/// A descriptor that came and could not be opened is no reason to refuse: the bytes are asked for instead.
#[test]
fn a_loan_that_cannot_be_opened_is_copied() {
    let pair = Pair::start("--cache 64M", "--threads 1 --backends 1");
    let content = pair.file("f", 300_000);
    let mut client = pair.client();
    assert!(client.get("/f").body == content);
    pair.counts(&[("lent", 1)]);
    // All is closed that is to be, and no number is free.
    pair.proxy.stats(|stats| stats["requests"] == 1);
    let open =
        |number: &u64| std::fs::exists(format!("/proc/{}/fd/{number}", pair.proxy.child.id())).unwrap();
    let free = (0..).find(|number| !open(number));
    let limit = Rlimit { current: free, maximum: free };
    rustix::process::prlimit(Some(pair.proxy.pid()), Resource::Nofile, limit).unwrap();
    for _ in 0..3 {
        assert!(client.get("/f").body == content);
    }
    pair.proxy.stats(|stats| stats["body_bytes"] == 1_200_000 && stats["lent"] == 1);
}

/// What is sent again without asking takes a descriptor, too, once nobody else keeps it.
#[test]
fn what_is_sent_again_leaves_descriptors_for_clients() {
    let mut pair = Pair::start("--cache 64M --revalidate 10m", "--threads 1");
    (pair.proxy, pair.addr) = start_limited_proxy(pair.dir.path(), "--threads 1 --send-timeout 10m", 100);
    let content = pair.file("large", 8 << 20);
    let slow = |i| {
        // On the way to one client, and then kept for the others.
        let mut first = pair.client();
        assert_eq!(first.get(&format!("/large?{i}")).body.len(), 8 << 20);
        drop(first);
        let mut client = narrow(pair.addr);
        client.send(&format!("GET /large?{i} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!(client.head().0, 200);
        client
    };
    let clients: Vec<_> = (0..18).map(slow).collect();
    assert!(pair.get("/large", "").body == content);
    drop(clients);
    let stats = pair.proxy.stats(|stats| stats["requests"] == 37);
    let again = stats["lent_again"].as_u64().unwrap();
    assert!((5..18).contains(&again) && stats["refused"] == 0, "{stats:#}");
    // Many of one body need one descriptor together.
    let mut first = pair.client();
    assert!(first.get("/large?one").body == content);
    let clients: Vec<_> = (0..18)
        .map(|_| {
            let mut client = narrow(pair.addr);
            client.send("GET /large?one HTTP/1.1\r\nHost: x\r\n\r\n");
            assert_eq!(client.head().0, 200);
            client
        })
        .collect();
    drop(clients);
    let stats = pair.proxy.stats(|stats| stats["requests"] == 56);
    assert_eq!(stats["lent_again"], again + 18, "{stats:#}");
}

/// What one client had no room for, no other gets: not even where no pipe can be made in the place of the one that it is in.
#[test]
fn no_client_gets_what_was_left_of_another() {
    let pair = Pair::start(
        "--cache 64M",
        "--threads 1 --backends 1 --send-timeout 10m --idle-timeout 10m --send-lent splice",
    );
    let (large, other) = (pair.file("large", 20 << 20), pair.file("other", 3 << 20));
    let mut next = pair.client();
    assert!(next.get("/other").body == other);
    let mut stalled = narrow(pair.addr);
    stalled.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    stalled.tcp.peek(&mut [0]).unwrap();
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = |current| {
        let limit = Rlimit { current, maximum };
        rustix::process::prlimit(Some(pair.proxy.pid()), Resource::Nofile, limit).unwrap();
    };
    limit(Some(3));
    // Its socket is full again and again.
    let body = stalled.response("GET").body;
    limit(maximum);
    for _ in 0..2 {
        assert!(next.get("/other").body == other);
    }
    assert!(body == large, "sendfile needs no pipe of ours");
}
