//! What the kernel says of one unix socket: who its peer is, and whose it is (sock_diag(7)).

use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// linux/netlink.h
const NLM_F_REQUEST: u16 = 1;
/// linux/unix_diag.h: UDIAG_SHOW_PEER | UDIAG_SHOW_UID
const SHOW: u32 = 4 | 0x40;
const PEER: u16 = 2;
const UID: u16 = 7;
/// Lengths of nlmsghdr, of unix_diag_msg with it, of nlattr, and of a request.
const HEADER: usize = 16;
const MESSAGE: usize = HEADER + 16;
const ATTRIBUTE: usize = 4;
const REQUEST: u32 = 40;

/// A socket of this network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Inode of the socket that it is connected to.
    pub peer: Option<u64>,
    /// Whose it is: of the user that made it. None before Linux 5.3.
    pub uid: Option<u32>,
    /// What SO_COOKIE says of it: no other socket ever has the same.
    pub cookie: u64,
}

/// Where to ask.
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

    /// What is known of the socket with that inode.
    ///
    /// # Errors
    ///
    /// ENOENT where there is none in this network namespace; what the kernel says.
    pub fn look(&self, inode: u64) -> io::Result<Known> {
        let inode = u32::try_from(inode).map_err(|_| Errno::NOENT)?;
        let mut request = Vec::with_capacity(REQUEST as usize);
        request.extend_from_slice(&REQUEST.to_ne_bytes());
        request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        request.extend_from_slice(&[0; 8]); // sequence, port
        request.extend_from_slice(&[1, 0, 0, 0]); // AF_UNIX
        request.extend_from_slice(&u32::MAX.to_ne_bytes()); // in any state
        request.extend_from_slice(&inode.to_ne_bytes());
        request.extend_from_slice(&SHOW.to_ne_bytes());
        request.extend_from_slice(&[0xFF; 8]); // any cookie
        rustix::net::send(&self.0, &request, SendFlags::empty())?;
        // The kernel has answered when send returns.
        let mut answer = [0; 1024];
        let (got, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::DONTWAIT)?;
        parse(&answer[..got], inode)
    }
}

fn parse(answer: &[u8], inode: u32) -> io::Result<Known> {
    if answer.len() < MESSAGE || half(answer, 4) != SOCK_DIAG_BY_FAMILY || word(answer, HEADER + 4) != inode {
        return Err(Errno::NOENT);
    }
    let end = (word(answer, 0) as usize).clamp(MESSAGE, answer.len());
    let mut rest = &answer[MESSAGE..end];
    let cookie = u64::from(word(answer, HEADER + 12)) << 32 | u64::from(word(answer, HEADER + 8));
    let mut known = Known { cookie, ..Known::default() };
    while rest.len() >= ATTRIBUTE {
        let len = usize::from(half(rest, 0));
        if !(ATTRIBUTE..=rest.len()).contains(&len) {
            break;
        }
        if len >= ATTRIBUTE + 4 {
            match half(rest, 2) {
                PEER => known.peer = Some(u64::from(word(rest, ATTRIBUTE))).filter(|inode| *inode != 0),
                UID => known.uid = Some(word(rest, ATTRIBUTE)),
                _ => {}
            }
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(known)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn the_kernel_knows_who_is_connected_to_whom() {
        let _alone = crate::tests::alone();
        let Ok(diag) = Diag::open() else {
            eprintln!("skipped: no sock_diag here");
            return;
        };
        let name = |n| SocketAddr::from_abstract_name(format!("onecopy-look-{}-{n}", std::process::id()));
        let inode = |socket: &UnixDatagram| rustix::fs::fstat(socket).unwrap().st_ino;
        let cookie = |socket: &UnixDatagram| rustix::net::sockopt::socket_cookie(socket).unwrap();
        let a = UnixDatagram::bind_addr(&name(1).unwrap()).unwrap();
        let b = UnixDatagram::bind_addr(&name(2).unwrap()).unwrap();
        a.connect_addr(&name(2).unwrap()).unwrap();
        let me = rustix::process::geteuid().as_raw();
        match diag.look(inode(&a)) {
            Ok(known) => {
                assert_eq!(known, Known { peer: Some(inode(&b)), uid: Some(me), cookie: cookie(&a) })
            }
            Err(errno) => return eprintln!("skipped: no unix_diag here ({errno})"),
        }
        assert_eq!(diag.look(inode(&b)), Ok(Known { peer: None, uid: Some(me), cookie: cookie(&b) }));
        let gone = inode(&a);
        drop(a);
        assert_eq!(diag.look(gone), Err(Errno::NOENT));
    }

    #[test]
    fn any_answer_is_read_within_its_bounds() {
        let _alone = crate::tests::alone();
        let mut answer = [0u8; 80];
        for seed in 0..20_000u32 {
            for (i, byte) in answer.iter_mut().enumerate() {
                *byte = (seed.wrapping_mul(2_654_435_761).rotate_left(i as u32 % 31) >> 7) as u8 & 0x1F;
            }
            answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            answer[20..24].copy_from_slice(&7u32.to_ne_bytes());
            let _ = parse(&answer[..seed as usize % 81], 7);
        }
    }
}
