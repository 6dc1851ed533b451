//! The paths: what each carries, and whether the CPU's sum of it is right.

use std::io::IoSlice;
use std::net::Shutdown;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{DeviceMemory, PagePool, Part, PoolConfig};
use onecopy::cuda::{Cuda, Settings};
use onecopy::devmem::TxRange;
use onecopy::tcp;

use crate::program::Program;
use crate::world::{World, pattern, same};
use crate::{Checked, PAGES};

/// What a path is tried with.
pub struct Bench<'b> {
    pub cuda: &'b Arc<Cuda>,
    pub memory: &'b DeviceMemory,
    /// What they were made by.
    pub settings: &'b Settings,
    /// The program beside onecopy.
    pub program: &'b std::rc::Rc<Program>,
    /// What is to be carried.
    pub bytes: usize,
}

/// A path: checks that the bytes arrive, and says how many went and how many seconds that took.
pub type Check = fn(&Bench<'_>) -> Checked<(usize, f64)>;

pub const CHECKS: [(&str, Check); 9] = [
    ("pages", pages),
    ("pages for one place", one_place),
    ("write and read", direct),
    ("TCP", tcp_in),
    ("TCP, collected", collected),
    ("TCP, sent from there", tcp_out),
    ("TCP, device to device", device_to_device),
    ("order_before", order_before),
    ("order_after", order_after),
];

/// What a receive asks for.
pub const PIECE: usize = 1 << 20;

/// Pinned pages of the host's, in parts of odd lengths at odd places, to places that are aligned and that are not.
fn pages(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { memory, bytes, .. } = *bench;
    let host = PagePool::new(PoolConfig::new().order(2).limit(1024), Heap::new())?;
    let len = memory.len() as usize;
    let mut model = pattern(0, len);
    memory.write_at(0, &[IoSlice::new(&model)])?;
    let (mut at, mut done, mut took) = (0, 0, 0.0);
    let sizes = [4096, 16384, 1448, 1, 8948, 16, 100, 12288];
    let mut index = 0_usize;
    while done < bytes {
        let size = sizes[index % sizes.len()];
        let offset = [0, 16, 64, 3][index / sizes.len() % 4].min(16384 - size);
        index += 1;
        if at + size > len {
            at = [0, 16, 1][index % 3];
        }
        let mut page = host.alloc()?;
        let fresh = pattern(done * 3 + index, size);
        page.bytes_mut().ok_or("a page of one's own")?[offset..offset + size].copy_from_slice(&fresh);
        model[at..at + size].copy_from_slice(&fresh);
        let part = Part::new(page, offset, size).map_err(|_| "it is inside")?;
        let began = Instant::now();
        memory.submit(at as u64, vec![part])?;
        took += began.elapsed().as_secs_f64();
        at += size;
        done += size;
    }
    let began = Instant::now();
    memory.settle()?;
    took += began.elapsed().as_secs_f64();
    let mut got = vec![0; len];
    memory.read_at(0, &mut got)?;
    same("pages", &got, &model)?;
    Ok((done, took))
}

/// Two pages for one place, before anybody waits: the later one's bytes are those that stay.
fn one_place(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { memory, .. } = *bench;
    let host = PagePool::new(PoolConfig::new().order(2).limit(64), Heap::new())?;
    let (turns, len) = (64, 16 << 10);
    let mut took = 0.0;
    for turn in 0..turns {
        let began = Instant::now();
        for version in 0..2 {
            let mut page = host.alloc()?;
            page.bytes_mut().ok_or("a page of one's own")?.copy_from_slice(&pattern(2 * turn + version, len));
            memory.submit(4096, vec![Part::new(page, 0, len).map_err(|_| "it is inside")?])?;
        }
        memory.settle()?;
        took += began.elapsed().as_secs_f64();
        let mut got = vec![0; len];
        memory.read_at(4096, &mut got)?;
        same("pages for one place", &got, &pattern(2 * turn + 1, len))?;
    }
    Ok((2 * turns * len, took))
}

/// What is written and read at once.
fn direct(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { memory, bytes, .. } = *bench;
    let data = pattern(7, bytes.min(memory.len() as usize - 3));
    let began = Instant::now();
    let slices: Vec<IoSlice<'_>> = data.chunks(100_003).map(IoSlice::new).collect();
    memory.write_at(3, &slices)?;
    let took = began.elapsed().as_secs_f64();
    let mut got = vec![0; data.len()];
    memory.read_at(3, &mut got)?;
    same("write and read", &got, &data)?;
    Ok((data.len(), took))
}

/// Payload of TCP, between two stacks on a cable.
fn tcp_in(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { memory, bytes, .. } = *bench;
    let data = pattern(11, bytes);
    let world = World::new(Some(memory))?;
    let took = sent_by(&world.sender, &data, || {
        let mut got = Vec::with_capacity(bytes);
        let took = fragments(&world.receiver, |pieces| {
            for (offset, len) in pieces {
                let at = got.len();
                got.resize(at + len, 0);
                memory.read_at(*offset, &mut got[at..])?;
            }
            Ok(())
        })?;
        same("TCP", &got, &data)?;
        Ok(took)
    })?;
    Ok((bytes, took))
}

/// The same, from where it landed to one tensor of the program's.
fn collected(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { cuda, memory, program, bytes, .. } = *bench;
    let data = pattern(13, bytes);
    let (world, tensor) = (World::new(Some(memory))?, program.memory(bytes)?);
    let took = sent_by(&world.sender, &data, || {
        let mut have = 0;
        let took = fragments(&world.receiver, |pieces| {
            tensor.collect(have, cuda, pieces)?;
            have += pieces.iter().map(|(_, len)| len).sum::<usize>();
            Ok(())
        })?;
        let mut got = vec![0; bytes];
        tensor.read(0, &mut got)?;
        same("collect", &got, &data)?;
        Ok(took)
    })?;
    Ok((bytes, took))
}

/// Out of the device's memory, to a program that receives into the host's.
fn tcp_out(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { memory, bytes, .. } = *bench;
    let world = World::new(None)?;
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let (mut got, mut buffer) = (Vec::with_capacity(bytes), vec![0; PIECE]);
            loop {
                match world.receiver.recv(&mut buffer)? {
                    0 => return Ok::<_, onecopy::Error>(got),
                    n => got.extend_from_slice(&buffer[..n]),
                }
            }
        });
        let (sent, took) = send_out(&world, memory, bytes)?;
        let got = receiving.join().map_err(|_| "the receiver has panicked")??;
        same("sent from the device's memory", &got, &sent)?;
        Ok((sent.len(), took))
    })
}

