//! How much may be kept, and what is done when it is more (tcp_prune_queue).

use super::reassembly::bloated;
use super::{Accepted, Is, Receiver};
use crate::tcp::memory::Pressure;
use crate::wire::tcp::Seq;
use onecopy_chain::Writer;
use onecopy_chain::notify::SegmentQueue;
use onecopy_pool::Pages;

/// Segments that are let come while memory is short.
pub(super) const FEW: u32 = 4;
/// Bytes of a page where nobody has any to say how large they are.
const PAGE: u64 = 4096;
/// Half of what a queue joins to one segment.
const HALF_SEGMENT: u64 = 32 << 10;
/// Pages that are not full, beside that, of what counts as dense.
const SPARE: u64 = 2;

/// A writer that copies all that is not a full page.
fn all(pages: &dyn Pages) -> Writer<'_, dyn Pages + '_> {
    Writer::new(pages).copy_break(usize::MAX)
}

impl Receiver {
    /// How short memory is for all connections together: to be said before something is taken in, or read.
    pub fn set_pressure(&mut self, pressure: Pressure) {
        self.is.set(Is::SHORT, pressure >= Pressure::Short);
        self.is.set(Is::FULL, pressure == Pressure::Full);
    }

    fn fits(&self) -> bool {
        self.held() <= self.windows.buffer().into()
    }

    /// Makes room for a segment at `incoming` that keeps `own` bytes of memory (tcp_prune_queue): false if there is none.
    pub(super) fn make_room(
        &mut self,
        incoming: Seq,
        own: u64,
        pages: Option<&dyn Pages>,
        accepted: &mut Accepted,
    ) -> bool {
        if self.is.contains(Is::FULL) {
            // What others have cannot be had here: one segment at a time goes through, for who reads it. Who is told of more would send
            // it in vain, and wait for long. But what this connection wins by copying it may use.
            self.acks.no_hurry();
            self.windows.shrink(1);
            accepted.collapsed = self.collapse_bloated(pages);
            return accepted.collapsed >= own;
        }
        if self.fits() {
            return true;
        }
        self.acks.no_hurry();
        match self.is.contains(Is::SHORT) {
            true => self.windows.shrink(FEW),
            false => self.windows.overrun(self.held()),
        }
        if self.fits() {
            return true;
        }
        accepted.collapsed = self.collapse_bloated(pages);
        if self.fits() {
            return true;
        }
        accepted.collapsed += self.pack(pages);
        if self.fits() || self.is_dense(pages) {
            return true;
        }
        accepted.reneged = self.renege(incoming);
        self.fits() || self.is_dense(pages)
    }

    /// Copies together what takes much more memory than it has bytes. Returns bytes of memory that are won.
    fn collapse_bloated(&mut self, pages: Option<&dyn Pages>) -> u64 {
        let Some(pages) = pages else { return 0 };
        let (writer, page) = (all(pages), u64::from(pages.page_len()));
        let worth = |bytes: &SegmentQueue| bloated(bytes, page);
        let mut won = self.behind.as_mut().map_or(0, |behind| behind.collapse(&writer, worth, u64::MAX));
        if worth(&self.queue) {
            // Where pages are missing, what was done before counts.
            let before = self.queue.true_size();
            let _ = self.queue.collapse(&writer, u64::MAX);
            won += before - self.queue.true_size();
        }
        won
    }

    /// Copies together what takes any page more than it has to, until all fits. Returns bytes of memory that are won.
    fn pack(&mut self, pages: Option<&dyn Pages>) -> u64 {
        let Some(pages) = pages else { return 0 };
        let writer = all(pages);
        let too_much = self.held().saturating_sub(self.windows.buffer().into());
        let before = self.queue.true_size();
        let _ = self.queue.collapse(&writer, too_much);
        let won = before - self.queue.true_size();
        let behind = self.behind.as_mut().filter(|_| won < too_much);
        won + behind.map_or(0, |behind| behind.collapse(&writer, |_| true, too_much - won))
    }

    /// Whether what is kept lies in hardly more pages than its bytes take. Of bytes no more come than the peer was promised, so that bounds
    /// memory as well: a promise is kept (RFC 9293, section 3.8.6), also where the buffer is smaller than a page, or was made smaller since.
    fn is_dense(&self, pages: Option<&dyn Pages>) -> bool {
        let page = pages.map_or(PAGE, |pages| pages.page_len().into());
        let (behind, blocks) = self.behind.as_ref().map_or((0, 0), |behind| behind.extents());
        let bytes = self.queue.len() + behind;
        // Of two segments of a queue at least one has 32 KiB, and each ends somewhere in a page.
        self.held() <= bytes + (bytes / HALF_SEGMENT + SPARE + blocks.min(SPARE)) * page
    }

    /// Gives the highest bytes behind a hole up, those in front of `incoming` excepted.
    fn renege(&mut self, incoming: Seq) -> u32 {
        let (buffer, in_order) = (u64::from(self.windows.buffer()), self.queue.true_size());
        let Some(behind) = &mut self.behind else { return 0 };
        let gone = behind.renege(incoming, buffer >> 3, |held| held + in_order <= buffer);
        if behind.is_empty() {
            self.behind = None;
        }
        gone
    }

    /// Gives all up that is behind a hole, where memory is short elsewhere. Returns bytes of memory that were held by it.
    pub fn give_up(&mut self) -> u64 {
        self.behind.take().map_or(0, |behind| behind.held())
    }

    /// SO_RCVBUF, as getsockopt says it: the double of what was set. It no longer grows by itself.
    pub fn set_buffer(&mut self, bytes: u32) {
        self.windows.set_buffer(bytes);
    }

    /// TCP_WINDOW_CLAMP.
    pub fn set_clamp(&mut self, bytes: u32) {
        self.windows.set_clamp(bytes);
    }

    /// SO_RCVLOWAT. Returns what is taken of it.
    pub fn set_low_water(&mut self, bytes: u32) -> u32 {
        self.low_water = self.windows.make_room(bytes);
        self.low_water
    }

    /// The longest segment that we take, less the options that each has.
    pub fn set_mss(&mut self, mss: u16) {
        self.windows.set_limit(mss);
    }
}
