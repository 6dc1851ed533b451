//! Tokens that are given back by a ring, without a call for each.

use crate::world::{World, errno, pattern};
use onecopy_net::devmem::{Binding, Event, Frag, RefillStats};
use onecopy_net::tcp::Stream;
use onecopy_net::{RecvFlags, SendFlags};
use onecopy_testing::{LONG, asleep, this_thread, wait_asleep};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn counts(stats: RefillStats) -> (u64, u64, u64) {
    (stats.pushed, stats.taken, stats.passed_over)
}

/// `len` bytes as fragments of up to `piece`, which the program has.
fn take(sender: &Stream, receiver: &Stream, len: usize, piece: usize) -> Vec<Frag> {
    sender.send(&pattern(len)).unwrap();
    let (mut frags, mut came) = (Vec::new(), 0);
    while came < len {
        let one = receiver.recv_frags_with_flags(piece, 1, RecvFlags::empty()).unwrap();
        came += one.len();
        frags.extend(one.into_device());
    }
    frags
}

#[test]
fn tokens_lie_in_the_ring_until_somebody_looks_there() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (sender, receiver) = world.connect();
        let mut ring = receiver.refill_ring(100).unwrap();
        let first = take(&sender, &receiver, 20_000, 5000);
        let free = world.memory.free();
        ring.push_all(&first[1..]);
        ring.push(first[0].token);
        let all = first.len() as u64;
        assert_eq!((counts(ring.stats()), world.memory.free()), ((all, 0, 0), free), "without a call");
        // The next receive, even of nothing.
        assert!(receiver.recv_frags_with_flags(9, 9, RecvFlags::DONTWAIT).unwrap_err().would_block());
        assert_eq!(counts(ring.stats()), (all, all, 0));
        assert!(world.all_home());
        // The other calls.
        let calls: [fn(&Stream); 2] = [
            |stream| assert_eq!(stream.tokens_held(), 0),
            |stream| assert_eq!(stream.dont_need(&[]).unwrap(), 0, "what a ring brings is none of this"),
        ];
        for call in calls {
            let frags = take(&sender, &receiver, 5000, 5000);
            ring.push_all(&frags);
            call(&receiver);
            assert_eq!(ring.stats().taken, ring.stats().pushed);
        }
        let mut tokens = Vec::new();
        sender.send(b"twice").unwrap();
        tokens.extend(receiver.recv_frags(100).unwrap().into_tokens());
        ring.push(tokens[0].frag().token);
        assert!(tokens[0].hold().is_none(), "it is nobody's any more");
        let stats = ring.stats();
        assert_eq!((stats.taken, stats.passed_over), (stats.pushed, 0));
        assert_eq!((stats.starved, stats.full), (0, 0), "no push made a call");
        assert!(world.all_home());
    }
}

#[test]
fn a_token_that_is_nobodys_is_passed_over_and_counted() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (first, second) = (world.connect(), world.connect());
        let ours = take(&first.0, &first.1, 3000, 1000);
        let theirs = take(&second.0, &second.1, 1000, 1000);
        let mut ring = first.1.refill_ring(64).unwrap();
        let mut pushed = 0;
        // Another socket's of the same number is not touched; one that was given back before, or twice by the ring, comes home once.
        assert_eq!(first.1.dont_need(&[ours[0].into()]).unwrap(), 1);
        for token in [0, ours[0].token, ours[1].token, ours[1].token, 1 << 40, u64::MAX] {
            ring.push(token);
            pushed += 1;
        }
        assert_eq!(first.1.tokens_held(), ours.len() - 2);
        assert_eq!(counts(ring.stats()), (pushed, pushed, 5));
        assert_eq!((second.1.tokens_held(), theirs[0].token), (theirs.len(), 1));
        // A stale one is not the next fragment's.
        let next = take(&first.0, &first.1, 700, 1000);
        ring.push(ours[0].token);
        assert_eq!(first.1.tokens_held(), ours.len() - 2 + next.len());
        assert!(world.read(&next) == pattern(700));
        drop((first, second));
        assert!(world.all_home());
    }
}

