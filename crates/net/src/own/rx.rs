//! What of device memory lies under the stack's lock: its receive queues, and what is bound to them; and which memory is sent from.

use crate::carrier::{Event, Frag, Hunger};
use crate::port::Port;
use onecopy_chain::{Chain, Kind};
use onecopy_inet::stack::{RoomId, RoomStats, Stack};
use onecopy_link::rx::{BadQueue, Queues, Sorted};
use onecopy_link::{Capabilities, Registered};
use onecopy_pool::DeviceMemory;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Events that nobody has asked for; more are counted only.
const EVENTS: usize = 64;

/// Bytes that the longest packet's payload takes. Of memory that has fewer left pages are taken back that lie in rings.
const LONGEST: u64 = 64 << 10;

/// The queues of a stack.
#[derive(Debug)]
pub(crate) struct Rx {
    queues: Queues,
    bindings: Vec<Bound>,
    /// The last number that a binding was given.
    last: u32,
    /// What is known of each memory that was bound, whether it still is.
    known: HashMap<u64, Known>,
    /// What programs are asked for.
    hunger: Arc<Hunger>,
}

/// Of memory that was bound, by its pool.
#[derive(Debug, Default)]
struct Known {
    /// By which number it was last. What was placed in it keeps that.
    id: u32,
    /// A bit for each page: what lies in it was put there by the link itself.
    landed: Vec<u64>,
}

impl Known {
    fn note(&mut self, page: u32, landed: bool) {
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        if landed && self.landed.len() <= word {
            self.landed.resize(word + 1, 0);
        }
        if let Some(word) = self.landed.get_mut(word) {
            *word = if landed { *word | bit } else { *word & !bit };
        }
    }

    fn has_landed(&self, page: u32) -> bool {
        self.landed.get(page as usize / 64).is_some_and(|word| word & 1 << (page % 64) != 0)
    }
}

/// Memory that is bound.
#[derive(Debug)]
struct Bound {
    id: u32,
    memory: DeviceMemory,
    queues: Vec<u32>,
    room: RoomId,
    starved: bool,
    /// The longest packet might find no room in it.
    is_low: bool,
    events: VecDeque<Event>,
}

impl Bound {
    /// Looks what is free, and says so.
    fn refresh(&mut self, inet: &mut Stack, now: u64) {
        let free = self.memory.free();
        self.is_low = free < LONGEST;
        inet.set_room(now, self.room, free);
    }

