//! One implementation's connection under a program, and what is known of the bytes on their way in it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::Duration;

use onecopy_conformance::impls::{Came, Conn, End, Kind, Rx, Tx};
use onecopy_conformance::tools::{self, Epoll, NOW, Pattern, TX_NOW, errno};
use rustix::event::epoll::EventFlags;

use crate::program::Call;

/// Memory of what may lie in one direction: below a quarter of Linux' default SO_SNDBUF, up to which POLLOUT stays, and
/// of any ring here. What a message takes of it is the upper bound of both.
const ROOM: usize = 48_000;
/// Longest wait of a call that waits.
const SOON: Duration = Duration::from_millis(1);
/// Timeout of who does not wait: a call that does is seen to hang.
const NEVER: Duration = Duration::from_secs(3600);
/// Bytes of a piece of [`Call::Fill`].
const PIECE: usize = 4096;

/// A message that was sent and not received yet.
struct Sent {
    at: usize,
    len: usize,
    left: usize,
    fds: usize,
}

/// One direction.
struct Flow {
    pattern: Pattern,
    /// Bytes.
    sent: usize,
    received: usize,
    queue: VecDeque<Sent>,
    /// It was filled, with as much as it took, and not drained since.
    full: bool,
}

impl Flow {
    fn new(seed: u64) -> Flow {
        Flow { pattern: Pattern(seed), sent: 0, received: 0, queue: VecDeque::new(), full: false }
    }

    fn memory(&self) -> usize {
        self.queue.iter().map(|m| 2 * m.len + 1024 + 4096 * usize::from(m.fds > 0)).sum()
    }

    fn next(&self, len: usize) -> Vec<u8> {
        self.pattern.bytes(self.sent, len)
    }

    fn was_sent(&mut self, len: usize, fds: usize, kind: Kind) {
        // Nothing is queued for no bytes of a stream.
        if len > 0 || kind == Kind::SeqPacket {
            self.queue.push_back(Sent { at: self.sent, len, left: len, fds });
        }
        self.sent += len;
    }

    fn check(&self, at: usize, got: &[u8]) -> Result<(), String> {
        self.pattern.check(at, got).map_err(|stop| format!("other bytes than were sent: {stop:?}"))
    }

    /// What was received must be what comes next.
    fn was_received(&mut self, got: &[u8], peek: bool, room: usize, kind: Kind) -> Result<(), String> {
        if kind == Kind::SeqPacket {
            let Some(record) = self.queue.front() else {
                return if got.is_empty() { Ok(()) } else { Err("a record that was never sent".into()) };
            };
            if got.len() != record.len.min(room) {
                return Err(format!("{} bytes of a record of {} into {room}", got.len(), record.len));
            }
            self.check(record.at, got)?;
            if !peek {
                self.received += record.len;
                self.queue.pop_front();
            }
        } else {
            if self.received + got.len() > self.sent {
                return Err(format!("{} bytes of {}", got.len(), self.sent - self.received));
            }
            self.check(self.received, got)?;
            let mut left = if peek { 0 } else { got.len() };
            self.received += left;
            while let Some(first) = self.queue.front_mut().filter(|_| left > 0) {
                let n = first.left.min(left);
                (first.left, left) = (first.left - n, left - n);
                if first.left == 0 {
                    self.queue.pop_front();
                }
            }
        }
        self.full &= !self.queue.is_empty();
        Ok(())
    }
}

/// What one end knows of its readiness.
#[derive(Default)]
struct Watched {
    epoll: Option<Epoll>,
    /// Since the last event, all was received that was there.
    pub drained: bool,
}

/// An answer, and what may be held against it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// In words.
    pub said: String,
    /// Of [`Call::Edge`]: whether an event had to come, if any did.
    pub due: bool,
    /// Of [`Call::RecvInPlace`]: bytes.
    pub bytes: Option<usize>,
}

/// A connection.
pub struct World {
    kind: Kind,
    ends: [Option<Conn>; 2],
    flows: [Flow; 2],
    watched: [Watched; 2],
}

