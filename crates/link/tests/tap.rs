//! A real device, in a network namespace of the test's own: it needs root and /dev/net/tun, and says so where it has neither.

use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Fragment};
use onecopy_link::tap::{Tap, TapConfig, TapError};
use onecopy_link::{Link, Medium, Packet, Registered};
use onecopy_pool::{DeviceId, DeviceMemory, Page};
use onecopy_sys::netns::Namespace;
use rustix::io::Errno;
use std::process::Command;

fn namespace() -> Option<Namespace> {
    let namespace = match Namespace::new() {
        Err(Errno::PERM) => {
            println!("lacking: a network namespace (root, CAP_SYS_ADMIN)");
            return None;
        }
        namespace => namespace.unwrap(),
    };
    match namespace.run(|| Tap::open(TapConfig::new("probe"))).unwrap() {
        Err(error) if [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM].contains(&error.errno()) => {
            println!("lacking: a TAP ({error})");
            None
        }
        probe => {
            probe.unwrap();
            Some(namespace)
        }
    }
}

fn open(namespace: &Namespace, config: TapConfig) -> Result<Tap, TapError> {
    namespace.run(|| Tap::open(config)).unwrap()
}

fn ip(namespace: &Namespace, line: &str) {
    let run = || Command::new("ip").args(line.split(' ')).status().unwrap();
    assert!(namespace.run(run).unwrap().success(), "ip {line}");
}

#[test]
fn it_is_what_was_asked_for() {
    let Some(namespace) = namespace() else { return };
    let tap = open(&namespace, TapConfig::new("onecopy%d").mtu(9000)).unwrap();
    let has = tap.capabilities();
    assert_eq!((tap.name(), has.mtu, has.medium), ("onecopy0", 9000, Medium::Ethernet));
    assert!(has.checksum && has.tcp_segmentation && has.unreadable && has.super_segment == 65536);
    // The name is given once, and is free again when the last descriptor is closed.
    let next = open(&namespace, TapConfig::new("onecopy%d").checksum(false)).unwrap();
    let has = next.capabilities();
    assert_eq!((next.name(), has.mtu, has.super_segment), ("onecopy1", 1500, 0));
    assert!(!has.checksum && !has.tcp_segmentation && !has.udp_segmentation);
    drop(tap);
    let again = open(&namespace, TapConfig::new("onecopy0").medium(Medium::Ip).segmentation(false)).unwrap();
    let has = again.capabilities();
    assert!(has.medium == Medium::Ip && has.checksum && !has.tcp_segmentation);
}

#[test]
fn an_error_says_what_to_do() {
    let Some(namespace) = namespace() else { return };
    let _tap = open(&namespace, TapConfig::new("taken")).unwrap();
    let cases = [
        (TapConfig::new("taken"), Errno::BUSY, "end its program, or choose another name"),
        (TapConfig::new("lo"), Errno::INVAL, "choose another name"),
        (TapConfig::new("sixteen-letters-"), Errno::INVAL, "1 to 15 bytes"),
        (TapConfig::new("a/b"), Errno::INVAL, "no slash"),
        (TapConfig::new(""), Errno::INVAL, "1 to 15 bytes"),
        (TapConfig::new("long").mtu(65522), Errno::INVAL, "take one of 68 to 65521"),
        (TapConfig::new("short").mtu(67), Errno::INVAL, "take one of 68 to 65521"),
    ];
    for (config, errno, advice) in cases {
        let error = open(&namespace, config.clone()).unwrap_err();
        assert_eq!(error.errno(), errno, "{config:?}");
        assert!(error.to_string().contains(advice), "{config:?}: {error}");
        assert!(std::io::Error::from(error).to_string().contains(advice));
    }
    // Nobody in particular: the right to make one is root's.
    let nobody = || {
        rustix::thread::set_capabilities(None, no_capabilities()).unwrap();
        Tap::open(TapConfig::new("nobodys"))
    };
    let error = namespace.run(nobody).unwrap().unwrap_err();
    assert_eq!(error.errno(), Errno::PERM);
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}

