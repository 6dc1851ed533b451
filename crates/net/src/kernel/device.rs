//! Device memory under the kernel's TCP, without a card that takes part: what a connection receives is put into bound memory by the receive's own
//! copy, and by nothing else.
//!
//! The kernel has taken the headers off, and knows whose the bytes are. So nothing has to be split or foreseen: a read of the socket into pages
//! that are registered and that nothing maps (IORING_OP_READV_FIXED), made by the program's thread when it receives. The ring's thread does not
//! receive for such connections; it only tells whoever polls that there is something.

use super::connection::{Connection, Goes, Inner, NO_PAGE};
use super::socket::{Attempt, Stream};
use super::source::Source;
use super::wait::{Patience, explained, here};
use crate::carrier::tcp::{self, Endpoint, Options, Taking};
use crate::carrier::{Event, Frag, Frags, Tokens, Way};
use crate::error::{too_small, unreadable};
use crate::view::View;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Fragment};
use onecopy_link::rx::{BadQueue, Queues};
use onecopy_link::{Medium, Registered};
use onecopy_pool::{DeviceMemory, Part};
use onecopy_socket::{Error, Op, RecvFlags, Result};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};
use onecopy_uring::MOST_PLACES;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that one read takes.
const MOST: usize = 1 << 20;
/// How long a read waits for the socket at a time. Another thread may have found that the memory is unbound, and then the ring takes what comes:
/// the socket says nothing of that.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Events that nobody has asked for.
const EVENTS: usize = 64;

/// Devices' memory that is bound. Queues are as a stack of the program's own has them: connections come to what is bound to one by the rules for their
/// address.
pub(crate) struct Devices {
    state: Mutex<State>,
    gathered: AtomicU64,
}

struct State {
    queues: Queues,
    bound: Vec<Arc<Landing>>,
    sources: Vec<Arc<Source>>,
    last: u32,
}

/// Memory that is bound.
pub(crate) struct Landing {
    id: u32,
    memory: DeviceMemory,
    queues: Vec<u32>,
    /// None once it is unbound. Held while the kernel copies.
    pages: Mutex<Option<Registered>>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    starved: bool,
    events: VecDeque<Event>,
}

/// Why nothing was read.
enum NotRead {
    /// It is bound no more.
    Unbound,
    /// None of its pages is free.
    Starved,
    Errno(Errno),
}

impl Devices {
    pub fn new() -> Devices {
        let queues = Queues::new(Medium::Ip);
        let state = State { queues, bound: Vec::new(), sources: Vec::new(), last: 0 };
        Devices { state: Mutex::new(state), gathered: AtomicU64::new(0) }
    }

    /// Looks at the queues, or changes them.
    pub fn queues<R>(&self, act: impl FnOnce(&mut Queues) -> R) -> R {
        act(&mut self.state.lock().queues)
    }

    /// Binds memory that is registered, to be received into; the binding's number.
    pub fn bind(&self, registered: Registered, queues: &[u32]) -> std::result::Result<u32, BadQueue> {
        let memory = registered.memory().clone();
        let mut state = self.state.lock();
        state.queues.bind(&memory, queues)?;
        state.last += 1;
        let (id, queues) = (state.last, queues.to_vec());
        let (pages, told) = (Mutex::new(Some(registered)), Mutex::default());
        state.bound.push(Arc::new(Landing { id, memory, queues, pages, told }));
        Ok(id)
    }

    /// What comes from now on to its connections lies in the host's memory.
    pub fn unbind(&self, id: u32) {
        let gone = {
            let mut state = self.state.lock();
            let Some(at) = state.bound.iter().position(|bound| bound.id == id) else { return };
            let landing = state.bound.remove(at);
            state.queues.unbind(&landing.queues);
            landing
        };
        // Behind a read that is under way.
        let pages = gone.pages.lock().take();
        drop(pages);
    }

