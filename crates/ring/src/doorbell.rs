//! Who wakes whom, and when no system call is needed.
//!
//! Programs watch the control socket of a connection with poll and epoll, so its queue mirrors the ring.
//! Doorbells and fillers are bytes on it, all alike. Only their number in the receiver's queue counts:
//!
//! ```text
//! bytes queued = (armed == RUNG ? 1 : 0) + (parked == PARKED ? filler + 1 : 0)
//! ```
//!
//! This holds except for bytes under way. The sender sends one byte for each ARMED -> RUNG that it makes. The
//! receiver takes one for each RUNG -> ARMED. So a receiver that leaves data behind keeps a doorbell pending,
//! and POLLIN stays on. A receiver that finds the ring empty takes the doorbell and arms: POLLIN goes off,
//! and the next byte rings.
//!
//! A sender without room parks a filler larger than a quarter of the socket's SO_SNDBUF, and one more byte.
//! POLLOUT is off from a quarter on (net/unix/af_unix.c, unix_writable()). Once there is room, the receiver
//! takes `filler + 1` bytes. That frees the filler, and since the bytes are all alike, it leaves a doorbell
//! exactly where one was pending.
//!
//! Both handshakes are Dekker's: store, SeqCst fence, load, on both sides. The side that publishes or gives
//! back does the fence itself, since unlocking is one ([`onecopy_sync::MutexGuard::unlock_fenced`]). Either
//! the sender sees ARMED (or the room), or the receiver sees the data (or PARKED). `models` in this file
//! proves it with loom.

use crate::{Header, PeerMisbehaved};
use onecopy_sync::atomic::{Ordering, fence};

/// A doorbell is in the receiver's queue, or on its way: the sender need not ring.
pub const RUNG: u32 = 0;
/// No doorbell is pending: the next byte published must ring.
pub const ARMED: u32 = 1;

/// No sender waits for room.
pub const FREE: u32 = 0;
/// A filler is being sent: its bytes may already be in the queue.
pub const PARKING: u32 = 1;
/// A filler is in the queue: the side that makes room takes it.
pub const PARKED: u32 = 2;

/// Largest filler in bytes that a receiver accepts: a quarter of the largest SO_SNDBUF that makes sense.
pub const MAX_FILLER: u32 = 1 << 30;

