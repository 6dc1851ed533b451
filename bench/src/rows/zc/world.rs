//! A connection of our own TCP, on one thread and in virtual time, over the two links that cost least.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Result, anyhow, bail};
use onecopy::advanced::chain::Chain;
use onecopy::advanced::link::Link;
use onecopy::advanced::link::pair::{End, Pair, PairConfig};
use onecopy::advanced::notify::Segment;
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Config, Stack};
use onecopy_inet::tcp::{Error, Received, State};
use onecopy_inet::wire::Mac;

use super::acks::Acks;
use super::ends::{PEER, US, capabilities};

const PORT: u16 = 80;
/// Bytes of either side's buffer: sends queue up behind a full window, and leave in super-segments.
pub const BUFFER: u32 = 256 << 10;
/// A millisecond, which passes where nothing else happens.
const TICK: u64 = 1_000_000;

/// What takes the bytes.
enum Peer {
    /// The same stack once more, behind a [`Pair`]: it receives, and lets go of what it received.
    Stack { ours: End, theirs: End, stack: Box<Stack>, child: Option<Id> },
    /// What acknowledges, and does nothing else.
    Acks(Acks),
}

/// A connection, and all that moves its bytes.
pub struct World {
    pub stack: Stack,
    pub id: Id,
    peer: Peer,
    pub now: u64,
    /// Bytes that the peer has had.
    pub came: u64,
}

fn stack(address: Ipv4Addr, number: u8) -> Result<Stack> {
    let mac = Mac([2, 0, 0, 0, 0, number]);
    let cidr = Cidr::new(address, 24).ok_or_else(|| anyhow!("no such network"))?;
    let mut config = Config::new(ip::Config::new(capabilities(), mac, &[cidr], [number; 16]), [number; 16]);
    config.tcp.rmem = [4096, BUFFER, BUFFER];
    config.tcp.moderate_rcvbuf = false;
    Ok(Stack::new(config)?)
}

impl World {
    /// Over a pair, or to a peer that only acknowledges.
    pub fn new(pair: bool) -> Result<World> {
        let mut stack_a = stack(US, 1)?;
        let peer = if pair {
            let Pair { a, b, wire: _ } = Pair::new(PairConfig::new().seed(1).capabilities(capabilities()));
            let mut stack_b = stack(PEER, 2)?;
            let listener = stack_b.tcp_open()?;
            stack_b.tcp_bind(listener, SocketAddrV4::new(PEER, PORT).into(), false)?;
            stack_b.tcp_set(0, listener, |settings| settings.receive_buffer = Some(2 * BUFFER))?;
            stack_b.tcp_listen(listener, 1)?;
            Peer::Stack { ours: a, theirs: b, stack: Box::new(stack_b), child: None }
        } else {
            Peer::Acks(Acks::new(BUFFER))
        };
        let id = stack_a.tcp_open()?;
        stack_a.tcp_set(0, id, |settings| settings.send_buffer = Some(4 * BUFFER))?;
        let mut world = World { stack: stack_a, id, peer, now: TICK, came: 0 };
        match world.stack.tcp_connect(world.now, id, SocketAddrV4::new(PEER, PORT).into()) {
            Err(Error::InProgress) => {}
            other => bail!("connecting: {other:?}"),
        }
        for _ in 0..1000 {
            world.turn(&mut |_| Ok(()))?;
            let connected = world.stack.tcp_state(id) == Some(State::Established);
            if connected && world.accept() {
                return Ok(world);
            }
        }
        bail!("no connection was made")
    }

    fn accept(&mut self) -> bool {
        match &mut self.peer {
            Peer::Acks(_) => true,
            Peer::Stack { stack, child, .. } => {
                // The listener is the only socket that there was.
                let listener = stack.event().map(|event| event.id);
                *child = listener.and_then(|id| stack.tcp_accept(id).ok()).map(|(id, _)| id);
                child.is_some()
            }
        }
    }

    /// Lets all happen that happens now; the peer gives what it received to `look`. Time passes only where nothing happened.
    pub fn turn(&mut self, look: &mut dyn FnMut(&Chain) -> Result<()>) -> Result<()> {
        let mut quiet = true;
        let now = self.now;
        let World { stack, peer, came, .. } = self;
        match peer {
            Peer::Stack { ours, theirs, stack: other, child } => {
                while let Some(packet) = stack.transmit() {
                    ours.transmit(now, packet);
                    quiet = false;
                }
                while let Some(packet) = theirs.receive(now) {
                    other.receive(now, packet);
                    quiet = false;
                }
                if let Some(child) = child {
                    while let Ok(Received::Data(data)) = other.tcp_receive(now, *child, usize::MAX) {
                        taken(&data, came, look)?;
                        quiet = false;
                    }
                }
                while let Some(packet) = other.transmit() {
                    theirs.transmit(now, packet);
                    quiet = false;
                }
                while let Some(packet) = ours.receive(now) {
                    stack.receive(now, packet);
                    quiet = false;
                }
            }
            Peer::Acks(link) => {
                while let Some(packet) = stack.transmit() {
                    taken(packet.payload(), came, look)?;
                    link.transmit(now, packet);
                    quiet = false;
                }
                while let Some(packet) = link.receive(now) {
                    stack.receive(now, packet);
                    quiet = false;
                }
            }
        }
        while stack.event().is_some() {}
        if quiet {
            self.now += TICK;
            let now = self.now;
            self.stack.advance(now);
            if let Peer::Stack { stack, .. } = &mut self.peer {
                stack.advance(now);
            }
        }
        Ok(())
    }
}

fn taken(data: &Segment<Chain>, came: &mut u64, look: &mut dyn FnMut(&Chain) -> Result<()>) -> Result<()> {
    if !data.payload().is_empty() {
        *came += data.payload().len() as u64;
        look(data.payload())?;
    }
    Ok(())
}
