//! A sender that misbehaves among many at one receiver, or a receiver that misbehaves to its senders: it
//! costs the liar's own lane, and a count. Also programs of the same user that stand between them.

use crate::Datagram;
use crate::fan_in::receiver::name_for_many;
use crate::pairing::line::{hear, say, seqpacket};
use crate::wire::control_message::{Answer, ControlMessage};
use crate::wire::hello::Hello;
use crate::wire::proof;
use onecopy_ring::{Header, Ring};
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use onecopy_sys::scm::{self, Space};
use onecopy_unix::control::send_fd;
use onecopy_unix::handshake::upgrade::new_ring;
use onecopy_unix::{Carrier, Config, ReceivedFlags, RecvFlags, SendAncillary, SendFlags, SocketAddr};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::io::{IoSlice, IoSliceMut};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixDatagram};

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;
const RAW: rustix::net::SendFlags = rustix::net::SendFlags::DONTWAIT;

fn text(what: &str) -> String {
    format!("onecopy-many-{what}-{}", std::process::id())
}

fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(text(what)).unwrap()
}

/// Makes a sender that has a lane.
fn laned(to: &Datagram, name: &str) -> Datagram {
    super::lane_tests::laned(to, &abstract_(name))
}

fn ring(liar: &Datagram) -> Ring {
    liar.socket().lane().unwrap().connection().tx_ring().unwrap().clone()
}

fn line(liar: &Datagram) -> OwnedFd {
    liar.socket().lane().unwrap().connection().fd().try_clone_to_owned().unwrap()
}

/// Lets the liar misbehave, then has the victim receive. Other senders go on, on lanes before and behind the
/// liar's.
fn caught(what: &str, misbehaved: impl Fn(&Datagram)) {
    let victim = Datagram::bind(abstract_("victim")).unwrap();
    let (before, liar, behind) =
        (laned(&victim, "victim"), laned(&victim, "victim"), laned(&victim, "victim"));
    let _: BorrowedFd<'_> = victim.as_fd();
    liar.send_with_flags(b"before", NOW).unwrap();
    assert_eq!(victim.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 6);
    misbehaved(&liar);
    let (mut got, mut garbage) = (0, 0);
    for round in 0..100u8 {
        for honest in [&before, &behind] {
            honest.send_with_flags(&[round; 7], NOW).unwrap();
        }
        for _ in 0..4 {
            let mut buffer = [0; 9];
            match victim.recv_from_with_flags(&mut buffer, LOOK) {
                Ok((7, _)) => got += usize::from(buffer[..7] == [round; 7]),
                Ok(_) => garbage += 1,
                Err(error) => assert_eq!(error.raw_os_error(), Errno::AGAIN.raw_os_error(), "{what}"),
            }
        }
    }
    assert_eq!(got, 200, "{what}: others' datagrams, beside {garbage}");
    assert!(victim.stats().protocol_errors >= 1, "{what}");
    let paths = [&before, &behind].map(|honest| honest.path().send);
    assert_eq!(paths, [Carrier::SharedMemory; 2], "{what}");
    // The liar finds its lane closed, and the kernel carries on.
    while victim.recv_with_flags(&mut [0; 9], LOOK).is_ok() {}
    let sent = liar.send_with_flags(b"x", NOW);
    assert!(sent.is_ok() || liar.send_with_flags(b"x", NOW).is_ok(), "{what}: {sent:?}");
    assert!(!liar.path().is_shared_memory(), "{what}");
}

