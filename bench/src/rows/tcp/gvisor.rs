//! gVisor's netstack: a program of its own, in Go, which is built when it is first needed.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::rivals::Rival;
use crate::row::Scale;

const RIVAL: Rival = Rival {
    name: "gvisor",
    worker: "target/onecopy-rival-gvisor",
    build: "go build -o target/onecopy-rival-gvisor .",
    variable: "ONECOPY_RIVAL_GVISOR",
};
/// Where Go puts itself, if it is not on the path.
const USUAL: &str = "/usr/local/go/bin/go";

/// The worker. It is built unless this is a smoke run, which may have no network to fetch gVisor over.
pub fn find(scale: Scale) -> Result<PathBuf> {
    if scale == Scale::Smoke {
        return RIVAL.built();
    }
    if let Some(path) = RIVAL.named()? {
        return Ok(path);
    }
    let source = RIVAL.source()?;
    let mut command = Command::new(if Path::new(USUAL).is_file() { USUAL } else { "go" });
    command.args(["build", "-o", RIVAL.worker, "."]).current_dir(&source);
    match command.output() {
        Ok(output) if output.status.success() => Ok(source.join(RIVAL.worker)),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().last().unwrap_or_default();
            bail!("it is not built: `go build` in {} says: {last}", source.display())
        }
        // One that was built elsewhere and brought here is as good.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            RIVAL.built().context("there is no Go here (go.dev)")
        }
        Err(error) => Err(error).context(RIVAL.build_at(&source)),
    }
}
