//! Sockets that are passed on to a process that is no forked child: this program, run again as [`the_heir`].

mod either;
mod heir;

use either::Socket;
use heir::{HEIR, Heir, take};
use onecopy_testing::{alone, descriptors};
use onecopy_unix::{
    Config, Listener, Records, RecvFlags, SendFlags, SeqListener, SeqPacket, SocketAddr, Stream, Transport,
};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{Errno, FdFlags};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

const INHERITED: &str = "ONECOPY_TEST_HEIR_FDS";
const PATIENCE: Option<Duration> = Some(onecopy_testing::LONG);
const NOW: RecvFlags = RecvFlags::DONTWAIT;

/// Returns two sockets that are connected by name. The first is the client.
fn connected(what: &str, config: &Config) -> (SeqPacket, SeqPacket) {
    let name =
        SocketAddr::from_abstract_name(format!("onecopy-passing-{what}-{}", std::process::id())).unwrap();
    let listener = SeqListener::bind_with(name.clone(), config).unwrap();
    let client = SeqPacket::connect_with(name, config).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A socket that is not passed on stays what it was. Either a descriptor is missing, or the peer would take
/// it for one that keeps no stream records.
#[test]
fn what_is_not_passed_on_may_still_be_upgraded() {
    alone!();
    let cases = [
        (Records::Stream, false, Errno::AGAIN),
        (Records::Stream, true, Errno::AGAIN),
        (Records::Atomic, false, Errno::OPNOTSUPP),
    ];
    for (records, passable, errno) in cases {
        let config = Config { records, passable, ..Config::default() };
        let (a, b) = connected(&format!("upgrading-{records:?}-{passable}"), &config);
        // There are rings, which go with its first message.
        drop(b.reserve(1).unwrap());
        let refused = b.into_fds().unwrap_err();
        assert_eq!(refused.error.raw_os_error(), errno.raw_os_error());
        let b = refused.socket;
        assert_eq!(b.share_fds().unwrap_err().raw_os_error(), errno.raw_os_error());
        for i in 0..4 {
            let (from, to) = if i % 2 == 0 { (&b, &a) } else { (&a, &b) };
            from.send_with_flags(b"x", SendFlags::EOR).unwrap();
            assert_eq!(to.recv_with_flags(&mut [0; 9], NOW).unwrap(), 1);
        }
        assert!(a.path().is_shared_memory() && b.path().is_shared_memory());
    }
}

fn passable() -> Config {
    Config { send_buffer: Some(8192), receive_buffer: Some(8192), passable: true, ..Config::default() }
}

const KINDS: [&str; 3] = ["stream", "records", "parts"];

/// Sends back what comes, as it comes, until that was `bytes` bytes.
fn echo(socket: &Socket, mut bytes: usize) {
    let mut buffer = [0; 4000];
    while bytes > 0 {
        // Atomic records are not cut: the count ends with one.
        let max = buffer.len().min(bytes);
        let (n, _) = socket.recv(&mut buffer[..max], RecvFlags::empty()).unwrap();
        assert!(n > 0);
        socket.send(&buffer[..n]);
        bytes -= n;
    }
}

/// The other process: takes a socket, echoes what comes, and gives the socket back.
#[test]
fn the_heir() {
    let Ok(what) = std::env::var(HEIR) else { return };
    let mut words = what.split(' ');
    let (kind, name) = (words.next().unwrap(), words.next().unwrap());
    if kind == "liars" {
        drop(Stream::connect(SocketAddr::from_abstract_name(name).unwrap()).unwrap());
        return lies_are_refused_and_leak_nothing();
    }
    let (kind, exec) = kind.strip_suffix("-exec").map_or((kind, false), |kind| (kind, true));
    if let Ok(fds) = std::env::var(INHERITED) {
        // Does what `OwnedFd::from_raw_fd` does, without unsafe code: makes copies.
        let me = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let own = |fd: &str| pidfd_getfd(&me, fd.parse().unwrap(), PidfdGetfdFlags::empty()).unwrap();
        let mut lists = fds.split(' ').map(|list| list.split(',').map(own).collect::<Vec<_>>());
        let to = Stream::from_fds_with(lists.next().unwrap(), &passable()).unwrap();
        let fds = lists.next().unwrap();
        return inherit(kind, &to, fds);
    }
    let config = Config { passable: true, ..Config::default() };
    let to = Stream::connect_with(SocketAddr::from_abstract_name(name).unwrap(), &config).unwrap();
    to.set_read_timeout(PATIENCE).unwrap();
    let fds = take(&to);
    if let Some(kind) = kind.strip_suffix("-shared") {
        let socket = Socket::from_fds(kind, fds).unwrap().patient();
        return trade(&socket, words.next().map_or(0, |id| id.parse().unwrap()));
    }
    if !exec {
        return inherit(kind, &to, fds);
    }
    // First through this process, then across exec, with the stream that it came over.
    let socket = Socket::from_fds(kind, fds).unwrap();
    echo(&socket, 1000);
    to.send(b"?").unwrap();
    let (to, fds) = (to.into_fds().unwrap(), socket.into_fds());
    let list = |fds: &[OwnedFd]| {
        let number = |fd: &OwnedFd| {
            rustix::io::fcntl_setfd(fd, FdFlags::empty()).unwrap();
            fd.as_raw_fd().to_string()
        };
        fds.iter().map(number).collect::<Vec<_>>().join(",")
    };
    let numbers = format!("{} {}", list(&to), list(&fds));
    let error = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_heir", "--nocapture"])
        .env(HEIR, format!("{kind} {name}"))
        .env(INHERITED, numbers)
        .exec();
    panic!("{error}");
}

fn inherit(kind: &str, to: &Stream, fds: Vec<OwnedFd>) {
    let socket = Socket::from_fds(kind, fds).unwrap().patient();
    echo(&socket, 4000);
    let fds = socket.into_fds();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    to.send_fds(b"!", &fds).unwrap();
}

/// Returns bytes from `from` on that tell where they are.
fn counting(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i / 251 * 7 + i % 251) as u8).collect()
}

