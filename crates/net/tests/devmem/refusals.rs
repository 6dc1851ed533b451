//! What is refused is counted by why, once, and takes nothing: memory, queues, tokens and bytes are as they were.

use crate::binding::Whole;
use crate::tx::{SumsNothing, filled, part, range};
use crate::world::{World, errno, pattern};
use onecopy_link::Tap;
use onecopy_net::devmem::{Frag, Token, TokenRange};
use onecopy_net::tcp::Stream;
use onecopy_net::{RecvFlags, Stack};
use onecopy_pool::provider::Opaque;
use onecopy_pool::{DeviceId, DeviceMemory, PoolConfig};

/// The counters of a stack that `act` has moved, and by how much.
fn moved<R>(stack: &Stack, act: impl FnOnce() -> R) -> (R, Vec<(&'static str, u64)>) {
    let before = stack.device_refusals();
    let result = act();
    let both = before.each().zip(stack.device_refusals().each());
    let moved = both.map(|((name, before), (_, after))| (name, after - before));
    (result, moved.filter(|(_, by)| *by > 0).collect())
}

/// That `act` is refused by that errno, and moves that counter by one, and no other.
fn is_counted<T: std::fmt::Debug>(
    stack: &Stack,
    (number, counter): (i32, &'static str),
    act: impl FnOnce() -> onecopy_net::Result<T>,
) {
    let (refused, moved) = moved(stack, act);
    assert_eq!((errno(refused), moved), (number, vec![(counter, 1)]));
}

fn range_of(start: u64, count: u32) -> TokenRange {
    TokenRange { start, count }
}

#[test]
fn each_bind_that_is_refused_is_counted_and_takes_nothing() {
    for world in World::each(64) {
        let (stack, memory) = (&world.far, &world.memory);
        let rx = |queues: &[u32]| stack.bind_rx(memory, queues);
        is_counted(stack, (22, "rx_no_queue"), || rx(&[]));
        is_counted(stack, (34, "rx_no_such_queue"), || rx(&[1, 2]));
        is_counted(stack, (17, "rx_bound"), || rx(&[1, 1]));
        is_counted(stack, (22, "rx_none_left"), || rx(&[0, 1]));
        stack.set_header_split(false).unwrap();
        is_counted(stack, (22, "rx_not_split"), || rx(&[1]));
        stack.set_header_split(true).unwrap();
        let large = DeviceMemory::new(PoolConfig::new().order(1).limit(64), Opaque::new(DeviceId(1)));
        let large = large.unwrap();
        is_counted(stack, (7, "rx_page_size"), || stack.bind_rx(&large, &[1]));
        let small = DeviceMemory::opaque(15, DeviceId(1)).unwrap();
        is_counted(stack, (22, "rx_too_small"), || stack.bind_rx(&small, &[1]));
        let tx = stack.bind_tx(memory).unwrap();
        is_counted(stack, (16, "rx_busy"), || rx(&[1]));
        is_counted(stack, (16, "tx_busy"), || stack.bind_tx(memory));
        drop(tx);
        let page = memory.alloc(4096).unwrap();
        is_counted(stack, (16, "tx_busy"), || stack.bind_tx(memory));
        drop(page);
        let (binding, none) = moved(stack, || rx(&[1]).unwrap());
        assert_eq!(none, [], "what is not refused is not counted");
        is_counted(stack, (17, "rx_bound"), || rx(&[1]));
        is_counted(stack, (16, "tx_busy"), || stack.bind_tx(memory));
        if world.is_kernels() {
            let large = DeviceMemory::opaque(1 << 18, DeviceId(5)).unwrap();
            stack.set_queues(3).unwrap();
            is_counted(stack, (95, "rx_unsupported"), || stack.bind_rx(&large, &[2]));
            is_counted(stack, (95, "tx_unsupported"), || stack.bind_tx(&large));
            assert_eq!(large.free(), large.len());
        }
        // None of it has taken a page or a queue: all of this memory is received into.
        assert_eq!(memory.free(), memory.len());
        let (sender, receiver) = world.connect();
        let data = pattern(9000);
        sender.send(&data).unwrap();
        let frags = take(&receiver, data.len());
        assert!(world.read(&frags) == data && frags.iter().all(|frag| frag.binding == binding.id()));
        drop(receiver);
        assert!(world.all_home());
        assert_eq!(world.near.device_refusals(), Default::default(), "another stack's are its own");
        assert_eq!((small.free(), large.free()), (small.len(), large.len()));
    }
}

#[test]
fn a_link_that_cannot_and_one_that_is_gone_are_counted() {
    let memory = DeviceMemory::opaque(64, DeviceId(1)).unwrap();
    let (a, b) = Tap::cable(1500).unwrap();
    let whole = Stack::builder().link(Whole(a)).address("10.0.0.1/24").build().unwrap();
    whole.set_queues(2).unwrap();
    is_counted(&whole, (95, "rx_unsupported"), || whole.bind_rx(&memory, &[1]));
    let gone = Stack::builder().link(SumsNothing(b)).address("10.0.0.2/24").build().unwrap();
    is_counted(&gone, (95, "tx_unsupported"), || gone.bind_tx(&memory));
    gone.set_queues(2).unwrap();
    drop(whole);
    while gone.is_up() {
        gone.drive(std::time::Duration::from_millis(1)).unwrap();
    }
    is_counted(&gone, (19, "rx_gone"), || gone.bind_rx(&memory, &[1]));
    is_counted(&gone, (19, "tx_gone"), || gone.bind_tx(&memory));
    assert_eq!(memory.free(), memory.len());
    drop(World::new(64).far.bind_tx(&memory).unwrap());
}

#[test]
fn each_send_that_is_refused_is_counted_and_no_byte_of_it_leaves() {
    for world in World::each(512) {
        let (memory, data) = filled();
        let tx = world.near.bind_tx(&memory).unwrap();
        let binding = world.bind();
        let (sender, receiver) = world.connect();
        let len = memory.len();
        for bad in [range(len, 1), range(len - 1, 2), range(u64::MAX, 2), range(0, u64::MAX)] {
            is_counted(&world.near, (14, "send_outside"), || sender.send_device(&tx, &[range(0, 5), bad]));
            is_counted(&world.near, (14, "send_outside"), || tx.chain(&[bad]));
        }
        let (_, none) = moved(&world.near, || {
            is_counted(&world.far, (19, "send_foreign"), || receiver.send_device(&tx, &[range(0, 5)]));
        });
        assert_eq!(none, [], "the stack of the stream counts, not that of the binding");
        let much = vec![range(0, len); ((1 << 32) / len) as usize];
        is_counted(&world.near, (90, "send_too_long"), || sender.send_device(&tx, &much));
        // At whatever place, and of none: nothing to refuse.
        let (sent, none) = moved(&world.near, || {
            drop(sender.send_device(&tx, &[]).unwrap());
            sender.send_device(&tx, &[range(len - 4097, 4097), range(3, 1)]).unwrap()
        });
        assert_eq!(none, []);
        let whole = [part(&data, range(len - 4097, 4097)), part(&data, range(3, 1))].concat();
        assert!(world.read(&take(&receiver, whole.len())) == whole, "and nothing before it");
        assert!(!sent.wait().1.dropped);
        drop((tx, binding, sender, receiver));
        assert_eq!(memory.free(), len);
        assert!(world.all_home());
    }
}

#[test]
fn tokens_that_are_nobodys_are_counted_by_why_and_take_nobody_elses() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (first, second) = (world.connect(), world.connect());
        let ours = send_and_take(&first, 4000, 1000);
        let theirs = send_and_take(&second, 1000, 1000);
        let (n, at) = (ours.len() as u64, ours[0].token);
        // By number, in a call: free, stale, unknown.
        let give = |stream: &Stream, ranges: &[TokenRange]| {
            let (free, moved) = moved(&world.far, || stream.dont_need(ranges).unwrap());
            let of = |name| moved.iter().find(|(one, _)| *one == name).map_or(0, |(_, by)| *by);
            assert!(moved.iter().all(|(name, _)| name.starts_with("tokens_")), "{moved:?}");
            (free, of("tokens_stale"), of("tokens_unknown"))
        };
        let ours_alone = |held| {
            assert_eq!((first.1.tokens_held(), second.1.tokens_held()), (held, theirs.len()));
        };
        assert_eq!(give(&first.1, &[range_of(at, 2)]), (2, 0, 0));
        assert_eq!(give(&first.1, &[range_of(at, 3)]), (1, 2, 0), "two of them once more");
        assert_eq!(give(&first.1, &[range_of(n + 1, 5), range_of(0, 1), range_of(7, 0)]), (0, 0, 6));
        assert_eq!(
            give(&first.1, &[range_of(u64::MAX, 2)]),
            (0, 0, 1),
            "there is none behind the last number"
        );
        ours_alone(ours.len() - 3);
        // Another socket's is here what its number is.
        assert_eq!(give(&second.1, &[range_of(n, 1)]), (0, 0, 1));
        ours_alone(ours.len() - 3);
        // A socket that never had one, and one that looks at no more of them than a call does.
        let never = world.connect().1;
        assert_eq!(give(&never, &[]), (0, 0, 0));
        assert_eq!(give(&never, &[range_of(1, 1)]), (0, 0, 1));
        assert_eq!(give(&never, &[range_of(1, 1000), range_of(1, 1000)]), (0, 0, 1024));
        let calls: [&dyn Fn() -> onecopy_net::Result<usize>; 3] =
            [&|| first.1.dont_need(&[range_of(n, 1); 129]), &|| first.1.dont_need_bytes(&[0; 7]), &|| {
                first.1.dont_need_bytes(&[1; 129 * 8])
            }];
        for call in calls {
            is_counted(&world.far, (22, "token_calls"), call);
        }
        ours_alone(ours.len() - 3);
        // What is held still has its bytes.
        assert!(world.read(&ours[3..]) == pattern(4000)[3000..] && world.read(&theirs) == pattern(1000));
        assert_eq!(give(&first.1, &[range_of(at + 3, 1)]), (1, 0, 0));
        assert_eq!(give(&second.1, &[range_of(1, 1)]), (1, 0, 0));
        assert!(world.all_home());
        assert_eq!(world.near.device_refusals(), Default::default());
    }
}

