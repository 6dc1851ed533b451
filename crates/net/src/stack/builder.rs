//! How a stack comes to be.

use super::inbox::Mesh;
use super::pages::SendPages;
use super::runner::Sleep;
use super::{Engine, Inner, Owner, Shard, Stack};
use crate::kernel::{self, Failed, Kernel};
use crate::port::Port;
use onecopy_chain::notify::zerocopy::{Account, Allowance};
use onecopy_inet::ip::{BadConfig, Cidr};
use onecopy_inet::key::Seed;
use onecopy_inet::shard::Share;
use onecopy_inet::stack::Config;
use onecopy_inet::wire::Mac;
use onecopy_inet::{ip, stack, tcp, udp};
use onecopy_link::Tap;
use onecopy_link::tap::{TapConfig, TapError};
use onecopy_pool::OpenError;
use onecopy_socket::{Transport, Wait};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sys::eventfd::EventFd;
use onecopy_sys::signal;
use onecopy_uring::Refused;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Who drives a stack while no thread waits for a socket of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// A thread of the stack's own, which sleeps while nothing happens.
    #[default]
    Thread,
    /// The program, by [`Stack::drive`], which [`Stack::poll_fd`] says when to call; and each of its calls that waits, as long as it does.
    Caller,
}

enum Where {
    Tap(TapConfig),
    Ports(Vec<Box<dyn Port>>),
}

