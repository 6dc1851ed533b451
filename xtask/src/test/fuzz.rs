//! A hostile peer for a moment. Each run starts from another seed, which is printed: a failure names the one that
//! repeats it.

use super::{Outcome, ran};
use crate::shell::command;

pub fn run() -> anyhow::Result<Outcome> {
    ran(&mut command("cargo", ["test", "--package", "onecopy-fuzz", "--quiet", "--", "--nocapture"]))
}
