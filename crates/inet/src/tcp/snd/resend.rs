//! What is sent again, and when it was.

use super::*;

impl Sender {
    /// Whether something may be to be sent again.
    pub fn awaits_resending(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.due != Due::Nothing || flight.forced.is_some())
    }

    /// What is to be sent again now: what a timer wants, or what is lost, as far as the windows of congestion and of the peer let it go.
    /// Whoever sends it says so ([`Sender::retransmitted`]), and asks again.
    ///
    /// It has at most `longest` packets, which leave as one.
    pub fn next_retransmission(&mut self, longest: u32) -> Option<Transmit> {
        let mut flight = self.flight.take()?;
        let segment = self.choose(&mut flight, longest);
        if segment.is_none() {
            (flight.due, flight.forced) = (Due::Nothing, None);
        }
        self.flight = Some(flight);
        segment
    }

    fn choose(&mut self, f: &mut Flight, longest: u32) -> Option<Transmit> {
        match f.forced {
            Some(Forced::First) => return self.prepare(f, 0, 1),
            Some(Forced::Last) => return self.prepare_last(f),
            None => {}
        }
        match f.due {
            Due::Nothing => return None,
            // What F-RTO wants was sent, or there is nothing new that may be.
            Due::New if self.nxt.after(f.high) => return None,
            Due::New => {
                f.frto = false;
                f.due = Due::Lost;
            }
            Due::Lost => {}
        }
        let room = self.congestion.cwnd().saturating_sub(f.board.in_flight());
        if room == 0 || f.board.resent >= f.board.lost {
            return None;
        }
        let from = f.board.at(f.board.hint);
        let ahead = f.board.pieces.range(from..).position(Piece::awaits_resending)?;
        let index = from + ahead;
        f.board.hint = f.board.pieces.get(index)?.seq;
        self.prepare(f, index, room.min(longest.max(1)))
    }

    /// The last packet, for a probe of the tail.
    fn prepare_last(&mut self, f: &mut Flight) -> Option<Transmit> {
        let index = f.board.pieces.len().checked_sub(1)?;
        let last = f.board.pieces.get(index)?;
        let before = (last.packets - 1) * u32::from(last.mss);
        if last.packets > 1 && last.data() > before {
            let (len, mss) = (before + u32::from(last.is(Marks::SYN)), last.mss);
            f.board.split(index, len, mss, !self.has.contains(Has::SACK));
            return self.prepare(f, index + 1, 1);
        }
        self.prepare(f, index, 1)
    }

    /// Makes a piece fit at most `count` packets and the peer's window; joins what follows to it where that is one packet
    /// (__tcp_retransmit_skb, tcp_retrans_try_collapse in net/ipv4/tcp_output.c).
    fn prepare(&mut self, f: &mut Flight, index: usize, count: u32) -> Option<Transmit> {
        let reno = !self.has.contains(Has::SACK);
        f.board.trim(index, self.una);
        let piece = *f.board.pieces.get(index)?;
        let mss = self.mss();
        let mut room = u32::try_from(self.window_end().since(piece.seq)).unwrap_or(0);
        if room == 0 {
            // The window may have shrunk. Its first packet is sent all the same: the answer says how it is.
            if piece.seq != self.una {
                return None;
            }
            room = mss;
        }
        let mut len = mss.saturating_mul(count);
        if len > room {
            len = if room >= mss { room / mss * mss } else { room };
        }
        if piece.data() > len {
            f.board.split(index, len + u32::from(piece.is(Marks::SYN)), self.mss, reno);
        } else {
            f.board.resize(index, self.mss, reno);
            if !piece.is(Marks::SYN | Marks::FIN) {
                self.collapse(f, index, room.min(mss), reno);
            }
        }
        let piece = f.board.pieces.get(index)?;
        Some(Transmit {
            seq: piece.seq,
            len: piece.data(),
            fin: piece.is(Marks::FIN),
            syn: piece.is(Marks::SYN),
            packets: piece.packets,
            eor: piece.is(Marks::RECORD),
            push: piece.is(Marks::PUSHED),
        })
    }

    /// Joins small pieces behind this one, as long as all are `room` bytes.
    fn collapse(&mut self, f: &mut Flight, index: usize, room: u32, reno: bool) {
        while let Some((piece, next)) = f.board.pieces.get(index).zip(f.board.pieces.get(index + 1)) {
            let joinable = !piece.is(Marks::RECORD | Marks::FIN | Marks::SACKED)
                && piece.packets == 1
                && next.packets == 1
                && !next.is(Marks::SACKED)
                && piece.data() + next.data() <= room
                && !next.end().after(self.window_end());
            if !joinable {
                return;
            }
            f.board.join(index, reno);
        }
    }

    /// The probe that the timer asked for did not leave (tcp_send_loss_probe()).
    pub fn not_probed(&mut self) {
        self.has -= Has::PROBING;
    }

    /// What [`Sender::next_retransmission`] said did not leave this host, which had no room for it. It was tried, and may be on its way for
    /// all that anybody knows later; but a timeout's wait does not grow by it, as the peer was not asked (tcp_retransmit_skb(),
    /// tcp_retransmit_timer()). Nothing else is sent again now.
    pub fn not_retransmitted(&mut self, now: u64, segment: &Transmit) {
        let Some(mut flight) = self.flight.take() else { return };
        let f = &mut *flight;
        let index = f.board.at(segment.seq);
        let piece = f.board.pieces.get_mut(index).filter(|piece| piece.seq == segment.seq);
        let (mut count, mut data) = (0, 0);
        if let Some(piece) = piece {
            piece.marks |= Marks::EVER_RESENT;
            (count, data) = (piece.packets.min(segment.packets.max(1)), piece.data().min(segment.len));
        }
        let history = self.history();
        history.total_retrans = history.total_retrans.wrapping_add(count);
        history.bytes_retrans += u64::from(data);
        let forced = f.forced.take();
        if forced != Some(Forced::Last) {
            f.first_resent.get_or_insert(us(now));
            f.undo_retrans = Some(f.undo_retrans.unwrap_or(0) + count);
        }
        if forced == Some(Forced::First) {
            if let Some(before) = f.before_timeout.take() {
                (self.rto_us, self.backoff, self.linear) = before;
            }
            self.arm(Armed::Timeout, now + RESOURCE_WAIT);
        }
        f.due = Due::Nothing;
        self.flight = Some(flight);
    }

    /// What [`Sender::next_retransmission`] said was sent; or its first bytes, if the link takes no more of it at once: the rest is still lost.
    pub fn retransmitted(&mut self, now: u64, segment: &Transmit) {
        let Some(mut flight) = self.flight.take() else { return };
        let f = &mut *flight;
        let index = f.board.at(segment.seq);
        let (delivered, mss, reno) = (self.delivered, self.mss, !self.has.contains(Has::SACK));
        let syn = u32::from(segment.syn);
        let longer = f.board.pieces.get(index).is_some_and(|piece| piece.data() > segment.len);
        if longer && segment.len > 0 {
            f.board.split(index, segment.len + syn, mss, reno);
        }
        let Some(piece) = f.board.pieces.get_mut(index).filter(|piece| piece.seq == segment.seq) else {
            debug_assert!(false, "what is sent again was sent");
            self.flight = Some(flight);
            return;
        };
        piece.sent = us(now);
        piece.delivered = delivered;
        piece.marks |= Marks::EVER_RESENT;
        piece.marks -= Marks::JUDGED;
        let (from, until, count, data) = (piece.seq, piece.end(), piece.packets, piece.data());
        let probe = f.forced == Some(Forced::Last);
        let again = piece.is(Marks::RESENT);
        if !probe {
            piece.marks |= Marks::RESENT;
        }
        f.board.copies.push_back(Copy { sent: us(now), from, until });
        f.board.tidy();
        let history = self.history();
        history.total_retrans = history.total_retrans.wrapping_add(count);
        history.bytes_retrans += u64::from(data);
        if data > 0 {
            self.data_segments = self.data_segments.wrapping_add(count);
            self.sent_ms = (now / 1_000_000) as u32;
        }
        let forced = f.forced.take();
        if probe {
            self.probed(f, now, true);
        } else {
            if !again {
                f.board.resent += count;
            }
            f.first_resent.get_or_insert(us(now));
            f.undo_retrans = Some(f.undo_retrans.unwrap_or(0) + count);
            if forced.is_none() {
                if let (true, Some(prr)) = (self.state.reduces(), &mut f.prr) {
                    prr.sent(count);
                }
                if index == 0 && self.armed != Armed::Reordering {
                    self.arm(Armed::Timeout, now + self.rto_ns());
                }
            }
        }
        self.flight = Some(flight);
    }
}