#[test]
fn a_token_object_counts_where_the_program_gives_it_back_twice_and_not_where_it_is_dropped() {
    for world in World::each(64) {
        let _binding = world.bind();
        let connection = world.connect();
        let took = || {
            connection.0.send(b"bytes").unwrap();
            connection.1.recv_frags(100).unwrap()
        };
        let mut tokens = took().into_tokens();
        tokens.extend(took().into_tokens());
        let frags = took();
        let numbers: Vec<u64> = tokens.iter().map(|token| token.frag().token).collect();
        assert_eq!((numbers.as_slice(), frags.device()[0].token), (&[1, 2][..], 3));
        let (free, none) = moved(&world.far, || connection.1.dont_need(&[range_of(1, 3)]).unwrap());
        assert_eq!((free, none), (3, vec![]));
        let ((), none) = moved(&world.far, || drop((tokens.pop(), frags)));
        assert_eq!(none, []);
        // Whose socket is closed first does not know that it was taken back.
        let closed = world.connect();
        closed.0.send(b"bytes").unwrap();
        let late = closed.1.recv_frags(100).unwrap().into_tokens();
        drop(closed);
        let (back, none) = moved(&world.far, || late.into_iter().map(Token::give_back).collect::<Vec<_>>());
        assert_eq!((back, none), (vec![false], vec![]));
        let (back, stale) = moved(&world.far, || tokens.pop().unwrap().give_back());
        assert_eq!((back, stale), (false, vec![("tokens_stale", 1)]));
        // What a ring passes over is that, too.
        let mut ring = connection.1.refill_ring(2).unwrap();
        let held = took().into_device();
        let ((), nobodys) = moved(&world.far, || {
            for token in [1, 99, held[0].token, held[0].token, 0] {
                ring.push(token);
            }
            assert_eq!(connection.1.tokens_held(), 0);
        });
        assert_eq!(nobodys, [("tokens_stale", 2), ("tokens_unknown", 2)]);
        assert_eq!(ring.stats().passed_over, 4);
        assert!(world.all_home());
    }
}

/// `len` bytes as fragments, which the program has.
fn take(receiver: &Stream, len: usize) -> Vec<Frag> {
    let (mut frags, mut came) = (Vec::new(), 0);
    while came < len {
        let some = receiver.recv_frags(len - came).unwrap();
        assert!(!some.is_empty() && some.linear().is_none(), "{came} of {len}: {some:?}");
        came += some.len();
        frags.extend(some.into_device());
    }
    frags
}

/// The same of a pattern that is sent, in fragments of `piece` bytes.
fn send_and_take(connection: &(Stream, Stream), len: usize, piece: usize) -> Vec<Frag> {
    connection.0.send(&pattern(len)).unwrap();
    let mut frags: Vec<Frag> = Vec::new();
    while frags.len() < len / piece {
        while connection.1.readable_bytes().unwrap() < piece {
            std::thread::yield_now();
        }
        let one = connection.1.recv_frags_with_flags(piece, 1, RecvFlags::empty()).unwrap();
        assert_eq!(one.len(), piece, "a fragment of its own");
        frags.extend(one.into_device());
    }
    frags
}