/// Out of one memory and into another one.
fn device_to_device(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { memory, settings, bytes, .. } = *bench;
    let source = DeviceMemory::new(PoolConfig::new().limit(PAGES), Cuda::open(settings.clone())?)?;
    let world = World::new(Some(memory))?;
    let (receiver, sink) = (&world.receiver, memory.clone());
    thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let mut got = Vec::with_capacity(bytes);
            let all = fragments(receiver, |pieces| {
                for (offset, len) in pieces {
                    let at = got.len();
                    got.resize(at + len, 0);
                    sink.read_at(*offset, &mut got[at..])?;
                }
                Ok(())
            });
            all.map(|_| got).map_err(|error| error.to_string())
        });
        let (sent, took) = send_out(&world, &source, bytes)?;
        let got = receiving.join().map_err(|_| "the receiver has panicked")??;
        same("from device to device", &got, &sent)?;
        let counts = (world.sender.stats(), world.receiver.stats());
        if counts.0.user_copied_in + counts.1.user_copied_out > 0 {
            return Err("the CPU has copied payload in user space".into());
        }
        Ok((sent.len(), took))
    })
}

/// Sends so many bytes of the memory in ranges of odd lengths, each time with other bytes in it: what was sent, and how many seconds it took without writing it.
fn send_out(world: &World, memory: &DeviceMemory, bytes: usize) -> Checked<(Vec<u8>, f64)> {
    let binding = world.near.bind_tx(memory)?;
    let (mut sent, mut took, mut turn) = (Vec::with_capacity(bytes), 0.0, 0);
    // Some times over, whatever there is of both.
    let part = (memory.len() as usize).min(bytes / 4);
    while sent.len() < bytes {
        let data = pattern(turn * 3 + 17, part);
        memory.write_at(0, &[IoSlice::new(&data)])?;
        let mut ranges = Vec::new();
        let (mut at, mut left) = (turn * 7, bytes - sent.len());
        for len in [1, 4096, 100_003, 8948, 1 << 20, 3].into_iter().cycle() {
            let len = len.min(left).min(data.len() - at);
            if len == 0 {
                break;
            }
            ranges.push(TxRange { offset: at as u64, len: len as u64 });
            sent.extend_from_slice(&data[at..at + len]);
            (at, left) = (at + len, left - len);
        }
        let began = Instant::now();
        let (_, how) = world.sender.send_device(&binding, &ranges)?.wait();
        took += began.elapsed().as_secs_f64();
        if how.dropped {
            return Err("a send was dropped".into());
        }
        turn += 1;
    }
    world.sender.shutdown(Shutdown::Write)?;
    Ok((sent, took))
}

