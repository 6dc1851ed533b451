//! What the crate offers is what docs/api.txt says.

use super::Outcome;
use crate::api;

pub fn run() -> anyhow::Result<Outcome> {
    Ok(match api::run(&api::Args { check: true })? {
        api::Ended::Done => Outcome::Passed,
        api::Ended::Cannot(why) => Outcome::Skipped(why),
    })
}
