//! One end of one connection: what it does next, and whether what it sees is what must be.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use onecopy::unix::{Error, ReceivedFlags, RecvFlags, SendFlags, SeqPacket, SharedPool, Stream, View};
use onecopy_conformance::tools::Dice;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::plan::{Ending, Plan, Side};

/// Either kind of socket.
pub enum Socket {
    /// A stream.
    Stream(Stream),
    /// Atomic records.
    Records(SeqPacket),
}

impl Socket {
    fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        match self {
            Socket::Stream(s) => s.shutdown(how),
            Socket::Records(s) => s.shutdown(how),
        }
    }

    /// Whether both directions run over shared memory.
    pub fn is_shared(&self) -> bool {
        match self {
            Socket::Stream(s) => s.path().is_shared_memory(),
            Socket::Records(s) => s.path().is_shared_memory(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Stream(s) => s.as_fd(),
            Socket::Records(s) => s.as_fd(),
        }
    }
}

/// What an end knows of its connection.
pub struct Party {
    pub plan: Plan,
    pub side: Side,
    /// Bytes or records.
    pub sent: u64,
    pub received: u64,
    /// False from EAGAIN until an event says otherwise.
    pub writable: bool,
    pub readable: bool,
    sending: bool,
    receiving: bool,
    closed: bool,
    was_reset: bool,
    tokens_sent: u64,
    tokens_seen: u64,
    /// How it received last, for who looks for the cause.
    last: &'static str,
    pool: Option<SharedPool>,
    views: Vec<View>,
    pub socket: Socket,
}

type Check<T = ()> = Result<T, String>;

/// Bytes and records that were verified, and what came along.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Tally {
    /// Connections that lived to their planned end.
    pub ended: u64,
    /// Of these: over shared memory in both directions.
    pub shared: u64,
    /// Connections that a kill cut short.
    pub cut: u64,
    /// Bytes received and verified.
    pub bytes: u64,
    /// Records received and verified.
    pub records: u64,
    /// Descriptors received and verified.
    pub descriptors: u64,
    /// Pages sent by reference.
    pub pages: u64,
    /// Times that nothing happened on a connection for long, and the peer was asked why.
    pub asked: u64,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: &Tally) {
        self.ended += other.ended;
        self.shared += other.shared;
        self.cut += other.cut;
        self.bytes += other.bytes;
        self.records += other.records;
        self.descriptors += other.descriptors;
        self.pages += other.pages;
        self.asked += other.asked;
    }
}

/// Most a single call moves.
const MOST: usize = 40_000;

impl Party {
    /// Of a connected socket, which must be non-blocking.
    pub fn new(socket: Socket, plan: Plan, side: Side) -> Party {
        Party {
            pool: plan.lends(side).then(|| SharedPool::new(4096, 4).ok()).flatten(),
            plan,
            side,
            sent: 0,
            received: 0,
            writable: true,
            readable: true,
            sending: true,
            receiving: true,
            closed: false,
            was_reset: false,
            tokens_sent: 0,
            tokens_seen: 0,
            last: "nothing",
            views: Vec::new(),
            socket,
        }
    }

    /// Whether there is something to do now.
    pub fn is_active(&self) -> bool {
        self.is_over() || (self.sending && self.writable) || (self.receiving && self.readable)
    }

    /// Whether its life is over.
    pub fn is_over(&self) -> bool {
        self.closed || (!self.sending && !self.receiving)
    }

    /// What it is in the middle of, and what there is to be read of its socket without changing it: what poll and the
    /// kernel's queue say, both rings' positions, bells, fillers and what is owed; and how long the thread that serves
    /// it has run, and waited for a CPU.
    pub fn tell(&self) -> String {
        let (total, theirs) = (self.plan.total(self.side), self.plan.total(self.side.other()));
        let asks = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
        let mut polled = [PollFd::new(&self.socket, asks)];
        let _ = rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let flags = polled[0].revents();
        let queued = rustix::io::ioctl_fionread(&self.socket);
        let ran = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let (state, stats) = match &self.socket {
            Socket::Stream(s) => (format!("{s:?}"), s.stats()),
            Socket::Records(s) => (format!("{s:?}"), s.stats()),
        };
        // Both sides come first; what follows them says it again.
        let state = state.split(", offer:").next().unwrap_or_default();
        format!(
            "{}; poll says {flags:?}, {queued:?} bytes lie in the kernel's queue; the thread ran and waited {} ns; {state}; {stats:?}",
            self.tell_short(total, theirs),
            ran.trim(),
        )
    }