    /// Binds memory that is registered, to be sent from; the binding's number.
    pub fn bind_tx(&self, registered: Registered) -> u32 {
        let mut state = self.state.lock();
        state.sources.push(Arc::new(Source::new(registered)));
        state.last += 1;
        state.last
    }

    /// Nothing more is sent from it. What is under way has it until then.
    pub fn unbind_tx(&self, memory: u64) {
        let gone = {
            let sources = &mut self.state.lock().sources;
            let at = sources.iter().position(|source| source.memory() == memory);
            at.map(|at| sources.remove(at))
        };
        drop(gone);
    }

    pub(super) fn source(&self, memory: u64) -> Option<Arc<Source>> {
        self.state.lock().sources.iter().find(|source| source.memory() == memory).cloned()
    }

    /// So many bytes were sent from where they lay.
    pub(super) fn count_gathered(&self, n: usize) {
        self.gathered.fetch_add(n as u64, Relaxed);
    }

    pub(super) fn gathered(&self) -> u64 {
        self.gathered.load(Relaxed)
    }

    /// What has happened to a binding.
    pub fn event(&self, id: u32) -> Option<Event> {
        let landing = self.state.lock().bound.iter().find(|bound| bound.id == id).cloned()?;
        landing.told.lock().events.pop_front()
    }

    /// Where a connection of `local` receives: the memory, and its queue.
    pub(super) fn landing(&self, local: SocketAddr) -> Option<(Arc<Landing>, u32)> {
        let state = self.state.lock();
        let (queue, _) = state.queues.ruled(local)?;
        let bound = state.bound.iter().find(|bound| bound.queues.contains(&queue))?;
        Some((Arc::clone(bound), queue))
    }

    /// Whether any memory is bound.
    pub(super) fn is_used(&self) -> bool {
        !self.state.lock().bound.is_empty()
    }
}

impl Landing {
    /// Without a wait for who reads, who shows that it is.
    pub(super) fn is_bound(&self) -> bool {
        self.pages.try_lock().is_none_or(|pages| pages.is_some())
    }

    /// Reads up to `n` bytes of what a socket has into at most `most` parts.
    fn read(&self, fd: &OwnedFd, n: usize, most: usize) -> std::result::Result<Vec<Part>, NotRead> {
        let mut pages = self.pages.lock();
        let Some(registered) = &mut *pages else { return Err(NotRead::Unbound) };
        // No more than there is something for: others draw from the same memory.
        let there = rustix::io::ioctl_fionread(fd).map_or(MOST, |there| there as usize);
        let n = n.min(there.max(1).next_multiple_of(self.memory.page_len() as usize));
        let Some(mut parts) = self.draw(n, most) else {
            // The end, and nothing at all, take no page.
            return match look(fd).map_err(NotRead::Errno)? {
                0 => Ok(Vec::new()),
                _ => {
                    self.tell(true);
                    Err(NotRead::Starved)
                }
            };
        };
        self.tell(false);
        let len = loop {
            match registered.read(fd, &parts) {
                Err(Errno::INTR) => {}
                read => break read.map_err(NotRead::Errno)?,
            }
        };
        // Before anybody looks at what is free.
        self.memory.trim(&mut parts, len);
        Ok(parts)
    }

    /// Pages for up to `n` bytes, or for fewer where no more are free.
    fn draw(&self, n: usize, most: usize) -> Option<Vec<Part>> {
        let each = self.memory.page_len() as usize;
        let mut room = n.min(MOST).next_multiple_of(each);
        let mut parts = loop {
            match self.memory.alloc(room) {
                Ok(parts) => break parts,
                Err(_) if room == each => return None,
                Err(_) => room = (room / 2).next_multiple_of(each),
            }
        };
        parts.truncate(most.min(MOST_PLACES));
        self.memory.trim(&mut parts, n);
        Some(parts)
    }

