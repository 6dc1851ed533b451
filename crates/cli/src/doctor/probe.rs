//! What can only be known by trying. Every probe leaves nothing behind.

use std::fs::{self, OpenOptions};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode};
use onecopy::Path;
use onecopy::devmem::{NotByNic, ask_nic};
use onecopy::unix::{Datagram, Listener, SharedPool, SocketAddr, Stream};
use onecopy_sys::bpf;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::machine::{Machine, sysctl};

/// Round trips within which an upgrade has to be done; it takes two.
const ROUNDS: usize = 8;

/// How long any of them may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The end of a try.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    pub works: bool,
    /// What was found, or why it does not work.
    pub detail: String,
}

impl Probe {
    fn works(detail: impl Into<String>) -> Probe {
        Probe { works: true, detail: detail.into() }
    }

    fn fails(detail: impl Into<String>) -> Probe {
        Probe { works: false, detail: detail.into() }
    }
}

/// All that is tried.
#[derive(Debug, Serialize)]
pub struct Probes {
    /// A memfd that can be sealed against every change of size: what a ring lies in.
    pub memfd_seals: Probe,
    /// MFD_NOEXEC_SEAL: the memfd can never become executable.
    pub memfd_noexec: Probe,
    /// A connection of our own, upgraded to shared memory in both directions.
    pub upgrade: Probe,
    /// Two datagram sockets that are connected to each other, as two programs would connect them.
    pub datagrams: Probe,
    /// A page of a pool, handed over where it lies.
    pub references: Probe,
    pub io_uring: Probe,
    pub kernel_tcp: Probe,
    pub device_memory: Probe,
    /// Memory of ours as a dma-buf, for a driver to read and write.
    pub dma_buf: Probe,
    /// An interface whose driver receives into a device's memory by itself.
    pub nic_memory: Probe,
    pub tap: Probe,
    pub xdp: Probe,
    pub cuda: Probe,
}

impl Probes {
    /// Tries all of it.
    pub fn run(machine: &Machine) -> Probes {
        Probes {
            memfd_seals: memfd_seals(MemfdFlags::empty()),
            memfd_noexec: memfd_seals(MemfdFlags::NOEXEC_SEAL),
            upgrade: upgrade(),
            datagrams: datagrams(),
            references: references(),
            io_uring: io_uring(),
            kernel_tcp: kernel_tcp(),
            device_memory: device_memory(),
            dma_buf: dma_buf(),
            nic_memory: nic_memory(),
            tap: tap(machine),
            xdp: xdp(machine),
            cuda: cuda(),
        }
    }
}

fn memfd_seals(extra: MemfdFlags) -> Probe {
    const SIZE: u64 = 4096;
    // ftruncate beyond this limit would not fail but end the program (SIGXFSZ).
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < SIZE) {
        return Probe::fails("RLIMIT_FSIZE (ulimit -f) forbids it");
    }
    let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let sealed = memfd_create(c"onecopy-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | extra)
        .and_then(|fd| {
            ftruncate(&fd, SIZE)?;
            fcntl_add_seals(&fd, wanted)?;
            // The seals have to bite, and not only to be listed.
            match (fcntl_get_seals(&fd)?.contains(wanted), ftruncate(&fd, 0)) {
                (true, Err(Errno::PERM)) => Ok(()),
                _ => Err(Errno::NOTSUP),
            }
        });
    match sealed {
        Ok(()) if extra.is_empty() => Probe::works("sealed against shrinking, growing and unsealing"),
        Ok(()) => Probe::works("MFD_NOEXEC_SEAL is known"),
        Err(Errno::INVAL) if !extra.is_empty() => Probe::fails("this kernel is older than 6.3"),
        Err(error) => Probe::fails(format!("memfd_create: {error}")),
    }
}

/// Bytes go both ways until both ends say that they use shared memory, as between any two programs.
fn upgrade() -> Probe {
    let tried = || -> onecopy::Result<Path> {
        let name = SocketAddr::from_abstract_name(format!("onecopy-doctor-{}", std::process::id()))?;
        let listener = Listener::bind(&name)?;
        let client = Stream::connect(&name)?;
        let (server, _) = listener.accept()?;
        for end in [&client, &server] {
            // Seccomp filters can refuse in surprising ways: a doctor must not hang on any.
            end.set_read_timeout(Some(PATIENCE))?;
        }
        let mut byte = [0];
        for _ in 0..ROUNDS {
            for (from, to) in [(&client, &server), (&server, &client)] {
                from.send(b"?")?;
                to.recv(&mut byte)?;
            }
            if client.path().is_shared_memory() {
                break;
            }
        }
        Ok(client.path())
    };
    told(tried(), "a connection was upgraded in both directions")
}

