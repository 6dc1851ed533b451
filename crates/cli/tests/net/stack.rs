//! `onecopy stack`, and `nc` on it, with the kernel and the programs of others.

use crate::harness::{Running, noise, onecopy};
use crate::world::{BOTH, KERNEL, OURS, World};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

/// `onecopy stack` in a namespace that it makes itself, with a command in it.
fn with_command(flags: &str, command: &[&str]) -> Running {
    let mut args = vec!["stack", "--netns", "--addr", "10.0.0.2/24", "--json"];
    args.extend(flags.split_whitespace());
    args.push("--");
    Running::start(&mut onecopy(&[&args[..], command].concat()))
}

/// What it printed at the end.
fn down(out: &[u8]) -> Value {
    let text = std::str::from_utf8(out).unwrap();
    let line = text.lines().find(|line| line.contains("\"event\":\"down\""));
    serde_json::from_str(line.unwrap_or_else(|| panic!("it did not say what it did: {text}"))).unwrap()
}

#[test]
fn ping() {
    let Some(_) = World::new(&["ping"]) else { return };
    let ended =
        with_command("", &["ping", "-q", "-c", "3", "-i", "0.2", "-s", "1000", "10.0.0.2"]).end().well();
    let said = ended.text();
    assert!(said.contains("3 received"), "{said}");
    let down = down(&ended.out);
    assert_eq!(
        (&down["ip"]["echoes"], &down["why"]),
        (&3.into(), &"ping ended, exit status: 0".into()),
        "{down}"
    );
    // The link counted them, too.
    assert!(down["link"]["received"].as_u64().unwrap() >= 3, "{down}");
}

/// Of IPv6 alone, and of both: the kernel's side has an address beside each, which may be used at once.
#[test]
fn ping_over_ipv6() {
    let Some(_) = World::new(&["ping", "ip"]) else { return };
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        return println!("lacking: a kernel with IPv6");
    }
    for (addr, ping, pings, kernel) in [
        (&["fd00::2/64"][..], "ping -q -c 1 fd00::2", 1, &["fd00::1/64"][..]),
        (
            &["fd00::1/64", "10.0.0.2/24"],
            "ping -q -c 1 fd00::1 && ping -q -c 1 10.0.0.2 && ip addr show dev onecopy0",
            2,
            &["10.0.0.1/24", "fd00::2/64"],
        ),
    ] {
        let addr = addr.iter().flat_map(|addr| ["--addr", addr]);
        let args: Vec<_> = ["stack", "--netns", "--json"].into_iter().chain(addr).collect();
        let ended = Running::start(&mut onecopy(&[&args[..], &["--", "bash", "-c", ping]].concat())).end();
        let ended = ended.well();
        let said = ended.text();
        assert_eq!(said.matches("1 received").count(), pings, "{said}");
        if pings == 2 {
            assert!(kernel.iter().all(|address| said.contains(address)), "{said}");
        }
        let up: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(up["kernel"], Value::from(kernel.to_vec()), "{up}");
        assert_eq!(down(&ended.out)["ip"]["echoes"], pings, "{said}");
    }
}

/// Its services, with the system's nc: bytes come back, are thrown away, and never end.
#[test]
fn services() {
    let Some(_) = World::new(&["nc"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), noise(1_000_000)).unwrap();
    let script = format!(
        "set -e; cd {}
        nc -N 10.0.0.2 7 <data | cmp - data
        nc -N 10.0.0.2 9 <data >nothing
        test ! -s nothing
        nc -d 10.0.0.2 19 | head -c 100000 >lines
        test $(head -n 1 lines | tr -d '\\r' | wc -c) = 73",
        dir.path().display()
    );
    let pcap = dir.path().join("packets.pcapng");
    let flags = format!("--echo 7 --discard 9 --source 19 --pcap {}", pcap.display());
    let ended = with_command(&flags, &["bash", "-c", &script]).end().well();
    let down = down(&ended.out);
    let services = &down["services"];
    assert_eq!(services["connections"], 3, "{down}");
    assert_eq!(services["received"], 2_000_000, "{down}");
    assert!(services["sent"].as_u64().unwrap() >= 1_100_000, "{down}");
    // What came back went by reference; only the lines were copied.
    assert!(
        services["user_copied"].as_u64().unwrap() <= services["sent"].as_u64().unwrap() - 1_000_000,
        "{down}"
    );
    let packets = std::fs::read(pcap).unwrap();
    assert!(packets.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && packets.len() > 3_000_000, "{}", packets.len());
}

