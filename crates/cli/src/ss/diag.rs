//! What the kernel tells of unix sockets: their names, their peers, their queues (sock_diag(7)).

use anyhow::Context;
use onecopy_sys::unix_diag::Diag;
use std::collections::HashMap;

/// One unix socket of this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// As it was bound: a path, or `@` and an abstract name; with whatever characters somebody chose.
    pub name: Option<String>,
    /// Inode of the socket at the other end.
    pub peer: Option<u64>,
    /// Bytes in its queue, or of a listener: connections that wait.
    pub queued: Option<u32>,
}

/// All unix sockets, by inode.
pub fn unix_sockets() -> anyhow::Result<HashMap<u64, Known>> {
    let mut known = HashMap::new();
    let diag = Diag::open().context("no sock_diag socket")?;
    diag.all(|socket| {
        let name = socket.name.as_deref().and_then(name);
        known.insert(socket.inode, Known { name, peer: socket.peer, queued: socket.queued });
    })
    .context("sock_diag for unix sockets")?;
    Ok(known)
}

/// unix(7): an abstract name begins with a zero, a path ends with one.
fn name(value: &[u8]) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match value {
        [] => None,
        [0] => None,
        [0, rest @ ..] => Some(format!("@{}", text(rest))),
        path => Some(text(path.split(|byte| *byte == 0).next().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
                println!("lacking: what unix_diag tells of unix sockets ({error:#})");
                return;
            }
        };
        let (client, server) = (inode(&client), inode(&server));
        assert_eq!((known[&client].peer, known[&server].peer), (Some(server), Some(client)));
        let name = format!("@onecopy-diag-{}", std::process::id());
        assert_eq!(known[&inode(&listener)].name.as_deref(), Some(&*name));
        assert_eq!(known[&server].name.as_deref(), Some(&*name));
    }
}
