//! Streams over a cable: what comes back, and what it says.

use crate::world::{NEVER, chain, is_ours_alone, pair, pattern, pool, stacks, stacks_with};
use onecopy_chain::Checksum;
use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::zerocopy::{Allowance, Small};
use onecopy_net::{Driver, SendFlags, Stack};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::time::Duration;

#[test]
fn the_chain_comes_back_once_it_is_acknowledged_and_says_who_copied() {
    for driver in [Driver::Thread, Driver::Caller] {
        let (a, b) = stacks_with(driver, |builder| builder);
        let (client, mut server) = pair(&a, &b);
        let (pool, data) = (pool(), pattern(300_000));
        let chain = chain(&pool, &data);
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 300_000];
            server.read_exact(&mut all).unwrap();
            (all, server)
        });
        let sent = client.send_zerocopy(chain).unwrap();
        assert_eq!(sent.len(), data.len());
        let (chain, how) = sent.wait();
        // The cable's descriptor is written by a call that copies; this program copied nothing.
        assert!(how.copied && !how.dropped, "{driver:?} {how:?}");
        assert!(chain.host().unwrap().to_vec() == data && is_ours_alone(&chain));
        let (all, _server) = reader.join().unwrap();
        assert!(all == data);
        let stats = client.stats();
        assert_eq!((stats.user_copied_in, stats.referenced), (0, data.len() as u64));
        assert_eq!((a.zerocopy_counts().lent, a.zerocopy_counts().copied_small, a.pinned_pages()), (1, 0, 0));
    }
}

#[test]
fn a_small_one_is_copied_and_says_so() {
    let (a, b) = stacks();
    a.set_zerocopy_allowance(Allowance { small: Small::Below(1000), ..NEVER });
    let (client, _server) = pair(&a, &b);
    let pool = pool();
    // It was over before it left: nobody is asked for it.
    let (chain_back, how) = client.send_zerocopy(chain(&pool, &pattern(999))).unwrap().try_wait().unwrap();
    assert!(how.copied && !how.dropped && is_ours_alone(&chain_back) && chain_back.len() == 999);
    assert_eq!((client.stats().user_copied_in, a.zerocopy_counts().copied_small), (999, 1));
    client.set_small(Some(Small::Below(0))).unwrap();
    client.send_zerocopy(chain(&pool, &pattern(999))).unwrap().wait();
    assert_eq!((client.stats().user_copied_in, a.zerocopy_counts().lent), (999, 1));
}

/// Their copies share pages, as those of plain sends do: here are hardly any.
#[test]
fn small_ones_behind_a_window_that_is_shut_share_pages() {
    let (a, b) = stacks_with(Driver::Thread, |builder| builder.pages(16));
    a.set_zerocopy_allowance(Allowance { small: Small::Below(1000), ..NEVER });
    let listener = Listener::bind(&b, SocketAddr::from(([10, 0, 0, 2], 0))).unwrap();
    listener.set(|settings| settings.receive_buffer = Some(4608)).unwrap();
    let client = Stream::connect(&a, listener.local_addr().unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    // More than the window.
    let (pool, data) = (pool(), pattern(20_000));
    assert_eq!(client.send(&data[..10_000]).unwrap(), 10_000);
    // Each second one lies in two pieces.
    let small = |bytes: &[u8], whole: bool| match whole {
        true => chain(&pool, bytes),
        false => {
            let mut both = chain(&pool, &bytes[..3]);
            both.concat(&mut chain(&pool, &bytes[3..])).unwrap();
            both
        }
    };
    let mut waiting = 0;
    for (n, bytes) in data[10_000..].chunks(10).enumerate() {
        let sent = client.send_zerocopy(small(bytes, n % 2 == 0)).unwrap();
        assert_eq!(sent.len(), 10);
        assert!(sent.try_wait().unwrap().1.copied);
        waiting += 1;
    }
    assert_eq!((a.zerocopy_counts().copied_small, a.zerocopy_counts().lent), (waiting, 0));
    assert_eq!(client.stats().user_copied_in, 20_000);
    let mut all = vec![0; 20_000];
    server.read_exact(&mut all).unwrap();
    assert!(all == data);
}

#[test]
fn the_measured_threshold_copies_less_than_it_lends() {
    let (a, b) = stacks();
    a.set_zerocopy_allowance(Allowance { small: Small::Measured, ..NEVER });
    let (client, mut server) = pair(&a, &b);
    let pool = pool();
    let one = client.send_zerocopy(chain(&pool, &[1])).unwrap();
    let large = client.send_zerocopy(chain(&pool, &pattern(100_000))).unwrap();
    server.read_exact(&mut vec![0; 100_001]).unwrap();
    assert!(one.wait().1.copied);
    assert_eq!(large.wait().0.len(), 100_000);
    assert!(a.zerocopy_counts().lent >= 1, "no machine copies 100,000 bytes faster than it lends them");
}

#[test]
fn it_comes_back_when_the_peer_resets() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    let pool = pool();
    let data = pattern(1 << 20);
    // More than the peer's window, which nobody reads from.
    let sent = client.send_zerocopy_with_flags(chain(&pool, &data), SendFlags::DONTWAIT).unwrap();
    server.set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    let (back, how) = sent.wait();
    assert!(how.dropped && is_ours_alone(&back) && back.host().unwrap().to_vec() == data);
    let not = client.send_zerocopy(back).unwrap_err();
    assert!(not.chain.host().unwrap().to_vec() == data, "what was not sent is in the error");
    assert_eq!(a.pinned_pages(), 0);
}

