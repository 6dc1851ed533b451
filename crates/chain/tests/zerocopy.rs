//! Sends without a copy as programs make them: told of once, charged until then, copied where they are small.
#![cfg(not(loom))]

use onecopy_chain::notify::zerocopy::{Account, Allowance, HoldWakers, Small, Tell};
use onecopy_chain::notify::{Config, Fate, Refused, Segment, Sent, Zerocopy};
use onecopy_chain::{Chain, Fragment, Writer};
use onecopy_pool::provider::{Heap, Opaque};
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use onecopy_sync::atomic::{AtomicU32, Ordering};
use proptest::prelude::*;
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(), Heap::new()).unwrap()
}

fn chain(pool: &PagePool, len: usize) -> Chain {
    let mut chain = Chain::new();
    let mut left = len;
    while left > 0 {
        let part = left.min(4096);
        chain.append(Fragment::new(pool.alloc().unwrap(), 0, part).unwrap()).unwrap();
        left -= part;
    }
    chain
}

fn unlimited() -> Allowance {
    Allowance { pinned: None, unread: 1 << 20, small: Small::Below(0) }
}

/// Sends `len` bytes of which the socket takes `taken`.
fn send(
    socket: &mut Zerocopy,
    pool: &PagePool,
    len: usize,
    taken: usize,
    tell: Tell,
) -> Result<(Segment<Chain>, Option<Sent>), Refused> {
    let mut send = socket.begin(chain(pool, len), tell, &Writer::new(pool), 0).map_err(|(_, why)| why)?;
    let rest = send.data.divide(taken).unwrap();
    let data = std::mem::replace(&mut send.data, rest);
    let (sent, rest) = socket.end(send);
    assert_eq!(rest.len(), len - taken);
    Ok((data, sent))
}

fn notices(socket: &Zerocopy) -> Vec<(u32, u32, bool)> {
    std::iter::from_fn(|| socket.notice()).map(|one| (one.lo, one.hi, one.copied)).collect()
}

#[test]
fn notices_are_ranges_that_know_exactly_what_was_copied() {
    let (pool, account) = (pool(), Account::new(unlimited()));
    let mut socket = account.socket(Config::default()).unwrap();
    let mut data: VecDeque<_> =
        (0..6).map(|_| send(&mut socket, &pool, 4000, 4000, Tell::Notice).unwrap().0).collect();
    assert!(!socket.has_notice() && account.collect() == 0);
    // Out of order: nothing is told of before those in front of it.
    data.remove(1).unwrap().free(Fate::Sent);
    assert!(!socket.has_notice());
    data.pop_front().unwrap().free(Fate::Sent);
    assert_eq!((account.collect(), account.news(), account.news()), (2, vec![socket.index()], vec![]));
    data.pop_front().unwrap().free(Fate::Sent);
    // It goes into the range that was not read yet (skb_zerocopy_notify_extend).
    data.pop_front().unwrap().free(Fate::Copied);
    data.pop_front().unwrap().free(Fate::Copied);
    data.pop_front().unwrap().free(Fate::Sent);
    assert_eq!(notices(&socket), [(0, 2, false), (3, 4, true), (5, 5, false)]);
    assert_eq!(notices(&socket), []);
}

#[test]
fn a_socket_that_takes_a_part_has_sent_that_part() {
    let (pool, account) = (pool(), Account::new(unlimited()));
    let mut socket = account.socket(Config::default()).unwrap();
    // Nothing: there was no send, and its number is the next one's.
    let (data, none) = send(&mut socket, &pool, 4000, 0, Tell::Handle).unwrap();
    assert!(none.is_none() && data.payload().is_empty() && account.pinned_pages() == 0);
    assert_eq!((socket.next(), account.counts().lent), (0, 0));
    let (data, sent) = send(&mut socket, &pool, 4000, 1500, Tell::Handle).unwrap();
    let sent = sent.unwrap().try_wait().unwrap_err();
    // Another one behind it: the bytes of both follow each other.
    let (more, _) = send(&mut socket, &pool, 4000, 4000, Tell::Notice).unwrap();
    let mut both = data;
    both.concat(more).unwrap();
    both.divide(1500).unwrap().free(Fate::Copied);
    both.free(Fate::Sent);
    let how = sent.try_wait().unwrap();
    assert!(!how.copied && !how.dropped, "nothing of it was dropped: the rest is not of it");
    let notice = socket.notice().unwrap();
    assert_eq!((notice.lo, notice.hi, notice.bytes, notice.copied), (1, 1, 4000, true));
    assert_eq!((account.pinned_pages(), account.counts().lent), (0, 2));
}

