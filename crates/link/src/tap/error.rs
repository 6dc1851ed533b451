//! Why there is no TAP, and what to do.

use onecopy_pool::OpenError;
use onecopy_sys::tun;
use rustix::io::Errno;
use std::{fmt, io};

/// Why a TAP cannot be opened.
#[derive(Debug)]
pub struct TapError {
    pub(super) name: String,
    pub(super) what: What,
}

/// What went wrong.
#[derive(Debug)]
pub(super) enum What {
    /// /dev/net/tun cannot be opened.
    Open(Errno),
    /// No device of that name and kind.
    Attach(Errno),
    /// virtio's header has no length of ours.
    Header(Errno),
    /// The offloads cannot be set, none of them either.
    Offload(Errno),
    /// The MTU cannot be asked for.
    Mtu(Errno),
    /// Nor set to this.
    SetMtu(u32, Errno),
    /// No pages for what is received.
    Pages(OpenError),
}

impl TapError {
    /// The kernel's number; ENOMEM where it was not asked.
    pub fn errno(&self) -> Errno {
        match self.what {
            What::Open(errno)
            | What::Attach(errno)
            | What::Header(errno)
            | What::Offload(errno)
            | What::Mtu(errno)
            | What::SetMtu(_, errno) => errno,
            What::Pages(_) => Errno::NOMEM,
        }
    }
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TapError { name, what } = self;
        match what {
            What::Open(errno) => {
                let next = match *errno {
                    Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                        "load the kernel's module with `modprobe tun`; a container gets it by --device /dev/net/tun"
                    }
                    Errno::ACCESS | Errno::PERM => "run as root, or have its permissions changed",
                    Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n), or close some",
                    _ => "see open(2)",
                };
                write!(f, "no device {name}: {} cannot be opened: {errno}; {next}", tun::PATH)
            }
            What::Attach(errno) => {
                let next = match *errno {
                    Errno::PERM => {
                        "this needs CAP_NET_ADMIN, of the user namespace that owns the network's: run as root, or have root make a device for \
                         you (ip tuntap add NAME mode tap user YOU vnet_hdr)"
                    }
                    Errno::BUSY => {
                        "another descriptor has that device: end its program, or choose another name (or a %d in it); with multi_queue on both \
                         sides they can share it"
                    }
                    Errno::INVAL => {
                        "no interface can have that name (1 to 15 bytes, no slash), or there is one of it that is of another kind (TUN or TAP, one \
                         queue or more): choose another name"
                    }
                    Errno::TOOBIG => "a device has at most 256 queues: ask for fewer",
                    Errno::EXIST => "an interface of that name exists: choose another name",
                    _ => "see the kernel's Documentation/networking/tuntap.rst",
                };
                write!(f, "no device {name}: TUNSETIFF says {errno}; {next}")
            }
            What::Header(errno) => {
                write!(f, "no device {name}: TUNSETVNETHDRSZ says {errno}; Linux 2.6.34 or newer has it")
            }
            What::Offload(errno) => {
                write!(
                    f,
                    "no device {name}: TUNSETOFFLOAD says {errno}; delete it (ip link del {name}), and try again"
                )
            }
            What::Mtu(errno) => write!(
                f,
                "no device {name}: its MTU is not known: {errno}; open it in the network namespace that it is in"
            ),
            What::SetMtu(mtu, errno) => {
                let next = match *errno {
                    Errno::INVAL => "take one of 68 to 65521",
                    Errno::PERM => "have root set it (ip link set NAME mtu BYTES), and ask for none",
                    _ => "open it in the network namespace that it is in",
                };
                write!(f, "no device {name} of MTU {mtu}: {errno}; {next}")
            }
            What::Pages(error) => write!(f, "no device {name}: no pages for what it receives: {error}"),
        }
    }
}

impl std::error::Error for TapError {}

impl From<TapError> for io::Error {
    fn from(error: TapError) -> io::Error {
        io::Error::new(io::Error::from(error.errno()).kind(), error)
    }
}
