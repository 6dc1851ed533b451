//! Failpoints: places where a test has a process killed, or something else happen.

/// Passes a failpoint: ends the process here, or calls what a test has put here, if this thread asked for it.
/// Does nothing outside of tests.
macro_rules! point {
    ($name:literal) => {
        #[cfg(any(test, feature = "failpoints"))]
        crate::failpoint::hit($name);
    };
}

#[cfg(any(test, feature = "failpoints"))]
pub use armed::{arm, at, hit};

#[cfg(any(test, feature = "failpoints"))]
mod armed {
    use std::cell::{Cell, RefCell};

    thread_local! {
        static POINT: Cell<(&'static str, u32)> = const { Cell::new(("", 0)) };
        static THEN: RefCell<Option<Then>> = const { RefCell::new(None) };
    }

    type Then = (&'static str, Box<dyn FnOnce()>);

    /// Calls `then` when this thread passes that point the next time. It stands for what another thread does
    /// meanwhile.
    pub fn at(name: &'static str, then: impl FnOnce() + 'static) {
        THEN.set(Some((name, Box::new(then))));
    }

    /// Kills this process when this thread passes that point for the `nth` time (from 1).
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
        // A socket may be dropped after this thread's variables are.
        let then = THEN.try_with(|then| then.borrow_mut().take_if(|then| then.0 == name));
        if let Ok(Some((_, then))) = then {
            then();
        }
    }
}