fn no_capabilities() -> rustix::thread::CapabilitySets {
    let none = rustix::thread::CapabilitySet::empty();
    rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none }
}

#[test]
fn queues_share_a_device() {
    let Some(namespace) = namespace() else { return };
    let shared = TapConfig::new("shared").multi_queue(true);
    let first = open(&namespace, shared.clone().mtu(4000)).unwrap();
    let second = open(&namespace, shared.clone()).unwrap();
    assert_eq!((second.name(), second.capabilities()), ("shared", first.capabilities()));
    drop(first);
    // It is there as long as one of them is.
    assert_eq!(open(&namespace, shared.clone()).unwrap().capabilities().mtu, 4000);
    let error = open(&namespace, TapConfig::new("shared")).unwrap_err();
    assert_eq!(error.errno(), Errno::INVAL, "{error}");
    drop(second);
    assert_eq!(open(&namespace, shared).unwrap().capabilities().mtu, 1500);
}

/// Each flow comes back by the queue that its last packet left by.
#[test]
fn a_flow_comes_by_the_queue_that_it_left_by() {
    let Some(namespace) = namespace() else { return };
    if Command::new("ip").arg("-V").output().is_err() {
        return println!("lacking: ip (iproute2), to set the interface up with");
    }
    let config = TapConfig::new("onecopy%d").medium(Medium::Ip);
    let mut taps = namespace.run(|| Tap::open_queues(config, 4)).unwrap().unwrap();
    assert!(taps.iter().all(|tap| tap.name() == "onecopy0"));
    ip(&namespace, "addr add 10.77.0.1/24 dev onecopy0");
    ip(&namespace, "link set onecopy0 up");
    let socket = namespace.run(|| std::net::UdpSocket::bind("10.77.0.1:7000").unwrap()).unwrap();
    for port in 9000_u16..9032 {
        let at = usize::from(port) % taps.len();
        // IPv4 without an identity, UDP without a checksum, four bytes.
        let mut datagram = [
            0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0x26, 0x31, 10, 77, 0, 2, 10, 77, 0, 1, 0, 0, 27, 88, 0,
            12, 0, 0, 1, 2, 3, 4,
        ];
        datagram[20..22].copy_from_slice(&port.to_be_bytes());
        taps[at].transmit(0, Packet::new(&datagram, Segment::default()).unwrap());
        let mut buffer = [0; 16];
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((n, from.port()), (4, port));
        socket.send_to(&buffer[..n], from).unwrap();
        loop {
            assert!(onecopy_testing::readable(&taps[at]), "no answer there: {:?}", taps[at]);
            let packet = taps[at].receive(0).unwrap().to_vec().unwrap();
            if packet[9] == 17 && packet[22..24] == port.to_be_bytes() {
                break;
            }
        }
    }
}

#[test]
fn what_the_interface_does_is_counted() {
    let Some(namespace) = namespace() else { return };
    if Command::new("ip").arg("-V").output().is_err() {
        return println!("lacking: ip (iproute2), to set the interface up with");
    }
    let mut tap = open(&namespace, TapConfig::new("onecopy0").medium(Medium::Ip)).unwrap();
    // An echo, from who is on the link to the kernel: IPv4 and ICMP, both summed.
    let echo = [
        0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 1, 0x26, 0x45, 10, 77, 0, 2, 10, 77, 0, 1, 8, 0, 0xf7, 0xfe, 0, 0,
        0, 1,
    ];
    let packet = || Packet::new(&echo, Segment::default()).unwrap();
    assert!(tap.receive(0).is_none());
    tap.transmit(0, packet());
    assert_eq!((tap.stats().down, tap.stats().transmitted), (1, 0));
    ip(&namespace, "addr add 10.77.0.1/24 dev onecopy0");
    ip(&namespace, "link set onecopy0 up");
    // The kernel answers while it is written to.
    tap.transmit(0, packet());
    let answer = loop {
        assert!(onecopy_testing::readable(&tap), "no answer: {tap:?}");
        let packet = tap.receive(0).unwrap();
        if packet.head()[9] == 1 {
            break packet;
        }
    };
    assert_eq!((answer.head().len(), answer.len(), answer.head()[20]), (28, 28, 0));
    assert_eq!((tap.stats().transmitted, tap.room(0), tap.deadline()), (1, usize::MAX, None));
    ip(&namespace, "link del onecopy0");
    while tap.receive(0).is_some() {}
    tap.transmit(0, packet());
    assert!(tap.stats().gone > 0, "{tap:?}");
}

