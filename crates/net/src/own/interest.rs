//! What of a link wakes a sleeper.

use rustix::event::epoll::EventFlags;

/// Whether what can be received does, and whether room to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    pub read: bool,
    pub write: bool,
}

impl Interest {
    pub fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}
