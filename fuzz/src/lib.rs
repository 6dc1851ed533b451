//! A socket of ours, of every kind, against a peer that does anything at all, from a seed.
//!
//! [`play`] is one conversation: a victim that uses its stream in every way there is, and a peer
//! ([`Liar`](onecopy_conformance::liar::Liar)) that completes the upgrade, honestly or not, and then writes
//! whatever it likes into the shared pages and the control socket. Half of the conversations take turns in one
//! thread, so that a seed repeats them step by step; in the other half both act at once.
//!
//! What must hold, whatever happens: no panic, no fault, every call returns in time and within its bounds, a lie
//! that was found out stays found out, nothing is left behind, and no byte comes from or goes to another connection:
//! [`Neighbours`] of every kind go on in the same process meanwhile, and carry a [`Secret`] that is looked for in all that the
//! victim receives and in all that the peer can see; the memory on both sides of the victim's rings and of its buffer is
//! full of it, too. `cargo test -p onecopy-fuzz` plays for a moment, `cargo xtask fuzz --steps 10000000` for long;
//! `FUZZ_SEED` repeats one.
//!
//! [`trade`] does the like to chains of pages that several threads hold at once, [`tcp`] to TCP of our own.

mod chains;
mod meet;
mod neighbours;
mod pairs;
mod peer;
mod share;
pub mod tcp;
mod values;
mod victim;
mod watch;

pub use chains::{Trades, trade};
pub use neighbours::{Fence, Guarded, Neighbours, Secret};
pub use pairs::can_be_taken_apart;
pub use peer::Peer;
pub use victim::Victim;
pub use watch::{Watch, attempt};

use std::sync::OnceLock;

pub use onecopy_conformance::socket::Socket;
use onecopy_conformance::tools::Dice;

/// Steps of each side in one conversation, at most.
pub const STEPS: u64 = 300;
/// Steps of the victim from one look at a neighbour to the next.
const LOOK: u64 = 4;

/// What many conversations came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Conversations.
    pub played: u64,
    /// Steps that were made, of both sides: what a peer does to its memory or the control socket, or a call of the victim.
    pub steps: u64,
    /// Those that reached shared memory in both directions.
    pub upgraded: u64,
    /// Of these: streams, atomic records, records as streams, datagrams that met, datagrams of a pair.
    pub kinds: [u64; 5],
    /// Lies that were caught.
    pub caught: u64,
    /// Fallbacks to the kernel.
    pub fallbacks: u64,
    /// Bytes that the victims sent and received.
    pub bytes: u64,
}

/// One conversation.
///
/// # Errors
///
/// What did not hold, or what could not be set up.
pub fn play(seed: u64, watch: &Watch, neighbours: &mut Neighbours, tally: &mut Tally) -> Result<(), String> {
    let mut dice = Dice(seed);
    let secret = neighbours.secret();
    let fence = || Fence::new(secret).map_err(|e| format!("cannot set up a fence: {e}"));
    let before = fence()?;
    let (mut peer, socket, kind) = meet::meet(&mut dice).map_err(|e| format!("cannot set up: {e}"))?;
    peer.upgrade(&mut dice, &socket);
    let behind = fence()?;
    tally.played += 1;
    let mut victim = Victim::new(&socket, secret);
    let at_once = dice.one_in(2);
    let (mut mine, mut theirs) = (Dice(dice.roll()), Dice(dice.roll()));
    let mut steps: u64 = 0;
    let mut go_on = |victim: &mut Victim<'_>| {
        steps += 1;
        victim.step(&mut mine, watch)?;
        if steps.is_multiple_of(LOOK) { watch.during("a neighbour", || neighbours.check()) } else { Ok(()) }
    };
    let (result, made) = if at_once {
        let over = OnceLock::new();
        std::thread::scope(|s| {
            let (peer, over) = (&mut peer, &over);
            let liar = s.spawn(move || {
                let still = |_: &u64| over.get().is_none();
                (0..STEPS).take_while(still).map(|_| peer.step(&mut theirs, secret)).count() as u64
            });
            let result = (0..STEPS).try_for_each(|_| match victim.over() {
                true => Ok(()),
                false => go_on(&mut victim),
            });
            let _ = over.set(());
            (result, liar.join().map_err(|_| "the peer panicked".to_owned()))
        })
    } else {
        let mut made = 0;
        let result = (0..2 * STEPS).try_for_each(|_| {
            if victim.over() {
                Ok(())
            } else if dice.one_in(2) {
                made += 1;
                peer.step(&mut theirs, secret);
                Ok(())
            } else {
                go_on(&mut victim)
            }
        });
        (result, Ok(made))
    };
    let result = result.and(victim.finish());
    // (A datagram socket goes back to the kernel, once its peer is caught or gone.)
    let victim_shared = victim.was_shared();
    drop(victim);
    tally.steps += steps + made?;
    tally.upgraded += u64::from(victim_shared);
    tally.kinds[kind] += u64::from(victim_shared);
    let stats = socket.stats();
    tally.caught += stats.protocol_errors;
    tally.fallbacks += stats.fallbacks;
    tally.bytes += stats.sent + stats.received;
    result?;
    peer.finish(secret)?;
    // Closing is a step too.
    watch.during("closing", || drop(socket));
    before.check()?;
    behind.check()
}
