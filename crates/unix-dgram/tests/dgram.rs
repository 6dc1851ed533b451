//! Datagram sockets: how two of them come to share memory, how they stop, and that no other socket is
//! affected.

use onecopy_testing::{alone, asleep, descriptors};
use onecopy_unix::{Config, Policy, RecvFlags, SendFlags, SocketAddr, Transport};
use onecopy_unix_dgram::Datagram;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixDatagram};

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;

fn name(what: &str) -> String {
    format!("onecopy-test-{what}-{}", std::process::id())
}

fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name(what)).unwrap()
}

/// Returns two sockets with names that are connected to each other.
fn met(what: &str, config: &Config) -> (Datagram, Datagram) {
    let (one, other) = (abstract_(&format!("{what}-a")), abstract_(&format!("{what}-b")));
    let a = Datagram::bind_with(&one, config).unwrap();
    let b = Datagram::bind_with(&other, config).unwrap();
    a.connect(&other).unwrap();
    b.connect(&one).unwrap();
    (a, b)
}

/// Sends to and fro until both share memory. Checks that nothing is lost, duplicated or out of order.
fn upgraded(what: &str) -> (Datagram, Datagram) {
    let (a, b) = met(what, &Config::default());
    for i in 0..60u8 {
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.send_with_flags(&[i], NOW).unwrap();
            let mut buffer = [0; 9];
            assert_eq!(to.recv(&mut buffer).unwrap(), 1);
            assert_eq!(buffer[0], i);
        }
    }
    assert!(a.path().is_shared_memory() && b.path().is_shared_memory(), "{:?}, {:?}", a.path(), b.path());
    (a, b)
}

fn errno<T: std::fmt::Debug>(result: onecopy_unix::Result<T>) -> Errno {
    Errno::from_raw_os_error(result.unwrap_err().raw_os_error())
}

#[test]
fn two_that_are_connected_to_each_other_come_to_share_memory() {
    alone!();
    let (a, b) = upgraded("upgrade");
    let before = a.stats().kernel_copied;
    a.send_with_flags(&[7; 5000], SendFlags::NTCOPY).unwrap();
    assert_eq!(b.recv(&mut [0; 5000]).unwrap(), 5000);
    let stats = a.stats();
    assert_eq!((stats.kernel_copied, stats.user_copied_nt, stats.fallbacks), (before, 5000, 0));
    assert_eq!(
        b.recv_from_with_flags(&mut [0; 9], LOOK).unwrap_err().raw_os_error(),
        Errno::AGAIN.raw_os_error()
    );
    assert_eq!(a.peer_cred().unwrap().pid, std::process::id() as i32);
}

#[test]
fn one_way_is_enough() {
    alone!();
    let (a, b) = met("oneway", &Config::default());
    // One socket only sends, and the other only receives. Every datagram arrives once and in order.
    for i in 0..3000u32 {
        a.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        let mut buffer = [0; 9];
        assert_eq!(b.recv(&mut buffer).unwrap(), 4);
        assert_eq!(buffer[..4], i.to_le_bytes());
    }
    use onecopy_unix::Carrier::SharedMemory;
    assert_eq!((a.path().send, b.path().receive), (SharedMemory, SharedMemory));
}

#[test]
fn a_sender_ahead_of_its_receiver_loses_nothing_when_it_switches() {
    alone!();
    let (a, b) = met("ahead", &Config::default());
    let (mut sent, mut received) = (0u32, 0u32);
    while received < 20_000 {
        for _ in 0..40 {
            match a.send_with_flags(&sent.to_le_bytes(), NOW) {
                Ok(_) => sent += 1,
                Err(error) if error.would_block() => break,
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..30 {
            let mut buffer = [0; 9];
            match b.recv_with_flags(&mut buffer, LOOK) {
                Ok(n) => assert_eq!((n, &buffer[..4]), (4, &received.to_le_bytes()[..])),
                Err(error) if error.would_block() => break,
                Err(error) => panic!("{error}"),
            }
            received += 1;
        }
    }
    assert_eq!(a.path().send, onecopy_unix::Carrier::SharedMemory);
}

#[test]
fn many_threads_may_use_both_while_they_switch() {
    alone!();
    let (a, b) = met("threads", &Config::default());
    let seen = std::sync::Mutex::new(vec![0u32; 4]);
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let a = &a;
            s.spawn(move || {
                for i in 0..5000u32 {
                    let [x, y, ..] = i.to_le_bytes();
                    a.send(&[t, x, y]).unwrap();
                }
            });
        }
        for _ in 0..3 {
            let (b, seen) = (&b, &seen);
            s.spawn(move || {
                b.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
                let mut buffer = [0; 99];
                while let Ok(n) = b.recv(&mut buffer) {
                    if n == 0 {
                        return; // shut down
                    }
                    assert_eq!(n, 3, "{:?}", &buffer[..n]);
                    let mut seen = seen.lock().unwrap();
                    seen[usize::from(buffer[0])] += 1;
                    if seen.iter().sum::<u32>() == 20_000 {
                        b.shutdown(std::net::Shutdown::Read).unwrap();
                    }
                    if seen.iter().sum::<u32>() >= 20_000 {
                        return;
                    }
                }
            });
        }
    });
    assert_eq!(*seen.lock().unwrap(), [5000; 4]);
}

