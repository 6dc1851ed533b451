//! Segments whose payload is a chain.

use super::loan::Lend;
use super::refused::Refused;
use super::segment::Segment;
use crate::chain::Chain;
use crate::error::ChainError;
use crate::fragment::Fragment;
use onecopy_pool::Page;

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
    pub fn concat(&mut self, back: Segment<Chain>) -> Result<(), (Segment<Chain>, Refused)> {
        self.join(back, |ours, mut theirs| ours.concat(&mut theirs).map_err(|_| theirs))
    }

    /// Splits at byte `at`, where all bytes are those of sends (no header is in front): see [`Segment::split_off`].
    ///
    /// # Errors
    ///
    /// As [`Chain::split_off`]; the segment is as it was.
    pub fn divide(&mut self, at: usize) -> Result<Segment<Chain>, ChainError> {
        let rest = self.payload_mut().split_off(at)?;
        Ok(self.split_off(at as u64, |_| rest))
    }
}
