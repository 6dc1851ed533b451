//! All that is told.

use super::copy::Copy;
use super::feature::Feature;
use super::machine::Machine;
use super::probe::Probes;
use serde::Serialize;

/// All that `onecopy doctor` tells.
#[derive(Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    pub machine: Machine,
    pub copy: Copy,
    pub probes: Probes,
    pub features: Vec<Feature>,
}