#[test]
fn what_is_refused_by_a_full_socket_leaves_no_trace() {
    let (pool, account) = (pool(), Account::new(unlimited()));
    let mut socket = account.socket(Config { capacity: 1, ..Config::default() }).unwrap();
    for _ in 0..10 {
        send(&mut socket, &pool, 100, 0, Tell::Notice).unwrap();
        send(&mut socket, &pool, 100, 0, Tell::Handle).unwrap();
    }
    let (data, _) = send(&mut socket, &pool, 100, 100, Tell::Notice).unwrap();
    let full = send(&mut socket, &pool, 100, 100, Tell::Notice).unwrap_err();
    assert_eq!(
        (full, full.errno()),
        (Refused::Full { capacity: 1 }, rustix::io::Errno::NOBUFS.raw_os_error())
    );
    data.free(Fate::Sent);
    assert_eq!(notices(&socket), [(0, 0, false)]);
    assert!(send(&mut socket, &pool, 100, 100, Tell::Handle).is_ok());
    assert_eq!(account.counts().refused_full, 1);
}

#[test]
fn memory_is_charged_for_all_sockets_until_it_is_back() {
    onecopy_testing::alone!();
    let pool = pool();
    // As mm_account_pinned_pages(): two pages more than the bytes come to, of 10.
    let account = Account::new(Allowance { pinned: Some(10 << 12), ..unlimited() });
    let mut one = account.socket(Config::default()).unwrap();
    let mut other = account.socket(Config::default()).unwrap();
    let (first, _) = send(&mut one, &pool, 16 << 10, 16 << 10, Tell::Notice).unwrap();
    assert_eq!(account.pinned_pages(), 6);
    let (second, kept) = send(&mut other, &pool, 8191, 8191, Tell::Handle).unwrap();
    assert_eq!(account.pinned_pages(), 9);
    let why = send(&mut other, &pool, 1, 1, Tell::Handle).unwrap_err();
    assert_eq!((why, why.errno()), (Refused::Pinned { would_be: 11, limit: 10 }, 105));
    assert_eq!((account.counts().refused_pinned, other.next()), (1, 1), "no number was taken");
    // What has completed counts no more, whoever is asked first.
    first.free(Fate::Sent);
    let (third, _) = send(&mut other, &pool, 4096, 4096, Tell::Notice).unwrap();
    assert_eq!(account.pinned_pages(), 6);
    // A socket that is gone: its memory is in use until it is not.
    drop((other, kept));
    drop(second);
    assert_eq!((account.collect(), account.pinned_pages()), (1, 3));
    third.free(Fate::Sent);
    assert_eq!((account.collect(), account.pinned_pages()), (1, 0));
    account.set_allowance(Allowance { pinned: Some(0), ..unlimited() });
    assert!(send(&mut one, &pool, 1, 1, Tell::Notice).is_err());
    // Without bytes there is nothing to keep.
    assert!(send(&mut one, &pool, 0, 0, Tell::Notice).is_ok());
}

