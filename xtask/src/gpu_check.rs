//! `cargo xtask gpu-check`: every path to a CUDA device, checked on one; or on the stand-in for its driver.

use anyhow::{Context, Result, bail};

use crate::python::{self, Python};
use crate::shell::{self, command, run as sh};

/// Flags of `cargo xtask gpu-check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only build what it needs. Then it runs without a network, and without a compiler, on a machine with a GPU: this command there, or
    /// target/release/examples/gpu_check --need-gpu alone (without what Python gets).
    #[arg(long)]
    build_only: bool,
    /// Run it on the stand-in for the driver (testing/cuda): what is shown is that the code is right, and no figure means anything.
    #[arg(long)]
    stand_in: bool,
    /// A sixteenth of the bytes.
    #[arg(long)]
    quick: bool,
}

pub fn run(args: &Args) -> Result<()> {
    // Of the stand-in no figure means anything, and what tests are built by is there already.
    let profile = if args.stand_in { "dev" } else { "release" };
    let folder = shell::target().join(if args.stand_in { "debug" } else { profile });
    let program = folder.join("examples/gpu_check");
    let library = folder.join("libonecopy_cuda_stand_in.so");
    let with_python = python::is_there();
    let built = program.exists() && library.exists();
    let mut build = command("cargo", ["build", "--quiet", "--profile", profile]);
    build.args(["--package", "onecopy", "--package", "onecopy-cuda-stand-in"]);
    build.args(["--example", "gpu_check", "--lib", "--features", "onecopy/cuda"]);
    let mut done = sh(&mut build);
    if with_python && done.is_ok() {
        let package = ["build", "--quiet", "--profile", profile, "--package", "onecopy-python", "--lib"];
        done = sh(&mut command("cargo", package));
    }
    match done {
        Ok(()) => {}
        // Where it was brought from elsewhere there may be no compiler, or no network.
        Err(error) if built && !args.build_only => eprintln!("{error}; what was built before is run"),
        Err(error) => return Err(error),
    }
    if args.build_only {
        println!("{} is built; it runs as it is on a machine with a GPU", program.display());
        return Ok(());
    }
    let mut check = command(&program, ["--need-gpu"]);
    if args.quick {
        check.arg("--quick");
    }
    let mut checks = vec![check];
    if with_python {
        let at = shell::target().join("python-gpu-check");
        let python = Python::laid_out("python3", at, &folder, "_onecopy.abi3.so")?;
        checks.push(python.command(&["examples/gpu_check.py", "--need-gpu"]));
    } else {
        eprintln!(
            "python3 is not installed, or is older than 3.11: what Python gets of a fragment is not checked"
        );
    }
    for mut check in checks {
        if args.stand_in {
            check.env("ONECOPY_CUDA_LIBRARY", &library);
        }
        let status = shell::status(&mut check).context("the check could not be started")?;
        if !status.success() {
            bail!(
                "the check {status}; it needs NVIDIA's driver and a device (nvidia-smi shows one), or --stand-in for a run without"
            );
        }
    }
    if args.stand_in {
        println!("on the stand-in: every sum is right; its figures mean nothing");
    }
    Ok(())
}