#[test]
fn it_comes_back_when_the_program_resets_and_when_the_stack_goes() {
    let (a, b) = stacks_with(Driver::Thread, |builder| builder.linger(Duration::from_millis(1)));
    let (client, _server) = pair(&a, &b);
    let pool = pool();
    let sent = client.send_zerocopy_with_flags(chain(&pool, &pattern(1 << 20)), SendFlags::DONTWAIT).unwrap();
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let (back, how) = sent.wait();
    assert!(how.dropped && is_ours_alone(&back));
    let (client, _server) = pair(&a, &b);
    let sent = client.send_zerocopy_with_flags(back, SendFlags::DONTWAIT).unwrap();
    drop((client, a));
    let (back, how) = sent.wait();
    assert!(how.dropped && is_ours_alone(&back) && back.len() == 1 << 20);
}

#[test]
fn it_comes_back_when_the_peer_is_silent_for_too_long() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    client.set(|settings| settings.user_timeout = Some(Duration::from_millis(50))).unwrap();
    // Its stack is not driven any more: nobody answers.
    let (sent, pool) = b.with(|_| {
        let pool = pool();
        (client.send_zerocopy(chain(&pool, &pattern(10_000))).unwrap().wait(), pool)
    });
    assert!(sent.1.dropped && is_ours_alone(&sent.0));
    drop((server, pool));
}

#[test]
fn a_closed_stream_still_delivers_and_tells() {
    let (a, b) = stacks();
    let (client, mut server) = pair(&a, &b);
    let pool = pool();
    let data = pattern(200_000);
    let sent = client.send_zerocopy(chain(&pool, &data)).unwrap();
    drop(client);
    let mut all = Vec::new();
    server.read_to_end(&mut all).unwrap();
    assert!(all == data);
    let (back, how) = sent.wait();
    assert!(!how.dropped && is_ours_alone(&back));
}

#[test]
fn what_there_is_no_room_for_is_the_rest() {
    let (a, b) = stacks();
    let (client, mut server) = pair(&a, &b);
    client.set_nonblocking(true).unwrap();
    client.set(|settings| settings.send_buffer = Some(256 << 10)).unwrap();
    let pool = pool();
    let data = pattern(3 << 20);
    let mut left = chain(&pool, &data);
    let mut sent = client.send_zerocopy(left).unwrap();
    assert!(sent.len() < data.len());
    left = sent.take_rest();
    assert_eq!(sent.len() + left.len(), data.len());
    let mut under_way = vec![sent];
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 3 << 20];
        server.read_exact(&mut all).unwrap();
        all
    });
    client.set_nonblocking(false).unwrap();
    under_way.push(client.send_zerocopy(left).unwrap());
    let mut back = Vec::new();
    for sent in under_way {
        let (chain, how) = sent.wait();
        assert!(!how.dropped);
        back.extend(chain.host().unwrap().to_vec());
    }
    assert!(back == data && reader.join().unwrap() == data);
    // What nobody takes of the rest comes back with it, however much that is.
    client.set_nonblocking(true).unwrap();
    let sent = client.send_zerocopy(chain(&pool, &data)).unwrap();
    drop(client);
    assert_eq!(sent.wait().0.len(), data.len());
}

