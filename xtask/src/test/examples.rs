//! Every example runs with its defaults, checks what it did itself, and ends.

use std::fs;

use anyhow::{Context, bail};

use super::Outcome;
use crate::shell::{self, command, run as sh};

/// Seconds that an example may take before it counts as hung.
const LIMIT: &str = "180";

pub fn run() -> anyhow::Result<Outcome> {
    let folder = shell::root().join("examples/rust");
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        // A file is one, and so is a folder with a main.rs.
        if path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists() {
            names.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    names.sort();
    if names.is_empty() {
        bail!("{} holds no example", folder.display());
    }
    sh(&mut command("cargo", ["build", "--workspace", "--all-features", "--examples", "--lib", "--quiet"]))?;
    for name in names {
        let program = shell::target().join("debug/examples").join(&name);
        let mut example = command("timeout", ["--kill-after=5", LIMIT]);
        example.arg(program);
        if name == "gpu_check" {
            // What it checks on a GPU, on the stand-in for one.
            example.args(["--need-gpu", "--quick"]);
            example.env("ONECOPY_CUDA_LIBRARY", shell::target().join("debug/libonecopy_cuda_stand_in.so"));
        }
        sh(&mut example)?;
    }
    Ok(Outcome::Passed)
}
