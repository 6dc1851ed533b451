//! Devices' memory that is bound under the kernel's TCP.

use super::landing::{Landing, Way};
use super::nic::{Counts, Interface, Nic};
use super::source::Source;
use crate::carrier::{Event, Hunger, NotByNic, Refused};
use onecopy_link::rx::{BadQueue, Queues};
use onecopy_link::{Medium, NotRegistered, Registered};
use onecopy_pool::DeviceMemory;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::net::SocketAddr;
use std::sync::Arc;

/// Devices' memory that is bound. Queues are as a stack of the program's own has them: connections come to what is bound to one by the rules for their
/// address.
pub(crate) struct Devices {
    state: Mutex<State>,
    gathered: AtomicU64,
    /// The rings of its connections.
    hunger: Arc<Hunger>,
    refused: Arc<Refused>,
    /// Whose NIC is asked to receive into memory by itself.
    interface: Option<Interface>,
    by_nic: Arc<Counts>,
}

/// Why memory is not bound.
pub(crate) enum NotBound {
    Queues(BadQueue),
    Memory(NotRegistered, Option<NotByNic>),
}

/// How memory is bound: its number, and the way that payload takes there.
pub(crate) struct Bound {
    pub id: u32,
    pub taken: Taken,
}

/// The way that payload takes.
pub(crate) enum Taken {
    /// The NIC puts it there.
    Nic,
    /// The same, told of by a ring; and why not by device memory TCP.
    Ring(NotByNic),
    /// The receive's own copy; and why no NIC does, where one was asked.
    Copy(Option<NotByNic>),
}

/// Where a connection receives.
pub(super) enum Place {
    Host,
    /// The memory, and its queue.
    Device(Arc<Landing>, u32),
    /// A NIC is asked at the moment: it may put bytes there already, or still.
    Unsettled,
}

struct State {
    queues: Queues,
    /// Queues whose NIC is asked at the moment to receive into memory, or no more.
    asked: Vec<u32>,
    bound: Vec<Arc<Landing>>,
    sources: Vec<Arc<Source>>,
    last: u32,
}

impl Devices {
    /// With an interface whose NIC is asked first.
    pub fn new(interface: Option<Interface>) -> Devices {
        let queues = Queues::new(Medium::Ip);
        let state = State { queues, asked: Vec::new(), bound: Vec::new(), sources: Vec::new(), last: 0 };
        Devices {
            state: Mutex::new(state),
            gathered: AtomicU64::new(0),
            hunger: Arc::default(),
            refused: Arc::default(),
            interface,
            by_nic: Arc::default(),
        }
    }

    /// Where pages come from that programs have given back without a call.
    pub(super) fn hunger(&self) -> &Arc<Hunger> {
        &self.hunger
    }

    /// What was refused.
    pub fn refused(&self) -> &Arc<Refused> {
        &self.refused
    }

    /// Looks at the queues, or changes them.
    pub fn queues<R>(&self, act: impl FnOnce(&mut Queues) -> R) -> R {
        act(&mut self.state.lock().queues)
    }

    /// Binds memory to be received into: by the NIC, if it takes it, else by the receives' own copy.
    pub fn bind(&self, memory: &DeviceMemory, queues: &[u32]) -> std::result::Result<Bound, NotBound> {
        self.begin(memory, queues, self.interface.is_some()).map_err(NotBound::Queues)?;
        // Without the lock: it takes a while.
        let by_nic =
            self.interface.as_ref().map(|interface| Nic::bind(interface, memory, queues, &self.by_nic));
        let (way, taken) = match by_nic {
            Some(Ok((nic, None))) => (Way::Nic(nic), Taken::Nic),
            Some(Ok((nic, Some(why)))) => (Way::Nic(nic), Taken::Ring(why)),
            other => {
                let not_by_nic = other.and_then(std::result::Result::err);
                match Registered::new(memory) {
                    Ok(registered) => (Way::Copy(Box::new(registered)), Taken::Copy(not_by_nic)),
                    Err(why) => {
                        let mut state = self.state.lock();
                        state.queues.unbind(queues);
                        state.settles(queues);
                        return Err(NotBound::Memory(why, not_by_nic));
                    }
                }
            }
        };
        Ok(Bound { id: self.put(way, queues), taken })
    }

