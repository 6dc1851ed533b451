//! Finding the sockets: every process that this user may look into shows its descriptors, and among them the table of
//! its onecopy sockets. No process is asked for anything, and none has to answer.

use super::diag::{self, Known};
use onecopy::unix::registry::{self, Entry};
use onecopy::unix::upgrade::Invitation;
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// A live onecopy socket.
#[derive(Clone, Debug)]
pub struct Socket {
    /// A process that has it: the one that made it, unless it passed it on.
    pub pid: u32,
    /// That process's name (proc(5), comm).
    pub command: String,
    /// The name that it is bound to, or its peer is.
    pub path: Option<String>,
    /// A process that has the other end, where that is one of this user.
    pub peer: Option<u32>,
    /// Inode of the other end.
    pub peer_inode: Option<u64>,
    /// Bytes that the peer sent and this end has not taken; connections that wait, of a listener. None where the peer
    /// cannot be looked into.
    pub queue: Option<u64>,
    /// What its process says of it.
    pub entry: Entry,
}

/// What a look around found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// In order of process and inode.
    pub sockets: Vec<Socket>,
    /// What was passed over, and why.
    pub skipped: Vec<String>,
}

/// The descriptors of the processes that may be looked into.
#[derive(Default)]
struct Descriptors {
    /// Processes that hold a socket, by its inode.
    holders: HashMap<u64, Vec<u32>>,
    /// Where a table may be.
    tables: Vec<(u32, PathBuf)>,
    hidden: usize,
}

/// Looks around.
pub fn look() -> anyhow::Result<Found> {
    let descriptors = descriptors(Path::new("/proc"))?;
    let mut found = Found::default();
    if descriptors.hidden > 0 {
        let hidden = descriptors.hidden;
        found.skipped.push(format!("{hidden} processes of other users, which only root may look into"));
    }
    let known = diag::unix_sockets().unwrap_or_else(|error| {
        found.skipped.push(format!("names and peers, which this kernel does not tell: {error:#}"));
        HashMap::new()
    });
    // A forked child holds its parent's table too: each is read once, and belongs to all who hold it.
    let mut tables: BTreeMap<u64, (Vec<u32>, Vec<Entry>)> = BTreeMap::new();
    for (pid, path) in &descriptors.tables {
        match open(path) {
            Ok((inode, _)) if tables.contains_key(&inode) => {
                tables.entry(inode).and_modify(|(pids, _)| pids.push(*pid));
            }
            Ok((inode, listing)) => {
                if listing.unlisted > 0 {
                    found.skipped.push(format!(
                        "{} sockets of process {pid} that found its table full",
                        listing.unlisted
                    ));
                }
                tables.insert(inode, (vec![*pid], listing.entries));
            }
            Err(why) => found.skipped.push(format!("a table of process {pid}: {why}")),
        }
    }
    let mut commands = HashMap::new();
    for (pids, entries) in tables.into_values() {
        for entry in entries {
            let Some(holders) = descriptors.holders.get(&entry.inode) else {
                continue; // closed while we looked, or left behind by a fork
            };
            let pid = pids.iter().find(|pid| holders.contains(pid)).unwrap_or(&holders[0]);
            let kernel = known.get(&entry.inode).cloned().unwrap_or_default();
            let peer = kernel.peer.and_then(|peer| descriptors.holders.get(&peer)).map(|pids| pids[0]);
            found.sockets.push(Socket {
                pid: *pid,
                command: commands.entry(*pid).or_insert_with(|| command(*pid)).clone(),
                path: path(&kernel, &known),
                peer,
                peer_inode: kernel.peer,
                queue: kernel
                    .queued
                    .filter(|_| entry.listening || entry.receive_capacity == 0)
                    .map(u64::from),
                entry,
            });
        }
    }
    queues(&mut found.sockets);
    found.sockets.sort_by_key(|socket| (socket.pid, socket.entry.inode));
    Ok(found)
}

/// What one end sent and the other has not taken lies between them, in ring and kernel together.
fn queues(sockets: &mut [Socket]) {
    let sent: HashMap<u64, u64> = sockets.iter().map(|s| (s.entry.inode, s.entry.stats.sent)).collect();
    for socket in sockets.iter_mut().filter(|socket| !socket.entry.listening) {
        if let Some(sent) = socket.peer_inode.and_then(|peer| sent.get(&peer)) {
            // The two were read one after the other.
            socket.queue = Some(sent.saturating_sub(socket.entry.stats.received));
        }
    }
}

/// An invitation (`onecopy-VERSION-...`) is a name that nobody gave: the peer's is the one that was connected to.
fn path(socket: &Known, known: &HashMap<u64, Known>) -> Option<String> {
    let given = |known: &Known| known.name.clone().filter(|name| !is_invitation(name));
    given(socket).or_else(|| given(known.get(&socket.peer?)?))
}

fn is_invitation(name: &str) -> bool {
    name.strip_prefix('@').is_some_and(|name| Invitation::parse(name.as_bytes()).is_some())
}

fn descriptors(proc: &Path) -> anyhow::Result<Descriptors> {
    let mut found = Descriptors::default();
    for process in fs::read_dir(proc)?.map_while(Result::ok) {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match fs::read_dir(process.path().join("fd")) {
            Ok(links) => {
                for link in links.map_while(Result::ok) {
                    let Ok(to) = fs::read_link(link.path()) else { continue }; // closed meanwhile
                    let to = to.to_string_lossy();
                    if let Some(inode) = to.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
                        if let Ok(inode) = inode.parse() {
                            let holders = found.holders.entry(inode).or_default();
                            if holders.last() != Some(&pid) {
                                holders.push(pid);
                            }
                        }
                    } else if to.strip_prefix("/memfd:").is_some_and(is_table) {
                        found.tables.push((pid, link.path()));
                    }
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => found.hidden += 1,
            Err(_) => {} // it ended meanwhile
        }
    }
    Ok(found)
}

fn is_table(name: &str) -> bool {
    name.strip_suffix(" (deleted)").unwrap_or(name) == registry::NAME
}

fn open(path: &Path) -> Result<(u64, registry::Listing), String> {
    // Never waits, whatever has been put in its place meanwhile.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| errno.to_string())?;
    let inode = rustix::fs::fstat(&file).map_err(|errno| errno.to_string())?.st_ino;
    Ok((inode, registry::read(&file).map_err(|why| why.to_string())?))
}

fn command(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invitations_are_no_names() {
        let nonce = "0123456789abcdef0123456789abcdef";
        assert!(is_invitation(&format!("@onecopy-2-{nonce}-20000")));
        for name in ["@onecopy-jobs", "@onecopy-2-x", "/run/onecopy-2-x", "@store"] {
            assert!(!is_invitation(name), "{name}");
        }
        assert!(is_table("onecopy-stats (deleted)") && is_table("onecopy-stats"));
        assert!(!is_table("onecopy-stats2") && !is_table("onecopy-ring (deleted)"));
    }
}
