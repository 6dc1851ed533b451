//! How a stack comes to be.

use super::handle::Stack;
use crate::kernel::{self, Interface, Kernel, MOST_SHARDS};
use crate::own::{self, Driver, Owner, Setup};
use crate::port::Port;
use onecopy_chain::notify::zerocopy::Allowance;
use onecopy_inet::ip::{BadConfig, Cidr, Route};
use onecopy_inet::key::Seed;
use onecopy_inet::wire::Mac;
use onecopy_inet::{tcp, udp};
use onecopy_link::Tap;
use onecopy_link::tap::{TapConfig, TapError};
use onecopy_link::xdp::{Xdp, XdpConfig, XdpError};
use onecopy_pool::OpenError;
use onecopy_socket::{Transport, Wait};
use onecopy_uring::Refused;
use rustix::io::Errno;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

enum Where {
    Tap(TapConfig),
    Xdp(XdpConfig),
    Ports(Vec<Box<dyn Port>>),
}

/// Pages that what is sent may take, if it is not said.
const PAGES: u32 = 1 << 16;

/// How a [`Stack`] is to be: a link and an address at least.
pub struct Builder {
    link: Option<Where>,
    mtu: Option<u32>,
    addresses: Vec<Result<Cidr, String>>,
    gateways: Vec<Route>,
    routes: Vec<Result<Route, String>>,
    mac: Option<Mac>,
    seed: Option<Seed>,
    driver: Option<Driver>,
    shards: Option<u32>,
    wait: Wait,
    linger: Duration,
    pages: Option<u32>,
    transport: Option<Transport>,
    kernel: kernel::Config,
    tcp: Option<tcp::Config>,
    udp: Option<udp::Config>,
    zerocopy: Option<Allowance>,
    interface: Option<String>,
}

