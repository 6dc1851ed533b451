//! What a connection tells of itself.

/// What Linux's `struct tcp_info` has (include/uapi/linux/tcp.h), as far as it makes sense here, in the same units. Each part of a
/// connection fills in what it knows; what nobody knows stays 0.
///
/// Where the kernel carries the bytes, it is what getsockopt(2) gives. A field that an older kernel has not yet stays 0: the least round trip came
/// with Linux 4.6, times by what it was limited with 4.10, the peer's window with 5.4, ours with 6.2, `total_rto` and what follows with 6.7.
///
/// Left out are the fields for pacing and the delivery rate, which a stack of the program's own does not keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Its state, as `TCP_ESTABLISHED` (1) to `TCP_NEW_SYN_RECV` (12) number it.
    pub state: u8,
    /// The sender's state: Open 0, Disorder 1, CWR 2, Recovery 3, Loss 4.
    pub ca_state: u8,
    /// Times that its retransmission timer ran out since something was acknowledged.
    pub retransmits: u8,
    /// Probes of a zero window, and keep-alives, that were not answered.
    pub probes: u8,
    /// By how many bits the timeout is longer than the round trips ask for.
    pub backoff: u8,
    /// `TCPI_OPT_TIMESTAMPS` 1, `TCPI_OPT_SACK` 2, `TCPI_OPT_WSCALE` 4, `TCPI_OPT_ECN` 8, `TCPI_OPT_ECN_SEEN` 16,
    /// `TCPI_OPT_SYN_DATA` 32.
    pub options: u8,
    /// By how many bits the peer's windows are shifted.
    pub snd_wscale: u8,
    /// By how many bits ours are.
    pub rcv_wscale: u8,

    /// Why the data of a SYN came to nothing (`enum tcp_fastopen_client_fail`).
    pub fast_open_fail: u8,
    /// Retransmission timeout, µs.
    pub rto: u32,
    /// How long an acknowledgement is delayed, µs.
    pub ato: u32,
    /// Bytes of a packet that is sent.
    pub snd_mss: u32,
    /// Bytes of a packet that is received, by guess.
    pub rcv_mss: u32,

    /// Packets sent and not acknowledged. Of a listener: connections that wait to be accepted.
    pub unacked: u32,
    /// Packets received out of order. Of a listener: its backlog.
    pub sacked: u32,
    /// Packets held to be lost.
    pub lost: u32,
    /// Packets under way again.
    pub retrans: u32,

    /// Since data was sent, ms.
    pub last_data_sent: u32,
    /// Since data was received, ms.
    pub last_data_recv: u32,
    /// Since an acknowledgement was received, ms.
    pub last_ack_recv: u32,

    /// Path MTU, bytes.
    pub pmtu: u32,
    /// What the receive window grows to for now, bytes.
    pub rcv_ssthresh: u32,
    /// Smoothed round trip, µs.
    pub rtt: u32,
    /// Its variation, µs.
    pub rttvar: u32,
    /// Where slow start ends, packets; `i32::MAX` where it has no end yet.
    pub snd_ssthresh: u32,
    /// Congestion window, packets.
    pub snd_cwnd: u32,
    /// The MSS that was announced to the peer.
    pub advmss: u32,
    /// By how many packets the network is held to change their order.
    pub reordering: u32,

    /// The receiver's guess of the round trip, µs.
    pub rcv_rtt: u32,
    /// Bytes that the program reads in a round trip.
    pub rcv_space: u32,
    /// Packets sent again, ever.
    pub total_retrans: u32,

    /// Bytes acknowledged (RFC 4898, tcpEStatsAppHCThruOctetsAcked; a SYN that the sender sent first counts one).
    pub bytes_acked: u64,
    /// Bytes received in order (RFC 4898, tcpEStatsAppHCThruOctetsReceived).
    pub bytes_received: u64,
    /// Packets sent (RFC 4898, tcpEStatsPerfSegsOut).
    pub segs_out: u32,
    /// Packets received (RFC 4898, tcpEStatsPerfSegsIn).
    pub segs_in: u32,
    /// Bytes that wait to be sent.
    pub notsent_bytes: u32,
    /// The least round trip of the last 300 s, µs; `u32::MAX` where there was none.
    pub min_rtt: u32,
    /// Packets received with data (RFC 4898, tcpEStatsDataSegsIn).
    pub data_segs_in: u32,
    /// Packets sent with data (RFC 4898, tcpEStatsDataSegsOut).
    pub data_segs_out: u32,

    /// Packets that the peer received, as far as known; those that it received twice count twice.
    pub delivered: u32,
    /// Of these, those whose acknowledgement told of congestion (ECE).
    pub delivered_ce: u32,
    /// Bytes sent, again too (RFC 4898, tcpEStatsPerfHCDataOctetsOut).
    pub bytes_sent: u64,
    /// Bytes sent again (RFC 4898, tcpEStatsPerfOctetsRetrans).
    pub bytes_retrans: u64,
    /// Packets that the peer says it received twice (RFC 2883; RFC 4898, tcpEStatsStackDSACKDups).
    pub dsack_dups: u32,
    /// Times that packets were seen to change their order.
    pub reord_seen: u32,
    /// Packets received out of order.
    pub rcv_ooopack: u32,
    /// The peer's window, bytes.
    pub snd_wnd: u32,
    /// Our window, bytes.
    pub rcv_wnd: u32,
    /// Times that the retransmission timer ran out, ever.
    pub total_rto: u32,
    /// Times that it did and was the first of its loss.
    pub total_rto_recoveries: u32,
    /// How long recoveries from it took, ms.
    pub total_rto_time: u32,

    /// How long something waited to be sent, or to be acknowledged, µs.
    pub busy_time: u64,
    /// Of that, how long the peer's window held it back, µs.
    pub rwnd_limited: u64,
    /// And how long the send buffer did, µs.
    pub sndbuf_limited: u64,
}