    /// Tells whoever asks for events that something waits for a page, or does no more.
    fn tell(&self, starved: bool) {
        let mut told = self.told.lock();
        if told.starved != starved {
            told.starved = starved;
            let event = if starved { Event::Starved } else { Event::Fed };
            if told.events.len() < EVENTS {
                told.events.push_back(event);
            }
        }
    }

    /// Calls what takes from a socket otherwise, or looks at it, while the ring does not.
    fn while_bound<R>(
        &self,
        call: impl FnOnce() -> std::result::Result<R, Errno>,
    ) -> std::result::Result<R, NotRead> {
        let pages = self.pages.lock();
        if pages.is_none() {
            return Err(NotRead::Unbound);
        }
        call().map_err(NotRead::Errno)
    }

    fn frag(&self, part: &Part) -> Frag {
        let offset = self.memory.place(part).unwrap_or_default();
        Frag { offset, len: part.len() as u32, token: 0, binding: self.id }
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({} of {:?})", self.id, self.memory)
    }
}

/// What is next.
enum Next {
    /// The peer sends no more.
    End,
    /// Bytes that came before the memory was bound, or to none.
    Host,
    /// What the socket has belongs there.
    Device(Arc<Landing>, u32),
}

fn next(state: &Inner) -> Option<Next> {
    match &state.goes {
        _ if !state.receive.is_empty() => Some(Next::Host),
        Goes::Device(landing, queue) if state.may_be_there() => {
            Some(Next::Device(Arc::clone(landing), *queue))
        }
        _ => None,
    }
}

impl Stream {
    /// What is next; waits for something.
    fn next(&self, patience: &Patience) -> Result<Next> {
        let next = self.call(Op::Recv, patience, |state| match next(state) {
            Some(next) => Attempt::Done(Ok(next)),
            None => match state.receive_error() {
                Some(over) => Attempt::Done(over.map(|()| Next::End)),
                None => Attempt::Wait,
            },
        })?;
        if matches!(next, Next::Device(..)) {
            // In a fork's child what comes is the parent's.
            here(self.connection().shared(), Op::Recv)?;
        }
        Ok(next)
    }

    /// As [`crate::tcp::Stream::recv_frags_with_flags`].
    pub(super) fn frags(&self, n: usize, most: usize, flags: RecvFlags) -> Result<Frags> {
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        let patience = Patience::of(self.common(), Way::Read, dont_wait);
        if n == 0 {
            return Ok(Frags::of_none(0));
        }
        let (peeks, throws) = (flags.contains(RecvFlags::PEEK), flags.contains(RecvFlags::TRUNC));
        loop {
            let (landing, queue) = match self.next(&patience)? {
                Next::End => return Ok(Frags::of_none(0)),
                Next::Host if most == 0 && !throws => return Err(too_small()),
                Next::Host => return self.linear(n, peeks, throws, dont_wait),
                Next::Device(landing, queue) => (landing, queue),
            };
            if throws {
                match landing.while_bound(|| self.throw(n)) {
                    Ok(0) => self.ended(),
                    Ok(len) => {
                        self.counters().received.add(len);
                        self.was_read(len < n);
                        return Ok(Frags::of_none(len));
                    }
                    Err(why) => self.not_read(why, &patience)?,
                }
                continue;
            }
            if most == 0 || peeks {
                match landing.while_bound(|| look(&self.connection().fd)) {
                    Ok(0) => self.ended(),
                    Ok(_) if most == 0 => return Err(too_small()),
                    Ok(_) => {
                        return Err(Error::new(Op::Recv, Errno::OPNOTSUPP).about("flags").because(
                            "the kernel puts nothing into a device's memory that it keeps; receive without PEEK",
                        ));
                    }
                    Err(why) => self.not_read(why, &patience)?,
                }
                continue;
            }
            match self.landed(&landing, queue, n, most) {
                Ok(parts) if parts.is_empty() => self.ended(),
                Ok(parts) => return Ok(self.given(&landing, parts)),
                Err(why) => self.not_read(why, &patience)?,
            }
        }
    }

