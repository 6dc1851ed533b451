//! `struct tcp_info` as include/uapi/linux/tcp.h lays it out.

use crate::tcp::Info;

/// Bytes of it, as packetdrill knows it: up to `tcpi_options2`.
const LEN: usize = 280;

/// Writes fields one behind another.
struct Layout(Vec<u8>);

impl Layout {
    fn bytes<const N: usize>(&mut self, fields: [u8; N]) {
        self.0.extend_from_slice(&fields);
    }

    fn words<const N: usize>(&mut self, fields: [u32; N]) {
        fields.iter().for_each(|field| self.0.extend_from_slice(&field.to_le_bytes()));
    }

    fn longs<const N: usize>(&mut self, fields: [u64; N]) {
        fields.iter().for_each(|field| self.0.extend_from_slice(&field.to_le_bytes()));
    }
}

/// The bytes of `info`. What is not known of it is 0: pacing, the delivery rate, accurate ECN.
pub(crate) fn bytes(info: &Info) -> Vec<u8> {
    let mut out = Layout(Vec::with_capacity(LEN));
    out.bytes([info.state, info.ca_state, info.retransmits, info.probes, info.backoff, info.options]);
    out.bytes([info.snd_wscale & 15 | info.rcv_wscale << 4, info.fast_open_fail << 1]);
    out.words([info.rto, info.ato, info.snd_mss, info.rcv_mss]);
    out.words([info.unacked, info.sacked, info.lost, info.retrans, 0]);
    out.words([info.last_data_sent, 0, info.last_data_recv, info.last_ack_recv]);
    out.words([info.pmtu, info.rcv_ssthresh, info.rtt, info.rttvar]);
    out.words([info.snd_ssthresh, info.snd_cwnd, info.advmss, info.reordering]);
    out.words([info.rcv_rtt, info.rcv_space, info.total_retrans]);
    out.longs([0, u64::MAX, info.bytes_acked, info.bytes_received]);
    out.words([info.segs_out, info.segs_in, info.notsent_bytes, info.min_rtt]);
    out.words([info.data_segs_in, info.data_segs_out]);
    out.longs([0, info.busy_time, info.rwnd_limited, info.sndbuf_limited]);
    out.words([info.delivered, info.delivered_ce]);
    out.longs([info.bytes_sent, info.bytes_retrans]);
    out.words([info.dsack_dups, info.reord_seen, info.rcv_ooopack, info.snd_wnd, info.rcv_wnd, 0]);
    let halves = info.total_rto.min(0xffff) | info.total_rto_recoveries.min(0xffff) << 16;
    out.words([halves, info.total_rto_time]);
    out.0.resize(LEN, 0);
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let info = Info {
            state: 1,
            snd_wscale: 7,
            rcv_wscale: 8,
            rto: 11,
            unacked: 12,
            rtt: 13,
            snd_cwnd: 14,
            reordering: 15,
            total_retrans: 16,
            bytes_acked: 17,
            segs_in: 18,
            min_rtt: 19,
            busy_time: 20,
            sndbuf_limited: 21,
            delivered: 22,
            bytes_retrans: 23,
            rcv_wnd: 24,
            total_rto: 25,
            total_rto_recoveries: 26,
            total_rto_time: 27,
            ..Info::default()
        };
        let bytes = bytes(&info);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((bytes[0], bytes[6]), (1, 0x87));
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_rto)), 11);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_unacked)), 12);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_rtt)), 13);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_snd_cwnd)), 14);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_reordering)), 15);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_total_retrans)), 16);
        // What libc's structure has not (include/uapi/linux/tcp.h, as pahole lays it out).
        let after = [
            (120, 17),
            (140, 18),
            (148, 19),
            (168, 20),
            (184, 21),
            (192, 22),
            (208, 23),
            (232, 24),
            (244, 27),
        ];
        for (at, value) in after {
            assert_eq!(word(at), value, "at {at}");
        }
        assert_eq!(word(240), 25 | 26 << 16);
        assert_eq!(bytes.len(), LEN);
    }
}
