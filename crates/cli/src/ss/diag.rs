//! What the kernel tells of unix sockets: their names, their peers, their queues (sock_diag(7)).

use anyhow::{Context, ensure};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::collections::HashMap;
use std::time::Duration;

/// One unix socket of this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// As it was bound: a path, or `@` and an abstract name.
    pub name: Option<String>,
    /// Inode of the socket at the other end.
    pub peer: Option<u64>,
    /// Bytes in its queue, or of a listener: connections that wait.
    pub queued: Option<u32>,
}

/// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// linux/netlink.h: NLM_F_REQUEST | NLM_F_DUMP
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// linux/unix_diag.h: UDIAG_SHOW_NAME | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN
const SHOW: u32 = 1 | 4 | 16;
const NAME: u16 = 0;
const PEER: u16 = 2;
const RQLEN: u16 = 4;
/// Lengths of nlmsghdr, unix_diag_msg, nlattr.
const HEADER: usize = 16;
const MESSAGE: usize = 16;
const ATTRIBUTE: usize = 4;

/// All unix sockets, by inode.
pub fn unix_sockets() -> anyhow::Result<HashMap<u64, Known>> {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))
            .context("no sock_diag socket")?;
    // The kernel answers at once, or not at all.
    let timeout = Some(Duration::from_secs(2));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, timeout)?;
    let mut request = Vec::new();
    request.extend_from_slice(&40_u32.to_ne_bytes());
    request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&DUMP.to_ne_bytes());
    request.extend_from_slice(&[0; 8]); // sequence, port
    request.extend_from_slice(&[1, 0, 0, 0]); // AF_UNIX
    request.extend_from_slice(&u32::MAX.to_ne_bytes()); // in any state
    request.extend_from_slice(&0_u32.to_ne_bytes()); // any inode
    request.extend_from_slice(&SHOW.to_ne_bytes());
    request.extend_from_slice(&[0xFF; 8]); // any cookie
    rustix::net::send(&socket, &request, SendFlags::empty()).context("asking sock_diag")?;
    let mut known = HashMap::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let (got, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())
            .context("sock_diag does not answer")?;
        ensure!(got > 0, "sock_diag ended early");
        if take(&buffer[..got], &mut known)? {
            return Ok(known);
        }
    }
}

/// Takes one datagram of the answer. Whether it was the last.
fn take(mut bytes: &[u8], known: &mut HashMap<u64, Known>) -> anyhow::Result<bool> {
    while bytes.len() >= HEADER {
        let length = word(bytes, 0) as usize;
        ensure!((HEADER..=bytes.len()).contains(&length), "sock_diag sent a message of impossible length");
        let (message, kind) = (&bytes[HEADER..length], half(bytes, 4));
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let errno = if message.len() >= 4 { -(word(message, 0) as i32) } else { 0 };
                return Err(std::io::Error::from_raw_os_error(errno)).context("sock_diag for unix sockets");
            }
            SOCK_DIAG_BY_FAMILY if message.len() >= MESSAGE => {
                known.insert(u64::from(word(message, 4)), attributes(&message[MESSAGE..]));
            }
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn attributes(mut bytes: &[u8]) -> Known {
    let mut known = Known::default();
    while bytes.len() >= ATTRIBUTE {
        let length = usize::from(half(bytes, 0));
        if !(ATTRIBUTE..=bytes.len()).contains(&length) {
            break;
        }
        let value = &bytes[ATTRIBUTE..length];
        match half(bytes, 2) {
            NAME => known.name = name(value),
            PEER if value.len() >= 4 => known.peer = Some(u64::from(word(value, 0))),
            RQLEN if value.len() >= 4 => known.queued = Some(word(value, 0)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    known
}

/// unix(7): an abstract name begins with a zero, a path ends with one.
fn name(value: &[u8]) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).escape_debug().to_string();
    match value {
        [] => None,
        [0] => None,
        [0, rest @ ..] => Some(format!("@{}", text(rest))),
        path => Some(text(path.split(|byte| *byte == 0).next().unwrap_or_default())),
    }
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
    use proptest::prelude::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    #[test]
    fn names_and_peers_of_this_very_process() {
        let at = SocketAddr::from_abstract_name(format!("onecopy-diag-{}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&at).unwrap();
        let client = UnixStream::connect_addr(&at).unwrap();
        let (server, _) = listener.accept().unwrap();
        let inode = |fd: &dyn std::os::fd::AsFd| rustix::fs::fstat(fd.as_fd()).unwrap().st_ino;
        let known = match unix_sockets() {
            Ok(known) => known,
            Err(error) => {
                eprintln!("skipped: {error:#}");
                return;
            }
        };
        let (client, server) = (inode(&client), inode(&server));
        assert_eq!((known[&client].peer, known[&server].peer), (Some(server), Some(client)));
        let name = format!("@onecopy-diag-{}", std::process::id());
        assert_eq!(known[&inode(&listener)].name.as_deref(), Some(&*name));
        assert_eq!(known[&server].name.as_deref(), Some(&*name));
    }

    proptest! {
        #[test]
        fn any_answer(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = take(&bytes, &mut HashMap::new());
            let _ = attributes(&bytes);
        }
    }
}