#[test]
fn accounts_share_the_limit_of_the_process() {
    onecopy_testing::alone!();
    let pool = pool();
    let ten = Allowance { pinned: Some(10 << 12), ..unlimited() };
    let accounts = [Account::new(ten), Account::new(ten)];
    let [mut one, mut other] = [0, 1].map(|at| accounts[at].socket(Config::default()).unwrap());
    let lent =
        |socket: &mut Zerocopy, pages: usize| send(socket, &pool, pages << 12, pages << 12, Tell::Handle);
    let (first, _one) = lent(&mut one, 4).unwrap();
    let why = lent(&mut other, 3).unwrap_err();
    assert_eq!(why, Refused::Pinned { would_be: 11, limit: 10 }, "6 of the other account's, 5 of its own");
    let (second, _two) = lent(&mut other, 2).unwrap();
    assert_eq!([0, 1].map(|at| accounts[at].pinned_pages()), [6, 4], "each shows its own");
    // An account without a limit is charged to nobody else, whatever it is told later.
    let free = Account::new(unlimited());
    let mut third = free.socket(Config::default()).unwrap();
    let (of_free, _three) = lent(&mut third, 100).unwrap();
    free.set_allowance(ten);
    assert_eq!(
        (lent(&mut third, 1).unwrap_err(), free.pinned_pages()),
        (Refused::Pinned { would_be: 13, limit: 10 }, 102)
    );
    of_free.free(Fate::Sent);
    assert_eq!((free.collect(), free.pinned_pages()), (1, 0));
    // What has completed of one is room for the other, whoever drives it.
    first.free(Fate::Sent);
    let (third, _four) = lent(&mut other, 4).unwrap();
    assert!(lent(&mut one, 1).is_err());
    // An account that is gone leaves nothing charged.
    drop((other, second, third, _two, _four));
    let [kept, gone] = accounts;
    drop(gone);
    assert!(lent(&mut one, 8).is_ok());
    drop(kept);
}

#[test]
fn a_child_begins_with_nothing_charged() {
    onecopy_testing::alone!();
    let pool = pool();
    let account = || Account::new(Allowance { pinned: Some(10 << 12), ..unlimited() });
    let parents = account();
    let mut socket = parents.socket(Config::default()).unwrap();
    let (data, _kept) = send(&mut socket, &pool, 8 << 12, 8 << 12, Tell::Handle).unwrap();
    let child = onecopy_sys::fork::child(|| {
        let mut socket = account().socket(Config::default()).unwrap();
        let lent = send(&mut socket, &pool, 8 << 12, 8 << 12, Tell::Handle);
        // Its copy of the parent's account gives back what was never its own.
        data.free(Fate::Sent);
        parents.collect();
        i32::from(lent.is_err() || send(&mut socket, &pool, 1 << 12, 1 << 12, Tell::Handle).is_ok())
    });
    let ended = child.unwrap().wait();
    assert_eq!(ended, onecopy_sys::fork::Ended::Returned(0));
    assert_eq!(parents.pinned_pages(), 10);
}

#[test]
fn a_child_keeps_what_it_charged_an_inherited_account() {
    onecopy_testing::alone!();
    let pool = pool();
    let account = || Account::new(Allowance { pinned: Some(10 << 12), ..unlimited() });
    let parents = account();
    let mut inherited = parents.socket(Config::default()).unwrap();
    let (data, _kept) = send(&mut inherited, &pool, 8 << 12, 8 << 12, Tell::Handle).unwrap();
    let child = onecopy_sys::fork::child(|| {
        let own = send(&mut inherited, &pool, 4 << 12, 4 << 12, Tell::Handle);
        // Its parent's, which it was never charged.
        data.free(Fate::Sent);
        parents.collect();
        let mut other = account().socket(Config::default()).unwrap();
        let more = send(&mut other, &pool, 3 << 12, 3 << 12, Tell::Handle).err();
        i32::from(own.is_err() || more != Some(Refused::Pinned { would_be: 11, limit: 10 }))
    });
    assert_eq!(child.unwrap().wait(), onecopy_sys::fork::Ended::Returned(0));
}

/// Without CAP_IPC_LOCK, from here on, in this thread.
fn without_ipc_lock() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn memory_is_limited_as_the_kernel_limits_this_process() {
    onecopy_testing::alone!();
    let limited = |current| setrlimit(Resource::Memlock, Rlimit { current, maximum: None });
    let kept = getrlimit(Resource::Memlock);
    let set =
        |bytes| setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum: kept.maximum }).unwrap();
    // The kernel itself says whom it sets no limit.
    set(0);
    let privileged = may_lock();
    assert_eq!(Allowance::of_process().pinned.is_none(), privileged);
    without_ipc_lock();
    assert!(!may_lock());
    assert_eq!(Allowance::of_process().pinned, Some(0));
    // Ten pages, and a part of one that is none.
    set((10 << 12) + 4095);
    let allowance = Allowance::default();
    assert_eq!((allowance, allowance.pinned), (Allowance::of_process(), Some((10 << 12) + 4095)));
    let (pool, account) = (pool(), Account::new(Allowance { small: Small::Below(0), ..allowance }));
    let mut socket = account.socket(Config::default()).unwrap();
    let why = send(&mut socket, &pool, 9 << 12, 9 << 12, Tell::Handle).unwrap_err();
    assert_eq!(why, Refused::Pinned { would_be: 11, limit: 10 });
    let said = why.to_string();
    assert!(
        ["11 pages", "of 10", "RLIMIT_MEMLOCK", "ulimit -l", "CAP_IPC_LOCK"]
            .iter()
            .all(|word| said.contains(word)),
        "{said}"
    );
    assert!(send(&mut socket, &pool, 8 << 12, 8 << 12, Tell::Handle).is_ok());
    // It was looked at once.
    set(0);
    assert!(send(&mut socket, &pool, 8 << 12, 8 << 12, Tell::Handle).is_ok());
    if limited(None).is_ok() {
        assert_eq!(Allowance::of_process().pinned, None, "RLIM_INFINITY");
    }
}