#[test]
fn as_much_as_may_is_kept_in_place() {
    onecopy_testing::alone!();
    let (a, b) = stacks();
    a.set_zerocopy_allowance(Allowance { pinned: Some(10 * 4096), ..NEVER });
    let (client, mut server) = pair(&a, &b);
    let pool = pool();
    let not = client.send_zerocopy(chain(&pool, &pattern(9 * 4096))).unwrap_err();
    assert_eq!(not.error.raw_os_error(), 105, "ENOBUFS");
    assert!(not.to_string().contains("Builder::zerocopy"), "{not}");
    let mut less = not.chain;
    less.truncate(8 * 4096).unwrap();
    client.send_zerocopy(less).unwrap().wait();
    assert_eq!((a.zerocopy_counts().refused_pinned, a.pinned_pages()), (1, 0));
    server.read_exact(&mut vec![0; 8 * 4096]).unwrap();
}

#[test]
fn as_much_may_be_kept_in_place_as_the_kernel_lets_this_process_keep() {
    onecopy_testing::alone!();
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let maximum = getrlimit(Resource::Memlock).maximum;
    setrlimit(Resource::Memlock, Rlimit { current: Some(10 * 4096), maximum }).unwrap();
    let (a, b) = Tap::cable(1500).unwrap();
    let build = |tap, address| Stack::builder().link(tap).address(address).build().unwrap();
    let (a, b) = (build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24"));
    assert_eq!(a.zerocopy_allowance(), Allowance { pinned: Some(10 * 4096), ..Allowance::default() });
    let (client, mut server) = pair(&a, &b);
    client.set_small(Some(Small::Below(0))).unwrap();
    let not = client.send_zerocopy(chain(&pool(), &pattern(9 * 4096))).unwrap_err();
    assert_eq!(not.error.raw_os_error(), 105, "ENOBUFS");
    let said = not.to_string();
    assert!(
        ["RLIMIT_MEMLOCK", "Builder::zerocopy", "ulimit -l"].iter().all(|word| said.contains(word)),
        "{said}"
    );
    let mut less = not.chain;
    less.truncate(8 * 4096).unwrap();
    client.send_zerocopy(less).unwrap().wait();
    server.read_exact(&mut vec![0; 8 * 4096]).unwrap();
}

#[test]
fn nothing_is_sent_at_once() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    let sent = client.send_zerocopy(onecopy_chain::Chain::new()).unwrap();
    assert!(sent.is_empty());
    let (chain, how) = sent.try_wait().unwrap();
    assert!(chain.is_empty() && !how.copied && !how.dropped);
    assert_eq!(client.send_numbered(chain, SendFlags::empty()).unwrap().number, None);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let not = client.send_zerocopy(crate::world::chain(&pool(), b"late")).unwrap_err();
    assert_eq!((not.error.kind(), not.chain.len()), (ErrorKind::BrokenPipe, 4));
    drop(server);
}

