//! Devices' memory that is bound under the kernel's TCP.

use super::landing::Landing;
use super::source::Source;
use crate::carrier::{Event, Hunger};
use onecopy_link::rx::{BadQueue, Queues};
use onecopy_link::{Medium, Registered};
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
}

struct State {
    queues: Queues,
    bound: Vec<Arc<Landing>>,
    sources: Vec<Arc<Source>>,
    last: u32,
}

impl Devices {
    pub fn new() -> Devices {
        let queues = Queues::new(Medium::Ip);
        let state = State { queues, bound: Vec::new(), sources: Vec::new(), last: 0 };
        Devices { state: Mutex::new(state), gathered: AtomicU64::new(0), hunger: Arc::default() }
    }

    /// Where pages come from that programs have given back without a call.
    pub(super) fn hunger(&self) -> &Arc<Hunger> {
        &self.hunger
    }

    /// Looks at the queues, or changes them.
    pub fn queues<R>(&self, act: impl FnOnce(&mut Queues) -> R) -> R {
        act(&mut self.state.lock().queues)
    }

    /// Binds memory that is registered, to be received into; the binding's number.
    pub fn bind(&self, registered: Registered, queues: &[u32]) -> std::result::Result<u32, BadQueue> {
        let mut state = self.state.lock();
        state.queues.bind(registered.memory(), queues)?;
        state.last += 1;
        let id = state.last;
        let landing = Landing::new(id, registered, queues, Arc::clone(&self.hunger));
        state.bound.push(Arc::new(landing));
        Ok(id)
    }

    /// What comes from now on to its connections lies in the host's memory.
    pub fn unbind(&self, id: u32) {
        let gone = {
            let mut state = self.state.lock();
            let Some(at) = state.bound.iter().position(|bound| bound.id() == id) else { return };
            let landing = state.bound.remove(at);
            state.queues.unbind(landing.queues());
            landing
        };
        gone.unbind();
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

    /// Where a connection of `local` receives: the memory, and its queue.
    pub(super) fn landing(&self, local: SocketAddr) -> Option<(Arc<Landing>, u32)> {
        let state = self.state.lock();
        let (queue, _) = state.queues.ruled(local)?;
        let bound = state.bound.iter().find(|bound| bound.queues().contains(&queue))?;
        Some((Arc::clone(bound), queue))
    }

    /// Whether any memory is bound.
    pub(super) fn is_used(&self) -> bool {
        !self.state.lock().bound.is_empty()
    }
}
