//! `--direct`: what is lent to a daemon that hangs, dies, or has half a request.

use crate::counted::tracing;
use crate::harness::*;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::mpsc::channel;

/// A daemon that is stopped has the client's socket and does nothing with it: the client is let go in time, and the daemon's
/// descriptor is of no use when it goes on.
#[test]
fn a_stopped_daemon_keeps_no_client() {
    for trust in ["", "--trust-backend"] {
        let pair = Pair::start("--direct", &format!("--direct {trust} --backend-timeout 1s --threads 1"));
        let content = pair.file("f", 300_000);
        // A daemon without a CPU is not told from one that is stopped: it is asked until it had one.
        let mut asked = 0;
        let mut answers = || {
            asked += 1;
            pair.try_get("/f").is_some_and(|response| response.body == content)
        };
        until("it answers", &mut answers);
        // The proxy has heard that the loan is over.
        let stats = pair.proxy.stats(|stats| stats["requests"] == asked);
        let count = |stats: &serde_json::Value, name: &str| stats[name].as_u64().unwrap();
        let (late, broken) = (count(&stats, "backend_late"), count(&stats, "broken"));
        let before = pair.proxy.descriptors();
        pair.daemon.stop();
        let mut clients: Vec<_> = (0..5).map(|_| pair.client()).collect();
        for client in &mut clients {
            client.send("GET /f HTTP/1.1\r\nHost: x\r\n\r\n");
        }
        for client in &mut clients {
            assert_eq!(client.rest(), "", "an end, and nothing made up");
        }
        pair.proxy.line("has the client's socket and does not go on");
        pair.proxy
            .stats(|stats| (count(stats, "backend_late"), count(stats, "broken")) == (late + 5, broken + 5));
        until("all is closed", || pair.proxy.descriptors() <= before);
        pair.daemon.signal(Signal::CONT);
        until("it answers again", || pair.try_get("/f").is_some_and(|response| response.body == content));
        until("the daemon's are closed too", || {
            pair.daemon_counter("direct") + pair.daemon_counter("broken") >= 2
        });
    }
}

/// In the middle of a body: what the client has not got it does not get, and is not told that it has.
#[test]
fn a_daemon_that_stops_in_a_body_keeps_no_client() {
    let pair = Pair::start("--direct", "--direct --backend-timeout 1s --send-timeout 10m");
    std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
    let (mut client, mut asked) = (pair.client(), 0);
    // A daemon without a CPU is one that stops, too.
    until("it begins an answer", || {
        (client, asked) = (pair.client(), asked + 1);
        client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
        client.try_head().is_some()
    });
    pair.daemon.stop();
    assert!(client.count() < 256 << 20);
    pair.proxy.stats(|stats| stats["backend_late"] == asked);
}

/// One that died before it had sent anything: the usual way is open, and tells what is wrong.
#[test]
fn a_loan_that_comes_back_is_answered() {
    let mut pair = Pair::start("--direct", "--direct --trust-backend --threads 1");
    pair.file("f", 300_000);
    let mut client = pair.client();
    assert_eq!(client.get("/f").status, 200);
    // Else it might be stopped, and end, before it has said that this loan is over: what it has written is then all of an answer,
    // or a part, for all that the proxy knows.
    pair.proxy.stats(|stats| stats["direct"] == 1);
    pair.daemon.stop();
    client.send("GET /f HTTP/1.1\r\nHost: x\r\n\r\n");
    // The loan lies with the daemon, which has not looked at it, when it ends: the proxy's one thread comes to the second
    // client behind the first.
    assert_eq!(pair.get("/%", "").status, 400);
    pair.daemon.signal(Signal::KILL);
    pair.daemon.end();
    assert_eq!(client.response("GET").status, 502);
    pair.daemon = start_daemon(pair.dir.path(), "--direct");
    assert_eq!(client.get("/f").status, 200, "and the connection goes on");
}

/// What the daemon wrote before it died counts from the moment in which the loan was on its way: the proxy may come to look at the
/// socket only when all of it has been written and acknowledged.
#[test]
fn a_loan_that_was_begun_does_not_come_back() {
    if let Err(why) = tracing() {
        return println!("lacking: a way to look at a process ({why})");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/f"), "whole").unwrap();
    let _usual = start_daemon(dir.path(), "");
    let listener = UnixListener::bind(dir.path().join("s.direct")).unwrap();
    let slow = |args: &[&str]| {
        let mut strace = Command::new("strace");
        // Each look at a socket takes that long (microseconds); the daemon below does not.
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=getsockopt"]);
        Running::traced(strace.args(["-e", "inject=getsockopt:delay_enter=400000"]), args)
    };
    let (proxy, addr) = start_proxy_by(slow, dir.path(), "--direct --trust-backend --threads 1");
    let (taken, begun) = channel();
    std::thread::spawn(move || {
        let (loans, _) = listener.accept().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut head = [0; 4096];
        let slices = &mut [IoSliceMut::new(&mut head)];
        recvmsg(&loans, slices, &mut beside, RecvFlags::CMSG_CLOEXEC).unwrap();
        let Some(RecvAncillaryMessage::ScmRights(mut lent)) = beside.drain().next() else {
            panic!("a socket is lent");
        };
        let mut client = File::from(lent.next().unwrap());
        client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart").unwrap();
        drop(client);
        begun.recv().unwrap();
    });
    let mut client = Client::connect(addr);
    client.send("GET /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(client.head().0, 200);
    assert_eq!(client.some(4), b"part");
    taken.send(()).unwrap();
    assert_eq!(client.rest(), "", "no other answer goes on from there");
    proxy.line("it ended while it had the client's socket");
}

/// A client that takes nothing while the daemon writes is the proxy's to give up, too: the daemon may be a patient one.
#[test]
fn a_client_that_takes_nothing_of_a_loan_is_given_up() {
    let pair = Pair::start("--direct --send-timeout 10m", "--direct --send-timeout 1s");
    std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
    let mut client = pair.client();
    client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().0, 200);
    until("the daemon is told", || pair.daemon_counter("broken") == 1);
}

/// A word of the daemon that nobody waits for is not the end of the next loan.
#[test]
fn an_early_word_ends_no_loan() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("s.direct")).unwrap();
    let (proxy, addr) = start_proxy(dir.path(), "--direct --trust-backend --threads 1");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // The answer itself goes nowhere: a descriptor that nobody receives with recvmsg is closed.
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"done\ndone\n");
        }
    });
    let mut client = Client::connect(addr);
    client.send("GET /f HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(client.ended());
    proxy.line("makes no sense");
}

/// A half head holds a thread of the daemon no longer than a head may take.
#[test]
fn half_heads_hold_no_threads() {
    let pair = Pair::start("--direct --head-timeout 300ms", "");
    pair.get("/none", "");
    let before = pair.daemon.threads();
    let connect = |pair: &Pair| {
        let stream = UnixStream::connect(pair.dir.path().join("s.direct")).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    };
    let mut half: Vec<_> = (0..20).map(|_| connect(&pair)).collect();
    for stream in &mut half {
        stream.write_all(b"GET /f HTTP/1.1\r\nHo").unwrap();
    }
    for stream in half.iter_mut() {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is let go");
    }
    until("their threads have ended", || pair.daemon.threads() <= before);
    // Nor does one that says nothing at all, in the time of an idle connection.
    let pair = Pair::start("--direct --idle-timeout 300ms", "");
    let before = pair.daemon.threads();
    let mut silent = connect(&pair);
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    until("its thread has ended", || pair.daemon.threads() <= before);
}
