//! How such a send is made, on a socket of any protocol.

use super::{At, Drives, Lender, NotSent, Numbered, Range, Sent, Small, Takes};
use crate::socket::{Common, Protocol, Socket, Way};
use crate::stack::Shard;
use onecopy_chain::notify::zerocopy::{Begun, Tell};
use onecopy_chain::notify::{self, Segment};
use onecopy_chain::{Chain, Checksum, Writer};
use onecopy_inet::stack::slab::Id;
use onecopy_socket::{Op, Result, SendFlags};
use std::sync::Arc;
use std::time::Duration;

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

impl<P: Protocol> Socket<P> {
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
        let (inner, mut notice) = (Arc::clone(self.inner()), None);
        inner.poll_until(self.id(), wait, limit, &mut |context| {
            lender.poll_notice(context).map(|range| notice = Some(range))
        });
        Ok(notice)
    }

    pub fn set_small(&self, small: Option<Small>) -> Result<()> {
        self.lender_made()?.set_small(small);
        Ok(())
    }

    /// Who brings its sends to their end.
    pub fn at(&self) -> At {
        let inner = Arc::downgrade(self.inner());
        At::Stack { drives: inner, id: self.id(), wait: self.settings().wait() }
    }

    /// Sends `chain` by `give`, which takes bytes from the front of what it gets, and says that it would block as long as it is to be called
    /// again. Told to (only where the protocol [appends](Protocol::APPENDS)), it takes copies of them.
    pub fn lend(
        &self,
        chain: Chain,
        tell: Tell,
        flags: SendFlags,
        mut give: impl FnMut(
            &mut Shard,
            Id,
            u64,
            &mut Segment<Chain>,
            bool,
        ) -> std::result::Result<usize, P::Cause>,
    ) -> std::result::Result<Taken, NotSent> {
        let (dont_wait, hint) = (flags.contains(SendFlags::DONTWAIT), self.common().hint(flags));
        let begin = |lender: &Lender, chain| {
            lender.prepare(tell);
            self.with(|shard, _, now| {
                let (inet, pool) = shard.parts();
                let link = inet.interface().capabilities();
                let (fragments, unreadable) = (link.fragments, link.unreadable);
                let takes = Takes { fragments, unreadable, appends: P::APPENDS };
                lender.begin(takes, chain, tell, &Writer::new(pool).hint(hint), now)
            })
        };
        lend(self.lender_made(), self.common(), chain, dont_wait, begin, |begun, taken| {
            let copied = begun.is_copied();
            let sent = self.call(Op::Send, Way::Write, dont_wait, |shard, id, now| {
                let copies = shard.copies_of(begun.data.payload());
                let before = begun.data.payload().len();
                let given = give(shard, id, now, &mut begun.data, copied && P::APPENDS);
                // What was taken counts, whatever it says of the rest.
                let n = before - begun.data.payload().len();
                if n > 0 {
                    *taken += n;
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
            sent.map(drop)
        })
    }
}
