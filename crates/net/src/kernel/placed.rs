//! What a NIC has put into bound memory for one connection: the kernel tells of it by fragments with tokens (recvmsg(2) with MSG_SOCK_DEVMEM, or the ring of `zcrx`), and
//! a fragment's page is free for more when its token has gone back (SO_DEVMEM_DONTNEED, or the refill ring).
//!
//! A fragment is a page of the memory in a slot of its own. Whoever drops the last reference to it, on whatever thread, has its token put aside; many go back by one
//! call: when the program gives fragments back, before the next receive, and whenever [`MANY`] are due. Bytes that the device did not part from their
//! headers are the host's, as are all those of packets that came by another queue.

use super::landing::NotRead;
use super::nic::{BUFFER, Nic, SHORT};
use onecopy_pool::provider::LentPages;
use onecopy_pool::{OpenError, Page, Part};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicUsize;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::devmem::{self, Control, Frag, Piece, Received};
use rustix::io::{self, Errno};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Fragments that a connection's program may have: as many as the memory has pages, within these bounds.
const SLOTS: (u64, u64) = (256, 16384);
/// Tokens that are due, from which on they go back at once.
const MANY: usize = 64;
/// Pieces that one receive tells of.
const MOST_PIECES: usize = 1024;

/// include/linux/errno.h.
const ETOOSMALL: Errno = Errno::from_raw_os_error(525);

/// What is asked of the kernel.
pub(super) trait Calls: Send + Sync {
    /// As [`devmem::recv`].
    fn recv(&self, buffer: &mut [u8], most: usize, control: &mut Control) -> Result<Received, NotRead>;
    /// As [`devmem::dont_need`].
    fn give_back(&self, ranges: &[(u32, u32)]) -> io::Result<u32>;
    /// Bytes that have been received, which the socket does not tell of any more.
    fn waiting(&self) -> usize {
        0
    }
    /// Whether a receive would not wait, though the socket may not say so.
    fn is_readable(&self) -> bool {
        false
    }
    /// Whether a ring tells of fragments: then the kernel may have copied some of them, and does not say which.
    fn by_ring(&self) -> bool {
        false
    }
    /// Nobody receives any more; fragments come back yet.
    fn close(&self) {}
}

/// A socket: open as long as somebody has a fragment of it, since closing it gives all of them back (tcp_release_user_frags()).
impl Calls for Arc<OwnedFd> {
    fn recv(&self, buffer: &mut [u8], most: usize, control: &mut Control) -> Result<Received, NotRead> {
        devmem::recv(self, buffer, most, control).map_err(untold)
    }

    fn give_back(&self, ranges: &[(u32, u32)]) -> io::Result<u32> {
        devmem::dont_need(self, ranges)
    }
}

/// What a connection has received, and its program has not taken yet.
pub(super) struct Placed {
    home: Arc<Home>,
    state: Mutex<State>,
    /// Bytes that wait, for who looks without the lock: it is held while the kernel is asked. Written under it.
    len: AtomicUsize,
}

struct State {
    pages: LentPages,
    control: Control,
    /// Of pages of the host's, or of the device's memory.
    waiting: VecDeque<Part>,
    /// Bytes that were copied since it was asked last.
    copied: usize,
}

/// Where tokens go.
pub(super) struct Home {
    calls: Box<dyn Calls>,
    nic: Arc<Nic>,
    slots: Mutex<Slots>,
    /// Whose fragments they are: what a fork's child drops is its parent's still.
    pid: u32,
}

#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    /// By slot: of what lies in it.
    tokens: Vec<u32>,
    /// Of what lies in none any more.
    due: Vec<u32>,
    /// The connection is gone: nobody receives or gives fragments back, so each token goes by itself.
    closed: bool,
}

impl Home {
    /// Gives the tokens back that are due.
    pub fn flush(&self) {
        let due = std::mem::take(&mut self.slots.lock().due);
        self.give_back(due);
    }

    /// The last reference to what lay in `slot` is gone.
    fn released(&self, slot: u32) {
        let due = {
            let mut slots = self.slots.lock();
            let token = slots.tokens[slot as usize];
            slots.free.push(slot);
            slots.due.push(token);
            if slots.due.len() < MANY && !slots.closed {
                return;
            }
            std::mem::take(&mut slots.due)
        };
        self.give_back(due);
    }

    fn give_back(&self, mut tokens: Vec<u32>) {
        if tokens.is_empty() || self.pid != std::process::id() {
            return;
        }
        for batch in devmem::batches(&mut tokens) {
            let asked: u32 = batch.iter().map(|(_, count)| count).sum();
            let taken = match self.calls.give_back(&batch) {
                // Before it looked at any of them (sock_devmem_dontneed()): they are due as before.
                Err(Errno::NOMEM | Errno::NOBUFS | Errno::INTR | Errno::AGAIN) => {
                    let again = batch.iter().flat_map(|(first, count)| *first..first + count);
                    self.slots.lock().due.extend(again);
                    continue;
                }
                // What it does not take stays its own until the socket is closed.
                taken => taken.unwrap_or(0),
            };
            self.nic.counts().kept.fetch_add(asked.saturating_sub(taken).into(), Relaxed);
        }
    }
}

