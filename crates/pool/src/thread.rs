//! Numbers of threads: a number is never used twice, as an address would be.

use std::cell::Cell;
use std::sync::Mutex;

#[cfg(not(loom))]
std::thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}
#[cfg(loom)]
loom::thread_local! {
    static NUMBER: Cell<u64> = Cell::new(0);
}

/// This thread's number; 0, which owns nothing, if it never asked for one.
#[inline]
pub fn current() -> u64 {
    NUMBER.with(Cell::get)
}

/// This thread's number, given now if it has none.
pub fn number() -> u64 {
    static LAST: Mutex<u64> = Mutex::new(0);
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(crate::shared::count_up(&LAST));
        }
        number.get()
    })
}
