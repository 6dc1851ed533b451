//! One stream each way at the same time, and back again.

use crate::programs::{Clients, Echo, kernel_client, kernel_echo};
use crate::world::{KERNEL, Setup, World, ours};
use onecopy_link::Medium;
use onecopy_link::tap::Stats;
use std::net::{SocketAddr, TcpListener, TcpStream};

const LEN: u64 = 16 << 20;

/// The kernel's client, our server.
fn served(setup: Setup) {
    let Some(mut world) = World::new(setup) else { return };
    let mut echo = Echo::listen(&mut world.host, ours(7), 1);
    let client = world.kernel(|| kernel_client(TcpStream::connect(ours(7)).unwrap(), 1, LEN));
    world.run(&mut echo);
    let stats = world.finish();
    client.join();
    look(setup, stats);
}

/// Our client, the kernel's server.
fn connected(setup: Setup) {
    let Some(mut world) = World::new(setup) else { return };
    let at = SocketAddr::new(KERNEL.into(), 7);
    let listener = world.namespace.run(|| TcpListener::bind(at).unwrap()).unwrap();
    let server = world.kernel(|| kernel_echo(listener, 1));
    let mut clients = Clients::connect(&mut world.host, at, 1, LEN);
    world.run(&mut clients);
    let stats = world.finish();
    server.join();
    look(setup, stats);
}

/// Looks that nothing was done here that was agreed on, and that super-segments went over whole, or none at all.
fn look(setup: Setup, stats: Stats) {
    assert!(stats.received_bytes > LEN && stats.transmitted_bytes > LEN, "{stats:?}");
    assert_eq!((stats.cut, stats.finished), (0, 0), "{stats:?}");
    let trains = (stats.received_trains, stats.transmitted_trains);
    if !setup.segmentation {
        assert_eq!(trains, (0, 0), "{stats:?}");
    } else if setup.mtu < 32_768 {
        let whole = LEN / u64::from(setup.mtu);
        assert!(stats.received < whole && stats.transmitted < whole, "{stats:?}");
    }
}

#[test]
fn the_kernel_connects_with_all_offloads() {
    for mtu in [1500, 9000, 65521] {
        served(Setup::all(mtu));
    }
}

#[test]
fn the_kernel_connects_without_offloads() {
    for mtu in [1500, 9000, 65521] {
        for checksum in [false, true] {
            served(Setup { segmentation: false, checksum, ..Setup::all(mtu) });
        }
    }
}

#[test]
fn we_connect_with_all_offloads() {
    for mtu in [1500, 9000, 65521] {
        connected(Setup::all(mtu));
    }
}

#[test]
fn we_connect_without_offloads() {
    for mtu in [1500, 9000, 65521] {
        for checksum in [false, true] {
            connected(Setup { segmentation: false, checksum, ..Setup::all(mtu) });
        }
    }
}

#[test]
fn without_ethernet() {
    for segmentation in [true, false] {
        let setup = Setup { medium: Medium::Ip, segmentation, ..Setup::all(1500) };
        served(setup);
        connected(setup);
    }
}