fn said<T>(result: io::Result<T>, ok: impl FnOnce(T) -> String) -> String {
    match result {
        Ok(value) => ok(value),
        Err(e) if e.kind() == io::ErrorKind::Unsupported && e.raw_os_error().is_none() => {
            "not offered".into()
        }
        Err(e) => errno(&e),
    }
}

/// O_NONBLOCK, by the call for it or as others set it on the descriptor.
pub fn set_nonblocking(end: &dyn End, on: bool, others: bool) -> io::Result<()> {
    let limit = Some(if on { NEVER } else { SOON });
    end.set_read_timeout(limit)?;
    end.set_write_timeout(limit)?;
    if others { tools::others_set(end.fd(), on) } else { end.set_nonblocking(on) }
}

/// Descriptors to send, which can be told apart.
pub fn tokens() -> &'static [OwnedFd] {
    static TOKENS: OnceLock<Vec<OwnedFd>> = OnceLock::new();
    TOKENS.get_or_init(|| (0..4).filter_map(|_| rustix::pipe::pipe().ok().map(|(read, _)| read)).collect())
}

fn inode(fd: OwnedFd) -> u64 {
    File::from(fd).metadata().map_or(0, |meta| meta.ino())
}

fn which(fds: Vec<OwnedFd>) -> String {
    static INODES: OnceLock<Vec<u64>> = OnceLock::new();
    let known =
        INODES.get_or_init(|| tokens().iter().filter_map(|fd| fd.try_clone().ok()).map(inode).collect());
    let names = fds
        .into_iter()
        .map(inode)
        .map(|ino| known.iter().position(|k| *k == ino).map_or("a foreign one".into(), |at| at.to_string()));
    names.collect::<Vec<_>>().join(" ")
}

fn sent(flow: &mut Flow, result: io::Result<usize>, fds: usize, kind: Kind) -> String {
    if let Ok(n) = result {
        flow.was_sent(n, fds, kind);
    }
    said(result, |n| format!("{n} sent"))
}

impl World {
    pub fn new(kind: Kind, (a, b): (Conn, Conn), before: usize) -> io::Result<World> {
        for end in [&a, &b] {
            end.set_read_timeout(Some(SOON))?;
            end.set_write_timeout(Some(SOON))?;
        }
        for (from, to) in [(&a, &b), (&b, &a)] {
            let mut left = before;
            while left > 0 {
                let n = left.min(8192);
                from.send(&vec![0; n], Tx::default())?;
                let mut buf = vec![0; n];
                let mut got = 0;
                while got < n {
                    got += to.recv(&mut buf[got..], Rx::default())?;
                }
                left -= n;
            }
        }
        let flows = [Flow::new(1), Flow::new(2)];
        Ok(World { kind, ends: [Some(a), Some(b)], flows, watched: Default::default() })
    }

    /// Whether the call is left out, since what it does depends on the size of a buffer, or there is no such end.
    pub fn leaves_out(&self, end: usize, call: &Call) -> bool {
        if self.ends[end].is_none() {
            return true;
        }
        let peer_lives = self.ends[1 - end].is_some();
        let full = |len: usize, fds: usize| {
            let flow = &self.flows[end];
            let more = 2 * len + 1024 + 4096 * usize::from(fds > 0);
            peer_lives && (flow.full || flow.memory() + more > ROOM)
        };
        // How much lies in a direction that was filled depends on the size of its buffer.
        let coming = &self.flows[1 - end];
        let unsure = |max: usize| coming.full && coming.sent - coming.received < max + PIECE;
        // What a receive of no bytes does with descriptors is an accident of the kernel's: it takes them without the bytes, or
        // passes over bytes to look for some.
        let accident = |max: usize| {
            max == 0 && self.kind == Kind::Stream && coming.queue.iter().any(|message| message.fds > 0)
        };
        let unsure = |max: usize| unsure(max) || accident(max);
        match call {
            // A reservation of nothing is no send.
            Call::SendInPlace(0) if self.kind == Kind::Stream => true,
            Call::Send { len, .. } | Call::SendInPlace(len) => full(*len, 0),
            Call::SendPieces(sizes) => full(sizes.iter().sum(), 0),
            Call::SendFds { len, count } => full(*len, *count),
            Call::Recv { max, .. } | Call::RecvFds { max, .. } | Call::RecvInPlace { max } => unsure(*max),
            Call::RecvPieces { max, .. } => unsure(max.iter().sum()),
            Call::Queued => coming.full,
            Call::Fill => self.flows[end].full || !peer_lives,
            Call::SendTooLong => self.kind == Kind::Stream,
            // Linux 6.18 does not count an empty record at the head as unread (net/unix/af_unix.c: unix_release_sock skips
            // what it takes for out-of-band data that was received), and tells the peer no reset. Ours tells it.
            Call::Close => coming.queue.len() == 1 && coming.queue[0].len == 0,
            _ => false,
        }
    }

