//! What is asked of the kernel, and what it says.
//!
//! All requests are made by one thread, so that the kernel stacks notifications (they have to be of one ring and one task) and nobody's
//! exit cancels them.

use crate::buffers::Buffers;
use crate::config::{Config, Counters, Send};
use crate::event::{End, Event, Usage};
use crate::message::{MAX_PARTS, Message};
use crate::refused::{Refused, errno};
use crate::table::{Key, NOBODY, Request, Sending, Table, WAKE, Work};
use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode};
use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::{PagePool, Region};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The group of pages for what is received.
const GROUP: u16 = 0;

/// IORING_RECVSEND_FIXED_BUF and IORING_SEND_ZC_REPORT_USAGE (include/uapi/linux/io_uring.h).
const FIXED_BUF: u16 = 1 << 2;
const REPORT_USAGE: u16 = 1 << 3;
/// IORING_NOTIF_USAGE_ZC_COPIED, the top bit of a notification's result.
const ZC_COPIED: i32 = i32::MIN;

/// How long a wait goes on at most where the kernel takes no requests.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a ring that is dropped waits for the kernel to give back what it has.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends without a copy of one socket whose notifications have not come.
#[derive(Default)]
struct Stacked {
    outstanding: u32,
    /// There was more than one at a time since there was none: the kernel may have stacked them.
    mixed: bool,
}

/// An io_uring, used by the thread that made it.
pub struct Ring {
    // Dropped first: the kernel lets go of everything before the table frees it (see `drop`).
    uring: ManuallyDrop<IoUring>,
    table: ManuallyDrop<Table>,
    buffers: ManuallyDrop<Buffers>,
    pages: PagePool,
    /// What is registered, held as long as the ring is.
    region: Option<Region>,
    /// Pages of the region can be sent from as such.
    fixed: bool,
    stacked: HashMap<u64, Stacked>,
    events: VecDeque<Event>,
    /// Requests that found the queue full, in order: it is handed over before they are in it. What each points at stays valid until its last completion.
    late: VecDeque<Entry>,
    wake: Arc<dyn AsFd + std::marker::Send + Sync>,
    watched: bool,
    woken: bool,
    /// Pages that nobody has, beside those that wait for what is received; as of the last look.
    spare: u32,
    scarce: bool,
    counters: Counters,
}

