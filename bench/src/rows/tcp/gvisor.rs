//! gVisor's netstack: a program of its own, in Go, which is built when it is first needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::row::Scale;

/// Where its source is, in the checkout that this program was built from.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rivals/gvisor");
/// Says where it is, if that is elsewhere.
const VARIABLE: &str = "ONECOPY_RIVAL_GVISOR";
/// Where Go puts itself, if it is not on the path.
const USUAL: &str = "/usr/local/go/bin/go";

/// The worker. It is built unless this is a smoke run, which may have no network to fetch gVisor over.
pub fn find(scale: Scale) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "{VARIABLE} says {}, where nothing is", path.display());
        return Ok(path);
    }
    let built = Path::new(SOURCE).join("target/onecopy-rival-gvisor");
    if scale == Scale::Smoke {
        ensure!(built.is_file(), "it is not built: cd {SOURCE} && go build -o target/onecopy-rival-gvisor .");
        return Ok(built);
    }
    let go = if Path::new(USUAL).is_file() { USUAL } else { "go" };
    let mut command = Command::new(go);
    command.args(["build", "-o", "target/onecopy-rival-gvisor", "."]).current_dir(SOURCE);
    match command.output() {
        Ok(output) if output.status.success() => Ok(built),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("it is not built: `go build` in {SOURCE} says: {}", said.trim().lines().last().unwrap_or_default())
        }
        Err(error) => Err(error).context(format!(
            "it is not built: there is no Go here ({go}): install it from go.dev, or say where the built worker is in {VARIABLE}"
        )),
    }
}