/// Receives `len` bytes, which count on from `from`.
fn expect(socket: &Socket, mut from: usize, len: usize) {
    let end = from + len;
    let mut buffer = [0; 4000];
    while from < end {
        let max = buffer.len().min(end - from);
        let (n, _) = socket.recv(&mut buffer[..max], RecvFlags::empty()).unwrap();
        assert!(n > 0 && buffer[..n] == counting(from, n), "at {from}");
        from += n;
    }
}

/// One end goes to another process and comes back. Both directions have data in their rings. Where a message
/// can be received in part, one was.
fn there_and_back(kind: &str, exec: bool) {
    let (a, b) = Socket::pair(kind, &passable());
    assert!(a.is_shared_memory());
    a.send(&counting(0, 700));
    a.send(&counting(700, 300));
    b.send(&counting(0, 500));
    if kind != "records" {
        expect(&b, 0, 300);
    }
    let skipped = if kind == "records" { 0 } else { 300 };
    let file = std::fs::File::open("/dev/null").unwrap();
    let heir = Heir::start(&if exec { format!("{kind}-exec") } else { kind.to_owned() });
    heir.give(b.into_fds());
    // These are sent while the socket is on its way.
    a.send(&counting(1000, 1000));
    expect(&a, 0, 500);
    let total = if exec { 5000 } else { 4000 };
    if exec {
        expect(&a, skipped, 1000);
        assert_eq!(heir.to.recv(&mut [0; 1]).unwrap(), 1);
    }
    let (mut sent, mut got) = (2000, skipped + if exec { 1000 } else { 0 });
    while got < total + skipped {
        let more = (total + skipped - sent).min(777);
        if more > 0 {
            a.send(&counting(sent, more));
            sent += more;
        }
        let some = (sent - got).min(if more > 0 { 500 } else { usize::MAX });
        if kind == "stream" {
            expect(&a, got, some);
            got += some;
        } else {
            let mut record = [0; 4000];
            let (n, _) = a.recv(&mut record, RecvFlags::empty()).unwrap();
            assert_eq!(record[..n], counting(got, n));
            got += n;
        }
    }
    let b = Socket::from_fds(kind, heir.take()).unwrap().patient();
    heir.ends_well();
    a.send(&counting(0, 100));
    expect(&b, 0, 100);
    b.send_fd(&counting(0, 10), file.as_fd());
    let (n, fds) = a.recv(&mut [0; 10], RecvFlags::empty()).unwrap();
    assert_eq!((n, fds.len()), (10, 1));
    assert_eq!((a.protocol_errors(), b.protocol_errors()), (0, 0));
    assert!(b.is_shared_memory());
    drop(b);
    assert_eq!(a.recv(&mut [0; 1], RecvFlags::empty()).unwrap().0, 0, "no copy of it is left");
}