    /// What has come by NICs.
    pub(super) fn by_nic(&self) -> [(&'static str, u64); 5] {
        self.by_nic.all()
    }

    /// Binds memory as if a NIC put payload there, and as its `dmabuf`, for tests.
    #[cfg(test)]
    pub(super) fn bind_pretended(&self, memory: &DeviceMemory, dmabuf: u32, queues: &[u32]) -> u32 {
        self.bind_pretended_behind(memory, dmabuf, queues, || {})
    }

    /// Binds memory as if a ring of a test's told of what comes there.
    #[cfg(test)]
    pub(super) fn bind_pretended_by_ring(
        &self,
        memory: &DeviceMemory,
        bound: super::zcrx::Bound,
        queues: &[u32],
    ) -> u32 {
        assert!(self.begin(memory, queues, true).is_ok());
        self.put(Way::Nic(Nic::pretended_by_ring(memory, bound, &self.by_nic)), queues)
    }

    /// Calls `meanwhile` where the NIC would be asked.
    #[cfg(test)]
    pub(super) fn bind_pretended_behind(
        &self,
        memory: &DeviceMemory,
        dmabuf: u32,
        queues: &[u32],
        meanwhile: impl FnOnce(),
    ) -> u32 {
        assert!(self.begin(memory, queues, true).is_ok());
        meanwhile();
        self.put(Way::Nic(Nic::pretended(memory, dmabuf, &self.by_nic)), queues)
    }

    /// The queues are this memory's. Where a NIC is asked for it, connections that come to them wait until that is settled.
    fn begin(&self, memory: &DeviceMemory, queues: &[u32], asks: bool) -> std::result::Result<(), BadQueue> {
        let mut state = self.state.lock();
        state.queues.bind(memory, queues)?;
        if asks {
            state.asked.extend(queues);
        }
        Ok(())
    }

    fn put(&self, way: Way, queues: &[u32]) -> u32 {
        let mut state = self.state.lock();
        state.last += 1;
        let id = state.last;
        if matches!(way, Way::Nic(_)) {
            // The kernel waits for pages and does not look into rings: who pushes to one gives back what lies there.
            self.hunger.starves();
        }
        state.bound.push(Arc::new(Landing::new(id, way, queues, Arc::clone(&self.hunger))));
        state.settles(queues);
        id
    }

    /// What comes from now on to its connections lies in the host's memory.
    pub fn unbind(&self, id: u32) {
        let gone = {
            let mut state = self.state.lock();
            let Some(at) = state.bound.iter().position(|bound| bound.id() == id) else { return };
            let landing = state.bound.remove(at);
            if landing.nic().is_some() {
                state.asked.extend(landing.queues());
                if !state.bound.iter().any(|bound| bound.nic().is_some()) {
                    self.hunger.is_fed();
                }
            }
            landing
        };
        gone.unbind();
        // Nobody else's before: the NIC has let go of them.
        let mut state = self.state.lock();
        state.queues.unbind(gone.queues());
        state.settles(gone.queues());
    }

    /// Binds memory that is registered, to be sent from; the binding's number.
    pub fn bind_tx(&self, registered: Registered) -> u32 {
        let mut state = self.state.lock();
        state.sources.push(Arc::new(Source::new(registered)));
        state.last += 1;
        state.last
    }

    /// Nothing more is sent from it. What is under way has it until then.
    pub fn unbind_tx(&self, memory: u64) {
        let gone = {
            let sources = &mut self.state.lock().sources;
            let at = sources.iter().position(|source| source.memory() == memory);
            at.map(|at| sources.remove(at))
        };
        drop(gone);
    }

    pub(super) fn source(&self, memory: u64) -> Option<Arc<Source>> {
        self.state.lock().sources.iter().find(|source| source.memory() == memory).cloned()
    }

    /// So many bytes were sent from where they lay.
    pub(super) fn count_gathered(&self, n: usize) {
        self.gathered.fetch_add(n as u64, Relaxed);
    }

    pub(super) fn gathered(&self) -> u64 {
        self.gathered.load(Relaxed)
    }

    /// What has happened to a binding.
    pub fn event(&self, id: u32) -> Option<Event> {
        let landing = self.state.lock().bound.iter().find(|bound| bound.id() == id).cloned()?;
        landing.event()
    }

    /// Where a connection of `local` receives.
    pub(super) fn place(&self, local: SocketAddr) -> Place {
        let state = self.state.lock();
        let Some((queue, _)) = state.queues.ruled(local) else { return Place::Host };
        if state.asked.contains(&queue) {
            return Place::Unsettled;
        }
        match state.bound.iter().find(|bound| bound.queues().contains(&queue)) {
            Some(bound) => Place::Device(Arc::clone(bound), queue),
            None => Place::Host,
        }
    }

    /// Whether any memory is bound, or may be soon.
    pub(super) fn is_used(&self) -> bool {
        let state = self.state.lock();
        !state.bound.is_empty() || !state.asked.is_empty()
    }
}

impl State {
    /// It is known again where connections of these queues receive.
    fn settles(&mut self, queues: &[u32]) {
        self.asked.retain(|asked| !queues.contains(asked));
    }
}
