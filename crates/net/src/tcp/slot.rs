//! Pages to be written, and sent by reference.

use super::Stream;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::Page;
use onecopy_socket::{Result, SendFlags};
use std::io;
use std::os::fd::AsFd;

/// Pages of the stack's own, to be filled and then sent without a copy: [`Stream::reserve`].
#[derive(Debug)]
pub struct Slot<'a> {
    stream: &'a Stream,
    pages: Vec<Page>,
    len: usize,
    filled: usize,
    /// Of these, how many were copied in user space, with non-temporal stores, by the kernel.
    copied: usize,
    streamed: usize,
    read: usize,
}

impl<'a> Slot<'a> {
    pub(super) fn new(stream: &'a Stream, pages: Vec<Page>, len: usize) -> Slot<'a> {
        Slot { stream, pages, len, filled: 0, copied: 0, streamed: 0, read: 0 }
    }

    /// Bytes that it takes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it takes none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it has.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// What is left of the page that is being filled.
    fn room(&mut self) -> &mut [u8] {
        let left = self.len - self.filled;
        let each = self.pages.first().map_or(1, |page| page.len());
        let (index, at) = (self.filled / each, self.filled % each);
        match self.pages.get_mut(index).and_then(Page::bytes_mut) {
            Some(bytes) => {
                let end = each.min(at + left);
                &mut bytes[at..end]
            }
            None => &mut [],
        }
    }

    /// Copies what fits of `bytes` behind what it has, with the stores that the stream's policy says. Returns how many.
    pub fn copy_from(&mut self, bytes: &[u8]) -> usize {
        let hint = self.stream.hint(SendFlags::empty());
        let mut done = 0;
        while done < bytes.len() {
            let room = self.room();
            let n = room.len().min(bytes.len() - done);
            if n == 0 {
                break;
            }
            let store = onecopy_copy::copy(&mut room[..n], &bytes[done..done + n], hint);
            self.streamed += if store == onecopy_copy::Store::NonTemporal { n } else { 0 };
            self.filled += n;
            done += n;
        }
        self.copied += done;
        done
    }

    /// Reads from `file` at `offset` behind what it has: pread(2), one copy by the kernel. Returns how many bytes; fewer than there is room
    /// for at the file's end.
    ///
    /// # Errors
    ///
    /// What pread(2) says, if nothing was read before.
    pub fn read_from(&mut self, file: impl AsFd, offset: u64) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let room = self.room();
            if room.is_empty() {
                break;
            }
            let wanted = room.len();
            match rustix::io::pread(&file, room, offset + done as u64) {
                Ok(n) => {
                    self.filled += n;
                    done += n;
                    if n < wanted {
                        break;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.read += done;
        Ok(done)
    }

    /// Has `fill` write behind what it has, page by page, until it writes less than there is room for. Returns how many bytes. They
    /// count as copied in user space.
    ///
    /// # Panics
    ///
    /// Where `fill` says that it wrote more than there was room for.
    pub fn fill_with(&mut self, mut fill: impl FnMut(&mut [u8]) -> usize) -> usize {
        let mut done = 0;
        loop {
            let room = self.room();
            let wanted = room.len();
            if wanted == 0 {
                break;
            }
            let n = fill(room);
            assert!(n <= wanted, "{n} bytes written where there was room for {wanted}");
            self.filled += n;
            done += n;
            if n < wanted {
                break;
            }
        }
        self.copied += done;
        done
    }

    /// Sends what it has. Returns how many bytes.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn commit(self) -> Result<usize> {
        let stream = self.stream;
        stream.send_all(&mut self.into_segment(), SendFlags::empty())
    }

    /// What it has, to be sent in parts ([`Stream::send_some`]).
    pub fn into_segment(self) -> Segment<Chain> {
        let mut chain = Chain::new();
        let mut left = self.filled;
        for page in self.pages {
            let len = left.min(page.len());
            if len == 0 {
                break;
            }
            let fragment = Fragment::new(page, 0, len).unwrap_or_else(|error| panic!("{error}"));
            chain.append(fragment).unwrap_or_else(|error| panic!("{error}"));
            left -= len;
        }
        let counters = self.stream.counters();
        counters.user_copied_in.add(self.copied);
        counters.user_copied_nt.add(self.streamed);
        counters.kernel_copied.add(self.read);
        chain.into()
    }
}
