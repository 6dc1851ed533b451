//! What daemon and proxy say of their copies, beside what strace(1) sees of their calls.
//!
//! strace sees each call that copies a body (read, write, pread, pwrite, send, recv and their kin) and each that passes one on by
//! reference (sendfile, splice). It does not see what a program's own CPU copies, nor what the kernel copies inside sendfile
//! and splice. So the kernel's copies and the references are compared with it, and the user copies with what each way is
//! known to need.

use crate::harness::*;
use crate::tls::Made;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

/// Bytes of the file that is asked for: no whole number of any buffer.
const FILE: u64 = (1 << 20) + 12_345;

/// What is asked for, in this order, on one connection (on one each, where the proxy ends it): the file, and parts of it.
const ASKED: [(u64, u64); 4] = [(0, FILE), (100_000, 400_000), (0, FILE), (0, FILE)];

/// Bytes that are copied beside the bodies, at most: heads, the handshake of TLS and what its records add, doorbells. One copy of
/// the smallest body is six times as much.
const BESIDE: u64 = 64 << 10;

/// What the daemon reserves at once, and what the proxy receives at once: as much of a connection's first body may be copied
/// once more in user space, where the move from the kernel to memory falls into it.
const SLOT: u64 = 128 << 10;
const STEP: u64 = 256 << 10;

/// The calls that copy.
const COPIES: [&str; 15] = [
    "read",
    "readv",
    "pread64",
    "preadv",
    "preadv2",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "recvfrom",
    "recvmsg",
    "sendto",
    "sendmsg",
    "copy_file_range",
];

/// The calls that move references. What goes through a pipe goes through splice twice: once it counts.
const MOVES: [&str; 2] = ["sendfile", "splice"];

/// Calls by which bytes could go past this count.
const UNSEEN: [&str; 3] = ["recvmmsg", "sendmmsg", "io_uring_enter"];

/// How strace shows the bytes by which a stream turns off POLLOUT while its ring is full. They are no body's; what is served
/// here has no eight zeroes in a row.
const FILLER: &str = r#""\0\0\0\0\0\0\0\0""#;

/// One way of the bytes: its name, flags of daemon and proxy, and what its CPUs copy for each byte.
struct Way {
    name: &'static str,
    daemon: &'static str,
    proxy: &'static str,
    user: User,
}

/// Who copies a body in user space.
#[derive(Clone, Copy, PartialEq)]
enum User {
    Nobody,
    /// The daemon, from its memory into the ring: what does not go over the kernel. Whether with non-temporal stores.
    Daemon {
        nt: bool,
    },
}

const fn way(name: &'static str, daemon: &'static str, proxy: &'static str, user: User) -> Way {
    Way { name, daemon, proxy, user }
}

/// The ways for clients without TLS.
const PLAIN: [Way; 10] = [
    way("lent", "", "", User::Nobody),
    way("lent, sendfile", "", "--send-lent sendfile", User::Nobody),
    way("lent, splice", "", "--send-lent splice", User::Nobody),
    way("cached", "--lend never --policy cached", "", User::Daemon { nt: false }),
    way("nt", "--lend never --policy nt", "", User::Daemon { nt: true }),
    way("kernel", "--transport kernel", "--transport kernel", User::Nobody),
    way("kernel-splice", "--transport kernel", "--transport kernel --forward splice", User::Nobody),
    way(
        "kernel-sendfile",
        "--transport kernel --file-send sendfile",
        "--transport kernel --forward splice",
        User::Nobody,
    ),
    way(
        "sendfile, then copied",
        "--transport kernel --file-send sendfile",
        "--transport kernel",
        User::Nobody,
    ),
    way("direct", "--direct", "--direct --trust-backend", User::Nobody),
];

/// The ways that TLS leaves open.
const SECURE: [Way; 4] = [
    way("cached", "--policy cached", "", User::Daemon { nt: false }),
    way("nt", "--policy nt", "", User::Daemon { nt: true }),
    way("kernel", "--transport kernel", "--transport kernel", User::Nobody),
    way("kernel-sendfile", "--transport kernel --file-send sendfile", "--transport kernel", User::Nobody),
];

/// Where the daemon has its bytes from: each of the ways with each of these makes 28 modes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// Files, in the page cache.
    File,
    /// The daemon's memory, which it reads the file into at the first request.
    Memory,
}

#[test]
fn plain_from_files() {
    all(&PLAIN, Source::File, false);
}

#[test]
fn plain_from_memory() {
    all(&PLAIN, Source::Memory, false);
}

#[test]
fn over_tls() {
    all(&SECURE, Source::File, true);
    all(&SECURE, Source::Memory, true);
}

fn all(ways: &[Way], source: Source, secure: bool) {
    if let Err(why) = tracing() {
        // The line by which the run of all checks tells it aloud at its end.
        return println!("lacking: {why}, so nobody counts the copies of daemon and proxy from outside");
    }
    for way in ways {
        judge(way, source, secure);
    }
}

