//! A guard over steps that hang.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest a step may take: they are all non-blocking or have timeouts of a few milliseconds, the rest is for a
/// machine with other work.
const LIMIT: Duration = Duration::from_secs(30);

/// What is being done, and since when.
#[derive(Default)]
struct Doing {
    seed: u64,
    step: Option<(&'static str, Instant)>,
    over: bool,
}

/// Ends the process, and names seed and step, when a step hangs: no test could otherwise.
pub struct Watch(Arc<Mutex<Doing>>);

impl Watch {
    /// Begins to watch.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Watch {
        let doing = Arc::new(Mutex::new(Doing::default()));
        let seen = doing.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(100));
                let doing = seen.lock().unwrap_or_else(|e| e.into_inner());
                match doing.step {
                    _ if doing.over => return,
                    Some((what, since)) if since.elapsed() > LIMIT => {
                        // Not eprintln: the test harness would keep it to itself, and is about to die.
                        let _ = writeln!(std::io::stderr(), "FUZZ_SEED={}: {what} hangs", doing.seed);
                        std::process::abort();
                    }
                    _ => {}
                }
            }
        });
        Watch(doing)
    }

    /// Which conversation the next steps belong to.
    pub fn seed(&self, seed: u64) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).seed = seed;
    }

    /// Does a step under watch.
    pub fn during<T>(&self, what: &'static str, step: impl FnOnce() -> T) -> T {
        let set = |step| self.0.lock().unwrap_or_else(|e| e.into_inner()).step = step;
        set(Some((what, Instant::now())));
        let result = step();
        set(None);
        result
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).over = true;
    }
}

/// A conversation, whose panic becomes an error that can be told with its seed.
///
/// # Errors
///
/// The conversation's, or its panic's message.
pub fn attempt(conversation: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(conversation)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
        Err(format!(
            "panic: {}",
            text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
        ))
    })
}