    /// As `tell`, and whether it could go on after all, which changes it.
    pub fn report(&self) -> String {
        let before = self.tell();
        let (receive, send) = match &self.socket {
            Socket::Stream(s) => (
                s.recv(&mut [0; 64], RecvFlags::DONTWAIT | RecvFlags::PEEK),
                s.reserve_with(1, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|slot| slot.len()),
            ),
            Socket::Records(s) => (
                s.recv(&mut [0; 64], RecvFlags::DONTWAIT | RecvFlags::PEEK),
                s.reserve_with(1, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|slot| slot.len()),
            ),
        };
        format!("{before}; a look for bytes now gives {receive:?}, one for room {send:?}")
    }

    fn tell_short(&self, total: u64, theirs: u64) -> String {
        format!(
            "connection {:#x}, {:?} ({:?}, the peer {:?}): sent {} of {total}, received {} of {theirs}, shared memory: {}, \
             sending {} writable {}, receiving {} readable {}, reset {}, views {}, the last receive: {}, descriptors {}, lent to: {}",
            self.plan.id,
            self.side,
            self.plan.ending(self.side),
            self.plan.ending(self.side.other()),
            self.sent,
            self.received,
            self.socket.is_shared(),
            self.sending,
            self.writable,
            self.receiving,
            self.readable,
            self.was_reset,
            self.views.len(),
            self.last,
            self.tokens_seen,
            self.plan.lends(self.side.other()),
        )
    }

    /// Does one thing. `gone`: the peer's process may be dead.
    ///
    /// # Errors
    ///
    /// What did not hold.
    pub fn step(
        &mut self,
        dice: &mut Dice,
        buf: &mut [u8],
        tally: &mut Tally,
        gone: impl Fn() -> bool,
    ) -> Check {
        if dice.one_in(8) {
            let n = dice.roll() as usize % (self.views.len() + 1);
            self.views.drain(..n);
        }
        let send = self.sending && self.writable && (dice.one_in(2) || !(self.receiving && self.readable));
        let answer = if send {
            self.send(dice, tally)
        } else if self.receiving && self.readable {
            self.recv(dice, buf, tally)
        } else {
            Ok(())
        };
        answer.or_else(|stop| self.stop(stop, gone)).map_err(|what| format!("{what}; {}", self.tell()))
    }

    /// What an error means: that it has to wait, that the peer went away as it may, or that something is wrong.
    fn stop(&mut self, stop: Stop, gone: impl Fn() -> bool) -> Check {
        let leaves = self.plan.ending(self.side.other()) != Ending::HalfClose;
        match stop {
            Stop::Wrong(what) => Err(what),
            Stop::Cannot(while_sending, e) if e.would_block() => {
                if while_sending {
                    self.writable = false;
                } else {
                    self.readable = false;
                    // Nothing may wait for what is borrowed here.
                    self.views.clear();
                }
                Ok(())
            }
            Stop::Cannot(true, e) if e.raw_os_error() == Errno::PIPE.raw_os_error() && (leaves || gone()) => {
                self.sending = false;
                Ok(())
            }
            Stop::Cannot(sending, e)
                if e.raw_os_error() == Errno::CONNRESET.raw_os_error()
                    && (leaves || gone())
                    && !self.was_reset =>
            {
                self.was_reset = true;
                self.sending &= !sending;
                Ok(())
            }
            // Descriptors on their way are bounded by RLIMIT_NOFILE: others have to be received first.
            Stop::Cannot(true, e) if e.raw_os_error() == Errno::TOOMANYREFS.raw_os_error() => Ok(()),
            Stop::Cannot(sending, e) => {
                let dead = if gone() { ", from a dead peer" } else { "" };
                Err(format!("{}: {e}{dead}", if sending { "cannot send" } else { "cannot receive" }))
            }
            Stop::End => {
                self.receiving = false;
                let total = self.plan.total(self.side.other());
                if self.received != total && !gone() {
                    return Err("the end came too early".into());
                }
                Ok(())
            }
        }
    }

