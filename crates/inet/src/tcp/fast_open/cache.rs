//! What a client remembers of servers: RFC 7413, section 4.1.3 (the kernel's tcp_metrics).

use super::{Fail, Use};
use crate::key::{Key, Table};
use crate::wire::tcp::Cookie;
use std::net::IpAddr;
use std::time::Duration;

/// Of so many hosts, at most. The one that was learned of first makes room.
const HOSTS: usize = 1024;

/// See the module.
#[derive(Debug)]
pub struct Cache {
    hosts: Table<IpAddr, Host>,
    /// In the order in which they are forgotten, from `hand` on.
    ring: Vec<IpAddr>,
    hand: usize,
    /// Since when nothing is tried, and how often that was so in a row.
    paused_at: u64,
    pauses: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Host {
    cookie: Option<Cookie>,
    /// 0 where it is not known.
    mss: u16,
    /// 1: the option of before its number was given is tried; 2: that was tried.
    try_experimental: u8,
}

/// What goes into a SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// The option: the cookie, or that one is asked for.
    pub option: Option<Cookie>,
    /// Whether data does.
    pub carries: bool,
    /// The longest segment that the server takes, if it is known.
    pub mss: Option<u16>,
    /// Why no data does.
    pub fail: Fail,
}

/// What a connection has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The server has answered.
    Answered {
        /// Its longest segment.
        mss: u16,
        /// Its cookie.
        cookie: Option<Cookie>,
        /// It does not know the option: 1 in its new form, 2 in the old one.
        unknown: u8,
        /// It took the data.
        good: bool,
    },
    /// SYNs with the option, or with data, seem to be swallowed on the way.
    Swallowed,
}

impl Cache {
    /// Nothing is known.
    pub fn new(key: Key) -> Cache {
        Cache { hosts: Table::with_hasher(key), ring: Vec::new(), hand: 0, paused_at: 0, pauses: 0 }
    }

    /// How to open a connection to `to` (tcp_fastopen_cookie_check()).
    /// `pause` is how long nothing is tried once it was swallowed.
    pub fn attempt(&self, now: u64, how: Use, pause: Duration, to: IpAddr) -> Attempt {
        let host = self.hosts.get(&to).copied().unwrap_or_default();
        let mss = (host.mss > 0).then_some(host.mss);
        if self.is_paused(now, pause) {
            return Attempt { mss, ..Attempt::default() };
        }
        if how.contains(Use::CLIENT_NO_COOKIE) {
            return Attempt { carries: true, mss, ..Attempt::default() };
        }
        match host.cookie {
            Some(_) => Attempt { option: host.cookie, carries: true, mss, fail: Fail::None },
            None => {
                let ask = Cookie::REQUEST.in_experiment(host.try_experimental == 1);
                Attempt { option: Some(ask), carries: false, mss, fail: Fail::NoCookie }
            }
        }
    }

    /// Whether nothing is tried, since it was swallowed (tcp_fastopen_active_should_disable()).
    fn is_paused(&self, now: u64, pause: Duration) -> bool {
        let span = pause.as_nanos() as u64;
        let doubled = self.pauses.saturating_sub(1).min(6);
        self.pauses > 0 && now.saturating_sub(self.paused_at) < span.saturating_mul(1 << doubled)
    }

    /// Takes what was learned of `of` (tcp_fastopen_cache_set()).
    pub fn learn(&mut self, now: u64, of: IpAddr, news: News) {
        let News::Answered { mss, cookie, unknown, good } = news else {
            self.paused_at = now;
            self.pauses = self.pauses.saturating_add(1);
            return;
        };
        if good {
            self.pauses = 0;
        }
        let host = self.host(of);
        if mss > 0 {
            host.mss = mss;
        }
        if cookie.is_some() {
            host.cookie = cookie;
        } else if unknown > host.try_experimental && host.cookie.is_none() {
            host.try_experimental = unknown;
        }
    }

    fn host(&mut self, of: IpAddr) -> &mut Host {
        if !self.hosts.contains_key(&of) {
            if self.ring.len() < HOSTS {
                self.ring.push(of);
            } else if let Some(oldest) = self.ring.get_mut(self.hand) {
                self.hosts.remove(&std::mem::replace(oldest, of));
                self.hand = (self.hand + 1) % HOSTS;
            }
        }
        self.hosts.entry(of).or_default()
    }

    /// Of how many hosts something is known.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Forgets all of it (`ip tcp_metrics flush`).
    pub fn clear(&mut self) {
        self.hosts = Table::with_hasher(*self.hosts.hasher());
        (self.ring, self.hand) = (Vec::new(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> Cache {
        Cache::new(Key::derive(&[1; 16], "a test"))
    }

    fn answered(cookie: Option<&[u8]>, unknown: u8) -> News {
        News::Answered { mss: 900, cookie: cookie.and_then(Cookie::new), unknown, good: false }
    }

    #[test]
    fn it_is_bounded_and_forgets_the_oldest() {
        let mut cache = cache();
        for host in 0..3 * HOSTS as u32 {
            cache.learn(0, IpAddr::V4(host.into()), answered(Some(&[1; 8]), 0));
        }
        assert_eq!((cache.len(), cache.ring.len()), (HOSTS, HOSTS));
        let knows =
            |host: u32| cache.attempt(0, Use::CLIENT, Duration::ZERO, IpAddr::V4(host.into())).carries;
        assert!(!knows(2 * HOSTS as u32 - 1) && knows(2 * HOSTS as u32) && knows(3 * HOSTS as u32 - 1));
    }

    #[test]
    fn the_old_option_is_tried_once() {
        let mut cache = cache();
        let to = IpAddr::from([127, 0, 0, 1]);
        let asks =
            |cache: &Cache| cache.attempt(0, Use::CLIENT, Duration::ZERO, to).option.unwrap().experimental;
        assert!(!asks(&cache));
        cache.learn(0, to, answered(None, 1));
        assert!(asks(&cache));
        cache.learn(0, to, answered(None, 2));
        cache.learn(0, to, answered(None, 1));
        assert!(!asks(&cache));
        cache.learn(0, to, answered(Some(&[7; 4]), 0));
        let attempt = cache.attempt(0, Use::CLIENT, Duration::ZERO, to);
        assert!(attempt.carries && attempt.mss == Some(900));
        cache.clear();
        assert!(!cache.attempt(0, Use::CLIENT, Duration::ZERO, to).carries);
    }

    #[test]
    fn after_a_black_hole_it_pauses_longer_each_time() {
        let mut cache = cache();
        let pause = Duration::from_secs(10);
        let to = IpAddr::from([127, 0, 0, 1]);
        let second = 1_000_000_000;
        let tries = |cache: &Cache, at| cache.attempt(at, Use::CLIENT, pause, to).option.is_some();
        cache.learn(0, to, News::Swallowed);
        assert!(!tries(&cache, 10 * second - 1) && tries(&cache, 10 * second));
        cache.learn(10 * second, to, News::Swallowed);
        assert!(!tries(&cache, 30 * second - 1) && tries(&cache, 30 * second));
        let good = News::Answered { mss: 900, cookie: None, unknown: 0, good: true };
        cache.learn(40 * second, to, good);
        assert!(tries(&cache, 40 * second));
        // Off, as the kernel has it by default.
        cache.learn(40 * second, to, News::Swallowed);
        let off = cache.attempt(40 * second, Use::CLIENT, Duration::ZERO, to);
        assert!(off.option.is_some());
    }
}
