//! Sockets of a stack of onecopy's own: what waits here waits at a descriptor, so that Ctrl-C ends it.

use onecopy::advanced::chain::Chain;
use onecopy::devmem::{Frags, TxBinding, TxRange};
use onecopy::zerocopy::{NotSent, Sent};
use onecopy::{RecvFlags, SendFlags, tcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::call::Failure;
use crate::loans::lock;
use crate::pages::Pages;
use crate::transport::Data;

type Result<T> = std::result::Result<T, Failure>;

/// What belongs to the process that made it. A child of a fork has the memory and the descriptors of a stack and not its thread: two would
/// answer for one address. Of a device's memory it has the parent's pages, which are not the child's to give back; and CUDA does not work there.
pub struct Here<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Here<T> {
    pub fn new(value: T) -> Here<T> {
        Here { value: Some(value), process: process::id() }
    }

    /// For who only looks at what a child of a fork has as a copy.
    pub fn look(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// # Errors
    ///
    /// EBUSY in another process.
    pub fn into_inner(mut self) -> Result<T> {
        self.get()?;
        self.take().ok_or_else(|| Errno::BUSY.into())
    }

    /// Takes it out; None in another process, where it is nobody's.
    pub fn take(&mut self) -> Option<T> {
        let value = self.value.take();
        if self.process == process::id() {
            return value;
        }
        // To close it would speak for the process that has it, and may wait for a lock that a thread of its had.
        mem::forget(value);
        None
    }

    /// # Errors
    ///
    /// EBUSY in another process.
    pub fn get(&self) -> Result<&T> {
        let here = self.process == process::id();
        self.value.as_ref().filter(|_| here).ok_or_else(|| Failure {
            errno: Errno::BUSY.raw_os_error(),
            text: "it belongs to the process that forked: make a Stack, and device memory, of this process's own"
                .to_owned(),
        })
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Bytes of a piece from which on it is worth a view of its own: below that a copy of all that is there costs less than views of each.
const SMALL: usize = 2048;

/// About so many bytes one receive of ours takes that waits for all.
const TURN: usize = 1 << 20;

/// A send from a device's memory, until all of it is taken.
#[derive(Default)]
pub struct Sending {
    /// What was taken, in pieces.
    pub under_way: Vec<Sent>,
    rest: Option<Chain>,
}

/// A connection.
pub struct Stream {
    stream: Here<tcp::Stream>,
    pages: Arc<Pages>,
    limit: Mutex<Option<Duration>>,
    /// What failed behind bytes that were received, which the stack says once: the next receive does.
    late: Mutex<Option<Failure>>,
}

impl Stream {
    pub fn of(stream: tcp::Stream, pages: &Arc<Pages>) -> Result<Stream> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // Made with the first call; later ones find it.
        stream.poll_fd()?;
        let (stream, pages) = (Here::new(stream), Arc::clone(pages));
        Ok(Stream { stream, pages, limit: Mutex::new(None), late: Mutex::default() })
    }

    /// Connects, as often as it is called: an interrupted call leaves in `begun` what the next one goes on with.
    pub fn connect(
        stack: &onecopy::Stack,
        pages: &Arc<Pages>,
        source: Option<SocketAddr>,
        address: SocketAddr,
        limit: Option<Duration>,
        begun: &mut Option<tcp::Stream>,
    ) -> Result<Stream> {
        let stream = match (begun.take(), source) {
            (Some(stream), _) => stream,
            (None, Some(source)) => tcp::Stream::connect_nonblocking_from(stack, source, address)?,
            (None, None) => tcp::Stream::connect_nonblocking(stack, address)?,
        };
        let stream = begun.insert(stream);
        wait(stream.poll_fd()?, PollFlags::OUT, limit)?;
        let refused = stream.take_error()?;
        match (refused, begun.take()) {
            (None, Some(stream)) => Stream::of(stream, pages),
            (Some(error), _) => Err(error.about("address").into()),
            (None, None) => Err(Errno::NOTCONN.into()),
        }
    }

    pub fn set_timeout(&self, limit: Option<Duration>) {
        *lock(&self.limit) = limit;
    }

    /// Calls `attempt` whenever the socket is ready, until it need not wait or the limit has come.
    fn patiently<R>(
        &self,
        way: PollFlags,
        dont_wait: bool,
        mut attempt: impl FnMut(&tcp::Stream) -> onecopy::Result<R>,
    ) -> Result<R> {
        let stream = if way == PollFlags::IN { self.receiver()? } else { self.stream.get()? };
        patiently(|| stream.poll_fd(), way, self.limit(dont_wait), || attempt(stream))
    }

    fn limit(&self, dont_wait: bool) -> Option<Duration> {
        if dont_wait { Some(Duration::ZERO) } else { *lock(&self.limit) }
    }

    /// For a receive.
    fn receiver(&self) -> Result<&tcp::Stream> {
        let stream = self.stream.get()?;
        match lock(&self.late).take() {
            Some(failure) => Err(failure),
            None => Ok(stream),
        }
    }

    pub fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        let dont_wait = flags.contains(SendFlags::DONTWAIT);
        let mut sent = 0;
        loop {
            match self
                .patiently(PollFlags::OUT, dont_wait, |stream| stream.send_with_flags(&bytes[sent..], flags))
            {
                // What is under way is told first; the next call tells what came in between.
                Err(_) if sent > 0 => return Ok(sent),
                Ok(n) if n > 0 && sent + n < bytes.len() && !dont_wait => sent += n,
                done => return done.map(|n| sent + n),
            }
        }
    }

    /// Sends ranges of a device's memory, as often as it is called: an interrupted call leaves in `sending` what the next one goes on with.
    pub fn send_device(
        &self,
        from: &TxBinding,
        ranges: &[TxRange],
        flags: SendFlags,
        sending: &mut Sending,
    ) -> Result<()> {
        let dont_wait = flags.contains(SendFlags::DONTWAIT);
        loop {
            let sent = self.patiently(PollFlags::OUT, dont_wait, |stream| match sending.rest.take() {
                None => stream.send_device_with_flags(from, ranges, flags),
                Some(rest) => {
                    stream.send_zerocopy_with_flags(rest, flags).map_err(|NotSent { chain, error }| {
                        sending.rest = Some(chain);
                        error
                    })
                }
            });
            match sent {
                Ok(mut sent) => {
                    let rest = sent.take_rest();
                    sending.under_way.push(sent);
                    if rest.is_empty() || dont_wait {
                        return Ok(());
                    }
                    sending.rest = Some(rest);
                }
                Err(failure) if sending.under_way.is_empty() || failure.is_interrupted() => {
                    return Err(failure);
                }
                // What is under way is told first; the next call tells what came in between.
                Err(_) => return Ok(()),
            }
        }
    }

    /// With WAITALL it goes on while there is more: within one limit, and for [`TURN`] bytes, behind which the caller looks for signals.
    pub fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        let (stream, all) = (self.receiver()?, flags.contains(RecvFlags::WAITALL));
        let most = buffer.len().min(TURN);
        let (limit, began) = (self.limit(flags.contains(RecvFlags::DONTWAIT)), Instant::now());
        let mut have = 0;
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let got = patiently(
                || stream.poll_fd(),
                PollFlags::IN,
                left,
                || stream.recv_with_flags(&mut buffer[have..], RecvFlags::empty()),
            );
            match got {
                // What has come is not lost for what has not.
                Err(failure) if have > 0 => {
                    if failure.is_said_once() {
                        *lock(&self.late) = Some(failure);
                    }
                    return Ok(have);
                }
                Ok(n) if all && n > 0 && have + n < most => have += n,
                done => return done.map(|n| have + n),
            }
        }
    }

    /// Receives what is there, where it lies, if not too much is held already; else as a copy. For a `look` at it no more than what lies in one piece, unless that is a
    /// small one.
    pub fn borrow(&self, max: usize, dont_wait: bool, look: bool) -> Result<Data> {
        let least = if look { SMALL } else { usize::MAX };
        let view = self.patiently(PollFlags::IN, dont_wait, |stream| {
            stream.recv_piece_with_flags(max, least, RecvFlags::empty())
        })?;
        Ok(if view.is_empty() { Data::Own(Vec::new()) } else { self.pages.lodge(view) })
    }

    pub fn recv_frags(&self, n: usize, most: usize, flags: RecvFlags) -> Result<Frags> {
        self.patiently(PollFlags::IN, flags.contains(RecvFlags::DONTWAIT), |stream| {
            stream.recv_frags_with_flags(n, most, flags)
        })
    }

    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        Ok(self.stream.get()?.shutdown(how)?)
    }

    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.stream.get()?.poll_fd()?)
    }

    pub fn get(&self) -> Result<&tcp::Stream> {
        self.stream.get()
    }
}

