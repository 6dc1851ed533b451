//! Where connections come from, and the thread that takes them.

use super::daemon::Daemon;
use super::place::Listen;
use super::wire::{FileSend, Wire};
use super::{Args, answer, connection};
use crate::counters::Counters;
use crate::operate::again::Times;
use crate::transport::{Transport, send_buffer};
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io::{self, PipeReader, PipeWriter};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

/// Dropped, it has the threads that accept end.
#[derive(Debug)]
pub struct Bell(#[expect(dead_code, reason = "closing it is what is heard")] PipeWriter);

/// How a thread that accepts hears of that.
#[derive(Clone, Debug)]
pub struct Ear(Arc<PipeReader>);

impl Ear {
    pub fn new() -> io::Result<(Ear, Bell)> {
        let (reader, writer) = io::pipe()?;
        Ok((Ear(Arc::new(reader)), Bell(writer)))
    }

    /// Waits until somebody comes to `listener`. False: this thread is to end.
    pub fn wait(&self, listener: impl AsFd) -> bool {
        let mut both = [PollFd::new(&listener, PollFlags::IN), PollFd::new(&*self.0, PollFlags::IN)];
        loop {
            match poll(&mut both, None) {
                Ok(_) => return both[1].revents().is_empty(),
                Err(Errno::INTR) => {}
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(20)); // no memory
                    return true;
                }
            }
        }
    }
}

/// Where connections come from.
pub enum Door {
    Kernel(UnixListener, FileSend),
    Onecopy(onecopy::unix::Listener),
    Stack(onecopy::tcp::Listener),
}

impl Door {
    /// Opens what takes those who come to `listener`, or to the stack, and says what it is called.
    pub fn open(args: &Args, listener: Option<UnixListener>) -> anyhow::Result<(Door, String)> {
        let name = args.listen.to_string();
        let Some(listener) = listener else {
            let Listen::Tcp(address) = &args.listen else { anyhow::bail!("{name} has no listener") };
            let stack = args.stack.open()?.context("no stack")?; // `Args::check` asks for one
            let listener = onecopy::tcp::Listener::bind(&stack, *address);
            let listener = listener.with_context(|| format!("cannot listen on {name}"))?;
            let at = Listen::Tcp(listener.local_addr()?).to_string();
            return Ok((Door::Stack(listener), at));
        };
        if args.transport == Transport::Kernel {
            return Ok((Door::Kernel(listener, args.file_send), name));
        }
        let config = onecopy::unix::Config {
            send_buffer: Some(args.transport.buffer(args.buffer)),
            policy: args.policy.into(),
            ..Default::default()
        };
        let listener = onecopy::unix::Listener::from_fds_with(vec![listener.into()], &config);
        Ok((Door::Onecopy(listener.with_context(|| format!("cannot listen on {name}"))?), name))
    }

    /// Waits until somebody comes. False: this thread is to end. (Those of a stack are waited for in `accept`, for ever: it is not
    /// handed over.)
    fn wait(&self, ear: &Ear) -> bool {
        match self {
            Door::Kernel(listener, _) => ear.wait(listener),
            Door::Onecopy(listener) => ear.wait(listener),
            Door::Stack(_) => true,
        }
    }

    fn accept(&self, buffer: usize) -> io::Result<Wire> {
        match self {
            Door::Kernel(listener, how) => {
                let (stream, _) = listener.accept()?;
                send_buffer(&stream, buffer);
                Ok(Wire::Kernel(stream, *how))
            }
            Door::Onecopy(listener) => Ok(Wire::Onecopy(listener.accept()?.0)),
            Door::Stack(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?; // MORE says when more follows
                Ok(Wire::Stack(stream))
            }
        }
    }
}

/// Takes those who come until told to end.
pub fn accept(daemon: &Arc<Daemon>, door: &Door, ear: &Ear, (most, buffer): (usize, usize)) {
    while door.wait(ear) {
        let wire = match door.accept(buffer) {
            Ok(wire) => Arc::new(wire),
            // Out of descriptors, or a client that left at once: neither is a reason to stop.
            Err(error) => {
                let nobody = [io::ErrorKind::ConnectionAborted, io::ErrorKind::WouldBlock];
                if !nobody.contains(&error.kind()) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                continue;
            }
        };
        let Times { idle, send, .. } = daemon.times();
        let _ = wire.set_read_timeout(idle).and_then(|()| wire.set_write_timeout(send));
        daemon.totals.add(Counters { connections: 1, ..Default::default() });
        let id = match daemon.desk.enter(&wire, most) {
            Ok(id) => id,
            Err(refusal) => {
                let _ = wire.send(&answer::Answer::refusal(refusal, false, false), &mut Counters::default());
                continue;
            }
        };
        let worker = daemon.clone();
        let spawned =
            std::thread::Builder::new().name(format!("conn-{id}")).stack_size(256 << 10).spawn(move || {
                let _ = connection::serve(&worker, id, &wire); // an error is the peer's going, and is counted
                let fallbacks = u64::from(wire.fell_back());
                worker.totals.add(Counters { fallbacks, ..Default::default() });
                wire.learned().into_iter().for_each(|lesson| worker.lessons.add(lesson));
                worker.desk.leave(id);
            });
        if spawned.is_err() {
            daemon.desk.leave(id);
        }
    }
}