    /// The same as a chain, for who receives by chains. None where what is next is no device's.
    pub(super) fn device_chain(&self, n: usize, patience: &Patience) -> Result<Option<Segment<Chain>>> {
        loop {
            let Next::Device(landing, queue) = self.next(patience)? else { return Ok(None) };
            match self.landed(&landing, queue, n, usize::MAX) {
                Ok(parts) if parts.is_empty() => self.ended(),
                Ok(parts) => {
                    let mut chain = Chain::new();
                    for part in parts {
                        // (Parts of one memory fit together.)
                        let appended = chain.append(Fragment::from(part));
                        debug_assert!(appended.is_ok());
                    }
                    return Ok(Some(chain.into()));
                }
                Err(why) => self.not_read(why, patience)?,
            }
        }
    }

    /// Waits until the next bytes are the host's, or it is the end: what a receive into a buffer asks.
    ///
    /// # Errors
    ///
    /// EFAULT where they belong in a device's memory: they stay.
    pub(super) fn is_readable(&self, patience: &Patience) -> Result<()> {
        while let Next::Device(landing, _) = self.next(patience)? {
            match landing.while_bound(|| look(&self.connection().fd)) {
                Ok(0) => self.ended(),
                Ok(_) => return Err(unreadable()),
                Err(why) => self.not_read(why, patience)?,
            }
        }
        Ok(())
    }

    fn landed(
        &self,
        landing: &Landing,
        queue: u32,
        n: usize,
        most: usize,
    ) -> std::result::Result<Vec<Part>, NotRead> {
        let parts = landing.read(&self.connection().fd, n, most)?;
        let len = parts.iter().map(Part::len).sum();
        if len > 0 {
            let counters = self.counters();
            counters.received.add(len);
            // The receive's own copy, which put it there.
            counters.kernel_copied.add(len);
            self.connection().shared().devices.queues(|queues| queues.count_landed(queue, len));
            self.was_read(len < n);
        }
        Ok(parts)
    }

    /// Has whoever polls hear of what comes after a read that may have taken all there was: it gave less than was asked for, or nothing is left.
    fn was_read(&self, short: bool) {
        let connection = self.connection();
        if self.bell.get().is_some()
            && (short || rustix::io::ioctl_fionread(&*connection.fd).is_ok_and(|left| left == 0))
        {
            connection.drained();
        }
    }

    fn given(&self, landing: &Landing, parts: Vec<Part>) -> Frags {
        let tokens = self.tokens_or_new();
        self.counters().referenced.add(parts.iter().map(Part::len).sum());
        let mut frags = Vec::with_capacity(parts.len());
        let fragments = parts.into_iter().map(|part| {
            let frag = landing.frag(&part);
            (Fragment::from(part), frag)
        });
        tokens.give_out(fragments, &mut frags);
        Frags::of_device(frags, Some(Arc::clone(tokens)))
    }

    fn tokens_or_new(&self) -> &Arc<Tokens> {
        // Nobody waits for pages: they come home without a word.
        self.tokens.get_or_init(|| Arc::new(Tokens::new(|| ())))
    }

    fn linear(&self, n: usize, peeks: bool, throws: bool, dont_wait: bool) -> Result<Frags> {
        if peeks && !throws {
            let seen = tcp::Connection::peek(self, n, false, dont_wait)?;
            let seen = seen.unwrap_or_else(|| Chain::new().into());
            return Ok(Frags::of_linear(View::of(seen, self.common().weak_row())));
        }
        let how = Taking { dont_wait, before: false, device: false, least: usize::MAX };
        let data = tcp::Connection::take(self, n, how)?.unwrap_or_else(|| Chain::new().into());
        if throws {
            return Ok(Frags::of_none(data.payload().len()));
        }
        self.counters().referenced.add(data.payload().len());
        Ok(Frags::of_linear(View::of(data, self.common().weak_row())))
    }

