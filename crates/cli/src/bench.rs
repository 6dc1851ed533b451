//! `onecopy bench`.

/// Flags of `onecopy bench`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `onecopy bench`.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("bench is being built")
}
