//! A socket of ours, of either kind, against a peer that does anything at all, from a seed.
//!
//! [`play`] is one conversation: a victim that uses its stream in every way there is, and a peer
//! ([`Liar`]) that completes the upgrade, honestly or not, and then writes
//! whatever it likes into the shared pages and the control socket. Half of the conversations take turns in one
//! thread, so that a seed repeats them step by step; in the other half both act at once.
//!
//! What must hold, whatever happens: no panic, no fault, every call returns in time and within its bounds, a lie
//! that was found out stays found out, and nothing is left behind. `cargo test -p onecopy-fuzz` plays for a
//! moment; `FUZZ_STEPS=100000000` for longer, `FUZZ_SEED` to repeat one.
//!
//! [`trade`] does the like to chains of pages that several threads hold at once.

mod chains;
mod peer;
mod socket;
mod victim;
mod watch;

pub use chains::{Trades, trade};
pub use peer::Peer;
pub use socket::Socket;
pub use victim::Victim;
pub use watch::{Watch, attempt};

use std::io;

use onecopy::unix::{self, Config, Listener, Records, SeqListener, SeqPacket, Stream};
use onecopy_conformance::impls::{Kind, Name};
use onecopy_conformance::liar::{INVITATION, Liar, hex};
use onecopy_conformance::tools::Dice;

/// Steps of one conversation.
pub const STEPS: u64 = 300;

/// What many conversations came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Conversations.
    pub played: u64,
    /// Those that reached shared memory in both directions.
    pub upgraded: u64,
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
pub fn play(seed: u64, watch: &Watch, tally: &mut Tally) -> Result<(), String> {
    let mut dice = Dice(seed);
    let (mut peer, stream) = meet(&mut dice).map_err(|e| format!("cannot set up: {e}"))?;
    peer.upgrade(&mut dice, &stream);
    tally.played += 1;
    let mut victim = Victim::new(&stream);
    let at_once = dice.one_in(2);
    let (mut mine, mut theirs) = (Dice(dice.roll()), Dice(dice.roll()));
    let result = if at_once {
        std::thread::scope(|s| {
            let peer = &mut peer;
            let liar = s.spawn(move || (0..STEPS).for_each(|_| peer.step(&mut theirs)));
            let result = (0..STEPS).try_for_each(|_| match victim.over() {
                true => Ok(()),
                false => victim.step(&mut mine, watch),
            });
            liar.join().map_err(|_| "the peer panicked".to_owned())?;
            result
        })
    } else {
        (0..STEPS).try_for_each(|_| {
            if victim.over() {
                Ok(())
            } else if dice.one_in(2) {
                peer.step(&mut theirs);
                Ok(())
            } else {
                victim.step(&mut mine, watch)
            }
        })
    };
    drop(victim);
    tally.upgraded += u64::from(stream.path().is_shared_memory());
    let stats = stream.stats();
    tally.caught += stats.protocol_errors;
    tally.fallbacks += stats.fallbacks;
    tally.bytes += stats.sent + stats.received;
    // Closing is a step too.
    watch.during("closing", || drop(stream));
    result
}

fn meet(dice: &mut Dice) -> io::Result<(Peer, Socket)> {
    let name = format!("onecopy-fuzz-{}-{:x}", std::process::id(), dice.roll());
    let sizes = [None, Some(4 << 10), Some(50_001), Some(1 << 20)];
    let config = Config {
        receive_buffer: sizes[(dice.roll() % 4) as usize],
        send_buffer: sizes[(dice.roll() % 4) as usize],
        max_ring: if dice.one_in(10) { 64 << 10 } else { 1 << 24 },
        records: if dice.one_in(2) { Records::Stream } else { Records::Atomic },
        ..Config::default()
    };
    let kind = if dice.one_in(2) { Kind::SeqPacket } else { Kind::Stream };
    let (at, ours) = (Name::Abstract(name.clone().into_bytes()), unix::Name::abstract_(&name));
    if dice.one_in(2) {
        let call = || match (kind, config.records) {
            (Kind::SeqPacket, Records::Stream) => {
                let nonce = *b"a nonce of mine.";
                Liar::call_as(kind, &at, &format!("{INVITATION}{}-0-s", hex(&nonce)), nonce)
            }
            _ => Liar::call(kind, &at),
        };
        if kind == Kind::Stream {
            let listener = Listener::bind_with(ours, &config)?;
            let liar = call()?;
            return Ok((Peer::new(liar), Socket::Bytes(listener.accept()?)));
        }
        let listener = SeqListener::bind_with(ours, &config)?;
        let liar = call()?;
        Ok((Peer::new(liar), Socket::Records(listener.accept()?)))
    } else {
        let server = Liar::listen(kind, &at)?;
        let socket = match kind {
            Kind::Stream => Socket::Bytes(Stream::connect_with(ours, &config)?),
            _ => Socket::Records(SeqPacket::connect_with(ours, &config)?),
        };
        Ok((Peer::new(Liar::accept(&server)?), socket))
    }
}
