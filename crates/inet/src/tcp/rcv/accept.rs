//! A segment is looked at and taken in.

use super::ack::{Owed, QUICK, Shape};
use super::reassembly::{skip, split};
use super::{Accepted, Arrival, Check, Is, Moment, Paws, Receiver, Refused};
use crate::wire::tcp::{Seq, Tcp};
use crate::wire::{Ecn, Flags};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Checksum};
use onecopy_pool::Pages;

/// Bytes in a header with nothing but timestamps as options.
const WITH_TIMESTAMPS: u32 = 32;
/// ACKs at once after a sign of congestion, whose sender has few segments on their way.
const FEW: u8 = 2;
/// Bytes of a segment from which on windows grow: less is no stream.
const STREAM: u32 = 128;

/// What has to be known of a segment while it is taken in.
struct Incoming<'a> {
    seq: Seq,
    /// Where its FIN stands.
    fin: Option<Seq>,
    /// Bytes of data.
    len: u32,
    header: &'a Tcp,
    cut: u16,
    ecn: Ecn,
}

impl Receiver {
    /// Looks at a segment's timestamp. `len` counts its SYN and FIN; `repeats` says that it acknowledges just what was acknowledged before, and
    /// says nothing new of the window.
    pub fn paws(&self, moment: &Moment, header: &Tcp, len: u32, repeats: bool) -> Paws {
        self.recent.paws(moment, header, len, self.nxt, repeats)
    }

    /// Takes the timestamp of a segment that was found to be right, to be echoed: the first one that covers what was acknowledged last.
    pub fn note_timestamp(&mut self, moment: &Moment, header: &Tcp) {
        self.recent.note(moment, header, self.windows.told());
    }

    /// What is to be echoed (TSecr); `None` where there are no timestamps.
    pub fn ts_recent(&self) -> Option<u32> {
        self.recent.on().then(|| self.recent.value())
    }

    /// Whether a segment of `len` bytes of data lies in the window. A FIN may stand right behind it.
    pub fn check(&self, header: &Tcp, len: u32) -> Check {
        let (seq, limit) = (header.seq, self.nxt.plus(self.window_left()));
        let limit = if self.windows.furthest().after(limit) { self.windows.furthest() } else { limit };
        let data = seq.plus(len + u32::from(header.flags.contains(Flags::SYN)));
        let end = data.plus(header.flags.contains(Flags::FIN).into());
        if end.before(self.windows.told()) {
            Check::Old
        } else if !data.after(limit) {
            Check::Acceptable
        } else if seq.after(limit) {
            Check::Outside
        } else if self.queue.is_empty() {
            // Some stacks send more than they may; nobody is harmed as long as there is nothing to be read.
            Check::Acceptable
        } else {
            Check::EndsOutside
        }
    }

    /// Whether the ACK of a segment that lies before the window counts all the same: who had to stop before bytes that it had sent already
    /// says so with numbers from before them (tcp_acceptable_seq), and where both sides have to, neither hears of the other again.
    pub fn hears_behind(&self, seq: Seq) -> bool {
        self.windows.was_edge(seq)
    }

    /// A segment is going to be answered without being taken in (tcp_send_dupack): if the peer sends again what was acknowledged, it is told
    /// so, and next time at once. `len` counts SYN and FIN.
    pub fn unacceptable(&mut self, seq: Seq, len: u32) {
        if len > 0 && seq.before(self.nxt) {
            self.acks.hurry(QUICK, self.windows.size());
            let end = seq.plus(len);
            self.twice(seq, if end.after(self.nxt) { self.nxt } else { end });
        }
    }

    /// Takes a segment in that [`Receiver::check`] found acceptable: step 7 and 8 of RFC 9293, section 3.10.7.4. `pages` are what bytes are
    /// copied to when memory is short; without them more is given up.
    pub fn accept(&mut self, moment: &Moment, arrival: Arrival<'_>, pages: Option<&dyn Pages>) -> Accepted {
        let Arrival { header, payload, cut, ecn } = arrival;
        let len = payload.payload().len() as u32;
        let fin = header.flags.contains(Flags::FIN);
        let (seq, size) = (header.seq, len + u32::from(fin));
        let end = seq.plus(size);
        if self.recent.on()
            && let Some(stamps) = header.options.timestamps
        {
            let (full, drained) = (size >= self.acks.mss(), self.queue.is_empty());
            self.windows.measure_by_echo(moment, stamps.echo, full, drained);
        }
        if header.flags.contains(Flags::CWR) {
            self.is -= Is::ECHO;
            if size > 0 {
                self.acks.owed |= Owed::AT_ONCE;
            }
        }
        if size == 0 {
            return Accepted::default();
        }
        // Whatever is known of a sum does not survive what follows.
        payload.payload_mut().set_checksum(Checksum::None).expect("it covers nothing");
        let incoming = Incoming { seq, fin: fin.then(|| seq.plus(len)), len, header, cut, ecn };
        self.is -= Is::DUPLICATE;
        let left = self.window_left();
        if seq != self.nxt && !end.after(self.nxt) {
            self.twice(seq, end);
            return self.refuse(Refused::Old);
        }
        if self.finished() {
            return self.refuse(Refused::BehindFin);
        }
        if seq.after(self.nxt) {
            if !seq.before(self.nxt.plus(left)) {
                return self.refuse(Refused::Outside);
            }
            return self.take_behind(incoming, payload, pages);
        }
        if seq.before(self.nxt) {
            self.twice(seq, self.nxt);
        }
        // A FIN alone takes no memory, and some never stop sending theirs.
        if left == 0 && !(len == 0 && fin) {
            return self.refuse(Refused::ZeroWindow);
        }
        self.take_in_order(moment, incoming, payload, pages)
    }

