//! A connection's bytes come to bound queues; whoever wants looks at them; their tokens go back.

use super::super::ends::Sink;
use super::Plan;
use super::pattern::{MOST_ERRORS, Pattern};
use super::report::{Got, Of, State};
use anyhow::Context;
use onecopy::advanced::pool::DeviceMemory;
use onecopy::devmem::{Binding, Frag, TokenRange};
use onecopy::storage::{Extent, Storage};
use onecopy::{Stack, tcp};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

/// Bytes that one receive takes.
const PIECE: usize = 1 << 20;

/// Fragments that one call looks at, and ranges that it takes (SO_DEVMEM_DONTNEED's limits).
const MOST_TOKENS: u32 = 1024;
const MOST_RANGES: usize = 128;

/// Memory that is bound, and waits for a connection.
pub struct Receiver {
    pub stack: Stack,
    pub memory: DeviceMemory,
    pub binding: Binding,
    pub queues: Vec<u32>,
}

impl Receiver {
    /// Receives until the peer's end.
    pub fn receive(
        self,
        stream: tcp::Stream,
        plan: &Plan,
        sink: &Option<Sink>,
        state: &State,
    ) -> anyhow::Result<()> {
        if plan.args.verbose {
            tell!("onecopy nc: {} is connected to {}", stream.local_addr()?, stream.peer_addr()?);
        }
        let of = Of {
            stack: self.stack.clone(),
            memory: self.memory.clone(),
            queues: self.queues.clone(),
            path: self.binding.path().to_string(),
        };
        state.receives(Got::new(plan.pattern().filter(|_| !plan.flags().discard)), of, stream.try_clone()?);
        let mut looking = Looking::new(&self.memory, sink, plan);
        let done = self.until_the_end(&stream, plan, &mut looking, state);
        if done.is_err() {
            // The sender learns that nobody takes any more.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // (Counted now; held, the connection would live as long as the program.)
        state.received_all();
        done
    }

    fn until_the_end(
        &self,
        stream: &tcp::Stream,
        plan: &Plan,
        looking: &mut Looking<'_>,
        state: &State,
    ) -> anyhow::Result<()> {
        loop {
            let frags = match stream.recv_frags(PIECE) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                frags => frags?,
            };
            if frags.is_empty() {
                return Ok(());
            }
            if let Some(view) = frags.linear() {
                state.got(|got| got.linear(view.len() as u64));
                anyhow::ensure!(
                    !plan.flags().fail_on_linear,
                    "{} bytes came that were not split from their headers (--fail-on-linear)",
                    view.len()
                );
                for slice in view.slices() {
                    looking.look(slice, state)?;
                }
                continue;
            }
            let device = frags.into_device();
            state.got(|got| got.device(&device));
            for frag in &device {
                anyhow::ensure!(
                    frag.binding == self.binding.id() && frag.token > 0,
                    "{frag:?} is not of binding {}; that is a fault of the stack: please report it",
                    self.binding.id()
                );
            }
            looking.look_at(&device, state)?;
            give_back(stream, &device, state)?;
        }
    }
}

/// Gives back the tokens of these fragments, in as few calls as the limits let.
fn give_back(stream: &tcp::Stream, device: &[Frag], state: &State) -> anyhow::Result<()> {
    for (ranges, count) in calls(device) {
        let freed = stream.dont_need(&ranges)?;
        state.got(|got| got.given_back(freed as u64));
        anyhow::ensure!(
            freed == count,
            "{freed} of {count} tokens were taken back; that is a fault of the stack: please report it"
        );
    }
    Ok(())
}

/// The calls that give `device` back: ranges of tokens that follow each other, and how many fragments they are.
fn calls(device: &[Frag]) -> Vec<(Vec<TokenRange>, usize)> {
    let mut calls: Vec<(Vec<TokenRange>, usize)> = Vec::new();
    for frag in device {
        if let Some((ranges, count)) = calls.last_mut()
            && (*count as u32) < MOST_TOKENS
        {
            let full = ranges.len() == MOST_RANGES;
            match ranges.last_mut() {
                Some(last) if last.start + u64::from(last.count) == frag.token => last.count += 1,
                _ if full => {
                    calls.push((vec![(*frag).into()], 1));
                    continue;
                }
                _ => ranges.push((*frag).into()),
            }
            *count += 1;
        } else {
            calls.push((vec![(*frag).into()], 1));
        }
    }
    calls
}

/// Who looks at what was received, and how.
struct Looking<'a> {
    memory: &'a DeviceMemory,
    sink: &'a Option<Sink>,
    /// Writes from the memory to the file, if it is one.
    storage: Option<Storage>,
    /// Where the file goes on.
    at: u64,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
}

