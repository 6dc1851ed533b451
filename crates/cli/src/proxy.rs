//! `onecopy proxy`.

/// Flags of `onecopy proxy`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `onecopy proxy`.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("proxy is being built")
}