/// A socket sends bytes as they lie, in whatever pieces there is room for: that its checksum was to be finished does not matter to a chain.
#[test]
fn a_chain_whose_checksum_is_not_finished_is_cut_like_any_other() {
    let (pool, data) = (pool(), pattern(300_000));
    let unfinished = |len: usize| {
        let mut chain = chain(&pool, &data[..len]);
        chain.set_checksum(Checksum::Partial { start: 0, offset: 16 }).unwrap();
        chain
    };
    for small in [0, 1_000_000] {
        let (a, b) = stacks();
        a.set_zerocopy_allowance(Allowance { small: Small::Below(small), ..NEVER });
        let (client, mut server) = pair(&a, &b);
        client.set(|settings| settings.send_buffer = Some(16 << 10)).unwrap();
        let mut all = vec![0; data.len()];
        // More than there is room for, of which the rest comes back.
        let mut sent = client.send_zerocopy_with_flags(unfinished(300_000), SendFlags::DONTWAIT).unwrap();
        let (len, rest) = (sent.len(), sent.take_rest());
        assert!(len < 300_000 && len + rest.len() == 300_000, "{len} of it were taken, {}", rest.len());
        assert!(rest.host().unwrap().to_vec() == data[len..]);
        server.read_exact(&mut all[..len]).unwrap();
        drop(client.send_zerocopy(unfinished(6000)).unwrap());
        server.read_exact(&mut all[len..][..6000]).unwrap();
        assert!(all[..len] == data[..len] && all[len..][..6000] == data[..6000]);
        // The same where nothing comes back.
        let len = client.send_segment(unfinished(300_000).into(), SendFlags::DONTWAIT).unwrap();
        assert!(len < 300_000, "all of it was taken");
        server.read_exact(&mut all[..len]).unwrap();
        assert!(all[..len] == data[..len]);
        // What is not taken comes back as it was.
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let not = client.send_zerocopy(unfinished(6000)).unwrap_err();
        assert_eq!(not.chain.checksum(), Checksum::Partial { start: 0, offset: 16 });
    }
}

/// Its first piece does not lie there for the next one, which waits for memory, until a probe is due.
#[test]
fn what_a_copy_of_several_pieces_has_given_leaves_when_it_waits_for_memory() {
    let (a, b) = stacks_with(Driver::Thread, |builder| {
        builder.tcp(|tcp| (tcp.memory, tcp.wmem[0]) = ([0, 0, 4096], 1))
    });
    a.set_zerocopy_allowance(Allowance { small: Small::Below(10_000), ..NEVER });
    let (client, _server) = pair(&a, &b);
    let (pool, data) = (pool(), pattern(1000));
    let mut both = chain(&pool, &data[..10]);
    both.concat(&mut chain(&pool, &data[10..])).unwrap();
    let left = || a.with(|inet| inet.tcp_stats().segments_out);
    let before = left();
    let sent = client.send_zerocopy_with_flags(both, SendFlags::DONTWAIT).unwrap();
    assert_eq!((sent.len(), left() - before), (10, 1), "memory was gone after the first piece");
}

/// As the kernel's sockets, which are charged to one number (mm_account_pinned_pages()).
#[test]
fn two_stacks_share_what_the_process_may_keep() {
    onecopy_testing::alone!();
    let ten = Allowance { pinned: Some(10 * 4096), ..NEVER };
    let pairs = [(); 2].map(|()| {
        let (a, b) = stacks();
        a.set_zerocopy_allowance(ten);
        (a, b)
    });
    let connect = |(a, b): &(Stack, Stack)| {
        let listener = Listener::bind(b, SocketAddr::from(([10, 0, 0, 2], 0))).unwrap();
        // What is more than its window is kept until somebody reads.
        listener.set(|settings| settings.receive_buffer = Some(4608)).unwrap();
        let client = Stream::connect(a, listener.local_addr().unwrap()).unwrap();
        client.set_small(Some(Small::Below(0))).unwrap();
        (client, listener.accept().unwrap().0)
    };
    let [(one, mut reader), (other, _silent)] = [connect(&pairs[0]), connect(&pairs[1])];
    let pool = pool();
    let lend = |stream: &Stream, pages: usize| stream.send_zerocopy(chain(&pool, &pattern(pages * 4096)));
    let first = lend(&one, 4).unwrap();
    let not = lend(&other, 3).unwrap_err();
    assert_eq!(not.error.raw_os_error(), 105, "ENOBUFS: 6 pages are charged to the other stack");
    let _second = lend(&other, 2).unwrap();
    let shown =
        || [0, 1].map(|at| (pairs[at].0.pinned_pages(), pairs[at].0.zerocopy_counts().refused_pinned));
    assert_eq!(shown(), [(6, 0), (4, 1)], "each shows its own");
    reader.read_exact(&mut vec![0; 4 * 4096]).unwrap();
    first.wait();
    drop(lend(&other, 4).unwrap());
}