    fn stats(&self, inet: &Stack) -> RoomStats {
        inet.room_stats(self.room).unwrap_or_default()
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
            known: HashMap::new(),
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

    /// The next packet, if there is one: how many bytes it had that were not dropped.
    #[inline]
    pub fn receive(&mut self, link: &mut dyn Port, inet: &mut Stack, now: u64) -> Option<usize> {
        if !self.queues.is_plain() {
            if self.bindings.iter().any(|bound| bound.is_low) {
                self.hunger.take();
            }
            let sorted = link.receive_sorted(now, &mut self.queues)?;
            return Some(self.receive_sorted(inet, now, sorted));
        }
        let packet = link.receive(now)?;
        let len = packet.len();
        inet.receive(now, packet);
        Some(len)
    }

    fn receive_sorted(&mut self, inet: &mut Stack, now: u64, sorted: Sorted) -> usize {
        let landed = matches!(sorted, Sorted::Landed(..));
        let (queue, packet) = match sorted {
            Sorted::Plain(packet) => (None, packet),
            Sorted::Bound(queue, packet) | Sorted::Landed(queue, packet) => (Some(queue), packet),
            Sorted::Dropped { queue, starved } => {
                if let Some(bound) = self.bound(queue).filter(|_| starved) {
                    if !bound.starved {
                        bound.starved = true;
                        bound.tell(Event::Starved);
                    }
                    bound.tell(Event::Dropped);
                }
                return 0;
            }
        };
        let len = packet.len();
        self.note(packet.payload().payload(), landed);
        match queue.and_then(|queue| self.bound(queue)) {
            Some(bound) => {
                bound.refresh(inet, now);
                inet.receive_in(now, packet, bound.room);
            }
            None => inet.receive(now, packet),
        }
        len
    }

    fn bound(&mut self, queue: u32) -> Option<&mut Bound> {
        self.bindings.iter_mut().find(|bound| bound.queues.contains(&queue))
    }

    /// Notes of what lies in a device's memory whether it was copied there from the host's.
    fn note(&mut self, payload: &Chain, landed: bool) {
        if payload.kind() != Some(Kind::Device) {
            return;
        }
        let first = payload.fragments().next();
        let Some(known) = first.and_then(|first| self.known.get_mut(&first.page().pool_id())) else { return };
        for fragment in payload.fragments() {
            known.note(fragment.page().index(), landed);
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
            if bound.stats(inet).waiting > 0 {
                self.hunger.narrows();
                // What came home before it was asked for.
                bound.refresh(inet, now);
            }
        }
        if self.is_starved(inet) {
            self.hunger.starves();
            // What was pushed before it was asked for.
            if self.hunger.take() > 0 {
                self.bindings.iter_mut().for_each(|bound| bound.refresh(inet, now));
            }
        }
        if !self.is_starved(inet) {
            self.hunger.is_fed();
        }
        for bound in &mut self.bindings {
            let starved = bound.stats(inet).starved > 0;
            if starved != bound.starved {
                bound.starved = starved;
                bound.tell(if starved { Event::Starved } else { Event::Fed });
            }
        }
    }

    /// Whether some peer may send no whole segment.
    fn is_starved(&self, inet: &Stack) -> bool {
        self.bindings.iter().any(|bound| bound.stats(inet).starved > 0)
    }

    /// Binds memory, and has the link put payload there itself if that is registered for it; returns the binding's number.
    pub fn bind(
        &mut self,
        inet: &mut Stack,
        now: u64,
        memory: &DeviceMemory,
        queues: &[u32],
        registered: Option<Registered>,
    ) -> Result<u32, BadQueue> {
        self.queues.bind(memory, queues)?;
        if let Some(registered) = registered {
            self.queues.land(registered);
        }
        let id = self.number();
        self.known.entry(memory.id()).or_default().id = id;
        let mut bound = Bound {
            id,
            memory: memory.clone(),
            queues: queues.to_vec(),
            room: inet.open_room(),
            starved: false,
            is_low: false,
            events: VecDeque::new(),
        };
        bound.refresh(inet, now);
        self.bindings.push(bound);
        Ok(id)
    }

    /// Its queues go on with ordinary pages. What was placed stays where it is, in the hands of sockets and programs.
    pub fn unbind(&mut self, inet: &mut Stack, now: u64, id: u32) {
        let Some(at) = self.bindings.iter().position(|bound| bound.id == id) else { return };
        let bound = self.bindings.remove(at);
        self.queues.unbind(&bound.queues);
        inet.close_room(now, bound.room);
        if !self.is_starved(inet) {
            self.hunger.is_fed();
        }
    }

    /// The number of a binding to send from.
    pub fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// What is said of the fragments of a device's memory, without tokens; and how many of their bytes were copied there from the host's, as the link
    /// had not put them there itself. The binding is 0 for memory that never was bound, such as a neighbour's in the same process.
    pub fn tell(&self, data: &Chain) -> (Vec<Frag>, usize) {
        let mut told = Vec::with_capacity(data.fragment_count());
        let (mut placed, mut memory) = (0, None);
        for fragment in data.fragments() {
            let page = fragment.page();
            let known = match memory {
                Some((pool, known)) if pool == page.pool_id() => known,
                _ => self.known.get(&page.pool_id()),
            };
            memory = Some((page.pool_id(), known));
            if !known.is_some_and(|known| known.has_landed(page.index())) {
                placed += fragment.len();
            }
            told.push(Frag {
                offset: page.place() + fragment.offset() as u64,
                len: fragment.len() as u32,
                token: 0,
                binding: known.map_or(0, |known| known.id),
            });
        }
        (told, placed)
    }

    pub fn event(&mut self, id: u32) -> Option<Event> {
        self.bindings.iter_mut().find(|bound| bound.id == id)?.events.pop_front()
    }

    pub fn room_stats(&self, inet: &Stack, id: u32) -> RoomStats {
        self.bindings.iter().find(|bound| bound.id == id).map(|bound| bound.stats(inet)).unwrap_or_default()
    }
}
