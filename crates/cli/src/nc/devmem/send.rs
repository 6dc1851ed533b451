//! Bytes of a device's memory go out, from where they lie.

use super::super::Args;
use super::super::ends;
use super::pattern::Pattern;
use super::report::{Gave, Of, State};
use anyhow::Context;
use onecopy::advanced::pool::DeviceMemory;
use onecopy::devmem::{TxBinding, TxRange};
use onecopy::storage::{Extent, Storage};
use onecopy::tcp;
use onecopy::zerocopy::Sent;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::Shutdown;

/// Bytes of one send, at most.
const PIECE: u64 = 256 << 10;
/// Ranges of one send, at most: a send of many small ones has fewer bytes.
const RANGES: u64 = 4096;

/// What is sent.
pub enum Source {
    /// A pipe, a terminal, or a file where there is no io_uring.
    Read(ends::Source),
    /// A file, which io_uring reads.
    File(ends::Source, Box<Storage>),
    /// So many bytes of a pattern.
    Pattern(Pattern, u64),
}

impl Source {
    /// As the flags say.
    pub fn of(args: &Args, pattern: Option<Pattern>) -> anyhow::Result<Source> {
        Ok(match (args.devmem.generate, pattern, &args.send) {
            (Some(len), Some(pattern), _) => Source::Pattern(pattern, len as u64),
            (_, _, Some(path)) => Source::file(args, ends::Source::open(path)?),
            _ => Source::file(args, ends::Source::stdin()?),
        })
    }

    fn file(args: &Args, file: ends::Source) -> Source {
        // (A file without a length, such as those of /proc, is read to its end as a pipe is.)
        match file.len.and_then(|_| super::storage(args)) {
            Some(storage) => Source::File(file, Box::new(storage)),
            None => Source::Read(file),
        }
    }

    /// Puts the next bytes into the memory at `place`, where there is room for `room`. Returns how many; 0 is the end.
    fn fill(
        &mut self,
        at: u64,
        memory: &DeviceMemory,
        place: u64,
        room: u64,
        buffer: &mut Vec<u8>,
        state: &State,
    ) -> anyhow::Result<u64> {
        let len = match self {
            Source::File(source, storage) => {
                let (file, at) = source.place().context("it is a regular file")?;
                let len = room.min(file.metadata()?.len().saturating_sub(at));
                let moved = storage.read(file, at, memory, Extent { at: place, len })?;
                state.gave(|gave| gave.file.get_or_insert_default().add(moved));
                source.went(len);
                return Ok(len);
            }
            Source::Pattern(pattern, total) => {
                let len = room.min(*total - at);
                buffer.resize(len as usize, 0);
                pattern.fill(at, buffer);
                len
            }
            Source::Read(file) => {
                buffer.resize(room as usize, 0);
                file.read(buffer)? as u64
            }
        };
        memory.write_at(place, &[IoSlice::new(&buffer[..len as usize])])?;
        Ok(len)
    }
}

/// Sends all of `source`, in ranges of `chunk` bytes, and waits until the peer has acknowledged it.
pub fn send(
    stream: tcp::Stream,
    memory: &DeviceMemory,
    mut source: Source,
    chunk: Option<usize>,
    state: &State,
) -> anyhow::Result<()> {
    let binding = stream.stack().bind_tx(memory).context("the memory cannot be sent from")?;
    let of = Of {
        stack: stream.stack().clone(),
        memory: memory.clone(),
        queues: Vec::new(),
        path: binding.path().to_string(),
    };
    state.sends(Gave::new(), of, stream.try_clone()?);
    let done = all(&stream, &binding, &mut source, chunk.map(|chunk| chunk as u64), state);
    state.sent_all();
    done
}

fn all(
    stream: &tcp::Stream,
    binding: &TxBinding,
    source: &mut Source,
    chunk: Option<u64>,
    state: &State,
) -> anyhow::Result<()> {
    let memory = binding.memory();
    let most = chunk.map_or(u64::MAX, |chunk| chunk.saturating_mul(RANGES));
    // Half of it at least is filled while the rest is under way.
    let piece = PIECE.min(most).min((memory.len() / 2).max(1));
    let slots = memory.len() / piece;
    let mut under_way: VecDeque<Sent> = VecDeque::new();
    let (mut buffer, mut at) = (Vec::new(), 0);
    for slot in (0..slots).cycle() {
        if under_way.len() as u64 == slots {
            completed(under_way.pop_front(), state)?;
        }
        let place = slot * piece;
        let len = source.fill(at, memory, place, piece, &mut buffer, state)?;
        if len == 0 {
            break;
        }
        let sent = stream.send_device(binding, &ranges(place, len, chunk))?;
        at += len;
        state.gave(|gave| gave.sent(len));
        under_way.push_back(sent);
    }
    stream.shutdown(Shutdown::Write)?;
    under_way.into_iter().try_for_each(|sent| completed(Some(sent), state))
}

/// Waits until a send is complete: its memory may be written again.
fn completed(sent: Option<Sent>, state: &State) -> anyhow::Result<()> {
    let Some(sent) = sent else { return Ok(()) };
    let (_, how) = sent.wait();
    anyhow::ensure!(!how.dropped, "the connection ended before all was acknowledged: the peer is gone");
    state.gave(|gave| gave.completed += 1);
    Ok(())
}

/// `len` bytes from `place` on, in ranges of at most `chunk`.
pub fn ranges(place: u64, len: u64, chunk: Option<u64>) -> Vec<TxRange> {
    let chunk = chunk.unwrap_or(len).max(1);
    (0..len)
        .step_by(chunk as usize)
        .map(|at| TxRange { offset: place + at, len: chunk.min(len - at) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_for_each_chunk_and_the_last_one_is_what_is_left() {
        let lens = |len, chunk| ranges(5, len, chunk).iter().map(|range| range.len).collect::<Vec<_>>();
        assert_eq!(lens(7, Some(3)), [3, 3, 1]);
        assert_eq!(lens(6, Some(3)), [3, 3]);
        assert_eq!(lens(6, None), [6]);
        assert!(lens(0, None).is_empty());
        assert_eq!(ranges(5, 7, Some(3))[2], TxRange { offset: 11, len: 1 });
    }
}
