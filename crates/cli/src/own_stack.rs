//! A stack of this program's own: what the flags say of it, and how it and its link come to be.

use crate::failure::Usage;
use onecopy::advanced::link::tap::TapConfig;
use onecopy::advanced::link::{Link, Tap, Xdp, XdpConfig};
use onecopy::{Cidr, Mac, Stack};
use onecopy_sys::netns::Namespace;
use onecopy_sys::{rtnetlink, tun};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// For programs that speak on one instead of the kernel's sockets, if they are asked to.
#[derive(Clone, Debug, clap::Args)]
pub struct OwnStack {
    /// Speak on a stack of this program's own instead of the kernel's, over this TAP device. It is made where there is none, which
    /// takes CAP_NET_ADMIN, and is gone with the program; its other side is the kernel's interface of that name
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// The same over this network interface, past the kernel's IP (AF_XDP): all that arrives there is the stack's. It is up, with one queue that it
    /// receives by, and stays as it is; this takes root
    #[arg(long, value_name = "IFACE", conflicts_with = "tap")]
    xdp: Option<String>,
    #[command(flatten)]
    network: Network,
}

impl OwnStack {
    /// Whether one is asked for.
    pub fn is_some(&self) -> bool {
        self.tap.is_some() || self.xdp.is_some()
    }

    /// Looks that the flags belong together.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.is_some() {
            true => self.network.check(),
            false if self.network.any() => {
                let why = "--addr, --gateway, --route, --mtu, --kernel-addr and --shards are a stack's of our own: add --tap NAME, or --xdp IFACE";
                Err(Usage(why.into()).into())
            }
            false => Ok(()),
        }
    }

    /// An address of the kernel's side of the TAP: the first that was asked for, or the first other one of the stack's network.
    pub fn kernel_address(&self) -> anyhow::Result<IpAddr> {
        if self.xdp.is_some() {
            return wrong(
                "with --xdp it is not known who is at the other end: take --tap NAME for this".to_owned(),
            );
        }
        Ok(self.network.kernel_addresses(true)?[0].address())
    }

    /// The stack, if one is asked for.
    ///
    /// # Errors
    ///
    /// Why it cannot be, and what to do.
    pub fn open(&self) -> anyhow::Result<Option<Stack>> {
        Ok(self.open_named()?.map(|(stack, ..)| stack))
    }

    /// The same with its device's name, and what there is to be said about that.
    pub fn open_named(&self) -> anyhow::Result<Option<(Stack, String, String)>> {
        self.check()?;
        let network = &self.network;
        if let Some(name) = &self.xdp {
            let xdp = network.open_xdp(name)?;
            let (mac, about) = (Mac(xdp.hardware_address()), xdp.describe());
            let stack = network.set(Stack::builder())?.mac(mac).link(xdp).build()?;
            return Ok(Some((stack, name.clone(), about)));
        }
        let Some(name) = &self.tap else { return Ok(None) };
        let advice = "without --tap the kernel's own sockets are used, which takes no privilege";
        let taps = network
            .open(name, &network.kernel_addresses(false)?, None)
            .map_err(|error| error.context(format!("no stack of our own on {name:?} ({advice})")))?;
        let (name, about) = (taps[0].name().to_owned(), describe(&taps));
        let stack = network.set(Stack::builder())?.links(taps).build()?;
        Ok(Some((stack, name, about)))
    }
}

