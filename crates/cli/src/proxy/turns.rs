//! Bodies of many clients on one thread.

/// After this many bytes without a wait, other connections get their turn.
const TURN: u64 = 4 << 20;

/// Bytes of a body that were moved since others had their turn.
#[derive(Debug, Default)]
pub struct Turns(u64);

impl Turns {
    /// Lets others have their turn, if `moved` more bytes make it due.
    pub async fn take(&mut self, moved: usize) {
        self.0 += moved as u64;
        if self.0 >= TURN {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }
}
