//! What a person at a terminal sees of a file that is on its way, and what a program that reads standard error does not.

use crate::harness::{Running, noise, onecopy};
use rustix::fd::OwnedFd;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::process::Stdio;
use std::thread::JoinHandle;

const LEN: usize = 3_000_000;

/// A terminal of 100 columns: its other side, for a program, and what was written there until nobody has that any more.
fn terminal() -> (OwnedFd, JoinHandle<String>) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    tcsetwinsize(&ours, Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let shown = std::thread::spawn(move || {
        let (mut ours, mut all) = (File::from(ours), Vec::new());
        // EIO says that the last one has closed it.
        let mut piece = [0; 4096];
        while let Ok(n) = ours.read(&mut piece) {
            all.extend_from_slice(&piece[..n]);
        }
        String::from_utf8_lossy(&all).into_owned()
    });
    (theirs.into(), shown)
}

/// Sends a file from one nc to another; standard error of both is a terminal, or none is. What was shown of each.
fn sent(terminals: bool) -> [String; 2] {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::write(&from, noise(LEN)).unwrap();
    // The socket's file says that it listens.
    let socket = dir.path().join("s");
    let at = format!("unix:{}", socket.display());
    let mut shown = Vec::new();
    let mut start = |args: &[&str]| {
        let mut command = onecopy(args);
        if !terminals {
            return (Some(Running::start(&mut command)), None);
        }
        let (stderr, screen) = terminal();
        // Colours and cursor codes are what a real terminal takes.
        command.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        shown.push(screen);
        let child = command.spawn().unwrap();
        (None, Some(child))
    };
    let receiver = start(&["nc", "-l", &at, "--recv", to.to_str().unwrap()]);
    while !socket.exists() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let sender = start(&["nc", &at, "--send", from.to_str().unwrap()]);
    let mut said = Vec::new();
    for (running, child) in [receiver, sender] {
        if let Some(running) = running {
            said.push(running.end().well().said.join("\n"));
        }
        if let Some(mut child) = child {
            assert!(child.wait().unwrap().success());
        }
    }
    assert!(std::fs::read(&to).unwrap() == noise(LEN));
    said.extend(shown.into_iter().map(|screen| screen.join().unwrap()));
    said.try_into().unwrap()
}

#[test]
fn a_bar_shows_how_far_a_file_is_and_is_gone_at_the_end() {
    let [received, sent] = sent(true);
    // The sender knows how long it is.
    assert!(sent.contains("sent") && sent.contains("/2.86 MiB"), "{sent:?}");
    assert!(received.contains("received") && received.contains("iB"), "{received:?}");
    for screen in [received, sent] {
        // The bar's line is cleared, and what is told at the end stands there.
        let (_, behind) =
            screen.rsplit_once("\u{1b}[2K").unwrap_or_else(|| panic!("nothing was cleared: {screen:?}"));
        assert!(
            behind.lines().all(|line| line.starts_with("onecopy nc: ")) && behind.contains("copies per byte"),
            "{screen:?}"
        );
    }
}

#[test]
fn where_standard_error_is_no_terminal_there_is_none() {
    for said in sent(false) {
        assert!(!said.contains(['\u{1b}', '\r']), "{said:?}");
        assert!(said.lines().all(|line| line.starts_with("onecopy nc: ")), "{said:?}");
    }
}