const TRADES: u8 = 100;
/// Bytes of a record. A stream's messages may be longer than its buffer.
const MESSAGE: usize = 1000;

/// Sends messages that state their sender and their number. Receives as many whole ones, from any sender.
fn trade(socket: &Socket, id: u8) {
    let mut message = [0; MESSAGE];
    for i in 0..TRADES {
        message.fill(i);
        message[0] = id;
        socket.send(&message);
        let (n, _) = socket.recv(&mut message, RecvFlags::WAITALL).unwrap();
        assert_eq!(n, MESSAGE);
        assert!(message.iter().all(|byte| *byte == message[0]), "torn");
    }
}

/// Other programs use a socket at the same time as this one, which answers itself.
#[test]
fn a_socket_is_shared_with_other_programs() {
    alone!();
    for kind in KINDS {
        let heirs = ["1", "2"].map(|id| Heir::with(&format!("{kind}-shared"), id));
        let (a, b) = Socket::pair(kind, &passable());
        for heir in &heirs {
            // The same over a stream of this crate.
            heir.give(b.share_fds());
        }
        let mut next = [0; 4];
        std::thread::scope(|scope| {
            scope.spawn(|| trade(&b, 3));
            let mut message = [0; MESSAGE];
            for i in 0..3 * usize::from(TRADES) {
                let (n, _) = a.recv(&mut message, RecvFlags::WAITALL).unwrap();
                assert_eq!(n, MESSAGE, "{kind}");
                let (id, number) = (usize::from(message[0]), message[1]);
                assert!(message[1..].iter().all(|byte| *byte == number), "{kind}: senders interleave");
                assert_eq!(number, next[id], "{kind}");
                next[id] += 1;
                a.send(&[i as u8; MESSAGE]);
            }
        });
        heirs.into_iter().for_each(Heir::ends_well);
        assert_eq!((a.protocol_errors(), b.protocol_errors()), (0, 0));
        assert!(b.is_shared_memory());
        drop(b);
        assert_eq!(a.recv(&mut [0; 1], RecvFlags::empty()).unwrap().0, 0, "nobody has it any more");
    }
}

#[test]
fn a_socket_goes_over_a_socket_to_another_program_and_back() {
    alone!();
    KINDS.iter().for_each(|kind| there_and_back(kind, false));
}

#[test]
fn a_socket_stays_across_exec() {
    alone!();
    KINDS.iter().for_each(|kind| there_and_back(kind, true));
}

/// Passes the socket on within this process: which process takes it up does not matter here.
fn again(socket: Stream) -> Stream {
    Stream::from_fds_with(socket.into_fds().unwrap(), &passable()).unwrap()
}

