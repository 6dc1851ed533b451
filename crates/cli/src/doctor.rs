//! `onecopy doctor`.

/// Flags of `onecopy doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `onecopy doctor`.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("doctor is being built")
}
