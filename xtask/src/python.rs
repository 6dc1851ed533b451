//! A Python with the package in it: installed from a wheel, or laid out as a wheel would install it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell::{self, command, run as sh};

/// Seconds that what Python runs may take before it counts as hung.
const LIMIT: &str = "600";

/// Whether there is one that the package is for.
pub fn is_there() -> bool {
    let modern = ["-c", "import sys; sys.exit(sys.version_info < (3, 11))"];
    command("python3", modern).status().is_ok_and(|status| status.success())
}

/// Whether `program` makes environments with pip in them. (Debian has the modules in a package of their own, python3-venv, and `python3 -m venv` fails without.)
pub fn makes_environments(program: &str) -> bool {
    command(program, ["-c", "import ensurepip, venv"]).output().is_ok_and(|said| said.status.success())
}

/// A wheel for `program`, into `out`; None where there is no maturin to make one. `target` is where cargo builds.
///
/// It is of the development profile: what is shown is that the wheel has all that it needs, and is tagged as it should be.
///
/// # Errors
///
/// It could not be built, or is none for other machines than this one: maturin names the oldest glibc whose symbols suffice (PEP 600), or none.
pub fn wheel(program: &str, out: &Path, target: &Path) -> Result<Option<PathBuf>> {
    if !command("maturin", ["--version"]).output().is_ok_and(|said| said.status.success()) {
        return Ok(None);
    }
    let _ = fs::remove_dir_all(out);
    let build = ["build", "--quiet", "--profile", "dev", "--locked", "--manifest-path", "python/Cargo.toml"];
    let mut maturin = command("maturin", build);
    maturin.args(["--interpreter", program, "--out"]).arg(out).env("CARGO_TARGET_DIR", target);
    sh(&mut maturin)?;
    let mut wheels: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(out).with_context(|| out.display().to_string())? {
        wheels.push(entry?.path());
    }
    ensure!(wheels.len() == 1, "maturin has made {} wheels", wheels.len());
    let wheel = wheels.remove(0);
    println!("{}", wheel.display());
    Ok(Some(wheel))
}

/// The tags of a wheel: of the Python, the ABI and the platform (PEP 427).
pub fn tags(wheel: &Path) -> Result<[String; 3]> {
    let name = wheel.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let words: Vec<&str> = name.strip_suffix(".whl").unwrap_or_default().split('-').collect();
    let &[_, _, python, abi, platform] = &words[..] else {
        anyhow::bail!("{name} is no name of a wheel: NAME-VERSION-PYTHON-ABI-PLATFORM.whl");
    };
    Ok([python, abi, platform].map(str::to_owned))
}

/// A Python, and where its package, the tests and the examples are.
pub struct Python {
    program: PathBuf,
    at: PathBuf,
    /// Whether the package lies there, too; else it is installed.
    laid_out: bool,
}

impl Python {
    /// One whose package is laid out at `at`, with the library that cargo built in `folder`, as `library`.
    pub fn laid_out(program: &str, at: PathBuf, folder: &Path, library: &str) -> Result<Python> {
        lay_out(&at)?;
        let package = at.join("onecopy");
        copy_all(&shell::root().join("python/package/onecopy"), &package)?;
        let built = folder.join("lib_onecopy.so");
        fs::copy(&built, package.join(library)).with_context(|| built.display().to_string())?;
        Ok(Python { program: program.into(), at, laid_out: true })
    }

    /// One in a fresh environment at `at`, which the wheel is installed in, and which finds the other packages (pytest, numpy) that `program` has.
    pub fn installed(program: &str, at: PathBuf, wheel: &Path) -> Result<Python> {
        lay_out(&at)?;
        let inside = environment(program, &at)?;
        sh(pip_installs(&inside).arg(wheel))?;
        Ok(Python { program: inside, at, laid_out: false })
    }

