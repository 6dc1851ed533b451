//! What copies bytes into a chain.

use crate::chain::Chain;
use crate::chain::grown;
use crate::checksum::Checksum;
use crate::error::ChainError;
use crate::fragment::Fragment;
use crate::kind::Kind;
use crate::sum::Sum;
use onecopy_copy::Hint;
use onecopy_pool::{Page, PagePool, Pages};
use std::io::{self, Read};

/// Pieces shorter than this are copied by default, in bytes: what drivers use for rx_copybreak. A page of 4 KiB for less
/// than a sixteenth of it is a bad bargain, and below some hundred bytes a copy costs no more than a reference.
pub const COPY_BREAK: usize = 256;

/// Puts bytes into chains by copying: at the end, in front, together, over others. Pages for them come from a pool of our
/// own host memory.
///
/// The pool may be a [`PagePool`] in its owner's hands, or any thread's [`Reservoir`](onecopy_pool::Reservoir).
///
/// Small pieces share pages: a copy goes into the room behind the last byte as long as nobody else holds that page, and
/// takes a new page only then. Whatever fails, the chain is as it was before.
pub struct Writer<'p, A: ?Sized = PagePool> {
    pool: &'p A,
    copy_break: usize,
    headroom: usize,
    hint: Hint,
}

/// Why a read was not taken.
const LYING_READER: &str = "the reader says that it read more than there was room for; mend it";

/// What [`Writer::append_fragment`] did with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Its page is held.
    Referenced,
    /// It was copied; its page is free.
    Copied,
}

impl<A: ?Sized> Clone for Writer<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: ?Sized> Copy for Writer<'_, A> {}

impl<'p, A: Pages + ?Sized> Writer<'p, A> {
    /// With pages from `pool`: a [`COPY_BREAK`], no headroom, the copy engine's own choice of stores.
    pub fn new(pool: &'p A) -> Writer<'p, A> {
        Writer { pool, copy_break: COPY_BREAK, headroom: 0, hint: Hint::AUTO }
    }

    /// Where its pages come from.
    pub fn pages(&self) -> &'p A {
        self.pool
    }

