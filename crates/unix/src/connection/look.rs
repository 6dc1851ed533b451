//! Looking at received bytes where they lie.

use crate::connection::view::View;
use onecopy_copy::{Blocks, Hint, Policy, Reader};
use onecopy_sys::map::{Spans, slice, total};
use std::fmt;
use std::ops::{Bound, RangeBounds};

/// Bytes in view, or a part of them, that can be looked at where they lie, and cannot be kept. From [`View::look`].
///
/// Its methods are those of a slice, as far as there can be such: the peer may still write these bytes, so each method
/// loads them anew, into registers, and nothing refers to them. Nothing is copied to memory or counted as copied, but for
/// [`Look::copy_to`].
///
/// **What is looked at twice may differ.** A line that [`Look::split`] cut may hold a newline a moment later. Who checks
/// bytes and then uses them takes them once: from a [`Block`](crate::Block), which does not change any more, or from a copy.
/// Lengths and ranges never change.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::io::Write;
/// # let (client, server) = onecopy_unix::Stream::pair()?;
/// (&client).write_all(b"GET /a\r\nHost: b\r\n\r\n")?;
/// let view = server.recv_borrowed(1 << 20)?;
/// let request = view.look();
/// let head = request.find(b"\r\n\r\n").and_then(|end| request.get(..end)).ok_or("no head yet")?;
/// assert!(head.starts_with(b"GET "));
/// for line in head.split(b"\r\n").skip(1) {
///     if line.starts_with(b"Host: ") {
///         let mut host = vec![0; line.len() - 6];
///         line.get(6..).ok_or("short")?.copy_to(&mut host);
///         assert_eq!(host, b"b");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Look<'a> {
    view: &'a View,
    spans: Spans<'a>,
}

impl View {
    /// Lets a program look at what is in view where it lies, without a copy: to add up, hash, search, compare or
    /// parse it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::io::Write;
    /// # let (client, server) = onecopy_unix::Stream::pair()?;
    /// (&client).write_all(b"one line\nand another\n")?;
    /// let mut view = server.recv_borrowed(1 << 20)?;
    /// assert!(view.look().starts_with(b"one"));
    /// let end = view.look().find(b"\n").ok_or("no line yet")?;
    /// view.advance(end + 1);
    /// assert!(view.look() == b"and another\n");
    /// assert_eq!(server.stats().user_copied_out, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn look(&self) -> Look<'_> {
        Look { view: self, spans: self.spans() }
    }
}

impl<'a> Look<'a> {
    /// Returns how many bytes there are.
    #[inline]
    pub fn len(&self) -> usize {
        total(&self.spans)
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part, or None where it is not inside, as a slice does.
    pub fn get(self, range: impl RangeBounds<usize>) -> Option<Look<'a>> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1)?,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        let inside = start <= end && end <= self.len();
        inside.then(|| Look { spans: slice(&self.spans, start, end - start), ..self })
    }

    /// Returns the first `mid` bytes, and the others.
    ///
    /// # Panics
    ///
    /// If there are fewer than `mid`.
    pub fn split_at(self, mid: usize) -> (Look<'a>, Look<'a>) {
        assert!(mid <= self.len(), "{mid} of {} bytes", self.len());
        let part = |from, len| Look { spans: slice(&self.spans, from, len), ..self };
        (part(0, mid), part(mid, usize::MAX))
    }

    /// Returns the bytes in order, 64 at a time and by value: what to add up, hash or parse with. Only the last block may
    /// have fewer. In a release build a loop over them is as fast as one over a slice.
    ///
    /// To add up, each word of a block has a sum of its own, which SIMD does:
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::io::Write;
    /// # let (client, server) = onecopy_unix::Stream::pair()?;
    /// # (&client).write_all(&[1; 200])?;
    /// # let view = server.recv_borrowed(1 << 20)?;
    /// let mut sums = [0u64; 8];
    /// for block in view.look().blocks() {
    ///     for (sum, word) in sums.iter_mut().zip(block.words()) {
    ///         *sum = sum.wrapping_add(word);
    ///     }
    /// }
    /// let sum = sums.into_iter().fold(0, u64::wrapping_add);
    /// # assert_eq!(sum, 25 * u64::from_ne_bytes([1; 8]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A hash takes each block as a slice, and lines are counted by where a block has their ends:
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::hash::{DefaultHasher, Hasher};
    /// # use std::io::Write;
    /// # let (client, server) = onecopy_unix::Stream::pair()?;
    /// # (&client).write_all(b"one line\nand another\n")?;
    /// # let view = server.recv_borrowed(1 << 20)?;
    /// let mut hasher = DefaultHasher::new();
    /// view.look().blocks().for_each(|block| hasher.write(&block));
    /// let lines: u32 = view.look().blocks().map(|block| block.matches(b'\n').count_ones()).sum();
    /// # assert_eq!(lines, 2);
    /// # let mut expected = DefaultHasher::new();
    /// # expected.write(b"one line\nand another\n");
    /// # assert_eq!(hasher.finish(), expected.finish());
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn blocks(self) -> Blocks<'a> {
        Blocks::new(self.spans)
    }

    /// Returns where `needle` comes first, in bytes from the start. A needle of one byte is found as fast as memory can be
    /// read. A longer one takes at worst, which a peer can bring about, the time of comparing all of it at each byte. An
    /// empty one is at 0.
    pub fn find(self, needle: &[u8]) -> Option<usize> {
        onecopy_copy::find(&self.spans, needle)
    }

    /// Whether the first bytes are these. To compare all of them there is `==`.
    pub fn starts_with(self, bytes: &[u8]) -> bool {
        self.get(..bytes.len()).is_some_and(|front| front == bytes)
    }

    /// Returns the parts between separators, as str's `split` does: where the last bytes are a separator, the last part is
    /// empty.
    ///
    /// # Panics
    ///
    /// If `separator` is empty.
    pub fn split<'s>(self, separator: &'s [u8]) -> impl Iterator<Item = Look<'a>> + use<'a, 's> {
        assert!(!separator.is_empty(), "an empty separator is everywhere");
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let whole = rest?;
            let Some(at) = whole.find(separator) else { return rest.take() };
            rest = whole.get(at + separator.len()..);
            whole.get(..at)
        })
    }

    /// Copies from the front to `buffer`, and counts it as [`View::copy_to`] does. Returns how many bytes were copied.
    pub fn copy_to(self, buffer: &mut [u8]) -> usize {
        let n = buffer.len().min(self.len());
        // As in `Ring::copy_out`: who asks for the bytes in its own buffer reads them next, on this core.
        let hint = Hint { policy: Policy::Cached, footprint: n, reader: Reader::SameCore };
        let [first, second] = slice(&self.spans, 0, n);
        let (a, b) = buffer[..n].split_at_mut(first.len());
        onecopy_copy::copy_out(a, first, hint);
        onecopy_copy::copy_out(b, second, hint);
        self.view.count_copied(n);
        n
    }
}

/// Compares all bytes with a slice, an array or a `Vec`, as they are at this moment.
impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Look<'_> {
    fn eq(&self, other: &T) -> bool {
        onecopy_copy::equal(&self.spans, other.as_ref())
    }
}

impl fmt::Debug for Look<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Look").field("len", &self.len()).finish_non_exhaustive()
    }
}