    /// The peer hears at once where we are.
    fn refuse(&mut self, why: Refused) -> Accepted {
        self.acks.hurry(QUICK, self.windows.size());
        self.acks.owed |= Owed::ACK;
        Accepted { refused: Some(why), ..Accepted::default() }
    }

    /// What begins at or before the first hole.
    fn take_in_order(
        &mut self,
        moment: &Moment,
        incoming: Incoming<'_>,
        payload: &mut Segment<Chain>,
        pages: Option<&dyn Pages>,
    ) -> Accepted {
        let mut accepted = Accepted::default();
        let own = payload.payload().true_size() as u64;
        if !self.make_room(incoming.seq, own, pages, &mut accepted) {
            self.acks.owed |= Owed::ACK | Owed::AT_ONCE | Owed::NO_MEMORY;
            if incoming.len > 0 && !self.queue.is_empty() {
                accepted.refused = Some(Refused::Memory);
                return accepted;
            }
        }
        let (before, held) = (self.nxt, self.held());
        let known = self.nxt.since(incoming.seq) as u32;
        skip(payload, known.min(incoming.len));
        if let Some(behind) = &mut self.behind {
            if let Some(fin) = incoming.fin {
                behind.set_fin(fin);
            }
            self.fill(std::mem::take(payload));
        } else {
            self.nxt = self.nxt.plus(payload.payload().len() as u32);
            self.queue.take_in(payload);
        }
        accepted.readable = self.nxt.since(before) as u32;
        self.received += u64::from(accepted.readable);
        if incoming.len > 0 {
            self.acks.owed |= Owed::ACK;
            self.measure(&incoming, own);
            self.windows.measure_by_window(moment.now, self.nxt);
            self.acks.data(moment, self.windows.size());
            self.look_at_ecn(incoming.ecn);
            if incoming.len >= STREAM {
                let taken = self.held().saturating_sub(held);
                self.grow_window(incoming.len, taken);
            }
        }
        let fin = self.behind.as_ref().and_then(|behind| behind.fin()).or(incoming.fin);
        if fin == Some(self.nxt) {
            self.nxt = self.nxt.plus(1);
            self.is |= Is::FINISHED;
            self.acks.owed |= Owed::ACK;
            accepted.fin = true;
        }
        if self.behind.as_ref().is_some_and(|behind| accepted.fin || behind.is_empty()) {
            // RFC 5681, section 4.2: at once, when a hole is filled.
            self.behind = None;
            self.acks.owed |= Owed::AT_ONCE;
        }
        accepted
    }

    /// Puts `payload`, which begins at the first hole, in order, and what was behind that hole.
    fn fill(&mut self, mut payload: Segment<Chain>) {
        let mut at = self.nxt;
        let mut end = at.plus(payload.payload().len() as u32);
        while let Some(behind) = &mut self.behind {
            if let Some(fin) = behind.fin().filter(|fin| end.after(*fin)) {
                // What stands behind the FIN is nothing.
                payload = split(&mut payload, fin.since(at).max(0) as u32);
                end = fin;
            }
            let Some((from, until)) = behind.first().filter(|(from, _)| !from.after(end)) else { break };
            self.queue.push(split(&mut payload, from.since(at) as u32));
            behind.take_first(&mut self.queue);
            let known = if until.before(end) { until } else { end };
            skip(&mut payload, known.since(from) as u32);
            if known.after(from) {
                self.twice(from, known);
            }
            at = until;
            end = if end.after(at) { end } else { at };
        }
        self.queue.push(payload);
        self.nxt = end;
    }

