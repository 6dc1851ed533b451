//! Which stores a sending side takes: what was asked for, or what its [`Learner`] finds out.

use crate::core::Core;
use crate::core::hint::{planned, stored};
use onecopy_copy::{Hint, LEARN_MIN, Learner, Policy, Reader};
use onecopy_ring::Producer;
use onecopy_socket::SendFlags;
use std::time::Instant;

/// What a sending side knows about stores.
#[derive(Debug, Default)]
pub enum Stores {
    /// Nothing long enough was sent under [`Policy::Auto`] yet.
    #[default]
    Unasked,
    /// There is nothing to learn: see [`Learner::for_ring`].
    Planned,
    /// It learns.
    Learning(Box<Learning>),
}

#[derive(Debug)]
pub struct Learning {
    learner: Learner,
    /// Whom it learns about. Another reader is another matter.
    reader: Reader,
    /// When its clock began.
    began: Instant,
}

impl Learning {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Looks how far sender and reader are, if it is time. Returns how the next `len` bytes are to be copied.
    #[inline]
    fn hint(&mut self, core: &Core, producer: &mut Producer, hint: Hint, len: usize) -> Hint {
        if self.learner.wants_entry() {
            self.learner.enter(self.now());
        }
        if self.learner.is_due(producer.head()) {
            self.look(core, producer);
        }
        if self.learner.is_planned() { planned(hint, len) } else { stored(hint, self.learner.store()) }
    }

    #[cold]
    fn look(&mut self, core: &Core, producer: &mut Producer) {
        // Room for a whole ring is more than is known, so that the reader's position is read anew. An impossible one is
        // found by the send that needs the room.
        let _ = producer.room(producer.ring().capacity());
        let [head, tail, _] = producer.state();
        let before = self.learner.explored();
        if self.learner.look(self.now(), head, tail) {
            core.settings().set_learned(Some(self.learner.learned()));
        }
        core.counters().explored.add_exclusive((self.learner.explored() - before) as usize);
    }
}

impl Stores {
    /// Returns how the next `len` bytes are to be copied into the ring of `producer`.
    #[inline]
    pub(super) fn hint(
        &mut self,
        core: &Core,
        producer: &mut Producer,
        flags: SendFlags,
        len: usize,
    ) -> Hint {
        let hint = core.hint(flags, producer.ring().capacity());
        if len < LEARN_MIN || hint.policy != Policy::Auto {
            return hint;
        }
        match self {
            Stores::Planned => hint,
            Stores::Learning(learning) if learning.reader == hint.reader => {
                learning.hint(core, producer, hint, len)
            }
            Stores::Unasked | Stores::Learning(_) => {
                self.begin_to_learn(core, producer, hint);
                planned(hint, len)
            }
        }
    }

    #[cold]
    fn begin_to_learn(&mut self, core: &Core, producer: &Producer, hint: Hint) {
        *self = match Learner::for_ring(hint.footprint, producer.head(), hint.reader) {
            None => Stores::Planned,
            Some(learner) => {
                core.settings().set_learned(Some(learner.learned()));
                let learning = Learning { learner, reader: hint.reader, began: Instant::now() };
                Stores::Learning(Box::new(learning))
            }
        };
    }

    /// Notes that a send ends: what comes until the next one is not its time.
    #[inline]
    pub(super) fn sent(&mut self) {
        if let Stores::Learning(learning) = self
            && learning.learner.is_timing()
        {
            let now = learning.now();
            learning.learner.leave(now);
        }
    }
}