impl Ring {
    /// A ring that wakes whenever `wake` becomes readable.
    ///
    /// # Errors
    ///
    /// [`Refused`], which says what to do.
    pub fn new(config: Config, wake: Arc<dyn AsFd + std::marker::Send + Sync>) -> Result<Ring, Refused> {
        let uring = setup(config.entries).map_err(Refused::Setup)?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe).map_err(|error| Refused::Setup(errno(&error)))?;
        if !probe.is_supported(opcode::SendMsgZc::CODE) {
            return Err(Refused::Lacks("sends without a copy (IORING_OP_SENDMSG_ZC)", "6.1"));
        }
        let buffers = Buffers::new(config.buffers).map_err(Refused::Buffers)?;
        // SAFETY: the address is that of a mapping with room for so many entries, which outlives the ring: `drop` frees it behind it, or never.
        let given = unsafe {
            uring.submitter().register_buf_ring_with_flags(buffers.address(), buffers.count(), GROUP, 0)
        };
        given.map_err(|error| Refused::Buffers(errno(&error)))?;
        let fixed = config.region.as_ref().is_some_and(|region| {
            let all = libc::iovec { iov_base: region.base().as_ptr().cast(), iov_len: region.len() };
            // SAFETY: the memory stays mapped as long as the region does, which the ring keeps. The kernel reads from it what sends name,
            // and these own the pages that they name.
            unsafe { uring.submitter().register_buffers(&[all]) }.is_ok()
        });
        let mut ring = Ring {
            uring: ManuallyDrop::new(uring),
            table: ManuallyDrop::new(Table::default()),
            buffers: ManuallyDrop::new(buffers),
            pages: config.pages,
            region: config.region,
            fixed,
            stacked: HashMap::new(),
            events: VecDeque::new(),
            late: VecDeque::new(),
            wake,
            watched: false,
            woken: false,
            spare: 0,
            scarce: false,
            counters: Counters::default(),
        };
        ring.refill();
        if ring.buffers.waiting() == 0 {
            return Err(Refused::NoMemory);
        }
        Ok(ring)
    }

    /// Whether pages of the region are registered: not where the memory that may be locked is less (RLIMIT_MEMLOCK).
    pub fn is_registered(&self) -> bool {
        self.fixed
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether pages wait for what is received. (It takes what has come home meanwhile.)
    pub fn has_pages(&mut self) -> bool {
        self.refill();
        self.buffers.waiting() > 0
    }

    /// Bytes of pages that nobody has, beside those that wait for what is received; as of the last look.
    pub fn spare(&self) -> u64 {
        u64::from(self.spare) * u64::from(self.pages.page_len())
    }

    /// Whether there are so few pages that what has asked to receive takes the last of them: since no more than half of those that are to wait
    /// were free, and until all are.
    pub fn is_scarce(&self) -> bool {
        self.scarce
    }

    /// Sends `data`, or the first 64 parts of it. An [`Event::Sent`] says how much, and where that had `more`, an [`Event::Notified`]
    /// when its pages are free. `data` is held until then; where the kernel takes nothing of it, the last of the two gives it back.
    ///
    /// # Errors
    ///
    /// EFAULT where the CPU cannot read it, a device's memory: it is dropped then.
    pub fn send(
        &mut self,
        fd: &Arc<OwnedFd>,
        token: u64,
        data: Segment<Chain>,
        how: Send,
    ) -> Result<(), Errno> {
        let message =
            Message::new(data.payload(), how.to.map(SocketAddrAny::from), how.control).ok_or(Errno::FAULT)?;
        let parts = || data.payload().fragments().take(MAX_PARTS);
        let ours = |region: &Region| parts().all(|part| region.offset_of(part.page()).is_some());
        let fixed = self.fixed && how.zero_copy && self.region.as_ref().is_some_and(ours);
        let mut sending =
            Box::new(Sending { data, message, zero_copy: how.zero_copy, fixed, taken: 0, failed: false });
        // What the box holds stays where it is, however the box itself is moved.
        let header = sending.message.header();
        let mut flags = libc::MSG_NOSIGNAL;
        flags |= if how.more { libc::MSG_MORE } else { 0 };
        flags |= if how.whole { libc::MSG_WAITALL } else { 0 };
        flags |= if how.dont_wait { libc::MSG_DONTWAIT } else { 0 };
        let raw = Fd(fd.as_raw_fd());
        let entry = if how.zero_copy {
            let stacked = self.stacked.entry(token).or_default();
            stacked.outstanding += 1;
            stacked.mixed |= stacked.outstanding > 1;
            let modes = REPORT_USAGE | if fixed { FIXED_BUF } else { 0 };
            opcode::SendMsgZc::new(raw, header).flags(flags as u32).ioprio(modes).build()
        } else {
            opcode::SendMsg::new(raw, header).flags(flags as u32).build()
        };
        let work = Work::Send(sending);
        self.begin(Request { token, _fd: Arc::clone(fd), work }, entry);
        Ok(())
    }

    /// Receives into pages of the ring's, again and again, until an [`Event::Ended`] comes.
    pub fn receive(&mut self, fd: &Arc<OwnedFd>, token: u64) -> Key {
        let entry = opcode::RecvMulti::new(Fd(fd.as_raw_fd()), GROUP).build();
        self.begin(Request { token, _fd: Arc::clone(fd), work: Work::Receive }, entry)
    }

    /// Tells once when there is something to be received, by an [`Event::Readable`].
    pub fn readable(&mut self, fd: &Arc<OwnedFd>, token: u64) -> Key {
        self.poll(fd, token, libc::POLLIN | libc::POLLRDHUP, Work::Readable)
    }

    /// Tells once when there is room to send, by an [`Event::Writable`].
    pub fn writable(&mut self, fd: &Arc<OwnedFd>, token: u64) -> Key {
        self.poll(fd, token, libc::POLLOUT, Work::Writable)
    }

    /// Tells when the socket has an error, or both of its directions are over, by an [`Event::HungUp`], again and again until one says that it was the last.
    pub fn hung_up(&mut self, fd: &Arc<OwnedFd>, token: u64) -> Key {
        let entry = hung_up(fd);
        self.begin(Request { token, _fd: Arc::clone(fd), work: Work::HungUp }, entry)
    }

    fn poll(&mut self, fd: &Arc<OwnedFd>, token: u64, what: i16, work: Work) -> Key {
        let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), what as u32).build();
        self.begin(Request { token, _fd: Arc::clone(fd), work }, entry)
    }

    /// Accepts one connection.
    pub fn accept(&mut self, fd: &Arc<OwnedFd>, token: u64) -> Key {
        let (none, raw) = (std::ptr::null_mut(), Fd(fd.as_raw_fd()));
        let entry = opcode::Accept::new(raw, none, none.cast()).flags(libc::SOCK_CLOEXEC).build();
        self.begin(Request { token, _fd: Arc::clone(fd), work: Work::Accept }, entry)
    }

    /// Connects to `address`.
    pub fn connect(&mut self, fd: &Arc<OwnedFd>, token: u64, address: SocketAddr) -> Key {
        let address = Box::new(SocketAddrAny::from(address));
        // The box stays where it is, and lives as long as the request.
        let (at, len) = (address.as_ptr(), address.addr_len());
        let entry = opcode::Connect::new(Fd(fd.as_raw_fd()), at.cast(), len).build();
        self.begin(Request { token, _fd: Arc::clone(fd), work: Work::Connect(address) }, entry)
    }

    /// Asks for a request to end before its time; its last event comes all the same.
    pub fn cancel(&mut self, key: Key) {
        let entry = opcode::AsyncCancel::new(key.0).build().user_data(NOBODY);
        // SAFETY: it refers to no memory.
        unsafe { self.push(&entry) };
    }

    /// What has happened, one after the other; none: [`Ring::wait`] for more.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Hands over what was asked for, and waits up to `limit` for something to happen. Returns whether the descriptor was readable that
    /// wakes it: whoever has it reads it then.
    ///
    /// # Errors
    ///
    /// What io_uring_enter(2) says; EINTR and EBUSY are not errors.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        if !self.watched {
            self.watched = true;
            let raw = Fd((*self.wake).as_fd().as_raw_fd());
            let entry = opcode::PollAdd::new(raw, libc::POLLIN as u32).multi(true).build().user_data(WAKE);
            // SAFETY: it refers to no memory.
            unsafe { self.push(&entry) };
        }
        self.enter(limit)?;
        self.reap();
        Ok(std::mem::take(&mut self.woken))
    }

    fn enter(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.counters.enters += 1;
        // Each turn hands over all that is in the queue, or is the last one.
        while !self.hand_in() {
            if passed(self.uring.submit())?.is_none_or(|taken| taken == 0) {
                // The kernel takes nothing before completions have been looked at, or memory is free: whoever waits has a look, and comes again. No
                // event tells when memory is free.
                if self.uring.completion().is_empty() {
                    std::thread::sleep(limit.map_or(PAUSE, |limit| limit.min(PAUSE)));
                }
                return Ok(());
            }
        }
        passed(match limit {
            None => self.uring.submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        })
        .map(drop)
    }

    /// Puts what was late into the queue, as far as there is room. Whether all of it is there.
    fn hand_in(&mut self) -> bool {
        while let Some(entry) = self.late.front() {
            // SAFETY: what it points at stays valid until its last completion, as who made it has said (`push`).
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                return false;
            }
            self.late.pop_front();
        }
        true
    }

    fn begin(&mut self, request: Request, entry: Entry) -> Key {
        let key = self.table.insert(request);
        // SAFETY: what the entry points at lies in boxes and pages that the request owns (see `Message::header`, `Message::new`). The table
        // keeps it until the completion has come that is the kernel's last word on it (`reap`), or for ever (`drop`).
        unsafe { self.push(&entry.user_data(key.0)) };
        key
    }

    /// Makes a request, which the next wait hands over at the latest. It asks the kernel once at most: what that does not take is late, and what is wrong with
    /// the ring the next wait says.
    ///
    /// # Safety
    ///
    /// What the entry points at stays valid until its last completion.
    unsafe fn push(&mut self, entry: &Entry) {
        self.counters.requests += 1;
        // SAFETY: the caller's.
        if self.late.is_empty() && unsafe { self.uring.submission().push(entry) }.is_ok() {
            return;
        }
        self.late.push_back(entry.clone());
        // Full: the kernel takes what is there. (It takes none while completions wait for room: EBUSY.)
        if self.uring.submit().is_ok() {
            self.hand_in();
        }
    }

    /// Takes all completions.
    fn reap(&mut self) {
        loop {
            let Some(entry) = self.uring.completion().next() else { break };
            self.counters.completions += 1;
            let (data, result, flags) = (entry.user_data(), entry.result(), entry.flags());
            match data {
                NOBODY => {}
                WAKE => {
                    self.woken = true;
                    self.watched &= cqueue::more(flags);
                }
                key => self.complete(Key(key), result, flags),
            }
        }
        self.refill();
    }

    fn complete(&mut self, key: Key, result: i32, flags: u32) {
        let more = cqueue::more(flags);
        let Some(request) = self.table.get(key) else { return };
        if cqueue::notif(flags) {
            // Its result is no errno, but what became of the bytes.
            return self.notified(key, result);
        }
        let token = request.token;
        let outcome = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        match &mut request.work {
            Work::Send(sending) => {
                (sending.taken, sending.failed) = (outcome.unwrap_or(0), outcome.is_err());
                let (zero_copy, fixed) = (sending.zero_copy, sending.fixed);
                let mut outcome = outcome;
                if fixed && result == -libc::EINVAL {
                    // Linux before 6.15 takes no gathered sends from registered pages; the caller sends again.
                    self.fixed = false;
                    outcome = Err(Errno::AGAIN);
                }
                let mut back = None;
                if zero_copy && more {
                    self.counters.zero_copy += 1;
                    self.counters.registered += u64::from(fixed);
                } else if let Some(Request { work: Work::Send(sending), .. }) = self.table.remove(key) {
                    if zero_copy {
                        self.unstack(token);
                    }
                    // What was taken was copied. Of the rest whoever sends it again says what became of it.
                    match sending.failed {
                        true => back = Some(sending.data),
                        false => sending.data.free(Fate::Copied),
                    }
                }
                self.events.push_back(Event::Sent { token, result: outcome, more, back });
            }
            Work::Receive => self.received(key, token, outcome, flags),
            Work::Accept => {
                self.table.remove(key);
                // SAFETY: the kernel has just made the descriptor for this request; nobody else knows of it.
                let result = outcome.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) });
                self.events.push_back(Event::Accepted { token, result });
            }
            Work::Readable => {
                self.table.remove(key);
                self.events.push_back(Event::Readable { token });
            }
            Work::Writable => {
                self.table.remove(key);
                self.events.push_back(Event::Writable { token });
            }
            Work::HungUp => {
                let over = (libc::POLLERR | libc::POLLHUP) as usize;
                let told = outcome.map(|what| what & over != 0);
                if !more && told == Ok(false) {
                    // There was no room for its completion (io_poll_check_events()): it is asked again, by the same key.
                    let entry = hung_up(&request._fd).user_data(key.0);
                    // SAFETY: it refers to no memory.
                    return unsafe { self.push(&entry) };
                }
                if !more {
                    self.table.remove(key);
                }
                if !more || told == Ok(true) {
                    self.events.push_back(Event::HungUp { token, more });
                }
            }
            Work::Connect(_) => {
                self.table.remove(key);
                self.events.push_back(Event::Connected { token, result: outcome.map(drop) });
            }
            // Of other rings (`zcrx`).
            Work::Place { .. } => drop(self.table.remove(key)),
        }
    }

    /// The second step of a send.
    fn notified(&mut self, key: Key, result: i32) {
        let Some(Request { token, work: Work::Send(sending), .. }) = self.table.remove(key) else { return };
        let mixed = self.unstack(token);
        let usage = match (result & ZC_COPIED != 0, mixed) {
            (false, _) => Usage::Referenced,
            (true, false) => Usage::Copied,
            (true, true) => Usage::Unknown,
        };
        self.counters.notifications += 1;
        self.counters.copied += u64::from(usage == Usage::Copied);
        self.counters.unknown += u64::from(usage == Usage::Unknown);
        let fate = match usage {
            Usage::Referenced => Fate::Sent,
            Usage::Copied => Fate::Copied,
            Usage::Unknown => Fate::Unknown,
        };
        let bytes = sending.taken;
        let back = match sending.failed {
            true => Some(sending.data),
            false => {
                sending.data.free(fate);
                None
            }
        };
        self.events.push_back(Event::Notified { token, bytes, usage, back });
    }

    /// A send without a copy is over; returns whether the kernel may have stacked it.
    fn unstack(&mut self, token: u64) -> bool {
        let Some(stacked) = self.stacked.get_mut(&token) else { return false };
        let mixed = stacked.mixed;
        stacked.outstanding -= 1;
        if stacked.outstanding == 0 {
            self.stacked.remove(&token);
        }
        mixed
    }

    fn received(&mut self, key: Key, token: u64, outcome: Result<usize, Errno>, flags: u32) {
        let page = cqueue::buffer_select(flags).and_then(|id| self.buffers.take(id));
        let end = match (outcome, page) {
            (Ok(0), _) => Some(End::Stream),
            (Ok(n), Some(page)) => {
                // The kernel wrote so many bytes of it.
                let data = Fragment::new(page, 0, n).unwrap_or_else(|error| unreachable!("{error}"));
                self.events.push_back(Event::Received { token, data });
                (!cqueue::more(flags)).then_some(End::Again)
            }
            (Ok(_), None) => Some(End::Failed(Errno::IO)),
            (Err(Errno::NOBUFS), _) => {
                self.counters.no_page += 1;
                Some(End::NoPage)
            }
            (Err(Errno::CANCELED), _) => Some(End::Cancelled),
            (Err(Errno::INTR | Errno::AGAIN), _) => Some(End::Again),
            (Err(errno), _) => Some(End::Failed(errno)),
        };
        let Some(end) = end else { return };
        if !cqueue::more(flags) {
            self.table.remove(key);
        }
        self.events.push_back(Event::Ended { token, end });
    }

    /// Gives the kernel as many pages as it takes and there are.
    fn refill(&mut self) {
        while self.buffers.room() > 0
            && let Ok(page) = self.pages.alloc()
        {
            self.buffers.offer(page);
        }
        let stats = self.pages.stats();
        let home = u64::from(self.pages.limit()) + stats.in_cache + stats.in_ring;
        // (The figures may be some steps apart.)
        self.spare = home.saturating_sub(stats.in_flight) as u32;
        let (count, free) = (u32::from(self.buffers.count()), self.spare + self.buffers.waiting() as u32);
        self.scarce = free <= count / 2 || (self.scarce && free < count);
    }
}

