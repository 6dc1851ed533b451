//! `onecopy tune`.

/// Flags of `onecopy tune`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `onecopy tune`.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("tune is being built")
}