#[test]
fn every_lie_on_a_lane_costs_the_lane() {
    onecopy_testing::alone!();
    let header = |liar: &Datagram, change: &dyn Fn(&Header)| change(ring(liar).header());
    for head in [u64::MAX, 1 << 63, 1 << 40, 0] {
        caught("head", |liar| header(liar, &|header| header.writer.0.head.store(head, Release)));
    }
    for control in [u64::MAX, 1 << 33, 257, 1 << 31, 8] {
        caught("frame", |liar| {
            let ring = ring(liar);
            let head = ring.header().writer.0.head.load(Relaxed);
            ring.set_word(head as usize % ring.capacity(), control);
            ring.header().writer.0.head.store(head + 64, Release);
        });
    }
    for what in [1u64 << 40, 1 << 48, 254 << 40] {
        caught("what is not in the channel", |liar| {
            let ring = ring(liar);
            let head = ring.header().writer.0.head.load(Relaxed);
            ring.set_word(head as usize % ring.capacity(), 1 << 32 | what);
            let size = onecopy_ring::record::least_with(ring.capacity()) as u64;
            ring.header().writer.0.head.store(head + size, Release);
        });
    }
    caught("bells for nothing", |liar| {
        let line = line(liar);
        for _ in 0..70 {
            let _ = rustix::net::send(&line, b"b", RAW);
        }
        // A sender that does not ring is not looked at.
        liar.send_with_flags(b"x", NOW).unwrap();
        header(liar, &|header| header.writer.0.head.store(u64::MAX, Release));
    });
    caught("a filler that is none", |liar| {
        header(liar, &|header| {
            header.reader.0.filler.store(u32::MAX, Relaxed);
            header.reader.0.parked.store(onecopy_ring::doorbell::PARKED, Release);
        });
        liar.send_with_flags(b"x", NOW).unwrap();
    });
}

/// Control messages in the queue that only others may send, or that have no meaning, harm nobody.
#[test]
fn words_that_mean_nothing_are_datagrams_or_nothing() {
    onecopy_testing::alone!();
    let victim = Datagram::bind(abstract_("words")).unwrap();
    let (honest, liar) = (laned(&victim, "words"), laned(&victim, "words"));
    let _: BorrowedFd<'_> = victim.as_fd();
    let nonce = [7; 16];
    let stranger = Datagram::unbound().unwrap();
    let controls = [
        ControlMessage::Doorbell(nonce),
        ControlMessage::Token(nonce),
        ControlMessage::Switched { fan_in: nonce, lane: nonce },
        ControlMessage::Join { hello: nonce, secret: nonce, cookie: 1, inode: 1 },
        ControlMessage::Proof { secret: nonce, cookie: 1, number: 1 },
    ];
    for control in controls {
        // A control message without the nonce is a program's datagram.
        stranger.send_to_with_flags(&control.encode(), abstract_("words"), NOW).unwrap();
        let mut buffer = [0; 64];
        assert_eq!(victim.recv_with_flags(&mut buffer, LOOK).unwrap(), 64);
        assert_eq!(buffer, control.encode());
    }
    // A sender that has a lane may ring for nothing, even in the receiver's name. Nothing is received from
    // that.
    let doorbell = {
        let lane = liar.socket().lane().unwrap();
        let fan_in = victim.socket().fan_in().unwrap().lock();
        drop(lane);
        fan_in.nonce_of_all()
    };
    let controls = [
        ControlMessage::Doorbell(doorbell),
        ControlMessage::Token(doorbell),
        ControlMessage::Switched { fan_in: doorbell, lane: nonce },
    ];
    for control in controls {
        stranger.send_to_with_flags(&control.encode(), abstract_("words"), NOW).unwrap();
        assert!(victim.recv_with_flags(&mut [0; 64], LOOK).is_err());
        honest.send_with_flags(b"as ever", NOW).unwrap();
        assert_eq!(victim.recv_with_flags(&mut [0; 3], LOOK).unwrap(), 3);
    }
    // Anybody may send a join request, and the caller with that hello may have been sent away. No receive
    // sees it.
    let join_request = ControlMessage::Join { hello: nonce, secret: nonce, cookie: 0, inode: u64::MAX };
    let (slip, more) = (proof::slip(&join_request).unwrap(), victim.as_fd());
    for fds in [&[slip.as_fd()][..], &[more, slip.as_fd()]] {
        stranger
            .send_msg_to(&[IoSlice::new(b"x")], abstract_("words"), SendAncillary::fds(fds), NOW)
            .unwrap();
        stranger
            .send_msg_to(&[IoSlice::new(b"y")], abstract_("words"), SendAncillary::fds(fds), NOW)
            .unwrap();
        // A descriptor that no receive asks for is reported all the same.
        let (received, _) = victim.recv_datagram_with_flags(&mut [0; 3], LOOK).unwrap();
        assert_eq!((received.len, received.flags.contains(ReceivedFlags::CTRUNC)), (1, fds.len() == 2));
        for flags in [LOOK | RecvFlags::PEEK, LOOK] {
            let (received, with, _) = victim.recv_fds_with_flags(&mut [0; 3], flags).unwrap();
            assert_eq!((received.len, with.fds.len(), with.truncated), (1, fds.len() - 1, false));
        }
    }
    assert_eq!(victim.stats().protocol_errors, 0);
}

