//! Receives into memory of ours, by the device itself (io_uring zero copy Rx, Documentation/networking/iou-zcrx.rst; Linux 6.15).
//!
//! It takes a driver whose queues receive into memory of others, and a device that splits headers from payload. None of the machines that this was
//! written on has one: it is written against the uapi and io_uring/zcrx.c, and its refusals are the kernel's own. What a device does not put into the
//! memory the kernel copies there itself, if the memory is a file's; it says nothing of it.
//!
//! | module | what |
//! |---|---|
//! | `about` | what the kernel is told of memory |
//! | `requests` | receives under way, and what completions say of them |
//! | `refill` | [`Refill`]: the ring by which pages go back |

mod about;
mod refill;
mod requests;

pub use refill::{MOST_ENTRIES, Places, Refill};
pub use requests::{Arrival, End, Requests, Wrong};

use crate::refused::errno;
use crate::table::{Key, NOBODY, WAKE};
use about::{Area, area_reg, region_desc};
use io_uring::squeue::Entry;
use io_uring::types::{
    CancelBuilder, Fd, SubmitArgs, Timespec, io_uring_zcrx_area_reg, io_uring_zcrx_ifq_reg, io_uring_zcrx_rqe,
};
use io_uring::{IoUring, cqueue, opcode, squeue};
use onecopy_sys::map::Mapping;
use rustix::io::Errno;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a page of the kernel's, at most: regions are whole ones.
const PAGE: usize = 64 << 10;
/// Requests that are handed over by one call, and completions that there is room for: the kernel ends a receive that finds none.
const ENTRIES: u32 = 256;
const COMPLETIONS: u32 = 8192;
/// Entries of the refill ring for each page of 4 KiB: one can have several fragments, each of which goes back by itself.
const FRAGMENTS: u64 = 4;
/// How long a ring that is dropped waits for what is under way.
const PATIENCE: Duration = Duration::from_secs(10);
/// A queue that no device has.
const NO_QUEUE: u32 = u32::MAX - 1;