    fn send(&mut self, dice: &mut Dice, tally: &mut Tally) -> Result<(), Stop> {
        let left = self.plan.total(self.side) - self.sent;
        if left == 0 {
            self.sending = false;
            let shut = match self.plan.ending(self.side) {
                Ending::HalfClose => self.socket.shutdown(Shutdown::Write),
                Ending::ShutBoth => self.socket.shutdown(Shutdown::Both),
                Ending::Close => Ok(()),
            };
            self.closed = self.plan.ending(self.side) != Ending::HalfClose;
            return shut.or_else(|e| match e.raw_os_error() {
                // The peer was faster.
                no if no == Errno::NOTCONN.raw_os_error() => Ok(()),
                _ => Err(Stop::Wrong(format!("cannot shut down: {e}"))),
            });
        }
        let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        flags.set(SendFlags::NTCOPY, dice.one_in(4));
        let cannot = |e| Stop::Cannot(true, e);
        match &self.socket {
            Socket::Records(s) => {
                let record = self.plan.record(self.side, self.sent);
                let n = match dice.roll() % 4 {
                    0 => {
                        let (a, b) = record.split_at(dice.roll() as usize % (record.len() + 1));
                        s.send_vectored(&[IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)], flags)
                    }
                    1 => match s.reserve_with(record.len(), flags) {
                        Ok(mut slot) => {
                            slot.write(&record);
                            if dice.one_in(4) {
                                return Ok(());
                            }
                            slot.commit()
                        }
                        // Its turn comes again: what waits for room is a send.
                        Err(e) if e.would_block() => s.send(&record, flags),
                        Err(e) => Err(e),
                    },
                    _ => s.send(&record, flags),
                }
                .map_err(cannot)?;
                if n != record.len() {
                    return Err(Stop::Wrong(format!("sent {n} of a record of {}", record.len())));
                }
                self.sent += 1;
            }
            Socket::Stream(s) => {
                let n = dice.size(MOST.min(left as usize));
                let bytes = self.plan.pattern(self.side).bytes(self.sent as usize, n);
                let sent = match dice.roll() % 10 {
                    0 | 1 => {
                        let (a, b) = bytes.split_at(dice.roll() as usize % (n + 1));
                        s.send_vectored(&[IoSlice::new(a), IoSlice::new(b)], flags)
                    }
                    2 | 3 => match s.reserve_with(n, flags) {
                        Ok(mut slot) => {
                            slot.write(&bytes);
                            if dice.one_in(4) {
                                return Ok(());
                            }
                            slot.commit()
                        }
                        Err(e) if e.would_block() => s.send(&bytes, flags),
                        Err(e) => Err(e),
                    },
                    4 if dice.one_in(3) => {
                        let token = token(self.plan.id, self.tokens_sent)?;
                        let sent = s.send_with(&bytes, &[token.as_fd()], flags);
                        self.tokens_sent += u64::from(sent.is_ok());
                        sent
                    }
                    5 => match self.pool.as_ref().map(|pool| pool.loan(n.min(4096))) {
                        Some(Ok(mut loan)) => {
                            let len = loan.len();
                            loan.copy_from_slice(&bytes[..len]);
                            tally.pages += 1;
                            // Over the kernel a part of it may have gone.
                            s.send_loan_with(loan, flags).or_else(|not| match len - not.loan.len() {
                                0 => Err(not.error),
                                part => Ok(part),
                            })
                        }
                        _ => s.send(&bytes, flags),
                    },
                    _ => s.send(&bytes, flags),
                }
                .map_err(cannot)?;
                if sent > n {
                    return Err(Stop::Wrong(format!("sent {sent} of {n} bytes")));
                }
                self.sent += sent as u64;
            }
        }
        Ok(())
    }

    fn recv(&mut self, dice: &mut Dice, buf: &mut [u8], tally: &mut Tally) -> Result<(), Stop> {
        match &self.socket {
            Socket::Stream(_) => self.recv_stream(dice, buf, tally),
            Socket::Records(_) => self.recv_record(dice, buf, tally),
        }
    }

    fn recv_stream(&mut self, dice: &mut Dice, buf: &mut [u8], tally: &mut Tally) -> Result<(), Stop> {
        let Socket::Stream(s) = &self.socket else { return Ok(()) };
        let cannot = |e| Stop::Cannot(false, e);
        let max = dice.size(MOST.min(buf.len()));
        let counts = self.plan.counts_descriptors(self.side);
        let flags = RecvFlags::DONTWAIT;
        let mut taken = true;
        let way = dice.roll() % 8;
        self.last = match way {
            0 => "peek",
            1 if !counts => "waitall",
            2 if !counts => "vectored",
            3 | 4 if !counts => "borrow",
            5 if !counts => "plain",
            _ => "with descriptors",
        };
        let n = match way {
            0 => {
                taken = false;
                s.recv(&mut buf[..max], flags | RecvFlags::PEEK).map_err(cannot)?
            }
            1 if !counts => s.recv(&mut buf[..max], flags | RecvFlags::WAITALL).map_err(cannot)?,
            2 if !counts => {
                let (a, b) = buf[..max].split_at_mut(dice.roll() as usize % max);
                let n = s.recv_vectored(&mut [IoSliceMut::new(a), IoSliceMut::new(b)], flags);
                n.map_err(cannot)?
            }
            3 | 4 if !counts => {
                let view = s.recv_borrowed_with(max, flags).map_err(cannot)?;
                let n = view.copy_to(buf);
                if n != view.len() {
                    return Err(Stop::Wrong(format!("{n} bytes of a view of {}", view.len())));
                }
                if dice.one_in(3) && self.views.len() < 8 {
                    self.views.push(view);
                }
                n
            }
            5 if !counts => s.recv(&mut buf[..max], flags).map_err(cannot)?,
            _ => {
                let (n, ancillary) = s.recv_with(&mut buf[..max], flags).map_err(cannot)?;
                if ancillary.truncated && counts {
                    return Err(Stop::Wrong("descriptors were lost (MSG_CTRUNC)".into()));
                }
                for fd in ancillary.fds {
                    let serial = serial(File::from(fd), self.plan.id)?;
                    let (least, most) = match counts {
                        true => (self.tokens_seen, self.tokens_seen),
                        false => (self.tokens_seen, u64::MAX),
                    };
                    if serial < least || serial > most {
                        return Err(Stop::Wrong(format!("descriptor {serial} in place of {least}")));
                    }
                    self.tokens_seen = serial + 1;
                    tally.descriptors += 1;
                }
                n
            }
        };
        if n == 0 {
            return Err(Stop::End);
        }
        let pattern = self.plan.pattern(self.side.other());
        pattern.check(self.received as usize, &buf[..n]).map_err(|e| Stop::Wrong(format!("{e:?}")))?;
        if taken {
            self.received += n as u64;
            tally.bytes += n as u64;
        }
        Ok(())
    }

    fn recv_record(&mut self, dice: &mut Dice, buf: &mut [u8], tally: &mut Tally) -> Result<(), Stop> {
        let Socket::Records(s) = &self.socket else { return Ok(()) };
        let cannot = |e| Stop::Cannot(false, e);
        let max = dice.size(4000);
        let mut flags = RecvFlags::DONTWAIT;
        let mut taken = true;
        let (n, full, said) = match dice.roll() % 6 {
            0 => {
                let (view, said) = s.recv_borrowed_with(max, flags).map_err(cannot)?;
                let n = view.copy_to(buf);
                if dice.one_in(3) && self.views.len() < 8 {
                    self.views.push(view);
                }
                (n, None, said)
            }
            1 => {
                let (a, b) = buf[..max].split_at_mut(dice.roll() as usize % max);
                let got = s.recv_vectored(&mut [IoSliceMut::new(a), IoSliceMut::new(b)], flags);
                let got = got.map_err(cannot)?;
                (got.len, Some(got.full), got.flags)
            }
            2 => {
                flags |= RecvFlags::PEEK;
                taken = false;
                let got = s.recv_record(&mut buf[..max], flags).map_err(cannot)?;
                (got.len, Some(got.full), got.flags)
            }
            _ => {
                let got = s.recv_record(&mut buf[..max], flags).map_err(cannot)?;
                (got.len, Some(got.full), got.flags)
            }
        };
        if said.contains(ReceivedFlags::END) {
            return Err(Stop::End);
        }
        let record = self.plan.record(self.side.other(), self.received);
        let cut = said.contains(ReceivedFlags::TRUNC);
        if full.is_some_and(|full| full != record.len())
            || n != record.len().min(max)
            || cut != (record.len() > max)
            || buf[..n] != record[..n]
        {
            return Err(Stop::Wrong(format!(
                "record {} of {} bytes came as {n} of {full:?}, {said:?}, room {max}, the same: {}",
                self.received,
                record.len(),
                buf[..n] == record[..n.min(record.len())],
            )));
        }
        if taken {
            self.received += 1;
            tally.bytes += n as u64;
            tally.records += 1;
        }
        Ok(())
    }
}

/// Why a step got no further.
enum Stop {
    /// A call failed: a send, or a receive.
    Cannot(bool, Error),
    /// The peer sends nothing any more.
    End,
    Wrong(String),
}

/// A descriptor that says which it is.
fn token(id: u64, serial: u64) -> Result<File, Stop> {
    let file = rustix::fs::memfd_create("onecopy-soak-token", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|e| Stop::Wrong(format!("cannot make a descriptor to send: {e}")))?;
    let file = File::from(file);
    let text = [id.to_le_bytes(), serial.to_le_bytes()].concat();
    file.write_all_at(&text, 0).map_err(|e| Stop::Wrong(format!("cannot write to it: {e}")))?;
    Ok(file)
}

fn serial(file: File, id: u64) -> Result<u64, Stop> {
    let mut text = [0; 16];
    file.read_exact_at(&mut text, 0).map_err(|e| Stop::Wrong(format!("a foreign descriptor: {e}")))?;
    let word = |at: usize| text[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    match word(0) {
        whose if whose == id => Ok(word(8)),
        whose => Err(Stop::Wrong(format!("a descriptor of connection {whose:#x}"))),
    }
}