/// UDP to port 7000 of 10.77.0.1, without a checksum: its four bytes are those at `at` of a device's memory.
fn of_device(page: &Page, at: usize, head_before: &[u8]) -> Packet {
    let mut head = head_before.to_vec();
    head.extend([
        0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0x26, 0x31, 10, 77, 0, 2, 10, 77, 0, 1, 35, 40, 27, 88, 0, 12,
        0, 0,
    ]);
    Packet::new(&head, Chain::from(Fragment::new(page.clone(), at, 4).unwrap())).unwrap()
}

/// Memory that says where each word lies, its pages, and it registered; None, and said why, where it cannot be.
fn device() -> Option<(DeviceMemory, Vec<Page>, Registered)> {
    let memory = DeviceMemory::opaque(2, DeviceId(1)).unwrap();
    let words: Vec<u8> = (0..2048_u32).flat_map(u32::to_le_bytes).collect();
    memory.write_at(0, &[std::io::IoSlice::new(&words)]).unwrap();
    let pages = memory.alloc_all().unwrap();
    let registered = Registered::new(&memory)
        .inspect_err(|why| println!("lacking: registered buffers of io_uring ({why})"))
        .ok()?;
    Some((memory, pages, registered))
}

#[test]
fn a_device_s_packets_that_are_transmitted_at_once_leave_by_one_call() {
    let Some(namespace) = namespace() else { return };
    if Command::new("ip").arg("-V").output().is_err() {
        return println!("lacking: ip (iproute2), to set the interface up with");
    }
    let Some((_memory, pages, registered)) = device() else { return };
    let mut tap = open(&namespace, TapConfig::new("onecopy0").medium(Medium::Ip)).unwrap();
    tap.gather_from(registered);
    // While the interface is down each is dropped by itself.
    (0..3).for_each(|n| tap.transmit_more(0, of_device(&pages[0], 4 * n, &[])));
    tap.flush(0);
    assert_eq!((tap.stats().down, tap.stats().transmitted, tap.room(0)), (3, 0, usize::MAX));
    assert!(pages[0].is_unique());
    ip(&namespace, "addr add 10.77.0.1/24 dev onecopy0");
    ip(&namespace, "link set onecopy0 up");
    let socket = namespace.run(|| std::net::UdpSocket::bind("10.77.0.1:7000").unwrap()).unwrap();
    socket.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
    let before = tap.stats().gathers;
    (100..106).for_each(|n| tap.transmit_more(0, of_device(&pages[0], 4 * n, &[])));
    assert_eq!((tap.stats().transmitted, pages[0].is_unique()), (0, false), "more may follow");
    tap.flush(0);
    assert_eq!((tap.stats().gathers - before, tap.stats().transmitted), (1, 6));
    assert!(pages[0].is_unique());
    for n in 100..106_u32 {
        let mut buffer = [0; 16];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
        assert_eq!(buffer[..4], n.to_le_bytes());
    }
    assert_eq!(tap.stats().gathered_bytes, 24);
}

#[test]
fn on_a_cable_which_is_full_now_and_then_they_leave_one_by_one() {
    let Some((_memory, pages, registered)) = device() else { return };
    let (mut near, mut far) = Tap::cable(1500).unwrap();
    near.gather_from(registered);
    (0..6).for_each(|n| near.transmit_more(0, of_device(&pages[0], 4 * n, &[0; 14])));
    near.flush(0);
    assert_eq!((near.stats().gathers, near.stats().transmitted), (6, 6));
    for n in 0..6_u32 {
        assert_eq!(far.receive(0).unwrap().to_vec().unwrap()[42..], n.to_le_bytes());
    }
}
