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

/// Memory, in bytes. Of what the process has of its own most is free: pieces that the allocator keeps, and gives back
/// to the system only where they lie at an end. So it tells little of leaks, and what is allocated tells all.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Memory {
    /// Allocated, and not freed.
    pub allocated: u64,
    /// In so many pieces.
    pub pieces: u64,
    /// Resident, the process's own.
    pub anonymous: u64,
    /// Resident, shared.
    pub shared: u64,
}

/// What may be allocated at one quiet moment that was not at another: tables of what was live grow with the most that there ever
/// was of it. A connection that left one piece behind would be thousands in a lap.
const MORE_PIECES: u64 = 64;
const MORE_BYTES: u64 = 512 << 10;

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
        let stats = crate::ALLOCATOR.stats();
        Memory {
            allocated: (stats.bytes_allocated - stats.bytes_deallocated) as u64,
            pieces: (stats.allocations - stats.deallocations) as u64,
            anonymous: kib("RssAnon:") << 10,
            shared: kib("RssShmem:") << 10,
        }
    }

    /// What is allocated beside what was at another quiet moment.
    ///
    /// # Errors
    ///
    /// More than may have been by accident.
    pub fn has_no_more_than(&self, before: &Memory) -> Result<(), String> {
        let more = |now: u64, before: u64, most: u64| now > before + most;
        if more(self.pieces, before.pieces, MORE_PIECES) || more(self.allocated, before.allocated, MORE_BYTES)
        {
            return Err(format!(
                "{} bytes in {} pieces are allocated, where it was {} in {}",
                self.allocated, self.pieces, before.allocated, before.pieces
            ));
        }
        Ok(())
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
