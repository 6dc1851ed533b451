//! The Python package: built by cargo, laid out as a wheel would install it, then its own tests, and mypy on its types.
//!
//! No maturin is needed for that. What Python itself lacks (pytest, mypy, numpy, torch) is said to be lacking. A free-threaded Python, which does not load
//! the same library, gets one of its own, and the same tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Outcome;
use crate::shell::{self, command, run as sh};

/// Seconds that the tests may take before they count as hung.
const LIMIT: &str = "600";

/// By which names a free-threaded Python goes (PEP 703), of the versions that PyO3 knows.
const FREE_THREADED: [&str; 2] = ["python3.14t", "python3.15t"];

pub fn run() -> Result<Outcome> {
    let modern = ["-c", "import sys; sys.exit(sys.version_info < (3, 11))"];
    if !command("python3", modern).status().is_ok_and(|status| status.success()) {
        return Ok(Outcome::Skipped("python3 is not installed, or is older than 3.11".into()));
    }
    let packages = ["onecopy-python", "onecopy-cli", "onecopy-cuda-stand-in"];
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    sh(command("cargo", ["build", "--quiet", "--lib", "--bins"]).args(packages))?;
    sh(&mut command("cargo", ["build", "--quiet", "--package", "onecopy-python", "--examples"]))?;
    let python = Python { program: "python3", at: shell::target().join("python") };
    python.lay_out(&shell::target(), "_onecopy.abi3.so")?;
    sh(&mut python.command(&["-W", "error", "-c", "import onecopy; onecopy.pair()"]))?;

    let mut lacking: Vec<String> = ["mypy", "numpy", "torch"]
        .iter()
        .filter(|module| !python.has(module))
        .map(|module| (*module).to_owned())
        .collect();
    if python.has("mypy") {
        sh(&mut python.command(&["-m", "mypy", "--cache-dir", "mypy-cache"]))?;
        let allowed = ["--allowlist", "tests/stubtest-allowlist.txt", "--ignore-unused-allowlist"];
        sh(python.command(&["-m", "mypy.stubtest", "onecopy"]).args(allowed))?;
    }
    if !python.has("pytest") {
        return Ok(Outcome::Skipped(
            "pytest is not installed: `python3 -m pip install pytest mypy numpy`".into(),
        ));
    }
    let mut count = python.test()?;
    match free_threaded()? {
        Ok(more) => count += more,
        Err(lacks) => lacking.push(lacks),
    }
    Ok(if lacking.is_empty() { Outcome::Tests(count) } else { Outcome::Partly(count, lacking) })
}

/// The same tests with the library that a free-threaded Python loads; or what there is not of it.
fn free_threaded() -> Result<Result<u64, String>> {
    let is_there = |name: &&str| command(name, ["--version"]).output().is_ok_and(|out| out.status.success());
    let Some(program) = FREE_THREADED.into_iter().find(is_there) else {
        return Ok(Err(format!("a free-threaded Python ({})", FREE_THREADED.join(", "))));
    };
    // In a folder of its own: PyO3 is built for the one Python or for the other.
    let target = shell::target().join("python-free-threaded");
    let build = ["build", "--quiet", "--package", "onecopy-python", "--lib"];
    sh(command("cargo", build).env("PYO3_PYTHON", program).env("CARGO_TARGET_DIR", &target))?;
    let python = Python { program, at: target.join("python") };
    python.lay_out(&target, "_onecopy.so")?;
    // A module that does not say that it can do without the lock would bring it back.
    let free = "import sys, onecopy; onecopy.pair(); sys.exit(sys._is_gil_enabled())";
    sh(&mut python.command(&["-W", "error", "-c", free]))?;
    if !python.has("pytest") {
        return Ok(Err(format!("pytest of {program}")));
    }
    Ok(Ok(python.test()?))
}

/// A Python, and where the package is laid out for it.
struct Python {
    program: &'static str,
    at: PathBuf,
}

impl Python {
    /// It finds what was built here, and not a package that is installed elsewhere.
    fn command(&self, args: &[&str]) -> Command {
        let mut python = command("timeout", ["--kill-after=5", LIMIT, self.program, "-B"]);
        python.args(args).current_dir(&self.at).env("PYTHONPATH", &self.at);
        python.env("ONECOPY", shell::target().join("debug/onecopy"));
        python.env("ONECOPY_LENDER", shell::target().join("debug/examples/onecopy-lender"));
        let stand_in = shell::target().join("debug/libonecopy_cuda_stand_in.so");
        python.env("ONECOPY_STAND_IN_LIBRARY", stand_in);
        python
    }

    fn has(&self, module: &str) -> bool {
        self.command(&["-c", &format!("import {module}")]).output().is_ok_and(|out| out.status.success())
    }

    /// Runs the tests; returns how many passed.
    fn test(&self) -> Result<u64> {
        let pytest = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp", "t"];
        let said = shell::output(&mut self.command(&pytest))?;
        print!("{said}");
        let count = passed(&said);
        ensure!(count > 0, "pytest ran no test");
        Ok(count)
    }

    /// Copies the package, its tests and the library that cargo built in `target`, as `library`, to where this Python finds them.
    fn lay_out(&self, target: &Path, library: &str) -> Result<()> {
        let at = &self.at;
        if at.exists() {
            fs::remove_dir_all(at).with_context(|| at.display().to_string())?;
        }
        let source = shell::root().join("python");
        let folders = [("onecopy", source.join("package/onecopy")), ("tests", source.join("tests"))];
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
        for file in ["pyproject.toml", "README.md"] {
            fs::copy(source.join(file), at.join(file))?;
        }
        let built = target.join("debug/lib_onecopy.so");
        let there = at.join("onecopy").join(library);
        fs::copy(&built, there).with_context(|| built.display().to_string())?;
        Ok(())
    }
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
