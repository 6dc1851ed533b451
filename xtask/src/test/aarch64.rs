//! The AArch64 kernels, cross-compiled and run under an emulator: no machine of that kind is needed, but its compiler is.

use super::Outcome;
use crate::shell::{self, command};

/// The script's exit status for "something is missing, nothing was checked".
const SKIPPED: i32 = 77;

pub fn run() -> anyhow::Result<Outcome> {
    let status = shell::status(&mut command("sh", ["crates/copy/tests/aarch64/run.sh"]))?;
    match status.code() {
        Some(0) => Ok(Outcome::Passed),
        Some(SKIPPED) => Ok(Outcome::Skipped(
            "no cross compiler or emulator (Debian, after `dpkg --add-architecture arm64`: rustc \
             libstd-rust-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)"
                .to_owned(),
        )),
        _ => anyhow::bail!("crates/copy/tests/aarch64/run.sh ended with {status}"),
    }
}
