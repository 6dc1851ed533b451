//! What a hand-made peer says besides bytes: marks, descriptors, pools and references, written down a second time.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::liar::{Field, Liar, SEALS};

/// Marks that a ring has room for: each takes a so-and-so-manieth of it.
pub const MARKS: u64 = 64;
/// Where the queue of marks begins, and bytes of one.
const QUEUE: u64 = 512;
const ENTRY: u64 = 32;
/// Where the last mark lies once more, and whose number it has.
const LATEST: u64 = 32;
const LATEST_IS: u64 = 20;

/// Kinds of marks.
pub const FDS: u32 = 1;
/// See [`FDS`].
pub const POOL: u32 = 2;
/// See [`FDS`].
pub const REFERENCE: u32 = 3;

/// A frame's flags: the end of a record; so many descriptors come with it (times this); who sends is said, or not any more;
/// it holds a list of parts; it is no record, but tells of a pool.
pub const END: u64 = 1 << 32;
/// See [`END`].
pub const WITH: u64 = 1 << 40;
/// See [`END`].
pub const SAID: u64 = 1 << 48;
/// See [`END`].
pub const UNSAID: u64 = 1 << 49;
/// See [`END`].
pub const PARTS: u64 = 1 << 50;
/// See [`END`].
pub const OF_POOL: u64 = 1 << 51;

/// What a frame holds of a record that lies elsewhere: `bytes` of it, then references.
pub fn list(bytes: &[u8], references: &[Words]) -> Vec<u8> {
    let mut list = (bytes.len() as u64 | (references.len() as u64) << 32).to_le_bytes().to_vec();
    list.extend(bytes);
    list.resize(list.len().next_multiple_of(8), 0);
    list.extend(references.iter().flatten().flat_map(|word| word.to_le_bytes()));
    list
}

/// The words of a mark behind its position.
pub type Words = [u64; 3];

/// So many descriptors, with so many bytes.
pub fn fds(count: u32, len: u64) -> Words {
    [u64::from(FDS) | u64::from(count) << 32, len, 0]
}

/// Who sends: said in the channel, or not any more.
pub fn who(said: bool) -> Words {
    [4 | u64::from(said) << 32, 0, 0]
}

/// A pool.
pub fn pool(name: u32, page_len: u64, pages: u64) -> Words {
    [u64::from(POOL) | u64::from(name) << 32, page_len, pages]
}

/// A reference.
pub fn reference(slot: u32, pool: u32, page: u32, offset: u32, len: u32) -> Words {
    let arg = u64::from(slot << 16 | pool & 0xffff);
    [u64::from(REFERENCE) | arg << 32, u64::from(page), u64::from(offset) | u64::from(len) << 32]
}

/// A pool's memory with these seals, all bytes 7.
///
/// # Errors
///
/// memfd_create's, ftruncate's, pwrite's, fcntl's.
pub fn memory(len: u64, seals: SealFlags) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("onecopy-liar-pool", flags)?);
    rustix::fs::ftruncate(&file, len)?;
    file.write_all_at(&vec![7; len as usize], 0)?;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// As it should be.
///
/// # Errors
///
/// As [`memory`].
pub fn honest_memory(len: u64) -> io::Result<File> {
    memory(len, SEALS | SealFlags::FUTURE_WRITE)
}

impl Liar {
    /// Lays a mark at `position`, publishes `len` bytes and rings.
    ///
    /// # Errors
    ///
    /// pwrite's, and the socket's.
    pub fn lay(&mut self, position: u64, words: Words, len: u64) -> io::Result<()> {
        let head = self.head.wrapping_add(len);
        let ring = self.theirs()?;
        let count = ring.get(Field::Marks)?;
        // Even places first, then the odd ones.
        let at = QUEUE + (count % (MARKS / 2) * 2 + count % MARKS / (MARKS / 2)) * ENTRY;
        // Beside the head every other one only, so that what is read there and in the queue are both lied about.
        let latest = count.is_multiple_of(2).then_some(LATEST);
        for at in [at].into_iter().chain(latest) {
            for (i, word) in [position, words[0], words[1], words[2]].into_iter().enumerate() {
                ring.write(&word.to_le_bytes(), at + i as u64 * 8)?;
            }
        }
        if latest.is_some() {
            ring.write(&(count as u32).wrapping_add(1).to_le_bytes(), LATEST_IS)?;
        }
        ring.set(Field::Marks, count.wrapping_add(1))?;
        ring.set(Field::Head, head)?;
        let must_ring = ring.rings(head)?;
        self.head = head;
        if must_ring { self.doorbell(1) } else { Ok(()) }
    }

    /// Lays a mark as an honest sender does.
    ///
    /// # Errors
    ///
    /// As [`Liar::lay`].
    pub fn mark(&mut self, words: Words) -> io::Result<()> {
        let stride = self.theirs()?.capacity / MARKS;
        self.lay(self.head, words, stride)
    }

    /// Opens the channel for descriptors, as an honest sender does.
    ///
    /// # Errors
    ///
    /// socketpair's, sendmsg's.
    pub fn open_channel(&mut self) -> io::Result<()> {
        let (mine, theirs) =
            net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        self.send_with(&[0], &[theirs.as_fd()])?;
        self.channel = Some(mine);
        Ok(())
    }

    /// Puts descriptors into the channel, for the next mark or frame.
    ///
    /// # Errors
    ///
    /// sendmsg's; `NotConnected` without a channel.
    pub fn put(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.put_as(&self.head.to_le_bytes(), fds)
    }

    /// Puts descriptors into the channel, with those bytes in the place of a number.
    ///
    /// # Errors
    ///
    /// As [`Liar::put`].
    pub fn put_as(&self, number: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let channel: &OwnedFd = self.channel.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut space =
            vec![std::mem::MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(fds).size() + 64];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        net::sendmsg(channel, &[IoSlice::new(number)], &mut control, flags)?;
        Ok(())
    }

    /// Publishes a record with those flags besides its end, which takes a mark's room at least.
    ///
    /// # Errors
    ///
    /// As [`Liar::publish`].
    pub fn publish_with(&mut self, flags: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut padded = bytes.to_vec();
        let least = (self.theirs()?.capacity / MARKS).next_multiple_of(8) as usize - 8;
        padded.resize(padded.len().max(least), 0);
        self.publish_framed(bytes.len() as u64 | END | flags, &padded)
    }

    /// Sends a pool among records, as an honest sender does.
    ///
    /// # Errors
    ///
    /// As [`Liar::put`] and [`Liar::publish`].
    pub fn share_framed(&mut self, memory: &File, words: Words) -> io::Result<usize> {
        if self.channel.is_none() {
            self.open_channel()?;
        }
        self.put(&[memory.as_fd()])?;
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.publish_with(OF_POOL | WITH, &words)
    }

    /// Sends a pool, as an honest sender does.
    ///
    /// # Errors
    ///
    /// As [`Liar::put`] and [`Liar::lay`].
    pub fn share(&mut self, memory: &File, words: Words) -> io::Result<()> {
        if self.channel.is_none() {
            self.open_channel()?;
        }
        self.put(&[memory.as_fd()])?;
        self.mark(words)
    }
}
