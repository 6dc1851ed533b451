//! How much memory all connections together keep (the kernel's tcp_mem; docs/decisions/0051).
//!
//! What counts is the pages that bytes keep from being used again: those that arrived and were not read, and those that were given to be
//! sent and are not acknowledged. Each call on a connection is charged with what it changed, so that a packet costs the same however many
//! connections there are.

/// How short memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Not at all.
    #[default]
    None,
    /// Windows grow no more, and what came behind holes is given up, the oldest first (tcp_under_memory_pressure()).
    Short,
    /// None is left: what comes is dropped where there is something to be read, and the program may send a little and no more.
    Full,
}

/// What is used of it.
#[derive(Debug, Default)]
pub struct Memory {
    used: u64,
    short: bool,
}

impl Memory {
    /// Bytes that all connections keep.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes until there is none.
    pub fn left(&self, limits: &[u64; 3]) -> u64 {
        limits[2].saturating_sub(self.used)
    }

    /// A connection keeps `now` bytes, and kept `before`. Whether memory has become short by that.
    pub fn change(&mut self, limits: &[u64; 3], before: u64, now: u64) -> bool {
        self.used = self.used.saturating_sub(before).saturating_add(now);
        let was = self.short;
        // It is short from the second number on, and until it falls to the first one.
        self.short = self.used > limits[1] || was && self.used > limits[0];
        self.short && !was
    }

    /// How short it is.
    pub fn pressure(&self, limits: &[u64; 3]) -> Pressure {
        match self.short || self.used > limits[1] {
            _ if self.used >= limits[2] => Pressure::Full,
            true => Pressure::Short,
            false => Pressure::None,
        }
    }

    /// Whether what came behind holes is to be given up, until it is less.
    pub fn takes_back(&self, limits: &[u64; 3]) -> bool {
        self.used > limits[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: [u64; 3] = [10, 20, 30];

    #[test]
    fn it_is_short_until_there_is_enough_again() {
        let mut memory = Memory::default();
        assert!(!memory.change(&LIMITS, 0, 20));
        assert_eq!((memory.pressure(&LIMITS), memory.left(&LIMITS)), (Pressure::None, 10));
        assert!(memory.change(&LIMITS, 0, 1));
        assert!(memory.takes_back(&LIMITS));
        assert!(!memory.change(&LIMITS, 10, 0));
        assert_eq!((memory.used(), memory.pressure(&LIMITS)), (11, Pressure::Short));
        assert!(!memory.takes_back(&LIMITS));
        memory.change(&LIMITS, 1, 0);
        assert_eq!(memory.pressure(&LIMITS), Pressure::None);
        assert!(memory.change(&LIMITS, 0, 20));
        assert_eq!((memory.pressure(&LIMITS), memory.left(&LIMITS)), (Pressure::Full, 0));
    }
}
