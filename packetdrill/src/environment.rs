//! What a script changes around the stack, as it would for the kernel's: sysctls, the route, the interface. It runs commands for that; they
//! work on a network namespace, and this looks there.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

/// The interface that scripts name.
const INTERFACE: &str = "tun0";

/// See the module.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Commands have run since it was looked at last.
    stale: bool,
    /// What is remembered of other hosts is to be forgotten (`ip tcp_metrics flush`).
    flushed: bool,
    /// The link drops all packets (`tc qdisc ... pfifo limit 0`).
    pub(crate) refuses: bool,
    /// The link cuts no super-segments (`ethtool -K tun0 tso off`): they are cut before it.
    pub(crate) plain: bool,
    /// Our address and its prefix.
    pub(crate) address: (Ipv4Addr, u8),
    pub(crate) mtu: u32,
    /// What is said of the route: pairs as `ip route` prints them (advmss, mtu, initcwnd, initrwnd, rto_min, quickack...).
    pub(crate) route: Vec<(String, String)>,
}

impl Environment {
    pub(crate) fn new() -> Environment {
        let mut environment = Environment {
            stale: true,
            flushed: false,
            refuses: false,
            plain: false,
            address: (Ipv4Addr::new(192, 168, 0, 1), 16),
            mtu: 1500,
            route: Vec::new(),
        };
        environment.refresh();
        environment
    }

    /// A command has run: `text`. That of ethtool is noted, since a tun device of nobody tells nothing of it.
    pub(crate) fn ran(&mut self, text: &str) {
        self.stale = true;
        self.flushed |= text.contains("tcp_metrics flush");
        for line in text.lines().filter(|line| line.contains("ethtool -K") && line.contains(INTERFACE)) {
            self.plain = line.contains("tso off");
        }
    }

    /// Whether what is remembered of other hosts is to be forgotten; once.
    pub(crate) fn take_flush(&mut self) -> bool {
        std::mem::take(&mut self.flushed)
    }

    /// Looks at all of it again, if a command has run; whether one had.
    pub(crate) fn refresh(&mut self) -> bool {
        if !std::mem::take(&mut self.stale) {
            return false;
        }
        let queue = output("tc", &["qdisc", "show", "dev", INTERFACE]);
        self.refuses = queue.lines().any(|line| line.contains("root") && line.ends_with("limit 0p"));
        if let Ok(mtu) = fs::read_to_string(format!("/sys/class/net/{INTERFACE}/mtu")) {
            self.mtu = mtu.trim().parse().unwrap_or(self.mtu);
        }
        let link = output("ip", &["-o", "-4", "address", "show", "dev", INTERFACE]);
        let address = link.split_whitespace().skip_while(|word| *word != "inet").nth(1);
        if let Some((address, prefix)) = address.and_then(|cidr| cidr.split_once('/'))
            && let (Ok(address), Ok(prefix)) = (address.parse(), prefix.parse())
        {
            self.address = (address, prefix);
        }
        let routes = output("ip", &["-o", "-4", "route", "show", "dev", INTERFACE]);
        let route = routes.lines().find(|line| line.contains("via")).unwrap_or_default();
        let words: Vec<&str> = route.split_whitespace().filter(|word| *word != "lock").collect();
        self.route = words.windows(2).map(|two| (two[0].to_owned(), two[1].to_owned())).collect();
        true
    }

    /// A number that the route has.
    pub(crate) fn metric(&self, name: &str) -> Option<u32> {
        self.route.iter().find(|(metric, _)| metric == name).and_then(|(_, value)| value.parse().ok())
    }
}

/// The numbers of a sysctl of net.ipv4, none if there is no such one.
pub(crate) fn sysctl(name: &str) -> Vec<i64> {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The one number of a sysctl.
pub(crate) fn one(name: &str) -> Option<i64> {
    sysctl(name).first().copied()
}

/// A sysctl that is a word.
pub(crate) fn word(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default().trim().to_owned()
}

/// What a command prints; nothing if it fails, as it does where the namespace has no such interface.
fn output(program: &str, args: &[&str]) -> String {
    let done = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output();
    done.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default()
}

/// A limit of net.core: the namespace's own, where it has one.
pub(crate) fn core(name: &str) -> Option<u32> {
    fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
}
