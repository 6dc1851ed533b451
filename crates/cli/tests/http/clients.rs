//! Clients that are slow, that vanish, and that are very many.

use crate::harness::*;
use onecopy_testing::alone;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const LARGE: u64 = 256 << 20;

fn with_large(daemon: &str, proxy: &str) -> Pair {
    let pair = Pair::start(daemon, proxy);
    std::fs::File::create(pair.path("large")).unwrap().set_len(LARGE).unwrap();
    pair
}

fn ask_large(pair: &Pair) -> Client {
    let mut client = pair.client();
    client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().0, 200);
    client
}

/// A client that does not read holds up the reading of the file, not memory; when it reads again, all comes.
#[test]
fn a_slow_client_slows_the_file_down() {
    for (daemon, proxy) in WAYS.into_iter().filter(|(daemon, _)| !daemon.contains("sendfile")) {
        let pair = with_large(daemon, proxy);
        let mut client = ask_large(&pair);
        let mut before = u64::MAX;
        until("the daemon stops reading", || {
            std::thread::sleep(Duration::from_millis(100));
            std::mem::replace(&mut before, pair.daemon.bytes_read()) == before
        });
        assert!(before < LARGE / 4, "{daemon} | {proxy}: {before} bytes read for nobody");
        let mut buf = vec![0; 1 << 20];
        let mut left = LARGE;
        // The first bytes may have come with the head.
        while left > 4 << 20 {
            let got = client.tcp.read(&mut buf).unwrap() as u64;
            assert!(got > 0, "{daemon} | {proxy}: ended {left} bytes early");
            left -= got;
        }
    }
}

#[test]
fn a_client_that_takes_nothing_is_given_up() {
    for (daemon, proxy) in WAYS {
        let pair = with_large(daemon, &format!("{proxy} --send-timeout 300ms"));
        let client = ask_large(&pair);
        until("the daemon is told", || pair.daemon_counter("broken") == 1);
        drop(client);
        assert_eq!(pair.get("/none", "").status, 404);
    }
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    for (daemon, proxy) in WAYS {
        let pair = with_large(daemon, proxy);
        pair.get("/none", "");
        let before = (pair.daemon.descriptors(), pair.proxy.descriptors());
        for round in 0..20 {
            let mut client = ask_large(&pair);
            if round % 2 == 0 {
                let _ = client.tcp.read(&mut [0; 10_000]);
            }
            drop(client);
            // In the middle of a request head, too.
            pair.client().send("GET /lar");
        }
        until("the bodies are broken off", || pair.daemon_counter("broken") == 20);
        until("the descriptors are back", || {
            // One kept backend connection more or less is no leak.
            pair.daemon.descriptors() <= before.0 + 4 && pair.proxy.descriptors() <= before.1 + 6
        });
        assert_eq!(pair.get("/none", "").status, 404);
    }
}

