//! `onecopy top`, with a terminal and without.

use crate::harness::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const ROWS: u16 = 40;
const COLUMNS: u16 = 200;

/// A program on a terminal of its own, whose screen can be looked at. What is written to a terminal is what changed on
/// it: only who keeps the screen can tell what is there. Killed when dropped.
struct Terminal {
    master: File,
    /// Kept open, so that the master can be read after the program's end.
    slave: File,
    /// Its modes before the program could change them.
    before: LocalModes,
    child: Child,
    screen: vt100::Parser,
}

impl Terminal {
    fn run(args: &[&str]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).and_then(|()| unlockpt(&master)).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = File::from(rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap());
        tcsetwinsize(&slave, Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(&slave).unwrap().local_modes;
        let child = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(args)
            .env("TERM", "xterm")
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let screen = vt100::Parser::new(ROWS.try_into().unwrap(), COLUMNS.try_into().unwrap(), 0);
        Terminal { master: master.into(), slave, before, child, screen }
    }

    fn modes(&self) -> LocalModes {
        tcgetattr(&self.slave).unwrap().local_modes
    }

    /// Reads until the screen is as it should be; never longer than [`SOON`].
    fn until(&mut self, what: &str, holds: impl Fn(&vt100::Screen) -> bool) {
        let start = Instant::now();
        while !holds(self.screen.screen()) {
            let left = SOON.saturating_sub(start.elapsed());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let ready = poll(&mut [PollFd::new(&self.master, PollFlags::IN)], Some(&left)).unwrap();
            assert!(ready > 0, "never: {what}; on the screen is\n{}", self.screen.screen().contents());
            let mut bytes = [0; 4096];
            let got = self.master.read(&mut bytes).unwrap();
            self.screen.process(&bytes[..got]);
        }
    }

    fn ends_well(&mut self, how: &str) {
        until("top ends", || self.child.try_wait().unwrap().is_some());
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{how:?}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whichever way it ends: entered, drawn, and given back.
#[test]
fn gives_the_terminal_back() {
    let pair = Pair::start("", "");
    let row = |pid: u32| format!("{pid} onecopy");
    let pids = [pair.daemon.child.id(), pair.proxy.child.id()];
    let rows = pids.map(row);
    // A socket of the proxy's, too; and only these, since what else runs here may not fit the screen.
    assert_eq!(pair.get("/none", "").status, 404);
    let pids = pids.map(|pid| pid.to_string());
    for how in ["q", "\u{3}", "\u{1b}", "TERM", "HUP"] {
        let mut terminal =
            Terminal::run(&["top", "--interval", "100ms", "--pid", &pids[0], "--pid", &pids[1]]);
        terminal.until("top takes the other screen", |screen| screen.alternate_screen());
        terminal.until("both have a row", |screen| {
            let contents = screen.contents();
            screen.hide_cursor() && rows.iter().all(|row| contents.contains(row))
        });
        assert_ne!(terminal.modes(), terminal.before);
        let pid = Pid::from_child(&terminal.child);
        match how {
            "TERM" => kill_process(pid, Signal::TERM).unwrap(),
            "HUP" => kill_process(pid, Signal::HUP).unwrap(),
            key => terminal.master.write_all(key.as_bytes()).unwrap(),
        }
        terminal.until("the screen is back", |screen| !screen.alternate_screen() && !screen.hide_cursor());
        terminal.ends_well(how);
        assert_eq!(terminal.modes(), terminal.before, "{how:?}");
    }
}

#[test]
fn without_a_terminal_prints_once() {
    let pair = Pair::start("", "");
    let onecopy = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_onecopy")).args(args).output().unwrap();
    let output = onecopy(&["top", "--interval", "100ms"]);
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(&format!("{} onecopy", pair.daemon.child.id())), "{table}");
    let output = onecopy(&["top", "--interval", "1ms"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("50ms or more"));
}
