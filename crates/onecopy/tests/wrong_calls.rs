//! Each wrong call gets an error that names the call, the errno, the argument, and what to do next.

use onecopy::advanced::chain::{Chain, Mark, Writer};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{PagePool, PoolConfig};
use onecopy::unix::Credentials;
use onecopy::unix::{
    Config, Datagram, Listener, Records, SendAncillary, SeqPacket, SharedPool, SocketAddr, Stream,
};
use onecopy::{Error, RecvFlags, SendFlags, Transport};
use rustix::io::Errno;
use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

const NONE: Option<&str> = None;

/// The error of a call with a wrong argument, or at the wrong time.
struct Wrong {
    call: &'static str,
    said: Error,
    errno: Errno,
    argument: Option<&'static str>,
    /// A part of the reason.
    reason: &'static str,
}

fn name(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-test-wrong-{what}-{}", std::process::id())).unwrap()
}

fn small() -> Config {
    Config { send_buffer: Some(4096), receive_buffer: Some(4096), ..Config::default() }
}

/// A folder with a plain file in it, removed after the test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("onecopy-test-wrong-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("plain"), "no socket").unwrap();
        Folder(path)
    }

    fn name(&self, file: &str) -> SocketAddr {
        SocketAddr::from(self.0.join(file))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn marked(mark: Mark) -> Chain {
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let (writer, mut chain) = (Writer::new(&pool), Chain::new());
    writer.append(&mut chain, b"two ").unwrap();
    chain.attach(mark);
    writer.append(&mut chain, b"parts").unwrap();
    chain
}

fn names(wrong: &mut Vec<Wrong>) {
    let mut add =
        |call, said, errno, reason| wrong.push(Wrong { call, said, errno, argument: Some("name"), reason });
    let folder = Folder::new();
    let long = SocketAddr::from(std::path::PathBuf::from("x".repeat(109)));
    let listener = Listener::bind(name("taken")).unwrap();
    // For an abstract name the kernel looks only for sockets of the same type.
    let other = Listener::bind(folder.name("other")).unwrap();
    let datagram = Datagram::bind(name("datagram")).unwrap();
    add(
        "bind to a name that is taken",
        Listener::bind(name("taken")).unwrap_err(),
        Errno::ADDRINUSE,
        "stop who listens",
    );
    add(
        "bind in no folder",
        Listener::bind(folder.name("no/such")).unwrap_err(),
        Errno::NOENT,
        "make it first",
    );
    add("bind to a long path", Listener::bind(&long).unwrap_err(), Errno::INVAL, "a shorter one");
    add(
        "bind to a path with a zero",
        Listener::bind("a\0b").unwrap_err(),
        Errno::INVAL,
        "from_abstract_name",
    );
    add(
        "bind below a file",
        Listener::bind(folder.name("plain/x")).unwrap_err(),
        Errno::NOTDIR,
        "look at its folders",
    );
    add(
        "connect to nobody",
        Stream::connect(folder.name("none")).unwrap_err(),
        Errno::NOENT,
        "is the server running",
    );
    add(
        "connect to a file",
        Stream::connect(folder.name("plain")).unwrap_err(),
        Errno::CONNREFUSED,
        "start the server",
    );
    add(
        "connect to another type",
        SeqPacket::connect(folder.name("other")).unwrap_err(),
        Errno::PROTOTYPE,
        "another type",
    );
    add("no abstract name", SocketAddr::from_abstract_name("").unwrap_err(), Errno::INVAL, "it is empty");
    add("connect to no name", Stream::connect("").unwrap_err(), Errno::INVAL, "it is empty");
    add(
        "read a long name",
        long.to_string().parse::<SocketAddr>().unwrap_err(),
        Errno::INVAL,
        "choose a shorter one",
    );
    let unnamed = Datagram::unbound().unwrap();
    unnamed.send_to(b"x", name("datagram")).unwrap();
    let (_, nobody) = datagram.recv_from(&mut [0; 9]).unwrap();
    let to = |name: SocketAddr| datagram.send_to(b"x", name).unwrap_err();
    add("send_to a long path", to(long), Errno::INVAL, "choose a shorter one");
    add(
        "a long abstract name",
        SocketAddr::from_abstract_name("x".repeat(108)).unwrap_err(),
        Errno::INVAL,
        "at most 107",
    );
    add("send_to who has no name", to(nobody), Errno::INVAL, "have it bound");
    add("send_to an abstract name that nobody has", to(name("none")), Errno::CONNREFUSED, "is the receiver");
    add("send_to nobody", to(folder.name("none")), Errno::NOENT, "is the receiver running");
    add("send_to a listener", to(folder.name("other")), Errno::PROTOTYPE, "no datagram socket");
    drop((listener, other));
}

fn sends(wrong: &mut Vec<Wrong>) {
    let mut add =
        |call, said, errno, argument, reason| wrong.push(Wrong { call, said, errno, argument, reason });
    let none = SendFlags::DONTWAIT;
    let file = std::fs::File::open("/dev/null").unwrap();
    let many = vec![file.as_fd(); 254];
    let other = Credentials { pid: 1, ..Credentials::own() };
    for transport in [Transport::Auto, Transport::Kernel] {
        let config = Config { transport, ..small() };
        let (a, b) = Stream::pair_with(&config).unwrap();
        let (r, s) = SeqPacket::pair_with(&config).unwrap();
        let (d, _e) = Datagram::pair_with(&config).unwrap();
        let long = vec![0; 1 << 20];
        add(
            "254 descriptors",
            a.send_fds_with_flags(b"x", &many, none).unwrap_err(),
            Errno::INVAL,
            Some("fds"),
            "at most 253",
        );
        add(
            "a long record",
            r.send_with_flags(&long, none).unwrap_err(),
            Errno::MSGSIZE,
            Some("bytes"),
            "send less at once",
        );
        add(
            "a long datagram",
            d.send_with_flags(&long, none).unwrap_err(),
            Errno::MSGSIZE,
            Some("bytes"),
            "send less at once",
        );
        if !rustix::process::geteuid().is_root() {
            // A privileged process may name another.
            let ancillary = SendAncillary { credentials: Some(other), ..SendAncillary::default() };
            let said = a.send_msg(&[IoSlice::new(b"x")], ancillary, none).unwrap_err();
            add("another's name", said, Errno::PERM, Some("who"), "may only claim");
        }
        a.shutdown(Shutdown::Write).unwrap();
        add(
            "send after shutdown",
            a.send_with_flags(b"x", none).unwrap_err(),
            Errno::PIPE,
            NONE,
            "connect again",
        );
        drop(s);
        add(
            "send to who is gone",
            r.send_with_flags(b"x", none).unwrap_err(),
            Errno::PIPE,
            NONE,
            "connect again",
        );
        let empty = a.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap_err();
        add("receive what is not there", empty, Errno::AGAIN, NONE, "poll the socket");
        drop(b);
    }
    let alone = Datagram::unbound().unwrap();
    add(
        "send without a peer",
        alone.send_with_flags(b"x", none).unwrap_err(),
        Errno::NOTCONN,
        NONE,
        "send_to",
    );
}

fn buffers(wrong: &mut Vec<Wrong>) {
    let mut add =
        |call, said, errno, argument, reason| wrong.push(Wrong { call, said, errno, argument, reason });
    let none = SendFlags::DONTWAIT;
    let (a, _b) = Stream::pair_with(&small()).unwrap();
    let (c, _d) = Stream::pair_with(&small()).unwrap();
    let (r, _s) = SeqPacket::pair_with(&small()).unwrap();
    for sizes in [(0, 1), (4096, 0), (1 << 31, 1)] {
        let said = SharedPool::new(sizes.0, sizes.1).unwrap_err();
        add("a pool that cannot be", said, Errno::INVAL, Some("page_len, pages"), "choose sizes");
    }
    let pool = SharedPool::new(4096, 2).unwrap();
    add(
        "a loan of more than a page",
        pool.loan(4097).unwrap_err(),
        Errno::MSGSIZE,
        Some("len"),
        "make larger pages",
    );
    a.send_loan(pool.loan(1).unwrap()).unwrap();
    let said = c.send_loan_with_flags(pool.loan(1).unwrap(), none).unwrap_err().error;
    add("one pool for two peers", said, Errno::XDEV, Some("loan"), "one for each peer");
    let _all = pool.loan(1).unwrap();
    add("a loan of a used up pool", pool.loan(1).unwrap_err(), Errno::AGAIN, NONE, "all pages are in use");
    let file: std::os::fd::OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let said = a.send_chain_with_flags(marked(Mark::Rights(vec![file])), none).unwrap_err().error;
    add("descriptors in a chain", said, Errno::OPNOTSUPP, Some("chain"), "send_with");
    let said =
        r.send_chain_with_flags(b"", marked(Mark::Credentials(Credentials::own())), none).unwrap_err().error;
    add("credentials in a chain", said, Errno::OPNOTSUPP, Some("chain"), "send_as");
    let said = r.send_chain_with_flags(b"", marked(Mark::EndOfRecord), none).unwrap_err().error;
    add("two records in a chain", said, Errno::OPNOTSUPP, Some("chain"), "split it there");
}

fn settings(wrong: &mut Vec<Wrong>) {
    let mut add =
        |call, said, errno, argument, reason| wrong.push(Wrong { call, said, errno, argument, reason });
    let (a, _b) = Stream::pair_with(&small()).unwrap();
    let zero = a.set_read_timeout(Some(Duration::ZERO)).unwrap_err();
    add("a timeout of nothing", zero, Errno::INVAL, Some("limit"), "None");
    let much = Config { send_buffer: Some(1 << 31), ..Config::default() };
    let argument = Some("Config::send_buffer");
    for (call, said) in [
        ("a pair with a large buffer", Datagram::pair_with(&much).unwrap_err()),
        ("a listener with a large buffer", Listener::bind_with(name("large"), &much).unwrap_err()),
    ] {
        add(call, said, Errno::INVAL, argument, "ask for less");
    }
    let much = Config { receive_buffer: Some(usize::MAX), ..Config::default() };
    let said = SeqPacket::pair_with(&much).unwrap_err();
    add("a large receive buffer", said, Errno::INVAL, Some("Config::receive_buffer"), "ask for less");
    let config = Config { records: Records::Stream, transport: Transport::Kernel, ..small() };
    let said = SeqPacket::pair_with(&config).unwrap_err();
    add(
        "stream records by the kernel",
        said,
        Errno::PROTONOSUPPORT,
        Some("Config::records"),
        "use atomic records",
    );
    let listener = Listener::bind(name("shut")).unwrap();
    listener.set_nonblocking(true).unwrap();
    add("accept with nobody there", listener.accept().unwrap_err(), Errno::AGAIN, NONE, "poll the listener");
    listener.shutdown().unwrap();
    listener.set_nonblocking(false).unwrap();
    add("accept after shutdown", listener.accept().unwrap_err(), Errno::INVAL, NONE, "bind a new one");
    add(
        "into_fds of what is not passable",
        a.into_fds().unwrap_err().error,
        Errno::OPNOTSUPP,
        Some("Config::passable"),
        "make the socket with",
    );
    let file = std::fs::File::open("/dev/null").unwrap();
    add(
        "from_fds of something else",
        Stream::from_fds(vec![file.into()]).unwrap_err(),
        Errno::INVAL,
        Some("fds"),
        "into_fds",
    );
}

#[test]
fn each_wrong_call_says_which_argument_and_why() {
    let mut wrong = Vec::new();
    names(&mut wrong);
    sends(&mut wrong);
    buffers(&mut wrong);
    settings(&mut wrong);
    let mut otherwise = Vec::new();
    for Wrong { call, said, errno, argument, reason } in &wrong {
        let text = said.to_string();
        let told = argument.is_none_or(|argument| text.contains(&format!(": {argument}: ")));
        if said.raw_os_error() != errno.raw_os_error()
            || said.argument() != *argument
            || !said.reason().is_some_and(|why| why.contains(reason))
            || !text.contains(reason)
            || !told
        {
            otherwise.push(format!(
                "{call}: {text} ({:?}); not {errno}, {argument:?}, {reason:?}",
                said.argument()
            ));
        }
    }
    assert_eq!(otherwise, [""; 0]);
    assert!(wrong.len() > 35, "{}", wrong.len());
}
