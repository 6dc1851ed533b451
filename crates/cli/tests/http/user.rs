//! `--user`: what root binds, another user serves. (As root; the tests say so where they are not.)

use crate::harness::*;
use rustix::process::Signal;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Of the kernel's; by custom it has no name that has anything (`nobody`, `nogroup`).
const OTHER: u32 = 65534;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not tried: it takes root");
    }
    root
}

/// A folder that the other user may read, with one of its own in it.
fn home() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["files", "run"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("files/f"), noise(30_000, 1)).unwrap();
    chown(dir.path().join("run"), Some(OTHER), Some(OTHER)).unwrap();
    dir
}

fn serve(dir: &Path, flags: &str) -> Running {
    let (root, listen) = (dir.join("files"), format!("unix:{}", dir.join("run/s").display()));
    let args = ["serve", "--root", root.to_str().unwrap(), "--listen", &listen];
    Running::start(&[&args[..], &flags.split_whitespace().collect::<Vec<_>>()].concat())
}

fn proxy(dir: &Path, listen: &str, flags: &str) -> Running {
    let backend = format!("unix:{}", dir.join("run/s").display());
    let args = ["proxy", "--listen", listen, "--backend", &backend];
    Running::start(&[&args[..], &flags.split_whitespace().collect::<Vec<_>>()].concat())
}

/// An address of this host with a port that takes root to bind.
fn privileged() -> SocketAddr {
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (("127.0.0.1").parse::<std::net::IpAddr>().unwrap(), (600..1024).find(free).expect("a port")).into()
}

/// All threads are the other user's, and have nothing of root's.
fn gave_up_root(program: &Running) {
    let process = format!("/proc/{}", program.child.id());
    let mut threads = 0;
    for task in fs::read_dir(format!("{process}/task")).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<String>>()
        };
        assert_eq!(field("Uid:"), ["65534"; 4]);
        assert_eq!(field("Gid:"), ["65534"; 4]);
        assert_eq!(field("Groups:"), ["65534"]);
        assert_eq!(field("NoNewPrivs:"), ["1"]);
        for capabilities in ["CapEff:", "CapPrm:", "CapAmb:"] {
            assert_eq!(field(capabilities), ["0000000000000000"]);
        }
        threads += 1;
    }
    assert!(threads > 0);
    // What the user's other programs see of it (`ss`, `top`).
    assert_eq!(fs::metadata(format!("{process}/fd")).unwrap().uid(), OTHER);
}

#[test]
fn root_binds_and_another_user_serves() {
    if is_root() {
        // They know each other for the same user's: what is lent is lent, and what is copied goes over shared memory.
        serves("--cache 1M", "lent");
        serves("--lend never", "upgraded");
    }
}

fn serves(flags: &str, counter: &str) {
    let dir = home();
    let log = dir.path().join("run/log");
    let mut daemon = serve(
        dir.path(),
        &format!(
            "{flags} --revalidate 0 --user 65534:65534 --access-log {} --metrics 127.0.0.1:0",
            log.display()
        ),
    );
    daemon.line("onecopy serve:");
    daemon.line("goes on as ");
    assert_eq!(fs::metadata(dir.path().join("run/s")).unwrap().uid(), OTHER);
    assert_eq!(fs::metadata(&log).unwrap().uid(), OTHER);
    let at = privileged();
    let meet = format!("--user 65534:65534 --takeover unix:{}", dir.path().join("run/meet").display());
    let mut front = proxy(dir.path(), &at.to_string(), &format!("{meet} --threads 1"));
    front.line("onecopy proxy: http");
    for _ in 0..3 {
        assert_eq!(Client::connect(at).get("/f").body.len(), 30_000);
    }
    gave_up_root(&daemon);
    gave_up_root(&front);
    let counted = daemon.stats(|stats| stats["requests"] == 3);
    assert!(counted[counter].as_u64() > Some(0), "{counted:#}");
    // What SIGHUP opens anew, this user can make.
    fs::rename(&log, dir.path().join("run/old")).unwrap();
    daemon.signal(Signal::HUP);
    until("a new log", || log.exists());
    // Another user's successor gets nothing, root's does: it will be the same.
    until("it waits for a successor", || dir.path().join("run/meet").exists());
    let next = proxy(dir.path(), &at.to_string(), &meet);
    next.line("took over from the one that ran");
    assert_eq!(front.end(), Some(0));
    gave_up_root(&next);
    assert_eq!(Client::connect(at).get("/f").body.len(), 30_000);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    assert!(!dir.path().join("run/s").exists(), "the folder is this user's");
}

/// What only root may open is refused at once, and not when it is opened again.
#[test]
fn all_else_is_opened_as_the_user() {
    if !is_root() {
        return;
    }
    let dir = home();
    let secret = dir.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    let config = secret.join("serve.toml");
    fs::write(&config, "cache = \"1M\"\n").unwrap();
    let log = secret.join("log");
    for (flags, why) in [
        (format!("--access-log {}", log.display()), "log"),
        (format!("--config {}", config.display()), "cannot read"),
    ] {
        let mut daemon = serve(dir.path(), &format!("--user 65534:65534 {flags}"));
        assert_eq!(daemon.end(), Some(1), "{flags}");
        daemon.line(why);
        assert!(!log.exists());
    }
}

#[test]
fn who_cannot_be_is_refused() {
    if !is_root() {
        return;
    }
    let dir = home();
    for (user, code, why) in [
        ("root", 1, "gives up nothing"),
        ("0:65534", 1, "gives up nothing"),
        ("4294967295:1", 1, "gives up nothing"),
        ("no-such-user", 1, "there is no user"),
        ("65534:no-such-group", 1, "there is no group"),
        ("3999999999", 1, "write --user 3999999999:GROUP"),
        ("a:b:c", 2, "NAME:GROUP"),
        ("65534 --tap x", 2, "cannot be used with"),
    ] {
        let mut daemon = serve(dir.path(), &format!("--user {user}"));
        assert_eq!(daemon.end(), Some(code), "{user}");
        daemon.line(why);
        assert!(!dir.path().join("run/s").exists());
    }
    // Root of a user namespace that has no other user.
    let listen = format!("unix:{}", dir.path().join("u").display());
    let (root, flags) = (dir.path().join("files"), ["--user", "65534:65534"]);
    let serve = ["serve", "--listen", &listen, "--root", root.to_str().unwrap()];
    let proxy = ["proxy", "--listen", "127.0.0.1:0", "--backend", &listen];
    if Command::new("unshare")
        .args(["--user", "--map-root-user", "true"])
        .status()
        .is_ok_and(|ran| ran.success())
    {
        for args in [serve, proxy] {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_onecopy")]).args(args).args(flags);
            let mut program = Running::with_input(&mut command, Stdio::null());
            assert_eq!(program.end(), Some(1));
            program.line("or is in a user namespace that does not have that user or group");
        }
        assert!(!dir.path().join("u").exists());
    } else {
        println!("not tried: there are no user namespaces here");
    }
}

#[test]
fn who_is_no_root_has_nothing_to_give_up() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The other user may not get to where it was built.
    let program = dir.path().join("onecopy");
    fs::copy(env!("CARGO_BIN_EXE_onecopy"), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["proxy", "--listen", "127.0.0.1:0", "--backend", "unix:@x", "--user", "nobody"]);
    if rustix::process::geteuid().is_root() {
        command.uid(OTHER).gid(OTHER);
    }
    let mut proxy = Running::with_input(&mut command, Stdio::null());
    assert_eq!(proxy.end(), Some(1));
    proxy.line("already: leave it out");
}