/// Whether memory may be locked although RLIMIT_MEMLOCK is nothing: capable(CAP_IPC_LOCK) decides, as it does of sends (can_do_mlock()).
fn may_lock() -> bool {
    let locked = mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).is_ok();
    munlockall().unwrap();
    locked
}

#[test]
fn notices_that_nobody_reads_stop_the_next_one() {
    let pool = pool();
    let account = Account::new(Allowance { unread: 2 * 768 + 767, ..unlimited() });
    let mut socket = account.socket(Config::default()).unwrap();
    // In turns, so that none goes into the one before it.
    for number in 0..4 {
        let fate = if number % 2 == 0 { Fate::Sent } else { Fate::Copied };
        match send(&mut socket, &pool, 100, 100, Tell::Notice) {
            Ok((data, _)) => data.free(fate),
            Err(why) => assert_eq!((number > 1, why), (true, Refused::Unread { limit: 2 })),
        }
    }
    assert_eq!(account.counts().refused_unread, 2);
    // Who has a handle leaves no notice.
    drop(send(&mut socket, &pool, 100, 100, Tell::Handle).unwrap());
    assert_eq!(notices(&socket), [(0, 0, false), (1, 1, true)]);
    assert!(send(&mut socket, &pool, 100, 100, Tell::Notice).is_ok());
}

#[test]
fn small_sends_are_copied_and_say_so() {
    let pool = pool();
    let account = Account::new(Allowance { small: Small::Below(1000), pinned: Some(0), ..unlimited() });
    let mut socket = account.socket(Config { capacity: 3, ..Config::default() }).unwrap();
    let writer = Writer::new(&pool);
    let page = chain(&pool, 999);
    let begun = socket.begin(page.share(), Tell::Handle, &writer, 0).unwrap();
    assert!(begun.is_copied() && begun.data.notif().is_none());
    let mut begun = begun;
    let copy = std::mem::take(&mut begun.data);
    let (sent, rest) = socket.end(begun);
    assert!(rest.is_empty());
    let how = sent.unwrap().try_wait().unwrap();
    assert!(how.copied && !how.dropped, "it is over although the copy is under way");
    drop(copy);
    // Of a part the rest is the caller's, where it lay.
    let mut begun = socket.begin(page.share(), Tell::Notice, &writer, 0).unwrap();
    drop(std::mem::take(&mut begun.data).divide(0));
    begun.data = chain(&pool, 499).into();
    let (none, rest) = socket.end(begun);
    assert!(none.is_none());
    assert_eq!(rest.fragments().next().unwrap().offset(), 500);
    assert_eq!(notices(&socket), [(0, 0, true)]);
    // Whoever makes the copy himself gets the bytes where they lie, as long as there is a page for it.
    let begun = socket.begin_uncopied(page.share(), Tell::Handle, &writer, 0).unwrap();
    assert!(begun.is_copied() && begun.data.notif().is_none());
    let lies = |chain: &Chain| chain.fragments().next().unwrap().page().clone();
    assert!(lies(begun.data.payload()).is_same(&lies(&page)));
    assert!(socket.end(begun).0.is_none(), "nothing of it was taken");
    let none = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
    let _last = none.alloc().unwrap();
    let begun = socket.begin_uncopied(page.share(), Tell::Handle, &Writer::new(&none), 0);
    assert!(matches!(begun, Err((_, Refused::Pinned { .. }))), "it is lent, and nothing is allowed");
    let one = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
    socket.set_small(Some(Small::Below(10_000)));
    let begun = socket.begin_uncopied(chain(&pool, 5000), Tell::Handle, &Writer::new(&one), 0);
    assert!(matches!(begun, Err((_, Refused::Pinned { .. }))), "a copy takes two pages, and there is one");
    socket.set_small(None);
    // Not smaller: it is charged, and nothing is allowed.
    let (_, why) = socket.begin(chain(&pool, 1000), Tell::Notice, &writer, 0).unwrap_err();
    assert!(matches!(why, Refused::Pinned { .. }));
    let counts = account.counts();
    assert_eq!((counts.copied_small, counts.lent, counts.refused_pinned), (3, 0, 3));
    // Measured: whatever it is, a page is not dearer to lend than to copy for ever.
    account.set_allowance(Allowance { small: Small::Measured, ..unlimited() });
    assert!(!socket.begin(chain(&pool, 1 << 20), Tell::Notice, &writer, 0).unwrap().is_copied());
}

