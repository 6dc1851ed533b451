//! Finding the sockets: every process that this user may look into shows its descriptors, and among them the table of
//! its onecopy sockets. No process is asked for anything, and none has to answer.

use super::diag::{self, Known};
use onecopy::advanced::registry::{self, Entry, Protocol};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, Stat};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
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

/// What tells a socket of a process from its others: its inode, or its protocol and addresses where it has none.
pub type Key = (u64, u8, Option<SocketAddr>, Option<SocketAddr>);

impl Socket {
    /// See [`Key`].
    pub fn key(&self) -> Key {
        let entry = &self.entry;
        (entry.inode, entry.protocol as u8, entry.local, entry.remote)
    }
}

/// What a socket on a stack is called: where it is, and who with.
fn addresses(entry: &Entry) -> Option<String> {
    match (entry.local, entry.remote) {
        (Some(local), Some(remote)) => Some(format!("{local} {remote}")),
        (Some(one), None) | (None, Some(one)) => Some(one.to_string()),
        (None, None) => None,
    }
}

/// A table, read once however many hold it: a forked child has its parent's, and any process may hold one many times.
struct Told {
    /// Whose word it is: who made the memfd.
    user: u32,
    pids: Vec<u32>,
    entries: Vec<Entry>,
}

impl Told {
    /// Which of a socket's `holders` the table may be believed of: of the table's own user, or any if that is root. One that
    /// holds the table, too, if there is one.
    fn believed(&self, holders: &[u32], mut user: impl FnMut(u32) -> Option<u32>) -> Option<u32> {
        let mut may = holders.iter().copied().filter(|pid| self.user == 0 || user(*pid) == Some(self.user));
        let first = may.next()?;
        std::iter::once(first).chain(may).find(|pid| self.pids.contains(pid)).or(Some(first))
    }
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
    anyhow::ensure!(
        Path::new("/proc/self/fd").is_dir(),
        "/proc is not there, in which processes show their sockets: mount it (mount -t proc proc /proc)"
    );
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
    let tables = tables(&descriptors.tables, &mut found.skipped);
    let (mut commands, mut users) = (HashMap::new(), HashMap::new());
    for told in tables {
        let mut others = 0;
        for entry in &told.entries {
            // A socket on a stack has no descriptor: whoever holds the table has it.
            let on_a_stack = entry.protocol != Protocol::Unix;
            let holders = if on_a_stack { Some(&told.pids) } else { descriptors.holders.get(&entry.inode) };
            let Some(holders) = holders else {
                continue; // closed while we looked, or left behind by a fork
            };
            let Some(pid) = told.believed(holders, |pid| *users.entry(pid).or_insert_with(|| user(pid)))
            else {
                others += 1;
                continue;
            };
            if on_a_stack {
                found.sockets.push(Socket {
                    pid,
                    command: commands.entry(pid).or_insert_with(|| command(pid)).clone(),
                    path: addresses(entry),
                    peer: None,
                    peer_inode: None,
                    // (Of UDP it is not told.)
                    queue: (entry.protocol == Protocol::Tcp).then_some(entry.queue),
                    entry: *entry,
                });
                continue;
            }
            let kernel = known.get(&entry.inode).cloned().unwrap_or_default();
            let peer = kernel.peer.and_then(|peer| descriptors.holders.get(&peer)).map(|pids| pids[0]);
            found.sockets.push(Socket {
                pid,
                command: commands.entry(pid).or_insert_with(|| command(pid)).clone(),
                path: path(&kernel, &known),
                peer,
                peer_inode: kernel.peer,
                queue: kernel
                    .queued
                    .filter(|_| entry.listening || entry.receive_capacity == 0)
                    .map(u64::from),
                entry: *entry,
            });
        }
        if others > 0 {
            found.skipped.push(format!(
                "what a table of process {} says of {others} sockets of other users than its own",
                told.pids[0]
            ));
        }
    }
    queues(&mut found.sockets);
    found.sockets.sort_by_key(|socket| (socket.pid, socket.key()));
    Ok(found)
}

/// The tables that can be read, each once.
fn tables(places: &[(u32, PathBuf)], skipped: &mut Vec<String>) -> Vec<Told> {
    let mut tables: BTreeMap<(u64, u64), Option<Told>> = BTreeMap::new();
    for (pid, path) in places {
        let (file, stat) = match open(path) {
            Ok(opened) => opened,
            Err(why) => {
                skipped.push(format!("a table of process {pid}: {why}"));
                continue;
            }
        };
        let place = (stat.st_dev, stat.st_ino);
        if let Some(seen) = tables.get_mut(&place) {
            if let Some(told) = seen.as_mut().filter(|told| told.pids.last() != Some(pid)) {
                told.pids.push(*pid);
            }
            continue;
        }
        let told = match registry::read(&file) {
            Ok(listing) => {
                if listing.unlisted > 0 {
                    let unlisted = listing.unlisted;
                    skipped.push(format!("{unlisted} sockets of process {pid} that found its table full"));
                }
                Some(Told { user: stat.st_uid, pids: vec![*pid], entries: once_each(listing.entries) })
            }
            Err(why) => {
                skipped.push(format!("a table of process {pid}: {why}"));
                None
            }
        };
        tables.insert(place, told);
    }
    tables.into_values().flatten().collect()
}

