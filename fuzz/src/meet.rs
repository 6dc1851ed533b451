//! How the two come together: by an upgrade, as client or server, or as two datagram sockets.

use std::io;

use onecopy::unix::{self, Config, Datagram, Listener, Records, SeqListener, SeqPacket, Stream};
use onecopy_conformance::impls::kernel::{Kernel, address};
use onecopy_conformance::impls::{Kind, Name, Socket as _};
use onecopy_conformance::liar::{Liar, Wishes};
use onecopy_conformance::tools::Dice;

use crate::share::of_grams;
use crate::{Peer, Socket, pairs};

/// Two that are connected, of whatever kind, and of which (as [`crate::Tally::kinds`] has them).
///
/// # Errors
///
/// The sockets'.
pub fn meet(dice: &mut Dice) -> io::Result<(Peer, Socket, usize)> {
    let name = format!("onecopy-fuzz-{}-{:x}", std::process::id(), dice.roll());
    let sizes = [None, Some(4 << 10), Some(50_001), Some(1 << 20)];
    let config = Config {
        receive_buffer: sizes[(dice.roll() % 4) as usize],
        send_buffer: sizes[(dice.roll() % 4) as usize],
        max_ring: if dice.one_in(10) { 64 << 10 } else { 1 << 24 },
        records: if dice.one_in(2) { Records::Stream } else { Records::Atomic },
        pass_credentials: dice.one_in(5),
        ..Config::default()
    };
    let kind = [Kind::SeqPacket, Kind::Stream, Kind::Dgram, Kind::Dgram][(dice.roll() % 4) as usize];
    if kind == Kind::Dgram {
        if dice.one_in(2) && pairs::can_be_taken_apart() {
            let (peer, socket) = pairs::pair(dice, &config)?;
            return Ok((peer, socket, 4));
        }
        let (peer, socket) = connect(dice, &name, &config)?;
        return Ok((peer, socket, 3));
    }
    let which = match (kind, config.records) {
        (Kind::SeqPacket, Records::Stream) => 2,
        (Kind::SeqPacket, _) => 1,
        _ => 0,
    };
    let (at, ours) =
        (Name::Abstract(name.clone().into_bytes()), unix::SocketAddr::from_abstract_name(&name)?);
    let peer_kind = if which == 2 { Kind::Pieces } else { kind };
    if dice.one_in(2) {
        let mut wish = || [0, 4 << 10, 100_000, 1 << 20][(dice.roll() % 4) as usize];
        let wishes = Wishes { send_buffer: wish(), receive_buffer: wish(), max_ring: wish().max(64) };
        let call = || Liar::call_wishing(peer_kind, &at, wishes);
        if kind == Kind::Stream {
            let listener = Listener::bind_with(ours, &config)?;
            let liar = call()?;
            return Ok((Peer::new(liar), Socket::Bytes(listener.accept()?.0), which));
        }
        let listener = SeqListener::bind_with(ours, &config)?;
        let liar = call()?;
        Ok((Peer::new(liar), Socket::Records(listener.accept()?.0), which))
    } else {
        let server = Liar::listen(peer_kind, &at)?;
        // (Nobody keeps stream records with a listener that is not known to.)
        let rendezvous = match which == 2 || dice.one_in(2) {
            true => Some(Liar::rendezvous(peer_kind, &at)?),
            false => None,
        };
        let socket = match kind {
            Kind::Stream => Socket::Bytes(Stream::connect_with(ours, &config)?),
            _ => Socket::Records(SeqPacket::connect_with(ours, &config)?),
        };
        Ok((Peer::known_by(rendezvous, Liar::accept(&server)?), socket, which))
    }
}

/// Two datagram sockets, connected to each other by their names.
fn connect(dice: &mut Dice, name: &str, config: &Config) -> io::Result<(Peer, Socket)> {
    let (ours, theirs) = (format!("{name}-o"), format!("{name}-t"));
    let victim = Datagram::bind_with(unix::SocketAddr::from_abstract_name(&ours)?, config)?;
    let socket = Kernel::open(Kind::Dgram)?;
    socket.bind(&Name::Abstract(theirs.clone().into_bytes()))?;
    victim.connect(unix::SocketAddr::from_abstract_name(&theirs)?)?;
    rustix::net::connect(&socket.0, &address(&Name::Abstract(ours.into_bytes()))?)?;
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&dice.roll().to_le_bytes());
    Ok((Peer::new(of_grams(socket.0, nonce)), Socket::Grams(victim)))
}
