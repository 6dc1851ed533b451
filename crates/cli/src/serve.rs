//! `onecopy serve`.

/// Flags of `onecopy serve`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `onecopy serve`.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("serve is being built")
}
