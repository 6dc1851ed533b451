//! Who is no peer of ours is never handed a descriptor that the program has not sent, whatever stands under its name; who is, or says
//! so, gets one, with a server's first bytes or a client's second message, and no other.
#![allow(missing_docs, reason = "a test")]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use onecopy::unix::{self, Config, Listener, Records, SeqListener, SeqPacket, Stream};
use onecopy::{Carrier, RecvFlags, SendFlags, Transport};
use onecopy_conformance::impls::kernel::{Kernel, Plain};
use onecopy_conformance::impls::{Kind, Name, Socket as _};
use onecopy_conformance::liar::{Field, INVITATION, Liar, Rings, hex};
use onecopy_conformance::socket::{Listening, Socket};
use onecopy_sys::scm::{self, Space};
use rustix::fs::{Gid, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::UnshareFlags;

const KINDS: [Kind; 2] = [Kind::Stream, Kind::SeqPacket];
const NOW: SendFlags = SendFlags::DONTWAIT;
/// Somebody else, who is no root.
const HIM: u32 = 4711;

fn name(test: &str, kind: Kind) -> (Name, unix::SocketAddr) {
    let name = format!("onecopy-plain-{test}-{kind:?}-{}", std::process::id());
    (Name::Abstract(name.clone().into_bytes()), unix::SocketAddr::from_abstract_name(name).unwrap())
}

fn connect(kind: Kind, name: &unix::SocketAddr) -> Socket {
    match kind {
        Kind::Stream => Socket::Bytes(Stream::connect(name).unwrap()),
        _ => Socket::Records(SeqPacket::connect(name).unwrap()),
    }
}

fn listen(kind: Kind, name: &unix::SocketAddr, transport: Transport) -> Listening {
    let config = Config { transport, ..Config::default() };
    match kind {
        Kind::Stream => Listening::Bytes(Listener::bind_with(name, &config).unwrap()),
        _ => Listening::Records(SeqListener::bind_with(name, &config).unwrap()),
    }
}

fn accept(listener: &Plain) -> OwnedFd {
    rustix::net::accept_with(&listener.0, SocketFlags::CLOEXEC).unwrap()
}

/// Descriptors that came to `plain` while ours has sent to it 200 times, and it now and then to ours.
fn handed(ours: &Socket, plain: impl AsFd) -> usize {
    let mut came = 0;
    for i in 0..200 {
        let sent = b"some bytes, and no descriptors";
        assert_eq!(ours.send_with_flags(sent, NOW).unwrap(), sent.len());
        let mut buffer = [0; 50];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let got = scm::recv(&plain, &mut [IoSliceMut::new(&mut buffer)], Space::All, flags).unwrap();
        assert_eq!((&buffer[..got.bytes], got.control_cut), (&sent[..], false));
        came += got.fds.len();
        if i % 20 == 10 {
            scm::send(&plain, &[IoSlice::new(b"answer")], &[], None, rustix::net::SendFlags::empty())
                .unwrap();
            assert_eq!(ours.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap(), 6);
        }
    }
    assert!(!ours.path().is_shared_memory());
    came
}

#[test]
fn a_plain_listener_is_handed_no_descriptor() {
    for kind in KINDS {
        let (plain, ours) = name("listener", kind);
        let listener = Liar::listen(kind, &plain).unwrap();
        // More than once: what is remembered of it is true, too.
        for _ in 0..3 {
            let client = connect(kind, &ours);
            assert_eq!(handed(&client, accept(&listener)), 0);
            assert!(client.stats().fallbacks > 0, "it is counted");
        }
    }
}

/// What the other tests say "none" of is seen where there is some.
#[test]
fn a_listener_that_says_that_it_is_ours_is_handed_one() {
    for kind in KINDS {
        let (plain, ours) = name("known", kind);
        let listener = Liar::listen(kind, &plain).unwrap();
        let _rendezvous = Liar::rendezvous(kind, &plain).unwrap();
        let client = connect(kind, &ours);
        assert_eq!(handed(&client, accept(&listener)), 1);
    }
}

#[test]
fn a_plain_client_is_handed_no_descriptor() {
    let nonce = hex(b"0123456789abcdef");
    let names = [
        None,
        Some("onecopy-plain-somebody".to_owned()),
        // Of another version, or none that anybody can have meant.
        Some(format!("onecopy-3-{nonce}-0")),
        Some(format!("onecopy-5-{nonce}-0-0-100000")),
        Some(format!("{INVITATION}{nonce}-0-0")),
        Some(format!("{INVITATION}{nonce}-0-0-100000-x")),
        Some(format!("{INVITATION}{}-0-0-100000", &nonce[1..])),
    ];
    for kind in KINDS {
        let (plain, ours) = name("client", kind);
        let listener = listen(kind, &ours, Transport::Auto);
        for bound in &names {
            let client = Kernel::open(kind).unwrap();
            if let Some(bound) = bound {
                client.bind(&Name::Abstract(bound.clone().into_bytes())).unwrap();
            }
            client.connect(&plain).unwrap();
            assert_eq!(handed(&listener.accept().unwrap(), &client.0), 0, "{bound:?}");
        }
        // And one that invites.
        let liar = Liar::call(kind, &plain).unwrap();
        assert_eq!(handed(&listener.accept().unwrap(), &liar.fd), 1);
    }
}

/// Nobody answers for who took over his name.
#[test]
fn a_plain_listener_in_the_place_of_one_of_ours_is_handed_no_descriptor() {
    let path: PathBuf = std::env::temp_dir().join(format!("ocf-plain-{}", std::process::id()));
    for kind in KINDS {
        let by_path = (Name::Path(path.clone()), unix::SocketAddr::from_pathname(&path).unwrap());
        for (plain, ours) in [name("heir", kind), by_path] {
            let listener = listen(kind, &ours, Transport::Auto);
            let before = connect(kind, &ours);
            before.send_with_flags(b"it is known now", NOW).unwrap();
            let served = listener.accept().unwrap();
            assert_eq!(served.recv_with_flags(&mut [0; 50], RecvFlags::DONTWAIT).unwrap(), 15);
            served.send_with_flags(b"joined", NOW).unwrap();
            assert!(before.recv_with_flags(&mut [0; 50], RecvFlags::DONTWAIT).is_ok());
            before.send_with_flags(b"in shared memory", NOW).unwrap();
            assert!(before.path().send == Carrier::SharedMemory, "{ours:?}: {:?}", before.path());
            drop(listener);
            // (A path's next file often has the number of the one before: it is the rendezvous that has to be gone.)
            let _ = std::fs::remove_file(&path);
            let heir = Liar::listen(kind, &plain).unwrap();
            let client = connect(kind, &ours);
            assert_eq!(handed(&client, accept(&heir)), 0);
            drop(heir);
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[test]
fn a_listener_that_is_told_to_stay_with_the_kernel_is_handed_no_descriptor() {
    for kind in KINDS {
        let (_, ours) = name("kernel", kind);
        let listener = listen(kind, &ours, Transport::Kernel);
        let client = connect(kind, &ours);
        assert_eq!(handed(&client, listener.accept().unwrap().as_fd()), 0);
    }
}

/// A rendezvous is for one kind of connections.
#[test]
fn a_rendezvous_of_another_kind_says_nothing() {
    for (kind, others) in
        [(Kind::Stream, [Kind::SeqPacket, Kind::Pieces]), (Kind::SeqPacket, [Kind::Stream, Kind::Pieces])]
    {
        let (plain, ours) = name("kind", kind);
        let listener = Liar::listen(kind, &plain).unwrap();
        let _others = others.map(|other| Liar::rendezvous(other, &plain).unwrap());
        assert_eq!(handed(&connect(kind, &ours), accept(&listener)), 0);
    }
    // And records that are kept as a stream are agreed upon before the first one.
    let (plain, ours) = name("pieces", Kind::Pieces);
    let _listener = Liar::listen(Kind::Pieces, &plain).unwrap();
    let _other = Liar::rendezvous(Kind::SeqPacket, &plain).unwrap();
    let config = Config { records: Records::Stream, ..Config::default() };
    let error = SeqPacket::connect_with(&ours, &config).unwrap_err();
    assert_eq!(error.raw_os_error(), rustix::io::Errno::PROTONOSUPPORT.raw_os_error());
}

/// What takes root.
fn may(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not tried: it takes root to {what}");
    }
    root
}

/// In a thread of that user.
fn as_him<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let thread = s.spawn(|| {
            let (uid, gid) = (Uid::from_raw(HIM), Gid::from_raw(HIM));
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

/// Anybody may take an abstract name first: it is believed only of the user who listens.
#[test]
fn a_rendezvous_of_another_user_is_not_believed() {
    if !may("be somebody else") {
        return;
    }
    for kind in KINDS {
        for his_rendezvous in [true, false] {
            let (plain, ours) = name(&format!("squatted-{his_rendezvous}"), kind);
            let listening = || Liar::listen(kind, &plain).unwrap();
            let rendezvous = || Liar::rendezvous(kind, &plain).unwrap();
            let (listener, _rendezvous) = match his_rendezvous {
                true => (listening(), as_him(rendezvous)),
                false => (as_him(listening), rendezvous()),
            };
            let client = connect(kind, &ours);
            assert_eq!(handed(&client, accept(&listener)), 0, "his rendezvous: {his_rendezvous}");
        }
        // Both his: then it is known for what it is, also to another user.
        let (plain, ours) = name("his", kind);
        let (listener, _rendezvous) =
            as_him(|| (Liar::listen(kind, &plain).unwrap(), Liar::rendezvous(kind, &plain).unwrap()));
        assert_eq!(handed(&connect(kind, &ours), accept(&listener)), 1);
    }
}

/// A rendezvous that somebody else was first with does not keep ours from listening: what is not known is asked for by who answers.
#[test]
fn a_squatted_rendezvous_costs_the_first_bytes_their_way_and_no_more() {
    if !may("be somebody else") {
        return;
    }
    for kind in KINDS {
        let (plain, ours) = name("first", kind);
        let _squatted = as_him(|| Liar::rendezvous(kind, &plain).unwrap());
        let listener = listen(kind, &ours, Transport::Auto);
        let client = connect(kind, &ours);
        let server = listener.accept().unwrap();
        for (from, to) in [(&client, &server), (&server, &client), (&client, &server), (&server, &client)] {
            from.send_with_flags(b"bytes", NOW).unwrap();
            assert_eq!(to.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap(), 5);
        }
        assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
    }
}

/// A client's program may pass on a descriptor that it was given by anybody, who has labelled it for that connection: the nonce stands in
/// /proc/net/unix. (He would have sent under the client's name, and received what was for it.)
#[test]
fn rings_that_another_user_has_made_are_not_joined() {
    if !may("be somebody else") {
        return;
    }
    for kind in KINDS {
        let (plain, ours) = name("forwarded", kind);
        let listener = listen(kind, &ours, Transport::Auto);
        let mut client = Liar::call(kind, &plain).unwrap();
        let server = listener.accept().unwrap();
        let nonce = client.nonce;
        let rings = || Rings::honest([64 << 10; 2], nonce).unwrap();
        for (rings, joined) in [(as_him(rings), 0), (rings(), 1)] {
            client.attach(b"h", &[], rings).unwrap();
            assert_eq!(server.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap(), 1);
            assert_eq!(client.theirs().unwrap().get(Field::Joined).unwrap(), joined);
        }
        assert_eq!(server.stats().protocol_errors, 0);
    }
}

/// A daemon listens as root, and gives that up: a client of another user believes no rings of its new user, and brings its own.
#[test]
fn a_server_that_is_not_who_listened_leaves_the_rings_to_its_client() {
    if !may("be somebody else") {
        return;
    }
    for kind in KINDS {
        let (_, ours) = name("dropped", kind);
        let listener = listen(kind, &ours, Transport::Auto);
        let client = connect(kind, &ours);
        client.send_with_flags(b"ask", NOW).unwrap();
        let server = as_him(|| {
            let server = listener.accept().unwrap();
            assert_eq!(server.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap(), 3);
            server.send_with_flags(b"answer", NOW).unwrap();
            server
        });
        for _ in 0..2 {
            assert_eq!(client.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap(), 6);
            client.send_with_flags(b"ask", NOW).unwrap();
            as_him(|| {
                assert_eq!(server.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap(), 3);
                server.send_with_flags(b"answer", NOW).unwrap();
            });
        }
        assert_eq!(client.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap(), 6);
        assert!(client.path().is_shared_memory(), "{:?}", client.path());
        assert_eq!(client.stats().fallbacks + server.stats().fallbacks, 0);
    }
}

/// Who connects takes a place in a queue for which an administrator may have left little room.
#[test]
fn a_short_backlog_hides_no_listener_from_who_comes_one_after_the_other() {
    if !may("have a network namespace") {
        return;
    }
    let thread = std::thread::spawn(|| {
        #[expect(deprecated, reason = "it unshares no descriptors, of which the unsafe one warns")]
        rustix::thread::unshare(UnshareFlags::NEWNET).unwrap();
        std::fs::write("/proc/sys/net/core/somaxconn", "16").unwrap();
        let (plain, ours) = name("backlog", Kind::Pieces);
        let config = Config { records: Records::Stream, ..Config::default() };
        let listener = SeqListener::bind_with(&ours, &config).unwrap();
        for number in 0..100 {
            let client = SeqPacket::connect_with(&ours, &config);
            let client = client.unwrap_or_else(|error| panic!("connection {number}: {error}"));
            let (server, _) = listener.accept().unwrap();
            client.send_with_flags(b"record", SendFlags::EOR).unwrap();
            assert_eq!(server.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap(), 6);
        }
        // And a queue that is full is said to be.
        let Name::Abstract(plain) = plain else { unreachable!("it is abstract") };
        let rendezvous = [&b"onecopy-4-at-r@"[..], &plain].concat();
        let rendezvous = SocketAddrUnix::new_abstract_name(&rendezvous).unwrap();
        let callers = std::iter::from_fn(|| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let caller =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            rustix::net::connect(&caller, &rendezvous).ok().map(|()| caller)
        });
        let callers: Vec<_> = callers.take(100).collect();
        assert!(callers.len() < 100, "the queue has room for all");
        let error = SeqPacket::connect_with(&ours, &config).unwrap_err();
        assert!(error.would_block(), "{error}");
    });
    thread.join().unwrap();
}