impl Stack {
    /// How a stack is to be.
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl Builder {
    fn new() -> Builder {
        Builder {
            link: None,
            mtu: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
            mac: None,
            seed: None,
            driver: None,
            shards: None,
            wait: Wait::default(),
            linger: Duration::from_secs(2),
            pages: None,
            transport: None,
            kernel: kernel::Config::default(),
            tcp: None,
            udp: None,
            zerocopy: None,
            interface: None,
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

    /// The link is the interface `name`, past the kernel's IP, by an AF_XDP socket ([`Xdp`]): all that arrives there is the stack's, and the interface's hardware
    /// address, too, unless [`Builder::mac`] says another one. The interface is there and is up, with the MTU that it has ([`Builder::mtu`] sets none) and one queue that it receives
    /// by, so the stack has one shard. It takes root's rights.
    #[must_use]
    pub fn xdp(self, name: impl Into<String>) -> Builder {
        self.xdp_with(XdpConfig::new(name))
    }

    /// As [`Builder::xdp`], in all detail.
    #[must_use]
    pub fn xdp_with(self, config: XdpConfig) -> Builder {
        Builder { link: Some(Where::Xdp(config)), ..self }
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
    ///
    /// Where the kernel carries the bytes ([`Builder::transport`]) each shard has an io_uring of its own and the one thread that makes its requests.
    /// Each connection is the next shard's in turn, one that is accepted as well, and stays there. A listener asks by one ring. A datagram is sent and
    /// received by the program's own thread, so of UDP a shard only makes the sends without a copy: a socket is a shard's from its first one on. Each shard has the pages
    /// that [`kernel::Config`] says, and ENOBUFS where its senders have taken them. Device memory can be bound, and is all shards'. [`Stack::shard_counters`] shows who does what.
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
        let to = if gateway.is_ipv4() { Cidr::ALL } else { Cidr::ALL_V6 };
        self.gateways.push(Route { to, gateway: Some(gateway) });
        self
    }

    /// Where packets for one network go, such as `10.1.0.0/16` or `fd01::/48`: to `gateway`, a router on a network of an address of the stack's. May be
    /// called more than once: of several networks that have an address the one with the longest prefix counts, of one network the last
    /// call. There are 64 routes at most, those of the networks of the stack's addresses among them.
    ///
    /// ```
    /// use onecopy_net::Stack;
    /// # use onecopy_link::Tap;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (link, _other) = Tap::cable(1500)?;
    /// let builder = Stack::builder().link(link).address("10.0.0.5/24").address("fd00::5/64");
    /// let builder = builder.gateway("10.0.0.1".parse()?).route("10.1.0.0/16", "10.0.0.2".parse()?);
    /// let stack = builder.route("fd01::/48", "fd00::2".parse()?).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn route(mut self, network: &str, gateway: IpAddr) -> Builder {
        let to = cidr(network).filter(Cidr::is_network);
        let route = to.map(|to| Route { to, gateway: Some(gateway) });
        self.routes.push(route.ok_or_else(|| network.to_owned()));
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
        Builder { driver: Some(driver), ..self }
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
    /// of them are kept for large sends, in pieces of 64 KiB. Whose send finds none waits until some are home, as where there is no room: EAGAIN, and not writable to poll(2).
    #[must_use]
    pub fn pages(self, pages: u32) -> Builder {
        Builder { pages: Some(pages), ..self }
    }

    /// Changes what holds for all of TCP: Linux's sysctls under net.ipv4, by their names.
    #[must_use]
    pub fn tcp(mut self, change: impl FnOnce(&mut tcp::Config)) -> Builder {
        change(self.tcp.get_or_insert_default());
        self
    }

    /// Changes what holds for all of UDP.
    #[must_use]
    pub fn udp(mut self, change: impl FnOnce(&mut udp::Config)) -> Builder {
        change(self.udp.get_or_insert_default());
        self
    }

    /// Which way the bytes of its sockets may take. [`Transport::Kernel`]: the kernel's own TCP and UDP, through io_uring; it takes no root, and has none
    /// of what a stack of the program's own has (link, addresses, pages and so on), so [`Builder::build`] refuses to be told of it
    /// ([`BuildError::NotOfKernel`]). [`Transport::Auto`]: a stack of the program's own if its link can be had, else the
    /// kernel's (for AF_XDP: where rights, or the kernel, lack what it takes; an interface that is not there, or is down, is an error), and what was said of the former but [`Builder::shards`] does not count then. If it is not called: a stack of the program's own, or an error.
    /// [`Stack::carrier`] tells which it is.
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

    /// The network interface whose NIC [`Stack::bind_rx`] asks first, where the kernel carries the bytes: one that can receives into a device's memory by itself (the kernel's
    /// device memory TCP, Documentation/networking/devmem.rst). It takes memory with a dma-buf ([`DeviceMemory::dma_buf`](onecopy_pool::DeviceMemory::dma_buf)), CAP_NET_ADMIN, and
    /// a NIC that is set to split headers and to bring the flows to the queues that are bound (ethtool); queues are then the NIC's. Where it refuses, memory is bound as
    /// without, and [`Binding::path`](crate::devmem::Binding::path) says why. A stack of the program's own has none: [`BuildError::NotOfOwn`]. (No hardware has been tried yet.)
    #[must_use]
    pub fn interface(self, name: impl Into<String>) -> Builder {
        Builder { interface: Some(name.into()), ..self }
    }

    /// What sends without a copy may keep, the sockets of all stacks of the process together, and which of them are copied instead. If it is not given, as the kernel has it
    /// for this process when the stack is built: RLIMIT_MEMLOCK, or no limit with CAP_IPC_LOCK ([`Allowance::of_process`]), 128 KiB of notices
    /// a socket; and copied is what this machine copies faster.
    #[must_use]
    pub fn zerocopy(self, allowance: Allowance) -> Builder {
        Builder { zerocopy: Some(allowance), ..self }
    }

    /// Makes it.
    ///
    /// # Errors
    ///
    /// [`BuildError`], which says what to do.
    pub fn build(self) -> Result<Stack, BuildError> {
        let (config, wait, linger, zerocopy) = (self.kernel, self.wait, self.linger, self.zerocopy);
        let (name, shards) = (self.interface.clone(), self.shards.unwrap_or(1));
        let kernel = || {
            let named =
                |name: String| Interface::named(&name).map_err(|errno| BuildError::Interface { name, errno });
            let interface = name.map(named).transpose()?;
            if !(1..=MOST_SHARDS).contains(&shards) {
                return Err(BuildError::Shards("a stack of the kernel's has 1 to 64 shards"));
            }
            let zerocopy = zerocopy.unwrap_or_default();
            let started = Kernel::start(config, shards, wait, linger, zerocopy, interface);
            started.map(Stack::of_kernel).map_err(BuildError::from)
        };
        match self.transport {
            None if self.interface.is_some() => Err(BuildError::NotOfOwn("interface")),
            None => self.build_own(),
            Some(Transport::Kernel) => match self.said_of_own() {
                Some(method) => Err(BuildError::NotOfKernel(method)),
                None => kernel(),
            },
            Some(Transport::Auto) if self.link.is_none() => kernel(),
            Some(Transport::Auto) => match self.build_own() {
                // Without TAP, AF_XDP or root the kernel does; what is wrong in itself is not mended by it.
                Err(BuildError::Tap(_)) => kernel(),
                Err(BuildError::Xdp(error)) if error.is_lacking() => kernel(),
                built => built,
            },
        }
    }

    /// The first method that was called of those that are about a stack of the program's own alone.
    fn said_of_own(&self) -> Option<&'static str> {
        let said = [
            (matches!(self.link, Some(Where::Tap(_))), "tap"),
            (matches!(self.link, Some(Where::Xdp(_))), "xdp"),
            (matches!(self.link, Some(Where::Ports(_))), "link"),
            (!self.addresses.is_empty(), "address"),
            (!self.gateways.is_empty(), "gateway"),
            (!self.routes.is_empty(), "route"),
            (self.mtu.is_some(), "mtu"),
            (self.mac.is_some(), "mac"),
            (self.driver.is_some(), "driver"),
            (self.seed.is_some(), "seed"),
            (self.pages.is_some(), "pages"),
            (self.tcp.is_some(), "tcp"),
            (self.udp.is_some(), "udp"),
        ];
        said.into_iter().find_map(|(is_said, method)| is_said.then_some(method))
    }

    fn build_own(self) -> Result<Stack, BuildError> {
        let mut addresses = Vec::new();
        for address in self.addresses {
            addresses.push(address.map_err(BuildError::Address)?);
        }
        if addresses.is_empty() {
            return Err(BuildError::NoAddress);
        }
        let mut routes = self.gateways;
        for route in self.routes {
            routes.push(route.map_err(BuildError::Route)?);
        }
        let mut mac = self.mac;
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
            Where::Xdp(config) => {
                if self.mtu.is_some() {
                    return Err(BuildError::NotOfXdp("mtu"));
                }
                if self.shards.is_some_and(|shards| shards != 1) {
                    return Err(BuildError::Shards(
                        "by AF_XDP a stack has one queue of the interface, and so one shard: do not ask for more",
                    ));
                }
                let config = mac.map_or(config.clone(), |mac| config.address(mac.0));
                let xdp = Xdp::open(config).map_err(BuildError::Xdp)?;
                mac.get_or_insert(Mac(xdp.hardware_address()));
                vec![Box::new(xdp)]
            }
        };
        let setup = Setup {
            ports,
            addresses,
            routes,
            mac,
            seed: self.seed,
            driver: self.driver.unwrap_or_default(),
            wait: self.wait,
            linger: self.linger,
            pages: self.pages.unwrap_or(PAGES),
            tcp: self.tcp.unwrap_or_default(),
            udp: self.udp.unwrap_or_default(),
            zerocopy: self.zerocopy.unwrap_or_default(),
        };
        Ok(Stack::of_own(Owner::start(setup)?))
    }
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
    /// That is no network ([`Builder::route`]).
    Route(String),
    /// The TAP device could not be had.
    Tap(TapError),
    /// The interface could not be had by AF_XDP.
    Xdp(XdpError),
    /// The link is by AF_XDP, and this method of [`Builder`] says what is the interface's own there.
    NotOfXdp(&'static str),
    /// The addresses, the routes or the hardware address do not fit.
    Config(BadConfig),
    /// There is no memory for pages.
    Pages(OpenError),
    /// The kernel refused a descriptor, a thread, or random numbers.
    System(Errno),
    /// The shards cannot be so: why, and what to do.
    Shards(&'static str),
    /// [`Transport::Kernel`] was asked for, and by this method of [`Builder`] what only a stack of the program's own has.
    NotOfKernel(&'static str),
    /// A stack of the program's own was asked for, and by this method of [`Builder`] what only the kernel's TCP has.
    NotOfOwn(&'static str),
    /// There is no such network interface.
    Interface {
        /// What it was to be called.
        name: String,
        /// What the kernel says.
        errno: Errno,
    },
    /// The kernel was to carry the bytes, and its io_uring cannot be used.
    Uring(Refused),
}

impl From<kernel::Failed> for BuildError {
    fn from(failed: kernel::Failed) -> BuildError {
        match failed {
            kernel::Failed::Refused(refused) => BuildError::Uring(refused),
            kernel::Failed::Pages(error) => BuildError::Pages(error),
            kernel::Failed::System(errno) => BuildError::System(errno),
        }
    }
}

impl From<own::Failed> for BuildError {
    fn from(failed: own::Failed) -> BuildError {
        match failed {
            own::Failed::Config(bad) => BuildError::Config(bad),
            own::Failed::Pages(error) => BuildError::Pages(error),
            own::Failed::System(errno) => BuildError::System(errno),
            own::Failed::Shards(why) => BuildError::Shards(why),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::NoLink => {
                f.write_str("a stack needs a link; give it one with Builder::tap or Builder::xdp")
            }
            BuildError::NoAddress => f.write_str(
                "a stack needs an address; give it one with Builder::address, such as 10.0.0.2/24",
            ),
            BuildError::Address(text) => {
                write!(f, "{text:?} is no address with a prefix; write it as 10.0.0.2/24")
            }
            BuildError::Route(text) => write!(
                f,
                "{text:?} is no network with a prefix; write it as 10.1.0.0/16, with no bit set behind those of the prefix"
            ),
            BuildError::Tap(error) => error.fmt(f),
            BuildError::Xdp(error) => error.fmt(f),
            BuildError::NotOfXdp(method) => write!(
                f,
                "by AF_XDP a stack takes the interface as it is, and Builder::{method} is for a TAP: do not call it, and set the interface itself (ip link set \
                 NAME {method} ...)"
            ),
            BuildError::Config(error) => error.fmt(f),
            BuildError::Pages(error) => error.fmt(f),
            BuildError::System(errno) => write!(f, "a stack could not be started: {errno}"),
            BuildError::Shards(why) => f.write_str(why),
            BuildError::NotOfKernel(method) => write!(
                f,
                "Builder::{method} is about a stack of the program's own, and Transport::Kernel has none: do not call it, or \
                 let Builder::transport be Auto or unsaid"
            ),
            BuildError::NotOfOwn(method) => write!(
                f,
                "Builder::{method} is about the kernel's TCP, and this stack is the program's own: do not call it, or build with \
                 Transport::Kernel"
            ),
            BuildError::Interface { name, errno } => {
                write!(f, "there is no network interface {name:?} ({errno}); `ip link` has their names")
            }
            BuildError::Uring(refused) => write!(f, "the kernel cannot carry the bytes: {refused}"),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<BuildError> for std::io::Error {
    fn from(error: BuildError) -> std::io::Error {
        let kind = match &error {
            BuildError::Tap(error) => std::io::Error::from(error.errno()).kind(),
            BuildError::Xdp(error) => std::io::Error::from(error.errno()).kind(),
            BuildError::System(errno) | BuildError::Interface { errno, .. } => errno.kind(),
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