/// How a [`Stack`] is to be: a link and an address at least.
pub struct Builder {
    link: Option<Where>,
    mtu: Option<u32>,
    addresses: Vec<Result<Cidr, String>>,
    gateways: Vec<IpAddr>,
    mac: Option<Mac>,
    seed: Option<Seed>,
    driver: Driver,
    shards: Option<u32>,
    wait: Wait,
    linger: Duration,
    pages: u32,
    transport: Option<Transport>,
    kernel: kernel::Config,
    tcp: tcp::Config,
    udp: udp::Config,
    zerocopy: Allowance,
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder {
            link: None,
            mtu: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            mac: None,
            seed: None,
            driver: Driver::default(),
            shards: None,
            wait: Wait::default(),
            linger: Duration::from_secs(2),
            pages: 1 << 16,
            transport: None,
            kernel: kernel::Config::default(),
            tcp: Default::default(),
            udp: Default::default(),
            zerocopy: Allowance::default(),
        }
    }

    /// The link is the TAP device `name`, with all that the kernel does for it. It is made where there is none, which takes CAP_NET_ADMIN.
    #[must_use]
    pub fn tap(self, name: impl Into<String>) -> Builder {
        self.tap_with(TapConfig::new(name))
    }

    /// As [`Builder::tap`], in all detail.
    #[must_use]
    pub fn tap_with(self, config: TapConfig) -> Builder {
        Builder { link: Some(Where::Tap(config)), ..self }
    }

    /// The link is `port`.
    #[must_use]
    pub fn link(self, port: impl Port + 'static) -> Builder {
        self.links([port])
    }

    /// The links are `ports`, one for each shard ([`Builder::shards`] need not be called): queues of one device, which may bring any packet by any
    /// of them.
    #[must_use]
    pub fn links<P: Port + 'static>(self, ports: impl IntoIterator<Item = P>) -> Builder {
        let ports = ports.into_iter().map(|port| -> Box<dyn Port> { Box::new(port) });
        Builder { link: Some(Where::Ports(ports.collect())), ..self }
    }

    /// Of how many shards it is, up to 64; one, if it is not called. Each has a queue of the device's, a lock and a thread of its own, and each
    /// connection is one shard's: as many can be at work at once. It is one stack all the same, with one address: listeners take connections of
    /// all shards; a connection that is made is the next one's in turn that has a port left. Of UDP, all sockets of a port are in one shard.
    ///
    /// A TAP is opened so many times; one that was there before has to be of many queues (`ip tuntap add ... multi_queue`). What bounds all
    /// sockets together (memory, pages, half-open connections, a listener's backlog) is shared out between the shards.
    ///
    /// Several shards need [`Driver::Thread`], and no device memory can be bound to them ([`Stack::bind_rx`], [`Stack::bind_tx`]).
    #[must_use]
    pub fn shards(self, count: u32) -> Builder {
        Builder { shards: Some(count), ..self }
    }

    /// Sets the TAP's MTU, in bytes: 68 to 65521.
    #[must_use]
    pub fn mtu(self, bytes: u32) -> Builder {
        Builder { mtu: Some(bytes), ..self }
    }

    /// An address of the stack and its network, such as `10.0.0.2/24` or `fd00::2/64`. May be called more than once.
    #[must_use]
    pub fn address(mut self, address: &str) -> Builder {
        self.addresses.push(cidr(address).ok_or_else(|| address.to_owned()));
        self
    }

    /// Where packets for all other networks of its family go. Of one family the last one counts.
    #[must_use]
    pub fn gateway(mut self, gateway: IpAddr) -> Builder {
        self.gateways.push(gateway);
        self
    }

    /// The hardware address; a random one of those for private use, if it is not given.
    #[must_use]
    pub fn mac(self, mac: Mac) -> Builder {
        Builder { mac: Some(mac), ..self }
    }

    /// Where its secrets come from: sequence numbers, ports. The kernel's random numbers, if it is not given, which is for tests that are to
    /// repeat.
    #[must_use]
    pub fn seed(self, seed: Seed) -> Builder {
        Builder { seed: Some(seed), ..self }
    }

    /// Who drives the stack.
    #[must_use]
    pub fn driver(self, driver: Driver) -> Builder {
        Builder { driver, ..self }
    }

    /// How its sockets wait, unless they say otherwise.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Builder {
        Builder { wait, ..self }
    }

    /// How long whoever drops the last handle waits for what was sent to be acknowledged; 2 seconds, if it is not given. What is left then
    /// is lost: there is no kernel to send it later.
    #[must_use]
    pub fn linger(self, limit: Duration) -> Builder {
        Builder { linger: limit, ..self }
    }

    /// Pages of 4 KiB that what is sent may take, all sockets together; 65,536 (256 MiB), if it is not given. They are taken as needed. Half
    /// of them are kept for large sends, in pieces of 64 KiB.
    #[must_use]
    pub fn pages(self, pages: u32) -> Builder {
        Builder { pages, ..self }
    }

    /// Changes what holds for all of TCP: Linux's sysctls under net.ipv4, by their names.
    #[must_use]
    pub fn tcp(mut self, change: impl FnOnce(&mut tcp::Config)) -> Builder {
        change(&mut self.tcp);
        self
    }

    /// Changes what holds for all of UDP.
    #[must_use]
    pub fn udp(mut self, change: impl FnOnce(&mut udp::Config)) -> Builder {
        change(&mut self.udp);
        self
    }

    /// Which way the bytes of its sockets may take. [`Transport::Kernel`]: the kernel's own TCP and UDP, through io_uring; it needs no link, no address
    /// and no root, and what was said of those does not count. [`Transport::Auto`]: a stack of the program's own if its link can be had, else the
    /// kernel's. If it is not called: a stack of the program's own, or an error. [`Stack::carrier`] tells which it is.
    #[must_use]
    pub fn transport(self, transport: Transport) -> Builder {
        Builder { transport: Some(transport), ..self }
    }

    /// Changes how the kernel's sockets are used, where the kernel carries the bytes.
    #[must_use]
    pub fn kernel(mut self, change: impl FnOnce(&mut kernel::Config)) -> Builder {
        change(&mut self.kernel);
        self
    }

    /// What sends without a copy may keep, all sockets together, and which of them are copied instead; 8 MiB and 128 KiB of notices a
    /// socket, as Linux has it, and what this machine copies faster, if it is not given.
    #[must_use]
    pub fn zerocopy(self, allowance: Allowance) -> Builder {
        Builder { zerocopy: allowance, ..self }
    }

    /// Makes it.
    ///
    /// # Errors
    ///
    /// [`BuildError`], which says what to do.
    pub fn build(self) -> Result<Stack, BuildError> {
        let (config, wait, linger, zerocopy) = (self.kernel, self.wait, self.linger, self.zerocopy);
        let kernel = || {
            let started = Kernel::start(config, wait, linger, zerocopy);
            started.map(Stack::of_kernel).map_err(BuildError::from)
        };
        match self.transport {
            None => self.build_own(),
            Some(Transport::Kernel) => kernel(),
            Some(Transport::Auto) if self.link.is_none() => kernel(),
            Some(Transport::Auto) => match self.build_own() {
                // Without TAP or root the kernel does; what is wrong in itself is not mended by it.
                Err(BuildError::Tap(_)) => kernel(),
                built => built,
            },
        }
    }

    fn build_own(self) -> Result<Stack, BuildError> {
        let mut addresses = Vec::new();
        for address in self.addresses {
            addresses.push(address.map_err(BuildError::Address)?);
        }
        if addresses.is_empty() {
            return Err(BuildError::NoAddress);
        }
        let ports: Vec<Box<dyn Port>> = match self.link.ok_or(BuildError::NoLink)? {
            Where::Ports(ports) => match self.shards {
                _ if ports.is_empty() => return Err(BuildError::NoLink),
                Some(count) if count as usize != ports.len() => {
                    return Err(BuildError::Shards(
                        "each shard needs a link of its own: give as many to Builder::links",
                    ));
                }
                _ => ports,
            },
            Where::Tap(config) => {
                let config = self.mtu.map_or(config.clone(), |mtu| config.mtu(mtu));
                match self.shards.unwrap_or(1) {
                    0 => return Err(BuildError::Shards("a stack has one shard at least")),
                    1 => vec![Box::new(Tap::open(config).map_err(BuildError::Tap)?)],
                    count => {
                        let taps = Tap::open_queues(config, count as usize).map_err(BuildError::Tap)?;
                        taps.into_iter().map(|tap| -> Box<dyn Port> { Box::new(tap) }).collect()
                    }
                }
            }
        };
        let count = ports.len();
        if count > usize::from(Share::MOST) {
            return Err(BuildError::Shards("a stack has at most 64 shards"));
        }
        if count > 1 && self.driver == Driver::Caller {
            return Err(BuildError::Shards(
                "shards are driven by threads of their own, each at any time: take Driver::Thread, or build a stack for each thread",
            ));
        }
        let alike = |port: &dyn Port| (port.capabilities().medium, port.capabilities().mtu);
        if ports.iter().any(|port| alike(&**port) != alike(&*ports[0])) {
            return Err(BuildError::Shards("the links of a stack's shards have to be of one kind and MTU"));
        }
        let seed = match self.seed {
            Some(seed) => seed,
            None => random().map_err(BuildError::System)?,
        };
        let mac = match self.mac {
            Some(mac) => mac,
            // One of its own for each stack (the second bit says that nobody sold it).
            None => {
                let chance: [u8; 16] = random().map_err(BuildError::System)?;
                Mac([2, chance[0], chance[1], chance[2], chance[3], chance[4]])
            }
        };
        let meshes = match count {
            1 => vec![None],
            _ => Mesh::new(count).map_err(BuildError::System)?.into_iter().map(Some).collect(),
        };
        let (begun, account) = (Instant::now(), Account::new(self.zerocopy));
        let mut shards = Vec::new();
        for ((me, port), mesh) in ports.into_iter().enumerate().zip(meshes) {
            let mut ip = ip::Config::new(port.capabilities(), mac, &addresses, seed);
            for gateway in &self.gateways {
                ip = ip.gateway(*gateway);
            }
            // (Of one there is none.)
            ip.share = mesh.as_ref().and_then(|_| Share::new(me as u16, count as u16, &seed));
            let mut config = Config::new(ip, seed);
            (config.tcp, config.udp) = (self.tcp.clone(), self.udp.clone());
            share_out(&mut config, count);
            let inet = stack::Stack::new(config).map_err(BuildError::Config)?;
            let pages = self.pages.div_ceil(count as u32).max(1);
            let pages = SendPages::new(pages).map_err(BuildError::Pages)?;
            let link = port.as_fd().try_clone_to_owned();
            let link = link.map_err(|error| BuildError::System(errno(&error)))?;
            let sleep = match self.driver {
                Driver::Thread => Some(Sleep::new(&link, mesh.as_ref()).map_err(BuildError::System)?),
                Driver::Caller => None,
            };
            shards.push(Arc::new(Inner {
                shard: Mutex::new(Shard::new(inet, port, pages, mesh.clone())),
                begun,
                account: account.clone(),
                link,
                wake: EventFd::new().map_err(BuildError::System)?,
                mesh,
                sleep,
                descriptor: OnceLock::new(),
                wait: self.wait,
                stopped: Default::default(),
            }));
        }
        // From here on it ends those of its threads that there are.
        let mut owner = Owner { shards, threads: Vec::new(), linger: self.linger, turn: AtomicU32::new(0) };
        if self.driver == Driver::Thread {
            for inner in &owner.shards {
                let inner = Arc::clone(inner);
                let thread = std::thread::Builder::new().name("onecopy-stack".into());
                let thread = signal::blocked(|| thread.spawn(move || inner.run()));
                owner.threads.push(thread.map_err(|error| BuildError::System(errno(&error)))?);
            }
        }
        Ok(Stack { engine: Engine::Own(Arc::new(owner)) })
    }
}

