//! `onecopy generate`: manual pages and completions from the flags' one definition.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap_complete::Shell;

/// Flags of `onecopy generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder to write into: man/*.1 and completions/*
    dir: PathBuf,
}

/// Runs `onecopy generate`, for `program`.
pub fn run(args: &Args, program: clap::Command) -> anyhow::Result<()> {
    let man = folder(&args.dir, "man")?;
    let completions = folder(&args.dir, "completions")?;
    let command = program.disable_help_subcommand(true);
    let mut bare = without_hidden(&command);
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut bare, "onecopy", &completions)
            .with_context(|| completions.display().to_string())?;
    }
    clap_mangen::generate_to(command, &man).with_context(|| man.display().to_string())?;
    Ok(())
}

/// The program without its hidden commands, which clap_complete would offer (clap_mangen leaves them out itself).
fn without_hidden(command: &clap::Command) -> clap::Command {
    clap::Command::new("onecopy")
        .disable_help_subcommand(true)
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()))
}

fn folder(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
    Ok(path)
}
