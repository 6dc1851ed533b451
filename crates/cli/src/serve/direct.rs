//! `--direct`: bodies sent straight into a client's TCP socket, which the proxy lends for one answer.
//!
//! The loan comes over a kernel socket of its own, `<listen>.direct`, as a request head with one descriptor beside
//! it (SCM_RIGHTS); when the answer is out, one line goes back: `done` or `broken`, and how
//! many bytes of the body were sent. Only a proxy of the same user
//! is listened to. What is lent cannot be taken back: the proxy ends that client's connection afterwards, unless
//! it was told to trust this daemon. A thread waits for each such connection, so none waits for long: a head has the time of
//! a head (--head-timeout), and one that brings none the time of an idle connection.

use super::answer::{Answer, Piece};
use super::daemon::Daemon;
use super::door::Ear;
use super::store::{cut_short, has_changed};
use super::wire::{FileSend, Wire};
use crate::counters::Counters;
use crate::http::request::{Limits, Request};
use crate::operate::access::Begun;
use crate::transport::same_user;
use anyhow::Context;
use onecopy_sys::sockopt::tcp_acknowledged;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::warn;

/// Takes loans that come to `listener` from now on, on a thread that ends when `ear` says so.
pub fn open(
    daemon: &Arc<Daemon>,
    listener: UnixListener,
    ear: Ear,
    most: usize,
) -> anyhow::Result<JoinHandle<()>> {
    let daemon = daemon.clone();
    let run = move || accept(&daemon, &listener, &ear, most);
    std::thread::Builder::new().name("direct".into()).spawn(run).context("cannot start a thread")
}

fn accept(daemon: &Arc<Daemon>, listener: &UnixListener, ear: &Ear, most: usize) {
    while ear.wait(listener) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
        };
        if !same_user(&stream) {
            warn!(target: "onecopy serve", "a process of another user asked for direct sending and was turned away");
            continue;
        }
        let Ok(register) = stream.try_clone() else { continue };
        let register = Arc::new(Wire::Kernel(register, FileSend::Copy));
        let Ok(id) = daemon.desk.enter(&register, most) else { continue };
        let worker = daemon.clone();
        let run = move || {
            let _ = serve(&worker, id, &stream); // an error is the proxy's going
            worker.desk.leave(id);
        };
        if std::thread::Builder::new().name(format!("direct-{id}")).stack_size(256 << 10).spawn(run).is_err()
        {
            daemon.desk.leave(id);
        }
    }
}

fn serve(daemon: &Daemon, id: u64, mut control: &UnixStream) -> io::Result<()> {
    let patience = daemon.times().send;
    // What goes back is a word that always has room, unless nobody ever reads it.
    control.set_write_timeout(Some(patience))?;
    while daemon.desk.idle(id) {
        let Some((head, client)) = receive(daemon, id, control)? else { return Ok(()) };
        let parsed = Request::parse(&head, Limits::BACKEND);
        // The proxy writes these heads itself: one that is not well-formed is not from our proxy.
        let (Ok(Some((request, _))), Some(client)) = (parsed, client) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let begun = Begun::now(None);
        let mut counters = Counters { direct: 1, ..Default::default() };
        let answer = daemon.reply(&request, request.keep, &mut counters);
        let sent = send_all(&client, &answer, patience, &mut counters);
        counters.broken = u64::from(sent.is_err());
        counters.changed = u64::from(sent.as_ref().is_err_and(has_changed));
        counters.direct_bytes = counters.body_bytes;
        // A send reads what it copies; sendfile does not.
        counters.told(Some("no-cpu"), counters.referenced);
        counters.told(request.text("onecopy-reader"), counters.body_bytes - counters.referenced);
        daemon.totals.took(begun.took());
        daemon.log.add(|done| begun.request(&request, Some(answer.status), done), &mut counters);
        daemon.totals.add(counters);
        drop(client); // before the proxy hears of it: then nobody but the proxy holds the client
        let word = if sent.is_ok() { "done" } else { "broken" };
        control.write_all(format!("{word} {}\n", counters.direct_bytes).as_bytes())?;
    }
    Ok(())
}

