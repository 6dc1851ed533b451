//! Answers over the daemon's own stack: what is kept in memory goes from where it lies, a file's bytes from the pages that pread(2) put
//! them into.

use super::answer::{Answer, Piece};
use super::store::{Object, cut_short};
use super::wire::last_part;
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
            (Piece::Text(text), _) => whole(text.len(), stream.send_with_flags(text.as_bytes(), flags)?)?,
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

/// Sends up to `most` bytes of an object. Bytes sent, at least one.
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
            whole(len, stream.send_segment(chain.into(), flags)?)?;
            return Ok(len);
        }
    }
    let mut slot = stream.reserve(most)?;
    match &object.memory {
        // All of its pages are under way.
        Some(memory) => counters.user_copied += slot.copy_from(&memory[at as usize..][..most]) as u64,
        None => counters.kernel_copied += slot.read_from(&object.file, at)? as u64,
    }
    let len = slot.filled();
    if len == 0 {
        return Err(cut_short());
    }
    whole(len, stream.send_segment(slot.into_segment(), flags)?)?;
    Ok(len)
}

/// A send that takes less than it was given has run into the peer's patience, or its end.
fn whole(given: usize, taken: usize) -> io::Result<()> {
    if taken == given { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}
