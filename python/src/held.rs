//! Received bytes that Python holds: in the ring, in a stack's pages, in a buffer of their own, or as a copy at the address that Python knows.

use onecopy::unix::{View, Window};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::loans::{Loans, lock};
use crate::memory::Region;
use crate::on_stack::Here;
use crate::pages::{Lodger, Pages};
use crate::transport::Data;

/// Received bytes that Python holds.
pub struct Held {
    state: Mutex<State>,
    home: Arc<Loans>,
    /// What the connection had received before, in bytes of its ring.
    pub start: u64,
    pub len: usize,
}

struct State {
    place: Place,
    /// Buffers and capsules that know the address.
    exports: usize,
}

enum Place {
    /// In memory that the peer wrote to. Its address was given away in a window, if at all.
    Ring(View, Option<Seat>),
    /// In pages of a stack, which nobody writes any more: one piece of them, or several that nobody has the address of.
    Pages(Here<Lodger>),
    Own(Vec<u8>),
    /// A copy at the address that was given away.
    Kept(Seat),
    Released,
}

/// What held bytes keep of the sender's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    Nothing,
    /// A page that it has lent.
    Page,
    /// Room in its ring.
    Room,
}

/// The address of held bytes, which are neither moved nor given back until this is dropped.
pub struct Pinned {
    held: Arc<Held>,
    pub region: Region,
}

