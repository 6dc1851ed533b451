//! Addresses that were given away: what stands there, and who gets the room back.

use onecopy_unix::{Config, SharedPool, Stream, View, Window};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Reads memory of this process by its address, as another language would, but without making a reference to it.
fn at(address: *const u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, address.addr() as u64).unwrap();
    bytes
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n + seed * 7) % 251) as u8).collect()
}

fn window(view: &View) -> Window {
    view.window().unwrap().unwrap()
}

fn small() -> (Stream, Stream) {
    let buffer = Some(16 << 10);
    let (a, b) =
        Stream::pair_with(&Config { send_buffer: buffer, receive_buffer: buffer, ..Config::default() })
            .unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (a, b)
}

#[test]
fn what_is_kept_stays_while_the_sender_writes_over_its_room() {
    let (a, b) = small();
    let sent: Vec<_> = (0..3).map(|n| bytes(n, 1000)).collect();
    let mut views = Vec::new();
    for one in &sent {
        a.send(one).unwrap();
        views.push(b.recv_borrowed(1000).unwrap());
    }
    let window = window(&views[0]);
    let addresses: Vec<_> = views.iter().map(|view| window.address_of(view).unwrap()).collect();
    // The second shares its pages with both its neighbours, and is kept before them.
    window.keep(&[&views[1]]).unwrap();
    assert_eq!(window.address_of(&views[0]), None, "from now on a new window is needed");
    window.keep(&[&views[2], &views[0]]).unwrap();
    assert_eq!(b.stats().user_copied_out, 3000);
    drop(views);
    let capacity = b.capacity().1;
    for round in 0..3 {
        let other = bytes(50 + round, capacity);
        assert_eq!(a.send(&other).unwrap(), capacity, "all of its room is back");
        let mut left = capacity;
        while left > 0 {
            left -= b.recv(&mut vec![0; left]).unwrap();
        }
    }
    for (address, sent) in addresses.iter().zip(&sent) {
        assert_eq!(&at(*address, 1000), sent);
    }
    drop((a, b));
    assert_eq!(at(addresses[2], 1000), sent[2], "the window alone keeps it");
}

#[test]
fn a_view_that_was_not_kept_is_shown_as_it_is() {
    let (a, b) = small();
    a.send(&bytes(1, 100)).unwrap();
    let first = b.recv_borrowed(100).unwrap();
    let window = window(&first);
    a.send(&bytes(2, 100)).unwrap();
    let second = b.recv_borrowed(100).unwrap();
    assert_eq!(at(window.address_of(&first).unwrap(), 100), bytes(1, 100));
    assert_eq!(at(window.address_of(&second).unwrap(), 100), bytes(2, 100), "one window for all views");
    assert_eq!(b.stats().user_copied_out, 0);
}

#[test]
fn neighbours_are_kept_in_one_piece() {
    const PAGE: usize = 4096;
    let (a, b) = small();
    let receive = |len: usize| {
        a.send(&bytes(len, len)).unwrap();
        b.recv_borrowed(len).unwrap()
    };
    let first = receive(100);
    let window = window(&first);
    let start = window.address_of(&first).unwrap().addr() % PAGE;
    // One ends short of a page's end, and the next one begins behind the next page's start.
    let second = receive(2 * PAGE - start - 100 - 50);
    drop(receive(100));
    let third = receive(1000);
    let (before, behind) = (window.address_of(&second).unwrap(), window.address_of(&third).unwrap());
    assert_eq!((before.addr() + second.len()) % PAGE, PAGE - 50, "the test's own arithmetic");
    assert_eq!(behind.addr() % PAGE, 50, "the test's own arithmetic");
    window.keep(&[&second, &third]).unwrap();
    // Its ends are whole pages: other tests' mappings are none of them.
    let from = before.addr() / PAGE * PAGE;
    let piece = format!("{from:x}-{:x} r--p", behind.addr() / PAGE * PAGE + PAGE);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.lines().any(|line| line.starts_with(&piece)), "no mapping {piece} in\n{maps}");
}

#[test]
fn other_memory_and_what_wraps_has_no_address_here() {
    let (a, b) = small();
    let (c, d) = small();
    a.send(b"here").unwrap();
    c.send(b"there").unwrap();
    let (here, there) = (b.recv_borrowed(100).unwrap(), d.recv_borrowed(100).unwrap());
    let window = window(&here);
    assert_eq!(window.address_of(&there), None);
    window.keep(&[&there]).unwrap();
    assert_eq!(d.stats().user_copied_out, 0, "it was left as it is");
    drop(here);
    // The ring's last bytes, and some of its first ones.
    let capacity = b.capacity().1;
    assert_eq!(a.send(&vec![1; capacity - 8]).unwrap(), capacity - 8);
    drop(b.recv_borrowed(capacity).unwrap());
    a.send(&[2; 100]).unwrap();
    let wrapped = b.recv_borrowed(100).unwrap();
    assert!(wrapped.raw_parts()[1].1 > 0, "the test's own arithmetic");
    assert_eq!(wrapped.window().unwrap().unwrap().address_of(&wrapped), None);
}

#[test]
fn a_lent_page_goes_back_once_its_bytes_are_kept() {
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(64 << 10, 2).unwrap();
    let sent = bytes(3, 64 << 10);
    let mut loan = pool.loan_within(sent.len(), LONG).unwrap();
    loan.copy_from_slice(&sent);
    a.send_loan(loan).unwrap();
    let view = b.recv_borrowed(64 << 10).unwrap();
    assert_eq!(view.len(), sent.len());
    let window = window(&view);
    let address = window.address_of(&view).unwrap();
    assert_eq!(at(address, sent.len()), sent);
    window.keep(&[&view]).unwrap();
    drop(view);
    for turn in 0..8 {
        let mut loan = pool.loan_within(64 << 10, LONG).unwrap();
        loan.copy_from_slice(&bytes(10 + turn, 64 << 10));
        a.send_loan(loan).unwrap();
        assert_eq!(b.recv_borrowed(64 << 10).unwrap().into_vec(), bytes(10 + turn, 64 << 10));
    }
    assert_eq!(at(address, sent.len()), sent);
}

#[test]
fn what_lies_in_a_buffer_has_no_window() {
    let (a, b) = small();
    drop(a);
    assert!(b.recv_borrowed(10).unwrap().window().unwrap().is_none());
}
