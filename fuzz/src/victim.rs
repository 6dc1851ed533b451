//! The honest end: it uses its socket in every way there is.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

use onecopy::advanced::chain::Chain;
use onecopy::unix::{SharedPool, View};
use onecopy::{Error, RecvFlags, SendFlags, Wait};
use onecopy::{Policy, Reader};
use onecopy_conformance::tools::Dice;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::{Guarded, Secret, Socket, Watch};

/// A socket, and what it has lent.
pub struct Victim<'a> {
    stream: &'a Socket,
    pool: Option<SharedPool>,
    views: Vec<View>,
    /// Received, and given back late.
    chains: Vec<Chain>,
    buf: Guarded,
    secret: Secret,
    caught: bool,
    shared: bool,
    /// Steps since the peer was caught.
    since: u32,
}

impl<'a> Victim<'a> {
    /// Of a socket.
    pub fn new(stream: &'a Socket, secret: Secret) -> Victim<'a> {
        let soon = Some(Duration::from_millis(1));
        let _ = stream.set_read_timeout(soon);
        let _ = stream.set_write_timeout(soon);
        let pool = SharedPool::new(4096, 4).ok();
        Victim {
            stream,
            pool,
            views: Vec::new(),
            chains: Vec::new(),
            buf: Guarded::new(70_000, secret),
            secret,
            caught: false,
            shared: false,
            since: 0,
        }
    }

    /// Whether there is nothing left to be learnt: the peer was caught, and it was tried that this stays so.
    pub fn over(&self) -> bool {
        self.since > 20
    }

    /// Whether both directions ran over shared memory at some time.
    pub fn was_shared(&self) -> bool {
        self.shared
    }

    /// Does one thing.
    ///
    /// # Errors
    ///
    /// What did not hold.
    pub fn step(&mut self, dice: &mut Dice, watch: &Watch) -> Result<(), String> {
        self.shared |= self.stream.path().is_shared_memory();
        self.since += u32::from(self.caught);
        let n = dice.size(self.buf.len());
        match dice.roll() % 20 {
            0..5 => watch.during("recv", || self.recv(dice, n)),
            5..9 => watch.during("send", || self.send(dice, n)),
            9 => watch.during("reserve and commit", || self.reserve(dice, n)),
            10 if dice.one_in(2) => watch.during("recv_chain", || self.chain(dice, n)),
            10 => watch.during("recv_borrowed", || self.borrow(dice, n)),
            11 => {
                if let Some(view) = self.views.first_mut() {
                    let n = watch.during("a view", || look(view, &mut self.buf, dice))?;
                    self.clean(n)?;
                }
                Ok(())
            }
            12 => {
                let at = dice.roll() as usize % (self.views.len() + 1);
                watch.during("giving a view back", || drop(self.views.drain(..at)));
                Ok(())
            }
            13 => watch.during("poll", || self.poll(dice)),
            14 => watch.during("counts", || self.counts()),
            15 => {
                self.settings(dice);
                Ok(())
            }
            16 => watch.during("vectored calls", || self.vectored(dice)),
            17 => watch.during("descriptors", || self.descriptors(dice, n)),
            18 if dice.one_in(2) => watch.during("a chain by reference", || self.lend_chain(dice)),
            18 => watch.during("a page by reference", || self.lend(dice)),
            _ => {
                // Once in a few conversations.
                if dice.one_in(400) {
                    let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][(dice.roll() % 3) as usize];
                    let _ = watch.during("shutdown", || self.stream.shutdown(how));
                }
                Ok(())
            }
        }
    }

    /// What an answer may be: within its bounds, or an error that a socket has.
    fn within(&mut self, answer: Result<usize, Error>, max: usize) -> Result<usize, String> {
        let known = [
            Errno::AGAIN,
            Errno::INTR,
            Errno::PIPE,
            Errno::CONNRESET,
            Errno::PROTO,
            Errno::MSGSIZE,
            Errno::PROTONOSUPPORT,
            // The kernel's, of what goes over it: it has no memory for that at the moment (seen once in 10^7 steps).
            Errno::NOBUFS,
        ];
        // Of a datagram's peer that is gone, and then there is none; or that is connected elsewhere.
        let of_grams = [Errno::CONNREFUSED, Errno::NOTCONN, Errno::PERM];
        // Of records that are kept as a stream: there are no lists of them.
        let of_records = [Errno::OPNOTSUPP];
        let more = match self.stream {
            Socket::Bytes(_) => &[][..],
            Socket::Records(_) => &of_records,
            Socket::Grams(_) => &of_grams,
        };
        match answer {
            Ok(n) if n > max => Err(format!("{n} bytes of {max}")),
            Ok(n) if n > 0 && self.caught => Err(format!("{n} bytes after EPROTO")),
            Ok(n) => Ok(n),
            Err(e) if !known.iter().chain(more).any(|k| k.raw_os_error() == e.raw_os_error()) => {
                Err(format!("error {e}"))
            }
            Err(e) => {
                if e.raw_os_error() == Errno::PROTO.raw_os_error() {
                    self.caught = true;
                    if self.stream.stats().protocol_errors == 0 {
                        return Err("EPROTO that is not counted".to_owned());
                    }
                }
                Ok(0)
            }
        }
    }

