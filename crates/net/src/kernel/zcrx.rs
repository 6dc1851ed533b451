//! Memory that a NIC's queue receives into, as io_uring tells of it (zero copy Rx, Documentation/networking/iou-zcrx.rst): a ring of its own for each binding, and
//! the thread that makes its requests, since the kernel asks that one does (IORING_SETUP_SINGLE_ISSUER).
//!
//! Where device memory TCP has the program ask for fragments, here the ring tells of them ([`Flow`]): a connection's receive is under way until as many bytes
//! have come as may wait for it. Pages go back by a ring, too, without a call. What is the same is in `placed`, and so is what programs see.

mod flow;

pub(super) use flow::Flow;

use crate::carrier::NotByNic;
use onecopy_pool::DeviceMemory;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU64;
use onecopy_sys::eventfd::EventFd;
use onecopy_sys::netdev::Netdev;
use onecopy_sys::signal;
use onecopy_uring::Key;
use onecopy_uring::zcrx::{Arrival, Memory, NotMade, Refill, Zcrx};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the thread looks for room in the refill ring, while fragments wait for it: the kernel takes entries without a word.
const NO_ROOM: Duration = Duration::from_millis(5);
/// Looks at what has come before a binding ends, at most.
const LAST_LOOKS: usize = 64;
/// How long the kernel may take to take a queue back.
const PATIENCE: Duration = Duration::from_secs(10);

/// A ring; a test's in its place.
pub(super) trait Rx {
    fn receive(&mut self, fd: &Arc<OwnedFd>, token: u64, most: u32) -> Key;
    fn cancel(&mut self, key: Key);
    fn wait(&mut self, limit: Option<Duration>) -> std::io::Result<bool>;
    fn event(&mut self) -> Option<Arrival>;
}

impl Rx for Zcrx {
    fn receive(&mut self, fd: &Arc<OwnedFd>, token: u64, most: u32) -> Key {
        Zcrx::receive(self, fd, token, most)
    }
    fn cancel(&mut self, key: Key) {
        Zcrx::cancel(self, key);
    }
    fn wait(&mut self, limit: Option<Duration>) -> std::io::Result<bool> {
        Zcrx::wait(self, limit)
    }
    fn event(&mut self) -> Option<Arrival> {
        Zcrx::event(self)
    }
}

/// What connections and the ring's thread share.
pub(super) struct Hub {
    inbox: Mutex<Inbox>,
    wake: Arc<EventFd>,
    refill: Arc<Refill>,
    names: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    /// Who wants the thread to look.
    wanting: Vec<Arc<Flow>>,
    /// The thread sleeps, and is to be woken.
    asleep: bool,
    stop: bool,
    /// The thread has ended: nobody would come.
    gone: bool,
}

/// The ring's thread, and whose queue it is. Dropped, the queue is the device's again.
pub(super) struct Bound {
    hub: Arc<Hub>,
    thread: Option<JoinHandle<()>>,
    /// The interface's index and the queue; none of a test's.
    queue: Option<(u32, u32)>,
    /// Whose thread it is.
    pid: u32,
}

impl Bound {
    /// Has a queue of the interface with that index receive into `memory`.
    ///
    /// # Errors
    ///
    /// [`NotByNic`]; then nothing is bound.
    pub fn new(index: u32, queue: u32, memory: &DeviceMemory) -> Result<Bound, NotByNic> {
        let (file, len) = (memory.file(), memory.len());
        // A file's pages the kernel can write as well, where the NIC does not.
        let dma_buf = match &file {
            Some(_) => None,
            None => Some(memory.dma_buf().map_err(NotByNic::Memory)?),
        };
        let made = Bound::start(Some((index, queue)), move |wake| {
            let memory = match (&file, &dma_buf) {
                (_, Some(dma_buf)) => Memory::DmaBuf(dma_buf.as_fd()),
                (Some(file), None) => Memory::File(file.as_fd()),
                (None, None) => return Err(NotMade::Ring(Errno::OPNOTSUPP)),
            };
            let ring = Zcrx::register(index, queue, memory, len, wake)?;
            let refill = Arc::clone(ring.refill());
            Ok((ring, refill))
        });
        made.map_err(|why| match why {
            NotMade::Ring(errno) => NotByNic::NoRing(errno),
            NotMade::Refused(errno) => NotByNic::RingRefused(errno),
        })
    }

