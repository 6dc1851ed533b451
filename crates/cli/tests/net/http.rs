//! HTTP with the programs of others: curl fetches from us, and we from Python's server.

use crate::harness::noise;
use crate::world::{BOTH, KERNEL, OURS, World};
use std::process::Command;

const BODY: usize = 3_000_000;

#[test]
fn curl_fetches_from_our_nc() {
    let Some(world) = World::new(&["curl"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (answer, body) = (dir.path().join("answer"), dir.path().join("body"));
    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {BODY}\r\nConnection: close\r\n\r\n");
    std::fs::write(&answer, [head.as_bytes(), &noise(BODY)].concat()).unwrap();
    let mut server = world.onecopy(&[&["nc", "-l", "80", "-v", "--send", answer.to_str().unwrap()], &BOTH]);
    server.listens();
    world.does(&format!(
        "curl -sS --fail --noproxy '*' --max-time 100 -o {} http://{OURS}/one",
        body.display()
    ));
    assert!(std::fs::read(&body).unwrap() == noise(BODY));
    let server = server.end().well();
    assert!(server.text().starts_with("GET /one HTTP/1.1\r\n"), "{}", server.text());
}

#[test]
fn our_nc_fetches_from_pythons_server() {
    let Some(world) = World::new(&["python3"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), noise(BODY)).unwrap();
    let mut python = Command::new("python3");
    python.args(["-u", "-m", "http.server", "--bind", "0.0.0.0", "8000"]).current_dir(dir.path());
    let server = world.start(&mut python);
    let listens = || world.shell("grep -q ':1F40 00000000:0000 0A' /proc/net/tcp").status.success();
    while !listens() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut client = world.onecopy(&[&["nc"], &BOTH, &[KERNEL, "8000"]]);
    client.feed(b"GET /file HTTP/1.0\r\n\r\n");
    let client = client.end().well();
    let end = client.out.windows(4).position(|at| at == b"\r\n\r\n").unwrap();
    assert!(client.out.starts_with(b"HTTP/1.0 200 OK\r\n"));
    assert!(client.out[end + 4..] == noise(BODY), "{} bytes", client.out.len());
    drop(server);
}
