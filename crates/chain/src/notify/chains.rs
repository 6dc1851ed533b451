//! Segments whose payload is a chain.

use super::loan::Lend;
use super::outcome::Fate;
use super::refused::Refused;
use super::segment::{Payload, Segment};
use crate::chain::Chain;
use crate::error::ChainError;
use crate::fragment::Fragment;
use onecopy_pool::Page;

const _: () = assert!(size_of::<Segment<Chain>>() == 144);

impl Payload for Chain {
    #[inline]
    fn size(&self) -> u32 {
        self.len
    }
}

impl Lend<Chain> for Chain {
    fn size(&self) -> u32 {
        // A chain has at most 4 GiB.
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    fn lend(&self, payload: &mut Chain) -> bool {
        payload.concat(&mut self.share()).is_ok()
    }
}

impl Lend<Chain> for Page {
    fn size(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    fn lend(&self, payload: &mut Chain) -> bool {
        Fragment::whole(self.clone()).is_ok_and(|fragment| payload.append(fragment).is_ok())
    }
}

impl From<Chain> for Segment<Chain> {
    /// Of sends that nobody waits for.
    fn from(chain: Chain) -> Segment<Chain> {
        Segment::new(chain)
    }
}

impl Segment<Chain> {
    /// All of it by reference, as [`Chain::share`]: what is handed down, while this one stays to be sent again. No send
    /// of it completes before both are free.
    pub fn share(&self) -> Segment<Chain> {
        Segment::from_parts(self.payload().share(), self.notif().cloned())
    }

    /// Takes over what `back` carries, behind what is here.
    ///
    /// # Errors
    ///
    /// `back` as it was, and why: see [`Segment::join`].
    #[expect(clippy::result_large_err, reason = "it is what was passed in")]
    pub fn concat(&mut self, mut back: Segment<Chain>) -> Result<(), (Segment<Chain>, Refused)> {
        self.take_over(&mut back).map_err(|why| (back, why))
    }

    /// As [`Segment::concat`], out of where it lies. On an error it is as it was.
    pub(super) fn take_over(&mut self, back: &mut Segment<Chain>) -> Result<(), Refused> {
        self.takes_references(back)?;
        // Nothing will be put where bytes of our sends are missing: what comes now lies there.
        let astray = back.notif().is_some() && self.is_astray();
        let len = self.payload().len;
        self.payload_mut().concat(back.payload_mut()).map_err(|_| Refused::Payload)?;
        self.join_references(len, back.notif_mut());
        if astray && let Some(notif) = self.notif_mut() {
            notif.pins_mut().lose_places();
        }
        Ok(())
    }

    /// Splits at byte `at`, as [`Chain::split_off`]: the rest is returned. Each part keeps those sends waiting that it has bytes of.
    ///
    /// # Errors
    ///
    /// As [`Chain::split_off`]; the segment is as it was.
    pub fn divide(&mut self, at: usize) -> Result<Segment<Chain>, ChainError> {
        let astray = self.is_astray();
        let rest = self.payload_mut().split_off(at)?;
        if astray {
            if rest.is_empty() {
                return Ok(Segment::new(rest));
            }
            if self.payload().is_empty() {
                return Ok(Segment::from_parts(rest, self.notif_mut().take()));
            }
            if let Some(notif) = self.notif_mut() {
                notif.pins_mut().lose_places();
            }
        }
        Ok(self.split_off(at as u64, |_| rest))
    }

    /// Whether sends have bytes behind the last one: somebody said [`Lane::send`](super::Lane::send) of bytes that were there already, or
    /// took some away. Nobody knows then which bytes are whose, and every part holds all, for good.
    fn is_astray(&self) -> bool {
        self.notif().is_some_and(|notif| notif.pins().end() > self.payload().len() as u64)
    }

    /// `len` bytes from byte `offset` by reference, as [`Chain::range`]: what is handed down, and handed down again when it was lost,
    /// while this one stays. The sends that it has bytes of complete when the last user of those bytes has gone. Dropped, it says
    /// nothing of what became of them, unless it is told ([`Segment::free`], [`Segment::set_fate`]): whoever has this one does.
    ///
    /// # Errors
    ///
    /// As [`Chain::range`].
    pub fn range(&self, offset: usize, len: usize) -> Result<Segment<Chain>, ChainError> {
        let mut range = Segment::default();
        self.range_to(offset, len, &mut range)?;
        Ok(range)
    }

    /// As [`Segment::range`], put where it is to be: `range`, which is empty.
    pub(super) fn range_to(
        &self,
        offset: usize,
        len: usize,
        range: &mut Segment<Chain>,
    ) -> Result<(), ChainError> {
        self.payload().range_to(offset, len, range.payload_mut())?;
        let Some(notif) = self.notif() else { return Ok(()) };
        *range.notif_mut() = if self.is_astray() && len > 0 {
            let mut all = notif.clone();
            all.pins_mut().lose_places();
            all.set_fate(Fate::Sent);
            Some(all)
        } else {
            notif.range(offset as u64, len as u64)
        };
        Ok(())
    }

    /// Frees the first `n` bytes and says what became of them: what an ACK covers.
    ///
    /// # Errors
    ///
    /// As [`Chain::split_to`]; the segment is as it was.
    pub fn advance(&mut self, n: usize, fate: Fate) -> Result<(), ChainError> {
        if self.is_astray() {
            let rest = self.divide(n)?;
            std::mem::replace(self, rest).free(fate);
            return Ok(());
        }
        // The bytes first: a send never completes before its last fragment is free.
        self.payload_mut().advance(n)?;
        self.free_places(n as u64, fate);
        Ok(())
    }

    /// Keeps the first `n` bytes, frees the rest and says what became of it. A segment that is no longer than that stays as it is.
    ///
    /// # Errors
    ///
    /// As [`Chain::truncate`]; the segment is as it was.
    pub fn truncate(&mut self, n: usize, fate: Fate) -> Result<(), ChainError> {
        if n < self.payload().len() {
            self.divide(n)?.free(fate);
        }
        Ok(())
    }
}
