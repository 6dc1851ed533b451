//! What a program has done to a socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use super::{Found, MOST, Socket, World};
use crate::held::{Got, Held};
use crate::model::{Sent, Sort};
use crate::others::{Order, Other, Said};
use crate::program::{Call, Len, Max};
use onecopy::unix::SharedPool;
use onecopy_conformance::tools::errno;

/// Most bytes of a view of what came over the kernel.
const MOST_IN_VIEW: usize = 256 << 10;

/// Descriptors to send.
fn tokens() -> &'static [OwnedFd] {
    static TOKENS: OnceLock<Vec<OwnedFd>> = OnceLock::new();
    TOKENS.get_or_init(|| (0..4).filter_map(|_| rustix::pipe::pipe().ok().map(|(read, _)| read)).collect())
}

impl World {
    fn room(&self, at: usize) -> usize {
        let socket = &self.sockets[at];
        let Some(held) = &socket.held else { return 1 };
        let left = held.capacity().saturating_sub(socket.flow.filled());
        let header = if self.sort == Sort::Stream { 0 } else { 8 };
        left.saturating_sub(header).clamp(1, MOST)
    }

    fn len(&self, at: usize, len: Len) -> usize {
        match len {
            Len::Some(n) => n,
            Len::Room => self.room(at),
            Len::More => self.sockets[at].held.as_ref().map_or(1, |held| held.capacity() + 1).min(MOST),
        }
    }

    fn max(&self, at: usize, max: Max) -> usize {
        let next = self.senders(at).map(|from| self.sockets[from].flow.next(self.sort)).max();
        match max {
            Max::Some(n) => n,
            Max::Exactly => next.unwrap_or(1).max(1),
            Max::More => MOST,
        }
    }

    /// Does it; what came of it, in words. None: it is not to be done.
    pub fn call(&mut self, at: usize, call: Call) -> Found<Option<String>> {
        let here = self.sockets[at].held.is_some();
        let sends = self.sockets[at].to.is_some();
        let has = |other: &Other| other.has.get(at) == Some(&true);
        let said = match call {
            Call::OtherSends(_) | Call::OtherReceives(_) | Call::OtherCloses | Call::OtherEnds { .. } => {
                return self.other(at, call);
            }
            _ if !here => return Ok(None),
            Call::Send { len: _, eor: _ } | Call::SendFds { .. } | Call::Fill(_) if !sends => {
                return Ok(None);
            }
            Call::Send { len, eor } => {
                let len = self.len(at, len);
                // (Of nothing there is no telling who sent it.)
                if len == 0 && self.sort == Sort::Crowd {
                    return Ok(None);
                }
                self.send(at, len, eor)?
            }
            Call::SendFds { len, count } => {
                let Some(held) = &self.sockets[at].held else { return Ok(None) };
                let kernel = held.sends_over_kernel();
                let result = held.send_fds(at, len, &tokens()[..count]);
                let result = result.map_err(|e| crate::others::errno_of(&e));
                self.was_sent(at, result, Sent { len, end: false, with: true, kernel })?
            }
            Call::Fill(piece) => self.fill(at, piece)?,
            Call::InPlace { len, commit } => return self.in_place(at, len, commit),
            Call::Loan(len) => return self.loan(at, len),
            Call::Recv(max) => self.recv(at, max, false, false)?,
            Call::RecvFds(max) => self.recv(at, max, true, false)?,
            Call::Peek(max) => self.recv(at, max, false, true)?,
            Call::Drain => {
                let mut last = String::new();
                for _ in 0..100_000 {
                    last = self.recv(at, Max::Some(64 << 10), false, false)?;
                    if !last.contains("received") {
                        break;
                    }
                }
                last
            }
            Call::Borrow(max) => return self.borrow(at, max),
            Call::GiveBack(which) => {
                let views = &mut self.sockets[at].views;
                if views.is_empty() {
                    return Ok(None);
                }
                let (number, view) = views.remove(which % views.len());
                drop(view);
                for from in self.senders(at).collect::<Vec<_>>() {
                    self.sockets[from].flow.given_back(number);
                }
                "given back".into()
            }
            Call::Credentials(on) => {
                self.credentials |= on;
                self.option(at, |held| held.end().set_pass_credentials(on))?
            }
            Call::Nonblocking(on) => self.option(at, |held| held.end().set_nonblocking(on))?,
            Call::Shutdown(how) => {
                let said = self.option(at, |held| held.shutdown(how))?;
                let socket = &mut self.sockets[at];
                if said == "ok" {
                    socket.shut_read |= how != std::net::Shutdown::Write;
                    socket.shut_write |= how != std::net::Shutdown::Read;
                }
                said
            }
            Call::Close => {
                let socket = &mut self.sockets[at];
                (socket.epoll, socket.held) = (None, None);
                "ok".into()
            }
            Call::Pass => return self.pass(at),
            Call::Share if self.stranger.as_ref().is_none_or(has) => return Ok(None),
            Call::Share => {
                let Some(held) = &self.sockets[at].held else { return Ok(None) };
                match held.share() {
                    Ok(fds) => match self.stranger.as_mut().map(|stranger| stranger.give(at, fds)) {
                        Some(Ok(_)) => {
                            self.stranger.iter_mut().for_each(|stranger| stranger.has[at] = true);
                            "shared".into()
                        }
                        other => return Err(format!("the stranger said {other:?}")),
                    },
                    Err(e) => errno(&e),
                }
            }
            Call::Fork { both } => {
                // (A child that has copies of views of an end that it does not keep would keep that open.)
                let viewed = |(i, socket): (usize, &Socket)| !both && i != at && !socket.views.is_empty();
                if self.others.len() > 1 || self.sockets.iter().enumerate().any(viewed) {
                    return Ok(None);
                }
                let mut kept: Vec<_> = self.sockets.iter_mut().map(|socket| socket.held.take()).collect();
                let has = (0..kept.len()).map(|i| (both || i == at) && kept[i].is_some()).collect();
                let other = Other::fork(&mut kept, has, self.made[0]).map_err(|e| e.to_string())?;
                for (socket, held) in self.sockets.iter_mut().zip(kept) {
                    socket.held = held;
                }
                self.others.push(other);
                "ok".into()
            }
        };
        Ok(Some(said))
    }

