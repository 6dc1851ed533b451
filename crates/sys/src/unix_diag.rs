//! What the kernel says of unix sockets: names, peers, users, queues (sock_diag(7), linux/unix_diag.h).
//!
//! One parser for all answers (of two that meet, and of who looks from outside), which only come from the kernel, but are read as if they did not: nothing outside of what was
//! received is looked at, whatever the lengths in it say.

use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};
use std::time::Duration;

/// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// linux/netlink.h: NLM_F_REQUEST; NLM_F_REQUEST | NLM_F_DUMP
const REQUEST: u16 = 1;
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Attributes (linux/unix_diag.h), and which bit asks for each.
const NAME: u16 = 0;
const FILE: u16 = 1;
const PEER: u16 = 2;
const RQLEN: u16 = 4;
const UID: u16 = 7;
const SHOW: u32 = 1 | 2 | 4 | 16 | 0x40;
/// Lengths of nlmsghdr, unix_diag_msg, nlattr, and of a request.
const HEADER: usize = 16;
const MESSAGE: usize = 16;
const ATTRIBUTE: usize = 4;
const LENGTH: u32 = 40;
/// The kernel answers at once, or not at all.
const PATIENCE: Duration = Duration::from_secs(2);

/// A unix socket of this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its inode.
    pub inode: u64,
    /// What SO_COOKIE says of it: no other socket ever has the same.
    pub cookie: u64,
    /// As it was bound: a path, which may end with a zero, or a zero and an abstract name (unix(7)).
    pub name: Option<Vec<u8>>,
    /// The lower half of the inode of its path.
    pub file: Option<u32>,
    /// Inode of the socket that it is connected to.
    pub peer: Option<u64>,
    /// Whose it is: of the user that made it. None before Linux 5.3.
    pub uid: Option<u32>,
    /// Bytes in its queue, or of a listener: connections that wait.
    pub queued: Option<u32>,
}

/// Where to ask.
#[derive(Debug)]
pub struct Diag(OwnedFd);

impl Diag {
    /// # Errors
    ///
    /// What socket(2) says; EPROTONOSUPPORT where the kernel has no sock_diag.
    pub fn open() -> io::Result<Diag> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::RAW;
        rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG)).map(Diag)
    }

    fn ask(&self, flags: u16, inode: u32) -> io::Result<()> {
        let mut request = Vec::with_capacity(LENGTH as usize);
        request.extend_from_slice(&LENGTH.to_ne_bytes());
        request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend_from_slice(&flags.to_ne_bytes());
        request.extend_from_slice(&[0; 8]); // sequence, port
        request.extend_from_slice(&[1, 0, 0, 0]); // AF_UNIX
        request.extend_from_slice(&u32::MAX.to_ne_bytes()); // in any state
        request.extend_from_slice(&inode.to_ne_bytes());
        request.extend_from_slice(&SHOW.to_ne_bytes());
        request.extend_from_slice(&[0xFF; 8]); // any cookie
        rustix::net::send(&self.0, &request, SendFlags::empty()).map(drop)
    }

    /// What is known of the socket with that inode.
    ///
    /// # Errors
    ///
    /// ENOENT where there is none in this network namespace; what the kernel says.
    pub fn look(&self, inode: u64) -> io::Result<Known> {
        self.ask(REQUEST, u32::try_from(inode).map_err(|_| Errno::NOENT)?)?;
        // The kernel has answered when send returns.
        let mut answer = [0; 1024];
        let (got, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::DONTWAIT)?;
        let mut found = None;
        parse(&answer[..got], |known| found = Some(known).filter(|known| known.inode == inode))?;
        found.ok_or(Errno::NOENT)
    }

    /// All unix sockets, one after the other.
    ///
    /// # Errors
    ///
    /// What the kernel says; EPROTO for an answer that cannot be; EAGAIN for none.
    pub fn all(&self, mut each: impl FnMut(Known)) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(PATIENCE))?;
        self.ask(DUMP, 0)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            match rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::empty())? {
                (0, _) => return Err(Errno::PROTO),
                (got, _) if parse(&buffer[..got], &mut each)? => return Ok(()),
                _ => {}
            }
        }
    }
}

