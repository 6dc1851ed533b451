//! Which router a packet is given to.

use onecopy_inet::ip::BadConfig;
use onecopy_inet::wire::ndp::Ndp;
use onecopy_inet::wire::{Arp, EtherType, Ethernet, Icmpv6, Ipv6};
use onecopy_link::{Link, Tap};
use onecopy_net::{BuildError, Builder, Stack, udp};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two routers of each family beside the one of all other networks.
fn routed(link: Tap) -> Builder {
    Stack::builder()
        .link(link)
        .address("10.0.0.5/24")
        .address("fd00::5/64")
        .gateway(ip("10.0.0.1"))
        .gateway(ip("fd00::1"))
        .route("10.1.0.0/16", ip("10.0.0.9"))
        .route("10.1.7.0/24", ip("10.0.0.3"))
        // The last one of a network counts.
        .route("10.1.0.0/16", ip("10.0.0.2"))
        .route("fd01::/48", ip("fd00::2"))
        .route("fd01:0:0:7::/64", ip("fe80::3"))
}

/// Whose hardware address is asked for.
fn asked(wire: &mut Tap) -> IpAddr {
    let began = Instant::now();
    while began.elapsed() < onecopy_testing::LONG {
        let Some(packet) = wire.receive(0) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let bytes = packet.to_vec().unwrap();
        let (ethernet, rest) = Ethernet::parse(&bytes).unwrap();
        match ethernet.kind {
            EtherType::ARP => return Arp::parse(rest).unwrap().0.target.into(),
            EtherType::IPV6 => {
                let (_, rest) = Ipv6::parse(rest).unwrap();
                if let Ok((Icmpv6::Solicitation, body)) = Icmpv6::parse(rest) {
                    return Ndp::parse(body).unwrap().target.into();
                }
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("nobody is asked for")
}

#[test]
fn the_router_of_the_longest_prefix_is_asked_for() {
    for (to, router) in [
        ("10.1.2.3", "10.0.0.2"),
        ("10.1.7.3", "10.0.0.3"),
        ("10.2.0.1", "10.0.0.1"),
        ("10.0.0.77", "10.0.0.77"),
        ("fd01::9", "fd00::2"),
        ("fd01:0:0:7::9", "fe80::3"),
        ("2001:db8::1", "fd00::1"),
        ("fd00::77", "fd00::77"),
    ] {
        let (link, mut wire) = Tap::cable(1500).unwrap();
        let stack = routed(link).linger(Duration::ZERO).build().unwrap();
        let to = SocketAddr::new(ip(to), 9);
        udp::Socket::unbound(&stack).unwrap().send_to(b"which way?", to).unwrap();
        assert_eq!(asked(&mut wire), ip(router), "for {to}");
    }
}

#[test]
fn a_route_that_cannot_be_is_refused() {
    let refused = |network: &str, gateway: &str| {
        let (link, _other) = Tap::cable(1500).unwrap();
        routed(link).route(network, ip(gateway)).build().unwrap_err()
    };
    for bad in ["10.1.0.0", "10.1.0.0/33", "10.1.2.3/16", "fd01::1/48", "fd01::/129", "net/8", ""] {
        let error = refused(bad, "10.0.0.2");
        assert!(matches!(&error, BuildError::Route(text) if text == bad), "{error:?}");
        assert!(error.to_string().contains(&format!("{bad:?} is no network")), "{error}");
    }
    let said = |error: BuildError| match error {
        BuildError::Config(bad) => (bad, bad.to_string()),
        other => panic!("{other:?}"),
    };
    let (bad, text) = said(refused("10.3.0.0/16", "10.9.0.1"));
    assert!(bad == BadConfig::Gateway(ip("10.9.0.1")) && text.contains("10.9.0.1"), "{text}");
    let (bad, text) = said(refused("10.3.0.0/16", "10.0.0.5"));
    assert!(bad == BadConfig::OwnGateway(ip("10.0.0.5")) && text.contains("10.0.0.5"), "{text}");
    let (bad, text) = said(refused("fd03::/16", "10.0.0.2"));
    assert!(matches!(bad, BadConfig::Family { .. }), "{bad:?}");
    assert!(text.contains("fd03::/16") && text.contains("10.0.0.2"), "{text}");
    let (link, _other) = Tap::cable(1500).unwrap();
    let many =
        (0..64).fold(routed(link), |builder, n| builder.route(&format!("10.9.{n}.0/24"), ip("10.0.0.2")));
    assert!(matches!(many.build(), Err(BuildError::Config(BadConfig::Routes))));
}
