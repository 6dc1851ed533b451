//! The file that packets are written to.

use anyhow::Context;
use onecopy::advanced::link::Link;
use onecopy::advanced::link::pcap::{Pcap, PcapConfig};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A file that the stack's link writes to, and that this program flushes: the link itself is out of its reach.
#[derive(Clone)]
pub struct Capture {
    name: String,
    out: Arc<Mutex<BufWriter<File>>>,
}

impl Capture {
    /// A new file, or one that is emptied.
    pub fn create(path: &Path) -> anyhow::Result<Capture> {
        let name = path.display().to_string();
        let file = File::create(path).with_context(|| format!("cannot write {name}"))?;
        Ok(Capture { name, out: Arc::new(Mutex::new(BufWriter::new(file))) })
    }

    /// What passes `link` is written down.
    pub fn around<L: Link>(&self, link: L) -> Pcap<L, Capture> {
        // The stack's clock begins now.
        Pcap::new(link, self.clone(), PcapConfig::new().clock(SystemTime::now(), 0))
    }

    fn out(&self) -> MutexGuard<'_, BufWriter<File>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was written so far is in the file from here on; or it is told why not.
    pub fn flush(&self) {
        if let Err(error) = self.out().flush() {
            tell!("onecopy stack: {} lacks packets: {error}; give it more room, and start again", self.name);
        }
    }
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out().flush()
    }
}
