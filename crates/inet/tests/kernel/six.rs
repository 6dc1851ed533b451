//! IPv6, and datagrams in fragments.

use crate::http::Until;
use crate::programs::{Clients, Echo, kernel_client, kernel_echo, pattern};
use crate::world::{FAR, FAR6, Host, KERNEL, KERNEL6, Kernel, OURS, OURS6, Program, Setup, World, tool};
use onecopy_chain::Writer;
use onecopy_inet::stack::Event;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::udp::{Envelope, Error};
use onecopy_link::Medium;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

const LEN: u64 = 16 << 20;

fn setups() -> [Setup; 4] {
    let all = Setup::all(1500).six();
    let none = Setup { segmentation: false, checksum: false, ..all };
    [all, none, Setup { mtu: 9000, ..all }, Setup { medium: Medium::Ip, ..all }]
}

#[test]
fn the_kernel_connects_over_ipv6() {
    for setup in setups() {
        let Some(mut world) = World::new(setup) else { return };
        let at = SocketAddr::new(OURS6.into(), 7);
        let mut echo = Echo::listen(&mut world.host, at, 1);
        let client = world.kernel(move || kernel_client(TcpStream::connect(at).unwrap(), 1, LEN));
        world.run(&mut echo);
        let stats = world.finish();
        client.join();
        assert_eq!((stats.cut, stats.finished), (0, 0), "{stats:?}");
        assert_eq!(stats.transmitted_trains > 0, setup.segmentation, "{stats:?}");
    }
}

#[test]
fn we_connect_over_ipv6() {
    for setup in setups() {
        let Some(mut world) = World::new(setup) else { return };
        let at = SocketAddr::new(KERNEL6.into(), 7);
        let listener = world.namespace.run(|| TcpListener::bind(at).unwrap()).unwrap();
        let server = world.kernel(|| kernel_echo(listener, 1));
        let mut clients = Clients::connect(&mut world.host, at, 1, LEN);
        world.run(&mut clients);
        let stats = world.finish();
        server.join();
        assert_eq!((stats.cut, stats.finished), (0, 0), "{stats:?}");
        assert_eq!(stats.received_trains > 0, setup.segmentation, "{stats:?}");
    }
}

#[test]
fn ping_is_answered_whole_and_in_fragments() {
    for medium in [Medium::Ethernet, Medium::Ip] {
        let Some(mut world) = World::new(Setup { medium, ..Setup::all(1500).six() }) else { return };
        if !tool(&world.namespace, "ping -V") {
            return println!("lacking: ping");
        }
        let namespace = world.namespace.clone();
        let pings = world.kernel(move || {
            for to in [IpAddr::from(OURS), OURS6.into()] {
                for len in [0, 56, 1400, 8000, 60_000] {
                    let line = format!("ping -c 1 -W 20 -s {len} {to}");
                    assert!(tool(&namespace, &line), "{line}");
                }
            }
            // The address that we have on the link alone.
            if medium == Medium::Ethernet {
                assert!(tool(&namespace, "ping -c 1 -W 20 fe80::ff:fe00:2%onecopy0"));
            }
        });
        world.run(&mut Until(Some(pings)));
        let stats = world.host.stack.interface().stats();
        assert_eq!(stats.echoes, if medium == Medium::Ethernet { 11 } else { 10 });
        assert_eq!((stats.reassembled, stats.fragmented), (4, 4));
        world.finish();
    }
}

/// Sends back what comes, in fragments.
struct Back {
    socket: Id,
    client: Option<Kernel<()>>,
}

impl Program for Back {
    fn turn(&mut self, host: &mut Host, _: &[Event]) -> bool {
        loop {
            match host.stack.udp_receive(self.socket) {
                Ok(mut got) => {
                    let back = Envelope::to(got.from);
                    let sent = host.stack.udp_send(host.now, self.socket, &mut got.data, &back);
                    assert!(sent.is_ok(), "{sent:?}");
                }
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("receiving: {error}"),
            }
        }
        Kernel::take(&mut self.client).is_some()
    }
}

