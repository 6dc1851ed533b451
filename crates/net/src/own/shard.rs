//! What lies under the lock.

use super::inbox::Mesh;
use super::interest::Interest;
use super::kept::Kept;
use super::pages::SendPages;
use super::rx::Rx;
use super::waiter::Awaited;
use crate::bell::Joint;
use crate::port::Port;
use onecopy_chain::{Chain, Kind};
use onecopy_inet::shard::Handed;
use onecopy_inet::stack::Stack;
use onecopy_inet::stack::slab::Id;
use onecopy_pool::{Page, Pages};
use std::collections::VecDeque;
use std::sync::Arc;

/// Packets that are received before what came of them is told and sent.
const BATCH: usize = 64;

/// Bytes of these. More would push the first of them out of a core's own cache (256 KiB to 2 MiB) before the program reads them.
const BATCH_BYTES: usize = 128 << 10;

/// Where no thread of the stack's own looks at the link, a call that need not wait does, after so many nanoseconds in which nobody has...
const SELDOM: u64 = 100_000;

/// ... or so many bytes that were sent. What they are acknowledged by frees pages that a core's own cache still has.
const SELDOM_BYTES: usize = BATCH_BYTES;

/// Nanoseconds after which it is looked whether there are pages again, where some lack them: a program that had some drops them without a word.
const NO_PAGE: u64 = 5_000_000;

/// Nanoseconds for which a thread that called lately keeps the link to itself. What comes when it does not come back waits as long: less than
/// a delayed ACK does (40 ms), more than a program that answers takes.
const LEASE: u64 = 1_000_000;

pub(crate) struct Shard {
    inet: Stack,
    link: Box<dyn Port>,
    /// Receive queues, and what is bound to them.
    rx: Rx,
    pages: SendPages,
    /// Other shards of the stack, where there are some.
    mesh: Option<Mesh>,
    /// What they have handed over; empty between calls.
    handed: VecDeque<Handed>,
    /// Who waits for which socket, at its index.
    sockets: Vec<Option<Arc<Kept>>>,
    /// The link is gone.
    down: bool,
    /// The socket whose thread drives the stack, and whether it sleeps until when.
    pub(super) leader: Option<Leader>,
    /// Who waits while another thread drives.
    pub(super) followers: Vec<Arc<dyn Awaited>>,
    /// When the stack's own thread wakes by itself, while it sleeps; none within: never.
    pub(super) runner: Option<Option<u64>>,
    /// What of the link wakes it, or whoever waits at the stack's descriptor.
    pub(super) watched: Interest,
    /// When the timer of the stack's descriptor rings.
    pub(super) armed: Option<u64>,
    /// When somebody last looked what has come and what is due.
    looked: u64,
    /// Bytes that were sent since.
    sent: usize,
    /// When a thread last made a call while no other drove.
    drove: u64,
    /// Until then the stack's own thread leaves the link alone: such calls come again and again.
    lease: u64,
    /// Sockets with a descriptor, whose programs wait where nobody drives.
    bells: usize,
    /// Sockets that found no page to send from, each once, in the order of coming.
    starving: VecDeque<Id>,
}

/// A thread that drives the stack while it waits for its socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leader {
    /// Which socket; none: whatever happens.
    pub socket: Option<Id>,
    /// While it sleeps: until when, and on what.
    pub asleep: Option<Asleep>,
}

/// What wakes a sleeper.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asleep {
    /// The time; none: never.
    pub until: Option<u64>,
    /// The link.
    pub interest: Interest,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Packets came, or something was due.
    pub happened: bool,
    /// More packets may be there.
    pub full: bool,
}

impl Shard {
    pub(super) fn new(inet: Stack, link: Box<dyn Port>, pages: SendPages, mesh: Option<Mesh>) -> Shard {
        Shard {
            inet,
            rx: Rx::new(&link.capabilities()),
            link,
            pages,
            mesh,
            handed: VecDeque::new(),
            sockets: Vec::new(),
            down: false,
            leader: None,
            followers: Vec::new(),
            runner: None,
            watched: Interest::default(),
            armed: None,
            looked: 0,
            sent: 0,
            drove: 0,
            lease: 0,
            bells: 0,
            starving: VecDeque::new(),
        }
    }

