//! How such a send is made, on a socket of any protocol.

use super::{At, Lender, NotSent, Numbered, Range, Sent};
use crate::socket::{Protocol, Socket, Way};
use crate::stack::{Shard, poll_until};
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_chain::notify::{self, Segment};
use onecopy_chain::{Chain, Writer};
use onecopy_inet::stack::slab::Id;
use onecopy_socket::{Op, Result, SendFlags};
use std::sync::Arc;
use std::time::Duration;

/// What became of a send of which something was taken.
struct Taken {
    handle: Option<notify::Sent>,
    number: Option<u32>,
    chain: Chain,
    rest: Chain,
}

impl<P: Protocol> Socket<P> {
    /// Itself: the kernel's sockets have none.
    pub fn on_stack(&self) -> Result<&Socket<P>> {
        Ok(self)
    }

    /// What it has for such sends, if it was needed.
    pub fn lender(&self) -> Option<&Lender> {
        self.lender.get()
    }

    /// The same, made if there is none.
    pub fn lender_made(&self) -> Result<&Lender> {
        match self.lender.get() {
            Some(lender) => Ok(lender),
            None => {
                let fresh = Lender::new(self.inner().account())?;
                Ok(self.lender.get_or_init(|| fresh))
            }
        }
    }

    pub fn wait_notice(&self, limit: Option<Duration>) -> Result<Option<Range>> {
        let (lender, wait) = (self.lender_made()?, self.settings().wait());
        Ok(poll_until(self.inner(), self.id(), wait, limit, |context| lender.poll_notice(context)))
    }

    /// Sends `chain` by `give`, which takes bytes from the front of what it gets, and says that it would block as long as it is to be called
    /// again. A handle tells of it.
    pub fn send_lent(
        &self,
        chain: Chain,
        flags: SendFlags,
        give: impl FnMut(&mut Shard, Id, u64, &mut Segment<Chain>) -> std::result::Result<usize, P::Cause>,
    ) -> std::result::Result<Sent, NotSent> {
        let taken = self.lend(chain, Tell::Handle, flags, give)?;
        let at = At { inner: Arc::downgrade(self.inner()), id: self.id(), wait: self.settings().wait() };
        Ok(Sent::new(taken.handle, taken.chain, taken.rest, at))
    }

    /// As [`Socket::send_lent`]; a notice tells of it.
    pub fn send_numbered(
        &self,
        chain: Chain,
        flags: SendFlags,
        give: impl FnMut(&mut Shard, Id, u64, &mut Segment<Chain>) -> std::result::Result<usize, P::Cause>,
    ) -> std::result::Result<Numbered, NotSent> {
        let taken = self.lend(chain, Tell::Notice, flags, give)?;
        Ok(Numbered { number: taken.number, len: taken.chain.len(), rest: taken.rest })
    }

    fn lend(
        &self,
        mut chain: Chain,
        tell: Tell,
        flags: SendFlags,
        mut give: impl FnMut(&mut Shard, Id, u64, &mut Segment<Chain>) -> std::result::Result<usize, P::Cause>,
    ) -> std::result::Result<Taken, NotSent> {
        let dont_wait = flags.contains(SendFlags::DONTWAIT);
        let (lender, _one) = match (self.lender_made(), self.common().send_alone(dont_wait)) {
            (Ok(lender), Ok(one)) => (lender, one),
            (Err(error), _) | (_, Err(error)) => return Err(NotSent { chain, error }),
        };
        lender.prepare();
        let (shared, hint) = (chain.share(), self.common().hint(flags));
        let begun = self.with(|shard, _, now| {
            let (inet, pool) = shard.parts();
            lender.begin(inet, shared, tell, &Writer::new(pool).hint(hint), now)
        });
        let (mut begun, number) = match begun {
            Ok(begun) => begun,
            Err(error) => return Err(NotSent { chain, error }),
        };
        let copied = begun.is_copied();
        let mut taken = 0;
        let sent = self.call(Op::Send, Way::Write, dont_wait, |shard, id, now| {
            let copies = shard.copies_of(begun.data.payload());
            let before = begun.data.payload().len();
            let given = give(shard, id, now, &mut begun.data);
            // What was taken counts, whatever it says of the rest.
            let n = before - begun.data.payload().len();
            if n > 0 {
                taken += n;
                match copied {
                    true => self.copied_in(n, hint, copies > 0),
                    false => self.referenced(n, copies),
                }
            }
            given
        });
        if sent.is_err() {
            self.fell_short(Way::Write);
        }
        let (handle, number) = lender.end((begun, number));
        match sent {
            Err(error) if taken == 0 => Err(NotSent { chain, error }),
            _ => {
                // Nothing is in the way of it: what was sent was cut there, too.
                let rest = chain.split_off(taken).unwrap_or_default();
                Ok(Taken { handle, number, chain, rest })
            }
        }
    }
}
