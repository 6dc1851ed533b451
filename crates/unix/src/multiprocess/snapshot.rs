//! The state of an end's two directions, which the processes that share it save and load. Also its recovery,
//! if one of them is killed in the middle of a call.
//!
//! - **Receiving.** A receiver takes bytes for all members. What it took is saved before the sender may
//!   overwrite it. So if a receiver is killed before it has saved, another one receives the same bytes again.
//! - **Sending.** What a sender had published counts as sent. What it had only written does not.
//! - **Doorbells and fillers.** Each is a byte in the kernel and a word in the ring, and a death may come
//!   between the two. Too few bytes cost nothing: a doorbell that never comes stays owed. So what cannot be
//!   known is taken to have been sent. Of too many bytes, as many are forgiven as are in the queue when the
//!   death is found.
//! - **Before the peer's switch** the kernel counts what is received ([`Taking`]).

use crate::ancillary::pending::TOLD;
use crate::ancillary::said::Said;
use crate::config::Records;
use crate::connection::Connection;
use crate::connection::received::Rest;
use crate::connection::rx::{Rx, RxRing};
use crate::connection::side::Shared;
use crate::connection::tx::{Tx, TxRing, UNKNOWN};
use crate::control;
use crate::core::Core;
use crate::core::kind::Kind;
use crate::doorbell::accounting::Balance;
use crate::handshake::undecided::Strips;
use crate::members::membership::Sharing;
use crate::members::others::{MAX_LENT, MOST, PARKING, RINGING, Taking};
use onecopy_ring::consumer::{Lent, Reached};
use onecopy_ring::page::{SidePage, WORDS, Words};
use onecopy_ring::record::HEADER;
use onecopy_ring::{Consumer, Mark, PeerMisbehaved};
use onecopy_socket::Op;
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use onecopy_sync::clock::coarse_ms;
use onecopy_sys::sockopt;

/// Indices of the words of the receiving side. Three words for each borrow follow, from `FIRST` on.
mod rx {
    pub const MODE: usize = 0;
    pub const RECEIVED: usize = 1;
    pub const READ: usize = 2;
    pub const MARKS: usize = 3;
    pub const AFTER: usize = 4;
    pub const DOORBELL_DEBT: usize = 5;
    pub const STRAY: usize = 6;
    pub const FORGIVEN: usize = 7;
    pub const MET: usize = 8;
    pub const MIRROR: usize = 9;
    pub const REST: usize = 10;
    /// Which messages may bring rings, while there is no ring yet.
    pub const STRIPS: usize = 10;
    /// What was met and not received ([`crate::ancillary::pending::TOLD`]).
    pub const PENDING: usize = 13;
    /// The state of the channels ([`crate::ancillary::channel::Inlet::known`]).
    pub const KNOWN: usize = 17;
    pub const LENT: usize = 19;
    pub const FIRST: usize = 20;
}

/// Indices of the words of the sending side.
mod tx {
    pub const MODE: usize = 0;
    pub const SENT: usize = 1;
    pub const STATE: usize = 2;
    pub const CHANNEL: usize = 5;
}

/// The words that a direction saves.
pub type Saved = [u64; WORDS];

/// The state that a direction says it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    Undecided,
    Switching,
    Ring,
}

impl Mode {
    fn of(word: u64) -> std::result::Result<Mode, PeerMisbehaved> {
        Ok(match word {
            PLAIN => Mode::Plain,
            UNDECIDED => Mode::Undecided,
            SWITCHING => Mode::Switching,
            RING => Mode::Ring,
            _ => return Err(PeerMisbehaved::Member),
        })
    }
}

const PLAIN: u64 = 0;
const UNDECIDED: u64 = 1;
const SWITCHING: u64 = 2;
const RING: u64 = 3;

/// Set in the word that names the member that has met the channel, if any has.
const MET: u64 = 1 << 32;

/// Records begin at multiples of this ([`onecopy_ring::record`]).
const FRAMES: u64 = HEADER as u64;

const _: () = assert!(MAX_LENT == (WORDS - rx::FIRST) / 3);

/// How often a process checks whether those that have borrowed still live, in milliseconds.
const LOOK_MS: u64 = 20;

fn size(word: u64) -> usize {
    usize::try_from(word).unwrap_or(usize::MAX)
}

