//! What who runs `serve` or `proxy` for others needs of them: what they say, and to whom.

pub mod access;
pub mod says;

use access::{AccessLog, Destination, Format, Setup};
use says::Level;

/// Flags that both programs have.
#[derive(Clone, Debug, clap::Args)]
pub struct Flags {
    /// Write a line for each request that was answered: to FILE, `journal` (systemd's) or `-` (standard output). A line that the
    /// disk is too slow for is left out, and counted (`log_dropped`): no request waits. SIGHUP opens FILE anew
    #[arg(long, value_name = "FILE|journal|-")]
    pub access_log: Option<Destination>,
    /// With --access-log: the form of its lines
    #[arg(long, value_enum, default_value_t, requires = "access_log", value_name = "FORMAT")]
    pub access_log_format: Format,
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
        matches!(self.access_log, Some(Destination::File(_)))
    }
}

/// Opens again what a rotation may have moved away. On another thread than the clients': the writer of the log may have much to
/// write before.
pub async fn reopen(log: &AccessLog, setup: Option<Setup>) {
    if let Some(setup) = setup {
        let log = log.clone();
        let _ = tokio::task::spawn_blocking(move || log.again(setup)).await;
    }
}