/// Datagrams go both ways until both ends say that they use shared memory.
fn datagrams() -> Probe {
    let tried = || -> onecopy::Result<Path> {
        let name = SocketAddr::from_abstract_name(format!("onecopy-doctor-{}-dgram", std::process::id()))?;
        let (a, b) = (Datagram::bind(&name)?, Datagram::unbound()?);
        a.connect(b.autobind()?)?;
        b.connect(name)?;
        for end in [&a, &b] {
            end.set_read_timeout(Some(PATIENCE))?;
        }
        let start = Instant::now();
        while start.elapsed() < PATIENCE && !(a.path().is_shared_memory() && b.path().is_shared_memory()) {
            for (from, to) in [(&a, &b), (&b, &a)] {
                from.send(b"?")?;
                to.recv(&mut [0])?;
            }
        }
        Ok(if a.path().is_shared_memory() { b.path() } else { a.path() })
    };
    told(tried(), "two that are connected to each other share memory")
}

/// A page of a shared pool goes to the other end, which borrows it where it lies.
fn references() -> Probe {
    let tried = || -> onecopy::Result<(u64, Path)> {
        let (from, to) = Stream::pair()?;
        to.set_read_timeout(Some(PATIENCE))?;
        let pool = SharedPool::new(4096, 1)?;
        from.send_loan(pool.loan_within(64, PATIENCE)?).map_err(|not| not.error)?;
        let view = to.recv_borrowed(64)?;
        drop(view);
        Ok((from.stats().references_copied, from.path()))
    };
    match tried() {
        Ok((0, path)) if path.is_shared_memory() => Probe::works("a page was lent, and not copied"),
        Ok(_) => Probe::fails("the page was copied"),
        Err(error) => Probe::fails(error.to_string()),
    }
}

fn told(path: onecopy::Result<Path>, works: &str) -> Probe {
    match path {
        Ok(path) if path.is_shared_memory() => Probe::works(works),
        Ok(path) => {
            Probe::fails(format!("sending went over {:?}, receiving over {:?}", path.send, path.receive))
        }
        Err(error) => Probe::fails(error.to_string()),
    }
}

fn io_uring() -> Probe {
    let ring: IoUring = match IoUring::new(2) {
        Ok(ring) => ring,
        Err(error) => {
            let why = match sysctl("kernel/io_uring_disabled") {
                Some(2) => "kernel.io_uring_disabled is 2",
                Some(1) => "kernel.io_uring_disabled is 1 and this user is not in kernel.io_uring_group",
                _ => "the kernel lacks it, or a seccomp filter refuses it",
            };
            return Probe::fails(format!("io_uring_setup: {error} ({why})"));
        }
    };
    let mut ops = io_uring::Probe::new();
    let zero_copy =
        ring.submitter().register_probe(&mut ops).is_ok() && ops.is_supported(opcode::SendZc::CODE);
    Probe::works(if zero_copy {
        "rings can be set up, SEND_ZC included"
    } else {
        "rings can be set up, no SEND_ZC"
    })
}

/// Whether the kernel itself puts payload into a device's memory that is a file, as `Stack::bind_rx` would have it do.
fn device_memory() -> Probe {
    use onecopy::advanced::link::Registered;
    use onecopy::advanced::pool::{DeviceId, DeviceMemory};
    const PAGES: u32 = 4096;
    let memory = match DeviceMemory::opaque(PAGES, DeviceId(0)) {
        Ok(memory) => memory,
        Err(error) => return Probe::fails(error.to_string()),
    };
    match Registered::new(&memory) {
        Ok(_) => Probe::works(
            "payload is put there, and taken from there, by the kernel's one copy (tried with 16 MiB)",
        ),
        Err(why) => Probe::fails(format!("payload goes by way of the host's memory, copied twice: {why}")),
    }
}

/// Whether memory of ours can be made a dma-buf, and one that is given be taken and looked at: the one is the other's.
fn dma_buf() -> Probe {
    use onecopy::advanced::pool::{DeviceId, DeviceMemory};
    let taken = || -> Result<Probe, Box<dyn std::error::Error>> {
        let made = DeviceMemory::opaque(16, DeviceId(0))?.dma_buf()?;
        let taken = DeviceMemory::of_dma_buf(made, DeviceId(1))?;
        taken.copies()?;
        taken.read_at(0, &mut [0])?;
        let most = onecopy_sys::dmabuf::size_limit().map(|mib| format!(", of {mib} MiB at most"));
        let most = most.unwrap_or_default();
        Ok(Probe::works(format!("made of a memfd by /dev/udmabuf{most}, taken and looked at")))
    };
    taken().unwrap_or_else(|why| {
        Probe::fails(format!("{why}. Those that a driver gives can be taken (DeviceMemory::of_dma_buf)"))
    })
}

/// Whether an interface's NIC receives into memory of others, by either of the kernel's ways: device memory TCP, and io_uring's zero copy Rx. None of its queues begins anew for it.
fn nic_memory() -> Probe {
    let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    // What has no device behind it (lo, a veth, a TAP) has no NIC.
    names.retain(|name| fs::exists(format!("/sys/class/net/{name}/device")).unwrap_or(false));
    let asked = names.into_iter().filter_map(|name| {
        let says = ask_nic(&name).ok()?;
        Some((name, says.devmem, says.ring))
    });
    of_answers(&asked.collect::<Vec<_>>())
}

