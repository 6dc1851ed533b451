//! A hostile peer for a moment. Each run starts from another seed, which is printed: a failure names the one that
//! repeats it.

use super::{Outcome, apart};

pub fn run() -> anyhow::Result<Outcome> {
    apart::run(&["--package", "onecopy-fuzz"], true, |_| true)
}
