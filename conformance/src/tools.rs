//! What cases are written with: answers in words, readiness, threads that are known to be asleep, patterns.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::impls::{End, Rx, Tx};
use crate::stop::{NOT_OFFERED, Stop};

/// The name of an error.
pub fn errno(e: &io::Error) -> String {
    const NAMES: &[(Errno, &str)] = &[
        (Errno::ACCESS, "EACCES"),
        (Errno::ADDRINUSE, "EADDRINUSE"),
        (Errno::ADDRNOTAVAIL, "EADDRNOTAVAIL"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::BADF, "EBADF"),
        (Errno::CONNREFUSED, "ECONNREFUSED"),
        (Errno::CONNRESET, "ECONNRESET"),
        (Errno::INPROGRESS, "EINPROGRESS"),
        (Errno::INTR, "EINTR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::ISCONN, "EISCONN"),
        (Errno::MSGSIZE, "EMSGSIZE"),
        (Errno::NOENT, "ENOENT"),
        (Errno::NOTCONN, "ENOTCONN"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::PERM, "EPERM"),
        (Errno::PIPE, "EPIPE"),
        (Errno::PROTO, "EPROTO"),
        (Errno::PROTOTYPE, "EPROTOTYPE"),
        (Errno::TIMEDOUT, "ETIMEDOUT"),
    ];
    match Errno::from_io_error(e) {
        None => format!("error without errno: {e}"),
        Some(no) => {
            NAMES.iter().find(|(n, _)| *n == no).map_or(format!("errno {no:?}"), |(_, s)| s.to_string())
        }
    }
}

/// An answer in words. A call that is not offered ends the case.
pub fn said<T: Display>(answer: io::Result<T>) -> Result<String, Stop> {
    match answer {
        Ok(value) => Ok(value.to_string()),
        Err(e) if e.raw_os_error().is_none() && e.kind() == io::ErrorKind::Unsupported => {
            Err(Stop::NotOffered(NOT_OFFERED))
        }
        Err(e) => Ok(errno(&e)),
    }
}

/// `ok` or the error.
pub fn ok(answer: io::Result<()>) -> Result<String, Stop> {
    said(answer.map(|()| "ok"))
}

/// Flags for a call that must not wait.
pub const NOW: Rx = Rx { dontwait: true, peek: false, waitall: false, trunc: false, oob: false };
/// Flags for a look at what is queued.
pub const PEEK: Rx = Rx { dontwait: false, peek: true, waitall: false, trunc: false, oob: false };
/// Flags for a receive that fills its buffer.
pub const WAITALL: Rx = Rx { dontwait: false, peek: false, waitall: true, trunc: false, oob: false };
/// Flags for a send that must not wait.
pub const TX_NOW: Tx = Tx { dontwait: true, nosignal: true, oob: false, eor: false };

/// Sends without a signal; the answer in words.
pub fn tx(end: &dyn End, data: &[u8]) -> Result<String, Stop> {
    said(end.send(data, Tx { nosignal: true, ..Tx::default() }))
}

/// Receives at most `max` bytes: `"text"`, `end`, or the error.
pub fn rx(end: &dyn End, max: usize, flags: Rx) -> Result<String, Stop> {
    let mut buf = vec![0; max];
    said(end.recv(&mut buf, flags).map(|n| match n {
        0 => "end".to_owned(),
        n => format!("\"{}\"", String::from_utf8_lossy(&buf[..n.min(max)])),
    }))
}

/// Milliseconds in which TCP acknowledges what it was sent; the kernel's delays that for 200 at most.
const ACKNOWLEDGED: u64 = 400;

/// Sends pieces of `piece` bytes until there is no room; how many bytes went in. Stops at 64 MiB.
pub fn fill(end: &dyn End, piece: usize) -> Result<usize, Stop> {
    let data = vec![b'f'; piece];
    let mut sum = 0;
    while sum < 64 << 20 {
        match end.send(&data, TX_NOW) {
            Ok(n) => sum += n,
            // A peer across a wire acknowledges later what it has taken, which makes room once more.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => match end.addresses() {
                Ok(_) if poll(end.fd(), PollFlags::OUT, ACKNOWLEDGED)? != "nothing" => {}
                _ => return Ok(sum),
            },
            Err(e) => return Err(e.into()),
        }
    }
    Err(Stop::broken("64 MiB went in and there was still room"))
}