#[test]
fn idle_clients_are_let_go() {
    let pair = Pair::start("", "--idle-timeout 1s");
    pair.file("a", 5);
    assert!(pair.client().ended());
    // A client without a CPU may be let go before it has asked, and asks again.
    until("who was answered is let go then", || {
        let mut client = pair.client();
        let _ = std::io::Write::write_all(&mut client.tcp, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        status_of(&client.rest()) == 200
    });
}

#[test]
fn one_client_more_than_allowed_waits() {
    let pair = Pair::start("", "--max-clients 2");
    pair.file("a", 5);
    let (mut one, mut two) = (pair.client(), pair.client());
    assert_eq!((one.get("/a").status, two.get("/a").status), (200, 200));
    let mut three = pair.client();
    three.tcp.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    three.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(three.tcp.read(&mut [0; 10]).is_err());
    drop(one);
    three.tcp.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(three.response("GET").status, 200);
}

#[test]
fn ten_thousand_idle_clients() {
    const MANY: usize = 10_000;
    // What the proxy keeps for itself, for its backend and for what was lent to it.
    const ROOM: u64 = 4000;
    // (It changes its process's limits.)
    alone!();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if maximum.is_some_and(|most| most < MANY as u64 + ROOM) {
        println!("lacking: {} open files (ulimit -Hn: {maximum:?})", MANY as u64 + ROOM);
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let pair = Pair::start("", "");
    pair.file("a", 5);
    let start = Instant::now();
    let mut clients: Vec<TcpStream> = Vec::with_capacity(MANY);
    for _ in 0..MANY {
        clients.push(TcpStream::connect(pair.addr).unwrap());
    }
    // Each has asked once, and stays.
    for (i, tcp) in clients.iter_mut().enumerate() {
        if i % 10 == 0 {
            tcp.set_read_timeout(Some(SOON)).unwrap();
            std::io::Write::write_all(tcp, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut buf = [0; 2048];
            assert!(tcp.read(&mut buf).unwrap() > 0);
        }
    }
    until("all are in", || pair.proxy.descriptors() > MANY);
    let status = std::fs::read_to_string(format!("/proc/{}/status", pair.proxy.child.id())).unwrap();
    let kib: usize = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    eprintln!(
        "{MANY} idle clients after {:?}; the proxy has {kib} KiB, {} B each",
        start.elapsed(),
        kib * 1024 / MANY
    );
    // A new one is served meanwhile, and an old one too.
    assert_eq!(pair.get("/a", "").status, 200);
    let mut old = Client::connect(pair.addr);
    assert_eq!(old.get("/a").status, 200);
    drop(clients);
    until("all have left", || pair.proxy.descriptors() < 100);
    assert_eq!(pair.get("/a", "").status, 200);
}

/// Who asks without a pause has his turns, and others theirs. (These are answered by the proxy itself, which need never wait
/// for anything then.)
#[test]
fn one_who_never_stops_asking_keeps_nobody_waiting() {
    let pair = Pair::start("", "--threads 1");
    pair.file("a", 5);
    let flood = pair.client().tcp;
    let (mut asking, mut hearing) = (flood.try_clone().unwrap(), flood.try_clone().unwrap());
    let asks = std::thread::spawn(move || {
        let many = b"GET /% HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
        while std::io::Write::write_all(&mut asking, &many).is_ok() {}
    });
    let hears = std::thread::spawn(move || while hearing.read(&mut [0; 64 << 10]).is_ok_and(|n| n > 0) {});
    for _ in 0..2 {
        assert_eq!(pair.get("/a", "").status, 200);
    }
    flood.shutdown(std::net::Shutdown::Both).unwrap();
    asks.join().unwrap();
    hears.join().unwrap();
}

/// A head that has come is not late because the proxy had no CPU, however many pieces it is read in.
#[test]
fn a_long_head_that_has_come_is_not_late() {
    let pair = Pair::start("", "--head-timeout 1s --threads 1");
    pair.file("a", 5);
    until("it was in time until it was stopped", || {
        let mut client = pair.client();
        let began = Instant::now();
        client.send("GET /a HTTP/1.1\r\n");
        std::thread::sleep(Duration::from_millis(50));
        pair.proxy.stop();
        let in_time = began.elapsed() < Duration::from_millis(500);
        let fields: String = (0..6).map(|i| format!("X-{i}: {}\r\n", "x".repeat(1000))).collect();
        client.send(&format!("{fields}Host: x\r\n\r\n"));
        std::thread::sleep(Duration::from_millis(1100));
        pair.proxy.signal(rustix::process::Signal::CONT);
        let status = client.response("GET").status;
        assert!(status == 200 || !in_time, "{status}");
        in_time
    });
}

/// A body that is dropped may not hold a connection for longer than a head may; neither may half a head, at the daemon.
#[test]
fn what_drips_is_given_up() {
    let pair = Pair::start("", "--head-timeout 1s");
    pair.file("a", 5);
    let mut client = pair.client();
    client.send("GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    until("the proxy gives it up", || {
        std::thread::sleep(Duration::from_millis(50));
        std::io::Write::write_all(&mut client.tcp, b"x").is_err()
    });
    let daemon = |pair: &Pair| {
        let stream = std::os::unix::net::UnixStream::connect(pair.dir.path().join("s")).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Client::over(stream)
    };
    let pair = Pair::start("--head-timeout 300ms", "");
    let mut half = daemon(&pair);
    half.send("GET /a HTTP/1.1\r\nHo");
    assert_eq!(half.response("GET").status, 408);
    assert!(half.ended());
    // One after the other, and longer than that: a connection may be idle. Where this process or the daemon had no CPU for as long
    // as a head may take, that says nothing.
    let pair = Pair::start("--head-timeout 3s", "");
    pair.file("a", 5);
    let in_halves = |slow: &mut Client<std::os::unix::net::UnixStream>| {
        slow.send("GET /a HTTP/1.1\r\n");
        std::thread::sleep(Duration::from_millis(100));
        slow.send("Host: x\r\n\r\n");
        slow.response("GET").status
    };
    until("both are answered", || {
        let mut slow = daemon(&pair);
        [0, 3200].into_iter().all(|pause| {
            std::thread::sleep(Duration::from_millis(pause));
            let began = Instant::now();
            let status = in_halves(&mut slow);
            assert!(
                status == 200 || began.elapsed() > Duration::from_secs(1),
                "{status} for the pause before it"
            );
            status == 200
        })
    });
}
