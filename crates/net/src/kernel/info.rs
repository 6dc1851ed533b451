//! What the kernel tells of a connection (TCP_INFO).

use onecopy_inet::tcp::Info;
use std::os::fd::BorrowedFd;

/// Bytes of `struct tcp_info` (include/uapi/linux/tcp.h) up to `tcpi_total_rto_time`, the last that [`Info`] has.
const LEN: usize = 248;

/// TCP_INFO of `fd`, as far as [`Info`] has it. Fields were only ever added behind: those that a kernel does not have yet stay as
/// [`Info::default`] has them. All of it is 0 where the kernel tells nothing.
pub(super) fn info(fd: BorrowedFd<'_>) -> Info {
    let mut bytes = [0; LEN];
    match onecopy_sys::sockopt::tcp_info(fd, &mut bytes) {
        Ok(_) => read(&bytes),
        Err(_) => Info::default(),
    }
}

/// Reads a `struct tcp_info`, with bitfields as machines of little endian have them.
fn read(bytes: &[u8; LEN]) -> Info {
    let short = |at: usize| bytes[at..][..2].try_into().map_or(0, u16::from_ne_bytes);
    let word = |at: usize| bytes[at..][..4].try_into().map_or(0, u32::from_ne_bytes);
    let long = |at: usize| bytes[at..][..8].try_into().map_or(0, u64::from_ne_bytes);
    Info {
        state: bytes[0],
        ca_state: bytes[1],
        retransmits: bytes[2],
        probes: bytes[3],
        backoff: bytes[4],
        options: bytes[5],
        snd_wscale: bytes[6] & 15,
        rcv_wscale: bytes[6] >> 4,
        // Below it is tcpi_delivery_rate_app_limited.
        fast_open_fail: bytes[7] >> 1 & 3,
        rto: word(8),
        ato: word(12),
        snd_mss: word(16),
        rcv_mss: word(20),
        unacked: word(24),
        sacked: word(28),
        lost: word(32),
        retrans: word(36),
        // (40: tcpi_fackets, 48: tcpi_last_ack_sent, which the kernel does not remember.)
        last_data_sent: word(44),
        last_data_recv: word(52),
        last_ack_recv: word(56),
        pmtu: word(60),
        rcv_ssthresh: word(64),
        rtt: word(68),
        rttvar: word(72),
        snd_ssthresh: word(76),
        snd_cwnd: word(80),
        advmss: word(84),
        reordering: word(88),
        rcv_rtt: word(92),
        rcv_space: word(96),
        total_retrans: word(100),
        // (104, 112: tcpi_pacing_rate, tcpi_max_pacing_rate.)
        bytes_acked: long(120),
        bytes_received: long(128),
        segs_out: word(136),
        segs_in: word(140),
        notsent_bytes: word(144),
        min_rtt: word(148),
        data_segs_in: word(152),
        data_segs_out: word(156),
        // (160: tcpi_delivery_rate.)
        busy_time: long(168),
        rwnd_limited: long(176),
        sndbuf_limited: long(184),
        delivered: word(192),
        delivered_ce: word(196),
        bytes_sent: long(200),
        bytes_retrans: long(208),
        dsack_dups: word(216),
        reord_seen: word(220),
        rcv_ooopack: word(224),
        snd_wnd: word(228),
        rcv_wnd: word(232),
        // (236: tcpi_rehash.)
        total_rto: short(240).into(),
        total_rto_recoveries: short(242).into(),
        total_rto_time: word(244),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_read_from_its_place() {
        // Each byte says where it lies; the last ones are as an older kernel leaves them.
        let mut bytes = [0; LEN];
        for (at, byte) in bytes[..240].iter_mut().enumerate() {
            *byte = at as u8;
        }
        let word = |at: u8| u32::from_ne_bytes([at, at + 1, at + 2, at + 3]);
        let info = read(&bytes);
        assert_eq!((info.backoff, info.snd_wscale, info.rcv_wscale, info.fast_open_fail), (4, 6, 0, 3));
        assert_eq!(
            (info.last_data_sent, info.last_data_recv, info.last_ack_recv),
            (word(44), word(52), word(56))
        );
        assert_eq!(
            (info.pmtu, info.rtt, info.snd_cwnd, info.total_retrans),
            (word(60), word(68), word(80), word(100))
        );
        let long = |at: u8| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|n| at + n));
        assert_eq!(
            (info.bytes_acked, info.bytes_received, info.busy_time),
            (long(120), long(128), long(168))
        );
        assert_eq!((info.delivered, info.bytes_retrans, info.rcv_wnd), (word(192), long(208), word(232)));
        assert_eq!((info.total_rto, info.total_rto_recoveries, info.total_rto_time), (0, 0, 0));
    }
}