    /// Throws away up to `n` bytes of what the socket has.
    fn throw(&self, n: usize) -> std::result::Result<usize, Errno> {
        const EACH: usize = 64 << 10;
        let mut scratch = vec![0; n.min(EACH)];
        let (how, mut thrown) = (net::RecvFlags::TRUNC | net::RecvFlags::DONTWAIT, 0);
        while thrown < n {
            let each = scratch.len().min(n - thrown);
            match net::recv(&*self.connection().fd, &mut scratch[..each], how) {
                Ok((0, _)) => break,
                Ok((len, _)) => thrown += len,
                Err(errno) if thrown == 0 => return Err(errno),
                // It says so again.
                Err(_) => break,
            }
        }
        Ok(thrown)
    }

    /// The peer sends no more.
    fn ended(&self) {
        let connection = self.connection();
        let mut state = connection.lock();
        state.has_ended();
        connection.show(&state);
        connection.waiters().tell();
    }

    /// Waits for what it takes to try again.
    fn not_read(&self, why: NotRead, patience: &Patience) -> Result<()> {
        let connection: &Connection = self.connection();
        let wait = |errno| Error::new(Op::Recv, errno);
        match why {
            NotRead::Unbound => {
                {
                    let mut state = connection.lock();
                    // Another thread may have seen it before.
                    if matches!(state.goes, Goes::Device(..)) {
                        connection.is_unbound(&mut state);
                    }
                }
                connection.poke();
                Ok(())
            }
            NotRead::Starved if patience.none => {
                Err(wait(Errno::NOBUFS).because("no page of the device's memory is free; give tokens back"))
            }
            // They come home without a word.
            NotRead::Starved => {
                patience.wait(connection.lock(), connection.waiters(), Some(NO_PAGE)).map_err(wait)
            }
            NotRead::Errno(Errno::AGAIN) => {
                // Whoever polls hears of more.
                connection.drained();
                let mut state = connection.lock();
                if !state.is_receiving() {
                    // It is over since, or was before: what had come by then is taken first.
                    state.emptied = look(&connection.fd) == Err(Errno::AGAIN);
                    return Ok(());
                }
                drop(state);
                let what = PollFlags::IN | PollFlags::RDHUP;
                patience.wait_for(&connection.fd, what, LOOK_AGAIN).map_err(wait)
            }
            NotRead::Errno(Errno::INTR) => Ok(()),
            // Not of the socket, but of the read itself, which took nothing.
            NotRead::Errno(
                errno @ (Errno::NOMEM
                | Errno::NOBUFS
                | Errno::FAULT
                | Errno::INVAL
                | Errno::IO
                | Errno::OPNOTSUPP),
            ) => Err(wait(errno).because(
                "io_uring did not read into the device's memory; unbind it, and the bytes come to the host's",
            )),
            NotRead::Errno(errno) => {
                let mut state = connection.lock();
                // The error of the socket, which the next look at it tells.
                state.fail(errno);
                state.emptied = true;
                connection.show(&state);
                connection.waiters().tell();
                Ok(())
            }
        }
    }
}

/// Whether a socket has something: 1, or 0 at the end.
fn look(fd: &OwnedFd) -> std::result::Result<usize, Errno> {
    let how = net::RecvFlags::PEEK | net::RecvFlags::DONTWAIT;
    net::recv(fd, &mut [0; 1], how).map(|(len, _)| len)
}

/// Why memory cannot be bound under the kernel's TCP.
pub(crate) fn not_bound(why: onecopy_link::NotRegistered) -> Error {
    let because = match why {
        onecopy_link::NotRegistered::NoFile => {
            "the kernel puts nothing into memory that is no file, and takes nothing from there; use memory of DeviceMemory::opaque, or a stack with a link"
        }
        _ => {
            "io_uring does not register the memory (Linux 6.15, RLIMIT_MEMLOCK, up to 1 GiB); `onecopy doctor` says what is missing"
        }
    };
    explained(Op::Bind, Errno::OPNOTSUPP).because(because)
}

#[cfg(test)]
mod tests;
