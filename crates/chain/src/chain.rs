//! The chain: fragments one after another, and everything that needs no look at a byte.

use crate::checksum::Checksum;
use crate::error::ChainError;
use crate::fragment::Fragment;
use crate::frags::{Frags, Iter};
use crate::kind::Kind;
use crate::marks::Marks;
use onecopy_pool::DeviceId;
use std::fmt;
use std::ops::Range;

/// A run of bytes where they lie: fragments of pages in order, marks between the bytes, and what is known of the
/// checksum.
///
/// All fragments of a chain are of one [`Kind`] and, if it is a device's memory, of one device; an empty chain takes
/// the kind of what comes first. So whether bytes can be read is asked once: [`Chain::host`] gives the view that has
/// slices, and only for memory that nobody else can write. There is no other way to a byte. Our own memory may join a peer's (a header of
/// ours, a body that was lent): the chain is then of the peer's kind, and stays so, and what is cut from it, as long as it has bytes.
///
/// Everything here moves references; what copies bytes is in [`crate::Writer`] and [`crate::Host`], by name. Costs are
/// given in fragments; one is 16 bytes, and up to two need no allocation. A place in the middle is looked for from the
/// nearer end.
///
/// A chain is 64 bytes, one cache line, and has at most 4 GiB.
///
/// Invariants: `len` and `true_size` are those of the fragments; `kind` is theirs ([`Kind::join`]), or [`Kind::Peer`] where some of what
/// was there had that, and `None` just when there are none.
/// `marks` is `None` when there are none; a `Partial` checksum's field is inside.
#[derive(Default)]
pub struct Chain {
    pub(crate) frags: Frags,
    pub(crate) marks: Option<Box<Marks>>,
    pub(crate) len: u32,
    pub(crate) true_size: u32,
    pub(crate) checksum: Checksum,
    kind: Option<Kind>,
}

const _: () = assert!(size_of::<Chain>() == 64);

impl Chain {
    /// Without bytes. Allocates nothing.
    pub fn new() -> Chain {
        Chain::default()
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes. There may be marks all the same.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the pages that it keeps from being used again, as skb->truesize. Fragments of one page that follow on
    /// each other count it once; a page that comes again after another is counted again, so this is never too little.
    #[inline]
    pub fn true_size(&self) -> usize {
        self.true_size as usize
    }

    /// Whose memory its bytes lie in; `None` when there are none.
    #[inline]
    pub fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// The device that its bytes belong to, if they do.
    #[inline]
    pub fn device(&self) -> Option<DeviceId> {
        self.frags.first().and_then(Fragment::device)
    }

    /// Its fragments in order.
    pub fn fragments(&self) -> Iter<'_> {
        self.frags.iter()
    }

    /// Takes it apart: its fragments in order. Marks are dropped, descriptors among them closed.
    pub fn into_fragments(self) -> impl Iterator<Item = Fragment> {
        let Chain { mut frags, .. } = self;
        std::iter::from_fn(move || frags.pop_front())
    }

    /// How many fragments it has.
    pub fn fragment_count(&self) -> usize {
        self.frags.len()
    }

    /// Bytes in front of the first one, in its page, that [`crate::Writer::push_header`] can use: none while anybody
    /// else holds the page.
    pub fn headroom(&self) -> usize {
        self.frags.first().map_or(0, Fragment::headroom)
    }

    /// Bytes behind the last one, in its page, that [`crate::Writer::append`] can use: none while anybody else holds the
    /// page.
    pub fn tailroom(&self) -> usize {
        self.frags.last().map_or(0, Fragment::tailroom)
    }

    /// What is known of its checksum.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Says what is known of its checksum.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`] for a [`Checksum::Partial`] whose field is not inside.
    pub fn set_checksum(&mut self, checksum: Checksum) -> Result<(), ChainError> {
        if let Checksum::Partial { start, offset } = checksum {
            let at = usize::from(start) + usize::from(offset) + 2;
            if at > self.len() {
                return Err(ChainError::BeyondEnd { at, len: self.len() });
            }
        }
        self.checksum = checksum;
        Ok(())
    }

    /// Puts a fragment at the end. One that begins where the last one ends becomes part of it. O(1), amortised. A
    /// [`Checksum::Known`] or [`Checksum::Verified`] is lost: nobody has looked at these bytes.
    ///
    /// # Errors
    ///
    /// [`ChainError::MixedKinds`], [`ChainError::TooLong`]. The fragment is dropped, and with it its reference.
    #[inline]
    pub fn append(&mut self, fragment: Fragment) -> Result<(), ChainError> {
        let grown = self.grown_by(&fragment, fragment.kind())?;
        self.put(fragment, grown);
        Ok(())
    }

