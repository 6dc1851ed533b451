//! Clients on this very host are not paced.
//!
//! BBR, where the system has it as its usual congestion control, spaces what it sends by the rate that it has measured. From one
//! socket to another of the same host there is no link whose rate it could be: in each space the client falls asleep, and waking it
//! takes longer than its bytes. What it finds out that way is slow, and it stays with it.

use rustix::fd::AsFd;
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use std::net::IpAddr;

/// Every kernel has it, every user may have it, and it sends as soon as it may.
const UNPACED: &str = "reno";

/// What clients of a listener get.
#[derive(Debug, Default)]
pub struct Congestion {
    /// The system's own, for those that come from elsewhere. None: it does not pace, and all are left as they are.
    usual: Option<String>,
}

impl Congestion {
    /// Has those who come to `listener` not be paced until [`settle`](Congestion::settle). (A socket that was paced once stays
    /// so, whatever it gets later: so they begin without.)
    pub fn new(listener: impl AsFd) -> Congestion {
        let usual = tcp_congestion(&listener).ok().filter(|name| paces(name));
        usual.map_or_else(Congestion::default, |usual| Congestion::instead_of(listener, usual))
    }

    fn instead_of(listener: impl AsFd, usual: String) -> Congestion {
        let changed = set_tcp_congestion(listener, UNPACED).is_ok();
        Congestion { usual: changed.then_some(usual) }
    }

    /// Gives a client that has come, `from` somewhere to an address `at` this host, what the system has for it.
    pub fn settle(&self, client: impl AsFd, from: IpAddr, at: IpAddr) {
        let Some(usual) = self.usual.as_ref().filter(|_| !is_here(from, at)) else { return };
        // Another one comes from its route (`ip route ... congctl`), and is what the operator wants for it.
        if tcp_congestion(&client).is_ok_and(|own| own == UNPACED) {
            let _ = set_tcp_congestion(client, usual); // what it has works, too
        }
    }
}

/// All of its versions do (net/ipv4/tcp_bbr.c and its successors).
fn paces(name: &str) -> bool {
    name.starts_with("bbr")
}

fn is_here(from: IpAddr, at: IpAddr) -> bool {
    from.to_canonical().is_loopback() || from == at
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    #[test]
    fn who_is_here() {
        let at = "192.0.2.1".parse().unwrap();
        for here in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "192.0.2.1"] {
            assert!(is_here(here.parse().unwrap(), at), "{here}");
        }
        for elsewhere in ["192.0.2.2", "fe80::1", "::ffff:192.0.2.2"] {
            assert!(!is_here(elsewhere.parse().unwrap(), at), "{elsewhere}");
        }
        assert!(paces("bbr") && paces("bbr3") && !paces("cubic") && !paces(UNPACED));
    }

    #[test]
    fn only_who_comes_from_elsewhere_gets_the_usual() {
        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap();
        let other = allowed.split_whitespace().find(|name| *name != UNPACED);
        let usual = other.expect("a kernel with more than one congestion control");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        set_tcp_congestion(&listener, usual).unwrap();
        let congestion = Congestion::instead_of(&listener, usual.to_owned());
        let mut clients = Vec::new();
        let mut come = || {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            listener.accept().unwrap().0
        };
        let at = Ipv4Addr::LOCALHOST.into();
        let (here, elsewhere, routed) = (come(), come(), come());
        congestion.settle(&here, at, at);
        congestion.settle(&elsewhere, Ipv6Addr::UNSPECIFIED.into(), at);
        let of = |client: &TcpStream| tcp_congestion(client).unwrap();
        assert_eq!((of(&here).as_str(), of(&elsewhere).as_str()), (UNPACED, usual));
        // A system that does not pace: nothing is touched.
        Congestion::default().settle(&routed, Ipv6Addr::UNSPECIFIED.into(), at);
        assert_eq!(of(&routed), UNPACED);
    }
}