/// Receives exactly `len` bytes and throws them away.
pub fn drain(end: &dyn End, len: usize) -> Result<(), Stop> {
    let mut buf = vec![0; 64 << 10];
    let mut left = len;
    while left > 0 {
        let max = left.min(buf.len());
        match end.recv(&mut buf[..max], Rx::default())? {
            0 => return Err(Stop::broken(format!("end of stream with {left} bytes to come"))),
            n => left -= n,
        }
    }
    Ok(())
}

/// Receives until the end; how many bytes, or how many and which error.
pub fn drain_to_end(end: &dyn End) -> (usize, Option<io::Error>) {
    let mut buf = vec![0; 64 << 10];
    let mut sum = 0;
    loop {
        match end.recv(&mut buf, Rx::default()) {
            Ok(0) => return (sum, None),
            Ok(n) => sum += n,
            Err(e) => return (sum, Some(e)),
        }
    }
}

/// Sets O_NONBLOCK, or clears it, as others do that have the descriptor.
pub fn others_set(fd: impl AsFd, on: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(&fd)?;
    flags.set(OFlags::NONBLOCK, on);
    Ok(fcntl_setfl(&fd, flags)?)
}

/// How long is waited for what must come, in milliseconds: only what hangs takes so long, however busy the machine is.
pub const SOON: u64 = onecopy_testing::LONG.as_millis() as u64;

/// Runs `f` on a thread of its own and returns once it sleeps in the kernel, or is done ([`wait_asleep`]).
pub fn asleep<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    f: impl FnOnce() -> T + Send + 's,
) -> ScopedJoinHandle<'s, T> {
    let (thread, task) = onecopy_testing::begun(scope, f);
    wait_asleep(task);
    thread
}

/// Threads of this process wait by spinning.
static THEY_SPIN: OnceLock<()> = OnceLock::new();

/// Threads of this process wait by spinning: it makes no sense to wait for their sleep.
pub fn nobody_sleeps() {
    THEY_SPIN.get_or_init(|| ());
}

/// Whether threads of this process sleep while they wait, so that `wait_asleep` tells where they are.
pub fn they_sleep() -> bool {
    THEY_SPIN.get().is_none()
}

/// Waits until a thread, or a process that has one, sleeps, or is gone; where threads spin, for a moment.
///
/// # Panics
///
/// If it does neither.
pub fn wait_asleep(task: i32) {
    if they_sleep() {
        onecopy_testing::wait_asleep(task);
    } else {
        onecopy_testing::falls_asleep(task, Duration::from_millis(50));
    }
}

/// Bits of a poll or epoll answer, in words. POLLRDNORM and its kin follow POLLIN and POLLOUT and are not asked.
fn bits(words: &[(bool, &str)]) -> String {
    let set: Vec<&str> = words.iter().filter(|(on, _)| *on).map(|(_, w)| *w).collect();
    if set.is_empty() { "nothing".to_owned() } else { set.join("+") }
}

/// Has this process have what one keeps that has used our sockets: the table that shows them, from the first one on. Who counts what
/// is open before and after something calls this before.
pub fn what_stays() {
    drop(onecopy::unix::Stream::pair());
}

/// What poll says about `fd` within `ms`.
pub fn poll(fd: impl AsFd, events: PollFlags, ms: u64) -> Result<String, Stop> {
    let until = Instant::now() + Duration::from_millis(ms);
    loop {
        let left = timespec(until.saturating_duration_since(Instant::now()));
        let mut fds = [PollFd::new(&fd, events)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => {
                let r = fds[0].revents();
                return Ok(bits(&[
                    (r.contains(PollFlags::IN), "IN"),
                    (r.contains(PollFlags::PRI), "PRI"),
                    (r.contains(PollFlags::OUT), "OUT"),
                    (r.contains(PollFlags::RDHUP), "RDHUP"),
                    (r.contains(PollFlags::HUP), "HUP"),
                    (r.contains(PollFlags::ERR), "ERR"),
                ]));
            }
        }
    }
}

/// All that poll can be asked for.
pub fn any() -> PollFlags {
    PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP | PollFlags::PRI
}

/// What poll says about an end right now.
pub fn poll_now(end: &dyn End) -> Result<String, Stop> {
    poll(end.fd(), any(), 0)
}

