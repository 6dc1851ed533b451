//! The control socket: the kernel connection that every connection begins as. It stays for doorbells,
//! readiness, shutdown and the peer's death.

use onecopy_sync::clock;
use onecopy_sys::scm;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::borrow::Cow;
use std::io::IoSlice;
use std::time::{Duration, Instant};

/// Kernel memory that one byte is charged with (one skb, measured by SIOCOUTQ: 768), rounded up.
const DOORBELL_MEMORY: usize = 1024;
/// SO_SNDBUF of a control socket whose bytes are doorbells only (the kernel doubles it). A quarter of it
/// holds two doorbells and is still writable, and a filler stays cheap.
const DOORBELL_BUFFER: usize = 8192;

static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// The head of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// At least one byte.
    Byte,
    /// Nothing yet.
    Nothing,
    /// The peer sends nothing any more, or this end was shut down for receiving.
    End,
    /// The pending error (ECONNRESET), which the kernel reports once; or EINTR.
    Failed(Errno),
}

/// Looks at the head of the queue. With `wait`, sleeps until there is something.
pub fn peek(fd: BorrowedFd<'_>, wait: bool) -> Peek {
    let flags = if wait { RecvFlags::PEEK } else { RecvFlags::PEEK | RecvFlags::DONTWAIT };
    match rustix::net::recv(fd, &mut [0u8; 1], flags) {
        Ok((_, 0)) => Peek::End,
        Ok(_) => Peek::Byte,
        Err(Errno::AGAIN) => Peek::Nothing,
        Err(errno) => Peek::Failed(errno),
    }
}

/// Sleeps until something is in the queue, or the end has come. Unlike [`peek`], it leaves SO_PEEK_OFF alone:
/// another process may be counting with it at this moment (`Taking` of `members/others.rs`).
pub fn wait_for_any(fd: BorrowedFd<'_>) -> Peek {
    match rustix::net::recv(fd, &mut [0u8; 0], RecvFlags::PEEK) {
        Ok(_) => Peek::Byte,
        Err(Errno::AGAIN) => Peek::Nothing,
        Err(errno) => Peek::Failed(errno),
    }
}

/// Rings the doorbell: sends one byte.
///
/// # Errors
///
/// EPIPE when the peer is gone. A full queue is no error, since the socket is then readable anyway.
pub fn ring(fd: BorrowedFd<'_>) -> io::Result<()> {
    match doorbell(fd) {
        Err(Errno::AGAIN) => Ok(()),
        rung => rung,
    }
}

/// Rings the doorbell, as [`ring`] does, of a socket that also sends to other receivers. These may not
/// receive, so what fills the send buffer may be in another queue.
///
/// # Errors
///
/// Those of [`ring`].
pub fn ring_beside(fd: BorrowedFd<'_>) -> io::Result<()> {
    match doorbell(fd) {
        Err(Errno::AGAIN) => match squeeze_doorbell(fd) {
            Err(Errno::AGAIN) => Ok(()),
            rung => rung,
        },
        rung => rung,
    }
}