/// What a stack needs to be in a network.
#[derive(Clone, Debug, clap::Args)]
pub struct Network {
    /// An address of the stack and its network, such as 10.0.0.2/24 or fd00::2/64; may be given several times, of IPv4 and of IPv6
    #[arg(long, value_name = "CIDR", value_parser = cidr)]
    addr: Vec<Cidr>,
    /// Where the stack's packets for all other networks go: a router in a network of --addr. May be given once for IPv4 and once for IPv6
    #[arg(long, value_name = "IP")]
    gateway: Vec<IpAddr>,
    /// Where the stack's packets for one network go: to a router in a network of --addr, as in 10.1.0.0/16=10.0.0.9. May be given several
    /// times; of several networks that an address is in, the smallest counts
    #[arg(long, value_name = "CIDR=IP", value_parser = Way::parse)]
    route: Vec<Way>,
    /// Bytes of the TAP's longest packet, 68 to 65521; left out, what the device has (a new one: 1500)
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Give the kernel's side of the TAP this address, and set it up; left out, somebody else does (ip addr, ip link). May be given once for IPv4 and
    /// once for IPv6
    #[arg(long, value_name = "CIDR", value_parser = cidr)]
    kernel_addr: Vec<Cidr>,
    /// Have the stack be of so many shards, 1 to 64, each with a queue of the TAP's, a thread and a lock of its own: connections of
    /// different ones share nothing. A TAP that is there has to have as many queues (ip tuntap add ... multi_queue)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: Option<u16>,
}

fn cidr(text: &str) -> Result<Cidr, String> {
    let parts = text
        .split_once('/')
        .and_then(|(address, prefix)| Cidr::new(address.parse::<IpAddr>().ok()?, prefix.parse().ok()?));
    parts.ok_or_else(|| format!("{text:?}: write an address with its prefix, as in 10.0.0.2/24"))
}

/// The way to a network, by a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    to: Cidr,
    router: IpAddr,
}

impl Way {
    fn parse(text: &str) -> Result<Way, String> {
        let Some((network, router)) = text.split_once('=') else {
            return Err(format!("{text:?}: write a network and its router, as in 10.1.0.0/16=10.0.0.9"));
        };
        let to = cidr(network)?;
        if !to.is_network() {
            return Err(format!(
                "{network} is an address in a network: set no bit behind the {} of its prefix",
                to.prefix()
            ));
        }
        let router =
            router.parse().map_err(|_| format!("{router:?}: write the router's address, as in 10.0.0.9"))?;
        Ok(Way { to, router })
    }
}

impl Network {
    fn any(&self) -> bool {
        let said = self.mtu.is_some() || self.shards.is_some();
        said || !(self.addr.is_empty()
            && self.kernel_addr.is_empty()
            && self.gateway.is_empty()
            && self.route.is_empty())
    }

    /// Looks that there is an address, that each is there once, and that each router can be reached.
    ///
    /// # Errors
    ///
    /// Which flag does not fit, and why.
    pub fn check(&self) -> anyhow::Result<()> {
        self.addresses()?;
        let twice = |at: &usize| self.addr[..*at].iter().any(|one| one.address() == self.addr[*at].address());
        if let Some(at) = (1..self.addr.len()).find(twice) {
            return wrong(format!(
                "--addr {}: the stack has that address already, name it once",
                self.addr[at]
            ));
        }
        for (at, gateway) in self.gateway.iter().enumerate() {
            if let Some(other) = self.gateway[..at].iter().find(|other| other.is_ipv4() == gateway.is_ipv4())
            {
                return wrong(format!(
                    "--gateway {other} and --gateway {gateway}: one router gets what has no way of its own; give the other --route"
                ));
            }
            self.check_router("--gateway", *gateway)?;
        }
        for (at, way) in self.route.iter().enumerate() {
            if let Some(other) = self.route[..at].iter().find(|other| other.to == way.to) {
                return wrong(format!(
                    "--route {}={} and --route {}={}: one router gets what goes to a network, leave the other out",
                    other.to, other.router, way.to, way.router
                ));
            }
            let same = |gateway: &&IpAddr| way.to.prefix() == 0 && gateway.is_ipv4() == way.router.is_ipv4();
            if let Some(gateway) = self.gateway.iter().find(same) {
                return wrong(format!(
                    "--gateway {gateway} and --route {}={}: both say where all the rest goes, leave one out",
                    way.to, way.router
                ));
            }
            if way.to.address().is_ipv4() != way.router.is_ipv4() {
                return wrong(format!(
                    "--route {}={}: a network of IPv6 needs a router of IPv6, and one of IPv4 one of IPv4",
                    way.to, way.router
                ));
            }
            self.check_router("--route", way.router)?;
        }
        Ok(())
    }

