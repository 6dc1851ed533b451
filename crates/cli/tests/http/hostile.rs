//! Backends that mean harm, or are broken in a way that could do as much: what they say must not reach the wrong client.

use crate::harness::*;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;

const EVIL: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL";

/// A onecopy backend that has `answer` say what to write for each request (its number on that connection).
fn backend(dir: &Path, answer: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static) {
    let listener = onecopy::unix::Listener::bind(dir.join("s").as_path()).unwrap();
    let answer = std::sync::Arc::new(answer);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                let mut n = 0;
                while let Ok(1..) = stream.read(&mut head) {
                    if stream.write_all(&answer(n)).is_err() {
                        return;
                    }
                    n += 1;
                }
            });
        }
    });
}

/// No sum of what a backend says may come out smaller than what it says.
#[test]
fn lengths_beyond_all_sense() {
    for flags in ["", "--transport kernel", "--transport kernel --forward splice"] {
        for length in
            ["18446744073709551615", "18446744073709551600", "9223372036854775808", "18446744073709551616"]
        {
            let dir = tempfile::tempdir().unwrap();
            backend(dir.path(), move |_| {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nhello").into_bytes()
            });
            let (proxy, addr) = start_proxy(dir.path(), &format!("{flags} --threads 1"));
            for _ in 0..3 {
                let mut client = Client::connect(addr);
                assert_eq!(client.get("/").status, 502, "{flags} {length}");
                // A promise to nobody is no better.
                client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
                assert_eq!(client.response("HEAD").status, 502, "{flags} {length}");
            }
            proxy.line("Content-Length");
            proxy.stats(|stats| stats["backend_bad"] == 6);
        }
    }
}

/// The longest that makes sense is passed on, as far as it comes.
#[test]
fn the_longest_length() {
    for flags in ["", "--transport kernel", "--transport kernel --forward splice"] {
        let dir = tempfile::tempdir().unwrap();
        backend(dir.path(), |_| {
            b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999\r\n\r\nhello".to_vec()
        });
        let (_proxy, addr) = start_proxy(dir.path(), &format!("{flags} --threads 1"));
        let mut client = Client::connect(addr);
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        let (status, head) = client.head();
        assert_eq!(status, 200, "{flags}");
        assert!(head.contains("Content-Length: 999999999999999999\r\n"));
        assert_eq!(client.some(5), b"hello");
    }
}

/// A request head that a backend has not taken yet cannot be what it answers.
#[test]
fn what_comes_before_a_request_has_gone_out_is_no_answer() {
    for flags in ["--buffer 4K --transport kernel", "--buffer 4K --transport kernel --forward splice"] {
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        let (taken, connections) = mpsc::channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let taken = taken.clone();
                std::thread::spawn(move || {
                    // The first byte of a head that does not fit into what lies between them.
                    let _ = stream.read(&mut [0]);
                    let _ = stream.write_all(EVIL);
                    let mut most = [0; 4096];
                    let mut tail = Vec::new();
                    while !tail.ends_with(b"\r\n\r\n") {
                        match stream.read(&mut most) {
                            Ok(n @ 1..) => tail.extend_from_slice(&most[..n]),
                            _ => break,
                        }
                    }
                    let _ = taken.send(stream.read(&mut most).unwrap_or(0));
                });
            }
        });
        let (proxy, addr) = start_proxy(dir.path(), &format!("{flags} --threads 1 --max-head 64K"));
        let mut client = Client::connect(addr);
        client.send(&format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(60_000)));
        let response = client.response("GET");
        assert!(!response.body.windows(4).any(|word| word == b"EVIL"), "{flags}");
        assert_eq!(response.status, 502, "{flags}");
        proxy.line("before it was asked");
        assert_eq!(connections.recv_timeout(SOON), Ok(0), "{flags}: the connection is used no more");
        proxy.stats(|stats| stats["backend_bad"] == 1);
    }
}

fn ask(addr: SocketAddr, method: &str) -> Response {
    let mut client = Client::connect(addr);
    client.send(&format!("{method} / HTTP/1.1\r\nHost: x\r\n\r\n"));
    client.response(method)
}

/// Interim answers are few.
#[test]
fn a_flood_of_interim_answers_ends() {
    for flags in ["", "--transport kernel"] {
        let dir = tempfile::tempdir().unwrap();
        backend(dir.path(), |_| b"HTTP/1.1 100 Continue\r\n\r\n".repeat(5000));
        let (proxy, addr) = start_proxy(dir.path(), &format!("{flags} --threads 1"));
        assert_eq!(ask(addr, "GET").status, 502, "{flags}");
        proxy.line("interim");
    }
}

/// Bytes behind an answer: the connection is not used again, whatever the way.
#[test]
fn what_follows_an_answer_costs_the_connection() {
    for flags in ["", "--transport kernel", "--transport kernel --forward splice"] {
        let dir = tempfile::tempdir().unwrap();
        let (first, connections) = mpsc::channel();
        let first = std::sync::Mutex::new(first);
        backend(dir.path(), move |n| {
            let _ = first.lock().unwrap().send(n);
            [&b"HTTP/1.1 304 Not Modified\r\n\r\n"[..], EVIL].concat()
        });
        let (_proxy, addr) = start_proxy(dir.path(), &format!("{flags} --threads 1"));
        for _ in 0..5 {
            let response = ask(addr, "GET");
            assert!([304, 502].contains(&response.status), "{flags}: {response:?}");
            assert!(response.body.windows(4).all(|word| word != b"EVIL"), "{flags}");
            assert_eq!(connections.recv_timeout(SOON), Ok(0), "{flags}: a connection each");
        }
    }
}
