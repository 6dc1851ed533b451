//! When a buffer that was sent without a copy is its owner's again: once, not before the peer has the bytes, and not before the link has
//! let go of every packet that has some of them; and what is said of how they left.

use crate::hands::{Bytes, Hands, MS, SECOND, packets, supers};
use crate::net::{B, Net};
use onecopy_chain::notify::{Config, Context, Fate, Segment};
use onecopy_chain::{Chain, Fragment, Writer};
use onecopy_inet::tcp::{Error, Received, SendFlags, Side};
use onecopy_link::pair::{self, Path};
use onecopy_link::{Capabilities, Packet};
use std::net::SocketAddrV4;
use std::time::Duration;

#[test]
fn a_send_is_told_of_by_the_ack_and_not_before() {
    for of in [packets(), supers()] {
        let mut hands = Hands::new(of, 1);
        hands.send(4000);
        for (packet, _) in hands.leave() {
            hands.deliver(&packet);
            packet.free(Fate::Sent);
        }
        assert_eq!(hands.told(), [], "they have left and come, and nobody has said so");
        hands.answer();
        hands.wait();
        hands.answer();
        assert_eq!(hands.told(), [(0, false, false)]);
        hands.over();
    }
}

#[test]
fn an_ack_in_the_middle_of_a_send_tells_only_of_those_before() {
    let mut hands = Hands::new(packets(), 1);
    hands.send(700);
    hands.send(700);
    hands.send(3000);
    let mut left = hands.leave();
    // Those of two segments, and nobody tells of the third send, a part of which is there.
    let rest = left.split_off(3);
    for (packet, _) in left {
        hands.deliver(&packet);
    }
    hands.answer();
    assert!((1401..4400).contains(&hands.acked), "{}", hands.acked);
    assert_eq!(hands.told(), [(0, false, false), (1, false, false)]);
    for (packet, _) in rest {
        hands.deliver(&packet);
    }
    hands.answer();
    hands.wait();
    hands.answer();
    assert_eq!(hands.told(), [(2, false, false)]);
    hands.over();
}

#[test]
fn copied_bytes_between_lent_ones_move_nobodys_completion() {
    // Copied, lent, copied, lent; the ACK comes between, and the rest is sent again.
    let mut hands = Hands::new(packets(), 1);
    hands.copied(1000);
    hands.send(1000);
    hands.copied(1000);
    hands.send(1000);
    let left = hands.leave();
    // The first 2000 bytes come, and no more.
    for (packet, bytes) in left {
        if bytes.end <= 2000 {
            hands.deliver(&packet);
        }
    }
    hands.answer();
    assert_eq!((hands.acked, hands.told()), (2000, vec![(0, false, false)]));
    // A timeout: what lies behind is sent again, a part of a chain.
    for _ in 0..10 {
        hands.wait();
        for (packet, bytes) in hands.leave() {
            assert!(bytes.start >= 2000);
            hands.deliver(&packet);
        }
        hands.answer();
    }
    assert_eq!((hands.acked, hands.told()), (4000, vec![(1, false, false)]));
    hands.over();
}

#[test]
fn what_the_link_still_holds_is_not_the_owners() {
    let mut hands = Hands::new(packets(), 1);
    hands.send(1000);
    let mut held: Vec<_> = hands.leave().into_iter().map(|(packet, _)| packet).collect();
    // Nobody answers: the tail is probed, then sent again by a timeout. The link is slow, and holds all of them.
    for _ in 0..2 {
        let again: Vec<_> = hands.wait_to_leave().into_iter().map(|(packet, _)| packet).collect();
        assert_eq!(again.len(), 1);
        held.extend(again);
    }
    hands.deliver(&held[1].share());
    hands.answer();
    hands.wait();
    hands.answer();
    assert_eq!((hands.acked, hands.told()), (1000, vec![]), "the peer has it, and three packets hold it");
    held.remove(1).free(Fate::Sent);
    held.remove(0).free(Fate::Sent);
    assert_eq!(hands.told(), []);
    held.remove(0).free(Fate::Sent);
    assert_eq!(hands.told(), [(0, false, false)]);
    hands.over();
}

