//! How a send without a copy is made, whoever carries its bytes.

use super::common::Common;
use crate::zerocopy::{At, Lender, NotSent, Numbered, Sent};
use onecopy_chain::notify;
use onecopy_chain::notify::zerocopy::Begun;
use onecopy_chain::{Chain, Checksum};
use onecopy_socket::Result;

/// What became of a send of which something was taken.
pub(crate) struct Taken {
    handle: Option<notify::Sent>,
    number: Option<u32>,
    chain: Chain,
    rest: Chain,
}

impl Taken {
    /// As what a handle tells of.
    pub fn sent(self, at: At) -> Sent {
        Sent::new(self.handle, self.chain, self.rest, at)
    }

    /// As what a notice tells of.
    pub fn numbered(self) -> Numbered {
        Numbered { number: self.number, len: self.chain.len(), rest: self.rest }
    }
}

/// A send of `chain`: `begin` charges it, `give` has the socket take bytes from its front, as many as it will, and counts them.
pub(crate) fn lend(
    lender: Result<&Lender>,
    common: &Common,
    mut chain: Chain,
    dont_wait: bool,
    begin: impl FnOnce(&Lender, Chain) -> Result<(Begun, u64)>,
    give: impl FnOnce(&mut Begun, &mut usize) -> Result<()>,
) -> std::result::Result<Taken, NotSent> {
    let (lender, _one) = match (lender, common.send_alone(dont_wait)) {
        (Ok(lender), Ok(one)) => (lender, one),
        (Err(error), _) | (_, Err(error)) => return Err(NotSent { chain, error }),
    };
    let mut shared = chain.share();
    leave_unfinished(&mut shared);
    let (mut begun, number) = match begin(lender, shared) {
        Ok(begun) => begun,
        Err(error) => return Err(NotSent { chain, error }),
    };
    let mut taken = 0;
    let sent = give(&mut begun, &mut taken);
    let (handle, number) = lender.end((begun, number));
    match sent {
        Err(error) if taken == 0 => Err(NotSent { chain, error }),
        _ => {
            if taken < chain.len() {
                leave_unfinished(&mut chain);
            }
            // Nothing is in the way of it: what was sent was cut there, too.
            let rest = chain.split_off(taken).unwrap_or_default();
            Ok(Taken { handle, number, chain, rest })
        }
    }
}

/// Bytes go as they lie, in the pieces that there is room for: a checksum that is to be finished would be in the way of a cut.
pub(crate) fn leave_unfinished(chain: &mut Chain) {
    if matches!(chain.checksum(), Checksum::Partial { .. }) {
        let _ = chain.set_checksum(Checksum::None);
    }
}