/// What a stack of one shard does, one of several does: its counters are of all of them.
#[test]
fn services_of_shards() {
    let Some(_) = World::new(&["nc"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), noise(300_000)).unwrap();
    let script = format!(
        "set -e; cd {}
        for round in 1 2 3 4 5 6 7 8; do nc -N 10.0.0.2 7 <data | cmp - data; done",
        dir.path().display()
    );
    let ended = with_command("--echo 7 --shards 4", &["bash", "-c", &script]).end().well();
    let down = down(&ended.out);
    assert_eq!(
        (&down["services"]["connections"], &down["tcp"]["passive_opens"]),
        (&8.into(), &8.into()),
        "{down}"
    );
    assert_eq!(down["services"]["received"], 8 * 300_000, "{down}");
    assert!(down["link"]["handed_over"].as_u64().is_some_and(|n| n > 0), "{down}");
    assert!(ended.said.iter().any(|line| line.contains("of 4 queues")), "{:?}", ended.said);
}

#[test]
fn a_line_for_each_packet() {
    let Some(_) = World::new(&["ping"]) else { return };
    let args =
        ["stack", "--netns", "--addr", "10.0.0.2/24", "--trace", "--", "ping", "-q", "-c", "1", "10.0.0.2"];
    let ended = Running::start(&mut onecopy(&args)).end().well();
    let said = ended.text();
    let pings = said.lines().filter(|line| line.contains("ICMP") && line.contains("echo")).count();
    assert_eq!(pings, 2, "{said}");
    assert!(ended.said.iter().any(|line| line.contains("1 pings answered")), "{:?}", ended.said);
}

/// A command's exit status is the program's.
#[test]
fn a_command_that_fails() {
    let Some(_) = World::new(&[]) else { return };
    assert_eq!(with_command("", &["sh", "-c", "exit 7"]).end().status.code(), Some(7));
    assert_eq!(with_command("", &["sh", "-c", "kill -9 $$"]).end().status.code(), Some(137));
    let ended = with_command("", &["/no/such/program"]).end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.said.iter().any(|line| line.contains("cannot run /no/such/program")), "{:?}", ended.said);
}

/// However it ends, its TAP is gone.
#[test]
fn nothing_is_left() {
    let Some(world) = World::new(&[]) else { return };
    for (signal, code) in [(Signal::INT, Some(0)), (Signal::TERM, Some(0)), (Signal::KILL, None)] {
        let mut stack = world.onecopy(&[&["stack", "--echo", "7"], &BOTH]);
        stack.line("onecopy stack: 10.77.0.2/24 on TAP onecopy0");
        assert!(world.has("onecopy0"));
        stack.all_asleep();
        if signal == Signal::INT {
            stack.signal(Signal::USR1);
            let stats = stack.line("stats {");
            let stats: Value = serde_json::from_str(stats.strip_prefix("stats ").unwrap()).unwrap();
            assert_eq!(stats["services"]["connections"], 0);
        }
        stack.signal(signal);
        assert_eq!(stack.end().status.code(), code);
        assert!(!world.has("onecopy0"));
    }
}

/// A TAP that somebody else has.
#[test]
fn a_tap_that_is_taken() {
    let Some(world) = World::new(&[]) else { return };
    let _tap = world.tap();
    let ended = world.onecopy(&[&["stack"], &BOTH]).end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.said.iter().any(|line| line.contains("another descriptor has that device")),
        "{:?}",
        ended.said
    );
}