#[test]
fn a_receiver_that_lies_costs_the_lane() {
    onecopy_testing::alone!();
    let lies: [&dyn Fn(&Ring); 2] = [&|ring| ring.header().reader.0.tail.store(u64::MAX, Release), &|ring| {
        ring.header().reader.0.tail.store(1 << 40, Release)
    }];
    for misbehaved in lies {
        let liar = Datagram::bind(abstract_("liar")).unwrap();
        let victim = laned(&liar, "liar");
        misbehaved(&ring(&victim));
        let mut told = Vec::new();
        for _ in 0..2000 {
            told.extend(victim.send_with_flags(&[7; 2000], NOW).err().map(|error| error.raw_os_error()));
            if told.contains(&Errno::PROTO.raw_os_error()) {
                break;
            }
        }
        assert_eq!(told.last(), Some(&Errno::PROTO.raw_os_error()));
        assert_eq!(victim.stats().protocol_errors, 1);
        // The program was told, and the kernel carries on.
        while liar.recv_with_flags(&mut [0; 9], LOOK).is_ok() {}
        assert_eq!(victim.send_with_flags(b"x", NOW).unwrap(), 1);
        assert_eq!(victim.path().send, Carrier::Kernel);
    }
}

fn squat(of: impl AsFd) -> OwnedFd {
    let squatter = seqpacket().unwrap();
    let name = name_for_many(rustix::fs::fstat(of).unwrap().st_ino).unwrap();
    rustix::net::bind(&squatter, &name).unwrap();
    rustix::net::listen(&squatter, 4).unwrap();
    squatter
}

fn visitor(squatter: &OwnedFd) -> Option<(OwnedFd, Hello)> {
    let line = rustix::net::accept_with(squatter, SocketFlags::NONBLOCK).ok()?;
    let (hello, _) = hear(line.as_fd()).ok()??;
    Some((line, hello))
}

/// A program squats the rendezvous listener of a plain receiver, and answers without the secret. It gets
/// nothing of what is sent to that receiver, and the receiver gets nothing else.
#[test]
fn who_squats_a_rendezvous_of_many_gets_nothing() {
    onecopy_testing::alone!();
    let plain =
        UnixDatagram::bind_addr(&net::SocketAddr::from_abstract_name(text("plain")).unwrap()).unwrap();
    let squatter = squat(&plain);
    let ours = Datagram::unbound().unwrap();
    ours.connect(abstract_("plain")).unwrap();
    let (mine, to) = new_ring(1 << 16, &Config::default()).unwrap();
    let (_, back) = new_ring(4096, &Config::default()).unwrap();
    let (mut answered, mut joins) = (0, 0);
    for i in 0..3000u32 {
        ours.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        let mut buffer = [0; 99];
        let (n, join_request) = take(&plain, &mut buffer).unwrap();
        assert_eq!((n, &buffer[..4]), (4, &i.to_le_bytes()[..]));
        joins += usize::from(join_request.is_some());
        let Some((line, hello)) = visitor(&squatter) else { continue };
        let answer =
            Answer { secret: hello.nonce, fan_in: [1; 16], lane: [2; 16], capacity: 1 << 16, back: 4096 };
        let fds = [to.as_fd(), back.as_fd()];
        scm::send(&line, &[IoSlice::new(&answer.encode())], &fds, None, RAW).unwrap();
        answered += 1;
    }
    assert!(answered == 1 && (1..=4).contains(&joins), "{answered}, {joins}");
    assert_eq!(ours.path().send, Carrier::Kernel);
    assert_eq!(mine.header().writer.0.head.load(Relaxed), 0);
}