impl Header {
    /// Returns whether the receiver waits for a doorbell, as far as is seen. This look costs no locked
    /// instruction.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.writer.0.armed.load(Ordering::Relaxed) == ARMED
    }

    /// Sender, after publishing and a full fence: returns whether it must send a doorbell now.
    ///
    /// Without the fence this is an early look, which may miss a receiver that arms at this moment. If
    /// everything published was received already, no doorbell is due. It would make the receiver readable
    /// with nothing to receive.
    #[inline]
    pub fn must_ring(&self) -> bool {
        // Acquire pairs with the Release store in `arm`: the position where it armed is seen. The swap lets
        // one of two senders win; `head` has published that sender's bytes before.
        let armed = &self.writer.0.armed;
        armed.load(Ordering::Acquire) == ARMED
            && self.writer.0.head.load(Ordering::Relaxed) != self.reader.0.armed_at.load(Ordering::Relaxed)
            && armed.swap(RUNG, Ordering::Relaxed) == ARMED
    }

    /// Sender, after it has parked and then found all the room that it wanted: returns whether it must ring,
    /// although nothing was published since the receiver has armed. That receiver may have looked while the filler
    /// was under way, and would not look again.
    pub fn must_ring_for_filler(&self) -> bool {
        let armed = &self.writer.0.armed;
        // Acquire pairs with the Release store in `arm`. The fence in `parked` lies before.
        armed.load(Ordering::Acquire) == ARMED && armed.swap(RUNG, Ordering::Relaxed) == ARMED
    }

    /// Returns whether a doorbell is pending or under way.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.writer.0.armed.load(Ordering::Relaxed) == RUNG
    }

    /// Receiver: arms, with the ring empty but for the bytes that it takes now. `at` is the first byte behind
    /// those. It must then look at the ring again. It either takes the old doorbell from the queue, or calls
    /// `disarm` if there is data after all.
    #[inline]
    pub fn arm(&self, at: u64) {
        // The sender does not look there while the ring is not armed.
        self.reader.0.armed_at.store(at, Ordering::Relaxed);
        // Release pairs with the Acquire load in `must_ring`.
        self.writer.0.armed.store(ARMED, Ordering::Release);
        // Pairs with the sender's fence between publishing and `must_ring`: either it sees ARMED, or we see
        // what it published.
        fence(Ordering::SeqCst);
    }

    /// Receiver: takes the arming back, after it found data. Returns whether that came before the sender
    /// rang. If not, a new doorbell is on its way, and the old one must be taken after all.
    #[inline]
    pub fn disarm(&self) -> bool {
        self.writer.0.armed.compare_exchange(ARMED, RUNG, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Sender: begins to park, after it found less room than `wanted`. From here on bytes of a filler may be
    /// in the receiver's queue.
    #[inline]
    pub fn begin_parking(&self, wanted: usize) {
        self.reader.0.wanted.store(wanted as u64, Ordering::Relaxed);
        self.reader.0.parked.store(PARKING, Ordering::Relaxed);
    }

    /// Sender, whose filler is parked already: waits for that much room now. It must then look for room
    /// again, as after `parked`.
    #[inline]
    pub fn want(&self, wanted: usize) {
        self.reader.0.wanted.store(wanted as u64, Ordering::Relaxed);
        // Pairs with the receiver's fence before `must_unpark`: either it takes the filler, or we see the
        // room that it made.
        fence(Ordering::SeqCst);
    }

    /// Sender: notes that a filler of that many bytes is in the queue, and one more byte. It must then look
    /// for room again.
    #[inline]
    pub fn parked(&self, filler: u32) {
        self.reader.0.filler.store(filler, Ordering::Relaxed);
        // Release pairs with the Acquire load in `must_unpark`: the sizes are seen.
        self.reader.0.parked.store(PARKED, Ordering::Release);
        // Pairs with the receiver's fence between giving back and `must_unpark`: either it sees PARKED, or we
        // see the room.
        fence(Ordering::SeqCst);
    }

    /// Sender: cancels the parking, as the filler could not be sent.
    #[inline]
    pub fn cancel_parking(&self) {
        self.reader.0.parked.store(FREE, Ordering::Relaxed);
    }

    /// Returns whether a filler is or may be in the queue.
    #[inline]
    pub fn is_parking(&self) -> bool {
        self.reader.0.parked.load(Ordering::Relaxed) != FREE
    }

    /// Returns whether a filler is in the queue.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.reader.0.parked.load(Ordering::Relaxed) == PARKED
    }

    /// Receiver, after giving room back and a full fence: returns whether a filler waits to be taken. The
    /// receiver has `room` of `capacity` bytes to offer.
    #[inline]
    pub fn must_unpark(&self, room: usize, capacity: usize) -> bool {
        let line = &self.reader.0;
        // Acquire pairs with the Release store in `parked`: the wanted room is seen.
        line.parked.load(Ordering::Acquire) == PARKED
            && room as u64 >= line.wanted.load(Ordering::Relaxed).min(capacity as u64)
    }

    /// Receiver: claims the filler. Returns the bytes to take from the queue, or 0 if another process claimed
    /// it.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Filler`].
    #[inline]
    pub fn unpark(&self) -> Result<u32, PeerMisbehaved> {
        // Acquire pairs with the Release store in `parked`.
        if self.reader.0.parked.swap(FREE, Ordering::Acquire) != PARKED {
            return Ok(0);
        }
        let filler = self.reader.0.filler.load(Ordering::Relaxed);
        if filler > MAX_FILLER { Err(PeerMisbehaved::Filler(filler)) } else { Ok(filler + 1) }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::index::{ReadIndex, WriteIndex};
    use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use loom::sync::{Arc, Condvar, Mutex};

    /// The kernel's queue: a count of bytes, and a process that may sleep on it.
    #[derive(Default)]
    struct Queue {
        bytes: Mutex<u32>,
        arrived: Condvar,
    }

    impl Queue {
        fn send(&self, n: u32) {
            *self.bytes.lock().unwrap() += n;
            self.arrived.notify_all();
        }

        fn take(&self, n: u32) -> bool {
            let mut bytes = self.bytes.lock().unwrap();
            let there = *bytes >= n;
            if there {
                *bytes -= n;
            }
            there
        }

        fn sleep_until_any(&self) {
            let mut bytes = self.bytes.lock().unwrap();
            while *bytes == 0 {
                bytes = self.arrived.wait(bytes).unwrap();
            }
        }
    }

    /// Receives `total` bytes and sleeps whenever the ring is empty, as the receiver of the crate `unix`
    /// does.
    fn receive(header: &Header, queue: &Queue, capacity: usize, total: usize) {
        let mut index = ReadIndex::new(capacity);
        let (mut got, mut doorbell_debt) = (0, 0);
        while got < total {
            let n = index.available(header, 1).unwrap();
            if n > 0 {
                index.take(n);
                index.give_back(header, index.read());
                got += n;
                continue;
            }
            if doorbell_debt > 0 && queue.take(1) {
                doorbell_debt -= 1;
                continue;
            }
            if header.is_rung() {
                header.arm(index.read());
                if index.available(header, 1).unwrap() > 0 && header.disarm() {
                    continue;
                }
                if !queue.take(1) {
                    doorbell_debt += 1;
                }
                continue;
            }
            queue.sleep_until_any();
        }
    }

    #[test]
    fn no_byte_is_slept_over() {
        loom::model(|| {
            let header = Arc::new(Header::default());
            header.arm(0);
            let queue = Arc::new(Queue::default());
            let (h, q) = (header.clone(), queue.clone());
            let receiver = loom::thread::spawn(move || receive(&h, &q, 64, 2));
            let mut index = WriteIndex::new(64);
            for _ in 0..2 {
                index.publish(&header, 1);
                fence(Ordering::SeqCst);
                if header.must_ring() {
                    queue.send(1);
                }
            }
            receiver.join().unwrap();
        });
    }

    #[test]
    fn no_room_is_slept_over() {
        // The sender fills the ring of one byte and wants to write another. The receiver takes one byte.
        // Either the sender sees the room, or the receiver takes the filler, which wakes the sender.
        loom::model(|| {
            let header = Arc::new(Header::default());
            let taken = Arc::new(AtomicUsize::new(0));
            let mut write = WriteIndex::new(1);
            write.publish(&header, 1);
            let (h, t) = (header.clone(), taken.clone());
            let receiver = loom::thread::spawn(move || {
                let mut read = ReadIndex::new(1);
                assert_eq!(read.available(&h, 1).unwrap(), 1);
                read.take(1);
                read.give_back(&h, 1);
                fence(Ordering::SeqCst);
                if h.must_unpark(1, 1) {
                    t.fetch_add(h.unpark().unwrap() as usize, SeqCst);
                }
            });
            header.begin_parking(1);
            header.parked(7);
            let room = write.room(&header, 1).unwrap();
            receiver.join().unwrap();
            assert!(room == 1 || taken.load(SeqCst) == 8, "the sender would sleep for ever");
        });
    }

    #[test]
    fn no_filler_is_slept_over() {
        // The receiver has emptied the ring while a filler was under way, looks twice, and leaves. Either it takes the
        // filler, or the sender rings.
        loom::model(|| {
            let header = Arc::new(Header::default());
            header.begin_parking(1);
            let taken = Arc::new(AtomicUsize::new(0));
            let (h, t) = (header.clone(), taken.clone());
            let receiver = loom::thread::spawn(move || {
                let mut look = || {
                    fence(SeqCst);
                    if h.must_unpark(1, 1) {
                        t.fetch_add(h.unpark().unwrap() as usize, SeqCst);
                    }
                };
                look();
                h.arm(0);
                look();
            });
            header.parked(7);
            let rung = header.must_ring_for_filler();
            receiver.join().unwrap();
            assert!(rung || taken.load(SeqCst) == 8, "both would sleep for ever");
        });
    }

    #[test]
    fn bytes_are_there_before_their_count() {
        use loom::cell::UnsafeCell;
        loom::model(|| {
            let header = Arc::new(Header::default());
            let data = Arc::new([UnsafeCell::new(0u8), UnsafeCell::new(0u8)]);
            let (h, d) = (header.clone(), data.clone());
            let receiver = loom::thread::spawn(move || {
                let mut read = ReadIndex::new(2);
                let n = read.available(&h, 1).unwrap();
                for (i, cell) in d.iter().enumerate().take(n) {
                    // SAFETY: loom checks that no write races with this.
                    assert_eq!(cell.with(|p| unsafe { *p }), i as u8 + 1);
                }
                read.take(n);
                read.give_back(&h, n as u64);
            });
            let mut write = WriteIndex::new(2);
            for (i, cell) in data.iter().enumerate() {
                // SAFETY: loom checks that no read races with this.
                cell.with_mut(|p| unsafe { *p = i as u8 + 1 });
                write.publish(&header, 1);
            }
            // Bytes that were given back may be overwritten.
            if write.room(&header, 1).unwrap() > 0 {
                // SAFETY: as above.
                data[0].with_mut(|p| unsafe { *p = 9 });
            }
            receiver.join().unwrap();
        });
    }
}
