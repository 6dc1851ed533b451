//! `nc` over the kernel and over unix sockets: nothing that takes a privilege.

use crate::harness::{Running, SOON, noise, onecopy};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

/// A file goes from one `nc` to another: the same bytes, the same sum at both sides, and every copy counted.
#[test]
fn a_file_goes_over_the_kernels_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let data = noise(3_000_001);
    std::fs::write(&from, &data).unwrap();
    let args = ["nc", "-l", "127.0.0.1:0", "-v", "--json", "--sum", "--recv", to.to_str().unwrap()];
    let mut server = Running::start(&mut onecopy(&args));
    let at = server.listens();
    let client =
        Running::start(&mut onecopy(&["nc", &at, "--json", "--sum", "--send", from.to_str().unwrap()]));
    let (client, server) = (client.end().well().report(), server.end().well().report());
    assert!(std::fs::read(&to).unwrap() == data);
    let len = data.len() as u64;
    assert_eq!((&client["sent"]["bytes"], &server["received"]["bytes"]), (&len.into(), &len.into()));
    assert_eq!(client["sent"]["sha256"], server["received"]["sha256"]);
    assert_eq!(client["sent"]["sha256"], sha256sum(&from));
    // Read and written, by either.
    for report in [&client, &server] {
        assert_eq!(
            (&report["kernel_copied"], &report["user_copied"]),
            (&(2 * len).into(), &0.into()),
            "{report}"
        );
        assert_eq!((&report["sent"]["over"], &report["cut"]), (&"kernel".into(), &serde_json::Value::Null));
    }
    assert_eq!((&client["local"], &client["peer"]), (&server["peer"], &server["local"]));
}

/// The same through io_uring: it needs no privilege either, and is told. Each copy of the kernel's is counted, the file's among them.
#[test]
fn a_file_goes_over_the_kernels_tcp_by_io_uring() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let data = noise(3_000_001);
    std::fs::write(&from, &data).unwrap();
    let way = ["nc", "--transport", "kernel-uring", "--json", "-v"];
    let mut listen = way.to_vec();
    listen.extend(["-l", "127.0.0.1:0", "--recv", to.to_str().unwrap()]);
    if !may_use_io_uring() {
        return;
    }
    let mut server = Running::start(&mut onecopy(&listen));
    let at = server.listens();
    let mut connect = way.to_vec();
    connect.extend([&at, "--send", from.to_str().unwrap()]);
    let client = Running::start(&mut onecopy(&connect));
    let (client, server) = (client.end().well().report(), server.end().well().report());
    assert!(std::fs::read(&to).unwrap() == data);
    let len = data.len() as u64;
    for (report, way) in [(&client, "sent"), (&server, "received")] {
        assert_eq!(
            (&report[way]["bytes"], &report[way]["over"]),
            (&len.into(), &"kernel, by io_uring".into())
        );
        assert_eq!((&report["user_copied"], &report["tap"]), (&0.into(), &serde_json::Value::Null));
    }
    assert_eq!(server["kernel_copied"], 2 * len);
}

/// What everybody else says of the file.
fn sha256sum(path: &std::path::Path) -> String {
    let out = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(out.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

/// The end of standard input is a half-close: the peer sees it, and still answers.
#[test]
fn both_ways_and_each_has_its_end() {
    let mut server = Running::start(&mut onecopy(&["nc", "-l", "127.0.0.1:0", "-v"]));
    let at = server.listens();
    let mut client = Running::start(&mut onecopy(&["nc", &at]));
    client.feed(b"question");
    server.line("is connected to");
    // The client has ended what it sends; the server has not, so both are there.
    assert!(client.child.try_wait().unwrap().is_none());
    server.feed(b"answer");
    assert_eq!(client.end().well().text(), "answer");
    let server = server.end().well();
    assert_eq!(server.text(), "question");
    assert!(server.said.iter().any(|line| line.contains("received 8 bytes")), "{:?}", server.said);
    assert!(server.said.iter().any(|line| line.contains("over the kernel's TCP")), "{:?}", server.said);
}

/// With --no-shutdown the peer hears of the end only when it has ended itself.
#[test]
fn the_end_may_be_kept_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let mut client = Running::start(&mut onecopy(&["nc", "--no-shutdown", &at]));
    client.feed(b"all");
    let (mut peer, _) = listener.accept().unwrap();
    let mut three = [0; 3];
    peer.read_exact(&mut three).unwrap();
    peer.write_all(b"heard").unwrap();
    client.all_asleep();
    peer.set_nonblocking(true).unwrap();
    // (Were the end there, this would be Ok(0). The client's standard input has ended before its bytes were sent on.)
    assert!(peer.read(&mut three).is_err());
    peer.set_nonblocking(false).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.end().well().text(), "heard");
    assert_eq!(peer.read(&mut three).unwrap(), 0);
}