#[test]
fn a_plain_peer_never_sees_a_foreign_byte() {
    alone!();
    let address = |what: &str| net::SocketAddr::from_abstract_name(name(what)).unwrap();
    let ours = Datagram::bind(abstract_("plain-ours")).unwrap();
    let plain = UnixDatagram::bind_addr(&address("plain")).unwrap();
    ours.connect(abstract_("plain")).unwrap();
    plain.connect_addr(&address("plain-ours")).unwrap();
    plain.set_nonblocking(true).unwrap();
    let mut buffer = [0; 99];
    for i in 0..5000u32 {
        ours.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        assert_eq!(plain.recv(&mut buffer).unwrap(), 4);
        assert_eq!(buffer[..4], i.to_le_bytes());
        assert!(plain.recv(&mut buffer).is_err());
        plain.send(&buffer[..4]).unwrap();
        assert_eq!(ours.recv_with_flags(&mut buffer, LOOK).unwrap(), 4);
    }
    assert_eq!((ours.path().send, ours.path().receive), {
        use onecopy_unix::Carrier::Kernel;
        (Kernel, Kernel)
    });
}

/// A stranger that was there before sends a datagram that looks like the one that switches.
#[test]
fn a_nonce_that_was_not_given_is_a_datagram_like_any_other() {
    alone!();
    let (one, other) = (abstract_("forged-a"), abstract_("forged-b"));
    let (a, b) = (Datagram::bind(&one).unwrap(), Datagram::bind(&other).unwrap());
    let mut forged = [0u8; 64];
    forged[..8].copy_from_slice(b"onecopy\x03");
    let liar = UnixDatagram::unbound().unwrap();
    let address = net::SocketAddr::from_abstract_name(name("forged-b")).unwrap();
    for _ in 0..3 {
        liar.send_to_addr(&forged, &address).unwrap();
    }
    a.connect(&other).unwrap();
    b.connect(&one).unwrap();
    for i in 0..20u8 {
        a.send_with_flags(&[i], NOW).unwrap();
        let _ = a.recv_with_flags(&mut [0; 9], LOOK);
        let _ = b.send_with_flags(&[i], NOW);
    }
    let mut buffer = [0; 99];
    for _ in 0..3 {
        assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 64);
        assert_eq!(buffer[..64], forged);
    }
    for i in 0..20u8 {
        assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 1);
        assert_eq!(buffer[0], i);
    }
}

/// A sender that sleeps for room, in the ring or in the kernel's queue, does not keep others from connecting.
#[test]
fn a_sender_asleep_does_not_keep_others_from_disconnecting() {
    alone!();
    for upgrade in [true, false] {
        let (a, b) = if upgrade {
            upgraded("asleep")
        } else {
            let b = Datagram::bind(abstract_("asleep-there")).unwrap();
            let a = Datagram::unbound().unwrap();
            a.connect(abstract_("asleep-there")).unwrap();
            (a, b)
        };
        std::thread::scope(|scope| {
            let sender = asleep(scope, || {
                loop {
                    if let Err(error) = a.send(&[7; 1000]) {
                        return error;
                    }
                }
            });
            assert!(!sender.is_finished());
            let start = std::time::Instant::now();
            a.disconnect().unwrap();
            assert!(start.elapsed() < onecopy_testing::LONG);
            assert_eq!(sender.join().unwrap().raw_os_error(), Errno::NOTCONN.raw_os_error());
        });
        drop(b);
    }
}

