//! What routers have said of ways: the longest packet that each takes (RFC 1191, RFC 8201). One for each host, whoever sends there.

use crate::key::{Key, Seed, Table};
use std::net::IpAddr;

/// How long a router's word is believed: net.ipv4.route.mtu_expires, 600 s. The way may be another one then.
const BELIEVED_NS: u64 = 600_000_000_000;

/// Ways that something is known of, at most. Each costs whoever makes one up a packet of ours that he has seen.
const MOST: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Paths {
    /// Each until when it holds.
    of: Table<IpAddr, (u16, u64)>,
}

impl Paths {
    /// Nothing is known.
    pub fn new(seed: &Seed) -> Paths {
        Paths { of: Table::with_hasher(Key::derive(seed, "paths")) }
    }

    /// The longest packet to there; `link` is what the link takes.
    #[inline]
    pub fn mtu(&self, now: u64, to: IpAddr, link: u32) -> u32 {
        // Nothing is known of most, most of the time.
        if self.of.is_empty() { link } else { self.known(now, to, link) }
    }

    fn known(&self, now: u64, to: IpAddr, link: u32) -> u32 {
        self.of.get(&to).filter(|(_, until)| now < *until).map_or(link, |(mtu, _)| link.min((*mtu).into()))
    }

    /// Takes note of what a router says. False where that is nothing new: it never makes a way longer.
    pub fn shrink(&mut self, now: u64, to: IpAddr, mtu: u16, link: u32) -> bool {
        if u32::from(mtu) >= self.mtu(now, to, link) {
            return false;
        }
        if self.of.len() >= MOST && !self.of.contains_key(&to) {
            let oldest = self.of.iter().min_by_key(|(_, (_, until))| *until).map(|(to, _)| *to);
            oldest.and_then(|oldest| self.of.remove(&oldest));
        }
        self.of.insert(to, (mtu, now.saturating_add(BELIEVED_NS)));
        true
    }

    /// Gives back memory that is not needed.
    pub fn rest(&mut self) {
        self.of.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_the_oldest_goes() {
        let mut paths = Paths::new(&[1; 16]);
        let host = |number: u32| IpAddr::V4(number.into());
        for number in 0..3 * MOST as u32 {
            assert!(paths.shrink(number.into(), host(number), 1400, 1500));
        }
        assert_eq!(paths.of.len(), MOST);
        let last = 3 * MOST as u32 - 1;
        assert_eq!((paths.mtu(0, host(last), 1500), paths.mtu(0, host(0), 1500)), (1400, 1500));
        assert!(!paths.shrink(0, host(last), 1450, 1500) && !paths.shrink(0, host(0), 1500, 1500));
        let later = BELIEVED_NS + u64::from(last);
        assert_eq!(
            (paths.mtu(later - 1, host(last), 1500), paths.mtu(later, host(last), 1500)),
            (1400, 1500)
        );
        // It may be said again.
        assert!(paths.shrink(later, host(last), 1450, 1500));
    }
}
