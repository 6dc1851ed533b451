//! Clients that come over TLS: rustls' own in this process, curl where it is installed, and some that are none.

use crate::harness::*;
use rustix::process::Signal;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A certificate for `localhost`, its key beside it, and what a client has to trust.
pub struct Made {
    dir: tempfile::TempDir,
    root: CertificateDer<'static>,
}

impl Made {
    pub fn new() -> Made {
        let dir = tempfile::tempdir().unwrap();
        let root = write(dir.path());
        Made { dir, root }
    }

    pub fn flags(&self) -> String {
        let dir = self.dir.path().display();
        format!("--tls-cert {dir}/cert.pem --tls-key {dir}/key.pem")
    }

    /// A client that trusts it.
    pub fn client(&self, addr: SocketAddr) -> Secure {
        connect(addr, settings(&self.root, rustls::ALL_VERSIONS))
    }
}

fn write(dir: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(dir.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
    made.cert.der().clone()
}

pub type Secure = Client<StreamOwned<ClientConnection, TcpStream>>;

fn settings(root: &CertificateDer<'static>, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn connect(addr: SocketAddr, config: ClientConfig) -> Secure {
    let tcp = TcpStream::connect(addr).unwrap();
    tcp.set_read_timeout(Some(SOON)).unwrap();
    let tls = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    Client::over(StreamOwned::new(tls, tcp))
}

fn client(pair: &Pair, made: &Made) -> Secure {
    made.client(pair.addr)
}

fn pair(daemon: &str, proxy: &str) -> (Pair, Made) {
    let made = Made::new();
    (Pair::start(daemon, &format!("{proxy} {}", made.flags())), made)
}

/// A pair whose proxy has minutes for all, and a second for a head, and for these limits, once it is told to hurry.
fn patient_at_first(limits: &'static [&'static str]) -> (Pair, Made, impl Fn(&Pair)) {
    let config = tempfile::NamedTempFile::new().unwrap();
    let write = move |file: &tempfile::NamedTempFile, hurry: bool| {
        let line = |name: &str| {
            let short = hurry && (name == "head" || limits.contains(&name));
            format!("{name}-timeout = \"{}\"\n", if short { "1s" } else { "10m" })
        };
        std::fs::write(file, ["idle", "head", "send", "backend"].map(line).concat()).unwrap();
    };
    write(&config, false);
    let (pair, made) = pair("", &format!("--config {}", config.path().display()));
    let hurry = move |pair: &Pair| {
        write(&config, true);
        pair.proxy.signal(Signal::HUP);
        pair.proxy.line("changed by --config: head-timeout");
    };
    (pair, made, hurry)
}

/// The ways that TLS leaves open.
const OPEN: [(&str, &str); 4] = [
    ("", ""),
    ("--cache 64M --policy nt", "--threads 2"),
    ("--transport kernel", "--transport kernel"),
    ("--transport kernel", ""),
];

