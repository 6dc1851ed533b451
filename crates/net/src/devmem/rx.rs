//! What of device memory lies under the stack's lock: its receive queues, and what is bound to them; and which memory is sent from.

use super::binding::Event;
use onecopy_inet::stack::{RoomId, RoomStats, Stack};
use onecopy_link::rx::{BadQueue, Queues, Sorted};
use onecopy_link::{Capabilities, Packet};
use onecopy_pool::{DeviceMemory, Page};
use onecopy_sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Events that nobody has asked for; more are counted only.
const EVENTS: usize = 64;

/// The queues of a stack.
#[derive(Debug)]
pub(crate) struct Rx {
    queues: Queues,
    bindings: Vec<Bound>,
    /// The last number that a binding was given.
    last: u32,
    /// By which number each memory was bound last. What was placed in it keeps that, whether it still is.
    ids: HashMap<u64, u32>,
    /// Memory that is sent from, by its pool.
    sent_from: Vec<u64>,
    hunger: Arc<Hunger>,
}

/// Memory that is bound.
#[derive(Debug)]
struct Bound {
    id: u32,
    memory: DeviceMemory,
    queues: Vec<u32>,
    room: RoomId,
    starved: bool,
    events: VecDeque<Event>,
}

/// Whether a window waits for pages to come home. Who gives some back, with the stack's lock or without, tells the stack then, and only then.
#[derive(Debug, Default)]
pub(crate) struct Hunger {
    wanted: Mutex<bool>,
}

impl Hunger {
    /// Pages have come home: whether the stack is to be told. (Whoever asked under the lock of this looks at what is free after that: so
    /// either he has seen them, or it is seen here that he asked.)
    pub fn feeds(&self) -> bool {
        std::mem::take(&mut *self.wanted.lock())
    }

    fn ask(&self) {
        *self.wanted.lock() = true;
    }
}

impl Bound {
    /// Looks what is free, and says so.
    fn refresh(&mut self, inet: &mut Stack, now: u64) {
        inet.set_room(now, self.room, self.memory.free());
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
        }
    }
}

impl Rx {
    pub fn new(of: &Capabilities) -> Rx {
        Rx {
            queues: Queues::new(of.medium),
            bindings: Vec::new(),
            last: 0,
            ids: HashMap::new(),
            sent_from: Vec::new(),
            hunger: Arc::default(),
        }
    }

    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    pub fn queues_mut(&mut self) -> &mut Queues {
        &mut self.queues
    }

    pub fn hunger(&self) -> Arc<Hunger> {
        Arc::clone(&self.hunger)
    }

    /// A packet has come.
    #[inline]
    pub fn receive(&mut self, inet: &mut Stack, now: u64, packet: Packet) {
        if self.queues.is_plain() {
            inet.receive(now, packet);
        } else {
            self.receive_sorted(inet, now, packet);
        }
    }

    fn receive_sorted(&mut self, inet: &mut Stack, now: u64, packet: Packet) {
        let of = |bindings: &mut Vec<Bound>, queue: u32| {
            bindings.iter().position(|bound| bound.queues.contains(&queue))
        };
        match self.queues.sort(packet) {
            Sorted::Plain(packet) => inet.receive(now, packet),
            Sorted::Bound(queue, packet) => match of(&mut self.bindings, queue) {
                Some(at) => {
                    let bound = &mut self.bindings[at];
                    bound.refresh(inet, now);
                    inet.receive_in(now, packet, bound.room);
                }
                None => inet.receive(now, packet),
            },
            Sorted::Dropped { queue, starved } => {
                if let Some(at) = of(&mut self.bindings, queue).filter(|_| starved) {
                    let bound = &mut self.bindings[at];
                    if !bound.starved {
                        bound.starved = true;
                        bound.tell(Event::Starved);
                    }
                    bound.tell(Event::Dropped);
                }
            }
        }
    }

    /// After whatever happened: who waits for room hears of what has come home, and if somebody still waits, whoever gives pages back tells
    /// us.
    #[inline]
    pub fn settle(&mut self, inet: &mut Stack, now: u64) {
        if !self.bindings.is_empty() {
            self.feed(inet, now);
        }
    }

    fn feed(&mut self, inet: &mut Stack, now: u64) {
        for bound in &mut self.bindings {
            bound.refresh(inet, now);
            if inet.room_stats(bound.room).is_some_and(|room| room.waiting > 0) {
                self.hunger.ask();
                // What came home before it was asked for.
                bound.refresh(inet, now);
            }
            let starved = inet.room_stats(bound.room).is_some_and(|room| room.starved > 0);
            if starved != bound.starved {
                bound.starved = starved;
                bound.tell(if starved { Event::Starved } else { Event::Fed });
            }
        }
    }

    /// Binds memory; returns the binding's number.
    pub fn bind(
        &mut self,
        inet: &mut Stack,
        now: u64,
        memory: &DeviceMemory,
        queues: &[u32],
    ) -> Result<u32, BadQueue> {
        self.queues.bind(memory, queues)?;
        self.last += 1;
        self.ids.insert(memory.id(), self.last);
        let mut bound = Bound {
            id: self.last,
            memory: memory.clone(),
            queues: queues.to_vec(),
            room: inet.open_room(),
            starved: false,
            events: VecDeque::new(),
        };
        bound.refresh(inet, now);
        self.bindings.push(bound);
        Ok(self.last)
    }

    /// Its queues go on with ordinary pages. What was placed stays where it is, in the hands of sockets and programs.
    pub fn unbind(&mut self, inet: &mut Stack, now: u64, id: u32) {
        let Some(at) = self.bindings.iter().position(|bound| bound.id == id) else { return };
        let bound = self.bindings.remove(at);
        self.queues.unbind(&bound.queues);
        inet.close_room(now, bound.room);
    }

    /// Notes that memory is sent from, and gives that a number; None where the memory is bound, to receive into or to send from.
    pub fn bind_tx(&mut self, memory: u64) -> Option<u32> {
        if self.is_sent_from(memory) || self.bindings.iter().any(|bound| bound.memory.id() == memory) {
            return None;
        }
        self.sent_from.push(memory);
        self.last += 1;
        Some(self.last)
    }

    pub fn unbind_tx(&mut self, memory: u64) {
        self.sent_from.retain(|one| *one != memory);
    }

    /// Whether all of its pages are a [`TxBinding`](super::TxBinding)'s.
    pub fn is_sent_from(&self, memory: u64) -> bool {
        self.sent_from.contains(&memory)
    }

    /// By which number the memory of `page` was bound last; 0 for memory that never was, such as a neighbour's in the same process.
    pub fn binding_of(&self, page: &Page) -> u32 {
        self.ids.get(&page.pool_id()).copied().unwrap_or(0)
    }

    pub fn event(&mut self, id: u32) -> Option<Event> {
        self.bindings.iter_mut().find(|bound| bound.id == id)?.events.pop_front()
    }

    pub fn room_stats(&self, inet: &Stack, id: u32) -> RoomStats {
        let bound = self.bindings.iter().find(|bound| bound.id == id);
        bound.and_then(|bound| inet.room_stats(bound.room)).unwrap_or_default()
    }
}
