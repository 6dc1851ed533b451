//! One script: what it asks for, and a run of it.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

/// What scripts may name without defining it; packetdrill's own run_all.py gives these values.
const DEFINITIONS: [&str; 4] = [
    "CMSG_LEVEL_IP=SOL_IP",
    "CMSG_TYPE_RECVERR=IP_RECVERR",
    "TFO_COOKIE=3021b9d889017eeb",
    "CODE=host_unreachable",
];

/// The addresses where a script gives none. (packetdrill's default for ours is random; a run is to be repeatable.)
const ADDRESSES: [(&str, &str); 4] = [
    ("local_ip", "192.168.0.1"),
    ("gateway_ip", "192.168.0.2"),
    ("netmask_ip", "255.255.0.0"),
    ("remote_ip", "192.0.2.1"),
];

/// Makes the interface that scripts change by commands, with the route that packetdrill would make. Our stack doesn't use it, but what is
/// said of it holds for our stack.
const INTERFACE: &str = "ip tuntap add dev tun0 mode tun && ip address add $local_ip/16 dev tun0 \
     && ip link set tun0 up && ip route add $remote_ip via $gateway_ip dev tun0 && ";

/// A script.
#[derive(Debug)]
pub struct Script {
    /// Its path below the folder of scripts.
    pub name: String,
    path: PathBuf,
}

/// What became of one.
#[derive(Debug)]
pub enum Outcome {
    Passed,
    Failed {
        /// In one line.
        why: String,
        /// All that packetdrill said.
        said: String,
    },
    /// It cannot be run.
    Skipped {
        why: String,
    },
}

impl Outcome {
    pub fn kind(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed { .. } => "failed",
            Outcome::Skipped { .. } => "skipped",
        }
    }

    pub fn why(&self) -> Option<&str> {
        match self {
            Outcome::Passed => None,
            Outcome::Failed { why, .. } | Outcome::Skipped { why } => Some(why),
        }
    }
}

/// All scripts below `root`, in alphabetical order.
pub fn find(root: &Path) -> Result<Vec<Script>> {
    let (mut folders, mut found) = (vec![root.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "pkt") {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                found.push(Script { name, path });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// How a network namespace is made here: as root, or inside of a user namespace.
pub fn namespace() -> Result<Vec<&'static str>> {
    let mut ways = [vec!["unshare"], vec!["unshare", "--user", "--map-root-user"]];
    for command in &mut ways {
        command.extend(["--net", "--mount"]);
        let [program, args @ ..] = command.as_slice() else { continue };
        let mut probe = Command::new(program);
        probe.args(args).args(["ip", "tuntap", "add", "dev", "tun0", "mode", "tun"]);
        let quiet = probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if quiet.status().is_ok_and(|status| status.success()) {
            return Ok(std::mem::take(command));
        }
    }
    bail!(
        "no network namespace with a tun interface can be made; it needs root, or user namespaces that may open /dev/net/tun, \
         and the commands unshare (util-linux) and ip (iproute2)"
    )
}

/// How scripts are run.
#[derive(Debug)]
pub struct Runner {
    pub bin: PathBuf,
    pub namespace: Vec<&'static str>,
    /// The stack; the kernel's if there is none.
    pub object: Option<PathBuf>,
    pub limit: Duration,
    pub tolerance: u32,
}

impl Runner {
    /// Runs one.
    pub fn run(&self, script: &Script) -> Outcome {
        match self.try_run(script) {
            Ok(outcome) => outcome,
            Err(error) => {
                Outcome::Failed { why: format!("it could not be run: {error:#}"), said: String::new() }
            }
        }
    }

    fn try_run(&self, script: &Script) -> Result<Outcome> {
        let text = fs::read_to_string(&script.path)?;
        if self.object.is_some() && option(&text, "ip_version").is_some_and(|version| version != "ipv4") {
            return Ok(Outcome::Skipped { why: "IPv6".to_owned() });
        }
        let mut out = tempfile::tempfile()?;
        let mut child = self.command(script, &text, &out)?.spawn().context("unshare")?;
        let ended = wait(&mut child, self.limit)?;
        let mut said = String::new();
        out.rewind()?;
        out.read_to_string(&mut said)?;
        Ok(match ended {
            Some(status) if status.success() => Outcome::Passed,
            // It names what nobody has defined, or needs a command that is missing here.
            Some(_) if said.contains("semantic error") || said.contains("error executing init command") => {
                Outcome::Skipped { why: reason(&said) }
            }
            Some(status) => {
                let why = if status.code() == Some(1) { String::new() } else { format!("{status}: ") };
                Outcome::Failed { why: why + &reason(&said), said }
            }
            None => Outcome::Failed {
                why: format!("it was not over after {} s: {}", self.limit.as_secs(), reason(&said)),
                said,
            },
        })
    }

    fn command(&self, script: &Script, text: &str, out: &File) -> Result<Command> {
        let (program, args) = self.namespace.split_first().context("no way to make a namespace")?;
        let mut command = Command::new(program);
        command.args(args);
        let mut options =
            vec!["--ip_version=ipv4".to_owned(), format!("--tolerance_usecs={}", self.tolerance)];
        options.extend(DEFINITIONS.map(|definition| format!("-D{definition}")));
        let is_v6 = option(text, "ip_version").is_some_and(|version| version != "ipv4");
        if is_v6 {
            options.remove(0);
        }
        for (name, default) in ADDRESSES.iter().filter(|_| !is_v6) {
            let chosen = option(text, name).unwrap_or(default);
            command.env(name, chosen);
            options.push(format!("--{name}={chosen}"));
        }
        // Scripts leave files in /tmp, and those that run at once have the same names for them: each has a /tmp of its own, unless what
        // it needs lies there.
        let needs_tmp = [Some(&self.bin), Some(&script.path), self.object.as_ref()];
        let own_tmp = !needs_tmp.into_iter().flatten().any(|path| path.starts_with("/tmp"));
        let tmp = if own_tmp { "mount -t tmpfs tmpfs /tmp && " } else { "" };
        let interface = if self.object.is_some() { INTERFACE } else { "" };
        command.args(["sh", "-c", &format!("{tmp}{interface}ip link set lo up && exec \"$@\""), "sh"]);
        if let Some(object) = &self.object {
            command.args(["env", &format!("LD_PRELOAD={}", object.display())]);
            options.push(format!("--so_filename={}", object.display()));
        }
        command.arg(&self.bin).args(options).arg(&script.path);
        // A group of its own, so that all that it has started ends with it.
        command.process_group(0).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out.try_clone()?);
        // Scripts name their helpers from where they lie.
        command.current_dir(script.path.parent().context("a script lies in a folder")?);
        Ok(command)
    }
}

/// The value of an option that a script sets before its first event.
fn option<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.filter_map(|rest| rest.split_whitespace().next()).next_back()
}