#[test]
fn a_file_goes_over_shared_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, name) = (dir.path().join("from"), dir.path().join("to"), dir.path().join("s"));
    let data = noise(20_000_003);
    std::fs::write(&from, &data).unwrap();
    for sum in [false, true] {
        let with = |args: &[&str]| {
            let mut args = args.to_vec();
            args.extend(["--json", "--unix", name.to_str().unwrap()]);
            args.extend(sum.then_some("--sum"));
            Running::start(&mut onecopy(&args))
        };
        let mut server = with(&["nc", "-l", "-v", "--recv", to.to_str().unwrap()]);
        server.listens();
        let client = with(&["nc", "--send", from.to_str().unwrap()]).end().well().report();
        let server = server.end().well().report();
        assert!(std::fs::read(&to).unwrap() == data);
        let len = data.len() as u64;
        assert_eq!((&client["sent"]["bytes"], &server["received"]["bytes"]), (&len.into(), &len.into()));
        assert_eq!(client["sent"]["sha256"], server["received"]["sha256"]);
        assert_eq!(client["sent"]["sha256"].is_string(), sum);
        assert_eq!(client["sent"]["over"], "shared memory", "{client}");
        // What was read to where it is sent from, and written from where it was received, no CPU copied in user space.
        let copied = [&client, &server].map(|report| report["user_copied"].as_u64().unwrap());
        match sum {
            true => assert!(copied.iter().all(|copied| *copied >= len / 2), "{client} {server}"),
            false => assert!(copied.iter().all(|copied| *copied < len / 2), "{client} {server}"),
        }
        assert!(!name.exists(), "the listener's file is gone");
    }
}

/// A client that the machine keeps waiting just after its connect still finds whom it is connected to: strace holds it there, while the
/// server accepts it and reads.
#[test]
fn a_client_that_is_kept_waiting_after_its_connect() {
    let strace = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    if !strace.is_ok_and(|status| status.success()) {
        println!("lacking: strace that may trace, so nobody is kept waiting");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (from, name) = (dir.path().join("from"), dir.path().join("s"));
    std::fs::write(&from, noise(1_000_000)).unwrap();
    let mut server = Running::start(&mut onecopy(&["nc", "-l", "-v", "-U", name.to_str().unwrap()]));
    server.listens();
    server.feed(b"");
    let slow = ["-f", "-o", "/dev/null", "-e", "trace=connect", "-e", "inject=connect:delay_exit=200000"];
    let nc = onecopy(&["nc", "--json", "-U", name.to_str().unwrap(), "--send", from.to_str().unwrap()]);
    let mut client = Command::new("strace");
    client.args(slow).arg(nc.get_program()).args(nc.get_args());
    let client = Running::start(&mut client).end().well().report();
    assert_eq!(client["sent"]["over"], "shared memory", "{client}");
    server.end().well();
}

#[test]
fn a_plain_peer_of_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("s");
    let mut server = Running::start(&mut onecopy(&["nc", "-l", "-v", "-U", name.to_str().unwrap()]));
    server.listens();
    let mut peer = std::os::unix::net::UnixStream::connect(&name).unwrap();
    server.feed(b"hello");
    let mut hello = String::new();
    peer.read_to_string(&mut hello).unwrap();
    assert_eq!(hello, "hello");
    peer.write_all(b"bye").unwrap();
    drop(peer);
    let server = server.end().well();
    assert_eq!(server.text(), "bye");
    assert!(
        server.said.iter().any(|line| line.contains("over a unix socket, by the kernel")),
        "{:?}",
        server.said
    );
}

#[test]
fn a_signal_while_it_waits_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("s");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut server = Running::start(&mut onecopy(&["nc", "-l", "-v", "-U", name.to_str().unwrap()]));
        server.listens();
        assert!(name.exists());
        server.signal(signal);
        assert_eq!(server.end().status.code(), Some(code));
        assert!(!name.exists());
    }
}

/// What was done until Ctrl-C is told, and that it was cut short.
#[test]
fn a_signal_in_the_middle_is_told() {
    let mut server = Running::start(&mut onecopy(&["nc", "-l", "127.0.0.1:0", "-v", "--json"]));
    let mut peer = TcpStream::connect(server.listens()).unwrap();
    server.child.stdin.as_mut().unwrap().write_all(b"so far").unwrap();
    peer.read_exact(&mut [0; 6]).unwrap();
    server.all_asleep();
    server.signal(Signal::INT);
    // The peer sees the end, too.
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    let server = server.end();
    assert_eq!(server.status.code(), Some(130));
    let report = server.report();
    assert_eq!((&report["sent"]["bytes"], &report["cut"]), (&6.into(), &"SIGINT".into()), "{report}");
}