fn doorbell(fd: BorrowedFd<'_>) -> io::Result<()> {
    rustix::net::send(fd, &ZEROES[..1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Sends a doorbell for which the send buffer has no room, by making the buffer larger for a moment.
fn squeeze_doorbell(fd: BorrowedFd<'_>) -> io::Result<()> {
    let size = sockopt::socket_send_buffer_size(fd)?;
    // The kernel doubles the size that is set.
    sockopt::set_socket_send_buffer_size(fd, size.max(onecopy_sys::socket::unread_memory(fd)?))?;
    let rung = doorbell(fd);
    let _ = sockopt::set_socket_send_buffer_size(fd, size / 2);
    rung
}

/// Takes one record of a seqpacket control socket: a doorbell has one byte, a filler more. Returns `None` if
/// nothing is left.
///
/// # Errors
///
/// The pending error (ECONNRESET), which the kernel reports once, before what is queued.
pub fn take_record(fd: BorrowedFd<'_>) -> io::Result<Option<usize>> {
    loop {
        match rustix::net::recv(fd, &mut [0u8; 1], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, n)) if n > 0 => return Ok(Some(n)),
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Err(Errno::CONNRESET),
            _ => return Ok(None),
        }
    }
}

/// Returns the length of the first record in the queue, which stays there, or `None` if there is none. The
/// end looks like a record of no bytes.
pub fn peek_record(fd: BorrowedFd<'_>) -> Option<usize> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    rustix::net::recv(fd, &mut [0u8; 1], flags).ok().map(|(_, n)| n)
}

/// Returns whether the peer sends nothing any more. If so, nothing will be added to the queue.
pub fn hung_up(fd: BorrowedFd<'_>) -> bool {
    wait(fd, PollFlags::RDHUP, Some(Duration::ZERO)).is_ok()
}

/// Takes all that is queued at a socket that nobody will receive from any more: descriptors among it are closed.
pub fn discard(fd: BorrowedFd<'_>) {
    loop {
        match rustix::net::recv(fd, &mut [0u8; 1], RecvFlags::DONTWAIT) {
            // Only a peer that misbehaves sends a message of no bytes, which looks like the end. Messages
            // behind it go with the socket.
            Ok((_, 0)) => return,
            Ok(_) | Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Parks: sends a filler of more than a quarter of SO_SNDBUF, so that POLLOUT goes off, and one byte more.
/// Returns the size of the filler, or `None` if not even one byte had room, so that POLLOUT is off anyway.
///
/// # Errors
///
/// EPIPE when the peer is gone.
pub fn park(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    if onecopy_sys::socket::unread_memory(fd)? <= 2 * DOORBELL_MEMORY {
        // The queue has nothing but doorbells. From here on a small buffer is enough for them, and makes
        // fillers cheap.
        sockopt::set_socket_send_buffer_size(fd, DOORBELL_BUFFER)?;
    }
    let mut left = sockopt::socket_send_buffer_size(fd)? / 4 + 1;
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut sent = 0;
    while left > 0 {
        match rustix::net::send(fd, &ZEROES[..left.min(ZEROES.len())], flags) {
            Ok(n) => {
                sent += n;
                left -= n;
            }
            // The queue is as full as it can be. So the socket is not writable, which is all that was wanted.
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(errno) if sent == 0 => return Err(errno),
            // Out of memory half-way: what was sent counts.
            Err(_) => break,
        }
    }
    // One byte more takes the place of a doorbell that was queued before. If there is no room for it, the
    // filler's own last byte does that.
    let more = match rustix::net::send(fd, &ZEROES[..1], flags) {
        Ok(_) => 1,
        Err(_) => 0,
    };
    Ok((sent + more).checked_sub(1).map(|filler| filler as u32))
}

/// Parks, as [`park`] does, on a socket with records: a filler is one record, and a doorbell follows it.
/// Returns how many records the receiver takes besides the filler's own.
///
/// With `shrink`, the send buffer becomes a small one if it has doorbells only. The descriptor `with` goes
/// with the filler. It is closed with the filler, unless somebody else has it too. `with` is `None` afterwards if it could not go.
///
/// # Errors
///
/// EPIPE when the peer is gone; ECONNREFUSED and ECONNRESET, which the kernel tells once, also where the peer went
/// behind the filler.
pub fn park_record(
    fd: BorrowedFd<'_>,
    shrink: bool,
    with: &mut Option<BorrowedFd<'_>>,
) -> io::Result<Option<u32>> {
    if shrink && onecopy_sys::socket::unread_memory(fd)? <= 2 * DOORBELL_MEMORY {
        sockopt::set_socket_send_buffer_size(fd, DOORBELL_BUFFER)?;
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let bytes = filler(fd)?;
    loop {
        match scm::send(fd, &[IoSlice::new(&bytes)], with.as_slice(), None, flags) {
            Ok(_) => break,
            // More descriptors are in flight than RLIMIT_NOFILE allows.
            Err(Errno::TOOMANYREFS) if with.is_some() => *with = None,
            Err(Errno::INTR) => {}
            // The queue is as full as it can be.
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
    point!("filler sent");
    // A doorbell that was queued before goes when the filler is taken, and this one takes its place. It must
    // have room even if late doorbells fill the queue.
    let (rung, none) = match doorbell(fd) {
        Err(Errno::AGAIN) => (squeeze_doorbell(fd), 0),
        rung => (rung, 1),
    };
    match rung {
        Ok(()) => Ok(Some(1)),
        // The receiver has gone meanwhile, or has connected to another socket, and the filler went with that. The
        // kernel tells it once.
        Err(errno @ (Errno::CONNREFUSED | Errno::CONNRESET)) => Err(errno),
        Err(_) => Ok(Some(none)),
    }
}

/// Returns the bytes of a filler, which turns POLLOUT of a socket with records off until somebody takes it.
fn filler(fd: BorrowedFd<'_>) -> io::Result<Cow<'static, [u8]>> {
    let filler = sockopt::socket_send_buffer_size(fd)? / 4 + 1;
    Ok(if filler <= ZEROES.len() { Cow::Borrowed(&ZEROES[..filler]) } else { Cow::Owned(vec![0; filler]) })
}

/// Turns POLLOUT of a datagram socket off, for as long as the socket that this returns is there.
///
/// # Errors
///
/// The errors of socket(2), bind(2) and sendto(2); EAGAIN if it is off already.
pub fn fill_elsewhere(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let elsewhere =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&elsewhere, &SocketAddrUnix::new_unnamed())?;
    let name = SocketAddrUnix::try_from(rustix::net::getsockname(&elsewhere)?).map_err(|_| Errno::INVAL)?;
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    scm::send_to(fd, Some(&name), &[IoSlice::new(&filler(fd)?)], &[], None, flags)?;
    Ok(elsewhere)
}

/// Returns whether sending is over: the peer is gone or does not read any more, or this end was shut down.
/// Costs one system call that moves nothing (net/unix/af_unix.c: the shutdown check comes before the length).
pub fn cannot_send(fd: BorrowedFd<'_>) -> bool {
    rustix::net::send(fd, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Err(Errno::PIPE)
}

/// Returns whether both directions are over: the peer is gone, or this end was shut down altogether.
pub fn gone(fd: BorrowedFd<'_>) -> bool {
    wait(fd, PollFlags::empty(), Some(Duration::ZERO)).is_ok_and(|events| events.contains(PollFlags::HUP))
}

/// Returns whether an error is pending. Does not take it.
pub fn is_failed(fd: BorrowedFd<'_>) -> bool {
    wait(fd, PollFlags::empty(), Some(Duration::ZERO)).is_ok_and(|events| events.contains(PollFlags::ERR))
}

/// Returns whether at most a quarter of the send buffer is in use. poll(2) would report the same, except that
/// it looks at the receiver's queue, too.
pub fn has_room(fd: BorrowedFd<'_>) -> bool {
    let used = onecopy_sys::socket::unread_memory(fd).unwrap_or(0);
    sockopt::socket_send_buffer_size(fd).is_ok_and(|size| used <= size / 4)
}

/// Raises SIGPIPE as send(2) on this stream socket does when it fails with EPIPE.
pub fn raise_sigpipe(fd: BorrowedFd<'_>) {
    let _ = rustix::net::send(fd, &[], SendFlags::DONTWAIT);
}

/// Waits for `events`, a hang-up or an error, at most `limit`.
///
/// # Errors
///
/// EAGAIN after `limit`, EINTR on a signal.
pub fn wait(fd: BorrowedFd<'_>, events: PollFlags, limit: Option<Duration>) -> io::Result<PollFlags> {
    let timeout = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let mut fds = [PollFd::from_borrowed_fd(fd, events)];
    match rustix::event::poll(&mut fds, timeout.as_ref())? {
        0 => Err(Errno::AGAIN),
        _ => Ok(fds[0].revents()),
    }
}

/// Sends `bytes` with `fd` attached, in one piece or not at all.
///
/// # Errors
///
/// The errors of sendmsg(2); EAGAIN when the queue has no room.
pub fn send_fd(socket: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "the space is for one descriptor");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(Errno::MSGSIZE),
    }
}

/// Returns what is left of a wait that began at `start` and may last `limit`.
///
/// # Errors
///
/// EAGAIN when it is over.
pub fn remaining(start: Instant, limit: Option<Duration>) -> io::Result<Option<Duration>> {
    match limit {
        None => Ok(None),
        Some(limit) => clock::remaining(start, limit).map(Some).ok_or(Errno::AGAIN),
    }
}

/// Returns how many bytes are in the queue (SIOCINQ).
///
/// # Errors
///
/// The errors of ioctl(2).
pub fn queued(fd: impl AsFd) -> io::Result<usize> {
    rustix::io::ioctl_fionread(fd).map(|n| n as usize)
}

/// Returns whether a record of somebody with a name is in the queue of a seqpacket socket, be it of no bytes. The end of a stream has no name; nor have
/// records of a peer that was never bound, which this can't tell from the end.
///
/// # Errors
///
/// ECONNRESET, which the kernel reports once.
pub fn has_named_record(fd: impl AsFd) -> io::Result<bool> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recvfrom(fd, &mut [0u8; 0], flags) {
        Ok((_, _, name)) => Ok(name.is_some()),
        Err(Errno::CONNRESET) => Err(Errno::CONNRESET),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::alone;

    fn pair() -> (rustix::fd::OwnedFd, rustix::fd::OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn take(fd: BorrowedFd<'_>, count: usize) -> usize {
        rustix::net::recv(fd, &mut vec![0; count][..], RecvFlags::DONTWAIT).map_or(0, |(_, n)| n)
    }

    fn writable(fd: &rustix::fd::OwnedFd) -> bool {
        wait(fd.as_fd(), PollFlags::OUT, Some(Duration::ZERO)).is_ok_and(|r| r.contains(PollFlags::OUT))
    }

    #[test]
    fn a_filler_turns_writable_off_and_taking_it_turns_it_on_and_leaves_the_bell() {
        alone!();
        let (a, b) = pair();
        ring(a.as_fd()).unwrap();
        assert!(writable(&a));
        let filler = park(a.as_fd()).unwrap().unwrap() as usize;
        assert!(!writable(&a));
        assert_eq!(queued(&b).unwrap(), 1 + filler + 1);
        assert_eq!(take(b.as_fd(), filler + 1), filler + 1);
        assert!(writable(&a));
        assert_eq!(peek(b.as_fd(), false), Peek::Byte, "the bell stays pending");
        assert_eq!(take(b.as_fd(), 1), 1);
        assert_eq!(peek(b.as_fd(), false), Peek::Nothing);
    }

    #[test]
    fn two_bells_leave_it_writable_even_after_the_buffer_shrank() {
        alone!();
        let (a, b) = pair();
        let filler = park(a.as_fd()).unwrap().unwrap() as usize;
        assert_eq!(take(b.as_fd(), filler + 1), filler + 1);
        ring(a.as_fd()).unwrap();
        ring(a.as_fd()).unwrap();
        assert!(writable(&a));
    }

    #[test]
    fn a_dead_peer_is_told_without_moving_a_byte() {
        alone!();
        let (a, b) = pair();
        assert!(!cannot_send(a.as_fd()));
        assert_eq!(peek(b.as_fd(), false), Peek::Nothing);
        drop(b);
        assert!(cannot_send(a.as_fd()));
        assert_eq!(peek(a.as_fd(), false), Peek::End);
    }
}
