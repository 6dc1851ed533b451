//! Places where a test has a process killed.

/// Ends the process here, if this thread asked for it. Nothing outside of tests.
macro_rules! point {
    ($name:literal) => {
        #[cfg(test)]
        crate::failpoint::hit($name);
    };
}

#[cfg(test)]
pub use armed::{arm, hit};

#[cfg(test)]
mod armed {
    use std::cell::Cell;

    thread_local! {
        static POINT: Cell<(&'static str, u32)> = const { Cell::new(("", 0)) };
    }

    /// From here on the `nth` passage (from 1) of a point by this thread kills this process.
    pub fn arm(name: &'static str, nth: u32) {
        POINT.set((name, nth));
    }

    pub fn hit(name: &str) {
        let (armed, left) = POINT.get();
        if armed == name && left > 0 {
            POINT.set((armed, left - 1));
            if left == 1 {
                onecopy_sys::fork::kill_self();
            }
        }
    }
}
