//! What a process holds that connections could leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// At a quiet moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Held {
    /// Open descriptors.
    pub descriptors: usize,
    /// Mappings of memfds.
    pub mappings: usize,
    /// Threads.
    pub threads: usize,
    /// Child processes.
    pub children: usize,
}

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Memory {
    /// The process's own.
    pub anonymous: u64,
    /// Shared.
    pub shared: u64,
}

impl Held {
    /// By this process, now.
    pub fn now() -> Held {
        let count = |folder: &str| fs::read_dir(folder).map_or(0, |entries| entries.count());
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Held {
            descriptors: count("/proc/self/fd"),
            mappings: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            threads: count("/proc/self/task"),
            children: children(),
        }
    }
}

/// Processes whose parent this is.
fn children() -> usize {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .map(|list| list.split_whitespace().count())
        .sum()
}

impl Memory {
    /// Of this process, now (proc_pid_status(5)).
    pub fn now() -> Memory {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next())
                .and_then(|n| n.parse::<u64>().ok())
                .unwrap_or(0)
        };
        Memory { anonymous: kib("RssAnon:") << 10, shared: kib("RssShmem:") << 10 }
    }
}

/// Names of ours in a folder that others use, too.
pub fn ours_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("onecopy"))
        .collect()
}
