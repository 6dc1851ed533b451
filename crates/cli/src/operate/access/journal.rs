//! systemd's journal, in its own protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram of fields for each line.

use anyhow::Context;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Where journald listens.
const SOCKET: &str = "/run/systemd/journal/socket";

/// A way to it. (Each message is sent by name: a journald that was started again is found.)
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
    to: Box<Path>,
}

impl Journal {
    pub fn open() -> anyhow::Result<Journal> {
        let why = "--access-log journal: there is no journal of systemd here; name a file";
        Journal::at(Path::new(SOCKET)).context(why)
    }

    pub(super) fn at(path: &Path) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?; // is there anybody
        Ok(Journal { socket: UnixDatagram::unbound()?, to: path.into() })
    }

    /// Sends a line, with or without its end.
    pub fn send(&self, line: &[u8]) -> io::Result<()> {
        let fields = b"PRIORITY=6\nSYSLOG_IDENTIFIER=onecopy-access\nMESSAGE=";
        let message = [fields, line.trim_ascii_end(), b"\n"].concat();
        self.socket.send_to(&message, &self.to).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_datagram_of_fields() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        assert!(Journal::at(&path).is_err());
        let daemon = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        journal.send(b"one line\n").unwrap();
        let mut room = [0; 200];
        let n = daemon.recv(&mut room).unwrap();
        let text = std::str::from_utf8(&room[..n]).unwrap();
        assert_eq!(text, "PRIORITY=6\nSYSLOG_IDENTIFIER=onecopy-access\nMESSAGE=one line\n");
        // One that is started again has another socket there.
        drop(daemon);
        std::fs::remove_file(&path).unwrap();
        let again = UnixDatagram::bind(&path).unwrap();
        journal.send(b"two").unwrap();
        assert!(again.recv(&mut room).unwrap() > 0);
    }
}
