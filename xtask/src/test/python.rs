//! The Python package: built by cargo, laid out as a wheel would install it, then its own tests, and mypy on its types.
//!
//! No maturin is needed for that. What Python itself lacks (pytest, mypy, numpy, torch) is said to be lacking.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Outcome;
use crate::shell::{self, command, run as sh};

/// Seconds that the tests may take before they count as hung.
const LIMIT: &str = "300";

pub fn run() -> Result<Outcome> {
    let modern = ["-c", "import sys; sys.exit(sys.version_info < (3, 11))"];
    if !command("python3", modern).status().is_ok_and(|status| status.success()) {
        return Ok(Outcome::Skipped("python3 is not installed, or is older than 3.11".into()));
    }
    let packages = ["onecopy-python", "onecopy-cli", "onecopy-cuda-stand-in"];
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    sh(command("cargo", ["build", "--quiet", "--lib", "--bins"]).args(packages))?;
    sh(&mut command("cargo", ["build", "--quiet", "--package", "onecopy-python", "--examples"]))?;
    let at = shell::target().join("python");
    lay_out(&at)?;
    // The package is what was built here, not one that is installed elsewhere.
    let python = |args: &[&str]| {
        let mut python = command("timeout", ["--kill-after=5", LIMIT, "python3", "-B"]);
        python.args(args).current_dir(&at).env("PYTHONPATH", &at);
        python.env("ONECOPY", shell::target().join("debug/onecopy"));
        python.env("ONECOPY_LENDER", shell::target().join("debug/examples/onecopy-lender"));
        let stand_in = shell::target().join("debug/libonecopy_cuda_stand_in.so");
        python.env("ONECOPY_STAND_IN_LIBRARY", stand_in);
        python
    };
    sh(&mut python(&["-W", "error", "-c", "import onecopy; onecopy.pair()"]))?;

    let has = |module: &str| {
        python(&["-c", &format!("import {module}")]).output().is_ok_and(|out| out.status.success())
    };
    let mut lacking: Vec<String> = ["mypy", "numpy", "torch"]
        .iter()
        .filter(|module| !has(module))
        .map(|module| (*module).to_owned())
        .collect();
    if has("mypy") {
        sh(&mut python(&["-m", "mypy", "--cache-dir", "mypy-cache"]))?;
        let allowed = ["--allowlist", "tests/stubtest-allowlist.txt", "--ignore-unused-allowlist"];
        sh(python(&["-m", "mypy.stubtest", "onecopy"]).args(allowed))?;
    }
    if !has("pytest") {
        return Ok(Outcome::Skipped(
            "pytest is not installed: `python3 -m pip install pytest mypy numpy`".into(),
        ));
    }
    let said = shell::output(
        python(&["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]).args(["--basetemp", "t"]),
    )?;
    print!("{said}");
    let count = passed(&said);
    ensure!(count > 0, "pytest ran no test");
    lacking.dedup();
    Ok(if lacking.is_empty() { Outcome::Tests(count) } else { Outcome::Partly(count, lacking) })
}

/// Copies the package, its tests and the library that cargo built to where Python finds them.
fn lay_out(at: &Path) -> Result<()> {
    if at.exists() {
        fs::remove_dir_all(at).with_context(|| at.display().to_string())?;
    }
    let source = shell::root().join("python");
    let folders = [("onecopy", source.join("onecopy")), ("tests", source.join("tests"))];
    let examples = ("examples", shell::root().join("examples/python"));
    for (folder, from) in folders.into_iter().chain([examples]) {
        fs::create_dir_all(at.join(folder)).with_context(|| at.display().to_string())?;
        for entry in fs::read_dir(&from).with_context(|| from.display().to_string())? {
            let path = entry?.path();
            if path.is_file() {
                fs::copy(&path, at.join(folder).join(path.file_name().unwrap_or_default()))?;
            }
        }
    }
    fs::copy(source.join("pyproject.toml"), at.join("pyproject.toml"))?;
    let library = shell::target().join("debug/lib_onecopy.so");
    fs::copy(&library, at.join("onecopy/_onecopy.abi3.so")).with_context(|| library.display().to_string())?;
    Ok(())
}

/// The number before "passed" in pytest's last line.
fn passed(said: &str) -> u64 {
    let last = said.lines().rev().find(|line| line.contains(" passed")).unwrap_or_default();
    let words: Vec<_> = last.split([' ', ',']).collect();
    let at = words.iter().position(|word| *word == "passed").unwrap_or_default();
    at.checked_sub(1).and_then(|at| words[at].parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::passed;

    #[test]
    fn pytests_last_line_is_read() {
        assert_eq!(passed("....\n27 passed, 1 skipped in 0.45s\n"), 27);
        assert_eq!(passed("..F\n1 failed, 4 passed in 0.19s\n"), 4);
        assert_eq!(passed("no tests ran in 0.00s\n"), 0);
    }
}
