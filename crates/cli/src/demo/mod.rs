//! `onecopy demo`.

/// Flags of `onecopy demo`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `onecopy demo`.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("demo is being built")
}
