//! One end of one connection: what it does next, and whether what it sees is what must be.

mod receiving;
mod sending;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use onecopy::advanced::chain::Chain;
use onecopy::unix::{SharedPool, SocketAddr, View};
use onecopy::{Error, RecvFlags, SendFlags};
use onecopy_conformance::socket::Socket;
use onecopy_conformance::tools::Dice;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::plan::{Ending, Kind, Plan, Side};

/// What an end knows of its connection.
pub struct Party {
    pub plan: Plan,
    pub side: Side,
    /// Bytes or records, whole ones.
    pub sent: u64,
    pub received: u64,
    /// Bytes of a record that goes, or comes, in parts.
    sent_of: usize,
    received_of: usize,
    /// False from EAGAIN until an event says otherwise.
    pub writable: bool,
    pub readable: bool,
    sending: bool,
    receiving: bool,
    closed: bool,
    was_reset: bool,
    was_shared: bool,
    /// A datagram's peer is dead, which a send has to tell; and how many did not.
    probing: bool,
    probes: u32,
    tokens_sent: u64,
    tokens_seen: u64,
    /// How it received last, for who looks for the cause.
    last: &'static str,
    pool: Option<SharedPool>,
    /// Held of what was received.
    views: Vec<View>,
    chains: Vec<Chain>,
    /// Of a datagram socket: what the peer is called.
    peer: Option<SocketAddr>,
    /// Only this end's; a step has another hand on it.
    pub socket: Arc<Socket>,
}

type Check<T = ()> = Result<T, String>;

/// Bytes and records that were verified, and what came along.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Tally {
    /// Connections that lived to their planned end.
    pub ended: u64,
    /// Of these, over shared memory in both directions: streams, records, records in parts, datagrams.
    pub shared: [u64; 4],
    /// Connections that a kill cut short.
    pub cut: u64,
    /// Bytes received and verified.
    pub bytes: u64,
    /// Records received and verified.
    pub records: u64,
    /// Descriptors received and verified.
    pub descriptors: u64,
    /// Pages sent by reference, alone or as chains.
    pub pages: u64,
    /// Pools of which pages were with a peer that died: all came home.
    pub homes: u64,
    /// Times that nothing happened on a connection for long, and the peer was asked why.
    pub asked: u64,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: &Tally) {
        self.ended += other.ended;
        for (mine, theirs) in self.shared.iter_mut().zip(other.shared) {
            *mine += theirs;
        }
        self.cut += other.cut;
        self.bytes += other.bytes;
        self.records += other.records;
        self.descriptors += other.descriptors;
        self.pages += other.pages;
        self.homes += other.homes;
        self.asked += other.asked;
    }
}

/// Most a single call moves.
const MOST: usize = 40_000;
/// Views, and chains, that are held at a time.
const HELD: usize = 8;
/// Pages of a pool.
const PAGES: usize = 4;
/// Sends, a second apart, of which one has to tell that a datagram's peer is dead.
const PROBES: u32 = 10;

impl Party {
    /// Of a connected socket, which must be non-blocking.
    pub fn new(socket: Socket, peer: Option<SocketAddr>, plan: Plan, side: Side) -> Party {
        Party {
            pool: plan.lends(side).then(|| SharedPool::new(4096, PAGES).ok()).flatten(),
            plan,
            side,
            sent: 0,
            received: 0,
            sent_of: 0,
            received_of: 0,
            writable: true,
            readable: true,
            sending: true,
            receiving: true,
            closed: false,
            was_reset: false,
            was_shared: false,
            probing: false,
            probes: 0,
            tokens_sent: 0,
            tokens_seen: 0,
            last: "nothing",
            views: Vec::new(),
            chains: Vec::new(),
            peer,
            socket: Arc::new(socket),
        }
    }

    /// Whether there is something to do now.
    pub fn is_active(&self) -> bool {
        self.is_over() || self.probing || (self.sending && self.writable) || (self.receiving && self.readable)
    }

    /// Whether its life is over.
    pub fn is_over(&self) -> bool {
        self.closed || (!self.sending && !self.receiving)
    }

    /// Whether both directions ran over shared memory at some time. (A datagram socket goes back to the kernel once its peer
    /// is gone.)
    pub fn was_shared(&self) -> bool {
        self.was_shared
    }

    fn is_gram(&self) -> bool {
        self.plan.kind == Kind::Grams
    }

    /// Whether it only receives, and from a datagram's peer, whose death is told to who sends alone.
    pub fn hears_of_no_death(&self) -> bool {
        self.is_gram() && !self.sending && !self.is_active()
    }