    /// Whether POLLOUT depends on how a buffer is accounted.
    pub fn partly_full(&self, end: usize) -> bool {
        self.flows[end].full
    }

    /// Whether this end receives over the kernel.
    pub fn receives_over_kernel(&self, end: usize) -> bool {
        self.ends[end].as_ref().is_some_and(|end| end.path().1 == "kernel")
    }

    /// Does one call. `max` replaces the size of a borrow.
    ///
    /// # Errors
    ///
    /// What no socket may do: bytes that were not sent.
    pub fn call(&mut self, at: usize, call: &Call, max: Option<usize>) -> Result<Answer, String> {
        let Some(end) = self.ends[at].take() else { return Ok(Answer::default()) };
        let answer = self.call_on(&*end, at, call, max);
        if !matches!(call, Call::Close) {
            self.ends[at] = Some(end);
        } else {
            self.watched[at].epoll = None;
        }
        answer
    }

    fn call_on(
        &mut self,
        end: &dyn End,
        at: usize,
        call: &Call,
        max: Option<usize>,
    ) -> Result<Answer, String> {
        let kind = self.kind;
        let flow = &mut self.flows[at];
        let mut bytes = None;
        let mut due = false;
        let text = match call {
            Call::Send { len, eor } => {
                let data = flow.next(*len);
                let result = end.send(&data, Tx { eor: *eor, nosignal: true, ..Tx::default() });
                sent(flow, result, 0, kind)
            }
            Call::SendPieces(sizes) => {
                let data = flow.next(sizes.iter().sum());
                let (a, rest) = data.split_at(sizes[0]);
                let (b, c) = rest.split_at(sizes[1]);
                let result = end.send_msg(&[a, b, c].map(IoSlice::new), &[], TX_NOW);
                sent(flow, result, 0, kind)
            }
            Call::SendFds { len, count } => {
                let data = flow.next(*len);
                let fds: Vec<_> = tokens().iter().take(*count).map(AsFd::as_fd).collect();
                let result = end.send_msg(&[IoSlice::new(&data)], &fds, TX_NOW);
                sent(flow, result, *count, kind)
            }
            Call::SendInPlace(len) => {
                let data = flow.next(*len);
                let result = end.send_in_place(&data, TX_NOW);
                sent(flow, result, 0, kind)
            }
            Call::SendTooLong => said(end.send(&vec![0; 1 << 20], TX_NOW), |n| format!("{n} sent")),
            Call::Fill => loop {
                let data = self.flows[at].next(PIECE);
                match end.send(&data, TX_NOW) {
                    Ok(n) => self.flows[at].was_sent(n, 0, kind),
                    Err(e) => {
                        self.flows[at].full = !self.flows[at].queue.is_empty();
                        break errno(&e);
                    }
                }
            },
            Call::Recv { max, flags } => self.recv(end, at, &[*max], false, *flags)?,
            Call::RecvPieces { max, flags } => self.recv(end, at, max, false, *flags)?,
            Call::RecvFds { max, flags } => self.recv(end, at, &[*max], true, *flags)?,
            Call::RecvInPlace { max: asked } => {
                let room = max.unwrap_or(*asked);
                let mut result = end.recv_in_place(room, NOW);
                // A borrow looks for no descriptors, so none of them ends it.
                while let (Ok((got, _)), Some(all)) = (&mut result, max)
                    && got.len() < all
                {
                    match end.recv_in_place(all - got.len(), NOW) {
                        Ok((more, _)) if !more.is_empty() => got.extend(more),
                        _ => break,
                    }
                }
                if let Ok((got, _)) = &result {
                    bytes = Some(got.len());
                    self.flows[1 - at].was_received(got, false, room, kind)?;
                    let rest = !self.flows[1 - at].queue.is_empty();
                    self.watched[at].drained |= kind == Kind::Stream && got.len() < room && !rest;
                }
                self.watched[at].drained |= result.is_err();
                said(result, |(got, flags)| format!("{} received{}", got.len(), cut(flags.trunc)))
            }
            Call::Drain => {
                let mut buf = vec![0; 64 << 10];
                loop {
                    let result = end.recv(&mut buf, NOW);
                    match result {
                        Ok(n)
                            if n > 0 || (kind == Kind::SeqPacket && !self.flows[1 - at].queue.is_empty()) =>
                        {
                            self.flows[1 - at].was_received(&buf[..n], false, buf.len(), kind)?;
                        }
                        other => {
                            self.watched[at].drained = true;
                            break said(other, |_| "end".into());
                        }
                    }
                }
            }
            Call::Shutdown(how) => said(end.shutdown(*how), |()| "ok".into()),
            Call::Close => "ok".into(),
            Call::Nonblocking { on, others } => said(set_nonblocking(end, *on, *others), |()| "ok".into()),
            Call::Poll => tools::poll_now(end).map_err(|e| format!("{e:?}"))?,
            Call::Edge => {
                let watched = &mut self.watched[at];
                let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
                if watched.epoll.is_none() {
                    // What is ready then is told.
                    watched.epoll = Some(Epoll::watching(end, flags).map_err(|e| format!("{e:?}"))?);
                    due = true;
                }
                due |= watched.drained;
                let told = match &watched.epoll {
                    Some(epoll) => epoll.wait(0).map_err(|e| format!("{e:?}"))?,
                    None => String::new(),
                };
                if told != "nothing" {
                    watched.drained = false;
                }
                told
            }
            Call::Queued => said(end.readable_bytes(), |n| format!("{n} queued")),
            Call::Error => said(end.take_error(), |e| {
                e.map_or("none".into(), |e| errno(&io::Error::from_raw_os_error(e)))
            }),
        };
        Ok(Answer { said: text, due, bytes })
    }

