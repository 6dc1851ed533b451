//! Fast Open (RFC 7413) by every door that connects, and over both carriers: two stacks on a cable, and the kernel in a network namespace of
//! its own, whose sysctls are the test's.

use mio::{Events, Interest, Poll, Token};
use onecopy_link::Tap;
use onecopy_net::devmem::TxRange;
use onecopy_net::tcp::fast_open::Use;
use onecopy_net::tcp::{Listener, Settings, Stream, mio as events, tokio as tasks};
use onecopy_net::{BuildError, Stack, Transport};
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_sys::netns::Namespace;
use onecopy_testing::alone;
use std::fs;
use std::io::{IoSlice, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

const SYSCTL: &str = "/proc/sys/net/ipv4/tcp_fastopen";
/// TCPI_OPT_SYN_DATA: what went with the SYN was acknowledged.
const SYN_DATA: u8 = 32;

/// Where connections go, and how many have begun early there.
struct World<'a> {
    client: Stack,
    listener: Listener,
    begun: &'a dyn Fn() -> u64,
}

/// Two stacks of the program's own.
fn own(act: impl Fn(&World<'_>)) {
    let (a, b) = Tap::cable(1500).unwrap();
    let build = |tap, address, how| {
        Stack::builder().link(tap).address(address).tcp(move |tcp| tcp.fast_open = how).build().unwrap()
    };
    let (client, server) = (build(a, "10.0.0.1/24", Use::CLIENT), build(b, "10.0.0.2/24", Use::SERVER));
    let listener = Listener::bind(&server, SocketAddr::from(([10, 0, 0, 2], 0))).unwrap();
    let begun = || server.with(|inet| inet.tcp_stats().fast_open_begun);
    act(&World { client, listener, begun: &begun });
}

/// The kernel, in a namespace where net.ipv4.tcp_fastopen is `used`. Says what is lacking where it cannot be.
fn in_kernel(used: &str, act: impl Fn(&Stack) + Send + Sync) {
    let namespace = match Namespace::new() {
        Err(_) => return println!("lacking: a network namespace (root, CAP_SYS_ADMIN)"),
        Ok(namespace) => namespace,
    };
    let inside = || {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        if !up.is_ok_and(|status| status.success()) {
            return println!("lacking: ip(8)");
        }
        fs::write(SYSCTL, used).unwrap();
        match Stack::builder().transport(Transport::Kernel).build() {
            Ok(stack) => act(&stack),
            Err(BuildError::Uring(refused)) => println!("lacking: io_uring ({refused})"),
            Err(error) => panic!("{error}"),
        }
    };
    namespace.run(inside).unwrap();
}

/// TcpExtTCPFastOpenPassive of the thread's namespace.
fn passive() -> u64 {
    let all = fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = all.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(name, _)| *name == "TCPFastOpenPassive").unwrap().1.parse().unwrap()
}

fn kernel(act: impl Fn(&World<'_>) + Send + Sync) {
    in_kernel("3", |stack| {
        let listener = Listener::bind(stack, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        act(&World { client: stack.clone(), listener, begun: &passive });
    });
}

fn early(settings: &mut Settings) {
    settings.fast_open_connect = true;
}

/// Connects by some door, twice: the first time brings the cookie, the second one sends with its SYN.
fn second_is_early(world: &World<'_>, connect: impl Fn(SocketAddr) -> Stream) {
    world.listener.set(|settings| settings.fast_open_queue = Some(8)).unwrap();
    let to = world.listener.local_addr().unwrap();
    let first = connect(to);
    let accepted = world.listener.accept().unwrap();
    assert_eq!((first.peer_addr().unwrap(), (world.begun)()), (to, 0));
    drop((first, accepted));
    let second = connect(to);
    assert_eq!((world.begun)(), 0);
    assert_eq!(second.info().state, 2, "SYN-SENT");
    assert_eq!(second.send(b"hello").unwrap(), 5);
    let (server, _) = world.listener.accept().unwrap();
    let mut bytes = [0; 9];
    assert_eq!(server.recv(&mut bytes).unwrap(), 5);
    assert_eq!((&bytes[..5], (world.begun)()), (&b"hello"[..], 1));
    server.send(b"there").unwrap();
    second.set_nonblocking(false).unwrap();
    assert_eq!(second.recv(&mut bytes).unwrap(), 5);
    assert!(second.info().options & SYN_DATA != 0, "{:?}", second.info());
    // More than goes with a SYN, as the first send of all: what is left follows.
    let third = connect(to);
    let data: Vec<u8> = (0..100_000_u32).map(|n| (n >> 3) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            third.set_nonblocking(false).unwrap();
            (&third).write_all(&data).unwrap();
            third.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let (mut server, _) = world.listener.accept().unwrap();
        let mut back = Vec::new();
        std::io::Read::read_to_end(&mut server, &mut back).unwrap();
        assert!(back == data);
    });
    assert_eq!((world.begun)(), 2);
}

fn plain(world: &World<'_>) {
    second_is_early(world, |to| Stream::connect_with(&world.client, to, early).unwrap());
}

/// Waits until it is made, as poll(2) says.
fn nonblocking(world: &World<'_>) {
    second_is_early(world, |to| {
        let stream = Stream::connect_nonblocking_with(&world.client, to, early).unwrap();
        assert!(stream.nonblocking().unwrap());
        let mut fds = [rustix::event::PollFd::new(&stream, rustix::event::PollFlags::OUT)];
        rustix::event::poll(&mut fds, None).unwrap();
        assert!(stream.take_error().unwrap().is_none());
        stream
    });
}

fn by_mio(world: &World<'_>) {
    second_is_early(world, |to| {
        let mut stream = events::Stream::connect_with(&world.client, to, early).unwrap();
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
        poll.registry().register(&mut stream, Token(0), Interest::WRITABLE).unwrap();
        while events.is_empty() {
            poll.poll(&mut events, None).unwrap();
        }
        poll.registry().deregister(&mut stream).unwrap();
        assert!(stream.take_error().unwrap().is_none());
        stream.into_inner()
    });
}

fn by_tokio(world: &World<'_>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    second_is_early(world, |to| {
        runtime.block_on(async {
            let stream = tasks::Stream::connect_with(&world.client, to, early).await.unwrap();
            stream.into_inner()
        })
    });
}

