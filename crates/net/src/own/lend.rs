//! Sends without a copy, on a socket of any protocol.

use super::shard::Shard;
use super::socket::{Protocol, Socket};
use crate::carrier::{Taken, Way, lend};
use crate::zerocopy::{At, Drives, Lender, NotSent, Range, Small, Takes};
use onecopy_chain::notify::Segment;
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::stack::slab::Id;
use onecopy_socket::{Op, Result, SendFlags};
use std::sync::Arc;
use std::time::Duration;

impl<P: Protocol> Socket<P> {
    /// What it has for such sends, if it was needed.
    pub fn lender(&self) -> Option<&Lender> {
        self.rare()?.lender.get()
    }

    /// The same, made if there is none.
    pub fn lender_made(&self) -> Result<&Lender> {
        let place = &self.rare_made().lender;
        match place.get() {
            Some(lender) => Ok(lender),
            None => {
                let fresh = Lender::new(self.inner().account())?;
                Ok(place.get_or_init(|| fresh))
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
        // Told again by the next such send, where it is still measured.
        self.common().settings().set_copied_up_to(None);
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
            self.common().settings().set_copied_up_to(lender.prepare(tell));
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