/// The last row of each socket: one that was left to a forked child stays, also when its socket has come back and got another.
fn once_each(mut entries: Vec<Entry>) -> Vec<Entry> {
    let mut seen = HashSet::new();
    entries.reverse();
    entries.retain(|entry| entry.protocol != Protocol::Unix || seen.insert(entry.inode));
    entries
}

/// What one end sent and the other has not taken lies between them, in ring and kernel together.
fn queues(sockets: &mut [Socket]) {
    let unix = |socket: &Socket| socket.entry.protocol == Protocol::Unix;
    let sent = sockets.iter().filter(|socket| unix(socket));
    let sent: HashMap<u64, u64> = sent.map(|s| (s.entry.inode, s.entry.stats.sent)).collect();
    for socket in sockets.iter_mut().filter(|socket| unix(socket) && !socket.entry.listening) {
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
    name.strip_prefix('@').is_some_and(|name| registry::is_invitation(name.as_bytes()))
}

fn descriptors(proc: &Path) -> anyhow::Result<Descriptors> {
    let mut found = Descriptors::default();
    let pid = |process: fs::DirEntry| process.file_name().to_str()?.parse::<u32>().ok();
    let mut pids: Vec<u32> = fs::read_dir(proc)?.map_while(Result::ok).filter_map(pid).collect();
    // Parents before children, which hold the same: by number they are only until the numbers begin anew.
    pids.sort_by_cached_key(|pid| (started(&proc.join(pid.to_string())), *pid));
    for pid in pids {
        match fs::read_dir(proc.join(pid.to_string()).join("fd")) {
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

fn open(path: &Path) -> rustix::io::Result<(OwnedFd, Stat)> {
    // Never waits, whatever has been put in its place meanwhile.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    Ok((file, stat))
}

fn command(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned()
}

/// When a process began, in ticks since the machine did (proc(5), stat, the 20th word behind the name).
fn started(process: &Path) -> u64 {
    let stat = fs::read(process.join("stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let behind = stat.rsplit_once(") ").map_or("", |(_, behind)| behind);
    behind.split(' ').nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// The effective user of a process, as proc(5) tells it. (Who owns its folder there would not do: that is root where a
/// process lets nobody trace it.)
fn user(pid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_believed_of_its_own_users_sockets() {
        let told = |user, pids: &[u32]| Told { user, pids: pids.to_vec(), entries: Vec::new() };
        let user = |pid| [(1, 0), (20, 7), (21, 7), (30, 8)].iter().find(|(p, _)| *p == pid).map(|(_, u)| *u);
        let believed = |told: Told, holders: &[u32]| told.believed(holders, user);
        assert_eq!(believed(told(7, &[20]), &[20]), Some(20));
        // Who holds the table before who was there first; a child that has closed it, too.
        assert_eq!(believed(told(7, &[21]), &[20, 21]), Some(21));
        assert_eq!(believed(told(7, &[20]), &[21]), Some(21));
        // Not of others, whoever holds the table: it may have been sent to him.
        assert_eq!(believed(told(7, &[20, 30]), &[30]), None);
        assert_eq!(believed(told(7, &[20]), &[1]), None);
        assert_eq!(believed(told(7, &[20]), &[99]), None, "a process that has ended");
        // What root began, a child with fewer rights goes on with.
        assert_eq!(believed(told(0, &[1]), &[30]), Some(30));
        assert_eq!(super::user(std::process::id()), Some(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn processes_are_known_by_when_they_began() {
        let dir = tempfile::tempdir().unwrap();
        let with = |stat: &str| {
            fs::write(dir.path().join("stat"), stat).unwrap();
            started(dir.path())
        };
        let fields = "R 1 1 1 0 -1 4194304 98 0 0 0 0 0 0 0 20 0 1 0 77 1 1";
        assert_eq!(with(&format!("12 (a) b) 9) {fields}")), 77);
        assert_eq!((with(""), with("12 (a) R 1"), with("12 (a) S x y")), (0, 0, 0));
        assert!(started(Path::new("/proc/self")) > started(Path::new("/proc/1")));
    }

    #[test]
    fn invitations_are_no_names() {
        let nonce = "0123456789abcdef0123456789abcdef";
        assert!(is_invitation(&format!("@onecopy-4-{nonce}-20000-0-1000000")));
        for name in ["@onecopy-jobs", "@onecopy-4-x", "/run/onecopy-4-x", "@store"] {
            assert!(!is_invitation(name), "{name}");
        }
        assert!(is_table("onecopy-stats (deleted)") && is_table("onecopy-stats"));
        assert!(!is_table("onecopy-stats2") && !is_table("onecopy-ring (deleted)"));
    }
}
