//! The connection between daemon and proxy: over the kernel, or a onecopy stream. The one place in the daemon
//! where a body's bytes are handed over.

use super::answer::{Answer, Piece, last_part, object_bytes};
use super::interrupted::uninterrupted;
use super::stacked;
use super::store::{Object, cut_short};
use crate::counters::Counters;
use crate::lessons::Lesson;
use crate::transport::same_user;
use onecopy::Carrier;
use onecopy::unix::Stream;
use onecopy::{Policy, Reader};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How a file's bytes enter a kernel socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum FileSend {
    /// pread into a buffer, then write: two kernel copies.
    #[default]
    Copy,
    /// sendfile: the page cache's pages by reference.
    Sendfile,
}

/// Bytes that one pread-and-write step moves over the kernel.
const STEP: usize = 256 << 10;

thread_local! {
    /// What this thread's connection reads files into, over the kernel: kept, since clearing it for each answer
    /// would cost as much as a copy.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One connection to a proxy (or to any plain client).
#[derive(Debug)]
pub enum Wire {
    /// A kernel socket.
    Kernel(UnixStream, FileSend),
    /// A onecopy stream; over the kernel where the peer is a plain client.
    Onecopy(Stream),
    /// TCP over the daemon's own stack.
    Stack(onecopy::tcp::Stream),
}

/// Which stores put a cached object into shared memory (a file's bytes are put there by the kernel's pread).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Stores {
    /// The engine decides from size, buffer and reader.
    #[default]
    Auto,
    /// Ordinary stores.
    Cached,
    /// Non-temporal stores.
    Nt,
}

impl From<Stores> for Policy {
    fn from(stores: Stores) -> Policy {
        match stores {
            Stores::Auto => Policy::Auto,
            Stores::Cached => Policy::Cached,
            Stores::Nt => Policy::NonTemporal,
        }
    }
}

impl Wire {
    /// Receives at least one byte; 0 is the end.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self {
                Wire::Kernel(stream, _) => (&mut &*stream).read(buf),
                Wire::Onecopy(stream) => (&mut &*stream).read(buf),
                Wire::Stack(stream) => (&mut &*stream).read(buf),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Bounds how long one read may wait.
    pub fn set_read_timeout(&self, limit: Duration) -> io::Result<()> {
        match self {
            Wire::Kernel(stream, _) => stream.set_read_timeout(Some(limit)),
            Wire::Onecopy(stream) => Ok(stream.set_read_timeout(Some(limit))?),
            Wire::Stack(stream) => Ok(stream.set_read_timeout(Some(limit))?),
        }
    }

    /// Bounds how long one write may wait.
    pub fn set_write_timeout(&self, limit: Duration) -> io::Result<()> {
        match self {
            Wire::Kernel(stream, _) => stream.set_write_timeout(Some(limit)),
            Wire::Onecopy(stream) => Ok(stream.set_write_timeout(Some(limit))?),
            Wire::Stack(stream) => Ok(stream.set_write_timeout(Some(limit))?),
        }
    }

    /// Ends both directions, whoever is using them.
    pub fn shutdown(&self) {
        match self {
            Wire::Kernel(stream, _) => drop(stream.shutdown(std::net::Shutdown::Both)),
            Wire::Onecopy(stream) => drop(stream.shutdown(std::net::Shutdown::Both)),
            Wire::Stack(stream) => drop(stream.shutdown(std::net::Shutdown::Both)),
        }
    }

    /// Who will read what is sent from now on, as the peer says in `Onecopy-Reader`. The kernel has no use for it.
    pub fn set_reader(&self, reader: Option<&str>) {
        if let Wire::Onecopy(stream) = self {
            stream.set_reader(match reader {
                Some("same-core") => Reader::SameCore,
                Some("other-core") => Reader::OtherCore,
                Some("no-cpu") => Reader::NoCpu,
                _ => Reader::Unknown,
            });
        }
    }

    /// Whether the process at the other end belongs to this process's user.
    pub fn peer_is_same_user(&self) -> bool {
        match self {
            Wire::Kernel(stream, _) => same_user(stream),
            Wire::Onecopy(stream) => {
                stream.peer_cred().is_ok_and(|peer| peer.uid == rustix::process::geteuid().as_raw())
            }
            // Who knows.
            Wire::Stack(_) => false,
        }
    }