#[test]
fn a_connection_moves_to_shared_memory_wherever_its_ends_are() {
    alone!();
    let name = SocketAddr::from_abstract_name(format!("onecopy-passing-{}", std::process::id())).unwrap();
    let listener = Listener::bind_with(&name, &passable()).unwrap();
    // A plan says what is passed on, and at which moment of the upgrade.
    for plan in 0..64u32 {
        let client = Stream::connect_with(&name, &passable()).unwrap();
        let pass = |bit: u32, socket: Stream| if plan & 1 << bit != 0 { again(socket) } else { socket };
        let client = pass(0, client);
        let server = pass(1, listener.accept().unwrap().0);
        let (mut client, mut server) = (pass(2, client), server);
        let mut buffer = [0; 64];
        for round in 0..4u8 {
            assert_eq!(client.send(&[round; 9]).unwrap(), 9);
            if round == 1 {
                (client, server) = (pass(3, client), pass(4, server));
            }
            assert_eq!(server.recv(&mut buffer).unwrap(), 9);
            assert_eq!(buffer[..9], [round; 9], "plan {plan:b}");
            assert_eq!(server.send(&[round; 7]).unwrap(), 7);
            if round == 1 {
                (client, server) = (pass(5, client), server);
            }
            assert_eq!(client.recv(&mut buffer).unwrap(), 7);
            assert_eq!(buffer[..7], [round; 7], "plan {plan:b}");
        }
        assert!(client.path().is_shared_memory() && server.path().is_shared_memory(), "plan {plan:b}");
        drop(client);
        assert_eq!(server.recv(&mut buffer).unwrap(), 0, "plan {plan:b}");
    }
    let listener = SeqListener::bind(
        SocketAddr::from_abstract_name(format!("onecopy-passing-seq-{}", std::process::id())).unwrap(),
    );
    let listener = listener.unwrap();
    let client = SeqPacket::connect_with(listener.local_addr().unwrap(), &passable()).unwrap();
    let client = SeqPacket::from_fds(client.into_fds().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for len in [5, 0, 7] {
        assert_eq!(client.send(&[1; 9][..len]).unwrap(), len);
        assert_eq!(server.recv_record(&mut [0; 9]).unwrap().len, len);
        assert_eq!(server.send(&[1; 9][..len]).unwrap(), len);
        assert_eq!(client.recv_record(&mut [0; 9]).unwrap().len, len);
    }
}

#[test]
fn what_waits_is_woken_where_it_is() {
    alone!();
    let (a, b) = Stream::pair_with(&passable()).unwrap();
    b.set_read_timeout(PATIENCE).unwrap();
    // A sender waits for room, and a receiver sleeps.
    let bytes = counting(0, 100_000);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(a.send(&bytes).unwrap(), bytes.len()));
        let mut b = Some(b);
        let mut got = Vec::new();
        let mut buffer = [0; 3000];
        while got.len() < bytes.len() {
            let socket = again(b.take().unwrap());
            let n = socket.recv(&mut buffer).unwrap();
            got.extend_from_slice(&buffer[..n]);
            b = Some(socket);
        }
        assert_eq!(got, bytes);
    });
}

#[test]
fn what_cannot_be_passed_says_why_and_stays() {
    alone!();
    let errno = |error: onecopy_unix::Error| error.raw_os_error();
    let (a, b) = Stream::pair().unwrap();
    let refused = a.into_fds().unwrap_err();
    assert_eq!(errno(refused.error), Errno::OPNOTSUPP.raw_os_error());
    assert!(refused.to_string().contains("Config::passable"), "{refused}");
    assert_eq!(refused.socket.send(b"still").unwrap(), 5);
    assert_eq!(b.recv_with_flags(&mut [0; 9], NOW).unwrap(), 5);
    // Over the kernel it takes no memory.
    let config = Config { transport: Transport::Kernel, ..Config::default() };
    let (a, b) = Stream::pair_with(&config).unwrap();
    assert_eq!(a.send(b"before").unwrap(), 6);
    let fds = a.into_fds().unwrap();
    assert_eq!(fds.len(), 2);
    let a = Stream::from_fds(fds).unwrap();
    assert_eq!(a.send(b"after").unwrap(), 5);
    assert_eq!(b.recv_with_flags(&mut [0; 20], NOW).unwrap(), 11);

    let (a, b) = Stream::pair_with(&passable()).unwrap();
    assert_eq!(a.send(&[7; 100]).unwrap(), 100);
    let view = b.recv_borrowed(50).unwrap();
    let refused = b.into_fds().unwrap_err();
    assert_eq!(errno(refused.error), Errno::BUSY.raw_os_error());
    drop(view);
    let b = Stream::from_fds_with(refused.socket.into_fds().unwrap(), &passable()).unwrap();
    assert_eq!(b.recv_with_flags(&mut [0; 100], NOW).unwrap(), 50);
    // A peek has looked at descriptors.
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(a.send_fds(b"x", &[file.as_fd()]).unwrap(), 1);
    assert_eq!(b.recv_fds_with_flags(&mut [0; 1], RecvFlags::PEEK).unwrap().1.fds.len(), 1);
    let refused = b.into_fds().unwrap_err();
    assert_eq!(errno(refused.error), Errno::BUSY.raw_os_error());
    assert_eq!(refused.socket.recv_fds_with_flags(&mut [0; 1], NOW).unwrap().1.fds.len(), 1);
    assert!(refused.socket.into_fds().is_ok());
    // A process that takes the socket up finds that the peer is gone.
    let (a, b) = Stream::pair_with(&passable()).unwrap();
    assert_eq!(a.send(b"last").unwrap(), 4);
    drop(a);
    let b = again(b);
    assert_eq!(b.recv_with_flags(&mut [0; 9], NOW).unwrap(), 4);
    assert_eq!(b.recv_with_flags(&mut [0; 9], NOW).unwrap(), 0);
    assert_eq!(errno(b.send(b"x").unwrap_err()), Errno::PIPE.raw_os_error());
    assert_eq!(again(b).recv_with_flags(&mut [0; 9], NOW).unwrap(), 0);
}

