//! Sysctls that every script begins with, so that it doesn't hang on those of a machine.

/// Linux's defaults, but for these: Reno, whose window is counted in the head; no cork of the kernel's own, which hangs on how fast packets
/// are read; nothing remembered of one connection for another; windows of 64 KiB and more by a scale of 7.
pub(crate) const SYSCTLS: [(&str, &str); 35] = [
    ("net.ipv4.tcp_abort_on_overflow", "0"),
    ("net.ipv4.tcp_autocorking", "0"),
    ("net.ipv4.tcp_congestion_control", "reno"),
    ("net.ipv4.tcp_dsack", "1"),
    ("net.ipv4.tcp_early_retrans", "3"),
    ("net.ipv4.tcp_ecn", "2"),
    ("net.ipv4.tcp_fastopen", "1"),
    ("net.ipv4.tcp_fastopen_blackhole_timeout_sec", "0"),
    ("net.ipv4.tcp_fin_timeout", "60"),
    ("net.ipv4.tcp_frto", "2"),
    ("net.ipv4.tcp_invalid_ratelimit", "500"),
    ("net.ipv4.tcp_keepalive_intvl", "75"),
    ("net.ipv4.tcp_keepalive_probes", "9"),
    ("net.ipv4.tcp_keepalive_time", "7200"),
    ("net.ipv4.tcp_min_tso_segs", "2"),
    ("net.ipv4.tcp_moderate_rcvbuf", "1"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv4.tcp_notsent_lowat", "4294967295"),
    ("net.ipv4.tcp_orphan_retries", "0"),
    ("net.ipv4.tcp_recovery", "1"),
    ("net.ipv4.tcp_reordering", "3"),
    ("net.ipv4.tcp_retries2", "15"),
    ("net.ipv4.tcp_rfc1337", "0"),
    ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
    ("net.ipv4.tcp_sack", "1"),
    ("net.ipv4.tcp_slow_start_after_idle", "1"),
    ("net.ipv4.tcp_syn_linear_timeouts", "4"),
    ("net.ipv4.tcp_syn_retries", "6"),
    ("net.ipv4.tcp_synack_retries", "5"),
    ("net.ipv4.tcp_syncookies", "0"),
    ("net.ipv4.tcp_timestamps", "1"),
    ("net.ipv4.tcp_tso_win_divisor", "3"),
    ("net.ipv4.tcp_tw_reuse", "2"),
    ("net.ipv4.tcp_window_scaling", "1"),
    ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
];

/// The same for packetdrill itself (`--init_scripts`).
pub fn shell() -> String {
    let mut text =
        "#!/bin/sh\n# The sysctls that scripts begin with: made of scripts/src/defaults.rs.\n".to_owned();
    for (name, value) in SYSCTLS {
        text.push_str(&format!("sysctl -q {name}=\"{value}\"\n"));
    }
    text
}