impl Rx {
    /// Returns whether another process could go on with it. It cannot if the side needs what only this
    /// process has on its heap.
    pub fn can_be_shared(&self, core: &Core) -> bool {
        match self {
            Rx::Plain | Rx::Undecided(_) => core.config().records == Records::Atomic,
            Rx::Switching(_) => core.config().records == Records::Atomic,
            Rx::Ring(ring) => ring.pending.can_be_shared() && ring.consumer.lent().count() <= MAX_LENT,
        }
    }

    /// Returns the state that another process says this side was in.
    pub fn mode(words: &Saved) -> std::result::Result<Mode, PeerMisbehaved> {
        Mode::of(words[rx::MODE])
    }

    /// Goes on, as member `me`, where another process has left off.
    pub fn resume(
        &mut self,
        end: &Connection,
        me: u32,
        words: &Saved,
    ) -> std::result::Result<(), PeerMisbehaved> {
        if words[rx::MIRROR] != 0 {
            end.note_mirror();
        }
        match (words[rx::MODE], &mut *self) {
            (PLAIN, Rx::Plain) => return Ok(()),
            (UNDECIDED, Rx::Undecided(undecided)) => {
                return undecided.resume(words[rx::RECEIVED], words[rx::STRIPS] != 0);
            }
            (PLAIN, Rx::Undecided(_)) => {
                end.handshake.decided_now();
                *self = Rx::Plain;
                return Ok(());
            }
            (SWITCHING, Rx::Switching(switching)) => {
                switching.recovered = words[rx::FORGIVEN] != 0;
                return switching.resume(words[rx::RECEIVED], Strips::of(words[rx::STRIPS]));
            }
            (RING, Rx::Switching(switching)) => {
                let ring = switching.ring().clone();
                *self = Rx::ring(Consumer::new(ring));
            }
            (RING, Rx::Ring(_)) => {}
            _ => return Err(PeerMisbehaved::Member),
        }
        let Rx::Ring(ring) = self else { return Ok(()) };
        let reached = Reached { read: words[rx::READ], marks: words[rx::MARKS], after: words[rx::AFTER] };
        let lent = words[rx::FIRST..].chunks_exact(3).take(size(words[rx::LENT])).map(|lent| Lent {
            member: (lent[0] >> 32) as u32,
            id: lent[0] as u32,
            start: lent[1],
            end: lent[2],
        });
        if reached.read != ring.consumer.position() {
            // Another process has gone past what this one had met.
            ring.pending.move_on();
        }
        ring.consumer.resume(me, reached, lent)?;
        ring.pending.forget_sender();
        let rest = words[rx::REST..rx::REST + 3].iter().any(|word| *word != 0);
        ring.rest = None;
        if rest && end.config().records != Records::Stream {
            return Err(PeerMisbehaved::Member); // only stream records are received in part
        }
        if rest {
            let rest = Rest::of_words([words[rx::REST], words[rx::REST + 1], words[rx::REST + 2]]);
            // The peer publishes whole frames, so all of the rest must be there.
            let there = ring.consumer.available(rest.size().max(1))?;
            if rest.size() > there {
                return Err(PeerMisbehaved::Member);
            }
            ring.rest = Some(rest);
        }
        let at = reached.read.wrapping_add(ring.rest.map_or(0, |rest| rest.size()) as u64);
        if end.kind().has_records() && !at.is_multiple_of(FRAMES) {
            return Err(PeerMisbehaved::Member);
        }
        ring.elsewhere = Some(words[rx::MET] as u32).filter(|_| words[rx::MET] != 0);
        ring.doorbells.channel_mut().learn([words[rx::KNOWN], words[rx::KNOWN + 1]]);
        let told = std::array::from_fn(|i| words[rx::PENDING + i]);
        ring.pending.load(me, reached.read, told);
        let debt = words[rx::DOORBELL_DEBT] as i64 as isize;
        let (stray, forgiven) = (words[rx::STRAY] != 0, size(words[rx::FORGIVEN]));
        ring.doorbells.resume(Balance { debt, stray, forgiven })?;
        Ok(())
    }

    pub fn begin_sharing(&mut self, core: &Core, me: u32) {
        self.settle(core);
        if let Rx::Ring(ring) = self {
            ring.consumer.share(me);
        }
        if let Some(ring) = core.rx_ring() {
            // Pools that come from here on would be in one process only. With this the peer copies instead.
            ring.header().info.0.max_shared.store(0, Relaxed);
        }
    }
}

impl Shared for Rx {
    type Owner = Connection;

    fn page(words: &Words) -> &SidePage {
        &words.rx.0
    }

