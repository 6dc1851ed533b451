//! A server closes its listener between a client's connect and the client's look for the rendezvous.

use crate::connection::open::Connecting;
use crate::core::kind::Kind;
use crate::{Carrier, Config, Op, Records, SendFlags, SeqListener, SeqPacket, SocketAddr};
use rustix::io::Errno;

fn name(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-test-{what}-{}", std::process::id())).unwrap()
}

/// Connects, and stops before the look.
fn connected(name: &SocketAddr, records: Records) -> Connecting {
    let config = Config { records, ..Config::default() };
    let mut client = Connecting::new(Kind::SeqPacket, None, name.clone(), &config).unwrap();
    client.attempt().unwrap();
    client
}

#[test]
fn a_listener_of_stream_records_is_known_though_it_was_closed_right_after_its_accept() {
    let name = name("closed-after-accept");
    let config = Config { records: Records::Stream, ..Config::default() };
    let listener = SeqListener::bind_with(&name, &config).unwrap();
    let client = connected(&name, Records::Stream);
    let (server, _) = listener.accept().unwrap();
    drop(listener);
    let client = SeqPacket::of(client.finish().unwrap());
    // The second exchange comes after the switch.
    for (from, to) in [(&client, &server), (&server, &client)].repeat(2) {
        // A piece, and the rest of its record.
        from.send_with_flags(b"re", SendFlags::empty()).unwrap();
        from.send_with_flags(b"cord", SendFlags::EOR).unwrap();
        let mut record = Vec::new();
        while record.len() < 6 {
            let mut buf = [0; 9];
            let n = to.recv(&mut buf).unwrap();
            record.extend_from_slice(&buf[..n]);
        }
        assert_eq!(record, b"record");
    }
    assert_eq!(client.path().send, Carrier::SharedMemory);
}

#[test]
fn a_plain_listener_is_not_taken_for_one_of_stream_records_however_it_was_closed() {
    let name = name("plain-closed");
    let listener = Kind::SeqPacket.socket().unwrap();
    rustix::net::bind(&listener, &name.clone().address(Op::Bind).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let client = connected(&name, Records::Stream);
    let _server = rustix::net::accept(&listener).unwrap();
    drop(listener);
    let refused = client.finish().unwrap_err();
    assert_eq!(refused.raw_os_error(), Errno::PROTONOSUPPORT.raw_os_error(), "{refused}");
}