    /// Copies pieces shorter than `bytes` instead of holding their page; 0: none.
    #[must_use]
    pub fn copy_break(self, bytes: usize) -> Writer<'p, A> {
        Writer { copy_break: bytes, ..self }
    }

    /// Leaves so many bytes free before what it puts into an empty chain, for headers (skb_reserve()).
    #[must_use]
    pub fn headroom(self, bytes: usize) -> Writer<'p, A> {
        Writer { headroom: bytes, ..self }
    }

    /// Which stores to copy with.
    #[must_use]
    pub fn hint(self, hint: Hint) -> Writer<'p, A> {
        Writer { hint, ..self }
    }

    /// Copies `bytes` to the end. A [`Checksum::Known`] stays known, so a chain that begins as `Known(Sum::ZERO)` is summed
    /// while it is filled.
    ///
    /// # Errors
    ///
    /// [`ChainError::NoPage`], [`ChainError::MixedKinds`], [`ChainError::TooLong`], and [`ChainError::OverPage`] for a headroom of a page or more.
    pub fn append(&self, chain: &mut Chain, bytes: &[u8]) -> Result<(), ChainError> {
        if bytes.is_empty() {
            return Ok(());
        }
        takes_bytes(chain, chain.fragment_count())?;
        let at = chain.len();
        let (near, far) = bytes.split_at(chain.tailroom().min(bytes.len()));
        let mut rest = self.fresh(far, if at == 0 { self.headroom } else { 0 })?;
        let (len, _) = grown(chain.len, chain.true_size, bytes.len(), rest.true_size())?;
        if let Some(last) = chain.frags.last_mut().filter(|_| !near.is_empty()) {
            last.grow_back(near, self.hint);
            chain.len += near.len() as u32;
        }
        let checksum = match chain.checksum {
            Checksum::Known(sum) => Checksum::Known(sum.then(Sum::of(bytes), at)),
            Checksum::Partial { .. } => chain.checksum,
            Checksum::None | Checksum::Verified => Checksum::None,
        };
        if !far.is_empty() {
            chain.concat(&mut rest)?;
        }
        debug_assert_eq!(chain.len, len);
        chain.checksum = checksum;
        Ok(())
    }

    /// Puts a fragment at the end: by reference, or, if it is shorter than the copy-break and of our own host memory, by
    /// a copy that frees its page. Where there is no page to copy into, by reference.
    ///
    /// # Errors
    ///
    /// As [`Chain::append`].
    pub fn append_fragment(&self, chain: &mut Chain, fragment: Fragment) -> Result<Placed, ChainError> {
        let joins = chain.frags.last().is_some_and(|last| last.joins(&fragment));
        if !joins && fragment.len() < self.copy_break && fragment.kind() == Kind::Host {
            match self.append(chain, fragment.host_bytes()) {
                Ok(()) => return Ok(Placed::Copied),
                Err(ChainError::NoPage(_) | ChainError::OverPage { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        chain.append(fragment)?;
        Ok(Placed::Referenced)
    }

    /// Reads from `reader` straight into pages at the end, until `max` bytes are there or it gives none or less than it
    /// could. Returns bytes read; 0 at the end of a file. A checksum that is known is lost.
    ///
    /// # Errors
    ///
    /// What `reader` says, if nothing was read before; a [`ChainError`] as an [`io::Error`].
    pub fn read_from(&self, chain: &mut Chain, mut reader: impl Read, max: usize) -> io::Result<usize> {
        takes_bytes(chain, chain.fragment_count())?;
        let mut done = 0;
        while done < max {
            match self.read_piece(chain, &mut reader, max - done) {
                Ok((n, room)) => {
                    done += n;
                    if n < room {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// One read(2): bytes read, of how many. Whether they can be kept is asked before: what was read would be lost.
    fn read_piece(
        &self,
        chain: &mut Chain,
        reader: &mut impl Read,
        max: usize,
    ) -> io::Result<(usize, usize)> {
        let tail = chain.tailroom().min(max);
        if tail > 0
            && let Some(last) = chain.frags.last_mut()
        {
            let (_, true_size) = grown(chain.len, chain.true_size, tail, 0)?;
            let n = last.fill_back(tail, |room| match reader.read(room)? {
                n if n <= room.len() => Ok(n),
                _ => Err(io::Error::other(LYING_READER)),
            })?;
            (chain.len, chain.true_size) = (chain.len + n as u32, true_size);
            if n > 0 && !matches!(chain.checksum, Checksum::Partial { .. }) {
                chain.checksum = Checksum::None;
            }
            return Ok((n, tail));
        }
        let mut page = self.page()?;
        let at = if chain.is_empty() { self.headroom } else { 0 };
        let room = page.len().saturating_sub(at).min(max);
        if room == 0 {
            return Err(ChainError::OverPage { len: at + 1, page: page.len() }.into());
        }
        grown(chain.len, chain.true_size, room, page.len())?;
        let n = reader.read(&mut writable(&mut page)[at..][..room])?;
        if n > room {
            return Err(io::Error::other(LYING_READER));
        }
        if n > 0 {
            chain.append(Fragment::new(page, at, n)?)?;
        }
        Ok((n, room))
    }

    /// Copies `bytes` in front, where there is headroom into it, else to the end of a new page, whose rest is headroom for
    /// what comes next. A [`Checksum::Known`] stays known; marks keep their place among the bytes.
    ///
    /// # Errors
    ///
    /// [`ChainError::NoPage`], [`ChainError::MixedKinds`], [`ChainError::TooLong`], [`ChainError::OverPage`] for more than a page, and
    /// [`ChainError::Unfinished`] when a [`Checksum::Partial`] would start behind 64 KiB.
    pub fn push_header(&self, chain: &mut Chain, bytes: &[u8]) -> Result<(), ChainError> {
        if bytes.is_empty() {
            return Ok(());
        }
        takes_bytes(chain, 0)?;
        let checksum = match chain.checksum {
            Checksum::Known(sum) => Checksum::Known(Sum::of(bytes).then(sum, bytes.len())),
            partial @ Checksum::Partial { .. } => Checksum::None.join(bytes.len(), partial)?,
            Checksum::None | Checksum::Verified => Checksum::None,
        };
        if bytes.len() <= chain.headroom()
            && let Some(first) = chain.frags.get_mut(0)
        {
            let (len, _) = grown(chain.len, chain.true_size, bytes.len(), 0)?;
            first.grow_front(bytes, self.hint);
            chain.len = len;
            if let Some(marks) = &mut chain.marks {
                marks.grow_front(bytes.len());
            }
        } else {
            let mut page = self.page()?;
            let at = page.len().checked_sub(bytes.len());
            let at = at.ok_or(ChainError::OverPage { len: bytes.len(), page: page.len() })?;
            onecopy_copy::copy(&mut writable(&mut page)[at..], bytes, self.hint);
            chain.prepend(Fragment::new(page, at, bytes.len())?)?;
        }
        chain.checksum = checksum;
        Ok(())
    }

    /// Brings the first `n` bytes together in one piece and gives it: a header to be parsed (pskb_may_pull(), m_pullup()).
    /// Copies nothing if they lie so already, else what is missing behind the first piece, or all `n` to a new page.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`], [`ChainError::Unreadable`], [`ChainError::NoPage`], [`ChainError::TooLong`], and [`ChainError::OverPage`]
    /// for more than a page.
    pub fn pull_up<'c>(&self, chain: &'c mut Chain, n: usize) -> Result<&'c [u8], ChainError> {
        chain.host()?;
        chain.inside(n)?;
        if n > chain.frags.first().map_or(0, Fragment::len) {
            self.bring_together(chain, n)?;
        }
        Ok(chain.host()?.first(n).expect("just brought together"))
    }

    /// `n` is more than the first fragment has, and inside.
    fn bring_together(&self, chain: &mut Chain, n: usize) -> Result<(), ChainError> {
        let room = chain.frags.first().map_or(0, |first| first.len() + first.tailroom());
        let first = if n <= room {
            None
        } else {
            let mut page = self.page()?;
            let Some(most) = page.len().checked_sub(n) else {
                return Err(ChainError::OverPage { len: n, page: page.len() });
            };
            let at = self.headroom.min(most);
            grown(chain.len, chain.true_size, 0, page.len())?;
            chain.host()?.copy_to(0, &mut writable(&mut page)[at..][..n], self.hint)?;
            Some(Fragment::new(page, at, n)?)
        };
        // Marks and checksum are about bytes, which stay what they are: only the fragments change.
        let mut front = if n == chain.len() {
            chain.true_size = 0;
            std::mem::take(&mut chain.frags)
        } else {
            chain.cut_frags(n).0
        };
        let first = first.unwrap_or_else(|| {
            let mut first = front.pop_front().expect("there are n bytes");
            front.iter().for_each(|next| first.grow_back(next.host_bytes(), self.hint));
            first
        });
        // Nobody else holds this page, so no other fragment is in it.
        chain.true_size += first.page().len() as u32;
        chain.frags.push_front(first);
        Ok(())
    }

    /// Writes `bytes` over those from byte `at` on: in place where nobody else holds the pages, else into a new page, so that
    /// others keep what they have. A [`Checksum::Known`] stays known, a [`Checksum::Verified`] is lost.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`], [`ChainError::Unreadable`], [`ChainError::NoPage`], [`ChainError::TooLong`].
    pub fn overwrite(&self, chain: &mut Chain, at: usize, bytes: &[u8]) -> Result<(), ChainError> {
        chain.host()?;
        chain.inside(at.saturating_add(bytes.len()))?;
        if bytes.is_empty() {
            return Ok(());
        }
        let checksum = match chain.checksum {
            Checksum::Known(sum) => {
                let old = chain.host()?.sum(at, bytes.len())?;
                Checksum::Known(sum.changed(old, Sum::of(bytes), at))
            }
            Checksum::Verified => Checksum::None,
            other => other,
        };
        let (first, within) = chain.locate(at);
        let (last, _) = chain.locate(at + bytes.len() - 1);
        let mut touched = chain.frags.iter_from(first).take(last - first + 1);
        if touched.all(|fragment| fragment.page().is_unique()) {
            let (mut within, mut rest) = (within, bytes);
            for index in first..=last {
                let fragment = chain.frags.get_mut(index).expect("located");
                let (piece, after) = rest.split_at(rest.len().min(fragment.len() - within));
                fragment.write(within, piece, self.hint);
                (within, rest) = (0, after);
            }
        } else {
            self.replace(chain, at, bytes)?;
        }
        chain.checksum = checksum;
        Ok(())
    }

    /// Puts new fragments with `bytes` into the place of those from byte `at` on.
    fn replace(&self, chain: &mut Chain, at: usize, bytes: &[u8]) -> Result<(), ChainError> {
        let mut new = self.fresh(bytes, 0)?;
        // A page on both sides of the new ones counts twice from now on.
        let largest = chain.fragments().map(|fragment| fragment.page().len()).max().unwrap_or(0);
        grown(chain.len, chain.true_size, 0, new.true_size() + largest)?;
        let (marks, checksum) = (chain.marks.take(), std::mem::take(&mut chain.checksum));
        let mut rest = chain.take();
        let fits = "checked: inside, of one kind, and not too long";
        let mut front = rest.split_to(at).expect(fits);
        rest.advance(bytes.len()).expect(fits);
        front.concat(&mut new).expect(fits);
        front.concat(&mut rest).expect(fits);
        *chain = front;
        (chain.marks, chain.checksum) = (marks, checksum);
        Ok(())
    }

    /// Finishes a [`Checksum::Partial`]: sums what it covers, the pseudo-header's sum in the field among it, and stores the
    /// complement (skb_checksum_help()). A zero is stored as 0xffff, which means the same and is not UDP's "none". Without
    /// anything to finish, does nothing.
    ///
    /// # Errors
    ///
    /// As [`Writer::overwrite`]: with a payload that cannot be read only a device can finish it.
    pub fn finish(&self, chain: &mut Chain) -> Result<(), ChainError> {
        let Checksum::Partial { start, offset } = chain.checksum else { return Ok(()) };
        let start = usize::from(start);
        let sum = chain.host()?.sum(start, chain.len() - start)?;
        let stored = if sum.checksum() == 0 { 0xffff } else { sum.checksum() };
        self.overwrite(chain, start + usize::from(offset), &stored.to_be_bytes())?;
        chain.checksum = Checksum::None;
        Ok(())
    }

    /// Copies every fragment shorter than the copy-break together with its neighbours, if that frees memory
    /// (tcp_collapse()). One that fills its page stays where it is, unless there is room for it in the page before. Returns by how much
    /// the true size fell, in bytes.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unreadable`], [`ChainError::NoPage`], [`ChainError::TooLong`].
    pub fn collapse(&self, chain: &mut Chain) -> Result<usize, ChainError> {
        chain.host()?;
        let mut packed = Chain::new();
        for fragment in chain.fragments() {
            let fills = fragment.len() == fragment.page().len() && packed.tailroom() == 0;
            if fragment.len() < self.copy_break && !fills {
                self.append(&mut packed, fragment.host_bytes())?;
            } else {
                packed.append(fragment.clone())?;
            }
        }
        let freed = chain.true_size().saturating_sub(packed.true_size());
        if freed > 0 {
            chain.frags = std::mem::take(&mut packed.frags);
            chain.true_size = packed.true_size;
        }
        Ok(freed)
    }

    /// A page that can be written.
    fn page(&self) -> Result<Page, ChainError> {
        Self::writes(self.pool.alloc()?)
    }

    /// The page, if it can be written.
    fn writes(page: Page) -> Result<Page, ChainError> {
        match Kind::of(&page) {
            Kind::Host => Ok(page),
            kind => Err(ChainError::Unreadable { index: 0, kind, device: page.device() }),
        }
    }

    /// A chain of `bytes` in new pages, the first one with `headroom`.
    fn fresh(&self, bytes: &[u8], headroom: usize) -> Result<Chain, ChainError> {
        let mut chain = Chain::new();
        let (mut at, mut rest) = (headroom, bytes);
        while !rest.is_empty() {
            let mut page = Self::writes(self.pool.alloc_for(at + rest.len())?)?;
            let n = page.len().saturating_sub(at).min(rest.len());
            if n == 0 {
                return Err(ChainError::OverPage { len: at + 1, page: page.len() });
            }
            let (piece, after) = rest.split_at(n);
            onecopy_copy::copy(&mut writable(&mut page)[at..][..n], piece, self.hint);
            chain.append(Fragment::new(page, at, n)?)?;
            (at, rest) = (0, after);
        }
        Ok(chain)
    }
}

/// Whether bytes can be copied into `chain`, as its fragment `index`.
fn takes_bytes(chain: &Chain, index: usize) -> Result<(), ChainError> {
    match chain.kind() {
        Some(Kind::Device) => Err(ChainError::MixedKinds {
            index,
            added: Kind::Host,
            added_device: None,
            chain: Kind::Device,
            chain_device: chain.device(),
        }),
        _ => Ok(()),
    }
}

/// The bytes of a page that was just taken from a pool of host memory.
fn writable(page: &mut Page) -> &mut [u8] {
    page.bytes_mut().expect("a new page of host memory is ours alone")
}
