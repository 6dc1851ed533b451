//! What there is little of: lines to the backend, memory, descriptors, time.

use crate::harness::*;
use rustix::net::sockopt::set_socket_recv_buffer_size;
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
            eprintln!("skipped: this kernel does not say what the page cache holds");
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
    let one = |(daemon, proxy): (&str, &str)| {
        let pair = Pair::start(daemon, &format!("{proxy} --send-timeout 3s"));
        let content = pair.file("large", LENGTH);
        let mut client = slow(pair.addr);
        let (start, mut body) = (Instant::now(), Vec::new());
        // So slowly that there is no such event within the limit, and for longer than that.
        while start.elapsed() < 2 * limit {
            body.extend(client.some(1 << 10));
            std::thread::sleep(Duration::from_millis(20));
        }
        body.extend(client.some(LENGTH - body.len()));
        assert!(body == content, "{daemon} | {proxy}");
    };
    std::thread::scope(|all| {
        for way in ways {
            all.spawn(move || one(way));
        }
    });
}
