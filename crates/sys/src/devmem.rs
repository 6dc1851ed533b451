//! What a socket of TCP whose bytes a NIC puts into a device's memory says and is told (Documentation/networking/devmem.rst): fragments that a receive
//! tells of, and tokens that they are given back by. ([`crate::netdev`] binds the memory.)
//!
//! (include/uapi/linux/uio.h, include/uapi/asm-generic/socket.h; tcp_recvmsg_dmabuf() in net/ipv4/tcp.c, sock_devmem_dontneed() in net/core/sock.c.)

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{self, Errno};

/// MSG_SOCK_DEVMEM (include/linux/socket.h).
const MSG_SOCK_DEVMEM: i32 = 0x200_0000;
/// Types of control messages at SOL_SOCKET, and the option.
const SCM_DEVMEM_LINEAR: i32 = 78;
const SCM_DEVMEM_DMABUF: i32 = 79;
const SO_DEVMEM_DONTNEED: i32 = 80;

/// Ranges of tokens that one [`dont_need`] takes (MAX_DONTNEED_TOKENS).
pub const MOST_RANGES: usize = 128;
/// Fragments that one [`dont_need`] looks at (MAX_DONTNEED_FRAGS).
pub const MOST_FRAGS: u32 = 1024;

/// Bytes of struct dmabuf_cmsg.
const MESSAGE: usize = 24;
/// Bytes of struct cmsghdr, and of a word that each one is aligned to.
const HEADER: usize = size_of::<libc::cmsghdr>();
const WORD: usize = size_of::<usize>();

/// A fragment in a device's memory (SCM_DEVMEM_DMABUF, struct dmabuf_cmsg).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frag {
    /// Where it lies in the dma-buf.
    pub offset: u64,
    /// Bytes in it.
    pub len: u32,
    /// By which it is given back.
    pub token: u32,
    /// Of the dma-buf, as [`Netdev::bind_rx`](crate::netdev::Netdev::bind_rx) returned it.
    pub dmabuf: u32,
    /// None yet.
    pub flags: u32,
}

impl Frag {
    /// Reads one; none where there are fewer bytes than it has.
    pub fn parse(data: &[u8]) -> Option<Frag> {
        let offset = u64::from_ne_bytes(data.get(..8)?.try_into().ok()?);
        let word = |at: usize| Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?));
        Some(Frag { offset, len: word(8)?, token: word(12)?, dmabuf: word(16)?, flags: word(20)? })
    }
}

/// A piece of what a receive brought, in the order of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes are the next ones of the buffer: the device did not part them from their headers (SCM_DEVMEM_LINEAR).
    Linear(u32),
    /// They are in the device's memory.
    Device(Frag),
}

/// What a receive brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes, wherever they lie. None are the end.
    pub bytes: usize,
    /// Where they lie. Where nothing is said all of them are in the buffer: they are bytes as any.
    pub pieces: Vec<Piece>,
    /// Control messages were lost (MSG_CTRUNC), or cannot be read. (The kernel cuts none of a fragment's: put_cmsg_notrunc().)
    pub cut: bool,
}

impl Received {
    /// Whether all bytes have a place: what was told of comes to as many as were received, and what is in the buffer is in it.
    pub fn is_whole(&self, buffer: usize) -> bool {
        let (mut linear, mut all) = (0_u64, 0_u64);
        for piece in &self.pieces {
            let len = match piece {
                Piece::Linear(len) => {
                    linear += u64::from(*len);
                    *len
                }
                Piece::Device(frag) => frag.len,
            };
            // One of no bytes is none.
            if len == 0 {
                return false;
            }
            all += u64::from(len);
        }
        match self.pieces.is_empty() {
            true => self.bytes <= buffer && !self.cut,
            false => all == self.bytes as u64 && linear <= buffer as u64,
        }
    }
}

/// Room for control messages, kept from one receive to the next.
#[derive(Debug, Default)]
pub struct Control(Vec<usize>);

impl Control {
    /// For `pieces` messages about one.
    fn bytes(&mut self, pieces: usize) -> usize {
        let each = HEADER.next_multiple_of(WORD) + MESSAGE.next_multiple_of(WORD);
        let bytes = pieces.saturating_mul(each);
        self.0.resize(bytes / WORD, 0);
        bytes
    }
}

/// recvmsg(2) with MSG_SOCK_DEVMEM, without waiting: up to as many bytes as `buffer` has, wherever they lie, in up to `most` pieces. Those of a device's
/// memory are not in the buffer.
///
/// # Errors
///
/// What recvmsg(2) says: EAGAIN; ETOOSMALL (525) where the first piece has no room; ENODEV and EFAULT for what cannot be told of.
pub fn recv(
    socket: impl AsFd,
    buffer: &mut [u8],
    most: usize,
    control: &mut Control,
) -> io::Result<Received> {
    let room = control.bytes(most);
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeroes is a valid msghdr: no name, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = room as _;
    let flags = MSG_SOCK_DEVMEM | libc::MSG_DONTWAIT;
    // SAFETY: the message points at one iovec of `buffer`, borrowed mutably, and at `room` bytes of `control`, likewise; all of them outlast the call.
    let bytes = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let bytes = usize::try_from(bytes)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))?;
    let told = (message.msg_controllen as usize).min(room);
    let mut all = Vec::with_capacity(told);
    all.extend(control.0.iter().flat_map(|word| word.to_ne_bytes()).take(told));
    let (pieces, readable) = pieces(&all);
    let cut = message.msg_flags & libc::MSG_CTRUNC != 0 || !readable;
    Ok(Received { bytes, pieces, cut })
}

