//! What a link is.

use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;

/// Where segments leave.
pub trait Link {
    /// Takes `segment`, and frees it once its bytes have left, saying how ([`Fate`](onecopy_chain::notify::Fate)): at that
    /// moment, if nobody else holds it, the sends that it carries bytes of complete.
    fn transmit(&mut self, segment: Segment<Chain>);
}