    /// What begins behind a hole.
    fn take_behind(
        &mut self,
        incoming: Incoming<'_>,
        payload: &mut Segment<Chain>,
        pages: Option<&dyn Pages>,
    ) -> Accepted {
        let mut accepted = Accepted::default();
        self.look_at_ecn(incoming.ecn);
        let own = payload.payload().true_size() as u64;
        if !self.make_room(incoming.seq, own, pages, &mut accepted) {
            accepted.refused = Some(Refused::Memory);
            return accepted;
        }
        self.measure(&incoming, own);
        self.acks.owed |= Owed::ACK;
        let packets = if incoming.cut > 0 { incoming.len.div_ceil(incoming.cut.into()) } else { 1 };
        self.out_of_order = self.out_of_order.wrapping_add(packets.max(1));
        let held = self.held();
        let (nxt, seq) = (self.nxt, incoming.seq);
        let behind = self.behind.get_or_insert_default();
        if let Some(fin) = behind.fin().filter(|fin| seq.plus(incoming.len).after(*fin)) {
            let keep = fin.since(seq).max(0) as u32;
            if keep == 0 {
                accepted.refused = Some(Refused::BehindFin);
                return accepted;
            }
            *payload = split(payload, keep);
        }
        let ended = behind.fin().is_some();
        if let Some(fin) = incoming.fin {
            behind.set_fin(fin);
        }
        let mut twice: Option<(Seq, Seq)> = None;
        let new = behind.insert(seq, std::mem::take(payload), |from, until| extend(&mut twice, from, until));
        let forgotten = behind.note(seq);
        accepted.out_of_order = new > 0 || (behind.fin().is_some() && !ended);
        if !accepted.out_of_order {
            accepted.refused = Some(Refused::Overlap);
        }
        if forgotten && behind.deadline().is_some() {
            // The blocks that nobody was told of yet go before they are forgotten.
            self.acks.owed |= Owed::DUE;
        }
        if let Some((from, until)) = twice {
            self.twice(from, until);
        }
        if self.is.contains(Is::SACK) {
            // Who is told nothing of blocks needs ACKs that are alike, to see a loss: their windows, too.
            let taken = self.held().saturating_sub(held);
            self.grow_window(incoming.len, taken);
        }
        if !self.is.contains(Is::SHORT) {
            self.windows.enlarge_for(nxt, self.highest());
        }
        accepted
    }

    fn measure(&mut self, incoming: &Incoming<'_>, own: u64) {
        let size = if incoming.cut > 0 { incoming.cut.into() } else { incoming.len };
        let shape = Shape {
            size,
            header: incoming.header.len() as u32,
            flags: incoming.header.flags,
            usual_header: if self.recent.on() { WITH_TIMESTAMPS } else { Tcp::LEN as u32 },
            limit: self.windows.limit(),
        };
        if self.acks.measure(shape) {
            self.windows.measure(incoming.len, own);
        }
    }

    fn grow_window(&mut self, len: u32, taken: u64) {
        if self.is.contains(Is::SHORT) {
            return;
        }
        let held = self.held();
        if self.windows.grow(len, taken, held, self.acks.mss()) {
            self.acks.hurry_once();
        }
    }

    /// Keeps what came twice, to be reported (RFC 2883): one run of bytes.
    fn twice(&mut self, from: Seq, until: Seq) {
        if self.is.contains(Is::SACK) {
            let mut known = self.is.contains(Is::DUPLICATE).then_some(self.duplicate);
            extend(&mut known, from, until);
            self.duplicate = known.unwrap_or_default();
            self.is |= Is::DUPLICATE;
        }
    }

    /// tcp_data_ecn_check().
    fn look_at_ecn(&mut self, ecn: Ecn) {
        if !self.is.contains(Is::ECN) {
            return;
        }
        match ecn {
            // It is probably sent again: what is new says ECT.
            Ecn::NotEct if self.is.contains(Is::ECN_SEEN) => self.acks.hurry(FEW, self.windows.size()),
            Ecn::NotEct => {}
            Ecn::Ce => {
                if !self.is.contains(Is::ECHO) {
                    self.acks.hurry(FEW, self.windows.size());
                }
                self.is |= Is::ECHO | Is::ECN_SEEN;
            }
            Ecn::Ect0 | Ecn::Ect1 => self.is |= Is::ECN_SEEN,
        }
    }

    /// Whether congestion is to be echoed (ECE) in what leaves.
    pub fn echoes_congestion(&self) -> bool {
        self.is.contains(Is::ECHO)
    }
}

/// Makes a run of bytes longer by one that touches it; one that doesn't is not kept.
fn extend(known: &mut Option<(Seq, Seq)>, from: Seq, until: Seq) {
    match known {
        None => *known = Some((from, until)),
        Some((start, end)) if !from.after(*end) && !start.after(until) => {
            *start = if from.before(*start) { from } else { *start };
            *end = if until.after(*end) { until } else { *end };
        }
        Some(_) => {}
    }
}