impl Placed {
    /// Of a connection whose calls these are, and whose bytes `nic` puts into its memory.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: there is no memory for the slots.
    pub fn new(nic: &Arc<Nic>, calls: Box<dyn Calls>) -> Result<Placed, OpenError> {
        let memory = nic.memory();
        let count = (memory.len() / u64::from(memory.page_len())).clamp(SLOTS.0, SLOTS.1) as u32;
        let (free, tokens) = ((0..count).rev().collect(), vec![0; count as usize]);
        let slots = Slots { free, tokens, ..Slots::default() };
        let home =
            Arc::new(Home { calls, nic: Arc::clone(nic), slots: Mutex::new(slots), pid: std::process::id() });
        let released = Arc::clone(&home);
        let pages = LentPages::of_device(memory, count, move |slot| released.released(slot))?;
        let state = State { pages, control: Control::default(), waiting: VecDeque::new(), copied: 0 };
        Ok(Placed { home, state: Mutex::new(state), len: AtomicUsize::new(0) })
    }

    /// Where tokens go.
    pub fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        // Relaxed: behind each change comes a look at it under the connection's lock, which orders both.
        self.len.load(Relaxed) + self.home.calls.waiting()
    }

    /// Whether a receive finds something that the socket does not tell of.
    pub fn is_readable(&self) -> bool {
        self.len.load(Relaxed) > 0 || self.home.calls.is_readable()
    }

    /// Receives, where nothing waits, up to `n` bytes in up to `most` pieces. Returns whether something waits then: else it is the end.
    ///
    /// # Errors
    ///
    /// [`NotRead`]: EPROTO where the kernel tells of what cannot be; the bytes are lost, and all of their tokens have gone back.
    pub fn fill(&self, n: usize, most: usize) -> Result<bool, NotRead> {
        // Before the kernel is asked for more.
        self.home.flush();
        let mut state = self.state.lock();
        if !state.waiting.is_empty() {
            return Ok(true);
        }
        let room = self.home.slots.lock().free.len().min(most).min(MOST_PIECES);
        if room == 0 {
            return Err(NotRead::Held);
        }
        let mut page = self.home.nic.buffer().ok_or(NotRead::Starved)?;
        let Some(buffer) = page.bytes_mut() else { return Err(NotRead::Starved) };
        let n = n.min(BUFFER);
        let received = self.home.calls.recv(&mut buffer[..n], room, &mut state.control)?;
        if received.bytes == 0 {
            return Ok(false);
        }
        let sorted = match received.is_whole(n) {
            true => self.sort(&mut state, page, &received),
            false => {
                self.home.slots.lock().due.extend(received.pieces.iter().filter_map(token));
                None
            }
        };
        let Some(sorted) = sorted else {
            self.home.flush();
            return Err(NotRead::Errno(Errno::PROTO));
        };
        self.len.store(received.bytes, Relaxed);
        state.waiting = sorted;
        Ok(true)
    }

    /// A page with the first `len` bytes of a buffer: few are copied, or whoever keeps them would keep a buffer.
    fn shortened(&self, state: &mut State, buffer: Page, len: usize) -> Page {
        let bytes = buffer.bytes().and_then(|bytes| bytes.get(..len)).filter(|_| (1..=SHORT).contains(&len));
        match bytes.and_then(|bytes| self.home.nic.shortened(bytes)) {
            Some(page) => {
                state.copied += len;
                page
            }
            None => buffer,
        }
    }

    /// Bytes that were copied in user space since this was asked last.
    pub fn copied(&self) -> usize {
        std::mem::take(&mut self.state.lock().copied)
    }

    /// Finds a place for each piece. None where the kernel tells of what cannot be: then each token is due.
    fn sort(&self, state: &mut State, page: Page, received: &Received) -> Option<VecDeque<Part>> {
        let counts = self.home.nic.counts();
        let linear = received.pieces.iter().map(|piece| match piece {
            Piece::Linear(len) => *len as usize,
            Piece::Device(_) => 0,
        });
        let linear = if received.pieces.is_empty() { received.bytes } else { linear.sum() };
        let page = self.shortened(state, page, linear);
        let (mut sorted, mut at, mut fits) = (VecDeque::new(), 0, true);
        let mut host = |len: usize| {
            counts.linear.fetch_add(len as u64, Relaxed);
            at += len;
            Part::new(page.clone(), at - len, len).ok()
        };
        if received.pieces.is_empty() {
            sorted.push_back(host(received.bytes)?);
        }
        for piece in &received.pieces {
            let waits = match piece {
                Piece::Linear(len) => host(*len as usize),
                Piece::Device(frag) => self.adopt(&mut state.pages, frag),
            };
            match waits {
                Some(waits) => sorted.push_back(waits),
                None => fits = false,
            }
        }
        fits.then_some(sorted)
    }

    /// The fragment as a part of the memory. None where it is not in there: its token is due then.
    fn adopt(&self, pages: &mut LentPages, frag: &Frag) -> Option<Part> {
        let nic = &self.home.nic;
        let each = u64::from(nic.memory().page_len());
        let end = frag.offset.checked_add(frag.len.into()).filter(|end| *end <= nic.memory().len());
        let inside = end.filter(|_| frag.dmabuf == nic.dmabuf());
        let slot = {
            let mut slots = self.home.slots.lock();
            // (There is room for as many as were asked for.)
            let slot = inside.and_then(|_| slots.free.pop());
            match slot {
                Some(slot) => slots.tokens[slot as usize] = frag.token,
                None => slots.due.push(frag.token),
            }
            slot?
        };
        let (first, within) = (frag.offset / each, frag.offset % each);
        let count = (within + u64::from(frag.len)).div_ceil(each);
        let page = pages.adopt_run(slot, u32::try_from(first).ok()?, u32::try_from(count).ok()?);
        let Ok(page) = page else {
            // Not to be: the slot was free, and the pages are there.
            self.home.released(slot);
            return None;
        };
        let counts = nic.counts();
        counts.frags.fetch_add(1, Relaxed);
        counts.bytes.fetch_add(frag.len.into(), Relaxed);
        if self.home.calls.by_ring() {
            counts.by_ring.fetch_add(frag.len.into(), Relaxed);
        }
        Part::new(page, within as usize, frag.len as usize).ok()
    }

    /// Takes up to `n` bytes of what waits, of one kind of memory, in up to `most` pieces. None where nothing waits, or nothing is asked for.
    pub fn take(&self, n: usize, most: usize) -> Vec<Part> {
        self.take_if(most, |_| Some(n)).unwrap_or_default()
    }

    /// As [`Placed::take`], as many bytes as `wanted` says of the first piece. None where it wants none of it.
    pub fn take_if(&self, most: usize, wanted: impl FnOnce(&Part) -> Option<usize>) -> Option<Vec<Part>> {
        let mut state = self.state.lock();
        let n = match state.waiting.front() {
            Some(first) => wanted(first)?,
            None => 0,
        };
        let taken = front(&state.waiting, n, most);
        let mut left: usize = taken.iter().map(Part::len).sum();
        // (Under the lock, by whoever takes.)
        self.len.fetch_sub(left, Relaxed);
        while let Some(first) = state.waiting.front_mut().filter(|_| left > 0) {
            if left < first.len() {
                first.cut_front(left);
                break;
            }
            left -= first.len();
            state.waiting.pop_front();
        }
        Some(taken)
    }

    /// As [`Placed::take`], of what stays there: more references to it.
    pub fn peek(&self, n: usize, most: usize) -> Vec<Part> {
        front(&self.state.lock().waiting, n, most)
    }
}