#[test]
fn references_stay_in_the_processes_that_have_their_pools() {
    alone!();
    let (a, b) = Stream::pair_with(&passable()).unwrap();
    let pool = onecopy_unix::SharedPool::new(4096, 4).unwrap();
    let mut loan = pool.loan(100).unwrap();
    loan.fill(1);
    a.send_loan(loan).unwrap();
    assert_eq!(b.recv_with_flags(&mut [0; 100], NOW).unwrap(), 100);
    for socket in [a, b] {
        let refused = socket.into_fds().unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Errno::BUSY.raw_os_error());
        assert!(refused.to_string().contains("by reference"), "{refused}");
    }
}

#[test]
fn options_go_along() {
    alone!();
    let (a, b) = Stream::pair_with(&passable()).unwrap();
    a.set_nonblocking(true).unwrap();
    a.shutdown(std::net::Shutdown::Write).unwrap();
    let a = again(a);
    assert!(a.recv(&mut [0; 1]).unwrap_err().would_block());
    let error = a.send(b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Errno::PIPE.raw_os_error());
    a.set_nonblocking(false).unwrap();
    a.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let a = again(a);
    assert!(a.recv(&mut [0; 1]).unwrap_err().would_block());
    // The sender's credentials.
    b.set_read_timeout(PATIENCE).unwrap();
    a.set_pass_credentials(true).unwrap();
    assert_eq!(b.send(b"x").unwrap(), 1);
    assert_eq!(
        a.recv_fds_with_flags(&mut [0; 1], NOW).unwrap().1.credentials.unwrap().pid,
        getpid().as_raw_nonzero().get()
    );
    let a = again(a);
    assert_eq!(b.send(b"x").unwrap(), 1);
    assert_eq!(
        a.recv_fds_with_flags(&mut [0; 1], NOW).unwrap().1.credentials.unwrap().pid,
        getpid().as_raw_nonzero().get()
    );
}

/// This runs in a process of its own, whose descriptors no other thread opens and closes.
#[test]
fn descriptors_that_are_no_socket_are_refused_and_leak_nothing() {
    alone!();
    let heir = Heir::start("liars");
    heir.ends_well();
}

