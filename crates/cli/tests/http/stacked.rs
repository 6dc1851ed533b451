//! Clients of the kernel's TCP, in a network namespace, of a proxy and a daemon that speak TCP on stacks of their own.

use crate::harness::*;
use crate::tls::Made;
use onecopy_sys::netns::Namespace;
use rustix::io::Errno;
use rustix::process::Signal;
use std::net::SocketAddr;
use std::process::Command;
use tempfile::TempDir;

/// Bytes of the file that is asked for: no whole number of pages.
const FILE: usize = (1 << 20) + 12_345;

/// A network of its own, in which the programs run; none, with the reason, where there can be none.
fn network() -> Option<Namespace> {
    let namespace = match Namespace::new() {
        Err(Errno::PERM) => {
            println!("lacking: a network namespace (root, CAP_SYS_ADMIN)");
            return None;
        }
        namespace => namespace.expect("a network namespace"),
    };
    if !std::path::Path::new("/dev/net/tun").exists() {
        println!("lacking: /dev/net/tun");
        return None;
    }
    if Command::new("ip").arg("-V").output().is_err() {
        println!("lacking: ip (iproute2), to give the kernel an address with");
        return None;
    }
    Some(namespace)
}

/// Starts a program in it, and gives the kernel's side of its TAP an address once it is there.
fn start(namespace: &Namespace, args: &[&str], said: &str) -> Running {
    let program = namespace.run(|| Running::start(args)).unwrap();
    program.line(said);
    for words in ["addr add 10.9.0.1/24 dev oc0", "link set oc0 up"] {
        let ip = || Command::new("ip").args(words.split(' ')).status().unwrap();
        assert!(namespace.run(ip).unwrap().success(), "ip {words}");
    }
    program
}

const TAP: [&str; 4] = ["--tap", "oc0", "--addr", "10.9.0.2/24"];

fn files() -> (TempDir, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let content = noise(FILE, 7);
    std::fs::write(dir.path().join("files/f"), &content).unwrap();
    (dir, content)
}

/// Asks for the file, for a part of it and for what is not there, on one connection.
fn ask(namespace: &Namespace, addr: SocketAddr, content: &[u8]) {
    namespace
        .run(|| {
            let mut client = Client::connect(addr);
            assert!(client.get("/f").body == content);
            client.send("GET /f HTTP/1.1\r\nHost: x\r\nRange: bytes=100000-499999\r\n\r\n");
            let part = client.response("GET");
            assert!(part.status == 206 && part.body == content[100_000..500_000]);
            assert_eq!(client.get("/none").status, 404);
            assert!(client.get("/f").body == content);
        })
        .unwrap();
}

/// Bytes of the bodies that `ask` gets.
const BODIES: u64 = 2 * FILE as u64 + 400_000;

#[test]
fn a_proxy_on_a_stack_of_its_own_sends_what_was_lent_without_a_copy() {
    // Flags of both, and whether the daemon and the proxy copy in user space.
    let ways = [
        ("--cache 64M", "", false, false),
        ("--cache 64M", "--threads 2", false, false),
        ("--lend never", "", false, true),
        ("--cache 64M --lend never", "", true, true),
        ("--transport kernel", "--transport kernel", false, false),
    ];
    for (daemon_flags, proxy_flags, daemon_copies, proxy_copies) in ways {
        let Some(namespace) = network() else { return };
        let (dir, content) = files();
        let daemon = start_daemon(dir.path(), daemon_flags);
        let backend = format!("unix:{}", dir.path().join("s").display());
        let mut args = vec!["proxy", "--listen", "tcp:10.9.0.2:8080", "--backend", &backend];
        args.extend(TAP);
        args.extend(proxy_flags.split_whitespace());
        let mut proxy = start(&namespace, &args, "onecopy proxy: http");
        ask(&namespace, "10.9.0.2:8080".parse().unwrap(), &content);
        let of = |stats: &serde_json::Value, name: &str| stats[name].as_u64().unwrap();
        let stats = proxy.stats(|stats| stats["requests"] == 4);
        let said = format!("{daemon_flags} / {proxy_flags}: {stats:#}");
        // (The page that says that there is none goes the same way.)
        let body = of(&stats, "body_bytes");
        assert!((BODIES..BODIES + 1000).contains(&body), "{said}");
        let copied = of(&stats, "user_copied");
        // The first body may begin in the kernel, which the proxy copies no less; and a view that does has its end, which lay in shared memory, copied
        // behind that: 256 KiB at most.
        let once = if proxy_copies { BODIES - 100_000..=body + (256 << 10) } else { 0..=1000 };
        assert!(once.contains(&copied), "{once:?}, {said}");
        assert!(of(&stats, "kernel_copied") >= body, "a TAP's kernel copies each byte: {said}");
        let theirs = daemon.stats(|stats| stats["requests"].as_u64() >= Some(3));
        // (The beginning of the first body may be read into a buffer, before there is shared memory to read into.)
        let once = if daemon_copies { 500_000..=body } else { 0..=256 << 10 };
        assert!(once.contains(&of(&theirs, "user_copied")), "{once:?}, {daemon_flags}: {theirs:#}");
        proxy.signal(Signal::TERM);
        assert_eq!(proxy.end(), Some(0));
    }
}

