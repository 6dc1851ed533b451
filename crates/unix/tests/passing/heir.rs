//! Another process, of this program, that is given sockets.

use crate::PATIENCE;
use onecopy_unix::{Listener, SocketAddr, Stream};
use rustix::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// Tells that process what it is to do.
pub const HEIR: &str = "ONECOPY_TEST_HEIR";

/// The other process, and a stream to it.
pub struct Heir {
    child: Child,
    pub to: Stream,
}

impl Heir {
    pub fn start(what: &str) -> Heir {
        Heir::with(what, "")
    }

    pub fn with(what: &str, more: &str) -> Heir {
        let name = format!("onecopy-heir-{}-{what}{more}", std::process::id());
        let listener = Listener::bind(SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_heir", "--nocapture"])
            .env(HEIR, format!("{what} {name} {more}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (to, _) = listener.accept().unwrap();
        to.set_read_timeout(PATIENCE).unwrap();
        Heir { child, to }
    }

    pub fn give(&self, fds: Vec<OwnedFd>) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.to.send_fds(b"!", &fds).unwrap();
    }

    pub fn take(&self) -> Vec<OwnedFd> {
        take(&self.to)
    }

    pub fn ends_well(mut self) {
        drop(self.to);
        assert!(self.child.wait().unwrap().success());
    }
}

/// Receives descriptors.
pub fn take(from: &Stream) -> Vec<OwnedFd> {
    let (n, with) = from.recv_fds(&mut [0; 1]).unwrap();
    assert_eq!((n, with.truncated), (1, false));
    with.fds
}