#[test]
fn what_the_link_does_not_take_is_copied_or_refused() {
    let (pool, account) = (pool(), Account::new(unlimited()));
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(0))).unwrap();
    let mut socket = account.socket(Config::default()).unwrap();
    let writer = Writer::new(&pool);
    let mut small = Chain::new();
    for _ in 0..20 {
        small.concat(&mut chain(&pool, 10)).unwrap();
    }
    assert!(!socket.begin(small.share(), Tell::Handle, &writer, 0).unwrap().is_copied());
    socket.set_link(3, false);
    let copied = socket.begin(small.share(), Tell::Handle, &writer, 0).unwrap();
    assert!(copied.is_copied() && copied.data.payload().fragment_count() == 1);
    drop(copied);
    // Large ones fill packets of few fragments.
    assert!(!socket.begin(chain(&pool, 64 << 10), Tell::Handle, &writer, 0).unwrap().is_copied());
    let device = Chain::from(Fragment::new(gpu.alloc().unwrap(), 0, 100).unwrap());
    let (back, why) = socket.begin(device, Tell::Handle, &writer, 0).unwrap_err();
    assert_eq!((back.len(), why, why.errno()), (100, Refused::Unreadable, 14));
    let counts = account.counts();
    assert_eq!((counts.copied_fragments, counts.refused_unreadable), (1, 1));
}

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn who_waits_is_woken_by_who_frees() {
    let (pool, account) = (pool(), Account::new(unlimited()));
    let mut socket = account.socket(Config::default()).unwrap();
    let (data, sent) = send(&mut socket, &pool, 4000, 4000, Tell::Handle).unwrap();
    let count = Arc::new(Count(AtomicU32::new(0)));
    let waker = Waker::from(count.clone());
    let mut sent = pin!(sent.unwrap());
    assert!(sent.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    data.free(Fate::Sent);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(matches!(sent.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(how) if !how.copied));
    // A thread that sleeps, woken by another one.
    let (data, sent) = send(&mut socket, &pool, 4000, 4000, Tell::Handle).unwrap();
    let sent = sent.unwrap().wait_for(Duration::from_millis(1)).unwrap_err();
    let waiting = std::thread::spawn(move || sent.wait());
    data.free(Fate::Dropped);
    assert!(waiting.join().unwrap().dropped);
    assert_eq!(account.pinned_pages(), 0);
}

/// What may happen to sends.
#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize, bool),
    Free(usize, Fate),
    Forget(usize),
    Ask(usize),
    Read,
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![3 => Just(Fate::Sent), 2 => Just(Fate::Copied), 1 => Just(Fate::Dropped)];
    prop_oneof![
        4 => (0usize..9000, 0usize..=1000, any::<bool>()).prop_map(|(len, part, handle)| Step::Send(len, part, handle)),
        4 => (0usize..16, fate).prop_map(|(which, fate)| Step::Free(which, fate)),
        1 => (0usize..16).prop_map(Step::Forget),
        2 => (0usize..16).prop_map(Step::Ask),
        1 => Just(Step::Read),
    ]
}

