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
use crate::connection::Connection;
use crate::connection::handover::{RxHandover, TxHandover};
use crate::connection::received::Rest;
use crate::connection::rx::Rx;
use crate::connection::side::Shared;
use crate::connection::tx::{Tx, UNKNOWN};
use crate::control;
use crate::core::kind::Kind;
use crate::doorbell::accounting::Balance;
use crate::handshake::undecided::Strips;
use crate::members::membership::Sharing;
use crate::members::others::{MAX_LENT, MOST, PARKING, RINGING, Taking};
use onecopy_ring::consumer::{Lent, Reached};
use onecopy_ring::page::{SidePage, WORDS, Words};
use onecopy_ring::{Consumer, PeerMisbehaved};
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
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

const _: () = assert!(MAX_LENT == (WORDS - rx::FIRST) / 3);

fn size(word: u64) -> usize {
    usize::try_from(word).unwrap_or(usize::MAX)
}

impl Rx {
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
                end.decided_now();
                *self = Rx::Plain;
                return Ok(());
            }
            (SWITCHING, Rx::Switching(switching)) => {
                let strips = Strips::of(words[rx::STRIPS]);
                return switching.resume(words[rx::RECEIVED], strips, words[rx::FORGIVEN] != 0);
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
        let rest = [words[rx::REST], words[rx::REST + 1], words[rx::REST + 2]];
        let left = RxHandover {
            reached,
            rest: rest.iter().any(|word| *word != 0).then(|| Rest::of_words(rest)),
            balance: Balance {
                debt: words[rx::DOORBELL_DEBT] as i64 as isize,
                stray: words[rx::STRAY] != 0,
                forgiven: size(words[rx::FORGIVEN]),
            },
            met: Some(words[rx::MET] as u32).filter(|_| words[rx::MET] != 0),
            known: [words[rx::KNOWN], words[rx::KNOWN + 1]],
            told: std::array::from_fn(|i| words[rx::PENDING + i]),
        };
        ring.resume(end, me, left, lent)
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
                words[rx::RECEIVED] = undecided.received();
                words[rx::STRIPS] = u64::from(undecided.looks());
            }
            Rx::Switching(switching) => {
                words[rx::MODE] = SWITCHING;
                words[rx::RECEIVED] = switching.received();
                words[rx::STRIPS] = switching.strips() as u64;
                words[rx::FORGIVEN] = u64::from(switching.is_recovered());
            }
            Rx::Ring(ring) => {
                let me = end.others().sharing().map_or(0, |sharing| sharing.me());
                let RxHandover { reached, rest, balance, met, known, told } = ring.handover(me);
                words[rx::MODE] = RING;
                words[rx::READ] = reached.read;
                words[rx::MARKS] = reached.marks;
                words[rx::AFTER] = reached.after;
                words[rx::DOORBELL_DEBT] = balance.debt as i64 as u64;
                words[rx::STRAY] = u64::from(balance.stray);
                words[rx::FORGIVEN] = balance.forgiven as u64;
                words[rx::MET] = met.map_or(0, |member| MET | u64::from(member));
                words[rx::KNOWN..rx::KNOWN + 2].copy_from_slice(&known);
                words[rx::PENDING..rx::PENDING + TOLD].copy_from_slice(&told);
                if let Some(rest) = rest {
                    words[rx::REST..rx::REST + 3].copy_from_slice(&rest.words());
                }
                let mut count = 0;
                for (lent, to) in ring.lent().zip(words[rx::FIRST..].chunks_exact_mut(3)) {
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
            recovered = recover_taking(end, &sharing.words().rx.0, *words)?;
            &recovered
        } else {
            words
        };
        self.resume(end, sharing.me(), words)?;
        match self {
            Rx::Ring(ring) if died => {
                ring.recover_from_death(end);
                ring.free_lent_of(|member| member != sharing.me() && !sharing.lives(member));
            }
            // The dead process may have been further than it had saved.
            Rx::Switching(switching) if died => switching.note_death(),
            _ => {}
        }
        Ok(())
    }

    fn give_up(&mut self) {
        *self = Rx::Plain;
    }

    fn alone(&mut self, end: &Connection, sharing: &Sharing) {
        if let Rx::Ring(ring) = self {
            ring.end_sharing(end);
        }
        // If another process had pools and has gone with them, no new pools can be mapped. Their pages go on
        // coming as copies.
        let lost = matches!(self, Rx::Ring(ring) if ring.lacks_pools());
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
        ring.free_lent_now_and_then(me, |member| member != me && !sharing.lives(member));
        sharing.each_late(|id, len| ring.release_late(id, len));
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
            ring.give_back_saved(end);
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

impl Tx {
    /// Returns the state that another process says this side was in.
    pub fn mode(words: &Saved) -> std::result::Result<Mode, PeerMisbehaved> {
        Mode::of(words[tx::MODE])
    }

    /// Goes on where another process has left off.
    pub fn resume(&mut self, kind: Kind, words: &Saved) -> std::result::Result<(), PeerMisbehaved> {
        match (words[tx::MODE], self) {
            (PLAIN, Tx::Kernel { sent }) => *sent = words[tx::SENT],
            (RING, Tx::Ring(ring)) => {
                let positions = [words[tx::STATE], words[tx::STATE + 1], words[tx::STATE + 2]];
                ring.resume(kind, TxHandover { positions, channels: words[tx::CHANNEL] as u32 })?;
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
                let TxHandover { positions, channels } = ring.handover();
                words[tx::STATE..tx::STATE + 3].copy_from_slice(&positions);
                words[tx::CHANNEL] = channels.into();
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
            ring.hear_of_channels(made);
        }
        match self {
            Tx::Kernel { sent } if died => *sent = UNKNOWN,
            Tx::Ring(ring) if died => {
                ring.recover_from_death()?;
                recover_queue(end, &sharing.words().tx.0);
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

/// Recovers after the death of the process that held the receiving side before the peer's switch. Returns
/// what that process had saved, advanced by what it has taken since, which is lost with it.
///
/// # Errors
///
/// [`PeerMisbehaved::Member`] if it cannot be known what was taken: the kernel counts nothing, or the
/// process was receiving one of several records without bytes.
fn recover_taking(
    connection: &Connection,
    page: &SidePage,
    mut words: Saved,
) -> std::result::Result<Saved, PeerMisbehaved> {
    let doing = page.doing.swap(0, Relaxed);
    let left = sockopt::peek_off(connection.fd()).ok().map(i64::from);
    let _ = sockopt::set_peek_off(connection.fd(), -1);
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
    if is(Taking::Empty) && control::peek_record(connection.fd()) == Some(0) {
        return Err(PeerMisbehaved::Member); // this is that record, or one behind it
    } else {
        words[rx::RECEIVED] = words[rx::RECEIVED].saturating_add(if is(Taking::Empty) { 1 } else { taken });
    }
    Ok(words)
}

/// Recovers doorbells and fillers after the death of the process that held the sending side.
fn recover_queue(connection: &Connection, page: &SidePage) {
    let doing = page.doing.swap(0, Relaxed);
    let Some(ring) = connection.tx_ring() else { return };
    let unread = onecopy_sys::socket::unread_memory(connection.fd()).unwrap_or(usize::MAX);
    match doing & 0xff {
        // The order matters: a receiver that takes a doorbell has armed before. So if nothing is queued
        // and the ring then says "rung", a doorbell was announced and never sent.
        RINGING if unread == 0 && ring.header().is_rung() => {
            let _ = connection.ring_doorbell();
        }
        PARKING if ring.header().is_parking() && !ring.header().is_parked() => {
            // A filler is charged with more than its bytes, doorbells with less than a thousand each.
            let sent = unread as u64 > doing >> 8 && unread > 4096;
            if !sent {
                ring.header().cancel_parking();
                return;
            }
            let size = rustix::net::sockopt::socket_send_buffer_size(connection.fd()).unwrap_or(0) / 4 + 1;
            ring.header().parked(if connection.kind() == Kind::Stream { size as u32 } else { 1 });
        }
        _ => {}
    }
}