/// What poll says of an end right now, where select and epoll say the same, and so does who would receive; else who says what.
pub fn readiness(end: &dyn End) -> Result<String, Stop> {
    let polled = poll_now(end)?;
    let is = |event: &str| polled.split('+').any(|bit| bit == event);
    let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP;
    let epolled = Epoll::watching(end, flags)?.wait(0)?;
    if epolled != polled {
        return Ok(format!("poll says {polled}, epoll {epolled}"));
    }
    // (select(2) has a table of which events are what.)
    let table = (is("IN") || is("HUP") || is("ERR"), is("OUT") || is("ERR"));
    let selected = onecopy_sys::socket::select(end.fd())?;
    if selected != table {
        return Ok(format!("poll says {polled}, select {selected:?}"));
    }
    let peeked = said(end.recv(&mut [0], Rx { peek: true, ..NOW }))?;
    if is("IN") == (peeked == "EAGAIN") {
        return Ok(format!("poll says {polled}, a receive {peeked}"));
    }
    let after = poll_now(end)?;
    Ok(if after == polled || is("ERR") { polled } else { format!("{polled}, and after a look {after}") })
}

/// Which of the ends one call of poll says are readable, of all of them.
pub fn readable<'a>(ends: impl IntoIterator<Item = &'a dyn End>) -> Result<Vec<usize>, Stop> {
    let fds: Vec<_> = ends.into_iter().map(End::fd).collect();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO)))?;
    Ok(fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(i, _)| i).collect())
}

fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() }
}

/// An epoll.
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Watches `end` for `flags`.
    pub fn watching(end: &dyn End, flags: epoll::EventFlags) -> Result<Epoll, Stop> {
        Epoll::of(end.fd(), flags)
    }

    /// Watches a descriptor for `flags`.
    pub fn of(fd: impl AsFd, flags: epoll::EventFlags) -> Result<Epoll, Stop> {
        let ep = Epoll(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&ep.0, fd, epoll::EventData::new_u64(1), flags)?;
        Ok(ep)
    }

    /// Tells of `fd`, too, when it hangs up.
    pub fn tells_of_the_end_of(&self, fd: impl AsFd) -> Result<(), Stop> {
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(2), epoll::EventFlags::empty())?)
    }

    /// Watches `end` for other `flags` from now on.
    pub fn watch(&self, end: &dyn End, flags: epoll::EventFlags) -> Result<(), Stop> {
        Ok(epoll::modify(&self.0, end.fd(), epoll::EventData::new_u64(1), flags)?)
    }

    /// What it says within `ms`.
    pub fn wait(&self, ms: u64) -> Result<String, Stop> {
        let until = Instant::now() + Duration::from_millis(ms);
        let mut events = Vec::with_capacity(4);
        loop {
            let left = timespec(until.saturating_duration_since(Instant::now()));
            match epoll::wait(&self.0, spare_capacity(&mut events), Some(&left)) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => {
                    let r = events.first().map_or(epoll::EventFlags::empty(), |e: &epoll::Event| e.flags);
                    return Ok(bits(&[
                        (r.contains(epoll::EventFlags::IN), "IN"),
                        (r.contains(epoll::EventFlags::OUT), "OUT"),
                        (r.contains(epoll::EventFlags::RDHUP), "RDHUP"),
                        (r.contains(epoll::EventFlags::HUP), "HUP"),
                        (r.contains(epoll::EventFlags::ERR), "ERR"),
                    ]));
                }
            }
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Numbers from a seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    /// The next 64 bits.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `1..=max`, small ones as often as large ones.
    pub fn size(&mut self, max: usize) -> usize {
        let bits = 1 + self.roll() % u64::from(max.ilog2() + 1);
        1 + (self.roll() % (1 << bits)) as usize % max
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.roll().is_multiple_of(n)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of bytes in which each place is known from a seed, so that a byte lost, doubled or moved shows.
#[derive(Clone, Copy)]
pub struct Pattern(pub u64);

impl Pattern {
    /// The bytes from `at` on.
    pub fn bytes(self, at: usize, len: usize) -> Vec<u8> {
        let first = at / 8;
        let words = (first..=(at + len) / 8).flat_map(|w| mix(self.0 ^ w as u64).to_le_bytes());
        words.skip(at % 8).take(len).collect()
    }

    /// Whether `got` is what stands at `at`; says where it differs first.
    pub fn check(self, at: usize, got: &[u8]) -> Result<(), Stop> {
        let want = self.bytes(at, got.len());
        if got == want {
            return Ok(());
        }
        match got.iter().zip(&want).enumerate().find(|(_, (got, want))| got != want) {
            None => Ok(()),
            Some((i, (got, want))) => Err(Stop::broken(format!(
                "byte {} is {got:#04x}, not {want:#04x} (seed {:#x})",
                at + i,
                self.0
            ))),
        }
    }
}