/// Waits for the end, at most `limit`; then ends it. None where it had to.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() >= limit {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process")?;
            rustix::process::kill_process_group(group, Signal::KILL)?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The line of packetdrill's that says what went wrong: it names the script and a line; checks in Python end with the failed assertion.
fn reason(said: &str) -> String {
    let is_noise =
        |line: &&str| line.starts_with("sysctl:") || line.starts_with("Error:") || line.trim().is_empty();
    let mut lines = said.lines().filter(|line| !is_noise(line));
    let Some(first) = lines.clone().find(|line| line.contains(".pkt:")).or_else(|| lines.next()) else {
        return "it said nothing".to_owned();
    };
    let first = first.rsplit('/').next().unwrap_or(first);
    let python = said.lines().rev().find(|line| line.contains("Error") && line.contains(": "));
    match python.filter(|_| first.contains("Python")) {
        Some(assertion) => format!("{first}: {assertion}"),
        None => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_script_are_found() {
        let text = "// a comment\n--local_ip=10.0.0.1 // why\n\n`commands`\n 0 socket(...) = 3\n";
        assert_eq!(option(text, "local_ip"), Some("10.0.0.1"));
        assert_eq!(option(text, "remote_ip"), None);
        assert_eq!(option("--ip_version=ipv6", "ip_version"), Some("ipv6"));
    }

    #[test]
    fn the_line_that_says_why_is_found() {
        let said = "sysctl: setting key \"net.ipv4.tcp_fack\": Operation not permitted\n\
                    /a/b.pkt:24: error handling packet: live packet payload: expected 1 bytes vs actual 2 bytes\nscript packet: x\n";
        assert_eq!(
            reason(said),
            "b.pkt:24: error handling packet: live packet payload: expected 1 bytes vs actual 2 bytes"
        );
        let said = "c.pkt:27: error in Python code\nTraceback (most recent call last):\n  File \"/tmp/x\"\nAssertionError: 7\n\
                    c.pkt: error executing code: 'python3' returned non-zero status 1\n";
        assert_eq!(reason(said), "c.pkt:27: error in Python code: AssertionError: 7");
        assert_eq!(reason(""), "it said nothing");
    }

    #[test]
    fn one_that_takes_too_long_ends_with_all_it_has_started() {
        let mut child = Command::new("sh").args(["-c", "sleep 600 & wait"]).process_group(0).spawn().unwrap();
        assert!(wait(&mut child, Duration::ZERO).unwrap().is_none());
        let mut child = Command::new("true").process_group(0).spawn().unwrap();
        assert!(wait(&mut child, Duration::from_secs(60)).unwrap().unwrap().success());
    }
}
