//! What systemd hears of either program (sd_notify(3), Type=notify-reload).

use crate::harness::*;
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where a program says how it is.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Manager(socket)
    }

    /// The next message that is no text for people.
    fn hears(&self) -> String {
        loop {
            let mut message = [0; 4096];
            let len = self.0.recv(&mut message).expect("it says something");
            let message = String::from_utf8(message[..len].to_vec()).unwrap();
            if !message.starts_with("STATUS=") {
                return message.trim_end().to_owned();
            }
        }
    }
}

#[test]
fn systemd_hears_of_the_beginning_each_reload_and_the_end() {
    let pair = Pair::start("", "");
    let dir = pair.dir.path();
    let path = |name: &str| dir.join(name).display().to_string();
    let config = path("c.toml");
    std::fs::write(&config, "log-level = \"info\"\n").unwrap();
    let (listen, backend) = (format!("unix:{}", path("other")), format!("unix:{}", path("s")));
    let root = path("");
    for args in [
        ["serve", "--root", &root, "--listen", &listen, "--config", &config],
        ["proxy", "--backend", &backend, "--listen", "127.0.0.1:0", "--config", &config],
    ] {
        let socket = dir.join(format!("notify-{}", args[0]));
        let manager = Manager::at(&socket);
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(args).env("NOTIFY_SOCKET", &socket);
        let mut program = Running::with_input(&mut command, Stdio::null());
        assert_eq!(manager.hears(), "READY=1");
        program.signal(Signal::HUP);
        let reloads = manager.hears();
        let when = reloads.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
        assert!(when.is_some_and(|when| when.parse::<u64>().is_ok()), "{reloads}");
        assert_eq!(manager.hears(), "READY=1");
        program.signal(Signal::TERM);
        assert_eq!(manager.hears(), "STOPPING=1");
        assert_eq!(program.end(), Some(0));
    }
}
