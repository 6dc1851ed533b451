//! What lies between the bytes of a chain: ends of records and control data, at exact places, in exact order.

use onecopy_sys::scm::Ucred;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// What may lie between two bytes.
///
/// A mark is one of a sequence with the bytes: splitting, joining and passing over bytes never change who comes before
/// whom.
#[derive(Debug)]
#[non_exhaustive]
pub enum Mark {
    /// The byte before it is a record's last one (MSG_EOR, M_EOR).
    EndOfRecord,
    /// Descriptors that arrive with the byte after it (SCM_RIGHTS). They have one owner, which is the chain: dropping
    /// the mark closes them, and nothing copies them.
    Rights(Vec<OwnedFd>),
    /// Who sent the bytes after it (SCM_CREDENTIALS).
    Credentials(Credentials),
}

impl Mark {
    /// Another one alike, of what can be had twice: not of descriptors.
    pub(crate) fn duplicate(&self) -> Option<Mark> {
        match self {
            Mark::EndOfRecord => Some(Mark::EndOfRecord),
            Mark::Credentials(who) => Some(Mark::Credentials(*who)),
            Mark::Rights(_) => None,
        }
    }
}

/// A process, its user and its group, as the kernel has verified them (SO_PEERCRED, SCM_CREDENTIALS; struct ucred of
/// unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// Process id in this process's pid namespace; 0 where it is in none that can be seen.
    pub pid: i32,
    /// User id: the effective one of a peer; of a sender that claims none the effective one over shared memory, the real
    /// one over the kernel; 65534 where it is not known.
    pub uid: u32,
    /// Group id, likewise.
    pub gid: u32,
}

impl Credentials {
    /// Of this process: what it may say of itself without a privilege.
    pub fn own() -> Credentials {
        Ucred::own().into()
    }

    /// Returns the process id, if the process is in a pid namespace that can be seen (as tokio's `UCred`).
    pub fn pid(&self) -> Option<i32> {
        (self.pid != 0).then_some(self.pid)
    }

    /// Returns the user id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the group id.
    pub fn gid(&self) -> u32 {
        self.gid
    }
}

#[doc(hidden)]
impl From<Ucred> for Credentials {
    fn from(Ucred { pid, uid, gid }: Ucred) -> Credentials {
        Credentials { pid, uid, gid }
    }
}

#[doc(hidden)]
impl From<Credentials> for Ucred {
    fn from(Credentials { pid, uid, gid }: Credentials) -> Ucred {
        Ucred { pid, uid, gid }
    }
}

/// The marks of a chain.
///
/// Positions are kept as distances from a base that moves with the chain's first byte, so passing over bytes touches no
/// mark. They wrap; what counts is their distance from the base, which is at most 2^32.
///
/// Invariant: distances from the base never fall from one mark to the next, and are at most the chain's length.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    base: u64,
    list: VecDeque<(u64, Mark)>,
}

impl Marks {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    fn distance(&self, position: u64) -> usize {
        position.wrapping_sub(self.base) as usize
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Mark)> {
        self.list.iter().map(|(position, mark)| (self.distance(*position), mark))
    }

    /// Behind all marks at `at` or before.
    pub fn insert(&mut self, at: usize, mark: Mark) {
        let index = self.list.partition_point(|(position, _)| self.distance(*position) <= at);
        self.list.insert(index, (self.base.wrapping_add(at as u64), mark));
    }

    pub fn pop_front(&mut self) -> Option<Mark> {
        self.list.pop_front().map(|(_, mark)| mark)
    }

    /// The chain's first byte moved `n` bytes back.
    pub fn grow_front(&mut self, n: usize) {
        self.base = self.base.wrapping_sub(n as u64);
    }

    /// How many marks go in front of a cut at byte `at` of `len`: none at the beginning, all at the end. Between, a mark
    /// that ends a record belongs to the bytes before it, with what comes before that mark; all others belong to
    /// the bytes after them. A second end of record in one place is that of a record without bytes: it stays behind.
    pub fn before_cut(&self, at: usize, len: usize) -> usize {
        if at == 0 {
            return 0;
        }
        if at == len {
            return self.list.len();
        }
        let start = self.list.partition_point(|(position, _)| self.distance(*position) < at);
        let here = self.list.range(start..).take_while(|(position, _)| self.distance(*position) == at);
        let end = here.enumerate().find(|(_, (_, mark))| matches!(mark, Mark::EndOfRecord));
        end.map_or(start, |(index, _)| start + index + 1)
    }

    /// Takes the first `count` marks out, and moves the base to byte `at`, where the chain is cut.
    pub fn split_front(&mut self, count: usize, at: usize) -> Marks {
        let behind = self.list.split_off(count);
        let front = Marks { base: self.base, list: std::mem::replace(&mut self.list, behind) };
        self.base = self.base.wrapping_add(at as u64);
        front
    }

    /// Keeps the first `count` marks.
    pub fn truncate(&mut self, count: usize) {
        self.list.truncate(count);
    }

    /// Moves all of `other`, whose chain follows after the `len` bytes of this one's.
    pub fn append(&mut self, other: &mut Marks, len: usize) {
        if self.list.is_empty() {
            self.base = other.base.wrapping_sub(len as u64);
            std::mem::swap(&mut self.list, &mut other.list);
            return;
        }
        let start = self.base.wrapping_add(len as u64);
        for (position, mark) in other.list.drain(..) {
            self.list.push_back((position.wrapping_sub(other.base).wrapping_add(start), mark));
        }
    }
}