    fn recv(&mut self, dice: &mut Dice, n: usize) -> Result<(), String> {
        let mut flags = RecvFlags::empty();
        for (flag, odds) in [(RecvFlags::PEEK, 3), (RecvFlags::WAITALL, 3)] {
            flags.set(flag, dice.one_in(odds));
        }
        // A wait costs a millisecond: few of them, so that there is time for much else.
        flags.set(RecvFlags::DONTWAIT, !dice.one_in(8));
        let answer = self.stream.recv_with_flags(&mut self.buf[..n], flags);
        let got = self.within(answer, n)?;
        self.clean(got)
    }

    /// What was received is nobody else's, and nothing was written beside it.
    fn clean(&self, got: usize) -> Result<(), String> {
        self.secret.is_not_in("received", &self.buf[..got])?;
        self.buf.check()
    }

    /// In the end: all that it has still borrowed, and the canaries.
    ///
    /// # Errors
    ///
    /// What is another connection's.
    pub fn finish(&mut self) -> Result<(), String> {
        for view in &self.views {
            let n = view.copy_to(&mut self.buf);
            self.secret.is_not_in("a view in the end", &self.buf[..n])?;
        }
        self.buf.check()
    }

    fn send(&mut self, dice: &mut Dice, n: usize) -> Result<(), String> {
        let mut flags = SendFlags::empty();
        for (flag, odds) in [(SendFlags::NTCOPY, 3), (SendFlags::MORE, 4), (SendFlags::EOR, 2)] {
            flags.set(flag, dice.one_in(odds));
        }
        flags.set(SendFlags::DONTWAIT, !dice.one_in(8));
        let answer = self.stream.send_with_flags(&self.buf[..n], flags);
        self.within(answer, n).map(drop)
    }

