//! Packets: what the peer sends, and what has to come.

use super::streams::Ports;
use super::{Due, PATIENCE, Run, seconds};
use crate::SECOND;
use crate::compare::{Match, compare};
use crate::script::{Body, Packet};
use crate::segment::{Flags, Segment};
use crate::wire::{self, Seen};
use std::net::SocketAddr;

/// A packet that the host has sent.
pub(super) struct Arrived {
    /// Since the script's beginning.
    at: u64,
    seen: Seen,
}

impl Run<'_> {
    /// Takes what the host has sent.
    pub(super) fn collect(&mut self) -> Result<(), String> {
        while let Some((at, bytes)) = self.host.sent()? {
            let finished = self.host.finishes_checksums();
            if let Some(seen) = wire::read(&bytes, finished)? {
                self.arrived.push_back(Arrived { at: at.saturating_sub(self.start), seen });
            }
        }
        Ok(())
    }

    pub(super) fn inject(&mut self, packet: &Packet) -> Result<(), String> {
        let ports = self.streams.ports(packet.ports, true, None);
        let family = self.host.family();
        let (peer, host) = (SocketAddr::new(family.peer(), ports.0), SocketAddr::new(family.host(), ports.1));
        let bytes = match &packet.body {
            Body::Tcp(segment) => {
                let (live, place) = self.streams.live_form(ports, segment)?;
                wire::build(peer, host, &live, &wire::bytes(place, segment.len))
            }
            Body::Unreachable { code, mtu, about } => {
                let mut about = about.clone();
                about.seq = self.streams.own_live(ports, about.seq);
                wire::build_unreachable(*code, *mtu, host, peer, &about)
            }
        };
        self.host.receive(&bytes)?;
        self.look()
    }

    pub(super) fn expect(&mut self, packet: &Packet, due: Due) -> Result<(), String> {
        let Body::Tcp(expected) = &packet.body else {
            return Err("only segments of TCP can be expected".to_owned());
        };
        let latest = match due.any {
            true => due.until + PATIENCE,
            false => due.until + self.tolerance(due) + SECOND / 5,
        };
        let (mut before, mut each) = (0, 0);
        loop {
            let Some(arrived) = self.next_arrived(latest)? else {
                let part =
                    if before > 0 { format!(" (of which {before} bytes came)") } else { String::new() };
                return Err(format!(
                    "expected\n  > {expected}{part}\nat {}, but nothing came",
                    self.times(due)
                ));
            };
            let Arrived { at, seen } = arrived;
            let ports = self.streams.ports(packet.ports, false, Some(&seen));
            if (seen.to.port(), seen.from.port()) != ports || seen.to.ip() != self.host.family().peer() {
                let (from, to) = (seen.from, seen.to);
                return Err(format!("expected\n  > {expected}\nbut there came one from {from} to {to}"));
            }
            let came = self.streams.script_form(ports, at, &seen.segment, Some(expected));
            let part = match compare(expected, before, each, &came) {
                Match::Whole => None,
                Match::Part(len) => Some(len),
                Match::Different(what) => {
                    let behind = self.show_arrived();
                    let part =
                        if before > 0 { format!(" (of which {before} bytes came)") } else { String::new() };
                    return Err(format!(
                        "{what} wrong: expected\n  > {expected}{part}\nat {}, and there came\n  > {came}\nat {}{}",
                        self.times(due),
                        seconds(at),
                        if behind.is_empty() { behind } else { format!(", then\n{behind}") },
                    ));
                }
            };
            let tolerance = self.tolerance(due);
            if !due.any && (at + tolerance < due.from || at > due.until + tolerance) {
                return Err(format!(
                    "expected\n  > {expected}\nat {}, but it came at {}",
                    self.times(due),
                    seconds(at)
                ));
            }
            check_payload(&came, &seen.payload)?;
            self.streams.stamped(ports, at, &seen.segment, expected, &*self.host)?;
            match part {
                None => return Ok(()),
                Some(len) => (before, each) = (before + len, len),
            }
        }
    }

    /// The next packet of the host's, if one comes until `latest`.
    fn next_arrived(&mut self, latest: u64) -> Result<Option<Arrived>, String> {
        loop {
            self.look()?;
            if let Some(arrived) = self.arrived.pop_front() {
                return Ok(Some(arrived));
            }
            let now = self.now();
            if now >= latest {
                return Ok(None);
            }
            let step = if self.pending.is_some() { latest.min(now + crate::MILLISECOND) } else { latest };
            self.host.pass(self.start + step)?;
        }
    }

    fn times(&self, due: Due) -> String {
        match (due.any, due.from == due.until) {
            (true, _) => "any time".to_owned(),
            (_, true) => seconds(due.from),
            _ => format!("{} to {}", seconds(due.from), seconds(due.until)),
        }
    }

    /// What has come that nobody has asked for yet: the first of it.
    pub(super) fn show_arrived(&mut self) -> String {
        let mut lines = Vec::new();
        let first: Vec<(u64, Ports, Segment)> = self
            .arrived
            .iter()
            .take(6)
            .map(|one| (one.at, (one.seen.to.port(), one.seen.from.port()), one.seen.segment.clone()))
            .collect();
        for (at, ports, segment) in first {
            let said = self.streams.script_form(ports, at, &segment, None);
            lines.push(format!("  > {said}  at {}", seconds(at)));
        }
        lines.join("\n")
    }
}

/// Whether a segment's bytes are those of their place in the host's stream, whose first one has the number 1.
fn check_payload(said: &Segment, payload: &[u8]) -> Result<(), String> {
    // (A SYN has the number before its bytes.)
    let first = said.seq.wrapping_sub(u32::from(!said.flags.has(Flags::SYN)));
    let wrong =
        payload.iter().enumerate().find(|(at, byte)| wire::byte(first.wrapping_add(*at as u32)) != **byte);
    match wrong {
        None => Ok(()),
        Some((at, byte)) => {
            Err(format!("byte {at} of\n  > {said}\nis {byte}, which is not what was written there"))
        }
    }
}
