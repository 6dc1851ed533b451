//! The Python package: a wheel of it, made by maturin and installed in a fresh environment; its own tests on that, and mypy on its types. In another environment its source is installed.
//!
//! Where there is no maturin, or no venv to install a wheel in, the tests run on what cargo built, laid out as a wheel would install it. What Python itself lacks (pytest, mypy, numpy, torch) is said to
//! be lacking. A free-threaded Python, which does not load the same library, gets a wheel of its own, and the same tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::Outcome;
use crate::python::{self, Python};
use crate::results::record;
use crate::shell::{self, command, run as sh};

/// By which names a free-threaded Python goes (PEP 703), of the versions that PyO3 knows.
const FREE_THREADED: [&str; 2] = ["python3.14t", "python3.15t"];

pub fn run() -> Result<Outcome> {
    if !python::is_there() {
        return Ok(Outcome::Skipped("python3 is not installed, or is older than 3.11".into()));
    }
    let packages = ["onecopy-python", "onecopy-cli", "onecopy-cuda-stand-in"];
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    sh(command("cargo", ["build", "--quiet", "--lib", "--bins"]).args(packages))?;
    sh(&mut command("cargo", ["build", "--quiet", "--package", "onecopy-python", "--examples"]))?;
    let mut lacking = Vec::new();
    let target = shell::target();
    let wheel = python::wheel("python3", &target.join("wheels"), &target)?;
    if let Some(wheel) = &wheel {
        // One for 3.11 and all later ones, on any Linux whose glibc is new enough.
        fits(wheel, |python, abi| (python, abi) == ("cp311", "abi3"))?;
    }
    let laid_out =
        || Python::laid_out("python3", target.join("python"), &target.join("debug"), "_onecopy.abi3.so");
    let python = match &wheel {
        Some(wheel) if python::makes_environments("python3") => {
            if !source(&target)? {
                lacking
                    .push("maturin as a package of python3's (so the source was not installed)".to_owned());
            }
            Python::installed("python3", target.join("python"), wheel)?
        }
        Some(_) => {
            lacking.push("python3's venv (so neither the wheel nor the source was installed)".to_owned());
            laid_out()?
        }
        None => {
            lacking.push("maturin (so no wheel was made, and the source not installed)".to_owned());
            laid_out()?
        }
    };
    sh(&mut python.command(&["-W", "error", "-c", "import onecopy; onecopy.pair()"]))?;

    let modules = ["mypy", "numpy", "torch"].iter().filter(|module| !python.has(module));
    lacking.extend(modules.map(|module| (*module).to_owned()));
    if python.has("mypy") {
        for what in [&["--package", "onecopy"][..], &["tests"]] {
            sh(python.command(&["-m", "mypy", "--cache-dir", "mypy-cache"]).args(what))?;
        }
        let allowed = ["--allowlist", "tests/stubtest-allowlist.txt", "--ignore-unused-allowlist"];
        sh(python.command(&["-m", "mypy.stubtest", "onecopy"]).args(allowed))?;
    }
    if python.has("numpy") {
        row(&python, &target.join("python/record"))?;
    }
    if !python.has("pytest") {
        return Ok(Outcome::Skipped(
            "pytest is not installed: `python3 -m pip install pytest mypy numpy`".into(),
        ));
    }
    let mut count = test(&python)?;
    match free_threaded()? {
        Ok(more) => count += more,
        Err(lacks) => lacking.push(lacks),
    }
    Ok(if lacking.is_empty() { Outcome::Tests(count) } else { Outcome::Partly(count, lacking) })
}

/// Every engine of the bench row, for a moment. What they reach is no matter, but the record in `folder` has to have it.
fn row(python: &Python, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let begun = folder.join("2026-01-31-machine.csv");
    fs::write(&begun, format!("{}\n", record::COLUMNS))?;
    fs::write(begun.with_extension("txt"), "CPU: one\n")?;
    let row = shell::root().join("bench/python/row.py");
    sh(python.command(&[]).arg(row).args(["--quick", "--rounds", "1", "--record"]).arg(&begun))?;
    let machines = record::read(folder)?;
    let machine = machines.get("machine").context("the record is gone")?;
    let taken = machine.rows.get("python").context("the record has no row python")?;
    let demanded = |case: &str, engine: &str, words: &str| {
        let same = |one: &&record::Demand| one.case == case && one.engine == engine && one.words == words;
        taken.demands.iter().find(same).is_some_and(|demand| demand.holds.is_some())
    };
    for (case, times) in [("64K", "1.2"), ("1M", "0.95")] {
        ensure!(
            taken.lines.iter().any(|line| line.case == case && line.engine == "auto"),
            "no figure of {case}"
        );
        ensure!(demanded(case, "auto", ">= 2 x pickle"), "no verdict on {case} beside pickle");
        ensure!(demanded(case, "auto", &format!(">= {times} x shared_memory")), "no verdict on {case}");
    }
    let runs = machine.facts.values().flatten().filter(|line| line.starts_with("run: ")).count();
    ensure!(runs == 1, "{runs} runs are in the facts");
    Ok(())
}

