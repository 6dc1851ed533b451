//! What several shards cannot do, what they share out, and who floods them.

use crate::world::{Spread, World, any, at, counter, until, world, world_with};
use onecopy_link::Tap;
use onecopy_net::udp::Socket;
use onecopy_net::{BuildError, Driver, Stack, Transport};
use onecopy_pool::{DeviceId, DeviceMemory};
use std::time::Duration;

const NOTSUPP: i32 = 95;

fn refused(builder: onecopy_net::Builder) -> String {
    match builder.address("10.0.0.1/24").build().unwrap_err() {
        BuildError::Shards(why) => why.to_owned(),
        error => panic!("{error}"),
    }
}

fn cables(count: usize, mtu: u32) -> Vec<Tap> {
    (0..count).map(|_| Tap::cable(mtu).unwrap().0).collect()
}

#[test]
fn shards_that_cannot_be() {
    let builder = Stack::builder;
    assert!(refused(builder().links(cables(1, 1500)).shards(2)).contains("Builder::links"));
    assert!(refused(builder().links(cables(2, 1500)).shards(3)).contains("Builder::links"));
    assert!(refused(builder().tap("none").shards(0)).contains("one shard at least"));
    assert!(refused(builder().links(cables(2, 1500)).driver(Driver::Caller)).contains("Driver::Thread"));
    let unlike = cables(1, 1500).into_iter().chain(cables(1, 4000));
    assert!(refused(builder().links(unlike)).contains("one kind and MTU"));
    let none = builder().links(Vec::<Tap>::new()).address("10.0.0.1/24").build();
    assert!(matches!(none, Err(BuildError::NoLink)));
    // One is as none said.
    let one = builder().links(cables(1, 1500)).shards(1).address("10.0.0.1/24").driver(Driver::Caller);
    assert_eq!(one.linger(Duration::ZERO).build().unwrap().shards(), 1);
}

#[test]
fn the_kernel_has_none() {
    match Stack::builder().transport(Transport::Kernel).shards(4).build() {
        Ok(stack) => assert_eq!(stack.shards(), 0),
        Err(BuildError::Uring(refused)) => eprintln!("skipped: {refused}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_one_shard_alone_can() {
    let World { sharded, .. } = &world(2, Spread::Flow);
    assert_eq!((sharded.shards(), sharded.is_up(), sharded.mtu()), (2, true, 1500));
    let memory = DeviceMemory::opaque(256, DeviceId(0)).unwrap();
    let errors = [
        sharded.bind_rx(&memory, &[0]).map(drop).unwrap_err(),
        sharded.bind_tx(&memory).map(drop).unwrap_err(),
        sharded.set_queues(2).unwrap_err(),
        sharded.drive(Duration::ZERO).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.raw_os_error(), NOTSUPP, "{error}");
        assert!(error.to_string().contains("Builder::shards"), "{error}");
    }
    assert_eq!(sharded.poll_fd().unwrap_err().raw_os_error(), NOTSUPP);
    // Nothing of the memory was taken.
    let (end, _other) = Tap::cable(1500).unwrap();
    let one = Stack::builder().link(end).address("10.0.0.1/24").build().unwrap();
    let _bound = one.bind_tx(&memory).unwrap();
}

#[test]
fn what_bounds_all_is_shared_out() {
    let World { sharded, .. } = &world_with(4, Spread::Flow, |builder| {
        builder.tcp(|tcp| {
            (tcp.memory, tcp.max_orphans, tcp.max_syn_backlog, tcp.max_time_wait) =
                ([4 << 20, 8 << 20, 16 << 20], 400, 40, 4000);
        })
    });
    for shard in 0..4 {
        sharded.with_shard(shard, |inet| {
            let tcp = inet.tcp_config();
            assert_eq!(tcp.memory, [1 << 20, 2 << 20, 4 << 20]);
            assert_eq!((tcp.max_orphans, tcp.max_syn_backlog, tcp.max_time_wait), (100, 10, 1000));
        });
    }
}

/// Whoever sends by the queues of others while a shard is kept from working fills its inbox, and no more.
#[test]
fn an_inbox_is_bounded_and_counted() {
    let World { sharded, peer, .. } = &world(2, Spread::Flow);
    let receiver = Socket::bind(sharded, any(7000)).unwrap();
    let owner = sharded.with(|inet| inet.interface().share().unwrap().of_port(7000)) as u32;
    let sender = Socket::bind(peer, any(0)).unwrap();
    sender.send_to(b"first", at(1, 7000)).unwrap();
    assert_eq!(receiver.recv(&mut [0; 16]).unwrap(), 5);
    sharded.with_shard(owner, |_| {
        // Nobody takes anything out meanwhile. Of these, some come by the other one's queue.
        let others: Vec<Socket> = (0..16).map(|_| Socket::bind(peer, any(0)).unwrap()).collect();
        until("the other shard receives nothing", || {
            for _ in 0..64 {
                others.iter().for_each(|other| assert_eq!(other.send_to(b"flood", at(1, 7000)), Ok(5)));
            }
            sharded.with_shard(1 - owner, |inet| inet.interface().stats().received) > 2000
        });
    });
    until("nothing was dropped", || counter(sharded, "handed_over_dropped") > 0);
    // It works as before: what is kept is received, and so is what comes then.
    receiver.set_nonblocking(true).unwrap();
    while receiver.recv(&mut [0; 16]).is_ok() {}
    until("nothing comes any more", || {
        sender.send_to(b"behind", at(1, 7000)).unwrap();
        receiver.recv(&mut [0; 16]) == Ok(6)
    });
}
