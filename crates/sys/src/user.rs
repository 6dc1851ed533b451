//! Users, as a user namespace shows them.

use std::sync::LazyLock;

/// Whether that is one user: all whom this user namespace does not map seem to be the same one (user_namespaces(7)). What that one is,
/// and whether all are mapped, is read once in a process.
pub fn is_known(uid: u32) -> bool {
    static UNKNOWN: LazyLock<Option<u32>> = LazyLock::new(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if map.split_whitespace().eq(["0", "0", "4294967295"]) {
            return None;
        }
        let said = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        Some(said.and_then(|said| said.trim().parse().ok()).unwrap_or(65534))
    });
    *UNKNOWN != Some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::{Ended, child};
    use onecopy_testing::alone;

    #[test]
    fn who_is_not_mapped_is_nobody_in_particular() {
        alone!();
        // (A process of one thread may move to another user namespace.)
        let child = child(|| {
            #[expect(deprecated, reason = "it unshares no descriptors, of which the unsafe one warns")]
            let moved = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWUSER);
            match moved {
                Ok(()) => i32::from(is_known(65534) || !is_known(0) || !is_known(1000)),
                Err(_) => 2,
            }
        });
        match child.unwrap().wait() {
            Ended::Returned(2) => println!("not tried: it may have no user namespace"),
            ended => assert_eq!(ended, Ended::Returned(0)),
        }
    }

    #[test]
    fn where_all_are_mapped_each_is_known() {
        alone!();
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        if map.split_whitespace().eq(["0", "0", "4294967295"]) {
            assert!(is_known(65534) && is_known(0));
        } else {
            println!("not tried: this user namespace maps some");
        }
    }
}