#[test]
fn a_daemon_on_a_stack_of_its_own_sends_memory_and_files_without_a_copy() {
    for flags in ["", "--cache 64M"] {
        let Some(namespace) = network() else { return };
        let (dir, content) = files();
        let root = dir.path().join("files");
        let mut args = vec!["serve", "--root", root.to_str().unwrap(), "--listen", "tcp:10.9.0.2:9000"];
        args.extend(TAP);
        args.extend(flags.split_whitespace());
        let mut daemon = start(&namespace, &args, "onecopy serve:");
        ask(&namespace, "10.9.0.2:9000".parse().unwrap(), &content);
        let stats = daemon.stats(|stats| stats["requests"] == 4);
        assert_eq!(stats["user_copied"], 0, "{flags}: {stats:#}");
        assert_eq!(stats["body_bytes"], BODIES, "{flags}: {stats:#}");
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn tls_goes_over_a_stack_as_well() {
    let Some(namespace) = network() else { return };
    let (dir, content) = files();
    let made = Made::new();
    let _daemon = start_daemon(dir.path(), "--cache 64M");
    let backend = format!("unix:{}", dir.path().join("s").display());
    let flags = made.flags();
    let mut args = vec!["proxy", "--listen", "10.9.0.2:8443", "--backend", &backend];
    args.extend(TAP);
    args.extend(flags.split_whitespace());
    let _proxy = start(&namespace, &args, "onecopy proxy: https");
    namespace
        .run(|| {
            let mut client = made.client("10.9.0.2:8443".parse().unwrap());
            assert!(client.get("/f").body == content);
            assert!(client.get("/f").body == content);
        })
        .unwrap();
}

#[test]
fn what_does_not_go_together_is_said() {
    let refused = |args: &[&str], what: &str| {
        let mut program = Running::start(args);
        program.line(what);
        assert_eq!(program.end(), Some(2), "{args:?}");
    };
    let proxy = ["proxy", "--listen", "10.9.0.2:80", "--backend", "unix:@x"];
    refused(&[&proxy[..], &["--tap", "oc0"]].concat(), "--addr");
    refused(&[&proxy[..], &TAP, &["--direct"]].concat(), "leave out one of the two");
    let serve = ["serve", "--root", ".", "--listen"];
    refused(&[&serve[..], &["tcp:10.9.0.2:80"]].concat(), "--tap go together");
    refused(&[&serve[..], &["unix:@x"], &TAP].concat(), "--tap go together");
    refused(&[&serve[..], &["tcp:here"]].concat(), "write IP:PORT");
    refused(
        &[&serve[..], &["tcp:10.9.0.2:80", "--tap", "oc0", "--addr", "10.9.0.2"]].concat(),
        "as in 10.0.0.2/24",
    );
    refused(&[&serve[..], &["unix:@x", "--addr", "10.9.0.2/24"]].concat(), "add --tap NAME");
}