    fn save(&self, end: &Connection) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[rx::MIRROR] = u64::from(end.is_mirrored());
        match self {
            Rx::Plain => words[rx::MODE] = PLAIN,
            Rx::Undecided(undecided) => {
                words[rx::MODE] = UNDECIDED;
                words[rx::RECEIVED] = undecided.received;
                words[rx::STRIPS] = u64::from(undecided.looks());
            }
            Rx::Switching(switching) => {
                words[rx::MODE] = SWITCHING;
                words[rx::RECEIVED] = switching.received();
                words[rx::STRIPS] = switching.strips() as u64;
                words[rx::FORGIVEN] = u64::from(switching.recovered);
            }
            Rx::Ring(ring) => {
                let Reached { read, marks, after } = ring.consumer.reached();
                words[rx::MODE] = RING;
                words[rx::READ] = read;
                words[rx::MARKS] = marks;
                words[rx::AFTER] = after;
                let Balance { debt, stray, forgiven } = ring.doorbells.balance();
                words[rx::DOORBELL_DEBT] = debt as i64 as u64;
                words[rx::STRAY] = u64::from(stray);
                words[rx::FORGIVEN] = forgiven as u64;
                let channel = ring.doorbells.channel();
                let me = end.others().sharing().map_or(0, |sharing| sharing.me());
                // The process that received last, not the first one: a child that has inherited the channel
                // may outlive the process that met it.
                let lost = channel.is_met().then_some(me);
                let met = channel.has_channel().then_some(me).or(ring.elsewhere).or(lost);
                words[rx::MET] = met.map_or(0, |member| MET | u64::from(member));
                words[rx::KNOWN..rx::KNOWN + 2].copy_from_slice(&channel.known());
                words[rx::PENDING..rx::PENDING + TOLD].copy_from_slice(&ring.pending.save(me, read));
                if let Some(rest) = &ring.rest {
                    words[rx::REST..rx::REST + 3].copy_from_slice(&rest.words());
                }
                let mut count = 0;
                for (lent, to) in ring.consumer.lent().zip(words[rx::FIRST..].chunks_exact_mut(3)) {
                    let name = u64::from(lent.member) << 32 | u64::from(lent.id);
                    to.copy_from_slice(&[name, lent.start, lent.end]);
                    count += 1;
                }
                words[rx::LENT] = count;
            }
        }
        words
    }

    fn load(
        &mut self,
        end: &Connection,
        sharing: &Sharing,
        words: &[u64; WORDS],
        died: bool,
    ) -> std::result::Result<(), PeerMisbehaved> {
        let doing = &sharing.words().rx.0.doing;
        if died && words[rx::MODE] != SWITCHING && doing.swap(0, Relaxed) != 0 {
            // The dead process had saved all that it took, and had not come to this. It is not left to
            // `saved`, since this process may be alone from here on.
            let _ = sockopt::set_peek_off(end.fd(), -1);
        }
        let recovered;
        let words = if died && words[rx::MODE] == SWITCHING {
            recovered = end.recover_taking(&sharing.words().rx.0, *words)?;
            &recovered
        } else {
            words
        };
        self.resume(end, sharing.me(), words)?;
        match self {
            Rx::Ring(ring) if died => {
                ring.recover_from_death(end);
                let freed =
                    ring.consumer.release_all_of(|member| member != sharing.me() && !sharing.lives(member));
                ring.doorbells.notes_room(freed);
            }
            // The dead process may have been further than it had saved.
            Rx::Switching(switching) if died => switching.recovered = true,
            _ => {}
        }
        Ok(())
    }

    fn give_up(&mut self) {
        *self = Rx::Plain;
    }

    fn alone(&mut self, end: &Connection, sharing: &Sharing) {
        if let Rx::Ring(ring) = self {
            let freed = ring.consumer.unshare();
            ring.doorbells.notes_room(freed);
            if ring.doorbells.takes_note_of_room()
                && let Err(misbehaved) = ring.unpark(end)
            {
                // The next call on the socket reports it.
                let _ = end.misbehaved(Op::Recv, misbehaved);
            }
        }
        // If another process had pools and has gone with them, no new pools can be mapped. Their pages go on
        // coming as copies.
        let lost = matches!(self, Rx::Ring(ring) if ring.pending.lacks_pools());
        if let Some(ring) = end.rx_ring()
            && !lost
        {
            ring.header().info.0.max_shared.store(end.config().max_shared as u64, Relaxed);
        }
        Rx::left(end, sharing);
    }

    fn entered(&mut self, _end: &Connection, sharing: &Sharing) {
        let Rx::Ring(ring) = self else { return };
        let me = sharing.me();
        if ring.consumer.lent().any(|lent| lent.member != me) {
            let now = coarse_ms();
            if now.wrapping_sub(ring.looked) >= LOOK_MS {
                ring.looked = now;
                let freed = ring.consumer.release_all_of(|member| member != me && !sharing.lives(member));
                ring.doorbells.notes_room(freed);
            }
        }
        for (id, len) in sharing.late.lock().drain(..) {
            let freed = ring.consumer.release(id, len);
            ring.doorbells.notes_room(freed);
        }
    }

    fn saved(&mut self, end: &Connection, sharing: &Sharing) {
        // Relaxed: stored under this lock, or by a process that is dead.
        let doing = &sharing.words().rx.0.doing;
        if doing.load(Relaxed) != 0 {
            let _ = sockopt::set_peek_off(end.fd(), -1);
            point!("counted");
            doing.store(0, Relaxed);
        }
        if let Rx::Ring(ring) = self {
            ring.consumer.flush();
            point!("flushed");
            if ring.doorbells.takes_note_of_room()
                && let Err(misbehaved) = ring.unpark(end)
            {
                // The next call on the socket reports it.
                let _ = end.misbehaved(Op::Recv, misbehaved);
            }
        }
    }

    fn left(end: &Connection, sharing: &Sharing) {
        // Relaxed: a receiver that was turned away has waited for long. So if this look misses it by a
        // moment, it is this process's last one.
        let turned_away = &sharing.words().about.0.receiver_turned_away;
        if turned_away.load(Relaxed) != 0 && turned_away.swap(0, Relaxed) != 0 {
            end.make_edge();
        }
    }
}