/// What bounds all sockets together, shared out to so many shards.
fn share_out(config: &mut Config, count: usize) {
    let (n, tcp) = (count as u64, &mut config.tcp);
    tcp.memory = tcp.memory.map(|bytes| bytes.div_ceil(n));
    for most in [&mut tcp.max_orphans, &mut tcp.max_syn_backlog, &mut tcp.max_time_wait] {
        *most = most.div_ceil(count as u32);
    }
    config.udp.memory = config.udp.memory.div_ceil(n);
    config.udp.sockets = config.udp.sockets.div_ceil(count);
    config.sockets = config.sockets.div_ceil(count);
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn random() -> Result<[u8; 16], Errno> {
    let mut bytes = [0; 16];
    // So few bytes come at once, or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

fn cidr(text: &str) -> Option<Cidr> {
    let (address, prefix) = text.split_once('/')?;
    Cidr::new(address.parse::<IpAddr>().ok()?, prefix.parse().ok()?)
}

/// Why a stack cannot be so.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// No link was given.
    NoLink,
    /// No address was given.
    NoAddress,
    /// That is none.
    Address(String),
    /// The TAP device could not be had.
    Tap(TapError),
    /// The addresses, the gateway or the hardware address do not fit.
    Config(BadConfig),
    /// There is no memory for pages.
    Pages(OpenError),
    /// The kernel refused a descriptor, a thread, or random numbers.
    System(Errno),
    /// The shards cannot be so: why, and what to do.
    Shards(&'static str),
    /// The kernel was to carry the bytes, and its io_uring cannot be used.
    Uring(Refused),
}

impl From<Failed> for BuildError {
    fn from(failed: Failed) -> BuildError {
        match failed {
            Failed::Refused(refused) => BuildError::Uring(refused),
            Failed::Pages(error) => BuildError::Pages(error),
            Failed::System(errno) => BuildError::System(errno),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::NoLink => f.write_str("a stack needs a link; give it one with Builder::tap"),
            BuildError::NoAddress => f.write_str(
                "a stack needs an address; give it one with Builder::address, such as 10.0.0.2/24",
            ),
            BuildError::Address(text) => {
                write!(f, "{text:?} is no address with a prefix; write it as 10.0.0.2/24")
            }
            BuildError::Tap(error) => error.fmt(f),
            BuildError::Config(error) => error.fmt(f),
            BuildError::Pages(error) => error.fmt(f),
            BuildError::System(errno) => write!(f, "a stack could not be started: {errno}"),
            BuildError::Shards(why) => f.write_str(why),
            BuildError::Uring(refused) => write!(f, "the kernel cannot carry the bytes: {refused}"),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<BuildError> for std::io::Error {
    fn from(error: BuildError) -> std::io::Error {
        let kind = match &error {
            BuildError::Tap(error) => std::io::Error::from(error.errno()).kind(),
            BuildError::System(errno) => errno.kind(),
            BuildError::Uring(refused) => refused.errno().kind(),
            BuildError::Pages(_) => std::io::ErrorKind::OutOfMemory,
            _ => std::io::ErrorKind::InvalidInput,
        };
        std::io::Error::new(kind, error)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}
