//! `onecopy top`, with a terminal and without.

use crate::harness::*;
use onecopy_testing::alone;
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

/// What stands in the column `head`, in the row that ends with `end`. (Both kinds of table have numbers at the right of their columns.)
fn cell<'a>(table: &'a str, head: &str, end: &str) -> Option<&'a str> {
    let heads = table.lines().find(|line| line.contains(" received "))?;
    let right = heads.find(&format!(" {head} "))? + 1 + head.len();
    let row = table.lines().find(|line| line.trim_end().ends_with(end))?;
    row.get(..right)?.rsplit(' ').next()
}

/// Two stacks in this process: what their connections do in a second is seen while they do it, and that they rest when they do.
#[test]
fn tcp_sockets_of_a_stack_move() {
    use onecopy::advanced::link::Tap;
    use onecopy::{Stack, tcp};
    alone!();
    let (a, b) = Tap::cable(1500).unwrap();
    let a = Stack::builder().link(a).address("10.0.0.1/24").build().unwrap();
    let b = Stack::builder().link(b).address("10.0.0.2/24").build().unwrap();
    let at = "10.0.0.2:80".parse().unwrap();
    let listener = tcp::Listener::bind(&b, at).unwrap();
    let connect = || {
        let client = tcp::Stream::connect(&a, at).unwrap();
        let name = client.local_addr().unwrap();
        (client, listener.accept().unwrap().0, name)
    };
    let (client, server, name) = connect();
    let (_near, _far, idle) = connect();
    let (sends, receives) = (format!(" {name} {at}"), format!(" {at} {name}"));
    let idle = format!(" {idle} {at}");
    let pid = std::process::id().to_string();
    // Both ends stay: what sends no more rests, and is shown.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (client, server) = (&client, &server);
        // (Dropped, also where an assertion fails, it ends the thread.)
        let stop = stop;
        scope.spawn(move || {
            let mut buffer = [0; 1000];
            while let Err(std::sync::mpsc::TryRecvError::Empty) = stopped.try_recv() {
                client.send(&[7; 1000]).unwrap();
                server.recv_with_flags(&mut buffer, onecopy::RecvFlags::WAITALL).unwrap();
            }
        });
        let once = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(["top", "--once", "--interval", "200ms", "--pid", &pid])
            .output()
            .unwrap();
        let table = String::from_utf8(once.stdout).unwrap();
        for (end, head) in [(&sends, "sent"), (&receives, "received")] {
            assert!(!matches!(cell(&table, head, end), None | Some("0")), "{head} of{end}:\n{table}");
        }
        for (end, head) in [(&sends, "received"), (&receives, "sent"), (&idle, "sent"), (&idle, "received")] {
            assert_eq!(cell(&table, head, end), Some("0"), "{head} of{end}:\n{table}");
        }
        let listens = format!(" {at}");
        let row = table.lines().find(|line| line.starts_with("tcp listening")).unwrap();
        assert!(row.ends_with(&listens), "{table}");

        let mut terminal = Terminal::run(&["top", "--interval", "50ms", "--pid", &pid]);
        let shows = |screen: &vt100::Screen, end: &str, head: &str, moves: bool| {
            let table = screen.contents();
            cell(&table, head, end).is_some_and(|cell| (cell != "0") == moves)
        };
        terminal.until("who sends and who receives move, the idle one does not", |screen| {
            shows(screen, &sends, "sent", true)
                && shows(screen, &receives, "received", true)
                && shows(screen, &idle, "sent", false)
        });
        drop(stop);
        terminal.until("they rest", |screen| {
            shows(screen, &sends, "sent", false) && shows(screen, &receives, "received", false)
        });
        terminal.master.write_all(b"q").unwrap();
        terminal.ends_well("q");
    });
}
