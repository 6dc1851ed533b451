//! A peer that is killed. What it had sent arrives whole and in order, and then calls fail with the kernel's
//! errno. The peer is this program, run again as [`the_peer`].

use onecopy_testing::{alone, asleep};
use onecopy_unix::{RecvFlags, SendFlags, SocketAddr};
use onecopy_unix_dgram::Datagram;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;
const PEER: &str = "ONECOPY_TEST_DGRAM_PEER";
/// Rounds to and fro, after which both have moved to shared memory.
const ROUNDS: u32 = 60;

fn bytes(n: u64) -> Vec<u8> {
    let len = 8 + (n * 7919 % 3000) as usize;
    let mut bytes = vec![n as u8; len];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// The other process: echoes some datagrams, then does what it is told until it is killed. It notes in a file
/// what it has sent.
#[test]
fn the_peer() {
    let Ok(what) = std::env::var(PEER) else { return };
    let (job, name) = what.split_once(' ').unwrap();
    let socket = Datagram::bind(SocketAddr::from_abstract_name(format!("{name}-peer")).unwrap()).unwrap();
    socket.connect(SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    socket.send(b"here").unwrap();
    let mut buffer = [0; 9];
    for _ in 0..ROUNDS {
        let n = socket.recv(&mut buffer).unwrap();
        socket.send(&buffer[..n]).unwrap();
    }
    let progress = File::create(std::env::temp_dir().join(name)).unwrap();
    match job {
        "send" => {
            for n in 0u64.. {
                socket.send(&bytes(n)).unwrap();
                progress.write_all_at(&(n + 1).to_le_bytes(), 0).unwrap();
            }
        }
        "receive" => loop {
            socket.recv(&mut [0; 9000]).unwrap();
        },
        _ => loop {
            sleep(Duration::from_secs(1));
        },
    }
}

struct Peer {
    socket: Datagram,
    child: Child,
    progress: PathBuf,
}

impl Peer {
    fn start(job: &str, what: &str) -> Peer {
        let name = format!("onecopy-kill-{what}-{}", std::process::id());
        let socket = Datagram::bind(SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_peer", "--nocapture"])
            .env(PEER, format!("{job} {name}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let peer = Peer { socket, child, progress: std::env::temp_dir().join(name) };
        let socket = &peer.socket;
        socket.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
        let (n, from) = socket.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(n, 4);
        socket.connect(&from).unwrap();
        for n in 0..ROUNDS {
            socket.send(&[n as u8]).unwrap();
            let mut back = [0; 9];
            assert_eq!(socket.recv(&mut back).unwrap(), 1);
            assert_eq!(u32::from(back[0]), n);
        }
        assert!(socket.path().is_shared_memory(), "{:?}", socket.path());
        peer
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn sent(&self) -> u64 {
        let mut bytes = [0; 8];
        // The peer may have been killed before it made the file.
        let read = File::open(&self.progress).and_then(|file| file.read_exact_at(&mut bytes, 0));
        read.map_or(0, |()| u64::from_le_bytes(bytes))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
        let _ = std::fs::remove_file(&self.progress);
    }
}

fn errno<T: std::fmt::Debug>(result: onecopy_unix::Result<T>) -> Errno {
    Errno::from_raw_os_error(result.unwrap_err().raw_os_error())
}

/// Returns the error of the first send that fails. A sender with room notices within a moment.
fn refused(socket: &Datagram) -> Errno {
    let begin = Instant::now();
    loop {
        // The time is that when the call begins. This thread may have no CPU for any time before its next
        // look at the clock. But a send that begins so late after the death must notice it.
        let late = begin.elapsed() > Duration::from_millis(500);
        match socket.send_with_flags(b"x", NOW) {
            Ok(_) => assert!(!late, "nobody notices"),
            Err(error) if error.would_block() => sleep(Duration::from_millis(1)),
            error => return errno(error),
        }
    }
}

/// Checks for what the kernel's own socket does when its peer was killed. Measured: ECONNREFUSED, then
/// ENOTCONN, and poll reports nothing else.
fn is_over(socket: &Datagram) {
    assert_eq!(refused(socket), Errno::CONNREFUSED);
    assert_eq!(errno(socket.send_with_flags(b"x", NOW)), Errno::NOTCONN);
    assert_eq!(errno(socket.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
    let mut fds = [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    assert_eq!(fds[0].revents(), PollFlags::OUT);
    assert!(!socket.path().is_shared_memory());
    assert_eq!(socket.stats().protocol_errors, 0);
}

#[test]
fn what_a_killed_sender_had_sent_arrives() {
    alone!();
    for round in 0..12u64 {
        let mut peer = Peer::start("send", &format!("send-{round}"));
        let (mut next, mut buffer) = (0u64, [0; 4000]);
        let mut take = |socket: &Datagram, flags| match socket.recv_with_flags(&mut buffer, flags) {
            Ok(n) => {
                assert_eq!(buffer[..n], bytes(next), "datagram {next}");
                next += 1;
                true
            }
            Err(error) => {
                assert!(error.would_block(), "{error}");
                false
            }
        };
        // The peer is killed while it runs, or while it waits for room.
        for _ in 0..round * 211 {
            assert!(take(&peer.socket, RecvFlags::empty()));
        }
        if round % 2 == 0 {
            sleep(Duration::from_millis(round * 3));
        }
        peer.kill();
        while take(&peer.socket, LOOK) {}
        let sent = peer.sent();
        assert!(next == sent || next == sent + 1, "{sent} were sent, {next} arrived");
        is_over(&peer.socket);
    }
}

#[test]
fn who_waits_for_room_is_told_that_the_peer_was_killed() {
    alone!();
    let mut peer = Peer::start("idle", "room");
    while peer.socket.send_with_flags(&[7; 1000], NOW).is_ok() {}
    std::thread::scope(|s| {
        let sender = asleep(s, || errno(peer.socket.send(&[7; 1000])));
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&peer.child),
            rustix::process::Signal::KILL,
        );
        assert_eq!(sender.join().unwrap(), Errno::CONNREFUSED);
    });
    peer.kill();
    assert_eq!(errno(peer.socket.send_with_flags(b"x", NOW)), Errno::NOTCONN);
}

#[test]
fn a_sender_with_room_notices_within_a_moment() {
    alone!();
    for round in 0..4 {
        let mut peer = Peer::start("receive", &format!("receive-{round}"));
        for n in 0..2000 {
            peer.socket.send(&bytes(n)).unwrap();
        }
        peer.kill();
        assert_eq!(refused(&peer.socket), Errno::CONNREFUSED);
        assert_eq!(errno(peer.socket.send_with_flags(b"x", NOW)), Errno::NOTCONN);
    }
}