/// The pieces that control messages tell of, other ones passed over; and whether all of them could be read.
pub fn pieces(mut control: &[u8]) -> (Vec<Piece>, bool) {
    let mut pieces = Vec::new();
    while !control.is_empty() {
        let Some((len, level, kind)) = header(control) else { return (pieces, false) };
        let Some(data) = control.get(HEADER..len) else { return (pieces, false) };
        if level == libc::SOL_SOCKET && [SCM_DEVMEM_LINEAR, SCM_DEVMEM_DMABUF].contains(&kind) {
            let Some(frag) = Frag::parse(data) else { return (pieces, false) };
            pieces.push(match kind {
                SCM_DEVMEM_LINEAR => Piece::Linear(frag.len),
                _ => Piece::Device(frag),
            });
        }
        control = control.get(len.next_multiple_of(WORD)..).unwrap_or_default();
    }
    (pieces, true)
}

/// struct cmsghdr: its length, which has its own bytes in it, level and type.
fn header(bytes: &[u8]) -> Option<(usize, i32, i32)> {
    let len = usize::from_ne_bytes(bytes.get(..WORD)?.try_into().ok()?);
    let word = |at: usize| Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let fits = (HEADER..=bytes.len()).contains(&len);
    fits.then_some((len, word(WORD)?, word(WORD + 4)?))
}

/// Gives fragments of a TCP socket back: `(first token, count)` each (SO_DEVMEM_DONTNEED, struct dmabuf_token). Returns how many were
/// given back.
///
/// # Errors
///
/// EINVAL for more than 128 ranges, EBADF for a socket of another protocol, ENOPROTOOPT where the kernel is built without.
pub fn dont_need(socket: impl AsFd, ranges: &[(u32, u32)]) -> io::Result<u32> {
    let mut value = Vec::with_capacity(ranges.len() * 8);
    for (start, count) in ranges {
        value.extend_from_slice(&start.to_ne_bytes());
        value.extend_from_slice(&count.to_ne_bytes());
    }
    crate::sockopt::set_bytes(socket.as_fd(), libc::SOL_SOCKET, SO_DEVMEM_DONTNEED, &value)
}