    /// Its length, true size and kind with `fragment`, of kind `added`, at its end, if that may be there.
    #[inline]
    fn grown_by(&self, fragment: &Fragment, added: Kind) -> Result<(u32, u32, Kind), ChainError> {
        let kind = self.takes_kind(added, fragment, self.frags.len())?;
        let (len, page) = (fragment.len(), fragment.page().len());
        let held = if self.frags.last().is_some_and(|last| last.same_page(fragment)) { 0 } else { page };
        let (len, true_size) = grown(self.len, self.true_size, len, held)?;
        Ok((len, true_size, kind))
    }

    /// Puts `fragment` at the end, which makes it what [`Chain::grown_by`] has said.
    #[inline]
    fn put(&mut self, fragment: Fragment, (len, true_size, kind): (u32, u32, Kind)) {
        match self.frags.last_mut() {
            Some(last) if last.joins(&fragment) => last.join(fragment),
            _ => self.frags.push_back(fragment),
        }
        (self.len, self.true_size, self.kind) = (len, true_size, Some(kind));
        if !matches!(self.checksum, Checksum::Partial { .. }) {
            self.checksum = Checksum::None;
        }
    }

    /// Puts a fragment in front; marks keep their place among the bytes. O(1), amortised. Of the checksum only a
    /// [`Checksum::Partial`] is left.
    ///
    /// # Errors
    ///
    /// [`ChainError::MixedKinds`], [`ChainError::TooLong`], [`ChainError::Unfinished`]. The fragment is dropped, and with it its
    /// reference.
    pub fn prepend(&mut self, fragment: Fragment) -> Result<(), ChainError> {
        self.takes(&fragment, 0)?;
        let mut chain = Chain::from(fragment);
        chain.concat(self)?;
        *self = chain;
        Ok(())
    }

    /// Moves all bytes and marks of `other` behind its own; `other` is empty then. Moves as many fragments as the shorter
    /// of the two has, and as many marks as `other` has.
    ///
    /// # Errors
    ///
    /// [`ChainError::MixedKinds`], [`ChainError::TooLong`], and [`ChainError::Unfinished`] when both have a checksum to finish. Both chains are
    /// then as they were.
    pub fn concat(&mut self, other: &mut Chain) -> Result<(), ChainError> {
        if self.is_empty() && self.marks.is_none() && !other.is_empty() {
            *self = std::mem::take(other);
            return Ok(());
        }
        if other.marks.is_none()
            && (self.checksum, other.checksum) == (Checksum::None, Checksum::None)
            && let Some(only) = other.frags.only()
        {
            // What a small send comes to. (A chain may be a peer's though what is left of it is not.)
            let grown = self.grown_by(only, other.kind.unwrap_or(only.kind()))?;
            if let Some(only) = other.frags.take_only() {
                self.put(only, grown);
            }
            (other.len, other.true_size, other.kind) = (0, 0, None);
            return Ok(());
        }
        if let (Some(first), Some(added)) = (other.frags.first(), other.kind) {
            let kind = self.takes_kind(added, first, self.frags.len())?;
            let shared = self.frags.last().filter(|last| last.same_page(first));
            let once = shared.map_or(0, |last| last.page().len());
            let (len, true_size) = grown(self.len, self.true_size, other.len(), other.true_size() - once)?;
            let checksum = match self.is_empty() {
                true => other.checksum,
                false => self.checksum.join(self.len(), other.checksum)?,
            };
            self.join_marks(other);
            self.join_frags(&mut other.frags);
            self.kind = Some(kind);
            (self.len, self.true_size, self.checksum) = (len, true_size, checksum);
        } else {
            self.join_marks(other);
        }
        // It has neither fragments nor marks any more.
        (other.len, other.true_size, other.checksum, other.kind) = (0, 0, Checksum::None, None);
        Ok(())
    }

    fn join_marks(&mut self, other: &mut Chain) {
        if let Some(mut theirs) = other.marks.take() {
            match &mut self.marks {
                Some(ours) => ours.append(&mut theirs, self.len as usize),
                None => {
                    theirs.grow_front(self.len as usize);
                    self.marks = Some(theirs);
                }
            }
        }
    }

