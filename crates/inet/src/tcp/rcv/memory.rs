//! How much may be kept, and what is done when it is more (tcp_prune_queue).

use super::reassembly::bloated;
use super::{Accepted, Is, Receiver};
use crate::tcp::memory::Pressure;
use crate::wire::tcp::Seq;
use onecopy_chain::Writer;
use onecopy_pool::Pages;

/// Segments that are let come while memory is short.
pub(super) const FEW: u32 = 4;

impl Receiver {
    /// How short memory is for all connections together: to be said before something is taken in, or read.
    pub fn set_pressure(&mut self, pressure: Pressure) {
        self.is.set(Is::SHORT, pressure >= Pressure::Short);
        self.is.set(Is::FULL, pressure == Pressure::Full);
    }

    fn fits(&self) -> bool {
        self.held() <= self.windows.buffer().into()
    }

    /// Makes room for a segment at `incoming` (tcp_prune_queue): false if there is none.
    pub(super) fn make_room(
        &mut self,
        incoming: Seq,
        pages: Option<&dyn Pages>,
        accepted: &mut Accepted,
    ) -> bool {
        if self.is.contains(Is::FULL) {
            // What others have cannot be had here: one segment at a time goes through, for who reads it. Who is told of more would send
            // it in vain, and wait for long.
            self.acks.no_hurry();
            self.windows.shrink(1);
            return false;
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
        let held = self.held();
        if let Some(pages) = pages {
            let writer = Writer::new(pages).copy_break(pages.page_len() as usize);
            if let Some(behind) = &mut self.behind {
                behind.collapse(&writer);
            }
            if bloated(&self.queue) {
                // Without pages it stays as it is.
                let _ = self.queue.collapse(&writer, u64::MAX);
            }
        }
        accepted.collapsed = held.saturating_sub(self.held());
        if self.fits() {
            return true;
        }
        accepted.reneged = self.renege(incoming);
        self.fits()
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