    /// A router has to be next door. (Each link has IPv6's own network.)
    fn check_router(&self, flag: &str, router: IpAddr) -> anyhow::Result<()> {
        let of_link = matches!(router, IpAddr::V6(router) if router.is_unicast_link_local());
        if of_link || self.addr.iter().any(|own| own.contains(router)) {
            return Ok(());
        }
        let why = "the router is in no network of --addr; give the stack an address in the router's network";
        wrong(format!("{flag}: {router}: {why}"))
    }

    /// The stack's addresses, one at least.
    pub fn addresses(&self) -> anyhow::Result<&[Cidr]> {
        if self.addr.is_empty() {
            return wrong(
                "the stack needs an address of its own: add --addr, as in --addr 10.0.0.2/24".to_owned(),
            );
        }
        Ok(&self.addr)
    }

    /// The stack has these addresses and ways.
    pub fn set(&self, mut builder: onecopy::Builder) -> anyhow::Result<onecopy::Builder> {
        self.check()?;
        for address in &self.addr {
            builder = builder.address(&address.to_string());
        }
        for gateway in &self.gateway {
            builder = builder.gateway(*gateway);
        }
        for way in &self.route {
            builder = builder.route(&way.to.to_string(), way.router);
        }
        Ok(builder)
    }

    /// The addresses of the kernel's side, if it is to get some: what was asked for, or with `always` another one of the stack's networks, of each family that it
    /// has.
    pub fn kernel_addresses(&self, always: bool) -> anyhow::Result<Vec<Cidr>> {
        let all = self.addresses()?;
        for (at, kernel) in self.kernel_addr.iter().enumerate() {
            if all.iter().any(|own| own.address() == kernel.address()) {
                return wrong(format!(
                    "--kernel-addr {kernel}: the stack has that address by --addr; give the kernel another"
                ));
            }
            let same = |other: &&Cidr| other.address().is_ipv4() == kernel.address().is_ipv4();
            if let Some(other) = self.kernel_addr[..at].iter().find(same) {
                return wrong(format!(
                    "--kernel-addr {other} and --kernel-addr {kernel}: the kernel's side gets one of each family here; add more by `ip addr add`"
                ));
            }
        }
        if !self.kernel_addr.is_empty() || !always {
            return Ok(self.kernel_addr.clone());
        }
        let of = |four: bool| {
            let mut own = all.iter().filter(move |own| own.address().is_ipv4() == four);
            own.find_map(|own| neighbour(*own, all))
        };
        let found: Vec<_> = [of(true), of(false)].into_iter().flatten().collect();
        if found.is_empty() {
            return wrong(format!(
                "there is no other address beside {}: say the kernel's with --kernel-addr",
                list(all)
            ));
        }
        Ok(found)
    }

    /// How many shards the stack has.
    pub fn shards(&self) -> u16 {
        self.shards.unwrap_or(1)
    }

    /// Opens the interface called `name` past the kernel's IP.
    pub fn open_xdp(&self, name: &str) -> anyhow::Result<Xdp> {
        if self.mtu.is_some() || !self.kernel_addr.is_empty() || self.shards() > 1 {
            return wrong(
                "--xdp takes an interface as it is, by one queue: leave out --mtu and --kernel-addr (ip link, ip addr), and --shards"
                    .to_owned(),
            );
        }
        let advice = "without --xdp the kernel's own sockets are used, which takes no privilege";
        Xdp::open(XdpConfig::new(name)).map_err(|error| anyhow::anyhow!("{error} ({advice})"))
    }

