//! A router in the middle that drops packets by chance.

use crate::programs::{Clients, Echo, kernel_client, kernel_echo};
use crate::world::{FAR, Setup, World, ours};
use std::net::{SocketAddr, TcpListener, TcpStream};

const LEN: u64 = 16 << 20;

/// 1 %, of either direction.
const RULE: &str = "numgen random mod 100 == 0";

/// Whole super-segments, and single packets.
fn setups() -> [Setup; 2] {
    let all = Setup::all(1500);
    [all, Setup { segmentation: false, ..all }]
}

#[test]
fn the_kernel_sends_through_loss_and_we_send_back() {
    for setup in setups() {
        let Some(mut world) = World::routed(setup, RULE) else { return };
        let mut echo = Echo::listen(&mut world.host, ours(7), 1);
        let client = world.kernel(|| kernel_client(TcpStream::connect(ours(7)).unwrap(), 1, LEN));
        world.run(&mut echo);
        look(world);
        client.join();
    }
}

#[test]
fn we_send_through_loss_and_the_kernel_sends_back() {
    for setup in setups() {
        let Some(mut world) = World::routed(setup, RULE) else { return };
        let at = SocketAddr::new(FAR.into(), 7);
        let listener = world.namespace.run(|| TcpListener::bind(at).unwrap()).unwrap();
        let server = world.kernel(|| kernel_echo(listener, 1));
        let mut clients = Clients::connect(&mut world.host, at, 1, LEN);
        world.run(&mut clients);
        look(world);
        server.join();
    }
}

fn look(world: World) {
    // (Super-segments are few, but not so few that none is hit.)
    let dropped = world.dropped();
    assert!(dropped > 0, "nothing was lost");
    world.finish();
}
