//! Connections of a script: whose numbers begin where.

use crate::host::Host;
use crate::segment::{Choice, Cookie, Flags, Segment};
use crate::wire::Seen;
use std::collections::BTreeMap;

/// The port that programs listen on and connect to where the script says `...`.
pub(super) const PORT: u16 = 8080;
/// The peer's, where it connects and the script says none.
const PEER_PORT: u16 = 40_000;

/// The peer's port, and the host's.
pub(super) type Ports = (u16, u16);

/// What is added to numbers of the script.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// To the host's; not known before it has sent a SYN.
    base: Option<u32>,
    /// The script's number of the peer's SYN.
    peer_first: Option<u32>,
    /// The peer has begun anew, so that the host will.
    anew: bool,
    /// The host's timestamps: as the script calls them, and as they are. The latest is last.
    stamps: Vec<(u32, u32)>,
    /// A timestamp, and when it was sent.
    clock: Option<(u64, u32)>,
}

pub(super) struct Streams {
    peer_base: u32,
    all: BTreeMap<Ports, Stream>,
    /// Of segments without ports.
    usual: Option<Ports>,
    /// The host's port of `usual` is still to be learned.
    connecting: bool,
    first_number: Option<(u64, u32)>,
    /// The host's Fast Open cookie for the peer, once it was seen.
    cookie: Option<Vec<u8>>,
}

impl Streams {
    pub fn new(peer_base: u32) -> Streams {
        let (all, usual, connecting) = (BTreeMap::new(), None, false);
        Streams { peer_base, all, usual, connecting, first_number: None, cookie: None }
    }

    pub fn first_number(&self) -> Option<(u64, u32)> {
        self.first_number
    }

    /// The program connects to `port` of the peer.
    pub fn connects(&mut self, port: u16) {
        self.usual = Some((port, 0));
        self.connecting = true;
        // Where it did so before, from the same port, it begins elsewhere.
        self.all.iter_mut().filter(|(ports, _)| ports.0 == port).for_each(|(_, stream)| stream.anew = true);
    }

    /// The program listens on `port`.
    pub fn listens(&mut self, port: u16) {
        if self.usual.is_none() {
            self.usual = Some((PEER_PORT, port));
        }
    }

    /// The ports of a segment of the peer's, or of the host's, where the script says `said` (sender's, receiver's).
    pub fn ports(&mut self, said: Option<(u16, u16)>, incoming: bool, seen: Option<&Seen>) -> Ports {
        match (said, incoming) {
            (Some((from, to)), true) => return (from, to),
            (Some((from, to)), false) => return (to, from),
            _ => {}
        }
        let usual = self.usual.get_or_insert((PEER_PORT, PORT));
        if self.connecting
            && let Some(seen) = seen
        {
            usual.1 = seen.from.port();
            self.connecting = false;
        }
        *usual
    }

    /// As it goes over the wire: a segment that the script has the peer send; and where its payload begins in the peer's stream.
    ///
    /// # Errors
    ///
    /// It shows the host's cookie, which is not known yet.
    pub fn live_form(&mut self, ports: Ports, segment: &Segment) -> Result<(Segment, u32), String> {
        let stream = self.all.entry(ports).or_default();
        let syn = segment.flags.has(Flags::SYN);
        if syn {
            stream.anew |= stream.peer_first.is_some_and(|first| first != segment.seq);
            if stream.peer_first.is_none() || !segment.flags.has(Flags::ACK) && stream.anew {
                stream.peer_first = Some(segment.seq);
            }
        }
        // A SYN's bytes are those behind it.
        let behind = segment.seq.wrapping_sub(stream.peer_first.unwrap_or(0));
        let place = behind.wrapping_sub(u32::from(!syn));
        let base = stream.base.unwrap_or(0);
        let mut live = segment.clone();
        live.seq = segment.seq.wrapping_add(self.peer_base);
        live.ack = segment.ack.map(|ack| ack.wrapping_add(base));
        for choice in live.options.iter_mut().flatten() {
            match choice {
                Choice::Sack(blocks) => blocks.iter_mut().for_each(|(from, until)| {
                    *from = from.wrapping_add(base);
                    *until = until.wrapping_add(base);
                }),
                Choice::Timestamps { echo, .. } => {
                    let known = stream.stamps.iter().rev().find(|(script, _)| script == echo);
                    *echo = known.map_or(*echo, |(_, live)| *live);
                }
                Choice::FastOpen(cookie) if *cookie == Cookie::Given => {
                    let known = self.cookie.clone();
                    *cookie = Cookie::Bytes(known.ok_or("TFO_COOKIE: the host has given no cookie yet")?);
                }
                _ => {}
            }
        }
        Ok((live, place))
    }

    /// The sequence number of the host's that the script calls `seq`.
    pub fn own_live(&self, ports: Ports, seq: u32) -> u32 {
        let base = self.all.get(&ports).and_then(|stream| stream.base).unwrap_or(0);
        seq.wrapping_add(base)
    }

    /// As the script would write it: a segment that the host has sent, where it expects `expected`.
    pub fn script_form(
        &mut self,
        ports: Ports,
        at: u64,
        seen: &Segment,
        expected: Option<&Segment>,
    ) -> Segment {
        let stream = self.all.entry(ports).or_default();
        if seen.flags.has(Flags::SYN) && (stream.base.is_none() || stream.anew) {
            let number = expected.map_or(0, |expected| expected.seq);
            stream.base = Some(seen.seq.wrapping_sub(number));
            stream.anew = false;
            self.first_number.get_or_insert((at, seen.seq));
        }
        let base = stream.base.unwrap_or(0);
        let mut said = seen.clone();
        said.seq = seen.seq.wrapping_sub(base);
        said.ack = seen.ack.map(|ack| ack.wrapping_sub(self.peer_base));
        let asked = expected.and_then(|expected| expected.options.as_ref());
        let given = asked.is_some_and(|list| list.contains(&Choice::FastOpen(Cookie::Given)));
        for choice in said.options.iter_mut().flatten() {
            match choice {
                Choice::Sack(blocks) => blocks.iter_mut().for_each(|(from, until)| {
                    *from = from.wrapping_sub(self.peer_base);
                    *until = until.wrapping_sub(self.peer_base);
                }),
                Choice::FastOpen(cookie) if given => {
                    let Cookie::Bytes(bytes) = &*cookie else { continue };
                    if bytes.len() == Cookie::GIVEN
                        && self.cookie.get_or_insert_with(|| bytes.clone()) == bytes
                    {
                        *cookie = Cookie::Given;
                    }
                }
                _ => {}
            }
        }
        said
    }

    /// Learns how the script calls the host's timestamp, and looks at its clock: it is to go on by one each millisecond.
    pub fn stamped(
        &mut self,
        ports: Ports,
        at: u64,
        seen: &Segment,
        expected: &Segment,
        host: &dyn Host,
    ) -> Result<(), String> {
        let stream = self.all.entry(ports).or_default();
        let Some((live, _)) = seen.timestamps() else { return Ok(()) };
        if let Some((script, _)) = expected.timestamps() {
            stream.stamps.push((script, live));
        }
        let (first_at, first) = *stream.clock.get_or_insert((at, live));
        let ticks = i64::from(live.wrapping_sub(first) as i32);
        let passed = (at.saturating_sub(first_at) / crate::MILLISECOND) as i64;
        let tolerance = (host.tolerance() / crate::MILLISECOND) as i64 + 1;
        if (ticks - passed).abs() > tolerance {
            return Err(format!("the timestamp has gone on by {ticks} ms, and the time by {passed} ms"));
        }
        Ok(())
    }
}