    /// One in a fresh environment at `at`, which the source is installed in, as `pip install ./python` does it: pip asks maturin, as the source says. `target` is where cargo builds. None where
    /// maturin is no package of `program`'s, which pip would fetch then.
    ///
    /// It is of the development profile, so that cargo has built nearly all of it before.
    pub fn from_source(program: &str, at: PathBuf, target: &Path) -> Result<Option<Python>> {
        lay_out(&at)?;
        let python = Python { program: environment(program, &at)?, at, laid_out: false };
        if !python.has("maturin") {
            return Ok(None);
        }
        let mut install = pip_installs(&python.program);
        install.arg("--no-build-isolation").arg(shell::root().join("python"));
        sh(install
            .env("MATURIN_PEP517_ARGS", "--profile dev --locked")
            .env("CARGO_TARGET_DIR", target)
            .env_remove("PYTHONPATH"))?;
        Ok(Some(python))
    }

    /// It finds what was built here, and not a package that is installed elsewhere.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut python = command("timeout", ["--kill-after=5", LIMIT]);
        python.arg(&self.program).arg("-B").args(args).current_dir(&self.at).env_remove("PYTHONPATH");
        if self.laid_out {
            python.env("PYTHONPATH", &self.at);
        }
        python
    }

    pub fn has(&self, module: &str) -> bool {
        self.command(&["-c", &format!("import {module}")]).output().is_ok_and(|out| out.status.success())
    }
}

/// Makes a fresh environment in `at`, which finds the packages that `program` has behind its own. Returns its Python.
fn environment(program: &str, at: &Path) -> Result<PathBuf> {
    let (environment, inside) = (at.join("venv"), at.join("venv/bin/python"));
    sh(command(program, ["-m", "venv"]).arg(&environment))?;
    // A path file's folders stand behind the environment's own (site in Python's library).
    let folders = "import site, sysconfig; print(*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path('purelib'), sep='\\n')";
    let folders = shell::output(&mut command(program, ["-c", folders]))?;
    let purelib = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let here = shell::output(&mut command(&inside, ["-c", purelib]))?;
    fs::write(Path::new(here.trim()).join("others.pth"), folders).with_context(|| here.clone())?;
    Ok(inside)
}

/// pip's command that installs what is named behind it, and nothing else. One of that name which is found elsewhere stays there.
fn pip_installs(python: &Path) -> Command {
    let mut install = command(python, ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    install.args(["--no-index", "--no-deps", "--ignore-installed"]);
    install
}

/// The tests and the examples, and what they read.
fn lay_out(at: &Path) -> Result<()> {
    if at.exists() {
        fs::remove_dir_all(at).with_context(|| at.display().to_string())?;
    }
    let source = shell::root().join("python");
    copy_all(&source.join("tests"), &at.join("tests"))?;
    copy_all(&shell::root().join("examples/python"), &at.join("examples"))?;
    for file in ["pyproject.toml", "README.md"] {
        fs::copy(source.join(file), at.join(file)).context(file)?;
    }
    Ok(())
}

/// The files of a folder, without the folders in it.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap_or_default()))
                .with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_without_venv_is_told_from_one_with_it() {
        // What a Python says by its exit status, said by programs that are everywhere.
        assert!(makes_environments("true"));
        assert!(!makes_environments("false"));
        assert!(!makes_environments("onecopy-no-such-python"));
    }

    #[test]
    fn the_tags_of_a_wheel_are_read() {
        let of = |name: &str| tags(Path::new(name)).ok().map(|tags| tags.join(" "));
        let abi3 = of("a/onecopy-0.1.0-cp311-abi3-manylinux_2_34_x86_64.whl");
        assert_eq!(abi3.as_deref(), Some("cp311 abi3 manylinux_2_34_x86_64"));
        assert_eq!(of("onecopy-0.1.0.tar.gz"), None);
        assert_eq!(of("onecopy-cp311-abi3-linux_x86_64.whl"), None);
    }
}