proptest! {
    #[test]
    fn each_send_is_told_of_once_by_its_own_way(steps in prop::collection::vec(step(), 1..120)) {
        let pool = pool();
        let account =
            Account::new(Allowance { pinned: Some(40 << 12), unread: 1 << 20, small: Small::Below(300) });
        let mut socket = account.socket(Config { capacity: 15, ..Config::default() }).unwrap();
        let writer = Writer::new(&pool);
        let mut under_way: Vec<(Segment<Chain>, Option<usize>)> = Vec::new();
        // By number: how it went, once nobody holds it; whether it has a handle.
        let mut sends: Vec<(Option<Fate>, bool)> = Vec::new();
        let mut handles: Vec<(Sent, Option<usize>)> = Vec::new();
        let mut told = 0;
        let mut read = |socket: &Zerocopy, sends: &[(Option<Fate>, bool)], done: usize| {
            while let Some(range) = socket.notice() {
                for number in range.lo..=range.hi {
                    while sends[told].1 {
                        told += 1;
                    }
                    assert_eq!(number as usize, told);
                    assert!(told < done);
                    let fate = sends[told].0.unwrap();
                    assert_eq!((range.copied, range.dropped), (fate == Fate::Copied, fate == Fate::Dropped));
                    told += 1;
                }
            }
            told
        };
        for step in steps {
            let done = sends.iter().take_while(|send| send.0.is_some()).count();
            match step {
                Step::Send(len, part, handle) => {
                    let tell = if handle { Tell::Handle } else { Tell::Notice };
                    let Ok(mut begun) = socket.begin(chain(&pool, len), tell, &writer, 0) else { continue };
                    let (taken, copied) = (len * part / 1000, begun.is_copied());
                    let rest = begun.data.divide(taken).unwrap();
                    let data = std::mem::replace(&mut begun.data, rest);
                    let (sent, rest) = socket.end(begun);
                    prop_assert_eq!(rest.len(), len - taken);
                    // One that has no bytes, or none of which were taken, is none.
                    prop_assert_eq!(sent.is_some(), handle && taken > 0);
                    let number = (taken > 0 && !(copied && handle)).then(|| {
                        sends.push((copied.then_some(Fate::Copied), handle));
                        sends.len() - 1
                    });
                    handles.extend(sent.map(|sent| (sent, number)));
                    under_way.push((data, number.filter(|_| !copied)));
                }
                Step::Free(which, fate) if !under_way.is_empty() => {
                    let (data, number) = under_way.swap_remove(which % under_way.len());
                    data.free(fate);
                    if let Some(number) = number {
                        sends[number].0 = Some(fate);
                    }
                }
                Step::Forget(which) if !handles.is_empty() => {
                    drop(handles.swap_remove(which % handles.len()));
                }
                Step::Ask(which) if !handles.is_empty() => {
                    let (sent, number) = handles.swap_remove(which % handles.len());
                    match (sent.try_wait(), number) {
                        (Ok(how), None) => prop_assert!(how.copied && !how.dropped),
                        (Ok(how), Some(number)) => {
                            prop_assert!(number < done, "told before those in front of it");
                            let fate = sends[number].0.unwrap();
                            prop_assert_eq!((how.copied, how.dropped), (fate == Fate::Copied, fate == Fate::Dropped));
                        }
                        (Err(sent), number) => {
                            prop_assert!(number.is_some_and(|number| number >= done));
                            handles.push((sent, number));
                        }
                    }
                }
                Step::Read => {
                    read(&socket, &sends, done);
                }
                _ => {}
            }
        }
        for (data, number) in under_way.drain(..) {
            data.free(Fate::Sent);
            if let Some(number) = number {
                sends[number].0 = Some(Fate::Sent);
            }
        }
        let all = sends.len();
        let told = read(&socket, &sends, all);
        prop_assert!(sends[told..].iter().all(|send| send.1), "those with a handle leave no notice");
        for (sent, _) in handles.drain(..) {
            prop_assert!(sent.try_wait().is_ok());
        }
        prop_assert_eq!(account.pinned_pages(), 0);
        let stats = pool.stats();
        prop_assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring);
    }
}

