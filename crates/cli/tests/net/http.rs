//! HTTP with the programs of others: curl and Python fetch from us and send to us, and we fetch from Python's server.

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

/// Serves one request by our nc: its answer goes once `until` says so. Returns what came.
fn serve(world: &World, client: &str, answer: &[u8], until: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let came = dir.path().join("came");
    // (What comes is looked at while it does.)
    let ours = [&[env!("CARGO_BIN_EXE_onecopy"), "nc", "-l", "80", "-v"], &BOTH[..]].concat().join(" ");
    let mut command = Command::new("bash");
    let mut server = world.start(command.args(["-c", &format!("exec {ours} > {}", came.display())]));
    server.listens();
    let mut command = Command::new("bash");
    let client = world.start(command.args(["-c", client]).env("no_proxy", "*"));
    while !until(&std::fs::read(&came).unwrap_or_default()) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.feed(answer);
    client.end().well();
    server.end().well();
    std::fs::read(&came).unwrap()
}

/// Whether a request is there, with a body of so many bytes.
fn is_whole(request: &[u8], body: usize) -> bool {
    let head = request.windows(4).position(|at| at == b"\r\n\r\n");
    head.is_some_and(|end| request.len() >= end + 4 + body)
}

#[test]
fn curl_and_python_send_to_our_nc() {
    let Some(world) = World::new(&["curl", "python3"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let body = dir.path().join("body");
    std::fs::write(&body, noise(BODY)).unwrap();
    let file = body.display();
    let curl = format!("curl -sS --fail --noproxy '*' --max-time 100 -H Expect: -T {file} http://{OURS}/one");
    let python = format!(
        "python3 -c 'import urllib.request as r; \
         r.urlopen(r.Request(\"http://{OURS}/one\", open(\"{file}\", \"rb\").read(), method=\"PUT\"), timeout=100)'"
    );
    for client in [curl, python] {
        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let came = serve(&world, &client, answer, |request| is_whole(request, BODY));
        assert!(came.starts_with(b"PUT /one HTTP/1.1\r\n"), "{client}");
        assert!(came.ends_with(&noise(BODY)) && came.len() < BODY + 1000, "{client}");
    }
}

#[test]
fn python_fetches_from_our_nc() {
    let Some(world) = World::new(&["python3"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let body = dir.path().join("body");
    let client = format!(
        "python3 -c 'import urllib.request as r; \
         open(\"{}\", \"wb\").write(r.urlopen(\"http://{OURS}/one\", timeout=100).read())'",
        body.display()
    );
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\nConnection: close\r\n\r\n");
    let answer = [head.as_bytes(), &noise(BODY)].concat();
    let came = serve(&world, &client, &answer, |request| is_whole(request, 0));
    assert!(came.starts_with(b"GET /one HTTP/1.1\r\n"));
    assert!(std::fs::read(&body).unwrap() == noise(BODY));
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