/// Whether strace is there, and may trace.
pub fn tracing() -> Result<(), String> {
    let said = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).output();
    match said {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "strace, which may not trace here ({})",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(why) => Err(format!("strace, which cannot be run ({why})")),
    }
}

/// What was seen from outside of one program.
#[derive(Debug, Default)]
struct Seen {
    copied: u64,
    moved: u64,
}

fn strace(dir: &Path) -> Command {
    let mut command = Command::new("strace");
    let calls = [&COPIES[..], &MOVES, &UNSEEN].concat().join(",");
    // A file for each thread: no call is cut in two by another thread's. What a descriptor is stands behind its number.
    command.args(["-ff", "-qq", "-y", "-s", "8", "-e", "signal=none", "-e", &format!("trace={calls}"), "-o"]);
    command.arg(dir.join("calls"));
    command
}

/// Adds up what the traces of all threads say of bodies' descriptors.
fn read(dir: &Path) -> Seen {
    let mut seen = Seen::default();
    for entry in std::fs::read_dir(dir).unwrap() {
        for line in std::fs::read_to_string(entry.unwrap().path()).unwrap().lines() {
            count(line, &mut seen);
        }
    }
    seen
}

fn count(line: &str, seen: &mut Seen) {
    let Some((call, rest)) = line.split_once('(') else { return };
    assert!(!UNSEEN.contains(&call), "teach this test to count {line}");
    // The last one: a path, or what is in brackets, may have anything in it. What failed has -1.
    let result = rest.rsplit_once(" = ").map_or("", |(_, result)| result);
    let Ok(bytes) = result.split(' ').next().unwrap_or("").parse::<u64>() else { return };
    let from = |text: &str| {
        ["<socket:", "<UNIX", "<TCP", "/memfd:onecopy-object", "/files/"]
            .iter()
            .any(|mark| text.contains(mark))
    };
    let first = rest.split(", ").next().unwrap_or("");
    if rest.contains(FILLER) {
        return;
    }
    match call {
        "sendfile" => seen.moved += bytes,
        "splice" if first.contains("<pipe:") => seen.moved += bytes,
        "splice" => {}
        _ if from(first) => seen.copied += bytes,
        _ => {}
    }
}

#[test]
fn traces_are_read() {
    let mut seen = Seen::default();
    for line in [
        "pread64(7</tmp/.tmpX/files/f>, \"\"..., 262144, 0) = 262144",
        "pwrite64(8</memfd:onecopy-object (deleted)>, \"\"..., 1000, 0) = 1000",
        "sendto(9<socket:[123]>, \"\"..., 500, MSG_NOSIGNAL, NULL, 0) = 20",
        "recvfrom(9<socket:[123]>, 0x7f, 500, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)",
        "write(2<pipe:[9]>, \"\"..., 500) = 500",
        "read(3</usr/lib/libc.so>, \"\"..., 832) = 832",
        "splice(9<socket:[1]>, NULL, 4<pipe:[2]>, NULL, 1048576, SPLICE_F_MOVE) = 4",
        "splice(4<pipe:[2]>, NULL, 9<socket:[1]>, NULL, 4, SPLICE_F_MOVE) = 3",
        "sendfile(9<socket:[1]>, 8</memfd:onecopy-object (deleted)>, [0] => [7], 7) = 7",
        r#"sendto(9<socket:[1]>, "\0\0\0\0\0\0\0\0"..., 131073, MSG_DONTWAIT, NULL, 0) = 131073"#,
        "+++ exited with 0 +++",
    ] {
        count(line, &mut seen);
    }
    assert_eq!((seen.copied, seen.moved), (262_144 + 1000 + 20, 10));
}

