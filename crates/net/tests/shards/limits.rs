//! What several shards cannot do, what they share out, and who floods them.

use crate::world::{Spread, World, any, at, counter, until, world, world_with};
use onecopy_inet::stack::ports::Ports;
use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::udp::Socket;
use onecopy_net::{BuildError, Driver, Op, Stack, Transport};
use onecopy_pool::{DeviceId, DeviceMemory};
use std::io::ErrorKind;
use std::net::SocketAddr;
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
fn the_kernel_has_one_where_none_is_said() {
    match Stack::builder().transport(Transport::Kernel).build() {
        Ok(stack) => assert_eq!(stack.shards(), 1),
        Err(BuildError::Uring(refused)) => println!("lacking: io_uring ({refused})"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_one_shard_alone_can() {
    let World { sharded, .. } = &world(2, Spread::Flow);
    assert_eq!((sharded.shards(), sharded.is_up(), sharded.mtu()), (2, true, 1500));
    let names = |counters: Vec<(_, _)>| counters.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(sharded.shard_counters(1).unwrap()), names(sharded.link_counters()));
    assert!(sharded.shard_counters(2).is_none());
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
    let refused = sharded.device_refusals();
    assert_eq!((refused.rx_unsupported, refused.tx_unsupported), (1, 1));
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

/// Leaves a shard no port of TCP to choose from.
fn fill_tcp(stack: &Stack, shard: u32) {
    stack.with_shard(shard, |inet| {
        for port in Ports::RANGE {
            let id = inet.tcp_open().unwrap();
            inet.tcp_bind(id, any(port), false).unwrap();
        }
    });
}

#[test]
fn who_has_no_port_left_to_connect_from_has_another_shard_do_it() {
    let World { sharded, peer, .. } = &world(3, Spread::Flow);
    let listener = Listener::bind(peer, any(80)).unwrap();
    let connect = || {
        let stream = Stream::connect(sharded, at(2, 80))?;
        let from = Stream::connect_from(sharded, at(1, 0), at(2, 80))?;
        for stream in [stream, from] {
            stream.send(b"x").unwrap();
            let (server, _) = listener.accept().unwrap();
            assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
        }
        Ok::<(), onecopy_net::Error>(())
    };
    fill_tcp(sharded, 0);
    fill_tcp(sharded, 1);
    for _ in 0..3 {
        connect().unwrap();
    }
    let made = (0..3).map(|shard| sharded.with_shard(shard, |inet| inet.tcp_stats().active_opens));
    assert_eq!(made.collect::<Vec<u64>>(), [0, 0, 6]);
    // Until nobody has any. (What the last one chose, it has.)
    sharded.with_shard(2, |inet| {
        for port in Ports::RANGE {
            let id = inet.tcp_open().unwrap();
            if inet.tcp_bind(id, any(port), false).is_err() {
                inet.tcp_close(0, id);
            }
        }
    });
    let error = connect().unwrap_err();
    assert_eq!((error.op(), error.kind()), (Op::Connect, ErrorKind::AddrNotAvailable));
    assert!(error.to_string().contains("no port is left for that peer"), "{error}");
}

/// Leaves a shard no port of UDP to choose from.
fn fill_udp(stack: &Stack, shard: u32) {
    stack.with_shard(shard, |inet| {
        inet.udp_config_mut().sockets = 1 << 16;
        for port in Ports::RANGE {
            for address in [any(port), SocketAddr::new([0_u16; 8].into(), port)] {
                let id = inet.udp_open().unwrap();
                if inet.udp_bind(id, address, false).is_err() {
                    inet.udp_close(id);
                }
            }
        }
    });
}

#[test]
fn who_has_no_port_left_for_datagrams_has_another_shard_do_it() {
    let World { sharded, .. } = &world(3, Spread::Flow);
    fill_udp(sharded, 0);
    fill_udp(sharded, 1);
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(Socket::bind(sharded, any(0)).unwrap());
        let connected = Socket::unbound(sharded).unwrap();
        connected.connect(at(2, 9)).unwrap();
        sockets.push(connected);
    }
    let share = sharded.with(|inet| *inet.interface().share().unwrap());
    for socket in &sockets {
        assert_eq!(share.of_port(socket.local_addr().unwrap().port()), 2);
    }
    // Until nobody has any.
    fill_udp(sharded, 2);
    let error = Socket::bind(sharded, any(0)).unwrap_err();
    assert_eq!((error.op(), error.kind()), (Op::Bind, ErrorKind::AddrInUse));
    assert!(error.to_string().contains("no port is left"), "{error}");
    let error = Socket::unbound(sharded).unwrap().connect(at(2, 9)).unwrap_err();
    assert_eq!((error.op(), error.kind()), (Op::Connect, ErrorKind::AddrNotAvailable));
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
