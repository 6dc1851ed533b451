//! How many of a process's mappings windows take: it has 65,530. (The only test of its program: it would leave others none.)

use onecopy_unix::{Config, Stream};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Bytes that are kept of each.
const LEN: usize = 10;

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n + seed * 7) % 251) as u8).collect()
}

/// Reads memory of this process by its address, without making a reference to it.
fn at(memory: &File, address: *const u8) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    memory.read_exact_at(&mut bytes, address.addr() as u64).unwrap();
    bytes
}

#[test]
fn windows_leave_mappings_for_all_else() {
    let allowed: usize = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if allowed > 100_000 {
        return println!("not tried: vm.max_map_count is {allowed}, and to use it up takes too long");
    }
    let buffer = Some(16 << 10);
    let config = Config { send_buffer: buffer, receive_buffer: buffer, ..Config::default() };
    let (a, b) = Stream::pair_with(&config).unwrap();
    let mut kept = Vec::new();
    let refused = loop {
        // What is before it in the window, and behind it, stays: three mappings, most times.
        let capacity = b.capacity().1;
        let mut views = Vec::new();
        for len in [capacity / 2, LEN] {
            a.send(&bytes(kept.len(), len)).unwrap();
            views.push(b.recv_borrowed(len).unwrap());
        }
        if views[1].raw_parts()[1].1 > 0 {
            continue;
        }
        match views[1].window() {
            Ok(window) => {
                let window = window.unwrap();
                let address = window.address_of(&views[1]).unwrap();
                window.keep(&[&views[1]]).unwrap();
                kept.push((window, address));
            }
            Err(error) => break error,
        }
        assert!(kept.len() <= allowed / 4, "the process soon has no mapping left");
    };
    assert_eq!(refused.raw_os_error(), Some(12), "ENOMEM");
    let has = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!((allowed / 5..allowed / 3).contains(&has), "{has} mappings");
    let memory = File::open("/proc/self/mem").unwrap();
    for (turn, (_, address)) in kept.iter().enumerate() {
        assert_eq!(at(&memory, *address), bytes(turn, LEN));
    }
    a.send(b"more").unwrap();
    let view = b.recv_borrowed(4).unwrap();
    assert!(view.window().is_err());
    kept.pop();
    assert!(view.window().is_ok(), "what is dropped leaves its mappings to others");
}