    /// Whether it runs over shared memory at this moment.
    pub fn upgraded(&self) -> bool {
        match self {
            Wire::Kernel(..) | Wire::Stack(_) => false,
            Wire::Onecopy(stream) => stream.path().send == Carrier::SharedMemory,
        }
    }

    /// What was learned about the stores of what is sent.
    pub fn learned(&self) -> Option<Lesson> {
        match self {
            Wire::Kernel(..) | Wire::Stack(_) => None,
            Wire::Onecopy(stream) => Some((stream.reader(), stream.capacity().0, stream.learned()?)),
        }
    }

    /// Whether it stays with the kernel although shared memory was wanted.
    pub fn fell_back(&self) -> bool {
        matches!(self, Wire::Onecopy(stream) if stream.stats().fallbacks > 0)
    }

    /// Sends a whole answer, or fails: the connection is of no use after an error, since the length in the head
    /// is a promise.
    pub fn send(&self, answer: &Answer, counters: &mut Counters) -> io::Result<()> {
        match (self, &answer.object) {
            (Wire::Kernel(stream, how), object) => {
                kernel(stream, *how, &answer.pieces, object.as_deref(), counters)
            }
            (Wire::Stack(stream), _) => stacked::send(stream, answer, counters),
            (Wire::Onecopy(stream), None) => answer
                .pieces
                .iter()
                .try_for_each(|piece| send_all(stream, &mut [IoSlice::new(bytes(piece, &[]))])),
            (Wire::Onecopy(stream), Some(object)) => {
                let (before, mut read) = (stream.stats(), 0);
                let result = match &object.memory {
                    Some(memory) => {
                        let mut slices: Vec<_> =
                            answer.pieces.iter().map(|p| IoSlice::new(bytes(p, memory))).collect();
                        send_all(stream, &mut slices)
                    }
                    None => reserved(stream, &answer.pieces, object, &mut read),
                };
                account(stream, (before, read), answer, result.is_ok(), counters);
                result
            }
        }
    }
}

/// Bytes that one pread puts into reserved space before they are published: the proxy can send them on while the
/// next ones are read.
const SLOT: usize = 128 << 10;

/// A file's bytes: pread straight to where the proxy will find them, the text before them in the same piece. A signal may
/// interrupt each step: what was not sent by then is laid out again.
fn reserved(stream: &Stream, pieces: &[Piece], object: &Object, read: &mut u64) -> io::Result<()> {
    let mut text = String::new();
    let last = last_part(pieces);
    for (i, piece) in pieces.iter().enumerate() {
        let part = match piece {
            Piece::Text(more) => {
                text.push_str(more);
                continue;
            }
            Piece::Object(part) => part,
        };
        let mut done = 0;
        while done < part.len() {
            // Never more room than what is left of the part: read_from fills it all.
            let want = (text.len() as u64 + part.len() - done).min(SLOT as u64) as usize;
            let mut slot = uninterrupted(|| Ok(stream.reserve(want)?))?;
            let took = slot.copy_from(text.as_bytes());
            let mut at = done;
            while slot.filled() < slot.len() {
                let got = uninterrupted(|| slot.read_from(&object.file, part.start + at))?;
                if got == 0 {
                    return Err(cut_short());
                }
                at += got as u64;
                *read += got as u64;
            }
            if at == part.len() && Some(i) == last {
                object.still()?;
            }
            let sent = match slot.commit() {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error.into()),
            };
            let took = took.min(sent);
            text.drain(..took);
            done += (sent - took) as u64;
        }
    }
    send_all(stream, &mut [IoSlice::new(text.as_bytes())])
}

/// Counts a body by what the stream says it did since `before`, in which `read` bytes were read into reserved room; the text
/// around it is not counted.
fn account(
    stream: &Stream,
    (before, read): (onecopy::Stats, u64),
    answer: &Answer,
    whole: bool,
    counters: &mut Counters,
) {
    let after = stream.stats();
    counters.stalls += after.sleeps - before.sleeps;
    let text: u64 = answer.pieces.iter().filter(|p| matches!(p, Piece::Text(_))).map(Piece::len).sum();
    let sent = (after.sent - before.sent).saturating_sub(text).min(answer.object_bytes());
    counters.body_bytes += if whole { answer.object_bytes() } else { sent };
    // What goes over the kernel goes first, and the text before all else.
    let kernel = (after.kernel_copied - before.kernel_copied).saturating_sub(read);
    let in_kernel = text.min(kernel);
    // Into reserved room it was copied anyway.
    let in_user = if read > 0 { text } else { text - in_kernel };
    counters.user_copied += (after.user_copied() - before.user_copied()).saturating_sub(in_user);
    counters.user_copied_nt += (after.user_copied_nt - before.user_copied_nt).min(counters.user_copied);
    counters.kernel_copied += read + kernel - in_kernel;
}