#[test]
fn who_is_told_to_stay_with_the_kernel_does() {
    alone!();
    let (a, b) = met("kernel", &Config { transport: Transport::Kernel, ..Config::default() });
    for _ in 0..100 {
        a.send_with_flags(b"x", NOW).unwrap();
        b.recv_with_flags(&mut [0; 9], LOOK).unwrap();
        b.send_with_flags(b"y", NOW).unwrap();
        a.recv_with_flags(&mut [0; 9], LOOK).unwrap();
    }
    assert!(!a.path().is_shared_memory());
    assert_eq!((a.stats().user_copied(), a.stats().fallbacks), (0, 0));
}

#[test]
fn after_another_peer_the_kernel_carries_on_and_nobody_gets_a_bell() {
    alone!();
    let (a, b) = upgraded("leave");
    let address = net::SocketAddr::from_abstract_name(name("leave-plain")).unwrap();
    let plain = UnixDatagram::bind_addr(&address).unwrap();
    plain.set_nonblocking(true).unwrap();
    a.send_with_flags(b"last", NOW).unwrap();
    a.connect(abstract_("leave-plain")).unwrap();
    let mut buffer = [0; 99];
    assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 4);
    assert_eq!(errno(b.send_with_flags(b"x", NOW)), Errno::PERM);
    for i in 0..100u8 {
        a.send_with_flags(&[i], NOW).unwrap();
        assert_eq!(plain.recv(&mut buffer).unwrap(), 1);
    }
    assert!(plain.recv(&mut buffer).is_err(), "nothing but what was sent");
    // The socket is still connected to the one that left, which may therefore send, as with the kernel.
    a.send_to_with_flags(b"again", abstract_("leave-b"), NOW).unwrap();
    assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 5);
    assert_eq!(errno(b.recv_with_flags(&mut buffer, LOOK)), Errno::AGAIN);
    assert!(!a.path().is_shared_memory() && b.stats().protocol_errors == 0);
}

#[test]
fn a_name_that_may_be_the_peers_ends_the_sharing_and_loses_nothing() {
    alone!();
    let dir = std::env::temp_dir().join(name("dir"));
    std::fs::create_dir(&dir).unwrap();
    let (one, other) = (dir.join("a"), dir.join("b"));
    let a = Datagram::bind(one.as_path()).unwrap();
    let b = Datagram::bind(other.as_path()).unwrap();
    a.connect(other.as_path()).unwrap();
    b.connect(one.as_path()).unwrap();
    let mut buffer = [0; 99];
    for _ in 0..60 {
        a.send_with_flags(b"x", NOW).unwrap();
        b.recv_with_flags(&mut buffer, LOOK).unwrap();
        b.send_with_flags(b"x", NOW).unwrap();
        a.recv_with_flags(&mut buffer, LOOK).unwrap();
    }
    assert!(a.path().is_shared_memory());
    a.send_with_flags(b"ring", NOW).unwrap();
    std::os::unix::fs::symlink(&dir, dir.join("same")).unwrap();
    a.send_to_with_flags(b"by another path", dir.join("same").join("b"), NOW).unwrap();
    a.send_with_flags(b"kernel", NOW).unwrap();
    for expected in [&b"ring"[..], b"by another path", b"kernel"] {
        let n = b.recv_with_flags(&mut buffer, LOOK).unwrap();
        assert_eq!(&buffer[..n], expected);
    }
    assert_eq!((b.stats().protocol_errors, a.stats().fallbacks), (0, 1));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_closed_socket_leaves_no_descriptor() {
    alone!();
    // The first socket makes the table of counters.
    drop(Datagram::pair().unwrap());
    for i in 0..20 {
        let before = descriptors();
        let (a, b) = upgraded(&format!("fds-{i}"));
        assert!(a.as_fd().try_clone_to_owned().is_ok());
        drop((a, b));
        assert_eq!(descriptors(), before);
    }
}

#[test]
fn the_policy_is_for_datagrams_too() {
    alone!();
    let (a, b) = Datagram::pair().unwrap();
    a.set_policy(Policy::NonTemporal);
    a.send_with_flags(&[1; 4096], NOW).unwrap();
    a.set_policy(Policy::Cached);
    a.send_with_flags(&[1; 4096], NOW).unwrap();
    assert_eq!((a.stats().user_copied_nt, a.stats().user_copied_in), (4096, 8192));
    assert_eq!(b.recv_with_flags(&mut [0; 9000], LOOK).unwrap(), 4096);
}