    /// Around a ring that `make` makes, in its own thread.
    fn start<R: Rx>(
        queue: Option<(u32, u32)>,
        make: impl FnOnce(Arc<EventFd>) -> Result<(R, Arc<Refill>), NotMade> + Send + 'static,
    ) -> Result<Bound, NotMade> {
        let (tell, told) = sync_channel(1);
        let run = move || {
            let made = EventFd::new().map_err(NotMade::Ring).and_then(|wake| {
                let wake = Arc::new(wake);
                let (ring, refill) = make(Arc::clone(&wake))?;
                Ok((ring, Hub { inbox: Mutex::default(), wake, refill, names: AtomicU64::new(0) }))
            });
            match made {
                Ok((ring, hub)) => {
                    let hub = Arc::new(hub);
                    if tell.send(Ok(Arc::clone(&hub))).is_ok() {
                        hub.run(ring);
                    }
                }
                Err(why) => drop(tell.send(Err(why))),
            }
        };
        let thread = thread::Builder::new().name("onecopy-zcrx".into());
        let thread = signal::blocked(|| thread.spawn(run))
            .map_err(|error| NotMade::Ring(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let hub = told.recv().unwrap_or(Err(NotMade::Ring(Errno::IO)))?;
        Ok(Bound { hub, thread: Some(thread), queue, pid: std::process::id() })
    }

    /// Where its connections ask.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Takes what has come, and gives the queue back. Returns whether the device is known to write to the memory no more.
    pub fn end(mut self) -> bool {
        self.stop() && self.queue.is_none_or(|(index, queue)| is_let_go(index, queue))
    }

    /// Returns whether the ring is gone.
    fn stop(&mut self) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        if self.pid != std::process::id() {
            // The child of a fork: thread and ring are the parent's.
            std::mem::forget(thread);
            return false;
        }
        self.hub.inbox.lock().stop = true;
        self.hub.wake.ring();
        // What it tells of may drop the binding: then the ring goes behind this.
        let elsewhere = thread.thread().id() != thread::current().id();
        if elsewhere {
            // A panic of it has been told already.
            let _ = thread.join();
        }
        elsewhere
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits until the kernel has taken the queue from a ring that was closed, which it does at a time of its own. Returns whether it has.
fn is_let_go(index: u32, queue: u32) -> bool {
    let Ok(netdev) = Netdev::open() else { return false };
    let began = Instant::now();
    loop {
        match netdev.rx_queue(index, queue) {
            Ok(queue) if !queue.io_uring => return true,
            // The interface is gone, and its queues with it.
            Err(refusal) if refusal.errno == Errno::NODEV => return true,
            Ok(_) if began.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(1)),
            _ => return false,
        }
    }
}

impl Hub {
    /// Gives fragments back. Where there is no room for some, the thread looks for it: nothing else may happen there, since the queue has no pages.
    fn give_back(&self, frags: impl IntoIterator<Item = (u64, u32)>) {
        if self.refill.give_back(frags) {
            self.wake.ring();
        }
    }

    /// Has the thread look at `flow`.
    fn attend(&self, flow: &Arc<Flow>) {
        let asleep = {
            let mut inbox = self.inbox.lock();
            if inbox.gone {
                drop(inbox);
                return flow.is_gone();
            }
            inbox.wanting.push(Arc::clone(flow));
            std::mem::take(&mut inbox.asleep)
        };
        if asleep {
            self.wake.ring();
        }
    }

    /// Until the binding ends.
    fn run(self: &Arc<Hub>, mut ring: impl Rx) {
        let mut running = Running { hub: self, flows: HashMap::new(), told: Vec::new() };
        let mut limit = None;
        loop {
            let (wanting, stop) = {
                let mut inbox = self.inbox.lock();
                // Between here and the wait, whoever wants something rings.
                inbox.asleep = inbox.wanting.is_empty();
                (std::mem::take(&mut inbox.wanting), inbox.stop)
            };
            for flow in &wanting {
                // Whoever waits for an answer is told, however this ends.
                running.flows.entry(flow.token()).or_insert_with(|| Arc::clone(flow));
            }
            if stop {
                break;
            }
            let now = (!wanting.is_empty()).then_some(Duration::ZERO);
            wanting.iter().for_each(|flow| flow.turn(&mut ring, false));
            if !running.look(&mut ring, now.or(limit)) {
                break;
            }
            wanting.iter().for_each(|flow| flow.is_answered());
            running.tell();
            limit = self.refill.flush().then_some(NO_ROOM);
        }
        // What has come is taken in as long as the ring is there, which alone can tell of it.
        for _ in 0..LAST_LOOKS {
            running.flows.values().for_each(|flow| flow.turn(&mut ring, true));
            if !running.look(&mut ring, Some(Duration::ZERO)) || running.told.is_empty() {
                break;
            }
            running.tell();
        }
        // A receive's last word comes before the ring goes: what it has taken the socket has no more.
        running.flows.values().for_each(|flow| flow.cancel(&mut ring));
        let began = Instant::now();
        while running.flows.values().any(|flow| flow.is_under_way()) && began.elapsed() < PATIENCE {
            if !running.look(&mut ring, Some(PATIENCE / 100)) {
                break;
            }
        }
    }
}

/// What the thread has. However it ends, by a panic even, whoever waits is told.
struct Running<'a> {
    hub: &'a Hub,
    flows: HashMap<u64, Arc<Flow>>,
    /// Who has heard something.
    told: Vec<u64>,
}

impl Running<'_> {
    /// Waits for something to happen, and takes it in. Returns whether the ring goes on.
    fn look(&mut self, ring: &mut impl Rx, limit: Option<Duration>) -> bool {
        match ring.wait(limit) {
            Ok(true) => drop(self.hub.wake.drain()),
            Ok(false) => {}
            Err(_) => return false,
        }
        let mut back = Vec::new();
        while let Some(arrival) = ring.event() {
            let (token, taken) = match arrival {
                Arrival::Unwanted { at, len } => {
                    back.push((at, len));
                    continue;
                }
                Arrival::Placed { token, at, len } => {
                    let flow = self.flows.get(&token);
                    let kept = flow.is_some_and(|flow| flow.has_come(at, len, ring));
                    if !kept {
                        back.push((at, len));
                    }
                    (token, kept)
                }
                Arrival::Ended { token, end } => {
                    let flow = self.flows.get(&token);
                    (token, flow.is_some_and(|flow| flow.has_ended(end)))
                }
            };
            if taken && self.told.last() != Some(&token) {
                self.told.push(token);
            }
        }
        // What has no room goes with the next flush.
        let _ = self.hub.refill.give_back(back);
        self.flows.retain(|_, flow| !flow.is_forgotten());
        true
    }

    /// Tells whoever waits.
    fn tell(&mut self) {
        self.told.sort_unstable();
        self.told.dedup();
        for token in std::mem::take(&mut self.told) {
            if let Some(flow) = self.flows.get(&token) {
                flow.tell();
            }
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let wanting = {
            let mut inbox = self.hub.inbox.lock();
            inbox.gone = true;
            std::mem::take(&mut inbox.wanting)
        };
        self.hub.refill.close();
        // All of them first: should one panic, each is told.
        self.flows.values().chain(&wanting).for_each(|flow| flow.is_gone());
        self.flows.values().for_each(|flow| flow.tell());
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub({:?})", self.refill)
    }
}

#[cfg(test)]
pub(super) mod tests;
