//! What a receive gives.

use crate::world::{World, errno, pattern, server};
use onecopy_net::RecvFlags;
use onecopy_net::devmem::Piece;
use onecopy_net::tcp::{Listener, Stream};

#[test]
fn payload_lies_in_the_memory_and_no_call_of_this_process_copied_it() {
    let world = World::new(1024);
    let binding = world.bind();
    let (sender, receiver) = world.connect();
    let data = pattern(1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(sender.send(&data).unwrap(), data.len());
            sender.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        loop {
            let frags = receiver.recv_frags(100_000).unwrap();
            if frags.is_empty() {
                break;
            }
            assert!(frags.linear().is_none(), "all of it was split");
            assert!(frags.device().iter().all(|frag| frag.binding == binding.id() && frag.token > 0));
            got.extend(world.bytes(&frags));
        }
        assert!(got == data);
    });
    let stats = receiver.stats();
    assert_eq!((stats.user_copied_out, stats.received, stats.referenced), (0, 1 << 20, 1 << 20));
    let queue = world.far.queue_stats(1).unwrap();
    // Through the cable to a page of the host's, and from there to the device, but for what landed there at once.
    assert!((1 << 20..=2 << 20).contains(&stats.kernel_copied), "{stats:?}");
    assert!(stats.kernel_copied + queue.landed_bytes >= 2 << 20, "{stats:?} {queue:?}");
    // What was sent again, where a machine is busy, came twice.
    assert!(queue.placed_bytes >= 1 << 20, "{queue:?}");
    assert_eq!((queue.unsplit, queue.starved, queue.failed), (0, 0, 0));
    assert_eq!(receiver.tokens_held(), 0);
    assert!(world.all_home());
}

#[test]
fn a_receive_into_a_buffer_is_efault_and_loses_nothing() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (sender, receiver) = world.connect();
        sender.send(b"hello, device").unwrap();
        let mut buffer = [0; 64];
        for flags in [RecvFlags::empty(), RecvFlags::PEEK, RecvFlags::WAITALL] {
            assert_eq!(errno(receiver.recv_with_flags(&mut buffer, flags)), 14, "{flags:?}");
        }
        let frags = receiver.recv_frags(64).unwrap();
        assert_eq!(world.bytes(&frags), b"hello, device");
        assert_eq!(receiver.stats().received, 13);
    }
}

#[test]
fn what_was_only_looked_at_has_no_token_and_what_was_thrown_away_neither() {
    let world = World::new(64);
    let _binding = world.bind();
    let (sender, receiver) = world.connect();
    sender.send(b"first, second, third").unwrap();
    let with = |n, most, flags| receiver.recv_frags_with_flags(n, most, flags);
    for _ in 0..2 {
        let seen = with(7, usize::MAX, RecvFlags::PEEK).unwrap();
        assert_eq!(world.bytes(&seen), b"first, ");
        assert!(seen.device().iter().all(|frag| frag.token == 0));
    }
    assert_eq!(receiver.tokens_held(), 0);
    let thrown = with(7, usize::MAX, RecvFlags::TRUNC).unwrap();
    assert_eq!((thrown.len(), thrown.pieces().count()), (7, 0));
    assert_eq!(receiver.tokens_held(), 0);
    // No room for a fragment: nothing is taken.
    assert_eq!(errno(with(8, 0, RecvFlags::empty())), 525);
    let frags = with(8, 1, RecvFlags::empty()).unwrap();
    assert_eq!((world.bytes(&frags), frags.device().len()), (b"second, ".to_vec(), 1));
    assert_eq!(
        errno(with(0, 1, RecvFlags::DONTWAIT).and_then(|_| receiver.recv_frags(5)).and_then(|rest| {
            assert_eq!(world.bytes(&rest), b"third");
            with(5, 1, RecvFlags::DONTWAIT)
        })),
        11
    );
}

#[test]
fn no_more_pieces_than_there_is_room_for() {
    let world = World::new(64);
    let _binding = world.bind();
    let (sender, receiver) = world.connect();
    let data = pattern(20_000);
    sender.send(&data).unwrap();
    let mut got = Vec::new();
    while got.len() < data.len() {
        let seen = receiver.recv_frags_with_flags(data.len(), 1, RecvFlags::PEEK).unwrap();
        let frags = receiver.recv_frags_with_flags(data.len(), 1, RecvFlags::empty()).unwrap();
        assert_eq!((frags.device().len(), seen.device().len()), (1, 1));
        got.extend(world.bytes(&frags));
    }
    assert!(got == data);
}

#[test]
fn one_call_never_mixes_memories() {
    let world = World::new(64);
    let binding = world.bind();
    let (sender, receiver) = world.connect();
    let wait_for = |bytes: usize| {
        while receiver.readable_bytes().unwrap() < bytes {
            world.far.drive(std::time::Duration::from_millis(1)).unwrap();
        }
    };
    sender.send(b"device").unwrap();
    wait_for(6);
    drop(binding);
    sender.send(b"host").unwrap();
    wait_for(10);
    let again = world.bind();
    sender.send(b"again").unwrap();
    wait_for(15);
    let first = receiver.recv_frags(100).unwrap();
    assert_eq!((world.bytes(&first), first.linear().is_some()), (b"device".to_vec(), false));
    let second = receiver.recv_frags(100).unwrap();
    assert_eq!((world.bytes(&second), second.device().len()), (b"host".to_vec(), 0));
    assert!(matches!(second.pieces().next(), Some(Piece::Linear(_))));
    // A receive into a buffer takes what it can, and stops short of the rest.
    sender.send(b"!").unwrap();
    wait_for(6);
    let third = receiver.recv_frags(100).unwrap();
    assert_eq!(world.bytes(&third), b"again!");
    assert_eq!(third.device()[0].binding, again.id());
    // (The same memory was bound again: what lies in it is the last binding's.)
    assert_eq!((first.device()[0].binding, again.id()), (2, 2));
}

#[test]
fn other_flows_and_other_protocols_stay_in_host_memory() {
    let world = World::new(64);
    let _binding = world.bind();
    let other = Listener::bind(&world.far, "10.0.0.2:81".parse().unwrap()).unwrap();
    let sender = Stream::connect(&world.near, other.local_addr().unwrap()).unwrap();
    let (receiver, _) = other.accept().unwrap();
    sender.send(b"ordinary").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 8);
    sender.send(b"ordinary").unwrap();
    let frags = receiver.recv_frags(64).unwrap();
    assert_eq!(world.bytes(&frags), b"ordinary");
    assert!(frags.linear().is_some());
    assert_eq!(world.far.queue_stats(1).unwrap().packets, 0);
    // A steered flow back is the sender's own: nothing is bound there.
    let (sender, receiver) = world.connect();
    receiver.send(b"answer").unwrap();
    assert_eq!(sender.recv(&mut buffer).unwrap(), 6);
    // The rule gone, the same connection's next bytes are ordinary.
    assert!(world.far.unsteer(server()));
    sender.send(b"host").unwrap();
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 4);
}