#[test]
fn bodies_ranges_and_kept_connections() {
    for (daemon, proxy) in OPEN {
        let (pair, made) = pair(daemon, proxy);
        let mut client = client(&pair, &made);
        for length in [0, 1, 4095, 16 << 10, (16 << 10) + 1, 65_537, 3_000_001] {
            let name = format!("f{length}");
            let content = pair.file(&name, length);
            let answer = client.get(&format!("/{name}"));
            assert_eq!((answer.status, answer.short), (200, false), "{daemon} | {proxy} | {length}");
            assert!(answer.body == content, "{daemon} | {proxy} | {length}");
        }
        let content = pair.file("ranged", 1_000_000);
        client.send("GET /ranged HTTP/1.1\r\nHost: x\r\nRange: bytes=70000-699999\r\n\r\n");
        let answer = client.response("GET");
        assert_eq!(answer.status, 206);
        assert!(answer.body == content[70_000..700_000]);
        client.send("HEAD /ranged HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.response("HEAD").field("Content-Length"), Some("1000000"));
        assert_eq!(client.get("/none").status, 404);
        // Asked all at once, answered in order.
        let ask = "GET /f65537 HTTP/1.1\r\nHost: x\r\n\r\nGET /f1 HTTP/1.1\r\nHost: x\r\n\r\n";
        client.send(&ask.repeat(10));
        for length in [65_537, 1].repeat(10) {
            assert_eq!(client.response("GET").body.len(), length, "{daemon} | {proxy}");
        }
        client.send("GET /f1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert_eq!(client.response("GET").body.len(), 1);
        assert!(client.ended() && !client.cut, "an end of our own is said aloud");
    }
}

#[test]
fn both_versions_and_only_http_1() {
    let (pair, made) = pair("", "");
    pair.file("a", 5);
    for version in rustls::ALL_VERSIONS {
        let mut config = settings(&made.root, &[version]);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut client = connect(pair.addr, config);
        assert_eq!(client.get("/a").body.len(), 5);
        assert_eq!(client.tcp.conn.protocol_version(), Some(version.version));
        assert_eq!(client.tcp.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    let mut config = settings(&made.root, rustls::ALL_VERSIONS);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut client = connect(pair.addr, config);
    let refused = client.tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
}

/// The daemon hears that a CPU reads what is encrypted, and nobody what is spliced; both sides count their copies.
#[test]
fn the_sender_is_told_who_reads() {
    const FIRST: u64 = 10;
    const ALL: u64 = 1_000_000;
    let counted = |daemon: &str, proxy: &str, secure: bool| {
        let made = Made::new();
        let flags = if secure { made.flags() } else { String::new() };
        let pair = Pair::start(&format!("--cache 64M {daemon}"), &format!("{proxy} {flags}"));
        pair.file("first", FIRST as usize);
        pair.file("a", ALL as usize);
        // The first answer may be under way before the upgrade is done.
        if secure {
            let mut client = client(&pair, &made);
            assert_eq!(client.get("/first").body.len() as u64, FIRST);
            assert_eq!(client.get("/a").body.len() as u64, ALL);
        } else {
            let mut client = pair.client();
            assert_eq!(client.get("/first").body.len() as u64, FIRST);
            assert_eq!(client.get("/a").body.len() as u64, ALL);
        }
        let stats = pair.proxy.stats(|stats| stats["body_bytes"] == FIRST + ALL);
        let of = |name: &str| stats[name].as_u64().unwrap();
        let proxy = (of("reader_cpu"), of("reader_none"));
        // (How what is lent goes on, the daemon does not know; the first is too small to be.)
        let daemon = if of("lent") == 0 { proxy } else { (FIRST, 0) };
        pair.counts(&[("reader_cpu", daemon.0), ("reader_none", daemon.1)]);
        assert_eq!(of("tls_handshakes"), u64::from(secure));
        // In thousands of bytes, so that the first answer's way does not show.
        ((proxy.0 / 1000, proxy.1 / 1000), of("user_copied") / 1000, of("kernel_copied") / 1000)
    };
    // Out of the ring, and into the record that is encrypted in place.
    assert_eq!(counted("", "", true), ((ALL / 1000, 0), 2 * ALL / 1000, ALL / 1000));
    assert_eq!(counted("--lend never", "", false), ((ALL / 1000, 0), 0, ALL / 1000));
    assert_eq!(counted("", "--send-lent map", false), ((ALL / 1000, 0), 0, ALL / 1000));
    assert_eq!(counted("", "--send-lent splice", false), ((0, ALL / 1000), 0, 0));
    let (told, user, _) = counted("", "--transport kernel --forward splice", false);
    assert_eq!((told, user), ((0, ALL / 1000), 0));
}

#[test]
fn a_body_cut_by_a_killed_backend_is_an_error() {
    for (daemon, proxy) in OPEN {
        let (mut pair, made) = pair(daemon, proxy);
        std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
        let mut client = client(&pair, &made);
        client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.head().0, 200);
        client.tcp.read_exact(&mut [0; 100_000]).unwrap();
        pair.daemon.signal(Signal::KILL);
        pair.daemon.end();
        assert!(client.rest().len() < 256 << 20, "{daemon} | {proxy}");
        assert!(client.cut, "{daemon} | {proxy}: ended as if it were whole");
    }
}

#[test]
fn slow_and_vanishing_clients() {
    let (hasty, _made) = pair("", "--head-timeout 300ms");
    let (mut silent, mut half) = (hasty.client(), hasty.client());
    half.tcp.write_all(&[22, 3, 1, 1]).unwrap();
    assert!(silent.ended(), "a handshake that does not begin");
    assert!(half.ended(), "a handshake that does not go on");
    // A record that is drip-fed, and a request that is: neither holds its place for ever. (The handshake is not to be late.)
    let (pair, made, hurry) = patient_at_first(&[]);
    pair.file("a", 5);
    let mut slow = client(&pair, &made);
    assert_eq!(slow.get("/a").status, 200);
    hurry(&pair);
    slow.send("GET /a HTTP/1.1\r\nHost:");
    assert_eq!(slow.response("GET").status, 408);
    assert!(slow.ended() && !slow.cut);
    let (pair, made) = self::pair("", "--send-timeout 300ms");
    pair.file("a", 5);
    std::fs::File::create(pair.path("large")).unwrap().set_len(256 << 20).unwrap();
    // Takes nothing: given up, and the daemon is told.
    let mut stuck = client(&pair, &made);
    stuck.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(stuck.head().0, 200);
    until("the body is broken off", || pair.daemon_counter("broken") == 1);
    let before = pair.proxy.descriptors();
    for _ in 0..10 {
        let mut client = client(&pair, &made);
        client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
        client.head();
        drop(client);
        pair.client().tcp.write_all(&[22, 3, 1]).unwrap();
    }
    until("the bodies are broken off", || pair.daemon_counter("broken") == 11);
    until("the descriptors are back", || pair.proxy.descriptors() <= before + 4);
    assert_eq!(client(&pair, &made).get("/a").status, 200);
}

/// Bytes that are not yet a record are no request: who drips them is idle all the same.
#[test]
fn a_record_that_drips_is_no_request() {
    let (pair, made, hurry) = patient_at_first(&["idle"]);
    pair.file("a", 5);
    let mut client = client(&pair, &made);
    assert_eq!(client.get("/a").status, 200);
    hurry(&pair);
    // Counts from the next request on.
    assert_eq!(client.get("/a").status, 200);
    let (mut record, Secure { tcp, .. }) = (Vec::new(), &mut client);
    tcp.conn.writer().write_all(&[b'x'; 10_000]).unwrap();
    tcp.conn.write_tls(&mut record).unwrap();
    let mut bytes = record.chunks(1);
    until("the proxy gives it up", || {
        std::thread::sleep(Duration::from_millis(50));
        tcp.sock.write_all(bytes.next().unwrap()).is_err()
    });
}

/// A backend, too, may have pauses: what has come by then is the client's, encrypted or not.
#[test]
fn what_has_come_is_not_kept_back() {
    trait Both: Read + Write {}
    impl<S: Read + Write> Both for S {}
    let made = Made::new();
    for (flags, shared) in [("", true), ("", false), ("--transport kernel", false)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let accept: Box<dyn FnOnce() -> Box<dyn Both>> = if shared {
            let listener = onecopy::unix::Listener::bind(path.as_path()).unwrap();
            Box::new(move || Box::new(listener.accept().unwrap().0))
        } else {
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            Box::new(move || Box::new(listener.accept().unwrap().0))
        };
        let (_proxy, addr) = start_proxy(dir.path(), &format!("{flags} {}", made.flags()));
        let mut client = connect(addr, settings(&made.root, rustls::ALL_VERSIONS));
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        let mut backend = accept();
        let mut head = [0; 4096];
        let got = backend.read(&mut head).unwrap();
        let head = String::from_utf8_lossy(&head[..got]);
        assert!(head.contains("\r\nX-Forwarded-Proto: https\r\n"), "{head}");
        backend.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n").unwrap();
        assert_eq!(client.head().0, 200, "{flags}");
        for piece in [&b"first"[..], b"there", b"then!"] {
            backend.write_all(piece).unwrap();
            assert_eq!(client.some(5), piece, "{flags}");
        }
    }
}

#[test]
fn what_https_names_is_for_tls() {
    let (pair, made) = pair("", "");
    pair.file("a", 5);
    let mut client = client(&pair, &made);
    client.send("GET https://localhost/a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    let plain = Pair::start("", "");
    assert_eq!(plain.status("GET https://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
}

#[test]
fn what_is_no_handshake() {
    let (pair, made) = pair("", "");
    pair.file("a", 5);
    let text = pair.raw(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(status_of(&text), 400, "{text}");
    assert!(text.contains("https://"), "{text}");
    for noise in [&b"\0\0\0\0"[..], &[22, 3, 1, 0, 5, 1, 2, 3, 4, 5], &[0x80, 46, 1], &[255; 3000]] {
        let mut client = pair.client();
        client.tcp.write_all(noise).unwrap();
        client.tcp.shutdown(std::net::Shutdown::Write).unwrap();
        // An alert may come, nothing else.
        assert!(client.rest().len() < 10);
    }
    // A client that does not trust the certificate leaves.
    let stranger = Made::new();
    let mut client = connect(pair.addr, settings(&stranger.root, rustls::ALL_VERSIONS));
    assert!(client.tcp.write_all(b"GET /a HTTP/1.1\r\n\r\n").is_err());
    drop(client);
    // Noise in the middle of a session ends it.
    let mut spoilt = crate::tls::client(&pair, &made);
    assert_eq!(spoilt.get("/a").status, 200);
    spoilt.tcp.sock.write_all(&[23, 3, 3, 0, 32]).unwrap();
    spoilt.tcp.sock.write_all(&[7; 32]).unwrap();
    let error = spoilt.tcp.read(&mut [0; 10]).unwrap_err();
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
    assert_eq!(crate::tls::client(&pair, &made).get("/a").status, 200);
    until("each is counted as what it was", || {
        pair.proxy.signal(Signal::USR1);
        pair.proxy.said("\"tls_handshakes\":2,\"tls_failures\":6")
    });
}

#[test]
fn a_new_certificate_at_sighup() {
    let (pair, made) = pair("", "");
    pair.file("a", 5);
    let mut old = client(&pair, &made);
    assert_eq!(old.get("/a").status, 200);
    std::fs::write(made.dir.path().join("cert.pem"), "nothing").unwrap();
    pair.proxy.signal(Signal::HUP);
    pair.proxy.line("goes on with the certificate that it has: --tls-cert");
    assert_eq!(client(&pair, &made).get("/a").status, 200);
    let root = write(made.dir.path());
    pair.proxy.signal(Signal::HUP);
    pair.proxy.line("read the certificate and its key again");
    assert!(!pair.proxy.said("chmod"));
    assert_eq!(old.get("/a").status, 200);
    let mut new = connect(pair.addr, settings(&root, rustls::ALL_VERSIONS));
    assert_eq!(new.get("/a").status, 200);
    let mut outdated = client(&pair, &made);
    assert!(outdated.tcp.write_all(b"GET /a HTTP/1.1\r\n\r\n").is_err());
    // A key that is everybody's is used, and the operator told.
    let key = made.dir.path().join("key.pem");
    std::fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    pair.proxy.signal(Signal::HUP);
    pair.proxy.line(&format!("--tls-key {} has a mode that lets every user", key.display()));
}

/// A session that began under a certificate is not taken up again under the next one: whoever replaced it may have had reason to.
#[test]
fn no_session_outlives_its_certificate() {
    let (pair, made) = pair("", "");
    pair.file("a", 5);
    for version in rustls::ALL_VERSIONS {
        let mut config = settings(&made.root, &[version]);
        config.resumption = Resumption::in_memory_sessions(8);
        let handshake = || {
            let mut client = connect(pair.addr, config.clone());
            assert_eq!(client.get("/a").status, 200);
            client.tcp.conn.handshake_kind().unwrap()
        };
        assert_eq!(handshake(), HandshakeKind::Full, "{version:?}");
        assert_eq!(handshake(), HandshakeKind::Resumed, "{version:?}");
        let before = pair.proxy.count("read the certificate");
        pair.proxy.signal(Signal::HUP);
        until("the certificate is read", || pair.proxy.count("read the certificate") > before);
        assert_eq!(handshake(), HandshakeKind::Full, "{version:?}");
        assert_eq!(handshake(), HandshakeKind::Resumed, "{version:?}");
    }
}

#[test]
fn a_shutdown_says_goodbye() {
    let (mut pair, made) = pair("", "");
    pair.file("a", 5);
    let mut idle = client(&pair, &made);
    assert_eq!(idle.get("/a").status, 200);
    pair.proxy.signal(Signal::TERM);
    assert!(idle.ended() && !idle.cut);
    assert_eq!(pair.proxy.end(), Some(0));
}

#[test]
fn a_shutdown_waits_for_no_handshake() {
    let (mut pair, _made) = pair("", "--grace 10m --head-timeout 10m");
    let (_silent, mut half) = (pair.client(), pair.client());
    half.tcp.write_all(&[22, 3, 1, 1]).unwrap();
    pair.proxy.stats(|stats| stats["connections"] == 2);
    pair.proxy.signal(Signal::TERM);
    assert_eq!(pair.proxy.end(), Some(0));
    assert!(!pair.proxy.said("were cut"));
}

#[test]
fn flags_that_cannot_be() {
    let made = Made::new();
    let dir = made.dir.path().display().to_string();
    let refused = |flags: &str, why: &str| {
        let mut args = vec!["proxy", "--listen", "127.0.0.1:0", "--backend", "unix:@none"];
        args.extend(flags.split_whitespace());
        let mut proxy = Running::start(&args);
        proxy.line(why);
        assert!(matches!(proxy.end(), Some(1 | 2)));
    };
    refused(&format!("{} --direct", made.flags()), "only this proxy's encrypted records");
    refused(&format!("{} --transport kernel --forward splice", made.flags()), "TLS has to read them");
    refused(&format!("--tls-cert {dir}/cert.pem"), "--tls-key");
    refused(&format!("--tls-cert {dir}/none.pem --tls-key {dir}/key.pem"), "none.pem: No such file");
    refused(&format!("--tls-cert {dir}/key.pem --tls-key {dir}/key.pem"), "has no certificate in it");
}

#[test]
fn curl_agrees() {
    let Ok(output) = Command::new("curl").arg("--version").output() else {
        println!("lacking: curl");
        return;
    };
    if !String::from_utf8_lossy(&output.stdout).contains("https") {
        println!("lacking: a curl with TLS");
        return;
    }
    let (pair, made) = pair("", "");
    let content = pair.file("a", 1_000_000);
    let curl = |flags: &[&str]| {
        Command::new("curl")
            .args(["--silent", "--max-time", "20", "--noproxy", "*", "--cacert"])
            .arg(made.dir.path().join("cert.pem"))
            .args(["--resolve", &format!("localhost:{}:127.0.0.1", pair.addr.port())])
            .args(flags)
            .args(["--http1.1", &format!("https://localhost:{}/a", pair.addr.port())])
            .output()
            .unwrap()
    };
    for flags in [&[][..], &["--tls-max", "1.2"], &["--tlsv1.3"]] {
        let output = curl(flags);
        assert!(output.status.success() && output.stdout == content, "{flags:?}: {output:?}");
    }
    assert!(curl(&["--range", "5-9"]).stdout == content[5..10]);
}