/// Neither end asks for a cookie: the first connection is early, too.
fn without_cookie(world: &World<'_>) {
    let change = |settings: &mut Settings| {
        (settings.fast_open_queue, settings.fast_open_no_cookie) = (Some(8), true);
    };
    world.listener.set(change).unwrap();
    let to = world.listener.local_addr().unwrap();
    let client = Stream::connect_with(&world.client, to, |settings| {
        (settings.fast_open_connect, settings.fast_open_no_cookie) = (true, true);
    });
    let client = client.unwrap();
    assert_eq!(client.send(b"hello").unwrap(), 5);
    let (server, _) = world.listener.accept().unwrap();
    assert_eq!((server.recv(&mut [0; 9]).unwrap(), (world.begun)()), (5, 1));
}

macro_rules! over_both {
    ($($name:ident),*) => {
        mod over_own {
            $(#[test]
            fn $name() {
                super::own(super::$name);
            })*
        }
        mod over_kernel {
            $(#[test]
            fn $name() {
                onecopy_testing::alone!();
                super::kernel(super::$name);
            })*
        }
    };
}
over_both!(plain, nonblocking, by_mio, by_tokio, without_cookie);

#[test]
fn a_host_that_does_not_use_it_is_named() {
    alone!();
    in_kernel("0", |stack| {
        let listener = Listener::bind(stack, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let to = listener.local_addr().unwrap();
        let connect = Stream::connect_with(stack, to, early).unwrap_err();
        let listen = listener.set(|settings| settings.fast_open_queue = Some(8)).unwrap_err();
        for (error, option, bit) in
            [(connect, "fast_open_connect", "bit 1"), (listen, "fast_open_queue", "bit 2")]
        {
            assert_eq!((error.raw_os_error(), error.argument()), (95, Some(option)), "{error}");
            assert!(
                error.to_string().contains("net.ipv4.tcp_fastopen") && error.to_string().contains(bit),
                "{error}"
            );
        }
    });
}

#[test]
fn a_stack_that_does_not_use_it_says_so() {
    let (a, _b) = Tap::cable(1500).unwrap();
    let builder = Stack::builder().link(a).address("10.0.0.1/24");
    let stack = builder.tcp(|tcp| tcp.fast_open = Use::empty()).build().unwrap();
    let connect = Stream::connect_with(&stack, SocketAddr::from(([10, 0, 0, 2], 80)), early).unwrap_err();
    let listener = Listener::bind(&stack, SocketAddr::from(([10, 0, 0, 1], 0))).unwrap();
    let listen = listener.set(|settings| settings.fast_open_queue = Some(8)).unwrap_err();
    for error in [connect, listen] {
        assert_eq!(error.raw_os_error(), 95, "{error}");
        assert!(error.to_string().contains("Config::fast_open"), "{error}");
    }
}

/// The cookie is gone when the first send wants it: the connection is made without, and a device's bytes follow.
#[test]
fn bytes_of_a_device_wait_for_the_connection_that_they_begin() {
    alone!();
    kernel(|world| {
        let memory = DeviceMemory::opaque(4, DeviceId(3)).unwrap();
        memory.write_at(0, &[IoSlice::new(b"hello")]).unwrap();
        let binding = match world.client.bind_tx(&memory) {
            Ok(binding) => binding,
            Err(error) => return println!("lacking: device memory by io_uring ({error})"),
        };
        world.listener.set(|settings| settings.fast_open_queue = Some(8)).unwrap();
        let to = world.listener.local_addr().unwrap();
        let connect = || Stream::connect_with(&world.client, to, early).unwrap();
        let first = connect();
        drop((world.listener.accept().unwrap(), first));
        let second = connect();
        assert_eq!(second.info().state, 2, "SYN-SENT");
        assert!(Command::new("ip").args(["tcp_metrics", "flush"]).status().unwrap().success());
        let chain = binding.chain(&[TxRange { offset: 0, len: 5 }]).unwrap();
        assert_eq!(second.send_chain(chain).unwrap(), 5);
        let (server, _) = world.listener.accept().unwrap();
        server.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let mut bytes = [0; 9];
        assert_eq!((server.recv(&mut bytes).unwrap(), (world.begun)()), (5, 0));
        assert_eq!(&bytes[..5], b"hello");
    });
}