/// What is received into.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// A memfd's. It is mapped while it is registered, and not from then on.
    File(BorrowedFd<'a>),
    /// All of a dma-buf's (Linux 6.16).
    DmaBuf(BorrowedFd<'a>),
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMade {
    /// io_uring_setup(2) failed, or there is no memory.
    Ring(Errno),
    /// The kernel refused (IORING_REGISTER_ZCRX_IFQ): ENODEV for no device, EOPNOTSUPP where its driver cannot, ERANGE for a queue that there is not,
    /// EEXIST for one that is taken, EPERM without CAP_NET_ADMIN; EINVAL before Linux 6.15, and where headers are not split.
    Refused(Errno),
}

/// A device's queue that receives into memory of ours, and the ring that tells of it: used by the thread that made it, as the kernel takes requests of no other (IORING_SETUP_SINGLE_ISSUER).
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<onecopy_uring::zcrx::Zcrx>();
/// ```
pub struct Zcrx {
    // Dropped first: it takes the memory back from the device.
    ring: ManuallyDrop<IoUring<squeue::Entry, cqueue::Entry32>>,
    requests: ManuallyDrop<Requests>,
    refill: Arc<Refill>,
    id: u32,
    wake: Arc<dyn AsFd + Send + Sync>,
    watched: bool,
    woken: bool,
    /// No other thread's.
    here: PhantomData<*const ()>,
}

/// A receive of up to `most` bytes; of any number of them for 0.
fn recv_zc(fd: Fd, most: u32, id: u32) -> Entry {
    opcode::RecvZc::new(fd, most).ifq(id).build()
}

/// A ring as the kernel asks for one: one thread makes all requests, completions wait until it looks, and have 32 bytes.
fn ring(entries: u32, completions: u32) -> Result<IoUring<squeue::Entry, cqueue::Entry32>, Errno> {
    let mut builder = IoUring::<squeue::Entry, cqueue::Entry32>::builder();
    builder.dontfork().setup_single_issuer().setup_defer_taskrun().setup_cqsize(completions);
    builder.build(entries).map_err(|error| errno(&error))
}

impl Zcrx {
    /// Has queue `queue` of the device with index `index` receive into the first `len` bytes of `memory`, whole pages (IORING_REGISTER_ZCRX_IFQ). It takes
    /// CAP_NET_ADMIN, and the bytes count as locked (RLIMIT_MEMLOCK) without CAP_IPC_LOCK. The device's queue starts anew for it: what others receive there stops for a moment.
    /// [`Zcrx::wait`] returns whenever `wake` becomes readable.
    ///
    /// # Errors
    ///
    /// [`NotMade`].
    pub fn register(
        index: u32,
        queue: u32,
        memory: Memory<'_>,
        len: u64,
        wake: Arc<dyn AsFd + Send + Sync>,
    ) -> Result<Zcrx, NotMade> {
        let ring = ring(ENTRIES, COMPLETIONS).map_err(NotMade::Ring)?;
        let mapped = match memory {
            Memory::File(file) => {
                let len = usize::try_from(len).map_err(|_| NotMade::Ring(Errno::NOMEM))?;
                Ok(Mapping::new(file, len).map_err(NotMade::Ring)?)
            }
            Memory::DmaBuf(fd) => Err(fd),
        };
        let area = mapped.as_ref().map_or_else(|fd| Area::DmaBuf(*fd), Area::Mapped);
        let entries = u32::try_from(len / 4096 * FRAGMENTS).unwrap_or(MOST_ENTRIES).clamp(1, MOST_ENTRIES);
        let made = ask(&ring, index, queue, entries.next_power_of_two(), area_reg(&area, len));
        // The kernel has the pages; nothing here reads them.
        drop(mapped);
        let (refill, area, id) = made?;
        Ok(Zcrx {
            ring: ManuallyDrop::new(ring),
            requests: ManuallyDrop::new(Requests::new(len, area)),
            refill: Arc::new(refill),
            id,
            wake,
            watched: false,
            woken: false,
            here: PhantomData,
        })
    }

    /// Whether the device with that index might: it is asked for a queue that it has not, so that none starts anew.
    ///
    /// # Errors
    ///
    /// As [`Zcrx::register`].
    pub fn might(index: u32) -> Result<(), NotMade> {
        let ring = ring(1, 2).map_err(NotMade::Ring)?;
        let memory = Mapping::private(PAGE).map_err(NotMade::Ring)?;
        match ask(&ring, index, NO_QUEUE, 1, area_reg(&Area::Mapped(&memory), PAGE as u64)) {
            Err(NotMade::Refused(Errno::RANGE)) => Ok(()),
            Err(why) => Err(why),
            // Not to be. The ring goes now, and the queue is the device's again.
            Ok(_) => Err(NotMade::Refused(Errno::PROTO)),
        }
    }

    /// By which fragments are given back: by any thread, as long as it likes.
    pub fn refill(&self) -> &Arc<Refill> {
        &self.refill
    }

    /// Receives what comes to `fd`, a socket of TCP's, up to `most` bytes or without a limit for 0, until an [`Arrival::Ended`] comes: that it has failed, at once, where the
    /// kernel takes no requests any more.
    pub fn receive(&mut self, fd: &Arc<OwnedFd>, token: u64, most: u32) -> Key {
        let key = self.requests.begin(fd, token, most);
        if let Err(errno) = self.push(&recv_zc(Fd(fd.as_raw_fd()), most, self.id).user_data(key.0)) {
            self.requests.complete(key.0, -errno.raw_os_error(), 0, [0; 2]);
        }
        key
    }

    /// Asks for a receive to end before its time; its last word comes all the same.
    pub fn cancel(&mut self, key: Key) {
        // (Where the kernel takes no requests, the next wait says so.)
        let _ = self.push(&opcode::AsyncCancel::new(key.0).build().user_data(NOBODY));
    }

    /// What has happened, one after the other; none: [`Zcrx::wait`] for more.
    pub fn event(&mut self) -> Option<Arrival> {
        self.requests.event()
    }

    /// Hands over what was asked for, and waits up to `limit` for something to happen. Returns whether the descriptor was readable that
    /// wakes it: whoever has it reads it then.
    ///
    /// # Errors
    ///
    /// What io_uring_enter(2) says; EINTR and EBUSY are not errors.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        if !self.watched {
            let raw = Fd((*self.wake).as_fd().as_raw_fd());
            let entry = opcode::PollAdd::new(raw, libc::POLLIN as u32).multi(true).build();
            self.push(&entry.user_data(WAKE))?;
            self.watched = true;
        }
        self.enter(limit)?;
        self.reap();
        while let Some(key) = self.requests.to_cancel() {
            self.cancel(key);
        }
        Ok(std::mem::take(&mut self.woken))
    }

    fn enter(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let entered = match limit {
            None => self.ring.submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        match entered.map_err(|error| (errno(&error), error)) {
            Ok(_) | Err((Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN, _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// None of the requests refers to memory; a receive's socket is held by its place in the table. It fails where the kernel takes nothing, for a reason that does not pass.
    fn push(&mut self, entry: &Entry) -> Result<(), Errno> {
        // SAFETY: as above.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // Full: the kernel takes what is there. (It takes none while completions wait for room: EBUSY.)
            match self.ring.submit().map_err(|error| errno(&error)) {
                Ok(_) => {}
                Err(Errno::BUSY | Errno::AGAIN | Errno::INTR) => self.reap(),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn reap(&mut self) {
        for entry in self.ring.completion() {
            match entry.user_data() {
                NOBODY => {}
                WAKE => {
                    self.woken = true;
                    self.watched &= cqueue::more(entry.flags());
                }
                data => self.requests.complete(data, entry.result(), entry.flags(), *entry.big_cqe()),
            }
        }
    }
}

/// Registers the queue. What is told of the memory is the caller's: it is mapped during the call, or a dma-buf's.
fn ask(
    ring: &IoUring<squeue::Entry, cqueue::Entry32>,
    index: u32,
    queue: u32,
    entries: u32,
    mut about_area: io_uring_zcrx_area_reg,
) -> Result<(Refill, u64, u32), NotMade> {
    // A page for the head and the tail, and entries behind it.
    let len = PAGE + (entries as usize * size_of::<io_uring_zcrx_rqe>()).next_multiple_of(PAGE);
    // Private: a fork's child has a copy, and the kernel the pages that it has pinned, which stay the parent's.
    let region = Mapping::private(len).map_err(NotMade::Ring)?;
    let mut about_region = region_desc(&region);
    let mut request = io_uring_zcrx_ifq_reg {
        if_idx: index,
        if_rxq: queue,
        rq_entries: entries,
        area_ptr: (&raw mut about_area).expose_provenance() as u64,
        region_ptr: (&raw mut about_region).expose_provenance() as u64,
        ..io_uring_zcrx_ifq_reg::default()
    };
    let (about, area) = (&raw mut request, &raw mut about_area);
    // SAFETY: it is there, as are both that it points at; the kernel reads all three and writes to them, during the call alone.
    let done = ring.submitter().register_ifq(unsafe { &*about });
    // SAFETY: as above. Read where the kernel has written.
    let (request, about_area) = unsafe { (about.read_volatile(), area.read_volatile()) };
    done.map_err(|error| NotMade::Refused(errno(&error)))?;
    let offsets = request.offsets;
    let places = Places { head: offsets.head, tail: offsets.tail, entries: offsets.rqes };
    let refill = Refill::new(region, places, request.rq_entries, about_area.rq_area_token);
    Ok((refill.map_err(NotMade::Refused)?, about_area.rq_area_token, request.zcrx_id))
}

impl Drop for Zcrx {
    /// Cancels what is under way, and waits for it. Then the kernel takes the memory back from the device, at a time of its own (io_ring_exit_work()): until then the device may
    /// write there still.
    fn drop(&mut self) {
        self.refill.close();
        let all = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(NOBODY);
        let asked = self.push(&all).is_ok();
        let began = Instant::now();
        while asked && !self.requests.is_empty() && began.elapsed() < PATIENCE {
            if self.enter(Some(Duration::from_millis(50))).is_err() {
                break;
            }
            self.reap();
            while self.requests.event().is_some() {}
        }
        // SAFETY: each is dropped once, here, and used no more: this is the ring's drop. The ring goes first. (What requests hold are sockets, of which the kernel has references of
        // its own; and the kernel has pinned the refill ring's pages, which are nobody else's as long as somebody has it.)
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.requests);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_sys::eventfd::EventFd;

    /// Without a queue.
    fn without_queue() -> Option<(Zcrx, Arc<EventFd>)> {
        let made = ring(ENTRIES, COMPLETIONS)
            .inspect_err(|errno| println!("lacking: io_uring with completions of 32 bytes ({errno})"));
        let wake = Arc::new(EventFd::new().unwrap());
        let zcrx = Zcrx {
            ring: ManuallyDrop::new(made.ok()?),
            requests: ManuallyDrop::new(Requests::new(4096, 0)),
            refill: Arc::new(Refill::pretended(4)),
            id: 7,
            wake: Arc::clone(&wake) as Arc<dyn AsFd + Send + Sync>,
            watched: false,
            woken: false,
            here: PhantomData,
        };
        Some((zcrx, wake))
    }

    /// The ring itself, without a queue: this kernel refuses receives that name none, in its own words, and everything ends.
    #[test]
    fn receives_that_name_no_queue_are_refused_and_the_ring_goes_on() {
        let Some((mut zcrx, wake)) = without_queue() else { return };
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = Arc::new(OwnedFd::from(socket));
        for token in 0..3 {
            let key = zcrx.receive(&fd, token, 1 << 20);
            zcrx.cancel(key);
            assert!(!zcrx.wait(Some(Duration::ZERO)).unwrap());
            let Some(Arrival::Ended { token: of, end: End::Failed(Errno::INVAL) }) = zcrx.event() else {
                panic!("before Linux 6.15 there is no such request, and since then no such queue")
            };
            assert_eq!(of, token);
            assert!(zcrx.event().is_none() && zcrx.requests.is_empty());
        }
        wake.ring();
        assert!(zcrx.wait(None).unwrap());
        assert_eq!((wake.drain(), zcrx.requests.strays()), (1, 0));
        assert_eq!(Arc::strong_count(&fd), 1, "nothing holds the socket");
    }

    /// With a poll in the place of a receive that goes on, since this kernel has no queue that one could name.
    #[test]
    fn a_receive_of_which_the_kernel_says_what_cannot_be_is_cancelled() {
        let Some((mut zcrx, _wake)) = without_queue() else { return };
        let fd = Arc::new(OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap()));
        let key = zcrx.requests.begin(&fd, 1, 0);
        let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), libc::POLLIN as u32).build();
        zcrx.push(&entry.user_data(key.0)).unwrap();
        assert!(!zcrx.wait(Some(Duration::ZERO)).unwrap() && zcrx.event().is_none());
        // A fragment of no bytes, and more.
        zcrx.requests.complete(key.0, 0, 1 << 1, [0; 2]);
        let wrong = Arrival::Ended { token: 1, end: End::Wrong(Wrong::Empty) };
        assert_eq!((zcrx.event(), zcrx.event()), (Some(wrong), None));
        let began = Instant::now();
        while !zcrx.requests.is_empty() {
            assert!(began.elapsed() < onecopy_testing::LONG, "it goes on");
            assert!(!zcrx.wait(Some(Duration::from_millis(10))).unwrap());
        }
        assert!(zcrx.event().is_none() && Arc::strong_count(&fd) == 1, "it ends once");
    }

    struct Moved(Zcrx);
    // SAFETY: only one thread has it at a time, and the kernel refuses what another one than its maker asks.
    unsafe impl Send for Moved {}

    /// As where the kernel takes no requests: EEXIST, to every thread but one (IORING_SETUP_SINGLE_ISSUER).
    #[test]
    fn where_the_kernel_takes_no_request_a_receive_fails_and_the_ring_ends() {
        let Some((mut zcrx, _wake)) = without_queue() else { return };
        // This thread is its maker.
        assert!(!zcrx.wait(Some(Duration::ZERO)).unwrap());
        let moved = Moved(zcrx);
        let told = std::thread::spawn(move || {
            let Moved(mut zcrx) = { moved };
            let fd = Arc::new(OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap()));
            let keys: Vec<Key> = (0..=u64::from(ENTRIES)).map(|token| zcrx.receive(&fd, token, 0)).collect();
            zcrx.cancel(keys[0]);
            let failed = zcrx.wait(Some(Duration::ZERO)).unwrap_err().raw_os_error();
            (zcrx.event(), zcrx.event(), failed)
        });
        let (first, second, failed) = told.join().unwrap();
        let end = End::Failed(Errno::EXIST);
        assert_eq!(first, Some(Arrival::Ended { token: ENTRIES.into(), end }));
        assert_eq!((second, failed), (None, Some(Errno::EXIST.raw_os_error())));
    }
}
