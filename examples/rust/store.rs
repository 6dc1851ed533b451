//! A storage daemon in small: a file goes to a client, and no program copies a byte of it.
//!
//! The daemon reserves room where the client will read, and the kernel reads the file straight into it. The client
//! borrows what came and hands it on, here to another file: a proxy would hand it to a TCP socket.
//!
//! ```console
//! $ cargo run --release -p onecopy --example store            # a file of its own making
//! $ cargo run --release -p onecopy --example store -- FILE
//! ```

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::thread;

use onecopy::Stats;
use onecopy::unix::Stream;

/// Bytes that are reserved, and borrowed, at a time.
const PIECE: usize = 256 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Folder::new()?;
    let from = match env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => folder.sample(5_000_000)?,
    };
    let to = folder.0.join("received");

    let (daemon, client) = Stream::pair()?;
    let file = File::open(&from).map_err(|error| format!("{}: {error}", from.display()))?;
    let sending = thread::spawn(move || send(&daemon, &file));
    let received = receive(&client, &File::create(&to)?)?;
    let sent = sending.join().expect("the daemon does not panic")?;

    if fs::read(&from)? != fs::read(&to)? {
        return Err("what was received is not what was sent".into());
    }
    println!("{} bytes of {} arrived as they were", received.received, from.display());
    for (who, stats) in [("daemon", sent), ("client", received)] {
        let bytes = received.received.max(1) as f64;
        println!(
            "{who}: {:.2} copies per byte in user space, {:.2} in the kernel",
            stats.user_copied() as f64 / bytes,
            stats.kernel_copied as f64 / bytes
        );
    }
    Ok(())
}

/// Sends the whole file: pread straight into the stream's buffer.
fn send(stream: &Stream, file: &File) -> io::Result<Stats> {
    let mut offset = 0;
    loop {
        let mut slot = stream.reserve(PIECE)?;
        let n = slot.read_from(file, offset)?;
        if n == 0 {
            // Dropping the slot sends nothing.
            drop(slot);
            return Ok(stream.stats());
        }
        slot.commit()?;
        offset += n as u64;
    }
}

/// Writes what comes to `file`, from where it lies.
fn receive(stream: &Stream, file: &File) -> io::Result<Stats> {
    loop {
        let mut view = stream.recv_borrowed(PIECE)?;
        if view.is_empty() {
            return Ok(stream.stats());
        }
        while !view.is_empty() {
            let n = view.write_to(file)?;
            // What was written is room for the daemon again.
            view.advance(n);
        }
    }
}

/// A temporary folder, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Folder> {
        let path = env::temp_dir().join(format!("onecopy-store-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Folder(path))
    }

    /// A file of `len` bytes that repeats nowhere soon.
    fn sample(&self, len: u32) -> io::Result<PathBuf> {
        let path = self.0.join("sample");
        let bytes: Vec<u8> = (0..len).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(&path, bytes)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
