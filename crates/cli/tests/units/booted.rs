//! A machine's systemd, booted beside the one that may run it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long what must come may take.
const LONG: Duration = Duration::from_secs(60);

/// systemd in namespaces of its own (boot.sh). It ends with this.
pub struct Booted {
    boot: Child,
    /// Its namespaces to enter by: no other process' by the same number.
    namespaces: Vec<(&'static str, File)>,
    /// Where all of it lies.
    _room: TempDir,
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout is there")
}

/// The commands of packaging/README.md, of the lines that have `with`, as root types them, without their comments.
pub fn commands(with: &str) -> Vec<String> {
    let text = std::fs::read_to_string(checkout().join("packaging/README.md")).expect("the README is there");
    let block = text.split("```").nth(1).expect("a block of commands");
    let lines = block.lines().filter_map(|line| line.strip_prefix("# "));
    let lines: Vec<_> = if with == "useradd" {
        // All up to the start.
        lines.take_while(|line| !line.starts_with("systemctl restart")).map(str::to_owned).collect()
    } else {
        lines.filter(|line| line.starts_with(with)).map(str::to_owned).collect()
    };
    assert!(!lines.is_empty(), "no command {with} in {block}");
    lines
}

/// The sum of a metric, over its labels.
pub fn metric(text: &str, name: &str) -> f64 {
    let lines =
        text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

impl Booted {
    /// Boots; says what this machine lacks where that cannot be.
    pub fn boot() -> Option<Booted> {
        if !rustix::process::geteuid().is_root() {
            println!("lacking: root, to boot systemd in namespaces of its own");
            return None;
        }
        for needed in [
            "/lib/systemd/systemd",
            "/usr/bin/nsenter",
            "/usr/bin/curl",
            "/usr/sbin/useradd",
            "/usr/bin/setpriv",
        ] {
            if !Path::new(needed).exists() {
                println!("lacking: {needed}, to run the units of packaging/systemd");
                return None;
            }
        }
        let room = tempfile::tempdir().expect("a room");
        let mut boot = Command::new("bash")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/units/boot.sh"))
            .args([room.path(), &checkout(), Path::new(env!("CARGO_BIN_EXE_onecopy"))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash runs");
        let mut line = String::new();
        BufReader::new(boot.stdout.take().expect("it is ours"))
            .read_line(&mut line)
            .expect("it says something");
        let said = || std::fs::read_to_string(room.path().join("said")).unwrap_or_default();
        if let Some(lacking) = line.strip_prefix("lacking: ") {
            println!("lacking: {lacking}");
            drop(boot.stdin.take());
            boot.wait().expect("it is ours");
            return None;
        }
        let process =
            line.trim().strip_prefix("process ").unwrap_or_else(|| panic!("no systemd: {line}{}", said()));
        let open = |name| (name, File::open(format!("/proc/{process}/ns/{name}")).expect("its namespace"));
        let namespaces = ["mnt", "uts", "ipc", "net", "pid", "cgroup"].map(open).into();
        let booted = Booted { boot, namespaces, _room: room };
        booted.wait_for("systemctl is-system-running", "running");
        Some(booted)
    }

    fn inside(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        let own = std::process::id();
        for (name, file) in &self.namespaces {
            let flag = if *name == "mnt" { "mount" } else { name };
            command.arg(format!("--{flag}=/proc/{own}/fd/{}", file.as_raw_fd()));
        }
        command.args(["sh", "-c", &format!("cd /checkout && {script}")]);
        command.stdin(Stdio::null());
        command
    }

    fn output(&self, script: &str) -> Output {
        self.inside(script).output().expect("nsenter runs")
    }

    /// Runs it there, and returns what it says.
    pub fn run(&self, script: &str) -> String {
        let out = self.output(script);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        if !out.status.success() {
            let journal = self.output("journalctl --no-pager --lines 60");
            let why = String::from_utf8_lossy(&out.stderr);
            panic!("{script}: {}\n{said}{why}\n{}", out.status, String::from_utf8_lossy(&journal.stdout));
        }
        said
    }

    /// Starts it there.
    pub fn start(&self, script: &str) -> Child {
        self.inside(script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nsenter runs")
    }

    /// Runs it until it says `what`.
    pub fn wait_for(&self, script: &str, what: &str) {
        let begun = Instant::now();
        loop {
            let out = self.output(script);
            let said = String::from_utf8_lossy(&out.stdout);
            if said.contains(what) {
                return;
            }
            assert!(
                begun.elapsed() < LONG,
                "{script} does not say {what}: {said}{}",
                String::from_utf8_lossy(&out.stderr)
            );
            sleep(Duration::from_millis(50));
        }
    }

    /// The number that a unit's program has there.
    pub fn main_process(&self, unit: &str) -> String {
        let number = self.run(&format!("systemctl show --value --property MainPID {unit}.service"));
        assert_ne!(number, "0\n", "{unit} runs");
        number.trim().to_owned()
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        // It ends when that does; and what it has mounted in the room, with its namespace.
        drop(self.boot.stdin.take());
        let _ = self.boot.wait();
    }
}