    /// Opens the TAP called `name`, once for each shard, in `namespace` or where this thread is, and sees to the kernel's side of it.
    pub fn open(
        &self,
        name: &str,
        kernel: &[Cidr],
        namespace: Option<&Namespace>,
    ) -> anyhow::Result<Vec<Tap>> {
        let open = || -> anyhow::Result<Vec<Tap>> {
            let config = TapConfig::new(name);
            let config = self.mtu.map_or(config.clone(), |mtu| config.mtu(mtu));
            let taps = match self.shards() {
                1 => Tap::open(config).map(|tap| vec![tap]),
                count => Tap::open_queues(config, count.into()),
            };
            let taps = taps.map_err(|error| match error.errno() {
                Errno::PERM => anyhow::anyhow!(
                    "{error}, or be root in a network of your own (unshare --user --map-root-user --net onecopy ...)"
                ),
                _ => error.into(),
            })?;
            for kernel in kernel {
                raise(taps[0].name(), *kernel)?;
            }
            Ok(taps)
        };
        match namespace {
            None => open(),
            Some(namespace) => namespace.run(open)?,
        }
    }
}

fn wrong<T>(why: String) -> anyhow::Result<T> {
    Err(Usage(why).into())
}

/// Addresses, as they are told.
pub fn list(all: &[Cidr]) -> String {
    let all: Vec<String> = all.iter().map(Cidr::to_string).collect();
    all.join(", ")
}

/// Sets the kernel's side up, and gives it an address.
fn raise(name: &str, kernel: Cidr) -> anyhow::Result<()> {
    let done = tun::set_up(name).and_then(|()| match kernel.address() {
        IpAddr::V4(address) => tun::set_address(name, address, kernel.prefix()),
        IpAddr::V6(address) => match rtnetlink::add_address(name, address, kernel.prefix()) {
            // It may have it from before, as an address of IPv4 that is set again.
            Err(Errno::EXIST) => Ok(()),
            done => done,
        },
    });
    done.map_err(|errno| {
        anyhow::anyhow!(
            "{name} gets no address {kernel}: {errno}; run as root, or have root do it (ip addr add {kernel} dev {name}; \
             ip link set {name} up) and leave out --kernel-addr"
        )
    })
}

/// The first other host of a network.
fn neighbour(own: Cidr, all: &[Cidr]) -> Option<Cidr> {
    let prefix = u32::from(own.prefix());
    let taken = |at: IpAddr| all.iter().any(|own| own.address() == at);
    let other = |at: &IpAddr| !taken(*at) && Some(*at) != own.network() && Some(*at) != own.broadcast();
    let found = match own.address() {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            let hosts = (address.to_bits() & mask)..=(address.to_bits() | !mask);
            hosts.map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))).find(other)
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            // The first one is that of all its routers (RFC 4291, section 2.6.1; RFC 6164 for one of two).
            let first = (address.to_bits() & mask) + u128::from(prefix < 127);
            (first..=(address.to_bits() | !mask))
                .map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
                .find(other)
        }
    };
    Cidr::new(found?, own.prefix())
}

