//! `.ci/run`, with a cargo that does as it is told: does the run fail when the checks do, and is all that they print seen?

#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A checkout with nothing in it but `.ci/run`; removed when dropped.
struct Checkout(PathBuf);

impl Checkout {
    /// `checks`: what `cargo xtask` does, as a line of shell.
    fn new(name: &str, checks: &str) -> Checkout {
        let dir = std::env::temp_dir().join(format!("onecopy-ci-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join(".ci")).unwrap();
        fs::create_dir(dir.join("bin")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/run");
        fs::copy(script, dir.join(".ci/run")).unwrap();
        let cargo = format!("if [ \"$1\" = xtask ]; then shift; echo \"checks: $*\"; {checks}; fi; exit 0");
        // What the machine may lack is there, so that nothing is installed: neither by apt-get, nor into Python's environment, whose pip
        // does nothing.
        let python = r#"if [ "$1 $2" = "-m venv" ] && [ "$3" != --help ]; then
mkdir -p "$3/bin"; printf '#!/bin/sh\n' >"$3/bin/python"; chmod +x "$3/bin/python"; fi"#;
        let installs = "echo \"apt-get: $*\"";
        for (program, does) in [
            ("cargo", cargo.as_str()),
            ("python3", python),
            ("nc", "echo OpenBSD"),
            ("apt-get", installs),
            ("sudo", installs),
            ("dpkg-query", ""),
        ]
        .into_iter()
        .chain(["curl", "socat", "strace", "ip", "nft", "iperf3", "nginx", "ping"].map(|name| (name, "")))
        {
            let path = dir.join("bin").join(program);
            fs::write(&path, format!("#!/bin/sh\n{does}\n")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Checkout(dir)
    }

    fn run(&self) -> Output {
        let path = std::env::var("PATH").unwrap();
        Command::new("bash")
            .arg(self.0.join(".ci/run"))
            .current_dir("/") // it finds its own way
            .env("PATH", format!("{}:{path}", self.0.join("bin").display()))
            .stdin(Stdio::piped()) // which nothing may read
            .output()
            .unwrap()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_the_checks_say_is_what_ci_says() {
    let fine = Checkout::new("fine", "echo 'steps: 15 passed, 0 failed, 0 skipped'");
    let out = fine.run();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    assert!(
        text.contains("checks: test\n") && text.ends_with("steps: 15 passed, 0 failed, 0 skipped\n"),
        "{text}"
    );

    assert!(!text.contains("apt-get: "), "{text}");

    let broken = Checkout::new("broken", "echo 'steps: 14 passed, 1 failed, 0 skipped'; exit 1");
    let out = broken.run();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stdout).ends_with("1 failed, 0 skipped\n"));

    // Whoever waits for a person waits for ever in CI.
    let asks = Checkout::new("asks", "if read answer; then exit 0; else exit 3; fi");
    assert_eq!(asks.run().status.code(), Some(3));
}