/// Has a thread send the bytes and their end while `receive` runs.
fn sent_by(sender: &tcp::Stream, data: &[u8], receive: impl FnOnce() -> Checked<f64>) -> Checked<f64> {
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            sender.send(data)?;
            sender.shutdown(Shutdown::Write)
        });
        let took = receive()?;
        sending.join().map_err(|_| "the sender has panicked")??;
        Ok(took)
    })
}

/// Receives references to the end, and shows each receive's to `see`, before their tokens are given back: seconds until the last of them came.
fn fragments(receiver: &tcp::Stream, mut see: impl FnMut(&[(u64, usize)]) -> Checked<()>) -> Checked<f64> {
    let (began, mut took) = (Instant::now(), 0.0);
    loop {
        let frags = receiver.recv_frags(PIECE)?;
        if frags.is_empty() {
            return Ok(took);
        }
        if frags.linear().is_some() {
            return Err("payload came to the host's memory".into());
        }
        let pieces: Vec<_> = frags.device().iter().map(|frag| (frag.offset, frag.len as usize)).collect();
        see(&pieces)?;
        took = began.elapsed().as_secs_f64();
    }
}

/// What was submitted is there for the program's stream, though nobody has waited for it.
fn order_before(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { cuda, memory, program, .. } = *bench;
    let ordered = Ordered::new(bench)?;
    for turn in 0..ordered.turns {
        let fresh = pattern(turn * 5 + 1, ordered.len);
        let began = Instant::now();
        ordered.submit(&fresh)?;
        program.order_before(cuda)?;
        ordered.own.take_later(0, cuda, 0, ordered.len)?;
        program.wait()?;
        ordered.took.set(ordered.took.get() + began.elapsed().as_secs_f64());
        let mut got = vec![0; ordered.len];
        ordered.own.read(0, &mut got)?;
        same("what the program's stream found", &got, &fresh)?;
    }
    memory.settle()?;
    Ok((ordered.turns * ordered.len, ordered.took.get()))
}

/// What is submitted waits for the program's stream, which has yet to read what lies there.
fn order_after(bench: &Bench<'_>) -> Checked<(usize, f64)> {
    let Bench { cuda, memory, program, .. } = *bench;
    let ordered = Ordered::new(bench)?;
    let mut old = pattern(3, ordered.len);
    ordered.submit(&old)?;
    memory.settle()?;
    for turn in 0..ordered.turns {
        let fresh = pattern(turn * 5 + 4, ordered.len);
        let began = Instant::now();
        ordered.busy.keep_busy(64)?;
        ordered.own.take_later(0, cuda, 0, ordered.len)?;
        program.order_after(cuda)?;
        ordered.submit(&fresh)?;
        memory.settle()?;
        ordered.took.set(ordered.took.get() + began.elapsed().as_secs_f64());
        let mut got = vec![0; ordered.len];
        ordered.own.read(0, &mut got)?;
        same("what the program's stream was to find", &got, &old)?;
        memory.read_at(0, &mut got)?;
        same("what was submitted behind it", &got, &fresh)?;
        old = fresh;
    }
    Ok((ordered.turns * ordered.len, ordered.took.get()))
}

/// What both directions of ordering are tried with.
struct Ordered<'b> {
    memory: &'b DeviceMemory,
    host: PagePool,
    own: crate::program::Memory,
    busy: crate::program::Memory,
    len: usize,
    turns: usize,
    took: std::cell::Cell<f64>,
}

impl<'b> Ordered<'b> {
    fn new(bench: &Bench<'b>) -> Checked<Ordered<'b>> {
        let len = (bench.bytes / 16).min(bench.memory.len() as usize);
        let host = PagePool::new(PoolConfig::new().order(2).limit(4096), Heap::new())?;
        let (own, busy) = (bench.program.memory(len)?, bench.program.memory(8 * len)?);
        Ok(Ordered { memory: bench.memory, host, own, busy, len, turns: 8, took: std::cell::Cell::new(0.0) })
    }

    /// Bytes for the memory's beginning, from pages of the host's, which go home when they are copied.
    fn submit(&self, bytes: &[u8]) -> Checked<()> {
        for (index, chunk) in bytes.chunks(16 << 10).enumerate() {
            let mut page = self.host.alloc()?;
            page.bytes_mut().ok_or("a page of one's own")?[..chunk.len()].copy_from_slice(chunk);
            let part = Part::new(page, 0, chunk.len()).map_err(|_| "it is inside")?;
            self.memory.submit((index * (16 << 10)) as u64, vec![part])?;
        }
        Ok(())
    }
}
