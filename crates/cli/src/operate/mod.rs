//! What who runs `serve` or `proxy` for others needs of them: what they say, and to whom.

pub mod access;
pub mod again;
pub mod config;
pub mod metrics;
pub mod says;

use crate::units;
use access::{Destination, Format, Setup};
use says::Level;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Flags that both programs have.
#[derive(Clone, Debug, clap::Args)]
pub struct Flags {
    /// Take flags from a TOML file: keys are the names of flags without their dashes (`cache = "1G"`, `stats = true`). What is given
    /// here wins over it. Read again at SIGHUP: log-level, access-log, idle-timeout, head-timeout, send-timeout and grace change at
    /// once, and of what else changed it is told that it needs a restart
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write a line for each request that was answered: to FILE, `journal` (systemd's) or `-` (standard output). A line that the
    /// disk is too slow for is left out, and counted (`log_dropped`): no request waits. SIGHUP opens FILE anew
    #[arg(long, value_name = "FILE|journal|-")]
    pub access_log: Option<Destination>,
    /// With --access-log: the form of its lines
    #[arg(long, value_enum, default_value_t, requires = "access_log", value_name = "FORMAT")]
    pub access_log_format: Format,
    /// Answer GET /metrics (for Prometheus) and GET /healthz on this address, to whoever can reach it. Health is 503 once the
    /// proxy was asked to stop, and a daemon answers no more then
    #[arg(long, value_name = "IP:PORT", value_parser = units::place)]
    pub metrics: Option<SocketAddr>,
    /// Say what is of this level or above, each line with its time (UTC) and level. Left out, the variable ONECOPY_LOG says it;
    /// without either, `info` as plain lines. (Systemd's journal is told levels in its own way)
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub log_level: Option<Level>,
}

impl Flags {
    /// Where requests are logged, if at all.
    pub fn log(&self) -> Option<Setup> {
        self.access_log.clone().map(|to| Setup { to, format: self.access_log_format })
    }

    /// Whether SIGHUP has something to open or to read again; otherwise it asks a program to stop.
    pub fn outlives_hang_up(&self) -> bool {
        self.config.is_some() || matches!(self.access_log, Some(Destination::File(_)))
    }
}
