//! Why there is no link over AF_XDP, and what to do.

use onecopy_pool::OpenError;
use rustix::io::Errno;
use std::{fmt, io};

/// Why a link over AF_XDP cannot be opened.
#[derive(Debug)]
pub struct XdpError {
    pub(super) name: String,
    pub(super) what: What,
}

/// What went wrong.
#[derive(Debug)]
pub(super) enum What {
    /// There is no such interface.
    Interface(Errno),
    /// It has no Ethernet header.
    NotEthernet,
    /// It is down.
    Down,
    /// It has so many queues, and which one was not said.
    Queues(u32),
    /// Its packets do not fit into a frame.
    Mtu { mtu: u32, most: u32 },
    /// A number that cannot be: which, and what can.
    Config(&'static str),
    /// No pages to be frames.
    Pages(OpenError),
    /// No socket of that family.
    Socket(Errno),
    /// It does not pass on what is multicast, or to another address.
    Packets(Errno),
    /// Its memory, of so many bytes, is not taken.
    Memory(usize, Errno),
    /// It has no rings.
    Rings(Errno),
    /// It is not bound to that queue; without a copy, if that was asked for.
    Bind { queue: u32, zero_copy: bool, errno: Errno },
    /// No map, no program, or no place in the map.
    Program(&'static str, Errno),
    /// The program is not attached: what was said of the driver, and behind it.
    Attach { driver: Errno, generic: Option<Errno> },
}

impl XdpError {
    /// The kernel's number; EINVAL, ENOMEM, ENETDOWN or EMSGSIZE where it was not asked.
    pub fn errno(&self) -> Errno {
        match self.what {
            What::Interface(errno)
            | What::Socket(errno)
            | What::Packets(errno)
            | What::Memory(_, errno)
            | What::Rings(errno)
            | What::Bind { errno, .. }
            | What::Program(_, errno) => errno,
            What::Attach { driver, generic } => generic.unwrap_or(driver),
            What::NotEthernet | What::Queues(_) | What::Config(_) => Errno::INVAL,
            What::Down => Errno::NETDOWN,
            What::Mtu { .. } => Errno::MSGSIZE,
            What::Pages(_) => Errno::NOMEM,
        }
    }
}

impl XdpError {
    /// Whether this kernel, or what this process may do, lacks what it takes; and it is not the interface, or what was asked for.
    pub fn is_lacking(&self) -> bool {
        match self.what {
            What::Socket(_) | What::Memory(..) | What::Rings(_) | What::Program(..) | What::Attach { .. } => {
                true
            }
            What::Interface(_)
            | What::NotEthernet
            | What::Down
            | What::Queues(_)
            | What::Mtu { .. }
            | What::Config(_)
            | What::Pages(_)
            | What::Packets(_)
            | What::Bind { .. } => false,
        }
    }
}

const RIGHTS: &str = "this needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF: run as root";

impl fmt::Display for XdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let XdpError { name, what } = self;
        write!(f, "no AF_XDP on {name:?}: ")?;
        match what {
            What::Interface(errno) => {
                write!(
                    f,
                    "there is no such interface ({errno}): `ip link` has their names; open it in the network namespace that it is in"
                )
            }
            What::NotEthernet => f.write_str(
                "its packets do not begin with Ethernet's header: take an interface of which `ip link` says link/ether",
            ),
            What::Down => write!(f, "it is down: set it up first (ip link set {name} up)"),
            What::Queues(count) => write!(
                f,
                "it receives by {count} queues, and a link has one, with what comes by it: leave it one (ethtool -L {name} combined 1), or lead the \
                 stack's packets to one (ethtool -N) and say which"
            ),
            What::Mtu { mtu, most } => write!(
                f,
                "its MTU of {mtu} is too long: here a packet has one frame, and so {most} bytes at most (ip link set {name} mtu {most}); several \
                 frames take Linux 6.6, and a driver that does"
            ),
            What::Config(why) => f.write_str(why),
            What::Pages(error) => write!(f, "no pages for its frames: {error}"),
            What::Socket(errno) => {
                let next = match *errno {
                    Errno::PERM | Errno::ACCESS => RIGHTS,
                    Errno::AFNOSUPPORT => {
                        "the kernel has none of these sockets: take one with CONFIG_XDP_SOCKETS"
                    }
                    Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n), or close some",
                    _ => "see the kernel's Documentation/networking/af_xdp.rst",
                };
                write!(f, "there is no socket: {errno}; {next}")
            }
            What::Packets(errno) => write!(
                f,
                "the interface is not told to pass on multicast, or packets to another address: {errno}; that takes a socket of packet(7): CONFIG_PACKET and CAP_NET_RAW"
            ),
            What::Memory(len, errno) => {
                let next = match *errno {
                    Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN => {
                        "it may not be locked: raise RLIMIT_MEMLOCK (ulimit -l), have CAP_IPC_LOCK, or ask for fewer frames"
                    }
                    Errno::PERM => RIGHTS,
                    _ => "see the kernel's net/xdp/xdp_umem.c",
                };
                write!(f, "{} KiB of memory are refused: {errno}; {next}", len >> 10)
            }
            What::Rings(errno) => {
                write!(f, "the socket gets no rings: {errno}; Linux 5.9 or newer has what this takes")
            }
            What::Bind { queue, zero_copy, errno } => {
                let next = match *errno {
                    Errno::BUSY => {
                        "another socket has that queue: end its program, or choose another queue"
                    }
                    Errno::INVAL => "the interface has no such queue (ethtool -l has how many there are)",
                    Errno::OPNOTSUPP if *zero_copy => {
                        "its driver cannot do it without a copy: do not ask for that"
                    }
                    Errno::NETDOWN => "set the interface up first",
                    _ => "see bind in the kernel's net/xdp/xsk.c",
                };
                let how = if *zero_copy { " without a copy" } else { "" };
                write!(f, "queue {queue} is not to be had{how}: {errno}; {next}")
            }
            What::Program(what, errno) => {
                let next = match *errno {
                    Errno::PERM | Errno::ACCESS => RIGHTS,
                    Errno::NOSYS | Errno::INVAL => {
                        "the kernel's bpf(2) does not know it: take Linux 5.9 or newer, with CONFIG_BPF_SYSCALL"
                    }
                    _ => "see bpf(2)",
                };
                write!(f, "{what} is refused: {errno}; {next}")
            }
            What::Attach { driver, generic } => {
                let next = match generic.unwrap_or(*driver) {
                    Errno::BUSY | Errno::EXIST => {
                        "it has an XDP program (`ip link` shows it): end who has attached that, or take it off (ip link set NAME xdp off)"
                    }
                    Errno::PERM | Errno::ACCESS => RIGHTS,
                    Errno::INVAL | Errno::NOSYS => "Linux 5.9 or newer attaches programs so",
                    _ => "see the kernel's net/core/dev.c",
                };
                match generic {
                    Some(generic) => write!(
                        f,
                        "the program is not attached, neither in the driver ({driver}) nor behind it ({generic}); {next}"
                    ),
                    None => write!(f, "the program is not attached: {driver}; {next}"),
                }
            }
        }
    }
}

impl std::error::Error for XdpError {}

impl From<XdpError> for io::Error {
    fn from(error: XdpError) -> io::Error {
        io::Error::new(io::Error::from(error.errno()).kind(), error)
    }
}
