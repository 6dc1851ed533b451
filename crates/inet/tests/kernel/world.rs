//! A stack of ours on a TAP, the kernel on its other side, and the loop that drives the stack: poll(2), on the test's own thread.

use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::{Config, Event, Stack};
use onecopy_inet::wire::Mac;
use onecopy_link::{Link, Medium, Tap, TapConfig};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use onecopy_sys::eventfd::EventFd;
use onecopy_sys::netns::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The kernel's address, and ours.
pub const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The kernel's, behind a router.
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
pub const FAR6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1);

/// Those of IPv6.
pub const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
pub const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

pub fn ours(port: u16) -> SocketAddr {
    SocketAddr::new(OURS.into(), port)
}

/// How it is to be.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub medium: Medium,
    pub mtu: u32,
    pub checksum: bool,
    pub segmentation: bool,
    /// Both have an address of IPv6, too.
    pub six: bool,
}

impl Setup {
    pub fn all(mtu: u32) -> Setup {
        Setup { medium: Medium::Ethernet, mtu, checksum: true, segmentation: true, six: false }
    }

    /// With IPv6.
    pub fn six(self) -> Setup {
        Setup { six: true, ..self }
    }
}

/// The program's part: called with what has happened, until it says that it is done.
pub trait Program {
    fn turn(&mut self, host: &mut Host, events: &[Event]) -> bool;
}

/// What a program holds.
pub struct Host {
    pub stack: Stack,
    pub pool: PagePool,
    pub now: u64,
}

pub struct World {
    pub namespace: Arc<Namespace>,
    pub host: Host,
    tap: Tap,
    begun: Instant,
    /// Rung by threads on the kernel's side when they end.
    bell: Arc<EventFd>,
    /// Where the TAP is, if not where the kernel's sockets are.
    router: Option<Arc<Namespace>>,
}

/// Rings when it is dropped, so after a panic, too.
struct Rings(Arc<EventFd>);

impl Drop for Rings {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Something that goes on on the kernel's side.
pub struct Kernel<R> {
    result: Receiver<R>,
    thread: JoinHandle<()>,
}

impl<R> Kernel<R> {
    /// Waits for its end.
    pub fn join(self) -> R {
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        self.result.recv().unwrap()
    }

    /// Takes what came of it, once it has ended.
    pub fn take(of: &mut Option<Kernel<R>>) -> Option<R> {
        match of.as_ref()?.result.try_recv() {
            Ok(result) => {
                *of = None;
                Some(result)
            }
            Err(TryRecvError::Disconnected) => of.take().map(Kernel::join),
            Err(TryRecvError::Empty) => None,
        }
    }
}

impl World {
    /// None, with what is lacking on stdout, where the machine has not what it takes.
    pub fn new(setup: Setup) -> Option<World> {
        let namespace = match Namespace::new() {
            Err(Errno::PERM) => {
                println!("lacking: a network namespace (root, CAP_SYS_ADMIN)");
                return None;
            }
            namespace => namespace.expect("a network namespace"),
        };
        let config = TapConfig::new("onecopy0")
            .medium(setup.medium)
            .mtu(setup.mtu)
            .checksum(setup.checksum)
            .segmentation(setup.segmentation);
        let tap = match namespace.run(|| Tap::open(config)).unwrap() {
            Err(error)
                if [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM].contains(&error.errno()) =>
            {
                println!("lacking: a TAP ({error})");
                return None;
            }
            tap => tap.expect("a TAP"),
        };
        if !tool(&namespace, "ip -V") {
            println!("lacking: ip (iproute2), to give the kernel an address with");
            return None;
        }
        let capabilities = tap.capabilities();
        assert_eq!((capabilities.checksum, capabilities.mtu), (setup.checksum, setup.mtu));
        assert_eq!(capabilities.tcp_segmentation, setup.segmentation && setup.checksum);
        all(&namespace, &[&format!("ip addr add {KERNEL}/24 dev onecopy0"), "ip link set onecopy0 up"]);
        let seed = rand();
        let mut addresses = vec![Cidr::new(OURS, 24).unwrap()];
        if setup.six {
            addresses.push(Cidr::new(OURS6, 64).unwrap());
            // It may be used at once: nobody else has it.
            if !tool(&namespace, &format!("ip addr add {KERNEL6}/64 dev onecopy0 nodad")) {
                println!("lacking: a kernel that takes addresses of IPv6");
                return None;
            }
            until_taken(&namespace, KERNEL6);
        }
        let mut ip = ip::Config::new(capabilities, Mac([2, 0, 0, 0, 0, 2]), &addresses, seed).gateway(KERNEL);
        if setup.six {
            ip = ip.gateway(KERNEL6);
        }
        let mut config = Config::new(ip, seed);
        // So that a test sees the end of it.
        config.tcp.time_wait = Duration::from_millis(200);
        let stack = Stack::new(config).unwrap();
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        Some(World {
            namespace: Arc::new(namespace),
            host: Host { stack, pool, now: 0 },
            tap,
            begun: Instant::now(),
            bell: Arc::new(EventFd::new().unwrap()),
            router: None,
        })
    }

