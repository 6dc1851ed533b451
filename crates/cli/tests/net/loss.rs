//! Files, with their checksums, through a router that drops packets by chance.

use crate::harness::{Running, onecopy};
use crate::world::{BOTH, FAR, OURS, World};
use std::io::Write;
use std::path::Path;

/// Bytes each way. ONECOPY_LOSS has another size.
fn size() -> u64 {
    std::env::var("ONECOPY_LOSS").ok().and_then(|text| text.parse().ok()).unwrap_or(1 << 30)
}

/// 1 %, of either direction.
const RULE: &str = "numgen random mod 100 == 0";

fn make(path: &Path) {
    let block = crate::harness::noise(1 << 20);
    let mut file = std::fs::File::create(path).unwrap();
    let mut left = size();
    let mut number = 0u64;
    while left > 0 {
        // Each of the blocks is its own.
        let mut block = block.clone();
        block[..8].copy_from_slice(&number.to_le_bytes());
        number += 1;
        let n = left.min(block.len() as u64);
        file.write_all(&block[..n as usize]).unwrap();
        left -= n;
    }
}

#[test]
fn a_file_comes_whole_through_loss_both_ways() {
    let Some(world) = World::new(&["nft", "ip"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    make(&from);
    let far = world.behind(RULE);
    let (send, recv) = (["--send", from.to_str().unwrap()], ["--recv", to.to_str().unwrap()]);
    let told = ["--json", "--sum", "-v"];
    let gateway = ["--gateway", "10.77.0.1"];

    // The kernel sends, we receive.
    let mut ours = world.onecopy(&[&["nc", "-l", "9000"], &BOTH, &gateway, &recv, &told]);
    ours.listens();
    let at = format!("{OURS}:9000");
    let theirs = far.start(&mut onecopy(&[&["nc", &at], &send[..], &told[..]].concat()));
    same(theirs, ours);
    let dropped = world.dropped();
    assert!(dropped > 0, "nothing was lost");

    // We send, the kernel receives.
    let mut theirs = far.onecopy(&[&["nc", "-l", &format!("{FAR}:9000")], &recv, &told]);
    theirs.listens();
    let to = format!("{FAR}:9000");
    let ours = world.onecopy(&[&["nc", &to], &BOTH, &gateway, &send, &told]);
    same(ours, theirs);
    assert!(world.dropped() > dropped, "nothing was lost");
}

/// What one sent is what the other received, each by its own checksum.
fn same(sender: Running, receiver: Running) {
    let (sent, received) = (sender.end().well().report(), receiver.end().well().report());
    assert_eq!(sent["sent"]["bytes"], size(), "{sent}");
    assert_eq!(
        (&sent["sent"]["bytes"], &sent["sent"]["sha256"]),
        (&received["received"]["bytes"], &received["received"]["sha256"])
    );
    eprintln!("{} s", sent["sent"]["seconds"]);
}