#[test]
fn copied_is_said_of_just_those_that_a_link_has_copied() {
    let mut hands = Hands::new(supers(), 1);
    // Three stand in one super-segment, the second half of which comes to be cut off and copied.
    let now = hands.net.now();
    hands.net.a.stack.tcp_set(now, hands.a, |settings| settings.cork = true).unwrap();
    for len in [1000, 1000, 1000, 1896] {
        hands.zerocopy(len, SendFlags::MORE).1.unwrap();
    }
    hands.net.a.stack.tcp_set(now, hands.a, |settings| settings.cork = false).unwrap();
    let mut parts = Vec::new();
    for (packet, _) in hands.leave() {
        hands.deliver(&packet);
        packet.cut(|part| parts.push(part)).unwrap();
    }
    let ends: Vec<_> = parts.iter().map(|part| part.payload().payload().len()).collect();
    assert_eq!(ends.iter().sum::<usize>(), 4896);
    // The second packet has bytes 1448 to 2896: of the second and the third send.
    assert_eq!(ends[..2], [1448, 1448]);
    for (number, part) in parts.into_iter().enumerate() {
        part.free(if number == 1 { Fate::Copied } else { Fate::Sent });
    }
    hands.answer();
    hands.wait();
    hands.answer();
    let told = hands.told();
    assert_eq!(told, [(0, false, false), (1, true, false), (2, true, false), (3, false, false)]);
    // Sent again by another way: once copied is copied.
    hands.send(500);
    hands.send(500);
    for (packet, bytes) in hands.leave() {
        packet.free(if bytes.start < 4896 + 500 { Fate::Sent } else { Fate::Copied });
    }
    while hands.acked < 4896 + 1000 {
        for (packet, _) in hands.wait_to_leave() {
            hands.deliver(&packet);
            packet.free(Fate::Sent);
        }
        hands.answer();
    }
    assert_eq!(hands.told(), [(4, false, false), (5, true, false)]);
    hands.over();
}

#[test]
fn a_send_of_which_a_part_was_taken_is_told_of_once_for_both() {
    let mut hands = Hands::new(packets(), 1);
    let now = hands.net.now();
    hands.net.a.stack.tcp_set(now, hands.a, |settings| settings.send_buffer = Some(4096)).unwrap();
    let (_, sent, rest) = hands.zerocopy(64 << 10, SendFlags::empty());
    let taken = sent.unwrap();
    assert!(taken < 64 << 10 && rest.payload().len() == (64 << 10) - taken);
    let (_, full, whole) = hands.zerocopy(1000, SendFlags::empty());
    assert_eq!((full, whole.payload().len()), (Err(Error::WouldBlock), 1000));
    for _ in 0..10 {
        for (packet, _) in hands.leave() {
            hands.deliver(&packet);
        }
        hands.answer();
        hands.pass_time(50 * MS);
    }
    assert_eq!((hands.acked, hands.told()), (taken as u64, vec![]), "the caller has the rest");
    // It did not go, and that is said.
    drop(rest);
    assert_eq!(hands.told(), [(0, false, true)]);
    drop(whole);
    assert_eq!(hands.told(), [(1, false, true)]);
    hands.over();
}

#[test]
fn what_is_sent_again_has_no_more_fragments_than_the_link_takes() {
    let mut hands = Hands::new(Capabilities { fragments: 1, ..packets() }, 1);
    // Small ones, that are joined when they are sent again: all in one packet, if the link took it.
    for _ in 0..4 {
        hands.send(300);
    }
    assert_eq!(hands.leave().len(), 4);
    let mut again = 0;
    while hands.acked < 1200 {
        for (packet, _) in hands.wait_to_leave() {
            assert_eq!(packet.payload().payload().fragment_count(), 1);
            hands.deliver(&packet);
            again += 1;
        }
        hands.answer();
        assert!(again < 10, "not the same ones for ever");
    }
    assert_eq!(hands.told(), [(0, false, false), (1, false, false), (2, false, false), (3, false, false)]);
    hands.over();
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Reset,
    Abort,
    Linger,
    UserTimeout,
    Retries,
    Close,
    Shutdown,
}

