//! `onecopy ss`, looking at a daemon and a proxy at work.

use crate::harness::*;
use onecopy::advanced::registry;
use onecopy_testing::alone;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output};

fn onecopy(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_onecopy")).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// The sockets of these processes.
fn sockets(pids: &[u32]) -> Vec<Value> {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut args = vec!["ss", "--json"];
    args.extend(pids.iter().flat_map(|pid| ["--pid", pid]));
    let output = onecopy(&args);
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect()
}

#[test]
fn what_was_sent_is_what_is_shown() {
    let mut pair = Pair::start("--cache 64M --lend never", "");
    let content = pair.file("a", 1_000_000);
    let mut client = pair.client();
    for _ in 0..3 {
        assert!(client.get("/a").body == content);
    }
    let (daemon, proxy) = (pair.daemon.child.id(), pair.proxy.child.id());
    let path = pair.dir.path().join("s").display().to_string();
    let shown = sockets(&[daemon, proxy]);
    let one = |pid: u32, state: &str| {
        let found: Vec<_> = shown.iter().filter(|s| s["pid"] == pid && s["state"] == state).collect();
        assert_eq!(found.len(), 1, "{shown:#?}");
        found[0].clone()
    };
    let listening = one(daemon, "listening");
    assert_eq!(
        (&listening["type"], &listening["path"], &listening["command"]),
        (&"stream".into(), &path.clone().into(), &"onecopy".into())
    );
    let (server, client) = (one(daemon, "connected"), one(proxy, "connected"));
    assert_eq!((&server["peer_pid"], &client["peer_pid"]), (&proxy.into(), &daemon.into()));
    assert_eq!((&server["peer_inode"], &client["peer_inode"]), (&client["inode"], &server["inode"]));
    for end in [&server, &client] {
        assert_eq!(end["path"], path, "{end:#}");
        assert_eq!((&end["receive"], &end["send"]), (&"shared memory".into(), &"shared memory".into()));
        assert_eq!((&end["type"], &end["queue"]), (&"stream".into(), &0.into()));
        assert_eq!((&end["policy"], &end["counters"]["protocol_errors"]), (&"auto".into(), &0.into()));
    }
    assert_eq!((&server["reader"], &client["nonblocking"]), (&"other-core".into(), &true.into()));
    assert_eq!(server["send_capacity"], client["receive_capacity"]);
    let count = |end: &Value, name: &str| end["counters"][name].as_u64().unwrap();
    assert_eq!(count(&server, "sent"), count(&client, "received"));
    assert_eq!(count(&client, "sent"), count(&server, "received"));
    // Three bodies, and heads.
    assert!((3_000_000..3_003_000).contains(&count(&server, "sent")), "{server:#}");
    assert!(count(&server, "user_copied_in") >= 2_000_000 && count(&client, "kernel_copied") >= 3_000_000);
    // For a person: the same, in a table.
    let table = String::from_utf8(onecopy(&["ss"]).stdout).unwrap();
    assert!(table.starts_with("type") && table.contains(&format!("{daemon} onecopy")), "{table}");
    assert!(table.contains("stream listening") && table.contains(&path), "{table}");

    for program in [&mut pair.proxy, &mut pair.daemon] {
        program.signal(Signal::TERM);
        assert_eq!(program.end(), Some(0));
    }
    assert_eq!(sockets(&[daemon, proxy]), Vec::<Value>::new());
}

#[test]
fn what_waits_is_the_queue() {
    let pair = Pair::start("", "");
    std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
    let mut client = pair.client();
    // The answer to a connection's first request may come over the kernel, whose queue is not the ring's.
    assert_eq!(client.get("/none").status, 404);
    client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().0, 200);
    let proxy = pair.proxy.child.id();
    let daemon = pair.daemon.child.id();
    until("a client that does not read fills the proxy's ring", || {
        let shown = sockets(&[daemon, proxy]);
        let end = |pid: u32| shown.iter().find(|s| s["pid"] == pid && s["state"] == "connected").cloned();
        let (Some(server), Some(end)) = (end(daemon), end(proxy)) else { return false };
        let stalls = server["counters"]["fillers"].as_u64().unwrap();
        end["queue"].as_u64().unwrap() > end["receive_capacity"].as_u64().unwrap() / 4 && stalls > 0
    });
}

