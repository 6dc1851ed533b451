//! What std and others take bytes by: [`Read`], and a `Vec`.

use crate::connection::view::View;
use std::io::{self, Read};

impl View {
    /// Copies all that is in view to a buffer of this process, once, and gives it back to the sender. The copy is
    /// counted. Bytes that the kernel brought lie in such a buffer already, and are not copied again.
    ///
    /// ```
    /// # fn main() -> onecopy_unix::Result<()> {
    /// # let (client, server) = onecopy_unix::Stream::pair()?;
    /// # client.send(b"GET /picture")?;
    /// let view = server.recv_borrowed(1 << 20)?;
    /// let body = bytes::Bytes::from(view.into_vec()); // takes the buffer over: no further copy
    /// assert_eq!(body, &b"GET /picture"[..]);
    /// assert_eq!(server.stats().user_copied_out, 12);
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_vec(mut self) -> Vec<u8> {
        self.take_heap().unwrap_or_else(|| {
            let mut bytes = vec![0; self.len()];
            self.copy_to(&mut bytes);
            bytes
        })
    }
}

impl From<View> for Vec<u8> {
    fn from(view: View) -> Vec<u8> {
        view.into_vec()
    }
}

/// Takes bytes from the front: they are copied out, which is counted, and the sender has their room back.
///
/// ```
/// use std::io::Read;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = onecopy_unix::Stream::pair()?;
/// # client.send(b"\x05hello and more")?;
/// let mut view = server.recv_borrowed(1 << 20)?;
/// let mut length = [0];
/// view.read_exact(&mut length)?;
/// let mut greeting = String::new();
/// (&mut view).take(length[0].into()).read_to_string(&mut greeting)?;
/// assert_eq!(greeting, "hello");
/// assert_eq!(view.len(), " and more".len());
/// # Ok(())
/// # }
/// ```
impl Read for View {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.copy_to(buffer);
        self.advance(n);
        Ok(n)
    }

    /// Copies what is left in one go: how much that is, is known.
    fn read_to_end(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let start = buffer.len();
        buffer.resize(start + self.len(), 0);
        self.read(&mut buffer[start..])
    }
}