/// One loan: the request head, and the client if one came with it. None at the end.
fn receive(daemon: &Daemon, id: u64, control: &UnixStream) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let (mut head, mut client) = (Vec::new(), None);
    let mut deadline = None;
    control.set_read_timeout(Some(daemon.times().idle))?;
    loop {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control_data = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut buffer)];
        let got = match recvmsg(control, slices, &mut control_data, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            other => other?.bytes,
        };
        for message in control_data.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                client = descriptors.last().or(client);
            }
        }
        if got == 0 {
            return Ok(None);
        }
        daemon.desk.busy(id);
        head.extend_from_slice(&buffer[..got]);
        if head.ends_with(b"\r\n\r\n") {
            return Ok(Some((head, client)));
        }
        if head.len() > Limits::BACKEND.head {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let now = Instant::now();
        let left = deadline.get_or_insert(now + daemon.times().head).saturating_duration_since(now);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        control.set_read_timeout(Some(left))?;
    }
}

/// Bytes of a file that are kept back until it has been looked at once more.
const LAST: u64 = 256 << 10;

/// Sends an answer into the client's socket. It is in non-blocking mode, as the proxy has it: waiting is done here. (One that is
/// not, or that is no socket, is refused: it could keep this thread for ever.)
fn send_all(
    client: &OwnedFd,
    answer: &Answer,
    patience: Duration,
    counters: &mut Counters,
) -> io::Result<()> {
    if !rustix::fs::fcntl_getfl(client)?.contains(OFlags::NONBLOCK) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let last = answer.pieces.len().saturating_sub(1);
    let parts = answer.pieces.iter().rposition(|piece| matches!(piece, Piece::Object(_))).unwrap_or(last);
    for (i, piece) in answer.pieces.iter().enumerate() {
        let flags = if i < last { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        let memory = answer.object.as_ref().and_then(|object| object.memory.as_deref());
        match (piece, memory, &answer.object) {
            (Piece::Text(text), ..) => bytes(client, text.as_bytes(), flags, patience, &mut 0)?,
            (Piece::Object(part), Some(memory), _) => {
                let mut sent = 0;
                let part = &memory[part.start as usize..=part.end as usize];
                let result = bytes(client, part, flags, patience, &mut sent);
                counters.kernel_copied += sent;
                counters.body_bytes += sent;
                result?;
            }
            (Piece::Object(part), None, Some(object)) => {
                let (mut at, end) = (part.start, part.end + 1);
                // The last of them goes when the file has been looked at.
                let look = if i == parts { end - part.len().min(LAST) } else { end };
                while at < end {
                    if at == look {
                        object.still()?;
                    }
                    let until = if at < look { look } else { end };
                    let most = (until - at).min(1 << 30) as usize;
                    match rustix::fs::sendfile(client, &object.file, Some(&mut at), most) {
                        Ok(0) => return Err(cut_short()),
                        Ok(n) => {
                            counters.referenced += n as u64;
                            counters.body_bytes += n as u64;
                        }
                        Err(error) => wait(client, error, patience)?,
                    }
                }
            }
            (Piece::Object(_), None, None) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

fn bytes(
    client: &OwnedFd,
    mut bytes: &[u8],
    flags: SendFlags,
    patience: Duration,
    sent: &mut u64,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(client, bytes, flags) {
            Ok(n) => {
                bytes = &bytes[n..];
                *sent += n as u64;
            }
            Err(error) => wait(client, error, patience)?,
        }
    }
    Ok(())
}

/// Waits for room, as long as the client takes anything at all (see the proxy's `wait_writable`).
fn wait(client: &OwnedFd, error: Errno, patience: Duration) -> io::Result<()> {
    match error {
        Errno::INTR => return Ok(()),
        Errno::AGAIN => {}
        error => return Err(error.into()),
    }
    let (mut wait, mut before) = (patience / 4, None);
    loop {
        let limit = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut [PollFd::new(client, PollFlags::OUT)], Some(&limit)) {
            Ok(0) => {}
            Ok(_) | Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let now = tcp_acknowledged(client.as_fd())?;
        if before.replace(now) == Some(now) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        wait = patience;
    }
}