#[test]
fn plain_peers_and_killed_processes() {
    let mut pair = Pair::start("", "--transport kernel");
    pair.file("a", 5);
    let mut client = pair.client();
    assert_eq!(client.get("/a").status, 200);
    let daemon = pair.daemon.child.id();
    let shown = sockets(&[daemon]);
    let end = shown.iter().find(|s| s["state"] == "connected").unwrap();
    assert_eq!((&end["send"], &end["counters"]["fallbacks"]), (&"kernel".into(), &1.into()));
    assert_eq!(end["peer_pid"], pair.proxy.child.id());
    pair.daemon.signal(Signal::KILL);
    pair.daemon.end();
    assert!(sockets(&[daemon]).is_empty());
}

#[test]
fn what_only_looks_like_a_table_is_passed_over() {
    alone!();
    let make = |bytes: &[u8]| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("onecopy-stats", flags).unwrap();
        rustix::io::write(&memfd, bytes).unwrap();
        memfd
    };
    let fakes: Vec<OwnedFd> = vec![make(b""), make(b"ONECOPYS garbage"), make(&noise(100_000, 7))];
    // Told of once, however many descriptors of it there are.
    let _more: Vec<OwnedFd> = (0..100).map(|_| fakes[0].try_clone().unwrap()).collect();
    let _pair = Pair::start("", "");
    let output = onecopy(&["ss", "--json", "--verbose"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let mine = format!("passed over: a table of process {}: the memfd lacks seals", std::process::id());
    assert_eq!(said.matches(&mine).count(), 3, "{said}");
    let listening = String::from_utf8(output.stdout).unwrap();
    assert!(listening.contains("\"listening\""), "{listening}");
    // Not a word about it unless asked.
    assert!(onecopy(&["ss"]).stderr.is_empty());
}

/// A table that is as it should be, but says again and again what it has no business to say.
#[test]
fn what_others_say_of_our_sockets_is_passed_over() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it's \"mine\"");
    let listener = onecopy::unix::Listener::bind(path.as_path()).unwrap();
    let inode = rustix::fs::fstat(&listener).unwrap().st_ino;
    let shown = || {
        let of = |socket: &Value| (socket["inode"] == inode).then(|| socket["path"].clone());
        sockets(&[std::process::id()]).iter().filter_map(of).collect::<Vec<_>>()
    };
    let name = Value::from(path.display().to_string());
    assert_eq!(shown(), std::slice::from_ref(&name));
    // Our own table, with the listener's row in all of its places.
    const ROW: usize = 256;
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap().path());
    let is_ours = |table: &Vec<u8>| table.len() == registry::SIZE && table.starts_with(b"ONECOPYS");
    let is_table =
        |fd: &PathBuf| std::fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().contains(registry::NAME));
    let mut table = fds.filter(is_table).find_map(|fd| std::fs::read(fd).ok().filter(is_ours)).unwrap();
    let row = table.chunks(ROW).find(|row| row[8..16] == inode.to_ne_bytes()).unwrap().to_vec();
    table[16..24].copy_from_slice(&(registry::SIZE as u64 / ROW as u64).to_ne_bytes());
    table[ROW..].chunks_mut(ROW).for_each(|place| place.copy_from_slice(&row));
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let forged = std::fs::File::from(rustix::fs::memfd_create(registry::NAME, flags).unwrap());
    forged.write_all_at(&table, 0).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(&forged, seals).unwrap();
    assert_eq!(shown(), [name.clone(), name.clone()], "once a table");
    // What another user made is not believed of ours. (Only root can make one look so.)
    if !rustix::process::geteuid().is_root() {
        return println!("lacking: root, to make a table look like another user's");
    }
    rustix::fs::fchown(&forged, Some(rustix::process::Uid::from_raw(65534)), None).unwrap();
    assert_eq!(shown(), [name]);
    let said = String::from_utf8(onecopy(&["ss", "--verbose"]).stderr).unwrap();
    let told = " says of 1 sockets of other users than its own";
    assert!(said.contains("passed over: what a table of process ") && said.contains(told), "{said}");
}

