//! What each feature will use on this machine, and why not something better: pure rules over what was found.

use serde::Serialize;

use super::copy::Copy;
use super::machine::Machine;
use super::probe::Probes;
use super::size::size;

/// How one feature fares here.
#[derive(Debug, Serialize)]
pub struct Feature {
    pub name: &'static str,
    /// What it will use.
    pub uses: String,
    /// Whether that is the best way it has.
    pub best: bool,
    /// The reason, when it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What would change that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Feature {
    fn best(name: &'static str, uses: impl Into<String>) -> Feature {
        Feature { name, uses: uses.into(), best: true, why: None, remedy: None }
    }

    fn lesser(
        name: &'static str,
        uses: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Feature {
        Feature { name, uses: uses.into(), best: false, why: Some(why.into()), remedy: Some(remedy.into()) }
    }
}

/// All features that the project has.
pub fn all(machine: &Machine, copy: &Copy, probes: &Probes) -> Vec<Feature> {
    vec![
        streams(machine, probes),
        datagrams(probes),
        references(probes),
        internet(probes),
        device_memory(probes),
        pools(machine),
        stores(copy),
        choice(copy),
        waiting(machine),
        connections(machine),
        kernel_buffers(machine),
    ]
}

fn stores(copy: &Copy) -> Feature {
    const NAME: &str = "copies";
    if let Some(forced) = &copy.forced {
        let held = copy.cached == forced;
        let why = if held {
            format!("ONECOPY_COPY={forced} forces that kernel for all copies")
        } else {
            format!("ONECOPY_COPY={forced} asks for a kernel that cannot be had")
        };
        let uses = format!("{} and {}", copy.cached, copy.stream);
        return Feature::lesser(NAME, uses, why, "unset ONECOPY_COPY, unless that is meant");
    }
    if !copy.streams() {
        return Feature::lesser(
            NAME,
            format!("{}, ordinary stores only", copy.cached),
            "no kernel here has non-temporal stores",
            "an x86-64 or AArch64 CPU",
        );
    }
    let long = match copy.long {
        long if long == copy.cached => String::new(),
        long => format!(" ({long} from {})", size(copy.long_from as u64)),
    };
    Feature::best(
        NAME,
        format!("{}{long} for ordinary, {} for non-temporal stores", copy.cached, copy.stream),
    )
}

fn choice(copy: &Copy) -> Feature {
    const NAME: &str = "choice of stores";
    if copy.profile.is_some() {
        return Feature::best(NAME, format!("what was measured here: {}", copy.thresholds));
    }
    let why = match copy.notes.as_slice() {
        [] => "this machine was not measured yet".to_owned(),
        notes => notes.join("; "),
    };
    Feature::lesser(NAME, "a formula over the cache sizes that the CPU reports", why, "onecopy tune")
}

fn streams(machine: &Machine, probes: &Probes) -> Feature {
    const NAME: &str = "unix streams";
    if !probes.memfd_seals.works {
        return Feature::lesser(
            NAME,
            "the kernel's own unix sockets, counted as such",
            format!("no sealed memfd can be made ({})", probes.memfd_seals.detail),
            "allow memfd_create and fcntl(F_ADD_SEALS) in the seccomp filter or container profile, and no ulimit -f",
        );
    }
    if !probes.upgrade.works {
        return Feature::lesser(
            NAME,
            "the kernel's own unix sockets, counted as such",
            format!("a connection could not be upgraded ({})", probes.upgrade.detail),
            "allow sendmsg with SCM_RIGHTS and mmap of memfds in the seccomp filter or container profile, and no ulimit -f",
        );
    }
    if !probes.memfd_noexec.works {
        return Feature::lesser(
            NAME,
            "shared memory in sealed memfds, which may be made executable",
            format!("MFD_NOEXEC_SEAL is refused ({})", probes.memfd_noexec.detail),
            "a kernel of 6.3 or newer",
        );
    }
    let policy = match machine.memory.memfd_noexec {
        Some(2) => " (which vm.memfd_noexec = 2 demands)",
        _ => "",
    };
    Feature::best(NAME, format!("shared memory in sealed memfds that can never be executable{policy}"))
}

fn datagrams(probes: &Probes) -> Feature {
    const NAME: &str = "datagrams";
    if probes.datagrams.works {
        return Feature::best(NAME, "shared memory between two that are connected to each other");
    }
    let remedy = if probes.upgrade.works {
        "allow socket(AF_NETLINK, NETLINK_SOCK_DIAG), in a kernel of 5.3 or newer with CONFIG_UNIX_DIAG"
    } else {
        "what helps unix streams helps these"
    };
    Feature::lesser(
        NAME,
        "the kernel's own datagram sockets, counted as such",
        format!("two could not meet ({})", probes.datagrams.detail),
        remedy,
    )
}

/// The rule of `Transport::Auto`: a stack of our own where its TAP can be had, else the kernel's through io_uring.
fn internet(probes: &Probes) -> Feature {
    const NAME: &str = "TCP and UDP";
    const PRIVILEGE: &str = "root, or CAP_NET_ADMIN and /dev/net/tun, for a stack of our own";
    match (probes.tap.works, probes.kernel_tcp.works) {
        (true, true) if probes.xdp.works => Feature::best(
            NAME,
            "a stack of our own on a TAP device, or on an interface by AF_XDP (--xdp), or the kernel's through io_uring",
        ),
        (true, true) => {
            Feature::best(NAME, "a stack of our own on a TAP device, or the kernel's through io_uring")
        }
        (true, false) => Feature::lesser(
            NAME,
            "a stack of our own on a TAP device; without one, the kernel's sockets alone",
            &*probes.kernel_tcp.detail,
            "allow io_uring (kernel.io_uring_disabled, the seccomp filter or container profile), in a kernel of 6.1 or newer",
        ),
        (false, true) => Feature::lesser(
            NAME,
            "the kernel's through io_uring (nc --transport kernel-uring, Transport::Kernel)",
            &*probes.tap.detail,
            PRIVILEGE,
        ),
        (false, false) => Feature::lesser(
            NAME,
            "the kernel's sockets alone (nc)",
            format!("{}; {}", probes.tap.detail, probes.kernel_tcp.detail),
            PRIVILEGE,
        ),
    }
}

/// What payload can be received into beside the host's memory.
fn device_memory(probes: &Probes) -> Feature {
    const NAME: &str = "device memory";
    if probes.cuda.works {
        // No machine of ours had one.
        let uses = "a CUDA device's, through pinned pages; not tried on real hardware yet: `cargo xtask gpu-check` does that";
        return Feature::best(NAME, uses);
    }
    Feature::lesser(
        NAME,
        "a stand-in (opaque): memory that no CPU reads, for programs to be tried with",
        format!("CUDA cannot be used: {}", probes.cuda.detail),
        "a machine with a GPU and its driver; the rest of onecopy needs none",
    )
}

fn references(probes: &Probes) -> Feature {
    const NAME: &str = "pages by reference";
    if probes.references.works {
        return Feature::best(NAME, "a peer reads them where they lie, and can never write them");
    }
    let remedy = if probes.upgrade.works {
        "a kernel of 5.1 or newer (F_SEAL_FUTURE_WRITE)"
    } else {
        "what helps unix streams helps these"
    };
    Feature::lesser(NAME, "copies of them, counted", probes.references.detail.clone(), remedy)
}

fn pools(machine: &Machine) -> Feature {
    const NAME: &str = "page pools";
    let (total, free) = machine.memory.huge_pages;
    match machine.memory.huge_page {
        Some(page) if free > 0 => Feature::best(
            NAME,
            format!("huge pages of {} where asked for, {free} of {total} free", size(page)),
        ),
        Some(_) => Feature::lesser(
            NAME,
            "ordinary pages, and transparent huge ones where the kernel gives them",
            "no huge pages are set aside, or all are taken",
            "sysctl -w vm.nr_hugepages=64, if a pool is to lie in them",
        ),
        None => Feature::lesser(
            NAME,
            "ordinary pages",
            "this kernel has no huge pages",
            "a kernel with CONFIG_HUGETLBFS",
        ),
    }
}

fn waiting(machine: &Machine) -> Feature {
    const NAME: &str = "waiting";
    if machine.cpu.allowed > 1 {
        return Feature::best(NAME, "spins for a moment while another CPU is idle, then sleeps");
    }
    Feature::lesser(
        NAME,
        "sleeps at once",
        "this process may use one CPU only, and spinning would take it from the peer",
        "allow a second CPU: taskset, cpuset, or the container's CPU limit",
    )
}

/// Descriptors that an idle connection costs at each end. (One more once descriptors or credentials went along.)
const DESCRIPTORS_PER_CONNECTION: u64 = 1;

/// Idle connections that a busy proxy should be able to hold.
const MANY: u64 = 10_000;

fn connections(machine: &Machine) -> Feature {
    const NAME: &str = "many connections";
    // Some descriptors are always taken: standard streams, listeners, epoll, open files.
    let room = |files: u64| files.saturating_sub(64) / DESCRIPTORS_PER_CONNECTION;
    let Some(files) = machine.limits.open_files else {
        return Feature::best(NAME, "no limit on open files");
    };
    let uses = format!("about {} at a time ({files} open files)", room(files));
    if room(files) >= MANY {
        return Feature::best(NAME, uses);
    }
    let need = MANY * DESCRIPTORS_PER_CONNECTION + 64;
    let remedy = match machine.limits.open_files_hard {
        Some(hard) if hard < need => {
            format!("LimitNOFILE={need} in the unit, or the hard limit in limits.conf")
        }
        _ => format!("ulimit -n {need}, or LimitNOFILE={need} in the unit"),
    };
    Feature::lesser(NAME, uses, format!("{MANY} need {need} open files"), remedy)
}

/// A kernel send buffer from which on a bigger one no longer pays.
const AMPLE_BUFFER: u64 = 1 << 20;

fn kernel_buffers(machine: &Machine) -> Feature {
    const NAME: &str = "kernel fallback";
    let limit = machine.limits.send_buffer.unwrap_or(0);
    let uses = format!("send buffers of up to {} for peers that are not onecopy", size(limit));
    if limit >= AMPLE_BUFFER || machine.user.net_admin {
        return Feature::best(NAME, uses);
    }
    Feature::lesser(
        NAME,
        uses,
        "net.core.wmem_max bounds SO_SNDBUF",
        format!("sysctl -w net.core.wmem_max={AMPLE_BUFFER}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::probe::Probe;

    fn here() -> (Machine, Copy, Probes) {
        let machine = Machine::read();
        let probes = Probes::run(&machine);
        (machine, Copy::read(), probes)
    }

    #[test]
    fn what_is_not_best_has_a_reason_and_a_remedy() {
        let (mut machine, mut copy, mut probes) = here();
        machine.cpu.allowed = 1;
        machine.limits.open_files = Some(1024);
        machine.limits.send_buffer = Some(212_992);
        machine.user.net_admin = false;
        machine.memory.huge_pages = (0, 0);
        for probe in [&mut probes.memfd_seals, &mut probes.datagrams, &mut probes.references, &mut probes.tap]
        {
            *probe = Probe { works: false, detail: "memfd_create: EPERM".into() };
        }
        copy.forced = Some("generic".into());
        copy.profile = None;
        for feature in all(&machine, &copy, &probes) {
            assert!(!feature.best, "{feature:?}");
            assert!(feature.why.is_some_and(|why| !why.is_empty()));
            assert!(feature.remedy.is_some_and(|remedy| !remedy.is_empty()));
        }
    }

    #[test]
    fn a_low_hard_limit_needs_another_remedy() {
        let mut machine = Machine::read();
        machine.limits.open_files = Some(1024);
        machine.limits.open_files_hard = Some(524_288);
        assert!(connections(&machine).remedy.unwrap().starts_with("ulimit -n"));
        machine.limits.open_files_hard = Some(4096);
        assert!(connections(&machine).remedy.unwrap().starts_with("LimitNOFILE"));
    }
}