    fn option(&self, at: usize, call: impl FnOnce(&Held) -> io::Result<()>) -> Found<String> {
        let Some(held) = &self.sockets[at].held else { return Ok(String::new()) };
        Ok(call(held).map_or_else(|e| errno(&e), |()| "ok".into()))
    }

    fn fill(&mut self, at: usize, piece: usize) -> Found<String> {
        let capacity = self.sockets[at].held.as_ref().map_or(0, Held::capacity);
        let piece = if capacity / piece > 20_000 { 4096 } else { piece };
        for n in 0..40_000 {
            let said = self.send(at, piece, false)?;
            if !said.contains("sent") {
                return Ok(format!("{n} pieces, {said}"));
            }
        }
        Ok("no end".into())
    }

    fn in_place(&mut self, at: usize, len: usize, commit: bool) -> Found<Option<String>> {
        let Some(held) = &self.sockets[at].held else { return Ok(None) };
        if len == 0 {
            return Ok(None);
        }
        let kernel = held.sends_over_kernel();
        let mut seen = Ok(());
        let result = held.send_in_place(at, len, commit, || {
            // Nothing of it is seen before it is committed.
            seen = (0..self.sockets.len())
                .filter(|at| self.sockets[*at].epoll.is_some())
                .try_for_each(|at| self.look(at).map(drop));
        });
        seen.map_err(|wrong| format!("while it was reserved: {wrong}"))?;
        match result {
            Err(e) if e.raw_os_error().is_none() => Ok(None),
            Ok(0) => Ok(Some("given up".into())),
            result => {
                let result = result.map_err(|e| crate::others::errno_of(&e));
                self.was_sent(at, result, Sent { len, end: false, with: false, kernel }).map(Some)
            }
        }
    }

    fn loan(&mut self, at: usize, len: usize) -> Found<Option<String>> {
        let socket = &mut self.sockets[at];
        let Some(held) = &socket.held else { return Ok(None) };
        if self.sort.has_datagrams() || matches!(held, Held::Plain(_)) {
            return Ok(None);
        }
        if socket.pool.is_none() {
            socket.pool = Some(SharedPool::new(4096, 8).map_err(|e| e.to_string())?);
        }
        let Some(pool) = &socket.pool else { return Ok(None) };
        let kernel = held.sends_over_kernel();
        match held.send_loan(at, len, pool) {
            Err(e) if e.raw_os_error().is_none() => Ok(None),
            result => {
                let result = result.map_err(|e| crate::others::errno_of(&e));
                self.was_sent(at, result, Sent { len, end: false, with: true, kernel }).map(Some)
            }
        }
    }