    fn reserve(&mut self, dice: &mut Dice, n: usize) -> Result<(), String> {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::DONTWAIT, !dice.one_in(8));
        let mut slot = match self.stream.reserve_with_flags(n, flags) {
            None => return Ok(()),
            Some(Ok(slot)) => slot,
            Some(Err(e)) => return self.within(Err(e), 0).map(drop),
        };
        let len = slot.len();
        if len > n {
            return Err(format!("a slot of {len} bytes where {n} were asked for"));
        }
        let m = dice.size(n);
        if dice.one_in(3) {
            let zero = File::open("/dev/zero").map_err(|e| e.to_string())?;
            let _ = slot.read_from(&zero, 0);
        } else {
            slot.copy_from(&self.buf[..m]);
        }
        if dice.one_in(4) {
            return Ok(());
        }
        let answer = slot.commit();
        self.within(answer, len).map(drop)
    }

    fn borrow(&mut self, dice: &mut Dice, n: usize) -> Result<(), String> {
        let mut flags = RecvFlags::empty();
        flags.set(RecvFlags::DONTWAIT, !dice.one_in(8));
        match self.stream.recv_borrowed_with_flags(n, flags) {
            None => Ok(()),
            Some(Err(e)) => self.within(Err(e), 0).map(drop),
            Some(Ok(view)) => {
                self.within(Ok(view.len()), n)?;
                self.views.push(view);
                if self.views.len() > 5 {
                    self.views.remove(dice.roll() as usize % 5);
                }
                Ok(())
            }
        }
    }

    fn chain(&mut self, dice: &mut Dice, n: usize) -> Result<(), String> {
        let mut flags = RecvFlags::empty();
        flags.set(RecvFlags::DONTWAIT, !dice.one_in(8));
        let came = match self.stream {
            Socket::Bytes(stream) => stream.recv_chain_with_flags(n, flags).map(|chain| (0, chain)),
            Socket::Records(socket) => {
                let came = socket.recv_chain_with_flags(&mut self.buf[..n], flags);
                came.map(|(received, chain)| (received.len, chain))
            }
            Socket::Grams(_) => return Ok(()),
        };
        match came {
            Err(e) => self.within(Err(e), 0).map(drop),
            Ok((head, chain)) => {
                let head = self.within(Ok(head), n)?;
                self.clean(head)?;
                // (Of a record all pages come, however many bytes these are.)
                let most = if matches!(self.stream, Socket::Bytes(_)) { n } else { usize::MAX };
                self.within(Ok(chain.len()), most)?;
                let hint = onecopy::advanced::copy::Hint::AUTO;
                let len = chain.len().min(self.buf.len());
                let buf = &mut self.buf[..len];
                let copied = match (chain.peer(), chain.host()) {
                    (Ok(peer), _) => peer.copy_to(0, buf, hint),
                    (_, Ok(host)) => host.copy_to(0, buf, hint),
                    (Err(e), _) => Err(e),
                };
                copied.map_err(|e| format!("a chain that cannot be copied: {e}"))?;
                self.clean(len)?;
                let at = dice.roll() as usize % (self.chains.len() + 1);
                self.chains.insert(at, chain);
                self.chains.truncate(4);
                Ok(())
            }
        }
    }

    fn lend_chain(&mut self, dice: &mut Dice) -> Result<(), String> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let mut chain = Chain::new();
        // Of what pages there are, and parts of them twice.
        let _ = pool.writer().append(&mut chain, &self.buf[..dice.size(9000)]);
        if let Ok(mut part) = chain.range(chain.len() / 3, chain.len() / 2) {
            let _ = chain.concat(&mut part);
        }
        let len = chain.len();
        let flags = SendFlags::DONTWAIT;
        let (sent, head) = match self.stream {
            Socket::Bytes(stream) => (stream.send_chain_with_flags(chain, flags), 0),
            Socket::Records(socket) => {
                let head = dice.size(300);
                (socket.send_chain_with_flags(&self.buf[..head], chain, flags), head)
            }
            Socket::Grams(_) => return Ok(()),
        };
        let answer = match sent {
            Ok(n) => Ok(n),
            Err(not) if not.loan.payload().len() > len => {
                return Err("more came back than was sent".to_owned());
            }
            Err(not) => Err(not.error),
        };
        self.within(answer, head + len).map(drop)
    }

    fn descriptors(&mut self, dice: &mut Dice, n: usize) -> Result<(), String> {
        if dice.one_in(2) {
            let null = File::open("/dev/null").map_err(|e| e.to_string())?;
            let flags = SendFlags::DONTWAIT;
            let answer = match self.stream {
                Socket::Bytes(stream) => {
                    stream.send_fds_with_flags(&self.buf[..n], &[null.as_fd(); 2], flags)
                }
                Socket::Records(socket) => {
                    socket.send_fds_with_flags(&self.buf[..n], &[null.as_fd(); 2], flags)
                }
                Socket::Grams(socket) => {
                    socket.send_fds_with_flags(&self.buf[..n], &[null.as_fd(); 2], flags)
                }
            };
            return self.within(answer, n).map(drop);
        }
        let mut flags = RecvFlags::DONTWAIT;
        flags.set(RecvFlags::PEEK, dice.one_in(4));
        let answer = match self.stream {
            Socket::Bytes(stream) => stream.recv_fds_with_flags(&mut self.buf[..n], flags),
            Socket::Records(socket) => socket
                .recv_fds_with_flags(&mut self.buf[..n], flags)
                .map(|(received, with)| (received.len, with)),
            Socket::Grams(socket) => {
                let came = socket.recv_fds_with_flags(&mut self.buf[..n], flags);
                came.map(|(received, with, _)| (received.len, with))
            }
        };
        match answer {
            Ok((got, with)) if with.fds.len() > 253 => {
                Err(format!("{got} bytes, {} descriptors", with.fds.len()))
            }
            Ok((got, with)) => {
                // This process, the only one there is; or nobody, where it was not said.
                let me = std::process::id() as i32;
                if with.credentials.is_some_and(|who| ![0, me].contains(&who.pid)) {
                    return Err(format!("credentials of somebody else: {:?}", with.credentials));
                }
                let got = self.within(Ok(got), n)?;
                self.clean(got)
            }
            Err(e) => self.within(Err(e), n).map(drop),
        }
    }

    fn lend(&mut self, dice: &mut Dice) -> Result<(), String> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let loan = match pool.loan(dice.size(4096)) {
            Ok(mut loan) => {
                loan.fill(1);
                loan
            }
            Err(e) => return self.within(Err(e), 0).map(drop),
        };
        let len = loan.len();
        let flags = SendFlags::DONTWAIT;
        let sent = match self.stream {
            Socket::Bytes(stream) => stream.send_loan_with_flags(loan, flags).map_err(|not| not.error),
            Socket::Records(socket) => socket.send_loan_with_flags(loan, flags).map_err(|not| not.error),
            Socket::Grams(_) => return Ok(()),
        };
        self.within(sent, len).map(drop)
    }

    fn poll(&self, dice: &mut Dice) -> Result<(), String> {
        let limit = Timespec { tv_sec: 0, tv_nsec: if dice.one_in(8) { 1_000_000 } else { 0 } };
        let mut fds = [PollFd::new(self.stream, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)];
        rustix::event::poll(&mut fds, Some(&limit)).map(drop).map_err(|e| format!("poll: {e}"))
    }

    fn counts(&self) -> Result<(), String> {
        let (send, receive) = self.stream.capacity();
        // What the kernel may hold besides: a queue whose limit counts memory, not bytes; and what 64 marks may stand for,
        // which is the peer's word.
        let queue = (8 << 20) + (64 << 32);
        if let Ok(n) = self.stream.readable_bytes()
            && n > receive + queue
        {
            return Err(format!("{n} readable bytes in {receive}"));
        }
        if let Ok(n) = self.stream.unread_bytes()
            && n > send + queue
        {
            return Err(format!("{n} unread bytes in {send}"));
        }
        let _ = (self.stream.stats(), self.stream.path(), self.stream.take_error());
        Ok(())
    }

    fn settings(&self, dice: &mut Dice) {
        let pick = dice.roll() as usize;
        self.stream.set_policy([Policy::Cached, Policy::NonTemporal, Policy::Auto][pick % 3]);
        self.stream.set_reader([Reader::SameCore, Reader::OtherCore, Reader::NoCpu][pick / 3 % 3]);
        self.stream.set_wait_mode([Wait::Adaptive, Wait::Block, Wait::Spin][pick / 9 % 3]);
        let _ = self.stream.set_nonblocking(dice.one_in(4));
        if dice.one_in(8) {
            self.stream.set_pass_credentials(dice.one_in(2));
        }
    }

    fn vectored(&mut self, dice: &mut Dice) -> Result<(), String> {
        let n = dice.size(self.buf.len());
        let cut = dice.roll() as usize % n;
        let _ = self.stream.set_nonblocking(!dice.one_in(8));
        if dice.one_in(2) {
            let (a, b) = self.buf[..n].split_at(cut);
            let slices = [IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)];
            let answer = self.stream.send_vectored_with_flags(&slices, SendFlags::empty());
            self.within(answer, n).map(drop)
        } else {
            let (a, b) = self.buf[..n].split_at_mut(cut);
            let mut slices = [IoSliceMut::new(a), IoSliceMut::new(&mut []), IoSliceMut::new(b)];
            let answer = self.stream.recv_vectored_with_flags(&mut slices, RecvFlags::empty());
            // (What lies between what was filled is what was there before, and that was looked at.)
            self.within(answer, n)?;
            self.clean(n)
        }
    }
}

/// Uses a view. How many bytes of it lie in the buffer now.
fn look(view: &mut View, buf: &mut [u8], dice: &mut Dice) -> Result<usize, String> {
    let before = view.len();
    match dice.roll() % 3 {
        0 => {
            let n = view.copy_to(buf);
            if n > before || n > buf.len() {
                return Err(format!("copied {n} bytes of a view of {before}"));
            }
            return Ok(n);
        }
        1 => {
            let null = File::options().write(true).open("/dev/null").map_err(|e| e.to_string())?;
            view.write_to(&null).map_err(|e| format!("write_to: {e}"))?;
        }
        _ => {
            let n = dice.roll() as usize % (before + 2);
            view.advance(n);
            if view.len() != before.saturating_sub(n) {
                return Err(format!("a view of {before} advanced by {n} has {}", view.len()));
            }
        }
    }
    Ok(0)
}