    /// The same with the kernel's sockets ([`FAR`]) one hop away, behind a router that `nft` has drop packets as `rule` says, and count them.
    pub fn routed(setup: Setup, rule: &str) -> Option<World> {
        let mut world = World::new(setup)?;
        let (router, far) = (world.namespace.clone(), Namespace::new().unwrap());
        if !tool(&router, "nft --version") {
            println!("lacking: nft (nftables), to drop packets with");
            return None;
        }
        let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
        let alone = if setup.segmentation { "" } else { "gso_max_segs 1" };
        all(
            &router,
            &[
                &format!("ip link add router type veth peer name far netns {there}"),
                "ip addr add 10.78.0.2/24 dev router",
                "ip link set router up",
                "nft add table ip trouble",
                "nft add chain ip trouble forward { type filter hook forward priority 0 ; }",
                &format!("nft add rule ip trouble forward {rule} counter drop"),
            ],
        );
        router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap()).unwrap();
        all(
            &far,
            &[
                &format!("ip addr add {FAR}/24 dev far"),
                &format!("ip link set far up mtu {} {alone}", setup.mtu),
                "ip route add default via 10.78.0.2",
            ],
        );
        world.namespace = Arc::new(far);
        world.router = Some(router);
        Some(world)
    }

    /// The same with the kernel's sockets ([`FAR`], [`FAR6`]) behind a router that sends them packets of at most `mtu` bytes, and says so to
    /// who sends longer ones.
    pub fn narrow(setup: Setup, mtu: u32) -> Option<World> {
        let mut world = World::new(setup.six())?;
        let (router, far) = (world.namespace.clone(), Namespace::new().unwrap());
        let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
        all(
            &router,
            &[
                &format!("ip link add router type veth peer name far netns {there}"),
                "ip addr add 10.78.0.2/24 dev router",
                "ip addr add fd78::2/64 dev router nodad",
                &format!("ip link set router up mtu {mtu}"),
            ],
        );
        for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            let file = format!("/proc/sys/net/{family}");
            router.run(|| std::fs::write(file, "1").unwrap()).unwrap();
        }
        all(
            &far,
            &[
                &format!("ip addr add {FAR}/24 dev far"),
                &format!("ip addr add {FAR6}/64 dev far nodad"),
                "ip link set far up",
                // It takes packets of any length, and sends none that is longer than its neighbour takes: that one would drop them, and
                // say nothing.
                &format!("ip route add default via 10.78.0.2 mtu {mtu} advmss 1460"),
                &format!("ip route add default via fd78::2 mtu {mtu} advmss 1440"),
            ],
        );
        until_taken(&far, FAR6);
        // The router's link came up with its other end.
        until_taken(&router, Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2));
        world.namespace = Arc::new(far);
        world.router = Some(router);
        Some(world)
    }

    /// Packets that the router dropped.
    pub fn dropped(&self) -> u64 {
        let list = || Command::new("nft").args(["list", "table", "ip", "trouble"]).output().unwrap();
        let output = self.router.as_ref().unwrap().run(list).unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let counted = said.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next());
        counted.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("nft says {said}"))
    }

    /// Runs `act` on a thread on the kernel's side. The program has a turn when it ends.
    pub fn kernel<R: Send + 'static>(&self, act: impl FnOnce() -> R + Send + 'static) -> Kernel<R> {
        let (sender, result) = std::sync::mpsc::channel();
        let (namespace, bell) = (self.namespace.clone(), Rings(self.bell.clone()));
        let thread = std::thread::spawn(move || {
            // The result is there, or known to be none, when it rings.
            let (_bell, sender) = (bell, sender);
            namespace.enter().unwrap();
            let _ = sender.send(act());
        });
        Kernel { result, thread }
    }

    /// Drives the stack until the program is done; panics where that takes more than two minutes.
    pub fn run(&mut self, program: &mut dyn Program) {
        let limit = Instant::now() + Duration::from_secs(120);
        let mut events = Vec::new();
        loop {
            self.round(&mut events);
            let turn = catch_unwind(AssertUnwindSafe(|| program.turn(&mut self.host, &events)));
            let done = turn.unwrap_or_else(|panic| {
                self.report();
                resume_unwind(panic)
            });
            events.clear();
            self.transmit();
            if done {
                return;
            }
            if Instant::now() > limit {
                self.report();
                panic!("it is not done after two minutes");
            }
            // The calls themselves may have made something happen.
            events.extend(std::iter::from_fn(|| self.host.stack.event()));
            if events.is_empty() {
                self.wait();
            }
        }
    }

    /// Takes what has come, and does what is due.
    fn round(&mut self, events: &mut Vec<Event>) {
        self.host.now = self.begun.elapsed().as_nanos() as u64;
        let (now, stack) = (self.host.now, &mut self.host.stack);
        // A few at a time, as what they cause has to leave, too.
        for _ in 0..64 {
            match self.tap.receive(now) {
                Some(packet) => stack.receive(now, packet),
                None => break,
            }
        }
        stack.advance(now);
        events.extend(std::iter::from_fn(|| stack.event()));
    }

    fn transmit(&mut self) {
        let now = self.host.now;
        while self.tap.room(now) > 0
            && let Some(packet) = self.host.stack.transmit()
        {
            self.tap.transmit(now, packet);
        }
    }

    /// Lets all happen that happens now.
    pub fn settle(&mut self) {
        let mut events = Vec::new();
        loop {
            let before = *self.tap.stats();
            self.round(&mut events);
            self.transmit();
            let after = self.tap.stats();
            if (before.received, before.transmitted) == (after.received, after.transmitted) {
                return;
            }
        }
    }

    /// Sleeps until the link or a timer has something.
    pub fn pause(&self) {
        self.wait();
    }

    /// Sleeps until something happens.
    fn wait(&self) {
        let room = if self.tap.room(self.host.now) == 0 { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.tap, PollFlags::IN | room), PollFd::new(&*self.bell, PollFlags::IN)];
        let now = self.begun.elapsed().as_nanos() as u64;
        let due = self.host.stack.deadline().map_or(1_000_000_000, |at| at.saturating_sub(now));
        let timeout = Timespec { tv_sec: (due / 1_000_000_000) as _, tv_nsec: (due % 1_000_000_000) as _ };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
        self.bell.drain();
    }

    /// What was counted, to find out why.
    pub fn report(&self) {
        let stack = &self.host.stack;
        let counted: Vec<_> = stack.tcp_stats().each().filter(|(_, count)| *count > 0).collect();
        let drops: Vec<_> = stack.interface().stats().drops().collect();
        eprintln!("{} sockets, {counted:?}\n{drops:?}\n{:?}", stack.len(), self.tap);
        let read = |file: &str| {
            let file = format!("/proc/thread-self/net/{file}");
            self.namespace.run(|| std::fs::read_to_string(file)).unwrap().unwrap_or_default()
        };
        let theirs = read("netstat");
        let mut lines = theirs.lines().map(str::split_whitespace);
        if let (Some(names), Some(counts)) = (lines.next(), lines.next()) {
            let theirs: Vec<_> = names.zip(counts).skip(1).filter(|(_, count)| *count != "0").collect();
            eprintln!("the kernel: {theirs:?}");
        }
        let theirs = read("snmp6");
        let counts = theirs.lines().filter_map(|line| line.split_once(char::is_whitespace));
        let counts: Vec<_> =
            counts.map(|(name, count)| (name, count.trim())).filter(|(_, count)| *count != "0").collect();
        eprintln!("of IPv6: {counts:?}");
    }

    /// Waits until no socket is left, and looks that every page came home, and that nothing was dropped on the way.
    pub fn finish(mut self) -> onecopy_link::tap::Stats {
        /// Until nothing is left.
        struct Rest;
        impl Program for Rest {
            fn turn(&mut self, host: &mut Host, _: &[Event]) -> bool {
                host.stack.is_empty()
            }
        }
        self.run(&mut Rest);
        let World { host: Host { stack, pool, .. }, tap, .. } = self;
        let (sent, stats, received) = (pool.monitor(), *tap.stats(), tap.pool().monitor());
        drop((pool, tap));
        assert_eq!((sent.in_flight(), received.in_flight()), (0, 0), "pages that the stack still has");
        let said =
            (stats.no_page, stats.too_long, stats.bad_header, stats.not_taken, stats.refused, stats.failed);
        assert_eq!(said, (0, 0, 0, 0, 0, 0), "{stats:?}");
        assert_eq!((stats.offload_refused, stats.gone, stats.down), (0, 0, 0), "{stats:?}");
        let checksums = stack.interface().stats().dropped(onecopy_inet::ip::Reason::Checksum);
        assert_eq!(checksums, 0, "packets with wrong checksums");
        stats
    }
}

