//! For how long what held sending back: the kernel's tcp_chrono, for tcpi_busy_time, tcpi_rwnd_limited and tcpi_sndbuf_limited.

use super::milliseconds;

/// What holds it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    /// Nothing waits to be sent, or acknowledged.
    #[default]
    Idle,
    /// The network, or nothing.
    Busy,
    /// The peer's window.
    Window,
    /// The send buffer.
    Buffer,
}

/// How long each held it back, in milliseconds: what the kernel counts in, too.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limited {
    by: By,
    since: u32,
    busy: u32,
    window: u32,
    buffer: u32,
}

impl Limited {
    /// From `now` on it is `by`.
    pub fn set(&mut self, now: u64, by: By) {
        if by == self.by {
            return;
        }
        *self = self.until(now);
        (self.by, self.since) = (by, milliseconds(now));
    }

    /// What it is.
    pub fn by(&self) -> By {
        self.by
    }

    /// Counts what goes on until `now`.
    fn until(mut self, now: u64) -> Limited {
        let passed = milliseconds(now).wrapping_sub(self.since);
        let count = match self.by {
            By::Idle => return self,
            By::Busy => &mut self.busy,
            By::Window => &mut self.window,
            By::Buffer => &mut self.buffer,
        };
        *count = count.saturating_add(passed);
        self
    }

    /// How long it was busy, of that held back by the window, and by the buffer, until `now`, in microseconds.
    pub fn told(&self, now: u64) -> (u64, u64, u64) {
        let told = self.until(now);
        let us = |ms: u32| u64::from(ms) * 1000;
        (us(told.busy) + us(told.window) + us(told.buffer), us(told.window), us(told.buffer))
    }
}
