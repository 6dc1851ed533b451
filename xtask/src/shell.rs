//! Commands, run from the workspace root and shown before they run.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// The workspace root: this package lies directly below it.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The folder that cargo builds into.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Where commands keep their temporary files, once that is set.
static TMPDIR: OnceLock<PathBuf> = OnceLock::new();

/// From here on every command gets `dir` as its TMPDIR.
pub fn set_tmpdir(dir: &Path) {
    TMPDIR.get_or_init(|| dir.to_path_buf());
}

/// Removes that folder, with all that is in it.
pub fn remove_tmpdir() {
    if let Some(dir) = TMPDIR.get() {
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// A command in the workspace root, without standard input, so that nothing can wait for a person.
///
/// `cargo` is the one in PATH and not `$CARGO`: only rustup's own understands `+nightly`.
pub fn command<const N: usize>(program: impl AsRef<OsStr>, args: [&str; N]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root()).stdin(Stdio::null());
    if let Some(dir) = TMPDIR.get() {
        command.env("TMPDIR", dir);
    }
    command
}

/// A command as a person would type it, with the variables that were set for it.
pub fn shown(command: &Command) -> String {
    let vars = command.get_envs().filter(|(name, _)| *name != "TMPDIR").filter_map(|(name, value)| {
        value.map(|value| format!("{}={:?}", name.to_string_lossy(), value.to_string_lossy()))
    });
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned());
    vars.chain(words).collect::<Vec<_>>().join(" ")
}

/// Shows the command, runs it with our own output, and gives its exit status.
pub fn status(command: &mut Command) -> Result<ExitStatus> {
    println!("$ {}", shown(command));
    command.status().with_context(|| format!("{} could not be started", shown(command)))
}

/// As [`status`], but anything other than success is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs the command and gives what it printed on standard output; its errors go to ours.
pub fn output(command: &mut Command) -> Result<String> {
    println!("$ {}", shown(command));
    let out = command.stderr(Stdio::inherit()).output();
    let out = out.with_context(|| format!("{} could not be started", shown(command)))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        print!("{text}");
        bail!("{} ended with {}", shown(command), out.status);
    }
    Ok(text)
}

/// Runs the command and gives what it printed, on standard output and as errors; these go to ours, too.
pub fn both(command: &mut Command) -> Result<(String, String)> {
    println!("$ {}", shown(command));
    let out = command.output().with_context(|| format!("{} could not be started", shown(command)))?;
    let [text, said] = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    eprint!("{said}");
    if !out.status.success() {
        print!("{text}");
        bail!("{} ended with {}", shown(command), out.status);
    }
    Ok((text, said))
}

/// Runs the command and gives each line that it prints to `see`, which says whether it is passed on.
pub fn watched(command: &mut Command, mut see: impl FnMut(&str) -> bool) -> Result<()> {
    println!("$ {}", shown(command));
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} could not be started", shown(command)))?;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).split(b'\n') {
            let line = line.context("its output could not be read")?;
            let line = String::from_utf8_lossy(&line);
            if see(&line) {
                println!("{line}");
            }
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Whether `cargo NAME` exists here.
pub fn has_cargo(name: &str) -> bool {
    Command::new("cargo")
        .args([name, "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