/// Receives a datagram, and the slip that came with it.
fn take(plain: &UnixDatagram, buffer: &mut [u8]) -> Option<(usize, Option<ControlMessage>)> {
    let flags = rustix::net::RecvFlags::DONTWAIT;
    let came = scm::recv(plain, &mut [IoSliceMut::new(buffer)], Space::All, flags).ok()?;
    Some((came.bytes, came.fds.last().and_then(proof::read)))
}

/// A program hands on what both sides say, over lines of its own.
#[test]
fn who_stands_between_a_sender_and_a_receiver_of_many_gets_nothing() {
    onecopy_testing::alone!();
    let b = Datagram::bind(abstract_("relay-many")).unwrap();
    let squatter = squat(b.socket().fd());
    let a = Datagram::unbound().unwrap();
    a.connect(abstract_("relay-many")).unwrap();
    let (mut kept, mut sent) = (None, 0);
    while kept.is_none() && sent < 8 {
        a.send_with_flags(&[sent], NOW).unwrap();
        kept = visitor(&squatter);
        sent += 1;
    }
    let (_line, hello) = kept.expect("it came to whom it took for the receiver's");
    // From here on the rendezvous listener is the receiver's own. The program repeats there what the sender
    // has said to it.
    drop(squatter);
    let (mut mine, mut next) = (None, 0);
    for i in sent..200u8 {
        let mut buffer = [0; 99];
        assert_eq!((b.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, next));
        next += 1;
        mine.get_or_insert_with(|| {
            let line = seqpacket().unwrap();
            let inode = rustix::fs::fstat(b.socket().fd()).unwrap().st_ino;
            rustix::net::connect(&line, &name_for_many(inode).unwrap()).unwrap();
            say(&line, &hello).unwrap();
            line
        });
        a.send_with_flags(&[i], NOW).unwrap();
    }
    let mine = mine.expect("the receiver has a rendezvous");
    let mut wire = [0; 64];
    let answer = rustix::net::recv(&mine, &mut wire[..], rustix::net::RecvFlags::DONTWAIT);
    assert!(!matches!(answer, Ok((64, _))), "he has no lane");
    assert!(!b.socket().fan_in().unwrap().lock().has_any());
    assert_eq!(a.path().send, Carrier::Kernel);
}

/// The peer's name may have passed to another socket by the time the sender makes its door.
#[test]
fn bells_go_to_nobody_but_the_peer() {
    onecopy_testing::alone!();
    for moved in [false, true] {
        let path = std::env::temp_dir().join(text("door"));
        let plain = UnixDatagram::bind(&path).unwrap();
        let rendezvous = squat(&plain);
        let a = Datagram::unbound().unwrap();
        a.connect(&path).unwrap();
        if moved {
            std::fs::remove_file(&path).unwrap();
        }
        let other = moved.then(|| UnixDatagram::bind(&path).unwrap());
        let (_ring, to) = new_ring(1 << 18, &Config::default()).unwrap();
        let (_, back) = new_ring(4096, &Config::default()).unwrap();
        plain.set_nonblocking(true).unwrap();
        let (mut lines, mut answered, mut came, mut doorbells) = (Vec::new(), false, 0, 0);
        for i in 0..2000u32 {
            a.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
            lines.extend(visitor(&rendezvous));
            let mut buffer = [0; 99];
            while let Some((n, join_request)) = take(&plain, &mut buffer) {
                if let Some(ControlMessage::Join { secret, .. }) = join_request.filter(|_| !answered) {
                    let answer =
                        Answer { secret, fan_in: [1; 16], lane: [2; 16], capacity: 1 << 18, back: 4096 };
                    let fds = [to.as_fd(), back.as_fd()];
                    let (line, _) = lines.last().unwrap();
                    scm::send(line, &[IoSlice::new(&answer.encode())], &fds, None, RAW).unwrap();
                    answered = true;
                }
                match ControlMessage::decode(&buffer[..n]) {
                    Some(ControlMessage::Doorbell(fan_in)) => doorbells += u32::from(fan_in == [1; 16]),
                    Some(_) => {}
                    None => came += 1,
                }
            }
        }
        assert!(answered);
        std::fs::remove_file(&path).unwrap();
        if let Some(other) = other {
            assert_eq!((a.path().send, a.stats().fallbacks, came), (Carrier::Kernel, 1, 2000));
            other.set_nonblocking(true).unwrap();
            assert!(other.recv(&mut [0; 99]).is_err());
        } else {
            assert_eq!((a.path().send, doorbells), (Carrier::SharedMemory, 1));
        }
    }
}