impl RxRing {
    /// Recovers after the process that held the receiving side was killed. What it had taken and not saved is
    /// received again. What it left in the doorbells' queue, and nothing explains, is no misbehaviour.
    pub fn recover_from_death(&mut self, core: &Core) {
        self.consumer.recover();
        self.doorbells.forgive_queued(core);
    }
}

impl TxRing {
    /// Separates this sender's bytes from the descriptors of a dead one. If the mark that was published last
    /// is for descriptors, the process that laid it was killed before its first byte. Another mark behind it
    /// says that the descriptors belong to no byte that follows.
    fn part_from_the_dead(&mut self, kind: Kind) {
        if kind == Kind::Stream && matches!(self.producer.ends_with_mark(), Some(Mark::Fds { .. })) {
            self.said = Said::anew();
        }
    }
}

impl Tx {
    /// Returns the state that another process says this side was in.
    pub fn mode(words: &Saved) -> std::result::Result<Mode, PeerMisbehaved> {
        Mode::of(words[tx::MODE])
    }

    /// Goes on where another process has left off.
    pub fn resume(&mut self, kind: Kind, words: &Saved) -> std::result::Result<(), PeerMisbehaved> {
        match (words[tx::MODE], self) {
            (RING, Tx::Ring(_)) if kind.has_records() && !words[tx::STATE].is_multiple_of(FRAMES) => {
                return Err(PeerMisbehaved::Member);
            }
            (PLAIN, Tx::Kernel { sent }) => *sent = words[tx::SENT],
            (RING, Tx::Ring(ring)) => {
                let state = [words[tx::STATE], words[tx::STATE + 1], words[tx::STATE + 2]];
                ring.producer.resume(state)?;
                ring.learn_channel(words[tx::CHANNEL] as u32);
                // The peer was told the identity of another process.
                ring.said = Said::default();
                ring.part_from_the_dead(kind);
            }
            _ => return Err(PeerMisbehaved::Member),
        }
        Ok(())
    }
}

impl Shared for Tx {
    type Owner = Connection;

    fn page(words: &Words) -> &SidePage {
        &words.tx.0
    }