/// A listener.
pub struct Listener {
    listener: Here<tcp::Listener>,
    pages: Arc<Pages>,
}

impl Listener {
    pub fn bind(
        stack: &onecopy::Stack,
        pages: &Arc<Pages>,
        address: SocketAddr,
        backlog: Option<u32>,
    ) -> Result<Listener> {
        let listener = match backlog {
            Some(backlog) => tcp::Listener::bind_with_backlog(stack, address, backlog)?,
            None => tcp::Listener::bind(stack, address)?,
        };
        listener.set_nonblocking(true)?;
        listener.poll_fd()?;
        Ok(Listener { listener: Here::new(listener), pages: Arc::clone(pages) })
    }

    pub fn accept(&self) -> Result<Stream> {
        Stream::of(self.listener.get()?.accept()?.0, &self.pages)
    }

    pub fn local_addr(&self) -> Result<SocketAddr> {
        Ok(self.listener.get()?.local_addr()?)
    }

    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.listener.get()?.poll_fd()?)
    }
}

/// The descriptor's number; -1 where there is none to wait at.
pub fn number(fd: Result<BorrowedFd<'_>>) -> i32 {
    fd.map_or(-1, |fd| fd.as_raw_fd())
}

/// Calls `attempt`, which does not wait itself, whenever the socket at `fd` is ready, until it need not wait or the limit has come.
pub fn patiently<'a, R>(
    fd: impl Fn() -> onecopy::Result<BorrowedFd<'a>>,
    way: PollFlags,
    limit: Option<Duration>,
    mut attempt: impl FnMut() -> onecopy::Result<R>,
) -> Result<R> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.would_block() => {
                let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
                if left.is_some_and(|left| left.is_zero()) {
                    return Err(error.into());
                }
                wait(fd()?, way, left)?;
            }
            done => return Ok(done?),
        }
    }
}

/// Waits until `fd` is ready.
///
/// # Errors
///
/// EAGAIN when the limit has come, EINTR.
pub fn wait(fd: BorrowedFd<'_>, way: PollFlags, limit: Option<Duration>) -> Result<()> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(&mut [PollFd::new(&fd, way)], limit.as_ref())? {
        0 => Err(Errno::AGAIN.into()),
        _ => Ok(()),
    }
}