impl Drop for Ring {
    /// Cancels what is under way, and waits for it: the kernel has what it was lent until its last word. Where that does not come, table and
    /// pages stay in memory for ever: whoever got them next would share them with the kernel.
    fn drop(&mut self) {
        let all = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(NOBODY);
        // SAFETY: it refers to no memory.
        unsafe { self.push(&all) };
        let began = Instant::now();
        while !self.table.is_empty() && began.elapsed() < PATIENCE {
            if self.enter(Some(Duration::from_millis(50))).is_err() {
                break;
            }
            self.reap();
            self.events.clear();
        }
        let over = self.table.is_empty();
        // No request is under way that receives, so the kernel takes no more pages.
        let taken_back = self.uring.submitter().unregister_buf_ring(GROUP).is_ok();
        // SAFETY: each is dropped once, here, and used no more: this is the ring's drop. The ring goes first. What the kernel may still use
        // is not freed.
        unsafe {
            ManuallyDrop::drop(&mut self.uring);
            if over {
                ManuallyDrop::drop(&mut self.table);
            }
            if over && taken_back {
                ManuallyDrop::drop(&mut self.buffers);
            }
        }
    }
}

/// What a call took, but none where the reason why it took nothing passes.
fn passed(entered: io::Result<usize>) -> io::Result<Option<usize>> {
    match entered {
        Ok(taken) => Ok(Some(taken)),
        Err(error) => match errno(&error) {
            Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN => Ok(None),
            _ => Err(error),
        },
    }
}

/// Both an error and a hang-up are told of unasked, and so is the peer's end (IO_POLL_UNMASK), which may be there already: so it goes by edges, behind that one.
fn hung_up(fd: &OwnedFd) -> Entry {
    opcode::PollAdd::new(Fd(fd.as_raw_fd()), 0).multi(true).build()
}

/// With the modes that cost least, or those that there are: one thread makes all requests, and completions wait until it looks.
fn setup(entries: u32) -> Result<IoUring, Errno> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_cqsize(entries * 8).setup_single_issuer().setup_defer_taskrun();
    match builder.build(entries) {
        Err(error) if errno(&error) == Errno::INVAL => {
            let plain = IoUring::builder().dontfork().setup_cqsize(entries * 8).build(entries);
            plain.map_err(|error| errno(&error))
        }
        made => made.map_err(|error| errno(&error)),
    }
}

#[cfg(test)]
mod tests;
