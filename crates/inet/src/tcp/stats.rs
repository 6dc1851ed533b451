//! What a stack's TCP counts.

use onecopy_link::counters;

counters! {
    /// Counters of all connections together: each segment of a handshake that is thrown away is in one of them, by its reason, and so are others, but for a reset that is not exact
    /// (`challenges`, `rate_limited`). (What it is answered by has
    /// counters of its own beside that: resets, challenges, answers that were not given.) The names in brackets are the kernel's (`nstat`), where it has one.
    pub struct Stats {
        /// Segments received (TcpInSegs).
        segments_in,
        /// Segments sent, those sent again among them (TcpOutSegs).
        segments_out,
        /// Bytes received in order.
        bytes_in,
        /// Segments for which there was no room below: dropped before they left.
        refused,
        /// Segments sent again (TcpRetransSegs).
        retransmitted,
        /// Resets sent (TcpOutRsts).
        resets_out,
        /// Connections begun here (TcpActiveOpens).
        active_opens,
        /// Connections that a listener took (TcpPassiveOpens).
        passive_opens,
        /// Connections that never came to be (TcpAttemptFails).
        attempts_failed,
        /// Connections that were reset (TcpEstabResets).
        established_resets,
        /// Malformed headers (TcpInErrs).
        malformed,
        /// Wrong checksums (TcpInCsumErrors).
        bad_checksum,
        /// For a port that nobody has, or a socket whose connection is over: answered by a reset.
        no_socket,
        /// Without a connection, and not to be answered: a reset itself, a segment without ACK, SYN or RST.
        stray,
        /// Old duplicates by their timestamps (TcpExtPAWSEstab).
        paws,
        /// Outside of the window (TcpExtTCPACKSkippedSeq and its kind count those that were not answered).
        outside_window,
        /// Without ACK, where it is a must.
        no_ack,
        /// Acknowledges what was never sent.
        ack_unsent,
        /// Acknowledges what is long past: answered by a challenge.
        ack_too_old,
        /// Acknowledges something else than our SYN while a connection is made: answered by a reset. (The kernel's drop reason
        /// TCP_INVALID_ACK_SEQUENCE; nstat has none.)
        invalid_ack,
        /// ACKs without data of who is connected once it sends some (TcpExtTCPDeferAcceptDrop).
        deferred,
        /// Challenge ACKs sent (TcpExtTCPChallengeACK).
        challenges,
        /// Not answered, since the last answer to a segment out of place is not long ago.
        rate_limited,
        /// SYN where there is a connection, answered by a challenge (TcpExtTCPSYNChallenge).
        syn_challenges,
        /// Data that nobody will read: answered by a reset (TcpExtTCPAbortOnData, TCPRcvQDrop).
        data_after_close,
        /// Thrown away since a listener's queue of half-open connections is full (TcpExtTCPReqQFullDrop).
        syn_queue_full,
        /// Since its queue of those that wait to be accepted is full (TcpExtListenOverflows).
        accept_queue_full,
        /// Bytes that were there already (of them a DSACK tells).
        duplicate,
        /// Data behind the peer's FIN.
        behind_fin,
        /// Data beyond what there is memory for (TcpExtTCPRcvQDrop, TCPOFODrop).
        no_memory,
        /// Of these, since all connections together have as much as they may keep.
        memory_full,
        /// Times that memory became short for all connections together (TcpExtTCPMemoryPressures).
        memory_pressures,
        /// Connections that nobody held and that were reset, since there were too many of them, or no memory (TcpExtTCPAbortOnMemory).
        aborted_on_memory,
        /// Data received out of order (TcpExtTCPOFOQueue).
        out_of_order,
        /// Times that what had come was copied together, since it kept more memory than it had bytes for (TcpExtTCPRcvCollapsed counts packets).
        collapsed,
        /// What came out of order was let go of again (TcpExtOfoPruned).
        pruned,
        /// Connections given up for want of answers (TcpExtTCPAbortOnTimeout).
        timed_out,
        /// Connections reset because bytes were left unread, or lingering was off (TcpExtTCPAbortOnClose).
        aborted_on_close,
        /// Connections that ended while nobody held them (TcpExtTCPAbortOnLinger and its kind).
        orphans_ended,
        /// Timeouts (TcpExtTCPTimeouts).
        timeouts,
        /// Tail loss probes (TcpExtTCPLossProbes).
        loss_probes,
        /// Zero-window and keep-alive probes (TcpExtTCPKeepAlive, TCPWinProbe).
        probes,
        /// Connections in TIME-WAIT that were ended by a new SYN.
        time_wait_recycled,
        /// In TIME-WAIT: what came was answered by an ACK, or thrown away.
        time_wait_segments,
        /// Beyond the most connections in TIME-WAIT (TcpExtTCPTimeWaitOverflow).
        time_wait_overflow,
        /// Connections whose data in the SYN the server took (TcpExtTCPFastOpenActive).
        fast_open_taken,
        /// Those whose data it did not take (TcpExtTCPFastOpenActiveFail).
        fast_open_not_taken,
        /// Connections that a listener took with a SYN (TcpExtTCPFastOpenPassive).
        fast_open_begun,
        /// Those of them whose cookie was made by the backup key (TcpExtTCPFastOpenPassiveAltKey).
        fast_open_old_keys,
        /// SYNs whose cookie was wrong: made as if it was not there (TcpExtTCPFastOpenPassiveFail).
        fast_open_wrong_cookies,
        /// SYNs that asked for a cookie (TcpExtTCPFastOpenCookieReqd).
        fast_open_asked,
        /// SYNs with data or a cookie for which a listener's queue had no room (TcpExtTCPFastOpenListenOverflow).
        fast_open_overflows,
        /// Sends that were refused, as the link does not take a device's memory.
        device_memory,
        /// Urgent pointers: their bytes stay in the stream.
        urgent,
    }
}
