//! Command lines that make no sense, and failures: each says what to do next.

use crate::harness::onecopy;
use std::process::{Output, Stdio};

fn run(line: &str) -> Output {
    onecopy(&line.split_whitespace().collect::<Vec<_>>()).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn usage() {
    for (line, why) in [
        ("nc", "whom to connect to?"),
        ("nc -l", "where to listen?"),
        ("nc localhost", "write HOST:PORT"),
        ("nc localhost:99999", "write a number from 0 to 65535"),
        ("nc a b c", "unexpected"),
        ("nc unix:", "write unix:/path/to/socket"),
        ("nc --unix /x a:1", "leave out the other address"),
        ("nc --unix /x --udp", "cannot be used with"),
        ("nc unix:/x --udp", "leave out --udp"),
        ("nc unix:/x --tap t --addr 10.0.0.2/24", "leave out --tap"),
        ("nc --addr 10.0.0.2/24 10.0.0.1:9", "add --tap NAME"),
        ("nc --tap t 10.0.0.1:9", "as in --addr 10.0.0.2/24"),
        ("nc --tap t --addr 10.0.0.2 10.0.0.1:9", "as in 10.0.0.2/24"),
        ("nc --route 10.1.0.0/16=10.0.0.9 10.0.0.1:9", "add --tap NAME"),
        ("nc --tap t --addr 10.0.0.2/24 --addr 10.0.0.2/16 10.0.0.1:9", "has that address already"),
        (
            "nc --tap t --addr 10.0.0.2/24 --gateway 10.0.0.1 --gateway 10.0.0.9 10.0.0.1:9",
            "give the other --route",
        ),
        ("nc --tap t --addr 10.0.0.2/24 --gateway fd00::1 10.0.0.1:9", "in no network of --addr"),
        ("nc --tap t --addr 10.0.0.2/24 --route 10.1.0.0/16=10.2.0.1 10.0.0.1:9", "in no network of --addr"),
        ("nc --tap t --addr 10.0.0.2/24 --route fd01::/48=10.0.0.9 10.0.0.1:9", "needs a router of IPv6"),
        (
            "serve --root / --tap t --listen tcp:10.0.0.2:80 --addr 10.0.0.2/24 --route 10.1.0.1/16=10.0.0.9",
            "no bit behind the 16",
        ),
        (
            "proxy --backend unix:/x --listen 10.0.0.2:80 --tap t --addr 10.0.0.2/24 --gateway 10.9.0.1",
            "in no network of --addr",
        ),
        ("stack --addr 10.0.0.2/24 --route 10.1.0.0/16", "as in 10.1.0.0/16=10.0.0.9"),
        ("stack --netns --addr fd00::2/128", "--kernel-addr"),
        ("nc --transport stack localhost:1", "add --tap NAME"),
        ("nc --transport kernel-uring --tap t --addr 10.0.0.2/24 localhost:1", "leave it out"),
        ("nc --transport stack --udp localhost:1", "add --tap NAME"),
        ("nc --transport auto unix:/x", "leave out --transport"),
        ("nc -w 0 localhost:1", "-w 0 leaves no time"),
        ("nc -w soon localhost:1", "not a time"),
        ("nc -d --send /etc/passwd localhost:1", "cannot be used with"),
        ("stack", "as in --addr 10.0.0.2/24"),
        ("stack --addr 10.0.0.2/33", "as in 10.0.0.2/24"),
        ("stack --netns --addr 10.0.0.2/32", "--kernel-addr"),
        ("nc --shards 2 10.0.0.1:9", "add --tap NAME"),
        ("stack --addr 10.0.0.2/24 --shards 0", "0 is not in 1..=64"),
        ("stack --addr 10.0.0.2/24 --shards 65", "65 is not in 1..=64"),
        ("stack --addr 10.0.0.2/24 --shards 2 --trace", "leave out --shards"),
        ("stack --addr 10.0.0.2/24 --shards 2 --pcap /dev/null", "leave out --shards"),
        ("stack --xdp near --tap t --addr 10.0.0.2/24", "cannot be used with"),
        ("stack --xdp near --netns --addr 10.0.0.2/24", "cannot be used with"),
        ("stack --xdp near", "as in --addr 10.0.0.2/24"),
        ("stack --xdp near --addr 10.0.0.2/24 --mtu 1400", "leave out --mtu"),
        ("nc --xdp near --addr 10.0.0.2/24 --shards 2 10.0.0.1:9", "and --shards"),
        ("nc --xdp near --addr 10.0.0.2/24 --kernel-addr 10.0.0.1/24 10.0.0.1:9", "--kernel-addr (ip link"),
        ("stack --trace --json --addr 10.0.0.2/24", "cannot be used with"),
    ] {
        let out = run(line);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(why), "{line}: {said}");
    }
}

#[test]
fn failures_say_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_at = taken.local_addr().unwrap();
    let free = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for (line, why) in [
        (format!("nc {free}"), "start the other side first"),
        (format!("nc -l {taken_at}"), "choose another address"),
        ("nc -l 127.0.0.1:0 -w 10ms".to_owned(), "nobody has connected within"),
        ("nc -u -l 127.0.0.1:0 -w 10ms".to_owned(), "nobody has sent anything"),
        ("nc --unix /no/such/socket".to_owned(), "cannot connect to unix:/no/such/socket"),
        ("nc no.such.host.invalid:1".to_owned(), "check the name"),
        (format!("nc {taken_at} --send /no/such/file"), "cannot read /no/such/file"),
        (format!("nc {taken_at} --send /proc"), "is a folder"),
        (format!("nc {taken_at} --recv /proc/no/file"), "cannot write /proc/no/file"),
    ] {
        let out = run(&line);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{line}: {said}");
        let told = said.lines().last().unwrap_or_default();
        assert!(told.starts_with("onecopy: ") && told.contains(why), "{line}: {said}");
    }
}

/// Whoever is not root hears what it takes, and what goes without.
#[test]
fn without_a_tap() {
    let name = "a-name-that-no-interface-can-have";
    let out = run(&format!("nc --tap {name} --addr 10.0.0.2/24 10.0.0.1:9"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("without --tap the kernel's own sockets are used"), "{said}");
    let out = run(&format!("stack --tap {name} --addr 10.0.0.2/24"));
    assert!(String::from_utf8_lossy(&out.stderr).contains(&format!("no device {name}")));
}