#[test]
fn a_ring_has_room_for_what_it_was_made_for_and_a_stream_has_one() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (sender, receiver) = world.connect();
        for entries in [0, 32_769, u32::MAX] {
            assert_eq!(errno(receiver.refill_ring(entries)), 22, "{entries}");
        }
        let ring = receiver.refill_ring(32_768).unwrap();
        assert_eq!(ring.entries(), 32_768);
        assert_eq!(errno(receiver.refill_ring(1)), 16);
        assert_eq!(errno(receiver.try_clone().unwrap().refill_ring(1)), 16, "a stream, not a handle");
        drop(ring);
        // A push that finds no room gives all back, itself too: none is lost, and none is refused.
        let mut ring = receiver.refill_ring(4).unwrap();
        let frags = take(&sender, &receiver, 12, 1);
        let lies: Vec<_> = frags
            .iter()
            .map(|frag| {
                ring.push(frag.token);
                let stats = ring.stats();
                (stats.pushed - stats.taken, stats.full)
            })
            .collect();
        assert_eq!(lies[..6], [(1, 0), (2, 0), (3, 0), (4, 0), (0, 1), (1, 1)]);
        assert_eq!(lies[9..], [(0, 2), (1, 2), (2, 2)]);
        ring.push_all(&[]);
        assert_eq!(receiver.tokens_held(), 0);
        let frags = take(&sender, &receiver, 12, 1);
        ring.push_all(&frags);
        assert_eq!((ring.stats().full, counts(ring.stats())), (4, (24, 22, 0)));
        assert_eq!(receiver.tokens_held(), 0);
        assert!(world.all_home());
    }
}

#[test]
fn what_lies_in_a_ring_goes_home_with_it_and_with_its_stream() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (sender, receiver) = world.connect();
        let mut ring = receiver.refill_ring(64).unwrap();
        let frags = take(&sender, &receiver, 5000, 1000);
        let kept = frags.len() - 2;
        ring.push_all(&frags[..2]);
        drop(ring);
        assert_eq!(receiver.tokens_held(), kept);
        // A new one counts from the beginning.
        let mut ring = receiver.refill_ring(2).unwrap();
        assert_eq!(counts(ring.stats()), (0, 0, 0));
        ring.push(frags[2].token);
        drop(receiver);
        assert_eq!(counts(ring.stats()), (1, 1, 0));
        assert!(world.all_home(), "what was pushed, and what was not");
        // What is pushed behind that is nobody's, however much.
        ring.push_all(&frags);
        ring.push(frags[4].token);
        assert_eq!((ring.stats().pushed, ring.stats().full > 0), (2 + frags.len() as u64, true));
        drop((world, ring));
    }
}

#[test]
fn a_ring_keeps_no_stack() {
    onecopy_testing::alone!();
    for world in World::each(64) {
        let binding = world.bind();
        let (sender, receiver) = world.connect();
        let mut ring = receiver.refill_ring(64).unwrap();
        let frags = take(&sender, &receiver, 3000, 1000);
        ring.push(frags[0].token);
        // (The other world is there already.)
        let stacks = || threads("onecopy-stack").len() + threads("onecopy-uring").len();
        let before = stacks();
        let World { near, far, memory, listener, .. } = world;
        drop((sender, receiver, listener, binding, near, far));
        let began = Instant::now();
        while stacks() > before - 2 {
            assert!(began.elapsed() < LONG, "a stack is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(memory.free() + u64::from(memory.page_len()) >= memory.len());
        ring.push_all(&frags);
        drop(ring);
    }
}

/// Receives and keeps all until the peer, which has more, may send nothing, on a stack of the program's own: what came, and how much was sent.
fn close_window(sender: &Stream, receiver: &Stream, binding: &Binding) -> (Vec<Frag>, usize) {
    let (mut held, mut sent, mut last) = (Vec::new(), 0, None);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < LONG, "the window does not close");
        let full = match sender.send_with_flags(&pattern(16 << 10), SendFlags::DONTWAIT) {
            Ok(n) => {
                sent += n;
                false
            }
            Err(error) => error.would_block(),
        };
        let empty = match receiver.recv_frags_with_flags(1 << 20, usize::MAX, RecvFlags::DONTWAIT) {
            Ok(frags) => {
                held.extend(frags.into_device());
                false
            }
            Err(error) => error.would_block(),
        };
        // (Who has read all is promised a segment, until there is no room for that.)
        last = std::iter::from_fn(|| binding.event()).last().or(last);
        let came: usize = held.iter().map(|frag| frag.len as usize).sum();
        if full && empty && last == Some(Event::Starved) && binding.promised() < 1400 && came < sent {
            return (held, sent);
        }
        std::thread::yield_now();
    }
}

