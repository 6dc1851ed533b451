//! What the kernel says of this machine, read from /proc, /sys and the limits of this process.

use std::fs;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// The machine, as far as the project's features depend on it.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Release of the running kernel, as `uname -r` gives it.
    pub kernel: String,
    /// Architecture, as `uname -m` gives it.
    pub architecture: String,
    pub cpu: Cpu,
    pub memory: Memory,
    pub limits: Limits,
    pub user: User,
}

#[derive(Debug, Serialize)]
pub struct Cpu {
    /// The maker's name for it; empty where the kernel does not say.
    pub model: String,
    /// CPUs that this process may run on: fewer than the machine has, in a container or under taskset.
    pub allowed: usize,
    /// Data caches, the nearest first, as the CPU reports them, which a hypervisor may make up.
    pub caches: Vec<Cache>,
}

#[derive(Debug, Serialize)]
pub struct Cache {
    pub level: u32,
    pub bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct Memory {
    /// All of it, bytes.
    pub total: u64,
    /// Size of a huge page, bytes.
    pub huge_page: Option<u64>,
    /// Huge pages set aside (vm.nr_hugepages), and how many of them are free.
    pub huge_pages: (u64, u64),
    /// When a memfd gets transparent huge pages: `never`, `advise`, `always`...
    pub shmem_huge: Option<String>,
    /// vm.memfd_noexec: 0 as asked, 1 not executable unless asked, 2 refused unless asked not executable.
    pub memfd_noexec: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct Limits {
    /// Open files, soft limit. Up to `open_files_hard` a program may raise it itself.
    pub open_files: Option<u64>,
    pub open_files_hard: Option<u64>,
    /// Mappings of one process (vm.max_map_count).
    pub mappings: Option<u64>,
    /// The most that SO_SNDBUF can be set to, bytes (net.core.wmem_max); the kernel doubles it for its own needs.
    pub send_buffer: Option<u64>,
    /// The most that SO_RCVBUF can be set to, bytes (net.core.rmem_max).
    pub receive_buffer: Option<u64>,
    /// Connections that wait to be accepted (net.core.somaxconn).
    pub backlog: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct User {
    pub uid: u32,
    /// Effective capabilities, as in /proc/self/status.
    #[serde(skip)]
    effective: u64,
    /// CAP_NET_ADMIN: TAP devices, AF_XDP programs, SO_SNDBUFFORCE.
    pub net_admin: bool,
    /// CAP_NET_RAW: AF_XDP sockets.
    pub net_raw: bool,
    /// CAP_IPC_LOCK: memory beyond RLIMIT_MEMLOCK.
    pub ipc_lock: bool,
}

impl Machine {
    /// Reads all of it. What cannot be read is `None`, never guessed.
    pub fn read() -> Machine {
        let uname = rustix::system::uname();
        Machine {
            kernel: uname.release().to_string_lossy().into_owned(),
            architecture: uname.machine().to_string_lossy().into_owned(),
            cpu: Cpu::read(),
            memory: Memory::read(),
            limits: Limits::read(),
            user: User::read(),
        }
    }
}

impl Cpu {
    fn read() -> Cpu {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| field(line, "model name"));
        Cpu {
            model: model.unwrap_or_default().to_owned(),
            allowed: std::thread::available_parallelism().map_or(1, usize::from),
            caches: (0..8).filter_map(Cache::read).collect(),
        }
    }
}

impl Cache {
    fn read(index: u32) -> Option<Cache> {
        let read = |name| text(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}"));
        if read("type")? == "Instruction" {
            return None;
        }
        let kib: u64 = read("size")?.strip_suffix('K')?.parse().ok()?;
        Some(Cache { level: read("level")?.parse().ok()?, bytes: kib * 1024 })
    }
}

impl Memory {
    fn read() -> Memory {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let number = |name| {
            let value = meminfo.lines().find_map(|line| field(line, name))?;
            value.trim_end_matches(" kB").parse::<u64>().ok()
        };
        Memory {
            total: number("MemTotal").unwrap_or(0) * 1024,
            huge_page: number("Hugepagesize").map(|kib| kib * 1024),
            huge_pages: (number("HugePages_Total").unwrap_or(0), number("HugePages_Free").unwrap_or(0)),
            shmem_huge: text("/sys/kernel/mm/transparent_hugepage/shmem_enabled").and_then(chosen),
            memfd_noexec: sysctl("vm/memfd_noexec"),
        }
    }
}

impl Limits {
    fn read() -> Limits {
        let files = getrlimit(Resource::Nofile);
        Limits {
            open_files: files.current,
            open_files_hard: files.maximum,
            mappings: sysctl("vm/max_map_count"),
            send_buffer: sysctl("net/core/wmem_max"),
            receive_buffer: sysctl("net/core/rmem_max"),
            backlog: sysctl("net/core/somaxconn"),
        }
    }
}

impl User {
    fn read() -> User {
        // Bit numbers: include/uapi/linux/capability.h.
        const NET_ADMIN: u32 = 12;
        const NET_RAW: u32 = 13;
        const IPC_LOCK: u32 = 14;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| field(line, "CapEff"));
        let effective = effective.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        let has = |bit: u32| effective >> bit & 1 == 1;
        User {
            uid: rustix::process::geteuid().as_raw(),
            net_admin: has(NET_ADMIN),
            net_raw: has(NET_RAW),
            ipc_lock: has(IPC_LOCK),
            effective,
        }
    }

    /// Root in name may have been left without a single capability, in a container.
    pub fn described(&self) -> String {
        let who = if self.uid == 0 { "root".to_owned() } else { format!("uid {}", self.uid) };
        let held = [("net_admin", self.net_admin), ("net_raw", self.net_raw), ("ipc_lock", self.ipc_lock)];
        let held: Vec<_> = held.iter().filter(|(_, held)| *held).map(|(name, _)| *name).collect();
        match held.as_slice() {
            [] if self.effective == 0 => format!("{who}, no capability"),
            [] => format!("{who}, without net_admin, net_raw, ipc_lock"),
            held => format!("{who}, with {}", held.join(", ")),
        }
    }
}

/// A file's text without the space around it.
pub fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// A number below /proc/sys.
pub fn sysctl(name: &str) -> Option<u64> {
    text(&format!("/proc/sys/{name}"))?.parse().ok()
}

/// The value in `name: value`.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (before, value) = line.split_once(':')?;
    (before.trim_end() == name).then(|| value.trim())
}

/// The word in brackets of `always [madvise] never`.
fn chosen(line: String) -> Option<String> {
    let (_, rest) = line.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_word() {
        assert_eq!(chosen("always [madvise] never".into()).as_deref(), Some("madvise"));
        assert_eq!(chosen("never".into()), None);
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = Machine::read();
        assert!(machine.memory.total > 0 && machine.cpu.allowed > 0);
        assert!(!machine.kernel.is_empty());
        assert!(machine.limits.mappings.is_some_and(|mappings| mappings > 0));
    }
}
