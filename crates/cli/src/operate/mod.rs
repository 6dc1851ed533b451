//! What who runs `serve` or `proxy` for others needs of them: what they say, and to whom.

pub mod access;
pub mod again;
pub mod config;
pub mod given;
pub mod metrics;
pub mod role;
pub mod says;
pub mod takeover;
pub mod user;

use crate::address::Address;
use crate::units;
use access::{Destination, Format, Setup};
use anyhow::Context;
use says::Level;
use std::net::SocketAddr;
use std::path::PathBuf;
use tracing::info;
use user::User;

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
    /// Meet the one of these programs that runs, at this unix socket, and take over its sockets; it finishes what it has and ends.
    /// Then, or where there is none, wait there for a successor. No client is refused meanwhile. (Under systemd, a .socket unit is
    /// the way)
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["tap", "xdp"])]
    pub takeover: Option<Address>,
    /// Bind as root, and then be this user (names or numbers), with its groups or with GROUP as the first of them. All else is
    /// opened as that user: the files served, certificate, key, log, --config, and the socket of --takeover. Sockets with paths are
    /// given to it; to remove them at the end it needs their folder
    #[arg(long, value_name = "NAME[:GROUP]", conflicts_with_all = ["tap", "xdp"])]
    pub user: Option<user::Asked>,
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

    /// Whom this process is to become, if it is.
    pub fn find_user(&self) -> anyhow::Result<Option<User>> {
        self.user.as_ref().map(User::find).transpose()
    }

    /// Becomes `user`. The sockets are bound by now, and nothing else was opened.
    pub fn enter(&self, user: Option<&User>) -> anyhow::Result<()> {
        let Some(user) = user else { return Ok(()) };
        let whom = user.enter()?;
        if let Some(file) = &self.config {
            std::fs::File::open(file).with_context(|| {
                format!("{whom} cannot read {} again at SIGHUP (--config)", file.display())
            })?;
        }
        info!(target: "onecopy", "goes on as {whom}");
        Ok(())
    }

    /// Whether SIGHUP has something to open or to read again; otherwise it asks a program to stop.
    pub fn outlives_hang_up(&self) -> bool {
        self.config.is_some() || matches!(self.access_log, Some(Destination::File(_)))
    }
}