#[test]
fn datagrams_go_and_come_in_fragments() {
    for setup in setups() {
        for (theirs, ours) in [(IpAddr::from(KERNEL), IpAddr::from(OURS)), (KERNEL6.into(), OURS6.into())] {
            let Some(mut world) = World::new(setup) else { return };
            let socket = world.host.stack.udp_open().unwrap();
            let at = SocketAddr::new(ours, 7);
            world.host.stack.udp_bind(socket, at, false).unwrap();
            world.host.stack.udp_set(socket, |settings| settings.dont_fragment = false).unwrap();
            let client = world.kernel(move || {
                let socket = UdpSocket::bind((theirs, 0)).unwrap();
                socket.connect(at).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                for len in [1000, 9100, 30_000, 65_507] {
                    let bytes = pattern(1, 0, len);
                    assert_eq!(socket.send(bytes).unwrap(), bytes.len());
                    let mut back = vec![0; 70_000];
                    let n = socket.recv(&mut back).unwrap();
                    assert!(back[..n] == *bytes, "{n} bytes of {len} came back");
                }
            });
            world.run(&mut Back { socket, client: Some(client) });
            let stats = world.host.stack.interface().stats();
            assert_eq!((stats.reassembled, stats.fragmented), (3, 3), "{stats:?}");
            world.host.stack.udp_close(socket);
            world.finish();
        }
    }
}

#[test]
fn the_kernel_says_that_nobody_has_the_port() {
    let Some(mut world) = World::new(Setup::all(1500).six()) else { return };
    struct Refused(Id);
    impl Program for Refused {
        fn turn(&mut self, host: &mut Host, _: &[Event]) -> bool {
            host.stack.udp_take_error(self.0).inspect(|error| assert_eq!(*error, Error::Refused)).is_some()
        }
    }
    let host = &mut world.host;
    let socket = host.stack.udp_open().unwrap();
    host.stack.udp_connect(socket, SocketAddr::new(KERNEL6.into(), 9)).unwrap();
    host.stack.udp_send_bytes(0, socket, b"who?", &Writer::new(&host.pool), &Envelope::CONNECTED).unwrap();
    world.run(&mut Refused(socket));
    world.host.stack.udp_close(socket);
    world.finish();
}

#[test]
fn a_router_says_what_the_way_takes() {
    for far in [IpAddr::from(FAR), FAR6.into()] {
        let Some(mut world) = World::narrow(Setup::all(1500), 1300) else { return };
        let at = SocketAddr::new(far, 7);
        let listener = world.namespace.run(|| TcpListener::bind(at).unwrap()).unwrap();
        let server = world.kernel(|| kernel_echo(listener, 1));
        let mut clients = Clients::connect(&mut world.host, at, 1, 4 << 20);
        world.run(&mut clients);
        server.join();
        let known = |host: &Host| host.stack.interface().mtu_to(host.now, far);
        assert_eq!(known(&world.host), 1300, "{far}");
        // Datagrams that are cut fit at once, of any socket.
        let socket = world.host.stack.udp_open().unwrap();
        world.host.stack.udp_set(socket, |settings| settings.dont_fragment = false).unwrap();
        let receiver = world.namespace.run(|| UdpSocket::bind(at).unwrap()).unwrap();
        let received = world.kernel(move || {
            receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut bytes = vec![0; 10_000];
            assert_eq!(receiver.recv(&mut bytes).unwrap(), 8000);
        });
        let host = &mut world.host;
        let writer = Writer::new(&host.pool);
        host.stack.udp_send_bytes(host.now, socket, pattern(1, 0, 8000), &writer, &Envelope::to(at)).unwrap();
        world.run(&mut Until(Some(received)));
        world.host.stack.udp_close(socket);
        world.finish();
    }
}