pub fn send_all(stream: &Stream, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0); // drops empty slices at the front
    while !slices.is_empty() {
        match stream.send_vectored(slices) {
            Ok(n) => IoSlice::advance_slices(&mut slices, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn kernel(
    mut stream: &UnixStream,
    how: FileSend,
    pieces: &[Piece],
    object: Option<&Object>,
    counters: &mut Counters,
) -> io::Result<()> {
    match object {
        Some(Object { memory: Some(memory), .. }) => {
            let slices: Vec<&[u8]> = pieces.iter().map(|piece| bytes(piece, memory)).collect();
            let mut written = 0;
            let result = write_all_vectored(stream, &slices, &mut written);
            // What of it was text, only the whole of it tells exactly.
            let text = slices.iter().map(|slice| slice.len() as u64).sum::<u64>() - object_bytes(pieces);
            let sent = written.saturating_sub(text);
            counters.kernel_copied += sent;
            counters.body_bytes += sent;
            result
        }
        Some(object) => BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(STEP, 0);
            // The text waits here for the bytes behind it, so that both arrive together.
            let mut lead = 0;
            let last = last_part(pieces);
            for (i, piece) in pieces.iter().enumerate() {
                match piece {
                    Piece::Text(text) => {
                        if lead + text.len() > STEP / 2 {
                            stream.write_all(&buffer[..lead])?;
                            lead = 0;
                        }
                        buffer[lead..lead + text.len()].copy_from_slice(text.as_bytes());
                        lead += text.len();
                    }
                    Piece::Object(part) if how == FileSend::Sendfile => {
                        stream.write_all(&buffer[..std::mem::take(&mut lead)])?;
                        let end = if Some(i) == last { part.len().min(STEP as u64) } else { 0 };
                        send_file(stream, &object.file, part.start, part.len() - end, counters)?;
                        if end > 0 {
                            object.still()?;
                            send_file(stream, &object.file, part.end + 1 - end, end, counters)?;
                        }
                    }
                    Piece::Object(part) => {
                        let (mut at, mut left) = (part.start, part.len());
                        while left > 0 {
                            let step = left.min((STEP - lead) as u64) as usize;
                            let got = read_at(&object.file, &mut buffer[lead..lead + step], at)?;
                            if got as u64 == left && Some(i) == last {
                                object.still()?;
                            }
                            stream.write_all(&buffer[..std::mem::take(&mut lead) + got])?;
                            at += got as u64;
                            left -= got as u64;
                            counters.kernel_copied += 2 * got as u64;
                            counters.body_bytes += got as u64;
                        }
                    }
                }
            }
            stream.write_all(&buffer[..lead])
        }),
        None => pieces.iter().try_for_each(|piece| stream.write_all(bytes(piece, &[]))),
    }
}

fn bytes<'a>(piece: &'a Piece, memory: &'a [u8]) -> &'a [u8] {
    match piece {
        Piece::Text(text) => text.as_bytes(),
        Piece::Object(part) => &memory[part.start as usize..=part.end as usize],
    }
}

fn write_all_vectored(mut stream: &UnixStream, slices: &[&[u8]], written: &mut u64) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = slices.iter().map(|s| IoSlice::new(s)).collect();
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0); // drops empty slices at the front
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                IoSlice::advance_slices(&mut left, n);
                *written += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// At least one byte: a file that has become shorter than its head promised is an error, never padding.
fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buf, at) {
            Ok(0) => return Err(cut_short()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Sends a part of a file by reference through a blocking socket.
fn send_file(
    to: &UnixStream,
    file: &File,
    start: u64,
    length: u64,
    counters: &mut Counters,
) -> io::Result<()> {
    let (mut at, mut left) = (start, length);
    while left > 0 {
        match rustix::fs::sendfile(to, file, Some(&mut at), left.min(1 << 30) as usize) {
            Ok(0) => return Err(cut_short()),
            Ok(n) => {
                left -= n as u64;
                counters.referenced += n as u64;
                counters.body_bytes += n as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