/// Files both ways between our TCP and the system's nc.
#[test]
fn the_systems_nc() {
    let Some(world) = World::new(&["nc"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let data = noise(5_000_000);
    std::fs::write(&from, &data).unwrap();
    // Ours listens, theirs sends.
    let recv = ["--recv", to.to_str().unwrap(), "--json", "--sum", "-v"];
    let mut server = world.onecopy(&[&["nc", "-l", "9000"], &BOTH, &recv]);
    assert_eq!(server.listens(), "0.0.0.0:9000");
    world.does(&format!("nc -N {OURS} 9000 <{}", from.display()));
    let report = server.end().well().report();
    assert!(std::fs::read(&to).unwrap() == data);
    let len = data.len() as u64;
    assert_eq!((&report["tap"], &report["received"]["over"]), (&"onecopy0".into(), &"stack".into()));
    // The TAP's copy, and that into the file; none in user space.
    let copied = [&report["received"]["bytes"], &report["user_copied"], &report["kernel_copied"]]
        .map(|n| n.as_u64().unwrap());
    assert_eq!(copied, [len, 0, 2 * len], "{report}");

    // Theirs listens, ours sends: once from the file's pages, once through a buffer.
    for sum in [false, true] {
        std::fs::remove_file(&to).unwrap();
        let mut theirs = Command::new("nc");
        let theirs = world.start(theirs.args(["-l", "-d", "-v", "9001"]).stdin(std::process::Stdio::null()));
        let listens = || world.shell("grep -q ':2329 00000000:0000 0A' /proc/net/tcp").status.success();
        while !listens() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let send = ["--send", from.to_str().unwrap(), "--json", &format!("{KERNEL}:9001")];
        let sums: &[&str] = if sum { &["--sum"] } else { &[] };
        let report = world.onecopy(&[&["nc"], &BOTH, &send, sums]).end().well().report();
        assert!(theirs.end().out == data);
        std::fs::write(&to, "").unwrap();
        let copied = [&report["sent"]["bytes"], &report["user_copied"], &report["kernel_copied"]]
            .map(|n| n.as_u64().unwrap());
        let user = if sum { len } else { 0 };
        assert_eq!(copied, [len, user, 2 * len], "{report}");
    }
}

/// Ctrl-C: the peer sees the end, and the TAP is gone.
#[test]
fn a_signal_ends_the_connection() {
    let Some(world) = World::new(&[]) else { return };
    let mut server = world.onecopy(&[&["nc", "-l", "9000", "-v"], &BOTH]);
    server.listens();
    let to: std::net::SocketAddr = format!("{OURS}:9000").parse().unwrap();
    let mut peer = world.namespace.run(|| std::net::TcpStream::connect(to).unwrap()).unwrap();
    server.line("is connected to");
    server.all_asleep();
    server.signal(Signal::INT);
    assert_eq!(std::io::Read::read(&mut peer, &mut [0]).unwrap(), 0);
    let ended = server.end();
    assert_eq!(ended.status.code(), Some(130));
    assert!(ended.said.iter().any(|line| line.ends_with("; cut short: SIGINT")), "{:?}", ended.said);
    assert!(!world.has("onecopy0"));
}

/// Nobody listens, nobody answers.
#[test]
fn refused_and_silent() {
    let Some(world) = World::new(&[]) else { return };
    for (to, why) in [
        ("10.77.0.1:9", "start the server"),
        ("10.77.0.9:9", "no such host answers there"),
        ("192.0.2.1:9", "--gateway"),
    ] {
        let ended = world.onecopy(&[&["nc"], &BOTH, &[to]]).end();
        assert_eq!(ended.status.code(), Some(1));
        let said = ended.said.last().unwrap();
        assert!(said.starts_with("onecopy: cannot connect to") && said.contains(why), "{said}");
    }
}

/// Datagrams both ways between our UDP and the kernel's.
#[test]
fn datagrams() {
    let Some(world) = World::new(&[]) else { return };
    let mut server = world.onecopy(&[&["nc", "-u", "-l", "9000", "-v", "--json"], &BOTH]);
    server.listens();
    let to: std::net::SocketAddr = format!("{OURS}:9000").parse().unwrap();
    let peer = world.namespace.run(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    peer.connect(to).unwrap();
    peer.send(b"one").unwrap();
    server.line("send to each other");
    std::io::Write::write_all(server.child.stdin.as_mut().unwrap(), b"three").unwrap();
    let mut got = [0; 16];
    assert_eq!(peer.recv(&mut got).unwrap(), 5);
    server.signal(Signal::INT);
    let ended = server.end();
    assert_eq!(ended.text(), "one");
    let report = ended.report();
    assert_eq!(
        (&report["family"], &report["tap"], &report["sent"]["over"]),
        (&"udp".into(), &"onecopy0".into(), &"stack".into())
    );
    assert_eq!((&report["received"]["bytes"], &report["sent"]["bytes"]), (&3.into(), &5.into()));
}