fn lies_are_refused_and_leak_nothing() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let copies = |fds: &[OwnedFd]| fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
    let memfd = |size: u64, seals: SealFlags| {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, size).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let (a, b) = Stream::pair_with(&passable()).unwrap();
    let (other, _other) = Stream::pair_with(&passable()).unwrap();
    assert_eq!(a.send(b"kept").unwrap(), 4);
    let others = other.into_fds().unwrap();
    let fds = b.into_fds().unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let before = descriptors();
    let refused = |what: &str, fds: Vec<OwnedFd>| {
        let error = Stream::from_fds(fds).unwrap_err();
        assert_eq!(error.raw_os_error(), Errno::INVAL.raw_os_error(), "{what}: {error}");
        assert!(error.to_string().len() > 30, "{what}: {error}");
        assert_eq!(descriptors(), before, "{what}");
    };
    for count in 0..fds.len() {
        refused("too few", copies(&fds[..count]));
    }
    let mut more = copies(&fds);
    more.push(file.try_clone().unwrap().into());
    refused("too many", more);
    for at in 0..fds.len() {
        let with = |fd: OwnedFd| {
            let mut fds = copies(&fds);
            fds[at] = fd;
            fds
        };
        refused("a file", with(file.try_clone().unwrap().into()));
        refused("another socket's", with(others[at].try_clone().unwrap()));
        refused("unsealed", with(memfd(4096, SealFlags::empty())));
        refused("empty", with(memfd(4096, sealed)));
        refused("small", with(memfd(100, sealed)));
        refused("huge", with(memfd(20480, sealed)));
        refused(
            "unconnected",
            with(
                rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None)
                    .unwrap(),
            ),
        );
        refused("a pipe", with(pipe.try_clone().unwrap()));
        for with in 0..at {
            let mut fds = copies(&fds);
            fds.swap(at, with);
            refused("swapped", fds);
        }
    }
    let error = SeqPacket::from_fds(copies(&fds)).unwrap_err();
    assert_eq!(error.raw_os_error(), Errno::INVAL.raw_os_error());
    let small = Config { max_ring: 4096, ..Config::default() };
    let error = Stream::from_fds_with(copies(&fds), &small).unwrap_err();
    assert_eq!(error.raw_os_error(), Errno::MSGSIZE.raw_os_error());
    assert_eq!(descriptors(), before);
    // None of these attempts has taken the end up. This one does, and is the only one.
    let again = copies(&fds);
    let b = Stream::from_fds(fds).unwrap();
    let kept = descriptors();
    let error = Stream::from_fds(copies(&again)).unwrap_err();
    assert_eq!(error.raw_os_error(), Errno::ALREADY.raw_os_error(), "{error}");
    assert_eq!(descriptors(), kept);
    assert_eq!(b.recv_with_flags(&mut [0; 9], NOW).unwrap(), 4);
    drop(b);
    let error = Stream::from_fds(again).unwrap_err();
    assert_eq!(error.raw_os_error(), Errno::ALREADY.raw_os_error(), "stale");
    assert_eq!(a.recv_with_flags(&mut [0; 9], NOW).unwrap(), 0);
}

/// There are rings, which have gone with a message. The socket that could not be passed on for want of a descriptor
/// goes on to use them.
fn refused_for_want_of_descriptors(sends_first: bool) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let (client, mut server) = connected("few", &Config { passable: true, ..Config::default() });
    if sends_first {
        server.send(b"x").unwrap();
    }
    let lowest = rustix::io::fcntl_dupfd_cloexec(&server, 3).unwrap().as_raw_fd() as u64;
    let before = getrlimit(Resource::Nofile);
    // One: for the page, and none for a copy of the socket.
    for free in 0..2 {
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + free), ..before }).unwrap();
        let refused = server.into_fds();
        setrlimit(Resource::Nofile, before).unwrap();
        let refused = refused.unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Errno::MFILE.raw_os_error());
        server = refused.socket;
    }
    if sends_first {
        client.recv_with_flags(&mut [0; 9], NOW).unwrap();
    }
    for i in 0..20 {
        let (from, to) = if i % 2 == 0 { (&client, &server) } else { (&server, &client) };
        from.send(b"x").unwrap();
        assert_eq!(to.recv_with_flags(&mut [0; 9], NOW).unwrap(), 1);
    }
    assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
}

#[test]
fn what_is_refused_for_want_of_descriptors_goes_on_as_before() {
    alone!();
    refused_for_want_of_descriptors(false);
    refused_for_want_of_descriptors(true);
}
