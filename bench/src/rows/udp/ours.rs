//! Ours: onecopy's sockets, on a stack of the worker's own.

use anyhow::{Context as _, Result};
use onecopy::advanced::link::{Tap, TapConfig};
use onecopy::udp::{Message, Meta, Socket};
use onecopy::{Mac, RecvFlags, SendFlags, Stack};
use serde_json::{Value, json};
use std::array;
use std::io::IoSliceMut;

use super::super::job::with;
use super::super::tcp::plan::{ENGINE, PREFIX, Plan};
use super::load::{self, Datagrams, Mode, PATIENCE};

/// Datagrams to a call.
const MANY: usize = onecopy_sys::socket::MANY;

struct Ours {
    socket: Socket,
    mode: Mode,
}

/// The engine.
pub fn engine(job: &Value) -> Result<Value> {
    let (plan, mode) = (Plan::from_job(job)?, Mode::from_job(job)?);
    let tap = plan.peers()?.run(|| Tap::open(TapConfig::new(&plan.device)))??;
    let stack = Stack::builder()
        .link(tap)
        .address(&format!("{ENGINE}/{PREFIX}"))
        .mac(Mac([2, 0, 0, 0, 0, 2]))
        .build()?;
    let socket = Socket::unbound(&stack)?;
    socket.set_recv_buffer_size(plan.buffer)?;
    socket.set_gro(mode == Mode::Train)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(plan.address(0).into())?;
    socket.send(b"hello")?;
    socket.recv(&mut [0; 8]).context("waiting for the peer")?;
    let buffer = socket.recv_buffer_size()?;
    let figures = load::go(Ours { socket, mode }, mode, &plan, true)?;
    Ok(with(figures, json!({"buffer": buffer})))
}

impl Datagrams for Ours {
    fn send(&mut self, bytes: &[u8], size: usize) -> Result<bool> {
        let sent = match self.mode {
            Mode::Train => self.socket.send_segments(bytes, size as u16, None).map(drop),
            Mode::One => bytes.chunks(size).try_for_each(|one| self.socket.send(one).map(drop)),
            Mode::Many => {
                let messages: Vec<_> = bytes.chunks(size).map(Message::new).collect();
                let mut done = 0;
                loop {
                    match self.socket.send_many(&messages[done..], SendFlags::empty()) {
                        Ok(n) => done += n,
                        Err(error) => break Err(error),
                    }
                    if done == messages.len() {
                        break Ok(());
                    }
                }
            }
        };
        match sent {
            Ok(()) => Ok(true),
            Err(error) if error.is_refused() => Ok(false),
            Err(error) => Err(error).context("sending"),
        }
    }

    fn recv(&mut self, buffer: &mut [u8], size: usize) -> Result<usize> {
        if self.mode != Mode::Many {
            return self.socket.recv(buffer).context("receiving");
        }
        let mut meta = [Meta::default(); MANY];
        let mut parts = buffer.chunks_exact_mut(size);
        let mut buffers: [IoSliceMut<'_>; MANY] =
            array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        let count = self.socket.recv_many(&mut buffers, &mut meta, RecvFlags::empty());
        Ok(meta[..count.context("receiving")?].iter().map(|meta| meta.len).sum())
    }
}