/// Threads of this process of that name.
fn threads(name: &str) -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let named = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).unwrap().trim() == name);
    named.map(|task| task.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_push_opens_a_window_that_is_closed_while_the_stacks_thread_sleeps() {
    onecopy_testing::alone!();
    let world = World::new(64);
    let binding = world.bind();
    let (sender, receiver) = world.connect();
    let mut ring = receiver.refill_ring(1024).unwrap();
    let (held, sent) = close_window(&sender, &receiver, &binding);
    assert_eq!(counts(ring.stats()), (0, 0, 0));
    threads("onecopy-stack").into_iter().for_each(wait_asleep);
    assert_eq!(binding.event(), None);
    let waiting = sender.unacknowledged_bytes().unwrap();
    let free = world.memory.free();
    ring.push_all(&held);
    // One push looked after all of them, before it returned: nobody else did, and the peer's next probe would be long in coming.
    let stats = ring.stats();
    assert_eq!((stats.starved, stats.full, counts(stats).1), (1, 0, held.len() as u64));
    assert!(world.memory.free() > free);
    assert_eq!(binding.event(), Some(Event::Fed));
    // And the peer heard of it. (None of these calls is one of the stack's that receives.)
    let began = Instant::now();
    while sender.unacknowledged_bytes().unwrap() >= waiting {
        assert!(began.elapsed() < LONG, "nothing more comes");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Once all has come, and the window is open, pushes are no calls.
    let mut came: usize = held.iter().map(|frag| frag.len as usize).sum();
    while came < sent {
        let frags = receiver.recv_frags(1 << 20).unwrap().into_device();
        came += frags.iter().map(|frag| frag.len as usize).sum::<usize>();
        ring.push_all(&frags);
    }
    let frags = take(&sender, &receiver, 4096, 4096);
    let before = ring.stats().starved;
    ring.push_all(&frags);
    assert_eq!((ring.stats().starved, world.far.queue_stats(1).unwrap().starved), (before, 0));
}

#[test]
fn no_push_is_a_call_for_memory_that_is_unbound() {
    let world = World::new(64);
    let binding = world.bind();
    let (sender, receiver) = world.connect();
    let mut ring = receiver.refill_ring(1024).unwrap();
    let (held, sent) = close_window(&sender, &receiver, &binding);
    drop(binding);
    ring.push_all(&held);
    assert_eq!((ring.stats().starved, counts(ring.stats()).1), (0, 0));
    // What comes now lies in the host's memory.
    let mut came: usize = held.iter().map(|frag| frag.len as usize).sum();
    while came < sent {
        came += receiver.recv_frags(1 << 20).unwrap().len();
    }
    assert!(world.all_home());
}

#[test]
fn a_receiver_that_sleeps_goes_on_by_pushes_alone() {
    for world in World::each(64) {
        let binding = world.bind();
        let (sender, receiver) = world.connect();
        let mut ring = receiver.refill_ring(1024).unwrap();
        let data = pattern(2 << 20);
        let (tx, rx) = channel::<Vec<Frag>>();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(sender.send(&data).unwrap(), data.len()));
            let task = this_thread();
            // It makes no call but pushes, and those once the receiver sleeps: nothing more comes, or nothing more has room.
            let pushes = scope.spawn(move || {
                while let Ok(mut lies) = rx.recv() {
                    wait_asleep(task);
                    lies.extend(rx.try_iter().flatten());
                    ring.push_all(&lies);
                }
                ring.stats()
            });
            let (mut got, mut tokens) = (Vec::new(), 0);
            while got.len() < data.len() {
                let frags = receiver.recv_frags(1 << 20).unwrap().into_device();
                got.extend(world.read(&frags));
                tokens += frags.len() as u64;
                tx.send(frags).unwrap();
            }
            drop(tx);
            let stats = pushes.join().unwrap();
            assert_eq!((stats.pushed, stats.passed_over), (tokens, 0));
            // (The kernel's windows are closed by its own buffers.)
            assert_eq!(stats.starved > 0, !world.is_kernels());
            assert!(got == data);
        });
        assert_eq!(receiver.tokens_held(), 0);
        assert_eq!(world.far.queue_stats(1).unwrap().starved, 0);
        assert!(world.all_home());
        drop(binding);
    }
}

#[test]
fn a_stream_that_nobody_reads_makes_no_push_a_call() {
    // Much more than a receive buffer.
    let world = World::new(8192);
    let binding = world.bind();
    let (unread, other) = (world.connect(), world.connect());
    let mut ring = other.1.refill_ring(64).unwrap();
    let began = Instant::now();
    // Its window is shut: all that the peer has sent is acknowledged, and it has more.
    let waiting = || (unread.1.readable_bytes().unwrap(), unread.0.unacknowledged_bytes().unwrap());
    let mut before = (0, 0);
    loop {
        assert!(began.elapsed() < LONG, "the window does not close");
        let sent = unread.0.send_with_flags(&pattern(16 << 10), SendFlags::DONTWAIT);
        std::thread::sleep(Duration::from_millis(10));
        let now = waiting();
        if sent.is_err() && now == before {
            break;
        }
        before = now;
    }
    assert!(before.0 > 0 && before.1 > 0, "{before:?}");
    let frags = take(&other.0, &other.1, 3000, 1000);
    ring.push_all(&frags);
    assert_eq!((ring.stats().starved, counts(ring.stats()).1), (0, 0));
    assert_eq!(binding.event(), None);
    // Read, it goes on, and the other's pushes still are no calls.
    let mut came = 0;
    while came < before.0 + before.1 {
        came += unread.1.recv_frags(1 << 20).unwrap().len();
    }
    assert_eq!((binding.event(), ring.stats().starved), (None, 0));
}