    fn save(&self, _end: &Connection) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        match self {
            Tx::Kernel { sent } => (words[tx::MODE], words[tx::SENT]) = (PLAIN, *sent),
            Tx::Ring(ring) => {
                words[tx::MODE] = RING;
                words[tx::STATE..tx::STATE + 3].copy_from_slice(&ring.producer.state());
                words[tx::CHANNEL] = ring.made.into();
            }
        }
        words
    }

    fn load(
        &mut self,
        end: &Connection,
        sharing: &Sharing,
        words: &[u64; WORDS],
        died: bool,
    ) -> std::result::Result<(), PeerMisbehaved> {
        self.resume(end.kind(), words)?;
        if let Tx::Ring(ring) = self {
            // Relaxed: stored under this lock, or by a process that is dead.
            let made = sharing.words().about.0.channel.load(Relaxed);
            ring.learn_channel(ring.made.max(made));
        }
        match self {
            Tx::Kernel { sent } if died => *sent = UNKNOWN,
            Tx::Ring(ring) if died => {
                ring.producer.recover()?;
                end.recover_queue(&sharing.words().tx.0);
            }
            _ => {}
        }
        if let Tx::Ring(ring) = self {
            // Recovery may have brought marks to light that `resume` has not seen.
            ring.part_from_the_dead(end.kind());
        }
        Ok(())
    }

    fn give_up(&mut self) {
        *self = Tx::Kernel { sent: UNKNOWN };
    }

    fn alone(&mut self, end: &Connection, sharing: &Sharing) {
        sharing.sends_alone();
        Tx::left(end, sharing);
    }

    fn entered(&mut self, end: &Connection, sharing: &Sharing) {
        if sharing.words().about.0.send_shut.load(Relaxed) != 0 {
            end.note_send_shut();
        }
    }

    fn saved(&mut self, end: &Connection, _sharing: &Sharing) {
        // Under the lock, so that a doorbell that was announced and not sent is found. What was published
        // comes before the look at who waits for it. The next call reports a peer that is gone.
        fence(SeqCst);
        let _ = end.ring_under_lock();
    }

    fn left(end: &Connection, sharing: &Sharing) {
        // Pairs with the fence in `Core::turn_away`.
        fence(SeqCst);
        let turned_away = &sharing.words().about.0.turned_away;
        if turned_away.load(Relaxed) != 0 && turned_away.swap(0, Relaxed) != 0 {
            end.note_turned_away();
        }
    }
}

impl Connection {
    /// Recovers after the death of the process that held the receiving side before the peer's switch. Returns
    /// what that process had saved, advanced by what it has taken since, which is lost with it.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`] if it cannot be known what was taken: the kernel counts nothing, or the
    /// process was receiving one of several records without bytes.
    fn recover_taking(
        &self,
        page: &SidePage,
        mut words: Saved,
    ) -> std::result::Result<Saved, PeerMisbehaved> {
        let doing = page.doing.swap(0, Relaxed);
        let left = sockopt::peek_off(self.fd()).ok().map(i64::from);
        let _ = sockopt::set_peek_off(self.fd(), -1);
        let (what, most) = (doing & 0xff, (doing >> 8 & MOST as u64) as i64);
        if what == 0 || doing >> 32 != words[rx::RECEIVED] & u64::from(u32::MAX) {
            return Ok(words); // it had not begun, or had saved what it took
        }
        let taken = match left {
            Some(left) if most > 0 && left <= most => {
                if left < 0 {
                    0
                } else {
                    (most - left) as u64
                }
            }
            _ => return Err(PeerMisbehaved::Member),
        };
        let is = |taking: Taking| what == taking as u64;
        if is(Taking::Empty) && control::peek_record(self.fd()) == Some(0) {
            return Err(PeerMisbehaved::Member); // this is that record, or one behind it
        } else {
            words[rx::RECEIVED] =
                words[rx::RECEIVED].saturating_add(if is(Taking::Empty) { 1 } else { taken });
        }
        Ok(words)
    }

    /// Recovers doorbells and fillers after the death of the process that held the sending side.
    fn recover_queue(&self, page: &SidePage) {
        let doing = page.doing.swap(0, Relaxed);
        let Some(ring) = self.tx_ring() else { return };
        let unread = onecopy_sys::socket::unread_memory(self.fd()).unwrap_or(usize::MAX);
        match doing & 0xff {
            // The order matters: a receiver that takes a doorbell has armed before. So if nothing is queued
            // and the ring then says "rung", a doorbell was announced and never sent.
            RINGING if unread == 0 && ring.header().is_rung() => {
                let _ = self.ring_doorbell();
            }
            PARKING if ring.header().is_parking() && !ring.header().is_parked() => {
                // A filler is charged with more than its bytes, doorbells with less than a thousand each.
                let sent = unread as u64 > doing >> 8 && unread > 4096;
                if !sent {
                    ring.header().cancel_parking();
                    return;
                }
                let size = rustix::net::sockopt::socket_send_buffer_size(self.fd()).unwrap_or(0) / 4 + 1;
                ring.header().parked(if self.kind() == Kind::Stream { size as u32 } else { 1 });
            }
            _ => {}
        }
    }
}
