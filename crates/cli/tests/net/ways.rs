//! A stack of several addresses, and ways to networks behind a router: one on the link, one beyond it, of IPv4 and of IPv6.

use crate::harness::{Running, noise, onecopy};
use crate::world::World;
use onecopy_sys::netns::Namespace;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

/// The stack has an address in each network of the link.
const ADDRESSES: [&str; 8] =
    ["--tap", "onecopy0", "--addr", "10.77.0.2/24", "--addr", "10.79.0.2/24", "--addr", "fd77::2/64"];
/// The ways to what is behind the router.
const WAYS: [&str; 4] = ["--route", "10.78.0.0/24=10.77.0.1", "--route", "fd78::/64=fd77::1"];

/// Where the stack is, at `port`.
fn ours(port: u16) -> [SocketAddr; 3] {
    ["10.77.0.2", "10.79.0.2", "fd77::2"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port))
}

/// The router, on the stack's link, and a host behind it.
struct Networks {
    router: World,
    far: World,
}

impl Networks {
    fn new() -> Option<Networks> {
        let router = World::new(&["ip"])?;
        let far = World { namespace: Namespace::new().unwrap() };
        let there = format!("/proc/{}/fd/{}", std::process::id(), far.namespace.as_fd().as_raw_fd());
        router.does(&format!(
            "set -e
            echo 1 >/proc/sys/net/ipv4/ip_forward
            echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
            ip tuntap add dev onecopy0 mode tap
            ip addr add 10.77.0.1/24 dev onecopy0
            ip addr add 10.79.0.1/24 dev onecopy0
            ip addr add fd77::1/64 dev onecopy0 nodad
            ip link set onecopy0 up
            ip link add router type veth peer name far netns {there}
            ip addr add 10.78.0.2/24 dev router
            ip addr add fd78::2/64 dev router nodad
            ip link set router up"
        ));
        far.does(
            "set -e
            ip addr add 10.78.0.1/24 dev far
            ip addr add fd78::1/64 dev far nodad
            ip link set far up
            ip route add default via 10.78.0.2
            ip -6 route add default via fd78::2",
        );
        Some(Networks { router, far })
    }

    /// Connects from both, to each of the stack's addresses of a family.
    fn each(&self, port: u16, ipv4: bool, talk: impl Fn(TcpStream)) {
        for to in ours(port).into_iter().filter(|to| to.is_ipv4() == ipv4) {
            for world in [&self.router, &self.far] {
                let made = world.namespace.run(|| TcpStream::connect(to)).unwrap();
                talk(made.unwrap_or_else(|error| panic!("{to}: {error}")));
            }
        }
    }
}

fn all(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_stack_answers_at_each_address_to_each_network() {
    let Some(networks) = Networks::new() else { return };
    let mut stack = networks.router.onecopy(&[&["stack", "--echo", "7", "--json"], &ADDRESSES, &WAYS]);
    stack.line("onecopy stack: 10.77.0.2/24, 10.79.0.2/24, fd77::2/64 on TAP onecopy0");
    let data = noise(100_000);
    for ipv4 in [true, false] {
        networks.each(7, ipv4, |mut stream| {
            let mut back = stream.try_clone().unwrap();
            let got = std::thread::scope(|scope| {
                let got = scope.spawn(move || all(&mut back));
                stream.write_all(&data).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                got.join().unwrap()
            });
            assert!(got == data, "{} bytes", got.len());
        });
    }
    stack.signal(Signal::INT);
    let ended = stack.end().well();
    let up = ended.text().lines().next().unwrap().to_owned();
    assert!(up.contains(r#""addresses":["10.77.0.2/24","10.79.0.2/24","fd77::2/64"]"#), "{up}");
}

#[test]
fn nc_finds_the_way_and_says_where_there_is_none() {
    let Some(networks) = Networks::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, noise(300_000)).unwrap();
    let send = ["--send", file.to_str().unwrap()];
    for (world, to) in [
        (&networks.far, "10.78.0.1:9000"),
        (&networks.far, "[fd78::1]:9000"),
        (&networks.router, "10.79.0.1:9000"),
        (&networks.router, "[fd77::1]:9000"),
    ] {
        let mut theirs = world.start(&mut onecopy(&["nc", "-d", "-l", to, "-v"]));
        theirs.listens();
        networks.router.onecopy(&[&["nc", to], &ADDRESSES, &WAYS, &send]).end().well();
        assert!(theirs.end().well().out == noise(300_000), "{to}");
    }
    // Without the ways, and with the default one instead.
    for (to, gateway) in [("10.78.0.1:9", "10.79.0.1"), ("[fd78::1]:9", "fd77::1")] {
        let said = |flags: &[&str]| {
            let ended = networks.router.onecopy(&[&["nc", to], &ADDRESSES, flags]).end();
            assert_eq!(ended.status.code(), Some(1));
            ended.said.join("\n")
        };
        assert!(said(&[]).contains("--gateway, or --route"), "{}", said(&[]));
        let reached = said(&["--gateway", gateway]);
        assert!(reached.contains("start the server"), "nobody listens, and says so: {reached}");
    }
}

#[test]
fn serve_and_proxy_are_found_at_each_address() {
    let Some(networks) = Networks::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let body = noise(200_000);
    std::fs::write(dir.path().join("file"), &body).unwrap();
    let root = dir.path().to_str().unwrap();
    let fetch = |mut stream: TcpStream| {
        stream.write_all(b"GET /file HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let answer = all(stream);
        assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(&body), "{} bytes", answer.len());
    };
    let ends = |program: Running| {
        program.signal(Signal::TERM);
        program.end().well();
    };
    for (listen, ipv4) in [("0.0.0.0:80", true), ("[::]:80", false)] {
        let tcp = format!("tcp:{listen}");
        let mut serve =
            networks.router.onecopy(&[&["serve", "--root", root, "--listen", &tcp], &ADDRESSES, &WAYS]);
        serve.line("onecopy serve:");
        networks.each(80, ipv4, fetch);
        ends(serve);
        let backend = format!("unix:{root}/s");
        let mut serve = networks.router.onecopy(&[&["serve", "--root", root, "--listen", &backend]]);
        serve.line("onecopy serve:");
        let mut proxy = networks.router.onecopy(&[
            &["proxy", "--backend", &backend, "--listen", listen],
            &ADDRESSES,
            &WAYS,
        ]);
        proxy.line("onecopy proxy:");
        networks.each(80, ipv4, fetch);
        ends(proxy);
        ends(serve);
    }
}
