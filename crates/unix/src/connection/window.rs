//! Windows: received bytes at an address that stays, while the sender gets its room back.

use crate::connection::view::{Memory, View};
use onecopy_copy::{Hint, Policy, Reader};
use onecopy_sync::atomic::{AtomicUsize, Ordering::Relaxed};
use onecopy_sys::map::Span;
use onecopy_sys::window;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The memory that views lie in, mapped once more and for reading only. It is for who hands addresses to another language, which may keep them for as
/// long as it likes: [`Window::keep`] puts a copy of the bytes under an address that was given away, so that the view can be dropped and the
/// sender gets its room back.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (a, b) = onecopy_unix::Stream::pair()?;
/// # a.send(b"bytes")?;
/// let view = b.recv_borrowed(100)?;
/// let window = view.window()?.ok_or("the bytes lie in a buffer of this process already")?;
/// let address = window.address_of(&view).ok_or("they wrap in the ring")?;
/// // `address` was given away, and is looked at for longer than the sender can wait:
/// window.keep(&[&view])?;
/// drop(view); // the bytes stay at `address` while `window` lives
/// # assert!(!address.is_null());
/// # assert_eq!(b.stats().user_copied_out, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Window {
    pages: window::Window,
    /// What is shown. It is kept mapped, so that its address stands for nothing else.
    memory: Memory,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// Whether some pages are copies: those show nothing that comes later.
    any: bool,
    /// Mappings that the window is made of, at most.
    mappings: Taken,
}

/// Mappings that all windows of this process are made of, at most.
static TAKEN: LazyLock<AtomicUsize> = LazyLock::new(|| AtomicUsize::new(0));

/// Mappings of one window, in [`TAKEN`] too. (It is a figure and publishes nothing: two windows at once may both be the last one.)
#[derive(Debug)]
struct Taken(usize);

impl Taken {
    fn set(&mut self, mappings: usize) {
        TAKEN.fetch_add(mappings, Relaxed);
        TAKEN.fetch_sub(self.0, Relaxed);
        self.0 = mappings;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Relaxed);
    }
}

impl View {
    /// Maps the memory that the bytes lie in once more, for all views of it. Returns None where they lie in a buffer of this process: that
    /// is no sender's room.
    ///
    /// # Errors
    ///
    /// ENOMEM where windows have a quarter of the mappings that the process may have (vm.max_map_count): the rest is for what was given away and has to be
    /// kept, and for all else. What mremap(2) says: ENOMEM out of mappings or address space; EINVAL where the kernel maps such memory only once.
    pub fn window(&self) -> io::Result<Option<Window>> {
        let Some(memory) = self.memory() else { return Ok(None) };
        if TAKEN.load(Relaxed) >= window::max_mappings() / 4 {
            return Err(Errno::NOMEM.into());
        }
        let pages = window::Window::over(memory.mapping())?;
        let mut mappings = Taken(0);
        mappings.set(1);
        Ok(Some(Window { pages, memory, kept: Mutex::new(Kept { any: false, mappings }) }))
    }
}

impl Window {
    /// Returns where the bytes of a view lie in this window: readable while the window lives, by whoever bears that the peer may write them
    /// meanwhile. No `&[u8]` may be made of them before [`Window::keep`] has copied them. Returns None where the view is of other memory, where it wraps in the ring, and once anything was
    /// kept: then take a new window.
    pub fn address_of(&self, view: &View) -> Option<*const u8> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let range = self.range(view).filter(|_| !kept.any)?;
        Some(self.pages.base().as_ptr().cast_const().wrapping_add(range.start))
    }

    /// Copies what is in `views`, at the addresses that [`Window::address_of`] has told. From then on the bytes there change no more, and stay
    /// while the window lives, whatever becomes of the views. Whoever reads there meanwhile reads the same bytes. Views that wrap or that lie elsewhere
    /// are left as they are. The bytes count as copied out; whole pages are copied.
    ///
    /// Pages that the kernel or a device has pinned do not follow: a write with O_DIRECT or a send with MSG_ZEROCOPY that is under way, and memory that was registered
    /// (cudaHostRegister, io_uring's buffers), go on with the sender's page. Whoever hands such an address out keeps the view until they are done.
    ///
    /// # Errors
    ///
    /// What mmap(2) and mremap(2) say, mostly ENOMEM. Nothing has changed at any address; the views are still needed.
    pub fn keep(&self, views: &[&View]) -> io::Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.any = true;
        let mut ranges: Vec<_> = views.iter().filter_map(|view| self.range(view)).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        // Neighbours in one piece: each piece is a mapping of its own, and a process has 65,530 of these.
        let mut pieces: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match pieces
                .last_mut()
                .filter(|last| range.start / PAGE * PAGE <= last.end.next_multiple_of(PAGE))
            {
                Some(last) => last.end = last.end.max(range.end),
                None => pieces.push(range),
            }
        }
        // Each is cut out of a mapping, of which both ends stay.
        let mappings = (kept.mappings.0 + 2 * pieces.len()).min(self.pages.len() / PAGE);
        kept.mappings.set(mappings);
        for piece in pieces {
            self.pages.replace(piece.start, piece.len(), copy)?;
        }
        drop(kept);
        // One memory is one end's, or one socket's lane's: all count with it.
        let here = || views.iter().filter(|view| self.range(view).is_some());
        if let Some(first) = here().next() {
            first.count_copied(here().map(|view| view.len()).sum());
        }
        Ok(())
    }

    /// Returns where in the window the bytes of a view lie, if they are of this memory and in one piece.
    fn range(&self, view: &View) -> Option<Range<usize>> {
        let memory = self.memory.mapping();
        view.memory().filter(|of| std::ptr::eq(of.mapping().base().as_ptr(), memory.base().as_ptr()))?;
        let [first, second] = view.spans();
        let start = first.as_ptr().addr().checked_sub(memory.base().addr().get())?;
        second.is_empty().then_some(start..start + first.len())
    }
}

/// Pages are at least so large. Pieces nearer to each other share one, or are neighbours.
const PAGE: usize = 4096;

fn copy(fresh: &mut [u8], shown: Span<'_>) {
    // Another program has the address, and may read the bytes at any time.
    let hint = Hint { policy: Policy::Cached, footprint: fresh.len(), reader: Reader::SameCore };
    onecopy_copy::copy_out(fresh, shown, hint);
}