#[test]
fn each_end_tells_of_each_send_once() {
    for end in
        [End::Reset, End::Abort, End::Linger, End::UserTimeout, End::Retries, End::Close, End::Shutdown]
    {
        let path = Path::new().delay(Duration::from_millis(10));
        let mut net = Net::with(path, 1, packets(), |_, config| config.tcp.retries = 3);
        let listener = net.listen(80);
        let (a, b) = net.connect(listener, 80);
        let (context, mut queue) = Context::new();
        let mut lane = context.lane(Config::default()).unwrap();
        let now = net.now();
        net.a
            .stack
            .tcp_set(now, a, |settings| {
                settings.send_buffer = Some(1 << 20);
                settings.user_timeout = (end == End::UserTimeout).then_some(Duration::from_secs(2));
                settings.linger = (end == End::Linger).then_some(Duration::ZERO);
            })
            .unwrap();
        // More than the first window takes: the last ones have not left.
        for number in 0..20 {
            let mut chain = Chain::new();
            chain.append(Fragment::new(net.pool.alloc().unwrap(), 0, 4000).unwrap()).unwrap();
            let mut data = Segment::new(chain);
            lane.send_there(&mut data, number, 0).unwrap();
            assert_eq!(net.a.stack.tcp_send(now, a, &mut data, SendFlags::empty()), Ok(4000));
        }
        assert!(net.a.stack.tcp_info(now, a).unwrap().notsent_bytes > 0);
        // Some are acknowledged, and some are under way.
        net.run(25 * MS);
        let now = net.now();
        while let Ok(Received::Data(_)) = net.b.stack.tcp_receive(now, b, usize::MAX) {}
        let first = queue.reap_all();
        assert!(!first.is_empty() && first.len() < 20, "{end:?}: {}", first.len());
        assert!(first.iter().all(|one| !one.how.dropped));
        let orderly = matches!(end, End::Close | End::Shutdown);
        match end {
            End::Reset => net.b.stack.tcp_abort(now, b),
            End::Abort => net.a.stack.tcp_abort(now, a),
            End::Linger | End::Close => net.a.stack.tcp_close(now, a),
            End::Shutdown => net.a.stack.tcp_shutdown(now, a, Side::Write).unwrap(),
            End::UserTimeout | End::Retries => net.wire.set_path(pair::Side::A, Path::new().loss(1.0)),
        }
        for _ in 0..400 {
            net.run(SECOND / 2);
            let now = net.now();
            while let Ok(Received::Data(_)) = net.b.stack.tcp_receive(now, b, usize::MAX) {}
        }
        let rest = queue.reap_all();
        let numbers: Vec<_> = first.iter().chain(&rest).map(|one| one.user_data).collect();
        assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "{end:?}");
        let dropped = rest.iter().filter(|one| one.how.dropped).count();
        assert_eq!(dropped == 0, orderly, "{end:?}: {dropped} of {} are said to be lost", rest.len());
        assert!(rest.iter().all(|one| one.bytes == 4000 && !one.how.copied), "{end:?}");
    }
}

#[test]
fn what_goes_with_a_connection_that_is_never_made_is_told_of() {
    let mut net = Net::with(Path::new(), 1, packets(), |_, config| config.tcp.syn_retries = 1);
    net.wire.set_path(pair::Side::A, Path::new().loss(1.0));
    let (context, mut queue) = Context::new();
    let mut lane = context.lane(Config::default()).unwrap();
    let a = net.a.stack.tcp_open().unwrap();
    let now = net.now();
    assert_eq!(net.a.stack.tcp_connect(now, a, SocketAddrV4::new(B, 80).into()), Err(Error::InProgress));
    let mut chain = Chain::new();
    chain.append(Fragment::new(net.pool.alloc().unwrap(), 0, 100).unwrap()).unwrap();
    let mut data = Segment::new(chain);
    lane.send_there(&mut data, 0, 0).unwrap();
    assert_eq!(net.a.stack.tcp_send(now, a, &mut data, SendFlags::empty()), Err(Error::WouldBlock));
    net.run(20 * SECOND);
    assert!(net.a.stack.tcp_send(net.wire.now(), a, &mut data, SendFlags::empty()).is_err());
    assert!(queue.reap_all().is_empty(), "nothing was taken: it is the caller's");
    drop(data);
    assert!(queue.reap_all()[0].how.dropped);
}

/// Chance from a seed (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most.max(1)
    }
}

