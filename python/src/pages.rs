//! What Python holds of a stack's pages, in all connections together: bounded, or nothing could arrive any more.

use onecopy::tcp::View;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};

use crate::held::Held;
use crate::loans::lock;
use crate::on_stack::Here;
use crate::transport::Data;

/// How much of a stack's pages Python may hold.
pub struct Pages {
    state: Mutex<State>,
    /// Bytes.
    allowed: usize,
}

#[derive(Default)]
struct State {
    /// Bytes of pages that are held.
    bytes: usize,
    /// Who holds them, the one that has them for the longest first; each with a number of its own.
    held: Vec<(u64, Weak<Held>)>,
    last: u64,
    /// Receives that do not look for what can be copied out: so many, as there was too little when one last looked through all of it.
    pause: usize,
}

/// A view that keeps pages, which are counted as long as it does.
pub struct Lodger {
    view: View,
    bytes: usize,
    pages: Arc<Pages>,
}

impl Lodger {
    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// The bytes, where they lie in one piece.
    pub fn one_piece(&self) -> Option<&[u8]> {
        let mut slices = self.view.slices();
        let first = slices.next()?;
        slices.next().is_none().then_some(first)
    }
}

impl Drop for Lodger {
    fn drop(&mut self) {
        lock(&self.pages.state).bytes -= self.bytes;
    }
}

impl Pages {
    pub fn new(allowed: usize) -> Arc<Pages> {
        Arc::new(Pages { state: Mutex::default(), allowed })
    }

    /// Counts the view's pages. Where too many are held, those that nobody looks at are copied out first; where even so there are too many, this one is copied.
    pub fn lodge(self: &Arc<Pages>, view: View) -> Data {
        let bytes = view.true_size();
        if !self.charge(bytes) {
            if self.may_relieve() {
                self.relieve();
            }
            if !self.charge(bytes) {
                return Data::Own(view.to_vec());
            }
        }
        Data::Pages(Here::new(Lodger { view, bytes, pages: Arc::clone(self) }))
    }

    fn charge(&self, bytes: usize) -> bool {
        let mut state = lock(&self.state);
        let fits = bytes <= self.allowed.saturating_sub(state.bytes);
        state.bytes += if fits { bytes } else { 0 };
        fits
    }

    fn may_relieve(&self) -> bool {
        let mut state = lock(&self.state);
        let now = state.pause == 0;
        state.pause = state.pause.saturating_sub(1);
        now
    }

    /// Notes who holds pages, to be copied out when they are needed.
    pub fn add(&self, held: &Arc<Held>) {
        let mut state = lock(&self.state);
        if state.held.len() == state.held.capacity() {
            state.held.retain(|(_, one)| one.strong_count() > 0);
        }
        state.last += 1;
        let number = state.last;
        state.held.push((number, Arc::downgrade(held)));
    }

    /// Copies out what nobody looks at, until half of what is allowed is free.
    fn relieve(&self) {
        // Without the lock, which whoever lets go of pages takes.
        let all = lock(&self.state).held.clone();
        let mut moved = HashSet::new();
        for (number, one) in all {
            if lock(&self.state).bytes <= self.allowed / 2 {
                break;
            }
            if one.upgrade().is_some_and(|held| held.move_out_and_count() || !held.in_place()) {
                moved.insert(number);
            }
        }
        let mut state = lock(&self.state);
        state.held.retain(|(number, one)| one.strong_count() > 0 && !moved.contains(number));
        state.pause = if state.bytes > self.allowed / 2 { state.held.len() } else { 0 };
    }
}