impl Pinned {
    /// None once the bytes were released.
    pub fn of(held: &Arc<Held>) -> Option<Pinned> {
        Some(Pinned { region: held.pin()?, held: Arc::clone(held) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.held.unpin();
    }
}

/// Where a view lies in a window.
#[derive(Clone)]
struct Seat {
    window: Arc<Window>,
    region: Region,
}

impl Held {
    /// Holds `data`, in one piece: what wraps in the ring is copied, as Python knows no buffer of two pieces.
    pub fn new(data: Data, home: &Arc<Loans>) -> Held {
        let (place, len, of_the_ring) = match data {
            Data::Place(view) if view.raw_parts()[1].1 > 0 => {
                let len = view.len();
                (Place::Own(view.into_vec()), len, len)
            }
            Data::Place(view) if view.is_in_place() => {
                let (len, is_lent) = (view.len(), view.is_lent());
                (Place::Ring(view, None), len, if is_lent { 0 } else { len })
            }
            Data::Place(view) => {
                let bytes = view.into_vec();
                let len = bytes.len();
                (Place::Own(bytes), len, len)
            }
            Data::Pages(lodger) => {
                let len = lodger.look().map_or(0, |lodger| lodger.view().len());
                (Place::Pages(lodger), len, 0)
            }
            Data::Own(bytes) => {
                let len = bytes.len();
                (Place::Own(bytes), len, len)
            }
        };
        Held::at(place, home.took(of_the_ring), len, home)
    }

    /// Holds a buffer whose bytes were received, and counted, before.
    pub fn copied(bytes: Vec<u8>, home: &Arc<Loans>) -> Held {
        let len = bytes.len();
        Held::at(Place::Own(bytes), home.received(), len, home)
    }

    fn at(place: Place, start: u64, len: usize, home: &Arc<Loans>) -> Held {
        Held { state: Mutex::new(State { place, exports: 0 }), home: Arc::clone(home), start, len }
    }

    /// Whether the bytes lie in memory that the peer, or a stack's link, wrote to.
    pub fn in_place(&self) -> bool {
        lock(&self.state).place.is_in_place()
    }

    /// The stack's, of whose pages it holds some.
    pub fn pages(&self) -> Option<Arc<Pages>> {
        match &lock(&self.state).place {
            Place::Pages(lodger) => lodger.look().map(|lodger| Arc::clone(lodger.pages())),
            _ => None,
        }
    }

    /// What it keeps of the sender's.
    pub fn keeps(&self) -> Keeps {
        let state = lock(&self.state);
        match &state.place {
            Place::Ring(view, _) if view.is_lent() => Keeps::Page,
            Place::Ring(..) => Keeps::Room,
            Place::Pages(_) | Place::Own(_) | Place::Kept(_) | Place::Released => Keeps::Nothing,
        }
    }

    /// Itself, where elements of so many bytes may lie where the bytes are; else a copy, which is counted. None once it was released.
    pub fn aligned(self: &Arc<Held>, to: usize) -> Option<Arc<Held>> {
        if self.len == 0 || self.is_aligned(to) {
            return Some(Arc::clone(self));
        }
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes).then(|| {
            self.home.count_unaligned();
            Arc::new(Held::copied(bytes, &self.home))
        })
    }

    /// (A window is whole pages, which changes nothing of it. What lies in several pieces is brought together in a buffer, which is aligned.)
    fn is_aligned(&self, to: usize) -> bool {
        match &lock(&self.state).place {
            Place::Pages(lodger) => lodger
                .look()
                .and_then(Lodger::one_piece)
                .is_none_or(|bytes| bytes.as_ptr().addr().is_multiple_of(to)),
            Place::Ring(view, _) => view.raw_parts()[0].0.addr().is_multiple_of(to),
            Place::Own(bytes) => bytes.as_ptr().addr().is_multiple_of(to),
            Place::Kept(seat) => seat.region.at.addr().is_multiple_of(to),
            Place::Released => false,
        }
    }

    /// Gives the address away, and keeps what is there until [`Held::unpin`]. None once it was released.
    pub fn pin(&self) -> Option<Region> {
        let mut state = lock(&self.state);
        let mut old = None;
        if let Place::Ring(view, seat @ None) = &mut state.place {
            *seat = self.home.window(view).map(|(window, region)| Seat { window, region });
            if seat.is_none() {
                // No copy could ever be laid under the ring's own address.
                old = Some(state.copy());
            }
        }
        let piece = |lodger: &Here<Lodger>| lodger.look().and_then(Lodger::one_piece).map(Region::of);
        if let Place::Pages(lodger) = &state.place
            && piece(lodger).is_none()
        {
            // Python knows no buffer of several pieces.
            old = Some(state.copy());
        }
        let region = match &state.place {
            Place::Ring(_, None) | Place::Released => return None,
            Place::Pages(lodger) => piece(lodger)?,
            Place::Own(bytes) => Region::of(bytes),
            Place::Ring(_, Some(seat)) | Place::Kept(seat) => seat.region,
        };
        state.exports += 1;
        drop(state);
        if old.is_some() {
            self.home.count_moved_out();
        }
        Some(if region.len == 0 { Region::EMPTY } else { region })
    }

    pub fn unpin(&self) {
        lock(&self.state).exports -= 1;
    }

    /// Gives the bytes back to the sender. False while somebody has their address.
    pub fn release(&self) -> bool {
        let mut state = lock(&self.state);
        if state.exports > 0 {
            return false;
        }
        let place = std::mem::replace(&mut state.place, Place::Released);
        drop(state);
        drop(place);
        true
    }

    /// Copies the bytes to `buffer`, which is as long as they. False once they were released.
    pub fn copy_to(&self, buffer: &mut [u8]) -> bool {
        match &lock(&self.state).place {
            Place::Ring(view, _) => view.copy_to(buffer) == buffer.len(),
            Place::Pages(lodger) => {
                lodger.look().is_some_and(|lodger| lodger.view().copy_to(buffer) == buffer.len())
            }
            Place::Own(bytes) => {
                buffer.copy_from_slice(bytes);
                true
            }
            // SAFETY: the window's pages there are copies, which nobody writes, and the seat keeps the window.
            Place::Kept(seat) => unsafe { seat.region.copy_to(buffer) },
            Place::Released => false,
        }
    }

    /// As [`Held::move_out`], and counts it.
    pub fn move_out_and_count(&self) -> bool {
        let moved = self.move_out();
        if moved {
            self.home.count_moved_out();
        }
        moved
    }

    /// Moves the bytes to a buffer, if nobody has their address. Returns whether it did.
    pub fn move_out(&self) -> bool {
        let mut state = lock(&self.state);
        if state.exports > 0 || !state.place.is_in_place() {
            return false;
        }
        let old = state.copy();
        drop(state);
        drop(old);
        true
    }
}

impl Place {
    fn is_in_place(&self) -> bool {
        matches!(self, Place::Ring(..) | Place::Pages(_))
    }
}

impl State {
    /// Moves bytes of the sender's memory, or a stack's, whose address nobody has, to a buffer. Returns the view, to be dropped once the lock is let go.
    fn copy(&mut self) -> Place {
        let bytes = match &self.place {
            Place::Ring(view, _) => {
                let mut bytes = vec![0; view.len()];
                view.copy_to(&mut bytes);
                bytes
            }
            Place::Pages(lodger) => lodger.look().map(|lodger| lodger.view().to_vec()).unwrap_or_default(),
            _ => return Place::Released,
        };
        std::mem::replace(&mut self.place, Place::Own(bytes))
    }
}

/// Puts copies where the bytes of all these lie that are in windows, so that the sender gets its room back though somebody looks at them. Returns how many were
/// moved so. One call at a time for a connection: it holds all of them at once.
pub fn keep(all: &[Arc<Held>], home: &Loans) -> u64 {
    let mut states: Vec<MutexGuard<'_, State>> = all.iter().map(|held| lock(&held.state)).collect();
    let mut old = Vec::new();
    for window in windows(&states) {
        let of = |state: &&mut MutexGuard<'_, State>| matches!(&state.place, Place::Ring(_, Some(seat)) if Arc::ptr_eq(&seat.window, &window));
        let views: Vec<&View> = states
            .iter()
            .filter_map(|state| match &state.place {
                Place::Ring(view, Some(seat)) if Arc::ptr_eq(&seat.window, &window) => Some(view),
                _ => None,
            })
            .collect();
        home.retire(&window);
        // Without memory or mappings for it, the sender waits, as without a window.
        if window.keep(&views).is_err() {
            home.note_refused();
            continue;
        }
        for state in states.iter_mut().filter(of) {
            let Place::Ring(_, Some(seat)) = &state.place else { continue };
            let kept = Place::Kept(seat.clone());
            old.push(std::mem::replace(&mut state.place, kept));
        }
    }
    drop(states);
    old.len() as u64
}

/// Returns each window that something lies in, once.
fn windows(states: &[MutexGuard<'_, State>]) -> Vec<Arc<Window>> {
    let mut found: Vec<Arc<Window>> = Vec::new();
    for state in states {
        if let Place::Ring(_, Some(seat)) = &state.place
            && !found.iter().any(|window| Arc::ptr_eq(window, &seat.window))
        {
            found.push(Arc::clone(&seat.window));
        }
    }
    found
}