    fn recv(
        &mut self,
        end: &dyn End,
        at: usize,
        max: &[usize],
        fds: bool,
        flags: Rx,
    ) -> Result<String, String> {
        let room: usize = max.iter().sum();
        let mut bufs: Vec<Vec<u8>> = max.iter().map(|n| vec![0; *n]).collect();
        let mut slices: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        let result = end.recv_msg(&mut slices, fds, flags);
        let Ok(Came { len: bytes, returned, ctrunc, fds: with, .. }) = result else {
            self.watched[at].drained = true;
            return Ok(said(result, |_| String::new()));
        };
        let got = &bufs.concat()[..bytes.min(room)];
        let ended = bytes == 0 && self.flows[1 - at].queue.is_empty();
        if self.kind == Kind::Stream || !ended {
            self.flows[1 - at].was_received(got, flags.peek, room, self.kind)?;
        }
        // (Descriptors end a receive, too, and then there may be more.)
        let rest = !self.flows[1 - at].queue.is_empty();
        self.watched[at].drained |= self.kind == Kind::Stream && bytes < room && !flags.peek && !rest;
        let with = match which(with) {
            none if none.is_empty() => none,
            some => format!(", descriptors {some}"),
        };
        // A plain receive of ours does not tell that descriptors came and had no room.
        let lost = if fds && ctrunc { ", some lost" } else { "" };
        Ok(format!("{bytes} received{}{with}{lost}", cut(returned.trunc)))
    }
}

fn cut(trunc: bool) -> &'static str {
    if trunc { ", cut" } else { "" }
}