impl Count {
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn wakers_wait_until_the_last_holder_lets_go() {
    let (pool, account) = (pool(), Account::new(unlimited()));
    let mut socket = account.socket(Config::default()).unwrap();
    let (data, sent) = send(&mut socket, &pool, 4000, 4000, Tell::Handle).unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut sent = pin!(sent.unwrap());
    assert!(sent.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let (outer, inner) = (HoldWakers::new(), HoldWakers::new());
    data.free(Fate::Sent);
    drop(inner);
    assert_eq!((count.get(), outer.has_waiting()), (0, true));
    // On another thread nothing is held back.
    let (data, other) = send(&mut socket, &pool, 4000, 4000, Tell::Handle).unwrap();
    let mut other = pin!(other.unwrap());
    assert!(other.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    std::thread::scope(|scope| scope.spawn(move || data.free(Fate::Sent)).join().unwrap());
    assert_eq!(count.get(), 1);
    drop(outer);
    assert_eq!(count.get(), 2);
    assert!(sent.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn asking_again_wakes_nobody() {
    let (pool, account) = (pool(), Account::new(unlimited()));
    let mut socket = account.socket(Config::default()).unwrap();
    let (data, sent) = send(&mut socket, &pool, 4000, 4000, Tell::Handle).unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut sent = pin!(sent.unwrap());
    for _ in 0..3 {
        assert!(sent.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    // Nor does another task that takes it over wake the first.
    let other = Arc::new(Count::default());
    let taker = Waker::from(other.clone());
    assert!(sent.as_mut().poll(&mut Context::from_waker(&taker)).is_pending());
    assert_eq!((count.get(), other.get()), (0, 0));
    data.free(Fate::Sent);
    assert_eq!((count.get(), other.get()), (0, 1));
}

#[test]
fn who_polls_for_notices_is_woken_once_and_the_bell_where_there_was_none() {
    let (pool, account) = (pool(), Account::new(unlimited()));
    let mut socket = account.socket(Config::default()).unwrap();
    let (count, rung) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let waker = Waker::from(count.clone());
    socket.set_bell(rung.clone().into());
    assert!(socket.poll_notice(&waker).is_pending() && socket.poll_notice(&waker).is_pending());
    let mut data: VecDeque<_> =
        (0..3).map(|_| send(&mut socket, &pool, 4000, 4000, Tell::Notice).unwrap().0).collect();
    data.pop_front().unwrap().free(Fate::Sent);
    data.pop_front().unwrap().free(Fate::Copied);
    assert_eq!((count.get(), rung.get()), (1, 1));
    assert!(matches!(socket.poll_notice(&waker), Poll::Ready(range) if !range.copied));
    assert!(matches!(socket.poll_notice(&waker), Poll::Ready(range) if range.copied));
    assert!(socket.poll_notice(&waker).is_pending());
    data.pop_front().unwrap().free(Fate::Sent);
    assert_eq!((count.get(), rung.get()), (2, 2));
    // A bell that comes late hears of what is there.
    let late = Arc::new(Count::default());
    socket.set_bell(late.clone().into());
    assert_eq!(late.get(), 1);
    // Nobody waits any more: the next one of that number starts with nothing.
    drop(socket);
    let mut socket = account.socket(Config::default()).unwrap();
    let (data, _) = send(&mut socket, &pool, 4000, 4000, Tell::Notice).unwrap();
    data.free(Fate::Sent);
    assert_eq!(notices(&socket).len(), 1);
    assert_eq!((count.get(), late.get()), (2, 1));
}

#[test]
fn a_socket_that_copies_nothing_says_so_for_itself() {
    let (pool, account) = (pool(), Account::new(Allowance { small: Small::Below(5000), ..unlimited() }));
    let (mut one, mut other) =
        (account.socket(Config::default()).unwrap(), account.socket(Config::default()).unwrap());
    one.set_small(Some(Small::Below(0)));
    let (data, sent) = send(&mut one, &pool, 100, 100, Tell::Handle).unwrap();
    let sent = sent.unwrap().try_wait().expect_err("it is under way, not copied");
    data.free(Fate::Sent);
    assert!(!sent.wait().copied);
    let (_data, sent) = send(&mut other, &pool, 100, 100, Tell::Handle).unwrap();
    assert!(sent.unwrap().wait().copied);
    assert_eq!((account.counts().lent, account.counts().copied_small), (1, 1));
}