/// The first `n` bytes, or fewer, of one kind of memory, in up to `most` pieces, with references of their own.
fn front(waiting: &VecDeque<Part>, n: usize, most: usize) -> Vec<Part> {
    let (mut parts, mut left) = (Vec::new(), n);
    let of_first = waiting.front().map(is_device);
    for part in waiting.iter().take(most).take_while(|part| Some(is_device(part)) == of_first) {
        let len = part.len().min(left);
        if len == 0 {
            break;
        }
        parts.push(part.part(0, len));
        left -= len;
    }
    parts
}

/// Why a receive of device memory TCP's took nothing.
fn untold(errno: Errno) -> NotRead {
    match errno {
        // Of the call, which took nothing, and not of the socket (tcp_recvmsg_dmabuf()).
        Errno::NOMEM | Errno::NODEV | Errno::FAULT | ETOOSMALL => NotRead::Untold(errno),
        _ => NotRead::Errno(errno),
    }
}

fn token(piece: &Piece) -> Option<u32> {
    match piece {
        Piece::Linear(_) => None,
        Piece::Device(frag) => Some(frag.token),
    }
}

/// Whether a part lies in a device's memory.
pub(super) fn is_device(part: &Part) -> bool {
    !part.page().is_readable()
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.home.slots.lock().closed = true;
        self.state.lock().waiting.clear();
        self.home.flush();
        if self.home.pid == std::process::id() {
            self.home.calls.close();
        }
    }
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placed({} bytes wait)", self.len())
    }
}

#[cfg(test)]
pub(super) mod tests;