/// A program makes another socket send its join request, or say that it has switched. It gets no lane under
/// that socket's name.
#[test]
fn who_has_another_one_knock_gets_no_lane_of_its_name() {
    onecopy_testing::alone!();
    let victim = Datagram::bind(abstract_("echoed")).unwrap();
    let honest = laned(&victim, "echoed");
    // Sends whatever anybody tells it to.
    let echo = UnixDatagram::bind_addr(&net::SocketAddr::from_abstract_name(text("echo")).unwrap()).unwrap();
    let to = net::SocketAddr::from_abstract_name(text("echoed")).unwrap();
    echo.connect_addr(&to).unwrap();
    let own = UnixDatagram::unbound().unwrap();
    own.connect_addr(&to).unwrap();
    let inode = |of: &UnixDatagram| rustix::fs::fstat(of).unwrap().st_ino;
    let rendezvous = name_for_many(rustix::fs::fstat(victim.socket().fd()).unwrap().st_ino).unwrap();
    let (mut nonce, mut given) = ([0; 16], Vec::new());
    for (joins, named) in [(&echo, inode(&own)), (&echo, 1), (&own, inode(&echo)), (&own, inode(&own))] {
        let line = seqpacket().unwrap();
        rustix::net::connect(&line, &rendezvous).unwrap();
        nonce[0] += 1;
        say(&line, &Hello { nonce, capacity: 0, send_buffer: 0 }).unwrap();
        let cookie = rustix::net::sockopt::socket_cookie(&line).unwrap();
        let join_request = ControlMessage::Join { hello: nonce, secret: nonce, cookie, inode: named };
        scm::send(joins, &[IoSlice::new(b"x")], &[proof::slip(&join_request).unwrap().as_fd()], None, RAW)
            .unwrap();
        assert_eq!(victim.recv_with_flags(&mut [0; 64], LOOK).unwrap(), 1);
        let mut wire = [0; 64];
        let got = rustix::net::recv(&line, &mut wire[..], rustix::net::RecvFlags::DONTWAIT);
        given.push(matches!(got, Ok((64, _))));
    }
    assert_eq!(given, [false, false, false, true]);
    // A lane keeps its name, whoever says that it has another one.
    let lane = honest.socket().lane().unwrap();
    echo.send(&lane.switched().encode()).unwrap();
    assert!(victim.recv_with_flags(&mut [0; 64], LOOK).is_err());
    honest.send_with_flags(b"x", NOW).unwrap();
    assert_eq!(victim.recv_from_with_flags(&mut [0; 9], LOOK).unwrap().1, SocketAddr::unnamed());
}

/// Strangers that come and say nothing, or nonsense, or too much.
#[test]
fn strangers_at_a_rendezvous_keep_nobody_away_for_long() {
    onecopy_testing::alone!();
    let b = Datagram::bind(abstract_("strangers")).unwrap();
    let first = laned(&b, "strangers");
    let inode = rustix::fs::fstat(b.socket().fd()).unwrap().st_ino;
    let mut strangers = Vec::new();
    for i in 0..300 {
        let line = seqpacket().unwrap();
        if rustix::net::connect(&line, &name_for_many(inode).unwrap()).is_err() {
            break; // the backlog is full
        }
        match i % 3 {
            0 => {}
            1 => say(&line, &Hello { nonce: [i as u8; 16], capacity: 1, send_buffer: u64::MAX }).unwrap(),
            _ => send_fd(line.as_fd(), b"nonsense", line.as_fd()).unwrap(),
        }
        strangers.push(line);
    }
    assert!(strangers.len() >= 60, "{}", strangers.len());
    let late = Datagram::unbound().unwrap();
    late.connect(abstract_("strangers")).unwrap();
    for i in 0..3000u32 {
        late.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        first.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        for _ in 0..2 {
            let mut buffer = [0; 9];
            assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 4);
            assert_eq!(buffer[..4], i.to_le_bytes());
        }
    }
    assert_eq!((late.path().send, first.path().send), (Carrier::SharedMemory, Carrier::SharedMemory));
}

