//! Every interleaving of the lock-free rooms' models, within a bound. A target folder of its own: `--cfg loom`
//! changes every crate's build.

use super::Outcome;
use super::sum::ran;
use crate::shell::{self, command};

/// The rooms that have models.
const ROOMS: [&str; 5] =
    ["onecopy-sync", "onecopy-pool", "onecopy-ring", "onecopy-chain", "onecopy-linux-notif"];

/// Preemptions that an execution may hold. Loom's own experience is that two or three find nearly every bug, and
/// each one more multiplies the time.
const PREEMPTIONS: &str = "3";

pub fn run() -> anyhow::Result<Outcome> {
    let mut test = command("cargo", ["test", "--release", "--quiet", "--lib", "--tests"]);
    for room in ROOMS {
        test.args(["--package", room]);
    }
    test.arg("--target-dir").arg(shell::target().join("loom"));
    test.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", PREEMPTIONS);
    ran(&mut test)
}