/// A line about a link of so many queues, for who asks with `--verbose`.
pub fn describe(taps: &[Tap]) -> String {
    let tap = &taps[0];
    let queues = if taps.len() > 1 { format!(" of {} queues", taps.len()) } else { String::new() };
    let can = tap.capabilities();
    let with = match (can.checksum, can.tcp_segmentation) {
        (true, true) => "checksums and super-segments left to each other",
        (true, false) => "checksums left to each other, no super-segments",
        _ => "checksums and super-segments made in user space",
    };
    format!("TAP {}{queues}, MTU {}, {with}", tap.name(), can.mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gets_another_address() {
        for (own, other) in [
            ("10.0.0.2/24", Some("10.0.0.1/24")),
            ("10.0.0.1/24", Some("10.0.0.2/24")),
            ("10.0.0.200/25", Some("10.0.0.129/25")),
            ("10.0.0.4/31", Some("10.0.0.5/31")),
            ("10.0.0.5/31", Some("10.0.0.4/31")),
            ("10.0.0.5/32", None),
            ("fd00::1/64", Some("fd00::2/64")),
            ("fd00::2/64", Some("fd00::1/64")),
            ("fd00::ff:1/112", Some("fd00::ff:2/112")),
            ("fd00::4/127", Some("fd00::5/127")),
            ("fd00::5/127", Some("fd00::4/127")),
            ("fd00::5/128", None),
        ] {
            let found = neighbour(cidr(own).unwrap(), &[cidr(own).unwrap()]).map(|cidr| cidr.to_string());
            assert_eq!(found.as_deref(), other, "{own}");
        }
    }

    fn network(flags: &str) -> Network {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            network: Network,
        }
        <Flags as clap::Parser>::parse_from(["onecopy"].into_iter().chain(flags.split(' '))).network
    }

    #[test]
    fn the_kernels_address_is_none_of_the_stacks() {
        let both = network("--addr 10.0.0.1/24 --addr 10.0.0.2/24");
        assert_eq!(both.kernel_addresses(true).unwrap(), [cidr("10.0.0.3/24").unwrap()]);
        assert_eq!(both.kernel_addresses(false).unwrap(), []);
        let same = network("--addr 10.0.0.1/24 --kernel-addr 10.0.0.1/24").kernel_addresses(false);
        assert!(same.unwrap_err().to_string().contains("give the kernel another"));
        let twice = network("--addr 10.0.0.1/24 --kernel-addr 10.0.0.2/24 --kernel-addr 10.0.0.3/24");
        assert!(twice.kernel_addresses(true).unwrap_err().to_string().contains("one of each family"));
    }

    #[test]
    fn the_kernel_gets_an_address_of_each_family_that_the_stack_has() {
        for (flags, kernel) in [
            ("--addr fd00::1/64", "fd00::2/64"),
            ("--addr fd00::1/64 --addr 10.0.0.1/24 --addr fd01::1/64", "10.0.0.2/24, fd00::2/64"),
            ("--addr 10.0.0.1/32 --addr fd00::1/64", "fd00::2/64"),
            ("--addr 10.0.0.1/24 --addr fd00::1/64 --kernel-addr fd00::9/64", "fd00::9/64"),
        ] {
            assert_eq!(list(&network(flags).kernel_addresses(true).unwrap()), kernel, "{flags}");
        }
    }

    #[test]
    fn what_goes_to_a_network_has_one_way() {
        for (flags, why) in [
            ("--gateway 10.0.0.1 --route 0.0.0.0/0=10.0.0.9", "where all the rest goes"),
            ("--route 10.1.0.0/16=10.0.0.1 --route 10.1.0.0/16=10.0.0.9", "leave the other out"),
            ("--route 10.1.0.0/16=10.9.0.1", "in no network of --addr"),
            ("--gateway 10.0.0.1 --route 10.1.0.0/16=10.0.0.9 --route 10.1.0.0/24=10.0.0.8", ""),
        ] {
            let checked = network(&format!("--addr 10.0.0.2/24 {flags}")).check();
            match why {
                "" => checked.unwrap(),
                why => assert!(checked.unwrap_err().to_string().contains(why), "{flags}"),
            }
        }
    }

    #[test]
    fn what_is_no_way() {
        let way = Way::parse("10.1.0.0/16=10.0.0.9").unwrap();
        assert_eq!((way.to, way.router), (cidr("10.1.0.0/16").unwrap(), "10.0.0.9".parse().unwrap()));
        assert!(Way::parse("fd01::/48=fe80::3").is_ok());
        for (text, why) in [
            ("", "as in 10.1.0.0/16=10.0.0.9"),
            ("10.1.0.0/16", "as in 10.1.0.0/16=10.0.0.9"),
            ("10.1.0.0=10.0.0.9", "as in 10.0.0.2/24"),
            ("10.1.0.1/16=10.0.0.9", "no bit behind the 16"),
            ("10.1.0.0/16=router", "the router's address"),
        ] {
            assert!(Way::parse(text).is_err_and(|said| said.contains(why)), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_with_a_prefix() {
        for text in ["", "10.0.0.2", "10.0.0.2/33", "10.0.0/24", "x/24", "10.0.0.2/"] {
            assert!(cidr(text).is_err_and(|why| why.contains("as in 10.0.0.2/24")), "{text}");
        }
    }
}
