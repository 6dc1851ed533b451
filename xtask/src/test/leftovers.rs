//! The project promises that no memory, descriptor, file or process stays behind; so its own test run is held to it.
//!
//! Every step runs with TMPDIR set to a fresh folder, which marks both the files and the processes it started.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use anyhow::{Context, Result, bail};

use super::Outcome;
use crate::shell;

/// POSIX shared memory, where a library that a bench runs as a rival may leave files.
const SHM: &str = "/dev/shm";

/// Processes that were told to end get this long to do so, on a machine with much to do, too.
const GRACE: Duration = Duration::from_secs(20);

/// What was there before the first step.
pub struct Watch {
    tmp: PathBuf,
    /// The folder of shared memory, and what lay in it.
    shm: (PathBuf, BTreeSet<String>),
    grace: Duration,
}

impl Watch {
    /// Makes the folder, points TMPDIR to it, and notes what lies in shared memory.
    ///
    /// The folder's name is short: a socket's path below it has to fit 107 bytes.
    pub fn start() -> Result<Watch> {
        let tmp = env::temp_dir().join(format!("onecopy-test-{}", process::id()));
        fs::create_dir(&tmp).with_context(|| format!("{} could not be made", tmp.display()))?;
        shell::set_tmpdir(&tmp);
        let shm = PathBuf::from(SHM);
        Ok(Watch { tmp, shm: (shm.clone(), names(&shm)), grace: GRACE })
    }

    /// Says what stayed behind, and removes the folder in any case.
    pub fn finish(self) -> Result<Outcome> {
        let deadline = Instant::now() + self.grace;
        let mut processes = marked_processes(&self.tmp);
        while !processes.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
            processes = marked_processes(&self.tmp);
        }
        let mut left: Vec<String> =
            names(&self.tmp).into_iter().map(|name| format!("{}/{name}", self.tmp.display())).collect();
        let (shm, before) = &self.shm;
        left.extend(names(shm).difference(before).map(|name| format!("{}/{name}", shm.display())));
        left.extend(processes);
        drop(self);
        if left.is_empty() {
            println!("nothing stayed behind");
            return Ok(Outcome::Passed);
        }
        bail!("stayed behind: {}", left.join(", "))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.tmp);
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Processes other than this one whose environment has our TMPDIR, or whose command line names it: some, such as nginx,
/// write over their environment.
fn marked_processes(tmp: &Path) -> Vec<String> {
    let mark = format!("TMPDIR={}", tmp.display());
    names(Path::new("/proc"))
        .into_iter()
        .filter(|name| name.parse::<u32>().is_ok_and(|pid| pid != process::id()))
        .filter(|pid| {
            let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            let named = format!("{}/", tmp.display());
            read("environ").split(|byte| *byte == 0).any(|var| var == mark.as_bytes())
                || read("cmdline").windows(named.len()).any(|part| part == named.as_bytes())
        })
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// (Not of the machine's shared memory: what others put there meanwhile would be seen.)
    fn watch(name: &str) -> Watch {
        let tmp = env::temp_dir().join(format!("onecopy-watch-{name}-{}", process::id()));
        fs::create_dir(&tmp).unwrap();
        Watch { tmp, shm: ("/nowhere".into(), BTreeSet::new()), grace: Duration::from_millis(500) }
    }

    fn failure(watch: Watch) -> String {
        let tmp = watch.tmp.clone();
        let Err(error) = watch.finish() else { panic!("nothing was found") };
        assert!(!tmp.exists());
        error.to_string()
    }

    #[test]
    fn nothing_left_is_a_pass_and_a_file_is_not() {
        let clean = watch("clean");
        let tmp = clean.tmp.clone();
        assert!(matches!(clean.finish(), Ok(Outcome::Passed)));
        assert!(!tmp.exists());
        let dirty = watch("file");
        fs::create_dir(dirty.tmp.join("folder")).unwrap();
        fs::write(dirty.tmp.join("folder/file"), "x").unwrap();
        assert!(failure(dirty).ends_with("/folder"));
    }

    #[test]
    fn shared_memory_is_seen() {
        let shm = tempfile::tempdir().unwrap();
        let before = shm.path().join("before");
        fs::write(&before, "x").unwrap();
        let mut watch = watch("shm");
        watch.shm = (shm.path().into(), names(shm.path()));
        let file = shm.path().join("file");
        fs::write(&file, "x").unwrap();
        let told = failure(watch);
        assert!(told.contains(&file.display().to_string()), "{told}");
        assert!(!told.contains(&before.display().to_string()), "{told}");
    }

    #[test]
    fn a_process_is_seen_by_its_environment_or_its_words() {
        let watch = watch("process");
        let mut marked = Command::new("sleep").arg("60").env("TMPDIR", &watch.tmp).spawn().unwrap();
        // A shell that waits for a line, and has the folder in its own words only.
        let conf = format!("{}/nginx.conf", watch.tmp.display());
        let mut named = Command::new("/bin/sh")
            .args(["-c", "read line", &conf])
            .env_clear()
            .stdin(process::Stdio::piped())
            .spawn()
            .unwrap();
        let pids = [marked.id(), named.id()];
        let told = failure(watch);
        for child in [&mut marked, &mut named] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for pid in pids {
            assert!(told.contains(&format!("process {pid} ")), "{told}");
        }
    }
}
