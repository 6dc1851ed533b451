//! IPv6, by the same calls.

use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Stack, udp};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr};
use std::thread;

fn stacks() -> (Stack, Stack) {
    let (a, b) = Tap::cable(1500).unwrap();
    let build = |tap, four, six| {
        let builder = Stack::builder().link(tap).address(four).address(six);
        builder.gateway("10.0.0.254".parse().unwrap()).gateway("fd00::fe".parse().unwrap()).build().unwrap()
    };
    (build(a, "10.0.0.1/24", "fd00::1/64"), build(b, "10.0.0.2/24", "fd00::2/64"))
}

#[test]
fn a_stream_goes_both_ways() {
    let (a, b) = stacks();
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 80);
    let listener = Listener::bind(&b, any).unwrap();
    let to: SocketAddr = "[fd00::2]:80".parse().unwrap();
    let echo = thread::spawn(move || {
        let (mut server, from) = listener.accept().unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        server.write_all(&all).unwrap();
        from
    });
    let mut client = Stream::connect(&a, to).unwrap();
    let data: Vec<u8> = (0..1_000_000_u32).map(|n| (n / 7) as u8).collect();
    client.write_all(&data).unwrap();
    assert_eq!(client.peer_addr().unwrap(), to);
    client.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert!(back == data);
    assert_eq!(echo.join().unwrap(), client.local_addr().unwrap());
    // IPv4's port is another one, and nobody has it.
    let refused = Stream::connect(&a, SocketAddr::from(([10, 0, 0, 2], 80))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn datagrams_keep_their_bounds() {
    let (a, b) = stacks();
    let server = udp::Socket::bind(&b, "[fd00::2]:53".parse().unwrap()).unwrap();
    let client = udp::Socket::bind(&a, "[fd00::1]:0".parse().unwrap()).unwrap();
    for len in [0, 1, 1452] {
        assert_eq!(client.send_to(&vec![7; len], server.local_addr().unwrap()).unwrap(), len);
        let mut buffer = [0; 2000];
        let (n, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!((n, from), (len, client.local_addr().unwrap()));
    }
    let long = client.send_to(&[7; 1453], server.local_addr().unwrap()).unwrap_err();
    assert_eq!(long.raw_os_error(), 90, "EMSGSIZE: {long}");
    let other = client.send_to(b"x", SocketAddr::from(([10, 0, 0, 2], 53))).unwrap_err();
    assert_eq!(other.raw_os_error(), 97, "EAFNOSUPPORT: {other}");
}