/// Whether there is io_uring for the kernel's transport; says so if not.
fn may_use_io_uring() -> bool {
    let may = onecopy::Stack::builder().transport(onecopy::Transport::Kernel).build().is_ok();
    if !may {
        println!("lacking: io_uring");
    }
    may
}

#[test]
fn datagrams_go_both_ways() {
    datagrams(&["nc", "--udp"], "kernel");
}

#[test]
fn datagrams_go_both_ways_by_io_uring() {
    if may_use_io_uring() {
        datagrams(&["nc", "--udp", "--transport", "kernel-uring"], "kernel, by io_uring");
    }
}

/// `nc` is called so, and its peer has a socket of the kernel's.
fn datagrams(nc: &[&str], over: &str) {
    let with = |more: &[&str]| Running::start(&mut onecopy(&[nc, more].concat()));
    let mut server = with(&["-l", "127.0.0.1:0", "-v", "--json"]);
    let at = server.listens();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(&at).unwrap();
    client.send(b"one").unwrap();
    server.line("send to each other");
    server.child.stdin.as_mut().unwrap().write_all(b"two").unwrap();
    let mut got = [0; 16];
    assert_eq!(client.recv(&mut got).unwrap(), 3);
    assert_eq!(&got[..3], b"two");
    server.signal(Signal::TERM);
    let server = server.end();
    assert_eq!((server.status.code(), server.text()), (Some(143), "one"));
    let report = server.report();
    assert_eq!((&report["family"], &report["received"]["bytes"]), (&"udp".into(), &3.into()));
    assert_eq!((&report["received"]["over"], &report["sent"]["over"]), (&over.into(), &over.into()));

    // Our client: it ends, since it was told to, and what it sent has come.
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap().to_string();
    let mut client = with(&[&at, "-q", "10ms"]);
    client.feed(b"a datagram");
    client.end().well();
    assert_eq!(server.recv(&mut got).unwrap(), 10);
}

/// A file goes to a socket of the kernel's and comes back from it. All of it has room in the buffers at either side, so nothing is lost.
#[test]
fn a_file_goes_over_the_kernels_udp_by_io_uring_and_comes_back() {
    if !may_use_io_uring() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let data = noise(70_001);
    std::fs::write(&from, &data).unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    let at = peer.local_addr().unwrap().to_string();
    let files = ["--send", from.to_str().unwrap(), "--recv", to.to_str().unwrap()];
    let way = ["nc", "--udp", "--transport", "kernel-uring", "--json", "--sum", &at];
    let client = Running::start(&mut onecopy(&[way.as_slice(), &files].concat()));
    let (mut got, mut buffer) = (Vec::new(), vec![0; 65_536]);
    while got.len() < data.len() {
        let (n, whence) = peer.recv_from(&mut buffer).unwrap();
        got.extend_from_slice(&buffer[..n]);
        peer.send_to(&buffer[..n], whence).unwrap();
    }
    assert!(got == data, "what came is not what was sent");
    let begun = Instant::now();
    while std::fs::metadata(&to).map_or(0, |file| file.len()) < data.len() as u64 {
        assert!(begun.elapsed() < SOON, "it does not come back");
        std::thread::sleep(Duration::from_millis(5));
    }
    // What has come back is not counted as sent before the thread that sends has run again.
    client.all_asleep();
    client.signal(Signal::TERM);
    let client = client.end();
    assert_eq!(client.status.code(), Some(143), "{:?}", client.said);
    let report = client.report();
    assert!(std::fs::read(&to).unwrap() == data);
    for way in ["sent", "received"] {
        assert_eq!(report[way]["sha256"], sha256sum(&from), "{report}");
        assert_eq!((&report[way]["over"], &report["tap"]), (&"kernel, by io_uring".into(), &Value::Null));
    }
    // From the file and to it, and over the sockets.
    assert_eq!(report["kernel_copied"], 4 * data.len());
}

/// Whoever waits for standard input waits asleep.
#[test]
fn it_is_idle_while_nothing_happens() {
    let mut server = Running::start(&mut onecopy(&["nc", "-l", "127.0.0.1:0", "-v"]));
    let mut peer = TcpStream::connect(server.listens()).unwrap();
    server.child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
    peer.read_exact(&mut [0]).unwrap();
    server.all_asleep();
    drop(peer);
    server.end().well();
}

#[test]
fn a_reader_of_standard_output_that_goes_is_no_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let script = format!("\"$0\" nc -d {at} | head -c 3; exit ${{PIPESTATUS[0]}}");
    let mut bash = Command::new("bash");
    let client = Running::start(bash.args(["-c", &script, env!("CARGO_BIN_EXE_onecopy")]));
    let (mut peer, _) = listener.accept().unwrap();
    // Until it hears that nobody listens.
    while peer.write_all(&[b'x'; 1000]).is_ok() {}
    assert_eq!(client.end().well().text(), "xxx");
}
