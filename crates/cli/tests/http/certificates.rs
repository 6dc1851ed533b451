//! What may lie where the proxy looks for its certificate and key: it says what is wrong, and never waits.

use crate::harness::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A certificate of RSA with 1024 bits, and its key: nothing that this program uses makes one any more.
const WEAK: &str = include_str!("data/rsa1024.pem");

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        std::fs::set_permissions(self.path(name), Permissions::from_mode(0o600)).unwrap();
        self.path(name)
    }

    fn fifo(&self, name: &str) -> PathBuf {
        mknodat(CWD, self.path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        self.path(name)
    }
}

/// PEM of a certificate that is valid in these years, and of its key.
fn made(from: i32, to: i32) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut about = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
    about.not_before = rcgen::date_time_ymd(from, 1, 1);
    about.not_after = rcgen::date_time_ymd(to, 1, 1);
    (about.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn flags(certificate: &Path, key: &Path) -> String {
    format!("--tls-cert {} --tls-key {}", certificate.display(), key.display())
}

/// Starts nothing, and says all of `why` on one line.
fn refused(certificate: &Path, key: &Path, why: &[&str]) {
    let flags = flags(certificate, key);
    let mut args = vec!["proxy", "--listen", "127.0.0.1:0", "--backend", "unix:@none"];
    args.extend(flags.split_whitespace());
    let mut proxy = Running::start(&args);
    assert_eq!(proxy.end(), Some(1), "{flags}");
    let line = proxy.line("onecopy: ");
    for why in why {
        assert!(line.contains(why), "no {why:?} in {line}");
    }
}

#[test]
fn what_is_wrong_is_said_at_the_start() {
    let files = Files::new();
    let (cert, key) = made(2020, 2100);
    let (other, foreign) = made(2020, 2100);
    let (good, fits) = (files.write("cert.pem", &cert), files.write("key.pem", &key));

    let fifo = files.fifo("fifo");
    refused(&fifo, &fits, &["--tls-cert ", "fifo is a named pipe", "name a PEM file"]);
    refused(&good, &fifo, &["--tls-key ", "fifo is a named pipe"]);
    for device in ["/dev/zero", "/dev/null", "/dev/tty"] {
        let device = Path::new(device);
        if std::fs::File::open(device).is_ok() {
            refused(device, &fits, &["is a device", "name a PEM file"]);
            refused(&good, device, &["--tls-key ", "is a device"]);
        }
    }
    refused(files.0.path(), &fits, &["is a directory", "name a PEM file"]);
    let _listener = std::os::unix::net::UnixListener::bind(files.path("socket")).unwrap();
    refused(&files.path("socket"), &fits, &["is a socket"]);
    // A file without an end of its own, and one that is only very long.
    std::fs::File::create(files.path("hole")).unwrap().set_len(1 << 40).unwrap();
    refused(&files.path("hole"), &fits, &["hole has more than 1 MiB", "name the PEM file"]);
    refused(&good, &files.path("hole"), &["--tls-key ", "hole has more than 1 MiB"]);
    refused(&files.write("chain", &cert.repeat((4 << 20) / cert.len())), &fits, &["more than 1 MiB"]);
    // One of a size that no client takes.
    let long = files.write("long", &cert.repeat((800 << 10) / cert.len()));
    refused(&long, &fits, &["certificates of", "clients take 64 KiB", "leave the server's own"]);

    refused(
        &files.write("weak", WEAK),
        &files.path("weak"),
        &["weak", "less than 2048 bits", "has 1024", "make a new key"],
    );
    refused(&good, &files.path("weak"), &["cannot be used", "RSA of 2048"]);
    let foreign = files.write("foreign", &foreign);
    refused(&good, &foreign, &["does not belong to the first certificate", "name the key"]);
    let chain = files.write("turned", &format!("{cert}{other}"));
    refused(&chain, &foreign, &["but to number 2", "put that one first"]);
    refused(&files.path("none"), &fits, &["--tls-cert ", "No such file", "check the path"]);
}

/// They are used, and their operator is told what clients will say.
#[test]
fn certificates_out_of_their_time() {
    let files = Files::new();
    for ((from, to), said) in [((2001, 2002), "expired on Jan  1"), ((2200, 2201), "is valid from Jan  1")] {
        let (cert, key) = made(from, to);
        let (cert, key) = (files.write("cert.pem", &cert), files.write("key.pem", &key));
        let (proxy, _) = start_proxy(files.0.path(), &flags(&cert, &key));
        let line = proxy.line(said);
        assert!(line.contains("clients refuse it") && line.contains(&cert.display().to_string()), "{line}");
        proxy.signal(Signal::HUP);
        until("it is told again", || proxy.count(said) == 2);
    }
}

/// Whatever has been put in their place at SIGHUP: clients are served with what there was, and the failures are counted.
#[test]
fn a_reload_never_waits() {
    let files = Files::new();
    let (cert, key) = made(2020, 2100);
    let (good, fits) = (files.write("cert.pem", &cert), files.write("key.pem", &key));
    std::fs::create_dir(files.path("files")).unwrap();
    let _daemon = start_daemon(files.0.path(), "");
    let (proxy, addr) = start_proxy(files.0.path(), &format!("--threads 1 {}", flags(&good, &fits)));
    let place = |name: &str, make: &dyn Fn(&Path)| {
        let path = files.path(name);
        std::fs::remove_file(&path).unwrap();
        make(&path);
    };
    let link = |to: &'static str| move |path: &Path| std::os::unix::fs::symlink(to, path).unwrap();
    let pipe = |path: &Path| drop(files.fifo(path.file_name().unwrap().to_str().unwrap()));
    for (failures, (name, make, why)) in (1..).zip([
        ("cert.pem", &pipe as &dyn Fn(&Path), "is a named pipe"),
        ("cert.pem", &link("/dev/zero"), "is a device"),
        ("key.pem", &pipe, "is a named pipe"),
        ("key.pem", &link("/dev/zero"), "is a device"),
        ("key.pem", &link("/none"), "No such file"),
    ]) {
        place(name, make);
        proxy.signal(Signal::HUP);
        proxy.line(&format!(
            "goes on with the certificate that it has: --tls-{}",
            name.trim_end_matches(".pem")
        ));
        until(why, || proxy.count("goes on with") == failures && proxy.said(why));
        proxy.stats(|stats| stats["tls_reload_failures"].as_u64() == Some(failures as u64));
        // In plain text, to be told so: it answers.
        let mut client = Client::connect(addr);
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.head().0, 400);
        place(name, &|_| {
            files.write(name, if name == "cert.pem" { &cert } else { &key });
        });
    }
    proxy.signal(Signal::HUP);
    proxy.line("read the certificate and its key again");
}