/// A receiver of short datagrams has no room for a control message, and control messages come at any moment.
/// None is ever received.
#[test]
fn no_word_is_cut_into_a_datagram() {
    onecopy_testing::alone!();
    let victim = Datagram::bind(abstract_("short")).unwrap();
    let honest = laned(&victim, "short");
    let nonce = victim.socket().fan_in().unwrap().lock().nonce_of_all();
    for round in 0..200usize {
        // At the last moment, when the lanes were found empty.
        onecopy_unix::failpoint::at("about to receive", move || {
            let stranger = UnixDatagram::unbound().unwrap();
            let name = net::SocketAddr::from_abstract_name(text("short")).unwrap();
            stranger.connect_addr(&name).unwrap();
            stranger.send(&ControlMessage::Doorbell(nonce).encode()).unwrap();
        });
        let flags = [LOOK, LOOK | RecvFlags::PEEK][round % 2] | RecvFlags::TRUNC;
        let got = victim.recv_with_flags(&mut [0; 9][..round % 9], flags);
        assert!(got.is_err(), "{got:?} in round {round}");
        honest.send_with_flags(b"as ever", NOW).unwrap();
        let mut buffer = [0; 3];
        assert_eq!(victim.recv_with_flags(&mut buffer, LOOK | RecvFlags::TRUNC).unwrap(), 7);
        assert_eq!(buffer, *b"as ");
    }
    // A datagram of 64 bytes is cut as ever.
    let stranger = Datagram::unbound().unwrap();
    stranger.send_to_with_flags(&[7; 64], abstract_("short"), NOW).unwrap();
    let mut buffer = [0; 9];
    let (received, _) = victim.recv_datagram_with_flags(&mut buffer[..5], LOOK).unwrap();
    assert_eq!((received.len, received.full, buffer), (5, 64, [7, 7, 7, 7, 7, 0, 0, 0, 0]));
}

/// A fork while another thread receives: the child gets an error, and does not wait for a thread that it does
/// not have.
#[test]
fn a_child_does_not_wait_for_a_thread_of_its_parent() {
    onecopy_testing::alone!();
    for with_lane in [true, false] {
        let name = ["forked-without", "forked-with"][usize::from(with_lane)];
        let victim = Datagram::bind(abstract_(name)).unwrap();
        let stranger = Datagram::unbound().unwrap();
        stranger.send_to_with_flags(b"x", abstract_(name), NOW).unwrap();
        assert_eq!(victim.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 1);
        let sender = with_lane.then(|| laned(&victim, name));
        let receiving = victim.socket().fan_in().unwrap().lock();
        let start = std::time::Instant::now();
        let child = onecopy_sys::fork::child(|| {
            std::thread::spawn(|| {
                std::thread::sleep(onecopy_testing::LONG);
                onecopy_sys::fork::kill_self();
            });
            let told = victim.recv_with_flags(&mut [0; 9], LOOK).map_err(|error| error.raw_os_error());
            i32::from(told != Err(Errno::BUSY.raw_os_error()))
        })
        .unwrap();
        assert_eq!(child.wait(), onecopy_sys::fork::Ended::Returned(0), "{name}, {:?}", start.elapsed());
        drop(receiving);
        // Lanes, if there are any, stay the parent's. Without lanes nothing has changed for the parent.
        let sender = sender.unwrap_or(stranger);
        sender.send_to_with_flags(b"still", abstract_(name), NOW).unwrap();
        assert_eq!(victim.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 5);
    }
}