/// `pip install ./python`, and bytes there and back with what that has installed. False where there is no package that builds it.
fn source(target: &Path) -> Result<bool> {
    let Some(python) = Python::from_source("python3", target.join("python-source"), target)? else {
        return Ok(false);
    };
    let program = "import sys, onecopy\n\
        assert onecopy.__file__.startswith(sys.prefix), onecopy.__file__\n\
        one, other = onecopy.pair()\n\
        one.sendall(b'there'); assert other.recv(5) == b'there'\n\
        other.sendall(b'back'); assert one.recv(4) == b'back'\n";
    sh(&mut python.command(&["-W", "error", "-c", program]))?;
    Ok(true)
}

/// The same tests with the library that a free-threaded Python loads; or what there is not of it.
fn free_threaded() -> Result<Result<u64, String>> {
    let is_there = |name: &&str| command(name, ["--version"]).output().is_ok_and(|out| out.status.success());
    let Some(program) = FREE_THREADED.into_iter().find(is_there) else {
        return Ok(Err(format!("a free-threaded Python ({})", FREE_THREADED.join(", "))));
    };
    // In a folder of its own: PyO3 is built for the one Python or for the other.
    let target = shell::target().join("python-free-threaded");
    let python = match python::wheel(program, &target.join("wheels"), &target)? {
        Some(wheel) => {
            // As "cp314-cp314t".
            fits(&wheel, |python, abi| abi.strip_suffix('t') == Some(python))?;
            if !python::makes_environments(program) {
                return Ok(Err(format!("{program}'s venv (so its wheel was not installed)")));
            }
            Python::installed(program, target.join("python"), &wheel)?
        }
        None => {
            let build = ["build", "--quiet", "--package", "onecopy-python", "--lib"];
            sh(command("cargo", build).env("PYO3_PYTHON", program).env("CARGO_TARGET_DIR", &target))?;
            Python::laid_out(program, target.join("python"), &target.join("debug"), "_onecopy.so")?
        }
    };
    // A module that does not say that it can do without the lock would bring it back.
    let free = "import sys, onecopy; onecopy.pair(); sys.exit(sys._is_gil_enabled())";
    sh(&mut python.command(&["-W", "error", "-c", free]))?;
    if !python.has("pytest") {
        return Ok(Err(format!("pytest of {program}")));
    }
    Ok(Ok(test(&python)?))
}

/// Whether a wheel is for the Pythons that it is to be for, and for other machines than this one.
fn fits(wheel: &Path, right: impl FnOnce(&str, &str) -> bool) -> Result<()> {
    let [python, abi, platform] = python::tags(wheel)?;
    ensure!(right(&python, &abi), "{} is for another Python", wheel.display());
    ensure!(platform.starts_with("manylinux_"), "{} is for this machine alone (PEP 600)", wheel.display());
    Ok(())
}

/// Runs the tests; returns how many passed.
fn test(python: &Python) -> Result<u64> {
    let pytest = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp", "t"];
    let said = shell::output(told(&mut python.command(&pytest)))?;
    print!("{said}");
    let count = passed(&said);
    ensure!(count > 0, "pytest ran no test");
    Ok(count)
}

/// Tells the tests of the programs that they start, and of the stand-in for CUDA's driver.
fn told(command: &mut Command) -> &mut Command {
    let built = |name: &str| -> PathBuf { shell::target().join("debug").join(name) };
    command.env("ONECOPY", built("onecopy")).env("ONECOPY_LENDER", built("examples/onecopy-lender"));
    command.env("ONECOPY_STAND_IN_LIBRARY", built("libonecopy_cuda_stand_in.so"))
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
    use super::{fits, passed};
    use std::path::Path;

    #[test]
    fn pytests_last_line_is_read() {
        assert_eq!(passed("....\n27 passed, 1 skipped in 0.45s\n"), 27);
        assert_eq!(passed("..F\n1 failed, 4 passed in 0.19s\n"), 4);
        assert_eq!(passed("no tests ran in 0.00s\n"), 0);
    }

    #[test]
    fn a_wheel_for_this_machine_or_another_python_is_refused() {
        let of = |name: &str| fits(Path::new(name), |python, abi| (python, abi) == ("cp311", "abi3"));
        of("onecopy-0.1.0-cp311-abi3-manylinux_2_34_x86_64.whl").unwrap();
        let here = of("onecopy-0.1.0-cp311-abi3-linux_x86_64.whl").unwrap_err().to_string();
        assert!(here.ends_with("is for this machine alone (PEP 600)"), "{here}");
        let other = of("onecopy-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl").unwrap_err().to_string();
        assert!(other.ends_with("is for another Python"), "{other}");
    }
}