/// Runs a command in there; false where it fails, or is not to be had.
pub fn tool(namespace: &Namespace, line: &str) -> bool {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    namespace.run(|| command.output().is_ok_and(|output| output.status.success())).unwrap()
}

/// Runs commands in there, each of which has to succeed.
fn all(namespace: &Namespace, lines: &[&str]) {
    for line in lines {
        assert!(tool(namespace, line), "{line} failed");
    }
}

/// Waits until the kernel takes what is sent to an address of its own. Programs may use one at once, but its routes know it only when a work
/// queue of the kernel's has had its turn (addrconf_dad_work()): until then it drops what comes, as not its own (Ip6InAddrErrors).
fn until_taken(namespace: &Namespace, address: Ipv6Addr) {
    /// Of a route: to this host itself (RTF_LOCAL).
    const LOCAL: u32 = 0x8000_0000;
    let address = format!("{:032x}", address.to_bits());
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let routes = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/ipv6_route"));
        let routes = routes.unwrap().unwrap();
        let known = routes.lines().any(|line| {
            let mut words = line.split_whitespace();
            let is_to = words.next() == Some(&address);
            is_to && words.nth(7).is_some_and(|flags| u32::from_str_radix(flags, 16).unwrap() & LOCAL != 0)
        });
        if known {
            return;
        }
        assert!(Instant::now() < limit, "the kernel never takes in what is for {address}:\n{routes}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn rand() -> [u8; 16] {
    let mut seed = [0; 16];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).unwrap();
    seed
}