    pub(crate) fn join_frags(&mut self, other: &mut Frags) {
        if let (Some(last), Some(first)) = (self.frags.last_mut(), other.first())
            && last.joins(first)
        {
            last.join(other.pop_front().expect("it has a first"));
        }
        self.frags.append(other);
    }

    /// Takes the first `at` bytes out, and leaves the rest. A page in which the cut falls is held by both. The marks at
    /// the cut: an end of record goes with the bytes before it, control data with those after it; a cut at the beginning
    /// takes no marks, one at the end takes all. Moves as many fragments as the shorter side has.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`]; [`ChainError::Unfinished`] when it would cut through what an unfinished checksum covers.
    pub fn split_to(&mut self, at: usize) -> Result<Chain, ChainError> {
        let marks = self.marks_before(at)?;
        self.cut(at, marks)
    }

    /// Takes all from byte `at` on out, and leaves what is before; otherwise as [`Chain::split_to`].
    ///
    /// # Errors
    ///
    /// As [`Chain::split_to`].
    pub fn split_off(&mut self, at: usize) -> Result<Chain, ChainError> {
        let front = self.split_to(at)?;
        Ok(std::mem::replace(self, front))
    }

    /// Drops the first `n` bytes and the marks before the cut: descriptors among them are closed, as by a read(2) that
    /// does not ask for them.
    ///
    /// # Errors
    ///
    /// As [`Chain::split_to`].
    pub fn advance(&mut self, n: usize) -> Result<(), ChainError> {
        // What split_to() does, without making a chain of what is dropped: acknowledged and written bytes go this way.
        let marks = self.marks_before(n)?;
        self.checksum = match n == self.len() {
            true => Checksum::None,
            false if n == 0 => self.checksum,
            false => self.checksum.cut(n)?.1,
        };
        self.len -= n as u32;
        let (mut left, mut gone) = (n, 0);
        let mut frags = self.frags.iter().peekable();
        while let Some(fragment) = frags.next_if(|fragment| fragment.len() <= left) {
            left -= fragment.len();
            gone += 1;
            if !frags.peek().is_some_and(|next| next.same_page(fragment)) {
                self.true_size -= fragment.page().len() as u32;
            }
        }
        self.frags.drop_front(gone);
        if let Some(first) = self.frags.get_mut(0).filter(|_| left > 0) {
            first.cut_front(left);
        }
        if self.len == 0 {
            self.kind = None;
        }
        if let Some(ours) = &mut self.marks {
            drop(ours.split_front(marks, n));
            self.marks = self.marks.take().filter(|marks| !marks.is_empty());
        }
        Ok(())
    }

    /// Takes the page of a fragment that is gone off the true size, unless the one that is now at that end is in it.
    fn no_longer_holds(&mut self, gone: Option<Fragment>, end: impl Fn(&Frags) -> Option<&Fragment>) {
        if let Some(gone) = gone
            && !end(&self.frags).is_some_and(|now| now.same_page(&gone))
        {
            self.true_size -= gone.page().len() as u32;
        }
        if self.len == 0 {
            self.kind = None;
        }
    }

    /// Keeps the first `n` bytes and the marks before the cut; the rest is dropped, descriptors closed. A chain that is no
    /// longer than that stays as it is.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unfinished`], as [`Chain::split_to`].
    pub fn truncate(&mut self, n: usize) -> Result<(), ChainError> {
        if n >= self.len() {
            return Ok(());
        }
        let marks = self.marks_before(n)?;
        self.checksum = if n == 0 { Checksum::None } else { self.checksum.cut(n)?.0 };
        let mut left = self.len() - n;
        self.len = n as u32;
        while left > 0
            && let Some(last) = self.frags.last_mut()
        {
            if left < last.len() {
                last.cut_back(left);
                break;
            }
            left -= last.len();
            let gone = self.frags.pop_back();
            self.no_longer_holds(gone, Frags::last);
        }
        if let Some(ours) = &mut self.marks {
            ours.truncate(marks);
            self.marks = self.marks.take().filter(|marks| !marks.is_empty());
        }
        Ok(())
    }

    /// Drops all bytes and marks.
    pub fn clear(&mut self) {
        *self = Chain::new();
    }

    /// Takes all bytes and marks out.
    pub fn take(&mut self) -> Chain {
        std::mem::take(self)
    }

