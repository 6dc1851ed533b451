//! Answers over the daemon's own stack: what is kept in memory goes from where it lies, a file's bytes from the pages that pread(2) put
//! them into.

use super::answer::{Answer, Piece, last_part};
use super::interrupted::uninterrupted;
use super::store::{Object, cut_short};
use crate::counters::Counters;
use onecopy::SendFlags;
use onecopy::tcp::Stream;
use std::io;

/// Bytes that are handed over at once.
const STEP: u64 = 256 << 10;

/// Sends a whole answer, or fails.
pub fn send(stream: &Stream, answer: &Answer, counters: &mut Counters) -> io::Result<()> {
    let (count, last) = (answer.pieces.len(), last_part(&answer.pieces));
    for (i, piece) in answer.pieces.iter().enumerate() {
        let flags = if i + 1 < count { SendFlags::MORE } else { SendFlags::empty() };
        match (piece, &answer.object) {
            (Piece::Text(text), _) => {
                let mut left = text.as_bytes();
                while !left.is_empty() {
                    left = &left[uninterrupted(|| Ok(stream.send_with_flags(left, flags)?))?..];
                }
            }
            (Piece::Object(part), Some(object)) => {
                let (mut at, end) = (part.start, part.end + 1);
                while at < end {
                    let most = (end - at).min(STEP);
                    if at + most == end && Some(i) == last && object.memory.is_none() {
                        object.still()?;
                    }
                    let more = if at + most < end { SendFlags::MORE } else { flags };
                    let n = step(stream, object, at, most as usize, more, counters)? as u64;
                    at += n;
                    counters.body_bytes += n;
                    // The link's kernel has it in memory of its own.
                    counters.kernel_copied += n;
                }
            }
            (Piece::Object(_), None) => return Err(cut_short()),
        }
    }
    Ok(())
}

/// Sends up to `most` bytes of an object. Bytes sent: none where a signal came first.
fn step(
    stream: &Stream,
    object: &Object,
    at: u64,
    most: usize,
    flags: SendFlags,
    counters: &mut Counters,
) -> io::Result<usize> {
    if let Some(pages) = object.pages() {
        let chain = pages.chain(at as usize, most);
        let len = chain.len();
        if len > 0 {
            return taken(stream.send_segment(chain.into(), flags));
        }
    }
    let mut slot = uninterrupted(|| Ok(stream.reserve(most)?))?;
    match &object.memory {
        // All of its pages are under way.
        Some(memory) => counters.user_copied += slot.copy_from(&memory[at as usize..][..most]) as u64,
        None => counters.kernel_copied += slot.read_from(&object.file, at)? as u64,
    }
    if slot.filled() == 0 {
        return Err(cut_short());
    }
    taken(stream.send_segment(slot.into_segment(), flags))
}

/// What was not taken is laid out again from the object.
fn taken(sent: Result<usize, onecopy::Error>) -> io::Result<usize> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        sent => Ok(sent?),
    }
}