/// Tokens, in any order, as ranges of such that follow each other: each of the lists is as much as one [`dont_need`] takes.
pub fn batches(tokens: &mut [u32]) -> Vec<Vec<(u32, u32)>> {
    tokens.sort_unstable();
    let follow = |a: &u32, b: &u32| a.checked_add(1) == Some(*b);
    let runs = tokens.chunk_by(follow).flat_map(|run| run.chunks(MOST_FRAGS as usize));
    let mut batches: Vec<Vec<(u32, u32)>> = Vec::new();
    let mut left = 0;
    for run in runs {
        let count = run.len() as u32;
        let full = batches.last().is_none_or(|batch| batch.len() == MOST_RANGES);
        if full || count > left {
            batches.push(Vec::new());
            left = MOST_FRAGS;
        }
        left -= count;
        if let Some(batch) = batches.last_mut() {
            batch.push((run[0], count));
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    /// Control data as the kernel puts it there on a machine of 64 bits and this byte order: put_cmsg() of net/core/scm.c.
    #[cfg(all(target_endian = "little", target_pointer_width = "64"))]
    const GOLDEN: [u8; 120] = [
        40, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 78, 0, 0, 0, // cmsghdr: SOL_SOCKET, SCM_DEVMEM_LINEAR
        0, 0, 0, 0, 0, 0, 0, 0, 66, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // 66 bytes
        40, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 79, 0, 0, 0, // SCM_DEVMEM_DMABUF
        0, 16, 0, 0, 1, 0, 0, 0, 0xb4, 5, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, //
        40, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 79, 0, 0, 0, //
        0, 32, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, //
    ];

    #[cfg(all(target_endian = "little", target_pointer_width = "64"))]
    #[test]
    fn control_data_has_the_bytes_of_the_uapi() {
        let first = Frag { offset: 0x1_0000_1000, len: 1460, token: 3, dmabuf: 7, flags: 0 };
        let second = Frag { offset: 0x2000, len: 1, token: 4, ..first };
        let expected = vec![Piece::Linear(66), Piece::Device(first), Piece::Device(second)];
        assert_eq!(pieces(&GOLDEN), (expected.clone(), true));
        let whole = Received { bytes: 66 + 1461, pieces: expected, cut: false };
        assert!(whole.is_whole(66));
        assert!(!whole.is_whole(65), "the buffer has not so many");
        // A message of another kind in between, of an odd length, is passed over.
        let mut others = vec![17, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        others.extend_from_slice(&GOLDEN);
        assert_eq!(pieces(&others), pieces(&GOLDEN));
        // And the next one may be of level IPPROTO_TCP, with the same number.
        others[12] = 78;
        others[8] = 6;
        assert_eq!(pieces(&others), pieces(&GOLDEN));
        assert!((0..24).all(|len| Frag::parse(&GOLDEN[56..56 + len]).is_none()));
    }

    #[cfg(all(target_endian = "little", target_pointer_width = "64"))]
    #[test]
    fn control_data_that_cannot_be_is_told_of_and_nothing_beyond_it_is_read() {
        assert_eq!(pieces(&[]), (Vec::new(), true));
        for cut in 1..GOLDEN.len() {
            let (got, readable) = pieces(&GOLDEN[..cut]);
            assert_eq!((got.len(), readable), (cut / 40, cut % 40 == 0), "{cut}");
            let received = Received { bytes: 66 + 1461, pieces: got, cut: !readable };
            assert!(!received.is_whole(1 << 20), "{cut}");
        }
        // Lengths that are too short, too long, or overflow.
        for len in [0, 1, 15, 39, 41, 121, u64::MAX, u64::MAX - 6] {
            let mut bad = GOLDEN[..40].to_vec();
            bad[..8].copy_from_slice(&len.to_le_bytes());
            assert_eq!(pieces(&bad), (Vec::new(), false), "{len}");
        }
        let frag = Frag { offset: 0, len: 0, token: 1, dmabuf: 1, flags: 0 };
        for (bytes, pieces, cut, whole) in [
            (10, vec![], false, true),
            (10, vec![], true, false),
            (11, vec![], false, false),
            (0, vec![Piece::Device(frag)], false, false),
            (5, vec![Piece::Linear(5)], true, true),
            (u32::MAX as usize - 1, vec![Piece::Linear(u32::MAX), Piece::Linear(u32::MAX)], false, false),
        ] {
            assert_eq!(Received { bytes, pieces, cut }.is_whole(10), whole);
        }
    }

    #[test]
    fn bytes_that_no_device_placed_come_as_any() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        let (mut control, mut buffer) = (Control::default(), [0; 16]);
        let mut recv = |most| recv(&receiver, &mut buffer, most, &mut control).map(|got| (got, buffer));
        assert_eq!(recv(4), Err(Errno::AGAIN));
        sender.write_all(b"hello").unwrap();
        for most in [4, 0] {
            rustix::event::poll(
                &mut [rustix::event::PollFd::new(&receiver, rustix::event::PollFlags::IN)],
                None,
            )
            .unwrap();
            let (got, buffer) = recv(most).unwrap();
            assert_eq!(got, Received { bytes: 5, pieces: Vec::new(), cut: false });
            assert_eq!(&buffer[..5], b"hello");
            sender.write_all(b"hello").unwrap();
        }
        drop(sender);
        while recv(4).is_ok_and(|(got, _)| got.bytes > 0) {}
    }

    #[test]
    fn tokens_are_given_back_in_as_few_calls_as_may_be() {
        assert_eq!(batches(&mut []), Vec::<Vec<(u32, u32)>>::new());
        assert_eq!(batches(&mut [3, 1, 2, 9, 7]), [[(1, 3), (7, 1), (9, 1)]]);
        assert_eq!(batches(&mut [u32::MAX, 0]), [[(0, 1), (u32::MAX, 1)]]);
        // No two that follow each other: 128 a call. All that do: 1,024.
        let mut apart: Vec<u32> = (0..300).rev().map(|n| n * 2).collect();
        assert_eq!(batches(&mut apart).iter().map(Vec::len).collect::<Vec<_>>(), [128, 128, 44]);
        let mut together: Vec<u32> = (5..2505).rev().collect();
        assert_eq!(batches(&mut together), [[(5, 1024)], [(1029, 1024)], [(2053, 452)]]);
        // Whatever they are: each once, and no call is too long.
        let mut mixed: Vec<u32> = (0..5000).map(|n: u32| n.wrapping_mul(0x9E37_79B9) >> 19).collect();
        mixed.sort_unstable();
        mixed.dedup();
        let batches = batches(&mut mixed.clone());
        for batch in &batches {
            assert!(
                batch.len() <= MOST_RANGES && batch.iter().map(|(_, count)| count).sum::<u32>() <= MOST_FRAGS
            );
        }
        let all = batches.concat().into_iter().flat_map(|(start, count)| start..start + count);
        assert_eq!(all.collect::<Vec<_>>(), mixed);
    }

    #[test]
    fn tokens_are_for_tcp_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        match dont_need(&stream, &[(1, 1)]) {
            // Nobody has such a fragment.
            Ok(freed) => assert_eq!(freed, 0),
            Err(errno) => {
                println!("lacking: SO_DEVMEM_DONTNEED ({errno})");
                return;
            }
        }
        assert_eq!(dont_need(&stream, &[(1, 1); MOST_RANGES + 1]), Err(Errno::INVAL));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(dont_need(&udp, &[(1, 1)]), Err(Errno::BADF));
    }
}
