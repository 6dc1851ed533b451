//! What the sender tells of itself.

use super::*;
use crate::tcp::info::Info;

impl Sender {
    /// Fills in what the sender knows.
    pub fn fill_info(&self, now: u64, info: &mut Info) {
        info.ca_state = self.state as u8;
        info.retransmits = self.retransmits;
        info.backoff = self.backoff;
        info.rto = self.rto_us;
        info.snd_mss = self.mss.into();
        if let Some(flight) = &self.flight {
            let board = &flight.board;
            (info.unacked, info.sacked, info.lost, info.retrans) =
                (board.out, board.sacked, board.lost, board.resent);
        }
        info.options |=
            u8::from(self.has.contains(Has::TIMESTAMPS)) | u8::from(self.has.contains(Has::SACK)) << 1;
        info.last_data_sent = ((now / 1_000_000) as u32).wrapping_sub(self.sent_ms);
        info.rtt = self.rtt.srtt_us().unwrap_or(0);
        info.rttvar = self.rtt.rttvar_us();
        info.min_rtt = self.rtt.min_us().unwrap_or(u32::MAX);
        info.snd_ssthresh = self.congestion.ssthresh().min(i32::MAX as u32);
        info.snd_cwnd = self.congestion.cwnd();
        info.reordering = self.reordering.into();
        info.bytes_acked = self.bytes_acked;
        (info.segs_out, info.data_segs_out) = (self.segments, self.data_segments);
        info.delivered = self.delivered;
        info.snd_wnd = self.window;
        let history = self.history.as_deref().cloned().unwrap_or_default();
        info.total_retrans = history.total_retrans;
        info.bytes_retrans = history.bytes_retrans;
        info.dsack_dups = history.dsack_dups;
        info.reord_seen = history.reord_seen;
        info.delivered_ce = history.delivered_ce;
        info.total_rto = history.total_rto;
        info.total_rto_recoveries = history.rto_recoveries;
        info.total_rto_time = history.rto_time_ms;
        // All that was acknowledged was sent, and SYN and FIN are no bytes.
        let outstanding: u64 = self
            .flight
            .iter()
            .flat_map(|flight| &flight.board.pieces)
            .map(|piece| u64::from(piece.data()) - u64::from(piece_acked(piece, self.una)))
            .sum();
        let syn = u64::from(self.bytes_acked > 0 && self.una != self.iss);
        info.bytes_sent = self.bytes_acked - syn + outstanding + history.bytes_retrans;
    }
}