impl Looking<'_> {
    fn new<'a>(memory: &'a DeviceMemory, sink: &'a Option<Sink>, plan: &Plan) -> Looking<'a> {
        let file = sink.as_ref().and_then(Sink::file);
        let storage = file.and_then(|_| super::storage(&plan.args));
        Looking { memory, sink, storage, at: 0, bytes: Vec::new(), scratch: Vec::new() }
    }

    /// At bytes of the device's memory: they are copied out of it. Not where nobody wants them.
    fn look_at(&mut self, device: &[Frag], state: &State) -> anyhow::Result<()> {
        if let (Some(storage), Some(file)) = (&mut self.storage, self.sink.as_ref().and_then(Sink::file)) {
            let moved = storage.write(self.memory, &extents(device), file, self.at).context("--recv")?;
            self.at += moved.bytes;
            state.got(|got| got.file.get_or_insert_default().add(moved));
            if !state.validates() {
                return Ok(());
            }
        }
        if self.sink.is_none() && !state.validates() {
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        for Extent { at, len } in extents(device) {
            bytes.resize(len as usize, 0);
            self.memory.read_at(at, &mut bytes)?;
            if self.storage.is_none() {
                self.write(&bytes)?;
            }
            self.validate(&bytes, state)?;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// At bytes of the host's.
    fn look(&mut self, bytes: &[u8], state: &State) -> anyhow::Result<()> {
        self.write(bytes)?;
        self.validate(bytes, state)
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let Some(sink) = self.sink else { return Ok(()) };
        match sink.file() {
            Some(file) => file.write_all_at(bytes, self.at).context("--recv")?,
            None => sink.write(bytes)?,
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn validate(&mut self, bytes: &[u8], state: &State) -> anyhow::Result<()> {
        let scratch = &mut self.scratch;
        state.got(|got| {
            let Some(pattern) = got.pattern else { return Ok(()) };
            compare(got, pattern, bytes, scratch)
        })
    }
}

/// Where fragments lie, those as one that lie one behind the other.
fn extents(device: &[Frag]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::with_capacity(device.len());
    for frag in device {
        match extents.last_mut() {
            Some(last) if last.at + last.len == frag.offset => last.len += u64::from(frag.len),
            _ => extents.push(Extent { at: frag.offset, len: frag.len.into() }),
        }
    }
    extents
}

fn compare(got: &mut Got, pattern: Pattern, bytes: &[u8], scratch: &mut Vec<u8>) -> anyhow::Result<()> {
    let (at, mut told) = (got.validated, got.errors);
    pattern.compare(at, bytes, scratch, |wrong| {
        if told < MOST_ERRORS {
            tell!("onecopy nc: byte {} is {} instead of {}", wrong.at, wrong.actual, wrong.expected);
        }
        told += 1;
    });
    (got.validated, got.errors) = (at + bytes.len() as u64, told);
    anyhow::ensure!(
        told <= MOST_ERRORS,
        "what was received is not the pattern: {told} wrong bytes up to byte {}; does the peer send that of the same --validate N?",
        got.validated
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frags(tokens: impl IntoIterator<Item = u64>) -> Vec<Frag> {
        tokens.into_iter().map(|token| Frag { offset: 0, len: 1, token, binding: 1 }).collect()
    }

    #[test]
    fn fragments_that_lie_one_behind_the_other_are_one_piece() {
        let frag = |offset, len| Frag { offset, len, token: 1, binding: 1 };
        let joined = extents(&[frag(0, 4096), frag(4096, 10), frag(9000, 1), frag(0, 1)]);
        assert_eq!(
            joined.iter().map(|one| (one.at, one.len)).collect::<Vec<_>>(),
            [(0, 4106), (9000, 1), (0, 1)]
        );
    }

    #[test]
    fn tokens_go_back_in_as_few_calls_as_the_limits_let() {
        assert!(calls(&[]).is_empty());
        let all = calls(&frags(1..=2500));
        let counts: Vec<_> = all.iter().map(|(ranges, count)| (ranges.len(), *count)).collect();
        assert_eq!(counts, [(1, 1024), (1, 1024), (1, 452)]);
        assert_eq!(all[1].0, [TokenRange { start: 1025, count: 1024 }]);
        // With gaps: no more than 128 ranges a call.
        let all = calls(&frags((0..300).map(|n| 2 * n + 1)));
        let counts: Vec<_> = all.iter().map(|(ranges, count)| (ranges.len(), *count)).collect();
        assert_eq!(counts, [(128, 128), (128, 128), (44, 44)]);
    }
}