/// Under the kernel's TCP: whoever waits for a page gets one that lies in the ring of another stream.
#[test]
fn who_waits_for_a_page_takes_it_from_any_streams_ring() {
    for world in World::each(16).filter(World::is_kernels) {
        let binding = world.bind();
        let (first, second) = (world.connect(), world.connect());
        let mut ring = first.1.refill_ring(16).unwrap();
        let mut held = Vec::new();
        while world.memory.free() > 0 {
            held.extend(take(&first.0, &first.1, 4096, 4096));
        }
        second.0.send(b"for one page").unwrap();
        let refused = loop {
            match second.1.recv_frags_with_flags(100, 9, RecvFlags::DONTWAIT) {
                Err(error) if error.would_block() => std::thread::yield_now(),
                other => break other,
            }
        };
        assert_eq!(errno(refused), 105);
        std::thread::scope(|scope| {
            let waits = asleep(scope, || second.1.recv_frags(100).unwrap());
            ring.push(held[3].token);
            assert_eq!(world.bytes(&waits.join().unwrap()), b"for one page");
        });
        assert_eq!((counts(ring.stats()), ring.stats().starved), ((1, 1, 0), 0));
        assert_eq!((binding.event(), binding.event()), (Some(Event::Starved), Some(Event::Fed)));
        // One that does not wait finds them, too.
        ring.push_all(&held);
        second.0.send(&pattern(20_000)).unwrap();
        let mut came = 0;
        while came < 20_000 {
            match second.1.recv_frags_with_flags(8 << 10, 9, RecvFlags::DONTWAIT) {
                Ok(frags) => came += frags.into_device().iter().map(|frag| frag.len as usize).sum::<usize>(),
                Err(error) => assert!(error.would_block(), "{error}"),
            }
        }
        assert_eq!(ring.stats().passed_over, 1);
    }
}

/// Crumbs fill a memory whose windows are open: nobody is starved, and pages lie in the ring.
#[test]
fn a_packet_that_finds_little_room_has_what_lies_in_the_rings() {
    let world = World::new(64);
    let binding = world.bind();
    let (first, second) = (world.connect(), world.connect());
    let mut ring = first.1.refill_ring(32_768).unwrap();
    let (mut held, mut kept) = (Vec::new(), Vec::new());
    let crumb = |(sender, receiver): &(Stream, Stream)| {
        sender.send(b".").unwrap();
        receiver.recv_frags(1).unwrap().into_device()
    };
    while world.memory.free() > 96 << 10 {
        held.extend(crumb(&first));
    }
    ring.push_all(&held);
    assert_eq!((counts(ring.stats()).1, ring.stats().starved), (0, 0));
    // More than is free, of another stream, whose tokens nobody gives back.
    let least = world.memory.free();
    while ring.stats().taken == 0 {
        kept.extend(crumb(&second));
        assert!(world.memory.free() > 0, "of {least} bytes");
    }
    assert_eq!((world.far.queue_stats(1).unwrap().starved, ring.stats().starved), (0, 0));
    assert!(counts(ring.stats()).1 == held.len() as u64 && world.memory.free() > least);
    assert_eq!(binding.event(), None);
}

#[test]
fn a_forks_child_pushes_to_its_own_copy() {
    onecopy_testing::alone!();
    for world in World::each(64) {
        let binding = world.bind();
        let (sender, receiver) = world.connect();
        let mut ring = receiver.refill_ring(8).unwrap();
        let frags = take(&sender, &receiver, 3000, 1000);
        let free = world.memory.free();
        let mine = std::cell::RefCell::new(Some((ring, &frags)));
        let child = onecopy_sys::fork::child(|| {
            let Some((mut ring, frags)) = mine.take() else { return 1 };
            ring.push_all(frags);
            let stats = ring.stats();
            drop(ring);
            i32::from(counts(stats) != (frags.len() as u64, 0, 0))
        });
        assert_eq!(child.unwrap().wait(), onecopy_sys::fork::Ended::Returned(0));
        (ring, _) = mine.take().unwrap();
        assert_eq!((counts(ring.stats()), world.memory.free()), ((0, 0, 0), free));
        assert_eq!(receiver.tokens_held(), frags.len());
        assert!(world.read(&frags) == pattern(3000));
        ring.push_all(&frags);
        assert_eq!(receiver.tokens_held(), 0);
        assert!(world.all_home());
        drop(binding);
    }
}