/// Sockets of this very process: a pair over shared memory, and one over the kernel.
#[test]
fn records_and_datagrams_too() {
    use onecopy::unix::{Datagram, SeqPacket};
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d");
    let (a, b) = Datagram::pair().unwrap();
    let bound = Datagram::bind(path.as_path()).unwrap();
    let (c, _d) = SeqPacket::pair().unwrap();
    for datagram in [&b"one"[..], b"three"] {
        a.send(datagram).unwrap();
    }
    c.send(b"record").unwrap();
    let mut buffer = [0; 9];
    assert_eq!(b.recv(&mut buffer).unwrap(), 3);
    let own = std::process::id();
    let shown = sockets(&[own]);
    let of = |kind: &str, test: &dyn Fn(&Value) -> bool| {
        let found: Vec<_> = shown.iter().filter(|s| s["type"] == kind && test(s)).collect();
        assert_eq!(found.len(), 1, "{shown:#?}");
        found[0].clone()
    };
    let count = |end: &Value, name: &str| end["counters"][name].as_u64().unwrap();
    let sender = of("dgram", &|s| s["counters"]["sent"] == 8);
    let receiver = of("dgram", &|s| s["counters"]["received"] == 3);
    for end in [&sender, &receiver] {
        assert_eq!((&end["receive"], &end["send"]), (&"shared memory".into(), &"shared memory".into()));
        assert_eq!(count(end, "protocol_errors"), 0);
    }
    assert_eq!(sender["peer_inode"], receiver["inode"]);
    assert!(receiver["queue"].as_u64().unwrap() >= 5, "{receiver:#}");
    let kernel = of("dgram", &|s| s["path"] == path.display().to_string());
    assert_eq!((&kernel["receive"], &kernel["peer_pid"]), (&"kernel".into(), &Value::Null));
    assert_eq!(of("seqpacket", &|s| s["counters"]["sent"] == 6)["send"], "shared memory");
    let table = String::from_utf8(onecopy(&["ss", "--pid", &own.to_string()]).stdout).unwrap();
    assert!(table.contains("dgram kernel") && table.contains("seqpacket"), "{table}");
    drop((a, b, bound));
    assert!(!sockets(&[own]).iter().any(|s| s["type"] == "dgram"));
}

/// Sockets of this very process that no descriptor names: on two stacks, joined by a cable.
#[test]
fn sockets_on_a_stack_too() {
    use onecopy::advanced::link::Tap;
    use onecopy::{Stack, tcp};
    alone!();
    let (a, b) = Tap::cable(1500).unwrap();
    let a = Stack::builder().link(a).address("10.0.0.1/24").build().unwrap();
    let b = Stack::builder().link(b).address("10.0.0.2/24").build().unwrap();
    let at = "10.0.0.2:80".parse().unwrap();
    let listener = tcp::Listener::bind(&b, at).unwrap();
    let client = tcp::Stream::connect(&a, at).unwrap();
    let (server, from) = listener.accept().unwrap();
    let waiting = tcp::Stream::connect(&a, at).unwrap();
    client.send(b"unread").unwrap();
    // Both are there once the next connection's bytes and its own are.
    while server.readable_bytes().unwrap() < 6 || sockets(&[std::process::id()]).len() < 4 {
        std::thread::yield_now();
    }
    let shown = sockets(&[std::process::id()]);
    let one = |local: &str, state: &str| {
        let of = |s: &&Value| s["local"] == local && s["state"] == state;
        let found: Vec<_> = shown.iter().filter(of).collect();
        assert_eq!(found.len(), 1, "{local} {state}: {shown:#?}");
        found[0].clone()
    };
    let accepted = one("10.0.0.2:80", "established");
    assert_eq!((&accepted["protocol"], &accepted["type"]), (&"tcp".into(), &"stream".into()));
    assert_eq!(accepted["remote"], from.to_string());
    assert_eq!((&accepted["queue"], &accepted["receive"]), (&6.into(), &"stack".into()));
    assert_eq!(one(&from.to_string(), "established")["counters"]["sent"], 6);
    assert_eq!(one("10.0.0.2:80", "listening")["remote"], Value::Null);
    assert_eq!(one(&waiting.local_addr().unwrap().to_string(), "established")["remote"], "10.0.0.2:80");
    let table = String::from_utf8(onecopy(&["ss", "--pid", &std::process::id().to_string()]).stdout).unwrap();
    let line = table.lines().find(|line| line.starts_with("tcp listening")).unwrap();
    assert!(line.ends_with(" 10.0.0.2:80"), "{table}");
}