    /// `len` bytes from byte `offset`, by reference: what a sender hands down, and hands down again when it was lost.
    /// Pages are shared, so neither chain can write into them until the other one is gone. Ends of records and
    /// credentials come along by the rule of [`Chain::split_to`]; descriptors have one owner and stay here. Takes a
    /// reference for each fragment.
    ///
    /// # Errors
    ///
    /// As [`Chain::split_to`].
    pub fn range(&self, offset: usize, len: usize) -> Result<Chain, ChainError> {
        let mut chain = Chain::new();
        self.range_to(offset, len, &mut chain)?;
        Ok(chain)
    }

    /// As [`Chain::range`], put where it is to be: `chain`, which is empty.
    pub(crate) fn range_to(&self, offset: usize, len: usize, chain: &mut Chain) -> Result<(), ChainError> {
        let end = offset.saturating_add(len);
        let before = self.marks_before(offset)?;
        let until = self.marks_before(end)?;
        if len == 0 {
            return Ok(());
        }
        let mut checksum = self.checksum;
        if offset > 0 {
            checksum = checksum.cut(offset)?.1;
        }
        if end < self.len() {
            checksum = checksum.cut(len)?.0;
        }
        (chain.len, chain.checksum, chain.kind) = (len as u32, checksum, self.kind);
        let (index, mut within) = self.locate(offset);
        if self.frags.len() - index > Frags::INLINE {
            // So that a long one allocates once.
            let (last, _) = self.locate(end - 1);
            chain.frags.reserve(last - index + 1);
        }
        let mut left = len;
        let mut frags = self.frags.iter_from(index);
        while left > 0
            && let Some(first) = frags.next()
        {
            // The references of those that follow on each other in one page are taken at once.
            let (mut run, mut bytes) = (1, first.len() - within);
            let more = frags.clone().take_while(|next| next.same_page(first));
            for next in more {
                if bytes >= left {
                    break;
                }
                (run, bytes) = (run + 1, bytes + next.len());
            }
            chain.true_size += first.page().len() as u32;
            let of_run = std::iter::once(first).chain(frags.by_ref().take(run as usize - 1));
            for (fragment, page) in of_run.zip(first.page().clones(run)) {
                let n = left.min(fragment.len() - within);
                chain.frags.push_back(fragment.part_with(page, within, n));
                (left, within) = (left - n, 0);
            }
        }
        if self.marks.is_some() {
            self.duplicate_marks(before..until, offset, chain);
        }
        Ok(())
    }

    /// Puts what can be had twice of the marks with these numbers into `to`, whose first byte is our byte `offset`.
    fn duplicate_marks(&self, numbers: Range<usize>, offset: usize, to: &mut Chain) {
        let marks = self.marks.iter().flat_map(|marks| marks.iter());
        for (at, mark) in marks.take(numbers.end).skip(numbers.start) {
            if let Some(mark) = mark.duplicate() {
                to.marks.get_or_insert_default().insert(at - offset, mark);
            }
        }
    }

    /// All of it by reference: [`Chain::range`] from end to end. Not `Clone`, because descriptors stay behind.
    pub fn share(&self) -> Chain {
        let mut chain = self.range(0, self.len()).expect("a whole chain cuts nothing");
        if self.is_empty() {
            chain.checksum = self.checksum;
            self.duplicate_marks(0..usize::MAX, 0, &mut chain);
        }
        chain
    }

    /// The kind that this chain has with `fragment` as number `index`, if it may be there.
    #[inline]
    fn takes(&self, fragment: &Fragment, index: usize) -> Result<Kind, ChainError> {
        self.takes_kind(fragment.kind(), fragment, index)
    }

    /// As [`Chain::takes`] of bytes of kind `added` that begin with `fragment`.
    #[inline]
    fn takes_kind(&self, added: Kind, fragment: &Fragment, index: usize) -> Result<Kind, ChainError> {
        match self.kind {
            None => Ok(added),
            // Only a device's memory has a second thing to agree on; for the rest the page is not asked.
            Some(chain) if chain == added && chain != Kind::Device => Ok(chain),
            Some(chain) => self.takes_other(chain, added, fragment, index),
        }
    }

    #[inline(never)]
    fn takes_other(
        &self,
        chain: Kind,
        added: Kind,
        fragment: &Fragment,
        index: usize,
    ) -> Result<Kind, ChainError> {
        match chain.join(added) {
            Some(kind) if kind != Kind::Device || self.device() == fragment.device() => Ok(kind),
            _ => {
                let (added_device, chain_device) = (fragment.device(), self.device());
                Err(ChainError::MixedKinds { index, added, added_device, chain, chain_device })
            }
        }
    }