/// What interfaces said, of either way.
fn of_answers(answers: &[(String, Option<NotByNic>, Option<NotByNic>)]) -> Probe {
    let told = |why: &Option<NotByNic>| match why {
        Some(why) => format!("no: {why}"),
        None => "it might".to_owned(),
    };
    let each = answers.iter().map(|(name, devmem, ring)| {
        format!("{name}: device memory TCP: {}. io_uring's zero copy Rx: {}", told(devmem), told(ring))
    });
    let each = each.collect::<Vec<_>>().join(". ");
    let may = answers.iter().any(|(_, devmem, ring)| devmem.is_none() || ring.is_none());
    Probe::fails(match (answers.is_empty(), may) {
        (true, _) => "there is no interface with a device behind it".to_owned(),
        (_, false) => {
            format!("no interface's NIC does, so the kernel copies once (Builder::interface). {each}")
        }
        // Only memory can tell.
        (_, true) => format!(
            "{each}. `onecopy nc --devmem --nic` and Builder::interface have it tried, and say which way bytes take. No hardware was tried yet"
        ),
    })
}

/// The kernel's TCP and UDP below our own sockets, as `Transport::Kernel` has it.
fn kernel_tcp() -> Probe {
    let stack = match onecopy::Stack::builder().transport(onecopy::Transport::Kernel).build() {
        Ok(stack) => stack,
        Err(error) => return Probe::fails(error.to_string()),
    };
    let registered =
        stack.link_counters().iter().any(|(name, value)| *name == "pages_registered" && *value > 0);
    Probe::works(match registered {
        true => "TCP and UDP: sends without a copy, from registered pages; receives into pages of ours",
        false => {
            "TCP and UDP: sends without a copy, from pages that are not registered (RLIMIT_MEMLOCK is too low); receives into pages of ours"
        }
    })
}

fn tap(machine: &Machine) -> Probe {
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) if machine.user.net_admin => Probe::works("/dev/net/tun can be opened, and devices made"),
        Ok(_) => Probe::fails("/dev/net/tun can be opened, but making a device needs CAP_NET_ADMIN"),
        Err(error) => Probe::fails(format!("/dev/net/tun: {error}")),
    }
}

fn xdp(machine: &Machine) -> Probe {
    match socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(_) if machine.user.net_admin => match program() {
            Ok(()) => Probe::works("sockets can be made, and the program that leads packets to them"),
            Err(Errno::PERM) => Probe::fails("sockets can be made, but their program needs CAP_BPF"),
            Err(error) => {
                Probe::fails(format!("sockets can be made, but not their program: bpf(2): {error}"))
            }
        },
        Ok(_) => Probe::fails("sockets can be made, but binding one to a device needs CAP_NET_ADMIN"),
        Err(Errno::AFNOSUPPORT) => Probe::fails("this kernel is built without AF_XDP"),
        Err(Errno::PERM) => Probe::fails("its sockets need CAP_NET_RAW"),
        Err(error) => Probe::fails(format!("socket(AF_XDP): {error}")),
    }
}

/// A program as a link loads it, attached nowhere.
fn program() -> Result<(), Errno> {
    let map = bpf::socket_map(1)?;
    bpf::redirect_program(&map, false).map(drop)
}

fn cuda() -> Probe {
    match onecopy::cuda::Driver::open() {
        Ok(driver) => {
            let ((major, minor), devices) = (driver.version(), driver.devices());
            let plural = if devices == 1 { "" } else { "s" };
            Probe::works(format!("driver for CUDA {major}.{minor}, {devices} device{plural}"))
        }
        // A kernel module without the library is what a container without the driver mounted into it looks like.
        Err(why) => match fs::read_to_string("/proc/driver/nvidia/version") {
            Ok(_) => Probe::fails(format!("the kernel module is loaded, but {why}")),
            Err(_) => Probe::fails(why.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_interfaces_say_is_told_of_each() {
        let refused = |errno| Some(NotByNic::Refused { errno, says: Some("because".into()) });
        let detail = |answers: &[_]| of_answers(answers).detail;
        let old = ("eth0".to_owned(), refused(Errno::OPNOTSUPP), Some(NotByNic::RingRefused(Errno::PERM)));
        let none = detail(std::slice::from_ref(&old));
        assert!(none.starts_with("no interface's NIC does"), "{none}");
        for part in [
            "eth0: device memory TCP: no: the kernel refused: Operation not supported (os error 95) (because)",
            "io_uring's zero copy Rx: no: the kernel refused: Operation not permitted (os error 1); it takes CAP_NET_ADMIN",
        ] {
            assert!(none.contains(part), "{none}");
        }
        for one in
            [("eth1".to_owned(), None, refused(Errno::BUSY)), ("eth1".to_owned(), refused(Errno::BUSY), None)]
        {
            let might = detail(&[old.clone(), one]);
            assert!(
                might.starts_with("eth0: ") && might.contains("it might") && might.contains("--nic"),
                "{might}"
            );
        }
        assert_eq!(detail(&[]), "there is no interface with a device behind it");
    }
}