fn judge(way: &Way, source: Source, secure: bool) {
    let what = format!("{}, {source:?}{}", way.name, if secure { ", TLS" } else { "" });
    let (dir, made) = (tempfile::tempdir().unwrap(), Made::new());
    for name in ["files", "daemon", "proxy"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    let content = noise(FILE as usize, 3);
    std::fs::write(dir.path().join("files/f"), &content).unwrap();
    let traced = |name: &'static str| {
        let dir = dir.path().join(name);
        move |args: &[&str]| Running::traced(&mut strace(&dir), args)
    };
    let memory = if source == Source::Memory { " --cache 64M" } else { "" };
    let mut daemon = start_daemon_by(traced("daemon"), dir.path(), &format!("{}{memory}", way.daemon));
    let tls = if secure { made.flags() } else { String::new() };
    let (mut proxy, addr) =
        start_proxy_by(traced("proxy"), dir.path(), &format!("{} --threads 1 {tls}", way.proxy));

    let bodies: u64 = ASKED.iter().map(|(_, length)| length).sum();
    match secure {
        true => ask(&mut made.client(addr), &content),
        false => ask(&mut Client::connect(addr), &content),
    }
    let of = |stats: &Value, name: &str| stats[name].as_u64().unwrap_or(0);
    let done = |stats: &Value| of(stats, "requests") == ASKED.len() as u64;
    let (front, back) = (proxy.stats(done), daemon.stats(done));
    for program in [&mut proxy, &mut daemon] {
        program.signal(Signal::TERM);
        assert_eq!(program.end(), Some(0), "{what}");
    }
    let lines = [daemon.line("copies per byte"), proxy.line("copies per byte")];

    let lent = way.name.starts_with("lent");
    if lent && source == Source::File && of(&back, "lent") == 0 {
        return println!("lacking: a kernel that says what the page cache holds, so no file is lent");
    }
    // Whose bodies they are: each byte was sent by the proxy, or by the daemon in its place.
    let direct = way.name == "direct";
    let sent = (of(&back, "body_bytes"), of(&back, "lent_bytes"));
    assert_eq!(sent, if lent { (0, bodies) } else { (bodies, 0) }, "{what}: {back:#}");
    let passed = (of(&front, "body_bytes"), of(&front, "direct_bytes"));
    assert_eq!(passed, (bodies, if direct { bodies } else { 0 }), "{what}: {front:#}");
    assert_eq!((of(&back, "broken"), of(&front, "broken")), (0, 0), "{what}");
    let cache = if source == Source::Memory { (1, ASKED.len() as u64 - 1) } else { (0, 0) };
    assert_eq!((of(&back, "cache_fills"), of(&back, "cache_hits")), cache, "{what}: {back:#}");

    // The kernel's copies, and what it moved.
    for (name, stats, line) in [("daemon", &back, &lines[0]), ("proxy", &front, &lines[1])] {
        let seen = read(&dir.path().join(name));
        let (copied, moved) = (of(stats, "kernel_copied"), of(stats, "referenced"));
        assert_eq!(moved, seen.moved, "{what}: {name} {stats:#}");
        assert!(
            (copied..=copied + BESIDE).contains(&seen.copied),
            "{what}: {name} says {copied}, strace {seen:?}: {stats:#}"
        );
        // What it prints at its end is the same, and of copies that it cannot know it says so.
        assert!(line.contains(&format!(" {} body bytes", of(stats, "body_bytes"))), "{what}: {line}");
        assert_eq!(moved > 0, line.contains("sendfile and splice"), "{what}: {line}");
        assert!(moved == 0 || !line.contains("kernel 0.00"), "{what}: {line}");
    }

    // Copies in user space: one by the daemon of each byte in memory that the kernel did not take to the proxy, and those of TLS.
    let user = of(&back, "user_copied");
    let filled = 2 * FILE * cache.0;
    match (way.user, source) {
        (User::Daemon { nt }, Source::Memory) => {
            let all = user + of(&back, "kernel_copied") - filled;
            assert!((bodies..=bodies + BESIDE).contains(&all), "{what}: {back:#}");
            assert!(user > bodies / 2, "{what}: {back:#}");
            let stored = of(&back, "user_copied_nt");
            assert!(
                if nt { stored > user - BESIDE && stored <= user } else { stored == 0 },
                "{what}: {back:#}"
            );
        }
        // (What is reserved before the move to memory may be copied there.)
        _ => assert!(user <= SLOT + 1000 && (way.user != User::Nobody || user == 0), "{what}: {back:#}"),
    }
    let ciphers = match (secure, way.name) {
        (false, _) => 0,
        (true, name) if name.starts_with("kernel") => 1,
        (true, _) => 2,
    };
    // (Bytes in memory that are received behind bytes of the kernel are copied, too: once, in a step of the proxy's.)
    let more = if way.user == User::Nobody { 0 } else { STEP };
    let user = of(&front, "user_copied");
    assert!((ciphers * bodies..=ciphers * bodies + more).contains(&user), "{what}: {front:#}");
    // By whom it is read, each side says of what it sends: the daemon knows it of a lent socket, too, and not of a lent body.
    let known = |stats: &Value| of(stats, "reader_cpu") + of(stats, "reader_none");
    assert_eq!(known(&back), sent.0, "{what}: {back:#}");
    assert_eq!(known(&front), if direct { 0 } else { bodies }, "{what}: {front:#}");
}

fn ask<S: Read + Write>(client: &mut Client<S>, content: &[u8]) {
    for (start, length) in ASKED {
        let end = start + length - 1;
        client.send(&format!("GET /f HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{end}\r\n\r\n"));
        let response = client.response("GET");
        assert_eq!((response.status, response.short), (206, false));
        assert!(response.body == content[start as usize..=end as usize]);
    }
}

/// Of bodies that a client left, the daemon says that it lent them, and the proxy what it sent.
#[test]
fn what_is_lent_is_not_yet_sent() {
    let pair = Pair::start("--cache 64M", "");
    let length = 20 << 20;
    pair.file("f", length);
    for _ in 0..5 {
        let mut client = pair.client();
        client.send("GET /f HTTP/1.1\r\nHost: x\r\n\r\n");
        client.some(100);
    }
    let lent = 5 * length as u64;
    pair.counts(&[("body_bytes", 0), ("referenced", 0), ("lent", 5), ("lent_bytes", lent)]);
    let stats = pair.proxy.stats(|stats| stats["broken"] == 5);
    assert!(stats["body_bytes"].as_u64().unwrap() < lent, "{stats:#}");
}