    fn recv(&mut self, at: usize, max: Max, fds: bool, peek: bool) -> Found<String> {
        let max = self.max(at, max);
        let Some(held) = &self.sockets[at].held else { return Ok(String::new()) };
        let result = held.recv(max, fds, peek);
        self.was_received(at, result, max, peek)
    }

    fn borrow(&mut self, at: usize, max: Max) -> Found<Option<String>> {
        let max = self.max(at, max);
        let Some(held) = &self.sockets[at].held else { return Ok(None) };
        if self.sockets[at].views.len() > 5 {
            return Ok(None);
        }
        let (view, end, over) = match held.borrow(max) {
            Ok(got) => got,
            Err(e) if e.raw_os_error().is_none() => return Ok(None),
            Err(e) => return self.was_received(at, Err(e), max, false).map(Some),
        };
        let len = view.len();
        // (Of many senders, the first byte says which it was.)
        let mut first = [0];
        let who = (self.sort == Sort::Crowd && view.copy_to(&mut first) > 0).then(|| usize::from(first[0]));
        let Some(from) = who.or_else(|| self.senders(at).next()) else { return Ok(None) };
        let Some(since) = self.sockets.get(from).map(|socket| socket.flow.position()) else {
            return Err(format!("a view of what nobody has sent ({from})"));
        };
        // (What lies together may be less than what is there, and a view over the kernel is no longer than that.)
        let whole = self.sort == Sort::Records && len != MOST_IN_VIEW || self.sort.has_datagrams();
        let room = if whole { max } else { len };
        let said = self.was_received(at, Ok(Got { len, end, over, from: who }), room, false)?;
        if len > 0 {
            self.numbers += 1;
            self.sockets[from].flow.borrowed(self.numbers, since);
            self.sockets[at].views.push((self.numbers, view));
        }
        Ok(Some(format!("{said}, borrowed")))
    }

    fn pass(&mut self, at: usize) -> Found<Option<String>> {
        let made = self.made[at.min(1)];
        let socket = &mut self.sockets[at];
        let Some(held) = socket.held.take() else { return Ok(None) };
        if matches!(held, Held::Plain(_) | Held::Datagrams(_)) {
            socket.held = Some(held);
            return Ok(None);
        }
        let (held, said) = held.pass(made);
        socket.held = held;
        match said {
            Ok(()) => {
                socket.epoll = None;
                Ok(Some("passed".into()))
            }
            Err(errno) if socket.held.is_some() => Ok(Some(format!("errno {errno}"))),
            Err(errno) => Err(format!("what was passed on was not taken up: errno {errno}")),
        }
    }

    fn other(&mut self, at: usize, call: Call) -> Found<Option<String>> {
        let has = |other: &Other| other.has.get(at) == Some(&true);
        if let Call::OtherEnds { killed } = call {
            if !self.others.is_empty() {
                self.others.remove(at % self.others.len()).end(killed);
                return Ok(Some("ok".into()));
            }
            return Ok(self.stranger.take().map(|stranger| {
                stranger.end(killed);
                "ok".into()
            }));
        }
        // Which process has a datagram socket after a fork is told by who uses it first.
        if self.sort.has_datagrams() && !matches!(call, Call::OtherCloses) {
            return Ok(None);
        }
        let Some(other) = self.others.iter_mut().chain(&mut self.stranger).find(|other| has(other)) else {
            return Ok(None);
        };
        match call {
            Call::OtherSends(len) => {
                let result: Said = other.tell(Order::Send, at, len);
                let sent = Sent { len, end: false, with: false, kernel: true };
                self.was_sent(at, result.map(|(n, _)| n), sent).map(Some)
            }
            Call::OtherReceives(max) => {
                let result = other.tell(Order::Receive, at, max);
                let result = result.map(|(len, end)| Got { len, end, over: false, from: None });
                let result = result.map_err(io::Error::from_raw_os_error);
                self.was_received(at, result, max, false).map(Some)
            }
            _ => {
                let said = other.tell(Order::Close, at, 0);
                other.has[at] = false;
                Ok(Some(format!("{said:?}")))
            }
        }
    }
}
