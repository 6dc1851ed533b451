//! Device memory under the kernel's TCP, without a card that takes part: what a connection receives is put into bound memory by the receive's own
//! copy, and by nothing else.
//!
//! The kernel has taken the headers off, and knows whose the bytes are. So nothing has to be split or foreseen: a read of the socket into pages
//! that are registered and that nothing maps (IORING_OP_READV_FIXED), made by the program's thread when it receives. The ring's thread does not
//! receive for such connections; it only tells whoever polls that there is something.

mod by_nic;

use super::connection::{Connection, Goes, Inner, NO_PAGE};
use super::landing::{Landing, NotRead, look};
use super::placed::Placed;
use super::socket::{Attempt, Stream};
use super::wait::{Patience, explained, here};
use crate::carrier::tcp::{self, Endpoint, Options, Taking};
use crate::carrier::{Frags, NotByNic, Tokens, Way};
use crate::error::{too_small, unreadable};
use crate::view::View;
use by_nic::Wanted;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::Part;
use onecopy_socket::{Error, Op, RecvFlags, Result};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a read waits for the socket at a time. Another thread may have found that the memory is unbound, and then the ring takes what comes:
/// the socket says nothing of that.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

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
        _ if state.is_there() => Some(Next::Host),
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
        let wanted = Wanted { n, most, peeks, throws };
        if let Some(tokens) = self.tokens.get() {
            tokens.take_in();
        }
        loop {
            let (landing, queue) = match self.next(&patience)? {
                Next::End => return Ok(Frags::of_none(0)),
                Next::Host if most == 0 && !throws => return Err(too_small()),
                Next::Host => return self.linear(n, peeks, throws, dont_wait),
                Next::Device(landing, queue) => (landing, queue),
            };
            if let Some(nic) = landing.nic() {
                match self.frags_by_nic(&landing, nic, queue, wanted, &patience) {
                    Ok(Ok(None)) => self.ended(),
                    Ok(Ok(Some(frags))) => return Ok(frags),
                    Ok(Err(error)) => return Err(error),
                    Err(why) => self.not_read(why, &patience)?,
                }
                continue;
            }
            if throws {
                match landing.while_bound(|| self.throw(n)) {
                    Ok((0, _)) => self.ended(),
                    Ok((len, error)) => {
                        self.counters().received.add(len);
                        self.was_read(len < n);
                        if let Some(errno) = error {
                            self.stopped(NotRead::Errno(errno), &patience);
                        }
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
            connection.drained(|| self.is_placed());
        }
    }

    /// Whether something waits that a NIC has placed: received, and not taken. The kernel tells of it no more.
    fn is_placed(&self) -> bool {
        self.placed.get().is_some_and(Placed::is_readable)
    }

    fn given(&self, landing: &Landing, parts: Vec<Part>) -> Frags {
        let tokens = self.device_tokens();
        self.counters().referenced.add(parts.iter().map(Part::len).sum());
        let mut frags = Vec::with_capacity(parts.len());
        let fragments = parts.into_iter().map(|part| {
            let frag = landing.frag(&part);
            (Fragment::from(part), frag)
        });
        tokens.give_out(fragments, &mut frags);
        Frags::of_device(frags, Some(Arc::clone(tokens)))
    }

    /// Fragments that its program has; made if there are none.
    pub(super) fn device_tokens(&self) -> &Arc<Tokens> {
        self.tokens.get_or_init(|| {
            let devices = &self.connection().shared().devices;
            let (hunger, refused) = (Arc::clone(devices.hunger()), Arc::clone(devices.refused()));
            // Nobody waits for pages: they come home without a word; but for those that a NIC put bytes into, which the kernel waits for. (Weak: behind the
            // stream each goes by itself.)
            let placed = Arc::downgrade(&self.placed);
            Arc::new(Tokens::telling(hunger, refused, move || {
                if let Some(placed) = placed.upgrade().as_deref().and_then(OnceLock::get) {
                    placed.home().flush();
                }
            }))
        })
    }

    fn linear(&self, n: usize, peeks: bool, throws: bool, dont_wait: bool) -> Result<Frags> {
        if peeks && !throws {
            let seen = tcp::Connection::peek(self, n, false, dont_wait)?;
            let seen = seen.unwrap_or_else(|| Chain::new().into());
            return Ok(Frags::of_linear(View::of(seen, tcp::Connection::counts(self))));
        }
        let how = Taking { dont_wait, before: false, device: false, least: usize::MAX };
        let data = tcp::Connection::take(self, n, how)?.unwrap_or_else(|| Chain::new().into());
        if throws {
            return Ok(Frags::of_none(data.payload().len()));
        }
        self.counters().referenced.add(data.payload().len());
        Ok(Frags::of_linear(View::of(data, tcp::Connection::counts(self))))
    }

    /// Throws away up to `n` bytes of what the socket has. Returns how many, and what stopped it before.
    fn throw(&self, n: usize) -> std::result::Result<(usize, Option<Errno>), Errno> {
        const EACH: usize = 64 << 10;
        let mut scratch = vec![0; n.min(EACH)];
        let (how, mut thrown) = (net::RecvFlags::TRUNC | net::RecvFlags::DONTWAIT, 0);
        while thrown < n {
            let each = scratch.len().min(n - thrown);
            match net::recv(&*self.connection().fd, &mut scratch[..each], how) {
                Ok((0, _)) => break,
                Ok((len, _)) => thrown += len,
                Err(errno) if thrown == 0 => return Err(errno),
                Err(errno) => return Ok((thrown, Some(errno))),
            }
        }
        Ok((thrown, None))
    }

    /// What has stopped a receive that has something to return. What the kernel tells once, such as a reset (sock_error()), is kept for the next one.
    fn stopped(&self, why: NotRead, patience: &Patience) {
        // These it tells again, and they are nothing to wait for here.
        if !matches!(
            why,
            NotRead::Errno(Errno::AGAIN)
                | NotRead::Starved
                | NotRead::Held
                | NotRead::Untold(_)
                | NotRead::Coming
                | NotRead::Lost
        ) {
            // (What is of one call alone is no error of the next.)
            let _ = self.not_read(why, patience);
        }
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
            NotRead::Starved | NotRead::Held if patience.none => {
                Err(wait(Errno::NOBUFS).because("no page of the device's memory is free; give tokens back"))
            }
            // They come home without a word.
            NotRead::Starved | NotRead::Held => {
                patience.wait(connection.lock(), connection.waiters(), Some(NO_PAGE)).map_err(wait)
            }
            NotRead::Errno(Errno::AGAIN) => {
                // Whoever polls hears of more.
                connection.drained(|| self.is_placed());
                let mut state = connection.lock();
                if !state.is_receiving() {
                    // It is over since, or was before: what had come by then is taken first.
                    state.emptied = look(&connection.fd) == Err(Errno::AGAIN) && !self.is_placed();
                    return Ok(());
                }
                drop(state);
                let what = PollFlags::IN | PollFlags::RDHUP;
                patience.wait_for(&connection.fd, what, LOOK_AGAIN).map_err(wait)
            }
            NotRead::Untold(errno) => Err(by_nic::refused(errno)),
            NotRead::Lost => Err(by_nic::lost()),
            NotRead::Coming => {
                // Whoever polls hears of more.
                connection.drained(|| self.is_placed());
                let state = connection.lock();
                if self.is_placed() {
                    return Ok(());
                }
                patience.wait(state, connection.waiters(), Some(LOOK_AGAIN)).map_err(wait)
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

/// Why memory cannot be bound under the kernel's TCP.
pub(crate) fn not_bound(why: onecopy_link::NotRegistered, by_nic: Option<&NotByNic>) -> Error {
    let because = match why {
        _ if by_nic.is_some() => {
            "neither does the interface's NIC receive into the memory, nor does io_uring register it; `onecopy doctor` says what is missing"
        }
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