    /// The peer of a datagram socket is dead: the next step asks for it.
    ///
    /// # Errors
    ///
    /// Where that has been asked for too often.
    pub fn probe_soon(&mut self) -> Check {
        self.probes += 1;
        self.probing = true;
        match self.probes > PROBES {
            true => Err(format!("no send tells that the peer is dead; {}", self.report())),
            false => Ok(()),
        }
    }

    /// Whether pages are with the peer, or were when that was looked at last.
    pub fn has_lent(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.lent() > 0)
    }

    /// The peer's process has ended, and with it what it had borrowed. Whether there was a pool.
    ///
    /// # Errors
    ///
    /// Where a page is not home.
    pub fn pages_are_home(&self) -> Check<bool> {
        let Some(pool) = &self.pool else { return Ok(false) };
        let left = |what: &str| format!("{what}: pages are with a dead peer; {}", self.tell());
        pool.reclaim().map_err(|e| left(&e.to_string()))?;
        pool.reclaim_if_gone();
        let loans: Vec<_> = (0..PAGES).map(|_| pool.loan(1)).collect();
        match loans.iter().all(Result::is_ok) && pool.lent() == 0 {
            true => Ok(true),
            false => Err(left(&format!("{} are lent", pool.lent()))),
        }
    }

    /// What it is in the middle of, and what there is to be read of its socket without changing it: what poll and the
    /// kernel's queue say, both rings' positions, doorbells, fillers and what is owed; and how long the thread that serves
    /// it has run, and waited for a CPU.
    pub fn tell(&self) -> String {
        let (total, theirs) = (self.plan.total(self.side), self.plan.total(self.side.other()));
        let asks = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
        let mut polled = [PollFd::new(&self.socket, asks)];
        let _ = rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let flags = polled[0].revents();
        let queued = rustix::io::ioctl_fionread(&self.socket);
        let ran = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let (state, stats) = (format!("{:?}", self.socket), self.socket.stats());
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
        let receive = self.socket.recv_with_flags(&mut [0; 64], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        let send = self.socket.reserve_with_flags(1, SendFlags::DONTWAIT);
        let send = send.map(|room| room.map(|slot| slot.len()));
        format!("{before}; a look for bytes now gives {receive:?}, one for room {send:?}")
    }

    fn tell_short(&self, total: u64, theirs: u64) -> String {
        format!(
            "connection {:#x}, {:?}, {:?} ({:?}, the peer {:?}): sent {} of {total} and {} bytes, received {} of {theirs} and {}, \
             shared memory: {}, sending {} writable {}, receiving {} readable {}, reset {}, probed {}, views {}, chains {}, \
             the last receive: {}, descriptors {}, lends: {}, lent to: {}",
            self.plan.id,
            self.plan.kind,
            self.side,
            self.plan.ending(self.side),
            self.plan.ending(self.side.other()),
            self.sent,
            self.sent_of,
            self.received,
            self.received_of,
            self.socket.path().is_shared_memory(),
            self.sending,
            self.writable,
            self.receiving,
            self.readable,
            self.was_reset,
            self.probes,
            self.views.len(),
            self.chains.len(),
            self.last,
            self.tokens_seen,
            self.plan.lends(self.side),
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
            let n = dice.roll() as usize % (self.chains.len() + 1);
            self.chains.drain(..n);
        }
        self.was_shared |= self.socket.path().is_shared_memory();
        let send = self.sending && self.writable && (dice.one_in(2) || !(self.receiving && self.readable));
        let answer = if self.probing {
            self.probe()
        } else if send {
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
                    self.chains.clear();
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
            // Once: from then on there is no peer, and what it had sent is lost (net/unix/af_unix.c: unix_dgram_sendmsg).
            Stop::Cannot(true, e)
                if self.is_gram()
                    && e.raw_os_error() == Errno::CONNREFUSED.raw_os_error()
                    && (leaves || gone()) =>
            {
                (self.sending, self.receiving) = (false, false);
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

    /// Asks the kernel for a datagram's dead peer.
    fn probe(&mut self) -> Result<(), Stop> {
        self.probing = false;
        // (It may have room still: that it is gone is looked at now and then.)
        match self.socket.send_with_flags(&[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(()),
            Err(e) if e.would_block() => Ok(()),
            // Its own end is shut down: a send says that first, and nobody is there to be heard of.
            Err(e) if e.raw_os_error() == Errno::PIPE.raw_os_error() && !self.sending => {
                self.receiving = false;
                Ok(())
            }
            Err(e) => Err(Stop::Cannot(true, e)),
        }
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