/// A send, and what is to be said of it.
struct Expected {
    bytes: Bytes,
    copied: bool,
    told: bool,
}

/// Sends, copies and lends, loses, holds and repeats packets by chance, and looks at each completion.
fn random(seed: u64) {
    let chance = &mut Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let fragments = [usize::MAX, 3, 1][chance.below(3) as usize];
    let of = if chance.below(2) == 0 { packets() } else { supers() };
    let mut hands = Hands::new(Capabilities { fragments, ..of }, seed);
    let mut sends: Vec<Expected> = Vec::new();
    let mut held: Vec<(Packet, Bytes)> = Vec::new();
    let (mut given, lossy) = (0, chance.below(3) > 0);
    let overlaps = |send: &Expected, bytes: &Bytes| {
        !send.bytes.is_empty() && send.bytes.start < bytes.end && bytes.start < send.bytes.end
    };
    let until = 40 + chance.below(40);
    let mut over = false;
    for step in 0..20_000 {
        let room = hands.net.a.stack.tcp_info(hands.net.now(), hands.a).is_some();
        assert!(room, "the connection is there, seed {seed}");
        if step < until {
            let len = [1, 40, 300, 1448, 4000, 9000][chance.below(6) as usize];
            let flags =
                [SendFlags::empty(), SendFlags::MORE, SendFlags::END_OF_RECORD][chance.below(3) as usize];
            if chance.below(4) == 0 {
                let Hands { net, a, .. } = &mut hands;
                let (now, writer) = (net.wire.now(), Writer::new(&net.pool));
                given +=
                    net.a.stack.tcp_send_bytes(now, *a, &vec![1; len], &writer, flags).unwrap_or(0) as u64;
            } else {
                let (_, sent, rest) = hands.zerocopy(len, flags);
                let end = given + sent.unwrap_or(0) as u64;
                sends.push(Expected { bytes: given..end, copied: false, told: false });
                // The caller cannot wait: what was not taken is not sent.
                rest.free(Fate::Sent);
                given = end;
            }
        }
        for (packet, bytes) in hands.leave() {
            if !(lossy && step < 200 && chance.below(4) == 0) {
                hands.deliver(&packet);
            }
            held.push((packet, bytes));
        }
        if chance.below(3) > 0 || step > 200 {
            hands.answer();
        }
        while !held.is_empty() && (chance.below(3) == 0 || held.len() > 20 || step > 400) {
            let (packet, bytes) = held.swap_remove(chance.below(held.len() as u64) as usize);
            let copied = chance.below(5) == 0;
            packet.free(if copied { Fate::Copied } else { Fate::Sent });
            for send in sends.iter_mut().filter(|send| overlaps(send, &bytes)) {
                assert!(!send.told, "seed {seed}: it was told of while a packet held it");
                send.copied |= copied;
            }
        }
        for one in hands.queue.reap_all() {
            let send = &mut sends[one.user_data as usize];
            assert!(!std::mem::replace(&mut send.told, true), "seed {seed}: told twice");
            // One without bytes waits for those before it.
            let end = if send.bytes.is_empty() { 0 } else { send.bytes.end };
            assert!(end <= hands.acked, "seed {seed}: {:?}, {} acked", send.bytes, hands.acked);
            assert!(!held.iter().any(|(_, bytes)| overlaps(send, bytes)), "seed {seed}");
            assert_eq!(
                (one.how.copied, one.how.dropped),
                (send.copied, false),
                "seed {seed}: {:?}",
                send.bytes
            );
        }
        if step >= until && hands.acked == given && held.is_empty() {
            over = true;
            break;
        }
        let ns = 1 + chance.below(40 * MS);
        hands.pass_time(if step > 400 { SECOND } else { ns });
    }
    assert!(over, "seed {seed}: {} of {given} acknowledged", hands.acked);
    // What the stack itself waits with: a probe that is still in its queue.
    for (packet, _) in hands.leave() {
        packet.free(Fate::Sent);
    }
    hands.queue.reap(|one| sends[one.user_data as usize].told = true);
    assert!(sends.iter().all(|send| send.told), "seed {seed}: each is told of in the end");
    hands.over();
}

#[test]
fn random_programs_are_told_what_happened() {
    for seed in 1..120 {
        random(seed);
    }
}
