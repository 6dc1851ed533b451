//! nginx behind our proxy, before our daemon, and fetched from: over the kernel's TCP and over a stack of ours.

use crate::harness::{Running, noise};
use crate::world::{BOTH, KERNEL, OURS, World};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const BODY: usize = 3_000_001;

/// A folder with a file in it.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/f"), noise(BODY)).unwrap();
    dir
}

/// nginx in `world`, with a server as `server` says. It is one process, so that it ends with this one. Waits until `answers`, arguments of
/// curl's, gets an answer.
fn nginx(world: &World, dir: &Path, server: &str, answers: &str) -> Running {
    let at = dir.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary.map(|what| format!("{what}_temp_path {at}/{what};\n")).concat();
    let conf = dir.join("nginx.conf");
    let text = format!(
        "daemon off; master_process off; user root; pid {at}/pid; error_log stderr;
        events {{ }}
        http {{ access_log off; sendfile on; {temporary} server {{ {server} }} }}"
    );
    std::fs::write(&conf, text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(dir).arg("-c").arg(&conf).args(["-e", "stderr"]);
    let running = world.start(&mut command);
    let ask = format!("curl -s --noproxy '*' --max-time 60 -o /dev/null {answers}");
    world.does(&format!("for i in $(seq 3000); do {ask} && exit; sleep .02; done; exit 1"));
    running
}

/// curl gets the file, a part of it, and hears that another is not there, on one connection; and eight get it at once.
fn curl(world: &World, dir: &Path, at: &str) {
    let to = dir.display();
    let curl = "curl -sS --noproxy '*' --max-time 100";
    let said = world.does(&format!(
        "set -e
        {curl} -w '%{{http_code}} %{{num_connects}} ' -o {to}/whole http://{at}/f -o {to}/none http://{at}/none
        {curl} -f -w '%{{http_code}}' -r 100000-1999999 -o {to}/part http://{at}/f
        for i in 1 2 3 4 5 6 7 8; do {curl} -f -o {to}/many$i http://{at}/f & pids+=($!); done
        for pid in ${{pids[@]}}; do wait $pid; done"
    ));
    assert_eq!(said, "200 1 404 0 206");
    let content = noise(BODY);
    assert!(std::fs::read(dir.join("whole")).unwrap() == content);
    assert!(std::fs::read(dir.join("part")).unwrap() == content[100_000..2_000_000]);
    assert!((1..9).all(|i| std::fs::read(dir.join(format!("many{i}"))).unwrap() == content));
}

#[test]
fn it_stands_behind_our_proxy() {
    let Some(world) = World::new(&["nginx", "curl"]) else { return };
    let dir = folder();
    let socket = dir.path().join("nginx.sock");
    let server = format!("listen unix:{}; root {}/files;", socket.display(), dir.path().display());
    let _nginx = nginx(&world, dir.path(), &server, &format!("--unix-socket {} http://x/", socket.display()));
    let backend = format!("unix:{}", socket.display());
    for (at, flags) in [(format!("{OURS}:80"), &BOTH[..]), ("127.0.0.1:8080".to_owned(), &[])] {
        let mut proxy = world.onecopy(&[&["proxy", "--listen", &at, "--backend", &backend], flags]);
        proxy.line("onecopy proxy: http");
        curl(&world, dir.path(), &at);
        proxy.signal(rustix::process::Signal::TERM);
        proxy.end().well();
    }
}

#[test]
fn it_stands_before_our_daemon() {
    let Some(world) = World::new(&["nginx", "curl"]) else { return };
    let dir = folder();
    let root = dir.path().join("files");
    let listen = format!("tcp:{OURS}:9000");
    let mut daemon =
        world.onecopy(&[&["serve", "--root", root.to_str().unwrap(), "--listen", &listen], &BOTH]);
    daemon.line("onecopy serve:");
    let server = format!(
        "listen 127.0.0.1:8080;
        location / {{ proxy_pass http://{OURS}:9000; proxy_http_version 1.1; proxy_set_header Connection ''; }}"
    );
    let _nginx = nginx(&world, dir.path(), &server, "http://127.0.0.1:8080/");
    curl(&world, dir.path(), "127.0.0.1:8080");
    daemon.signal(rustix::process::Signal::TERM);
    daemon.end().well();
}

#[test]
fn our_nc_fetches_from_it() {
    let Some(world) = World::new(&["nginx", "curl"]) else { return };
    let dir = folder();
    let server = format!("listen 0.0.0.0:8000; root {}/files;", dir.path().display());
    let _nginx = nginx(&world, dir.path(), &server, "http://127.0.0.1:8000/");
    // (nginx drops a client that has shut its way down, whatever it has asked for.)
    let mut client = world.onecopy(&[&["nc", "--no-shutdown"], &BOTH, &[KERNEL, "8000"]]);
    client.feed(b"GET /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let client = client.end().well();
    let end = client.out.windows(4).position(|at| at == b"\r\n\r\n").unwrap();
    assert!(client.out.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert!(client.out[end + 4..] == noise(BODY), "{} bytes", client.out.len());
}