    /// Which fragment byte `at` lies in and where; at the end, the one behind the last. From the nearer end.
    pub(crate) fn locate(&self, at: usize) -> (usize, usize) {
        debug_assert!(at <= self.len());
        if at <= self.len() / 2 { self.frags.find(at) } else { self.frags.find_back(self.len() - at) }
    }

    /// How many marks a cut at `at` has in front of it.
    fn marks_before(&self, at: usize) -> Result<usize, ChainError> {
        self.inside(at)?;
        Ok(self.marks.as_ref().map_or(0, |marks| marks.before_cut(at, self.len())))
    }

    pub(crate) fn inside(&self, at: usize) -> Result<(), ChainError> {
        if at <= self.len() { Ok(()) } else { Err(ChainError::BeyondEnd { at, len: self.len() }) }
    }

    /// Takes the first `at` bytes and the first `marks` marks out. `at` is inside.
    pub(crate) fn cut(&mut self, at: usize, marks: usize) -> Result<Chain, ChainError> {
        let mut front = Chain::new();
        if at == self.len() {
            // The marks behind the cut are all that stays.
            front.checksum = std::mem::take(&mut self.checksum);
            front.frags = std::mem::take(&mut self.frags);
            (front.len, front.true_size, front.kind) = (self.len, self.true_size, self.kind.take());
            (self.len, self.true_size) = (0, 0);
        } else if at > 0 {
            (front.checksum, self.checksum) = self.checksum.cut(at)?;
            (front.frags, front.true_size) = self.cut_frags(at);
            (front.len, front.kind) = (at as u32, self.kind);
            self.len -= at as u32;
        }
        if let Some(mut ours) = self.marks.take() {
            let theirs = ours.split_front(marks, at);
            front.marks = (!theirs.is_empty()).then(|| Box::new(theirs));
            self.marks = (!ours.is_empty()).then_some(ours);
        }
        Ok(front)
    }

    /// Takes the fragments of the first `at` bytes out, 0 < `at` < `len`, and says their true size; its own is set, its
    /// length is not.
    pub(crate) fn cut_frags(&mut self, at: usize) -> (Frags, u32) {
        let (index, within) = self.locate(at);
        let mut front = self.frags.split_front(index);
        if within > 0
            && let Some(first) = self.frags.get_mut(0)
        {
            front.push_back(first.part(0, within));
            first.cut_front(within);
        }
        let joint = match (front.last(), self.frags.first()) {
            (Some(last), Some(first)) if last.same_page(first) => last.page().len() as u64,
            _ => 0,
        };
        // The shorter side is counted; both together may pass 4 GiB, one does not.
        let total = u64::from(self.true_size) + joint;
        let theirs = match front.len() <= self.frags.len() {
            true => true_size(front.iter()),
            false => (total - u64::from(true_size(self.frags.iter()))) as u32,
        };
        self.true_size = (total - u64::from(theirs)) as u32;
        (front, theirs)
    }
}

impl From<Fragment> for Chain {
    /// Of this fragment alone.
    #[inline]
    fn from(fragment: Fragment) -> Chain {
        Chain {
            len: fragment.len() as u32,
            true_size: fragment.page().len() as u32,
            kind: Some(fragment.kind()),
            frags: Frags::one(fragment),
            ..Chain::default()
        }
    }
}

/// What a chain's length and true size become.
pub(crate) fn grown(len: u32, true_size: u32, more: usize, held: usize) -> Result<(u32, u32), ChainError> {
    let sum = |a: u32, b: usize| {
        let bytes = u64::from(a).saturating_add(b as u64);
        u32::try_from(bytes).map_err(|_| ChainError::TooLong { bytes })
    };
    Ok((sum(len, more)?, sum(true_size, held)?))
}

/// Of fragments in order: each page once for a run of fragments in it.
pub(crate) fn true_size<'a>(fragments: impl Iterator<Item = &'a Fragment>) -> u32 {
    let mut sum = 0;
    let mut before: Option<&Fragment> = None;
    for fragment in fragments {
        if !before.is_some_and(|before| before.same_page(fragment)) {
            sum += fragment.page().len() as u32;
        }
        before = Some(fragment);
    }
    sum
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Chain");
        out.field("len", &self.len).field("true_size", &self.true_size);
        out.field("fragments", &FragmentsOf(self)).field("checksum", &self.checksum);
        if let Some(marks) = &self.marks {
            out.field("marks", marks);
        }
        out.finish()
    }
}

struct FragmentsOf<'a>(&'a Chain);

impl fmt::Debug for FragmentsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.fragments()).finish()
    }
}
