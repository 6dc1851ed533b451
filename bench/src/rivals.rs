//! Where the rivals lie that are programs of their own: built in `bench/rivals/NAME` of a checkout of onecopy.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

/// A rival that is a program of its own.
#[derive(Clone, Copy, Debug)]
pub struct Rival {
    /// Its folder in `bench/rivals`, and its name as an engine.
    pub name: &'static str,
    /// Its worker, in that folder.
    pub worker: &'static str,
    /// The command that builds it there.
    pub build: &'static str,
    /// The environment variable that says where the worker is, if that is elsewhere.
    pub variable: &'static str,
}

impl Rival {
    /// The worker that the environment names; None if it names none.
    pub fn named(&self) -> Result<Option<PathBuf>> {
        let Some(path) = std::env::var_os(self.variable).map(PathBuf::from) else { return Ok(None) };
        ensure!(path.is_file(), "{} says {}, where no file is", self.variable, path.display());
        Ok(Some(path))
    }

    /// The worker, built already.
    pub fn built(&self) -> Result<PathBuf> {
        match self.named()? {
            Some(path) => Ok(path),
            None => self.built_in(&folders()),
        }
    }

    /// The folder to build it in.
    pub fn source(&self) -> Result<PathBuf> {
        self.source_in(&folders())
    }

    fn built_in(&self, folders: &[PathBuf]) -> Result<PathBuf> {
        let workers = folders.iter().map(|folder| folder.join(self.name).join(self.worker));
        if let Some(path) = workers.into_iter().find(|path| path.is_file()) {
            return Ok(path);
        }
        let source = self.source_in(folders)?;
        bail!("it is not built: {}", self.build_at(&source))
    }

    fn source_in(&self, folders: &[PathBuf]) -> Result<PathBuf> {
        if let Some(source) = folders.iter().map(|folder| folder.join(self.name)).find(|path| path.is_dir()) {
            return Ok(source);
        }
        let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        bail!(
            "its source is in none of {}: run this in a checkout of onecopy, where it is built by: {}",
            looked.join(", "),
            self.build_at(&Path::new("bench/rivals").join(self.name))
        )
    }

    /// What to do, as a shell takes it.
    pub fn build_at(&self, source: &Path) -> String {
        format!(
            "cd '{}' && {} (or say where its worker is in {})",
            source.display(),
            self.build,
            self.variable
        )
    }
}

/// Where rivals may be. A program that was moved, or whose checkout was, has one beside it, or is run in one.
fn folders() -> Vec<PathBuf> {
    let beside = std::env::current_exe().ok();
    let beside =
        beside.iter().flat_map(|program| program.ancestors().skip(1)).map(|up| up.join("bench/rivals"));
    // Of the folders above the program only one that is there says anything to who reads an error.
    let mut folders: Vec<PathBuf> = beside.filter(|folder| folder.is_dir()).collect();
    folders.push(concat!(env!("CARGO_MANIFEST_DIR"), "/rivals").into());
    folders.extend(std::env::current_dir().ok().map(|here| here.join("bench/rivals")));
    let mut known = Vec::new();
    folders.retain(|folder| {
        !known.contains(folder) && {
            known.push(folder.clone());
            true
        }
    });
    folders
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::temp::TempDir;

    const RIVAL: Rival =
        Rival { name: "other", worker: "target/worker", build: "make other", variable: "ONECOPY_RIVAL_NONE" };

    #[test]
    fn a_built_worker_is_found_wherever_it_is_and_a_missing_one_says_how_it_is_built() {
        let home = TempDir::new("rivals").unwrap();
        let [gone, source, built] = ["gone", "source", "built"].map(|name| home.path().join(name));
        let nowhere = RIVAL.built_in(&[gone.clone(), source.clone()]).unwrap_err().to_string();
        for word in ["/gone, ", "/source: ", "cd 'bench/rivals/other' && make other", "ONECOPY_RIVAL_NONE"] {
            assert!(nowhere.contains(word), "{word} is not in {nowhere}");
        }
        fs::create_dir_all(source.join("other")).unwrap();
        let folders = [gone, source.clone(), built.clone()];
        let missing = RIVAL.built_in(&folders).unwrap_err().to_string();
        let command = format!("it is not built: cd '{}' && make other ", source.join("other").display());
        assert!(missing.starts_with(&command), "{missing}");
        assert_eq!(RIVAL.source_in(&folders).unwrap(), source.join("other"));
        fs::create_dir_all(built.join("other/target")).unwrap();
        fs::write(built.join("other/target/worker"), "").unwrap();
        assert_eq!(RIVAL.built_in(&folders).unwrap(), built.join("other/target/worker"));
    }

    #[test]
    fn rivals_are_looked_for_in_the_checkout_of_this_program() {
        let folders = folders();
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals");
        assert!(folders.contains(&own), "{folders:?}");
        // (A test program lies in target, below the checkout.)
        assert_eq!(folders.iter().filter(|folder| **folder == own).count(), 1, "{folders:?}");
    }
}
