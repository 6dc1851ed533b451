//! Where each connection's numbers begin, so that people can read them.

use crate::wire::{Flags, Seq, Tcp};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Both ends, the lower one first.
type Key = (SocketAddr, SocketAddr);

/// Each end's first number: its SYN's, or the one before the first that was seen.
type Bases = [Option<Seq>; 2];

/// The connections that were seen last: so that no flood makes it grow.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    bases: BTreeMap<Key, Bases>,
    /// In the order they came in; each is in both.
    order: VecDeque<Key>,
}

fn key(from: SocketAddr, to: SocketAddr) -> (Key, usize) {
    match from <= to {
        true => ((from, to), 0),
        false => ((to, from), 1),
    }
}

impl Connections {
    /// How many are known at once.
    pub const MOST: usize = 1024;

    /// Learns from a segment, and says from where on its sender's numbers count, and the other one's.
    pub fn of(&mut self, from: SocketAddr, to: SocketAddr, tcp: &Tcp) -> (Seq, Seq) {
        let (key, side) = key(from, to);
        if !self.bases.contains_key(&key) {
            if self.order.len() >= Connections::MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.bases.remove(&oldest);
            }
            self.order.push_back(key);
        }
        let bases = self.bases.entry(key).or_default();
        let (syn, ack) = (tcp.flags.contains(Flags::SYN), tcp.flags.contains(Flags::ACK));
        if syn {
            let again = bases[side].is_none_or(|base| base == tcp.seq);
            bases[side] = Some(tcp.seq);
            if !again && !ack {
                // The same ports once more.
                bases[1 - side] = None;
            }
        }
        // One that says there is no connection says nothing of its numbers.
        if !tcp.flags.contains(Flags::RST) {
            bases[side].get_or_insert(tcp.seq.minus(1));
            if ack {
                bases[1 - side].get_or_insert(tcp.ack.minus(1));
            }
        }
        (bases[side].unwrap_or_default(), bases[1 - side].unwrap_or_default())
    }

    /// From where on the numbers of `from` count; from 0 where nothing is known.
    pub fn known(&self, from: SocketAddr, to: SocketAddr) -> Seq {
        let (key, side) = key(from, to);
        self.bases.get(&key).and_then(|bases| bases[side]).unwrap_or_default()
    }
}