/// Reads one datagram of an answer. Whether it was the last.
///
/// # Errors
///
/// The kernel's errno; EPROTO for a message of impossible length.
pub fn parse(mut bytes: &[u8], mut each: impl FnMut(Known)) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (word(bytes, 0), half(bytes, 4)) {
        let message = bytes.get(HEADER..length as usize).ok_or(Errno::PROTO)?;
        match kind {
            DONE => return Ok(true),
            ERROR => {
                // (0 acknowledges, which nobody asked for.)
                let errno = word(message, 0).map_or(0, u32::cast_signed).checked_neg().unwrap_or(0);
                return Err(if errno > 0 { Errno::from_raw_os_error(errno.min(4095)) } else { Errno::PROTO });
            }
            SOCK_DIAG_BY_FAMILY => {
                if let Some(known) = socket(message) {
                    each(known);
                }
            }
            _ => {}
        }
        bytes = bytes.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// A unix_diag_msg and its attributes.
fn socket(message: &[u8]) -> Option<Known> {
    let at = |at| word(message, at).map(u64::from);
    let mut rest = message.get(MESSAGE..)?;
    let mut known = Known { inode: at(4)?, cookie: at(12)? << 32 | at(8)?, ..Known::default() };
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        let Some(value) = rest.get(ATTRIBUTE..length) else { break };
        match kind {
            NAME => known.name = Some(value.to_owned()),
            FILE => known.file = word(value, 0),
            PEER => known.peer = word(value, 0).map(u64::from).filter(|inode| *inode != 0),
            RQLEN => known.queued = word(value, 0),
            UID => known.uid = word(value, 0),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(known)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn the_kernel_knows_who_is_connected_to_whom() {
        let Ok(diag) = Diag::open() else {
            println!("lacking: sock_diag");
            return;
        };
        let text = |n| format!("onecopy-look-{}-{n}", std::process::id());
        let name = |n| SocketAddr::from_abstract_name(text(n)).unwrap();
        let inode = |socket: &UnixDatagram| rustix::fs::fstat(socket).unwrap().st_ino;
        let (a, b) = (UnixDatagram::bind_addr(&name(1)).unwrap(), UnixDatagram::bind_addr(&name(2)).unwrap());
        a.connect_addr(&name(2)).unwrap();
        let expected = |socket: &UnixDatagram, n, peer| Known {
            inode: inode(socket),
            cookie: sockopt::socket_cookie(socket).unwrap(),
            name: Some(format!("\0{}", text(n)).into_bytes()),
            file: None,
            peer,
            uid: Some(rustix::process::geteuid().as_raw()),
            queued: Some(0),
        };
        match diag.look(inode(&a)) {
            Ok(known) => assert_eq!(known, expected(&a, 1, Some(inode(&b)))),
            Err(errno) => return println!("lacking: unix_diag ({errno})"),
        }
        assert_eq!(diag.look(inode(&b)), Ok(expected(&b, 2, None)));
        let mut all = Vec::new();
        Diag::open().unwrap().all(|known| all.push(known)).unwrap();
        assert!(all.contains(&expected(&a, 1, Some(inode(&b)))) && all.contains(&expected(&b, 2, None)));
        let gone = inode(&a);
        drop(a);
        assert_eq!(diag.look(gone), Err(Errno::NOENT));
        assert_eq!(diag.look(u64::MAX), Err(Errno::NOENT));
    }

    /// An answer as the kernel makes it, of any socket.
    fn answer(known: &Known) -> Vec<u8> {
        let mut message = vec![1, 2, 1, 0];
        message.extend((known.inode as u32).to_ne_bytes());
        message.extend((known.cookie as u32).to_ne_bytes());
        message.extend(((known.cookie >> 32) as u32).to_ne_bytes());
        let mut attribute = |kind: u16, value: &[u8]| {
            message.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(value);
            message.resize(message.len().next_multiple_of(4), 0);
        };
        attribute(99, b"of a later kernel");
        if let Some(name) = &known.name {
            attribute(NAME, name);
        }
        let peer = known.peer.map(|peer| peer as u32);
        for (kind, value) in [(PEER, peer), (RQLEN, known.queued), (UID, known.uid)] {
            if let Some(value) = value {
                attribute(kind, &value.to_ne_bytes());
            }
        }
        header(SOCK_DIAG_BY_FAMILY, &message)
    }

    fn header(kind: u16, message: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + message.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(message);
        bytes
    }

    prop_compose! {
        fn known()(
            inode: u32, cookie: u64,
            name in prop::option::of(prop::collection::vec(any::<u8>(), 0..108)),
            peer in prop::option::of(1u32..), uid: Option<u32>, queued: Option<u32>,
        ) -> Known {
            Known { inode: inode.into(), cookie, name, file: None, peer: peer.map(u64::from), uid, queued }
        }
    }

    proptest! {
        #[test]
        fn what_the_kernel_says_is_read(all in prop::collection::vec(known(), 0..5), done: bool) {
            let mut bytes: Vec<u8> = all.iter().flat_map(answer).collect();
            if done {
                bytes.extend(header(DONE, &[0; 4]));
            }
            let mut read = Vec::new();
            prop_assert_eq!(parse(&bytes, |known| read.push(known)), Ok(done));
            prop_assert_eq!(read, all);
        }

        #[test]
        fn an_error_is_told(errno in 1i32..4095) {
            let bytes = header(ERROR, &(-errno).to_ne_bytes());
            prop_assert_eq!(parse(&bytes, |_| ()), Err(Errno::from_raw_os_error(errno)));
        }

        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = parse(&bytes, |_| ());
            let _ = socket(&bytes);
        }

        /// One that was cut and in which bytes have changed: lengths, above all.
        #[test]
        fn a_damaged_answer(
            known in known(), cut: prop::sample::Index,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = answer(&known);
            for (at, to) in changes {
                *at.get_mut(&mut bytes) = to;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            let _ = parse(&bytes, |_| ());
        }
    }
}
