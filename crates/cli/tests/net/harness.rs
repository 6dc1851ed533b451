//! Starts programs, and hears what they say.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a test waits for something that must come.
pub const SOON: Duration = Duration::from_secs(120);

/// The program, with these arguments.
pub fn onecopy(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(args);
    command
}

/// A program that runs; killed when dropped.
pub struct Running {
    pub child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    out: Option<JoinHandle<Vec<u8>>>,
}

/// How a program ended.
pub struct Ended {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    pub said: Vec<String>,
}

impl Ended {
    /// What it told as JSON on standard error: the last line of that kind.
    pub fn report(&self) -> Value {
        let line = self.said.iter().rev().find(|line| line.starts_with('{'));
        serde_json::from_str(line.unwrap_or_else(|| panic!("no JSON in {:?}", self.said))).unwrap()
    }

    /// As it should.
    pub fn well(self) -> Ended {
        assert!(self.status.success(), "{}: {:?}", self.status, self.said);
        self
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, lines) = channel();
        let errors = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut stdout = child.stdout.take().unwrap();
        let out = std::thread::spawn(move || {
            let mut all = Vec::new();
            let _ = stdout.read_to_end(&mut all);
            all
        });
        Running { child, lines, said: Vec::new(), out: Some(out) }
    }

    /// The first line on standard error that has `what` in it, waited for.
    pub fn line(&mut self, what: &str) -> String {
        loop {
            if let Some(line) = self.said.iter().find(|line| line.contains(what)) {
                return line.clone();
            }
            match self.lines.recv_timeout(SOON) {
                Ok(line) => self.said.push(line),
                Err(error) => panic!("no line with {what:?} ({error}): {:?}", self.said),
            }
        }
    }

    /// Where it says that it listens.
    pub fn listens(&mut self) -> String {
        self.line("listening on ").split_once("listening on ").unwrap().1.to_owned()
    }

    /// Writes to its standard input, and ends that.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut stdin = self.child.stdin.take().unwrap();
        stdin.write_all(bytes).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until all of its threads sleep.
    pub fn all_asleep(&self) {
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap() {
            onecopy_testing::wait_asleep(task.unwrap().file_name().to_str().unwrap().parse().unwrap());
        }
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if begun.elapsed() > SOON => {
                    self.said.extend(self.lines.try_iter());
                    panic!("it does not end: {:?}", self.said)
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        // (Its standard error ends with it, unless a child of its own has that, too.)
        let mut said = std::mem::take(&mut self.said);
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(5)) {
            said.push(line);
        }
        Ended { status, out: self.out.take().unwrap().join().unwrap(), said }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that repeat nowhere soon.
pub fn noise(len: usize) -> Vec<u8> {
    (0..len as u64 / 8 + 1)
        .flat_map(|n| {
            (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(n | 1).to_le_bytes()
        })
        .take(len)
        .collect()
}