    /// When something is due: of the protocols, of a link whose descriptor does not tell all, or for want of pages.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        let link = if self.down { None } else { self.link.deadline() };
        let due = match (self.inet.deadline(), link) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if self.starving.is_empty() {
            return due;
        }
        let look = self.looked + NO_PAGE;
        Some(due.map_or(look, |due| due.min(look)))
    }

    pub fn inet(&self) -> &Stack {
        &self.inet
    }

    pub fn inet_mut(&mut self) -> &mut Stack {
        &mut self.inet
    }

    /// The protocols, and where pages for what is sent come from.
    pub fn parts(&mut self) -> (&mut Stack, &SendPages) {
        (&mut self.inet, &self.pages)
    }

    /// The receive queues, and the protocols.
    pub fn rx_mut(&mut self) -> (&mut Rx, &mut Stack) {
        (&mut self.rx, &mut self.inet)
    }

    pub fn splits_headers(&self) -> bool {
        self.link.splits_headers()
    }

    /// The link, for who binds memory.
    pub fn link_mut(&mut self) -> &mut dyn Port {
        &mut *self.link
    }

    pub fn lands_device(&self) -> bool {
        self.link.lands_device()
    }

    pub fn is_down(&self) -> bool {
        self.down
    }

    pub fn kernel_copies(&self) -> bool {
        self.link.kernel_copies()
    }

    /// Copies by the kernel, or a device, that each byte of `data` costs on its way out.
    pub fn copies_of(&self, data: &Chain) -> usize {
        let gathered = |page: &Page| self.link.gathers_from(page.pool_id());
        let staged = data.kind() == Some(Kind::Device)
            && self.link.stages_device()
            && !data.fragments().next().is_some_and(|part| gathered(part.page()));
        usize::from(self.link.kernel_copies()) + usize::from(staged)
    }

    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.link.counters();
        if let Some(mesh) = &self.mesh {
            counters.extend(mesh.counters());
        }
        counters
    }

    /// The link is gone: nobody waits for it any more.
    pub(super) fn goes_down(&mut self) {
        self.down = true;
    }

    /// Looks after a socket from here on.
    pub fn attend(&mut self, kept: &Arc<Kept>) {
        let index = kept.id().index() as usize;
        if self.sockets.len() <= index {
            // By an eighth, and not to twice as much: most of it would be for nobody.
            if self.sockets.capacity() <= index {
                self.sockets.reserve_exact(index + 1 + index / 8 - self.sockets.len());
            }
            self.sockets.resize_with(index + 1, || None);
        }
        kept.show(&self.inet);
        self.sockets[index] = Some(Arc::clone(kept));
    }

    fn kept(&self, id: Id) -> Option<&Arc<Kept>> {
        self.sockets.get(id.index() as usize)?.as_ref()
    }

    /// Nobody waits for it any more.
    pub fn leave(&mut self, id: Id) {
        let left = self.sockets.get_mut(id.index() as usize).and_then(Option::take);
        self.bells -= usize::from(left.is_some_and(|kept| kept.is_polled()));
    }

    /// Makes the descriptor of socket `id`, if there is none yet. Somebody waits there from here on.
    pub fn make_bell(&mut self, id: Id) -> rustix::io::Result<()> {
        let kept = self.kept(id).ok_or(rustix::io::Errno::BADF)?;
        self.bells += usize::from(kept.make_bell(&self.inet)?);
        Ok(())
    }

    /// Has `joint` show what socket `id` is ready for, as `part` of what it shows. Somebody waits there from here on.
    pub fn join(&mut self, id: Id, joint: &Arc<Joint>, part: usize) {
        let Some(kept) = self.kept(id) else { return };
        self.bells += usize::from(kept.join(&self.inet, joint, part));
    }

    /// Shows who looks from outside how it is with socket `id`, and has its descriptor, if there is one, show what the socket is ready for: after
    /// a call on it.
    #[inline]
    pub fn mirror(&self, id: Id) {
        if let Some(kept) = self.kept(id) {
            kept.show(&self.inet);
            kept.mirror(&self.inet);
        }
    }

    /// Receives what is there, up to a batch of it, and does what is due.
    pub(super) fn turn(&mut self, now: u64) -> Turn {
        (self.looked, self.sent) = (now, 0);
        let handed = self.mesh.is_some() && self.take_handed(now);
        let (mut received, mut bytes) = (0, 0);
        let Shard { inet, link, rx, pages, .. } = self;
        let due = pages.bound(|| {
            while received < BATCH
                && bytes < BATCH_BYTES
                && let Some(len) = rx.receive(&mut **link, inet, now)
            {
                bytes += len;
                received += 1;
            }
            let due = inet.deadline().is_some_and(|at| at <= now);
            if due {
                inet.advance(now);
            }
            due
        });
        self.feed(now);
        self.settle(now);
        Turn { happened: due || handed || received > 0, full: received == BATCH || bytes >= BATCH_BYTES }
    }

    /// Socket `id` has found no page to send from: whether it is told when there is one again. Not where nobody has any.
    pub fn starves(&mut self, id: Id) -> bool {
        if !self.pages.may_come() || self.inet.tcp_is_deferred(id) {
            return false;
        }
        if !self.starving.contains(&id) {
            self.starving.push_back(id);
        }
        true
    }

    /// Tells those that found no page to send from: as many as there are pages now, as more would find none again.
    fn feed(&mut self, now: u64) {
        let Shard { inet, pages, starving, .. } = self;
        let mut free = Vec::new();
        while !starving.is_empty()
            && let Ok(page) = pages.alloc()
        {
            free.push(page);
            // (Who is over needs none.)
            while let Some(id) = starving.pop_front()
                && !inet.pages_came(now, id)
            {}
        }
    }

    /// Takes what other shards have handed over. Returns whether there was something.
    fn take_handed(&mut self, now: u64) -> bool {
        let mut handed = std::mem::take(&mut self.handed);
        if let Some(mesh) = &self.mesh {
            mesh.take(BATCH, &mut handed);
        }
        let some = !handed.is_empty();
        handed.drain(..).for_each(|handed| self.inet.take_handed(now, handed));
        self.handed = handed;
        some
    }

    /// Tells whoever waits, and sends what is to be sent as far as the link takes it. Returns whether the thread that drives should look.
    ///
    /// Behind it there is nothing left to tell: who sleeps next would not be woken for it.
    pub(super) fn settle(&mut self, now: u64) -> bool {
        self.rx.settle(&mut self.inet, now);
        if let Some(mesh) = &self.mesh {
            while let Some((to, handed)) = self.inet.handed() {
                mesh.put(to, handed);
            }
        }
        let mut leader = self.tell();
        let mut left = false;
        while self.link.room(now) > 0
            && let Some(packet) = self.inet.transmit()
        {
            self.count_sent(packet.len());
            self.link.transmit_more(now, packet);
            left = true;
        }
        if left {
            self.link.flush(now);
            // What left has made room, which others wait for. If all has left, nobody waits for the link any more.
            leader |= self.tell();
        }
        self.down |= self.link.is_gone();
        leader
    }

    pub(super) fn count_sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    /// Whether a call that need not wait looks at the link all the same, where no other thread does.
    pub(super) fn ought_to_look(&self, now: u64) -> bool {
        now >= self.looked + SELDOM || self.sent >= SELDOM_BYTES
    }

    /// Tells whoever waits what has happened. Returns whether the thread that drives should look.
    fn tell(&mut self) -> bool {
        let mut leader = false;
        while let Some(event) = self.inet.event() {
            let Some(kept) = self.kept(event.id).filter(|kept| kept.id() == event.id) else { continue };
            kept.mirror(&self.inet);
            kept.waiter().tell();
            kept.show(&self.inet);
            leader |= self.leader.is_some_and(|leader| leader.socket == Some(event.id));
        }
        leader
    }

    /// A call on a socket is done, and nobody drives. If that happens again and again, the next one will soon be there, and looks at the
    /// link: the stack's own thread is not woken for what comes meanwhile, if nobody else waits for it.
    pub(super) fn driven(&mut self, now: u64) {
        if now < self.drove + LEASE && self.followers.is_empty() && self.bells == 0 {
            self.lease = now + LEASE;
        }
        self.drove = now;
    }

    /// Until when the stack's own thread leaves the link alone; none: it does not.
    pub(super) fn lease(&self, now: u64) -> Option<u64> {
        // What the link has no room for waits for somebody to look.
        (self.lease > now && self.bells == 0 && self.link.room(now) > 0).then_some(self.lease)
    }

    /// What of the link is worth a wake-up.
    pub(super) fn interest(&self, now: u64) -> Interest {
        let write = !self.down && self.link.room(now) == 0 && self.link.tells_of_room();
        Interest { read: !self.down, write }
    }
}
