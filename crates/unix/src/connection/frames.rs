//! Frames of records in the ring.

use crate::connection::rx::RxRing;
use onecopy_ring::record::Frame;
use onecopy_ring::{Consumer, PeerMisbehaved};

impl RxRing {
    /// Returns how many bytes of records are in the ring.
    pub fn readable(&mut self) -> std::result::Result<usize, PeerMisbehaved> {
        let (at, left) = self.rest.map_or((0, 0), |rest| (rest.left + rest.padding, rest.left));
        Ok(left + records_in(&mut self.consumer, at)?)
    }

    /// Returns the next frame, which must be a whole record. `available` bytes are known to be there.
    #[inline]
    pub fn atomic_frame(&self, available: usize) -> std::result::Result<Frame, PeerMisbehaved> {
        let frame = self.consumer.frame(0, available)?;
        if frame.end {
            Ok(frame)
        } else {
            Err(PeerMisbehaved::Frame { word: frame.len as u64, available: available as u64 })
        }
    }
}

/// Returns how many bytes of records are in the ring, from the frame `at` bytes ahead on.
pub fn records_in(consumer: &mut Consumer, mut at: usize) -> std::result::Result<usize, PeerMisbehaved> {
    let available = consumer.available(usize::MAX)?;
    let mut sum = 0;
    while at < available {
        let frame = consumer.frame(at, available)?;
        let here = at;
        at += frame.size(consumer.ring().capacity());
        sum += bytes_of(consumer, here, frame)?;
    }
    Ok(sum)
}

/// Returns how many bytes of a record are in the frame `at` bytes ahead.
fn bytes_of(consumer: &Consumer, at: usize, frame: Frame) -> std::result::Result<usize, PeerMisbehaved> {
    if frame.with.is_pool() {
        return Ok(0);
    }
    if !frame.with.has_parts() {
        return Ok(frame.len);
    }
    let parts = consumer.parts(at, frame)?;
    let mut sum = parts.bytes;
    for i in 0..parts.references {
        sum += consumer.part(at, parts, i)?.bytes() as usize;
    }
    Ok(sum)
}

impl RxRing {
    /// Returns the length of the next datagram, 0 where there is none (FIONREAD, unix(7)).
    pub fn next_datagram(&mut self) -> std::result::Result<usize, PeerMisbehaved> {
        match self.consumer.available(1)? {
            0 => Ok(0),
            available => Ok(self.consumer.frame(0, available)?.len),
        }
    }
}
