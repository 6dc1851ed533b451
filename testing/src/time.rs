//! How long a test waits, and how long a thread slept.

use std::fs;
use std::time::{Duration, Instant};

/// How long a test waits for what must come: only what hangs takes so long, however busy the machine is.
///
/// (A test that must not wait at all, or must see that nothing comes, has a shorter time of its own.)
pub const LONG: Duration = Duration::from_secs(120);

/// What `work` comes to, and how long this thread slept meanwhile: the time in which it neither ran nor waited for a CPU. So it
/// tells whether a call waits for somebody, on a busy machine, too. Nothing where the kernel does not tell (`schedstat`).
pub fn slept<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let (before, began) = (on_a_cpu_or_waiting_for_one(), Instant::now());
    let value = work();
    // In this order: what is taken away is never more than what passed.
    let (took, after) = (began.elapsed(), on_a_cpu_or_waiting_for_one());
    let slept = before.zip(after).map(|(before, after)| took.saturating_sub(after.saturating_sub(before)));
    (value, slept.unwrap_or_default())
}

/// Since this thread began (proc(5) has the file of a process; that of a thread is alike).
fn on_a_cpu_or_waiting_for_one() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
    Some(Duration::from_nanos(numbers.next()?? + numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn who_sleeps_is_told_from_who_works() {
        let pause = Duration::from_millis(300);
        let ((), asleep) = slept(|| thread::sleep(pause));
        if on_a_cpu_or_waiting_for_one().is_none() {
            return assert_eq!(asleep, Duration::ZERO);
        }
        assert!(asleep >= pause / 2, "{asleep:?}");
        // Whatever else this machine does, the time that the thread has worked is not time in which it slept.
        let began = Instant::now();
        let ((), awake) = slept(|| {
            let before = on_a_cpu_or_waiting_for_one();
            while on_a_cpu_or_waiting_for_one() < before.map(|before| before + pause) {
                std::hint::spin_loop();
            }
        });
        assert!(awake + pause / 2 <= began.elapsed(), "{awake:?}");
    }
}
