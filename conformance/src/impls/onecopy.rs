//! Ours, in every way that a pair of it can come about.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use onecopy::unix::{self, Ancillary, Config, Records, SendAncillary, SharedPool};
use onecopy::{Carrier, ReceivedFlags, RecvFlags, SendFlags, Transport, Wait};

use super::kernel::{Kernel, meet};
use super::traits::{
    ATOMIC, Came, Column, Conn, End, Impl, Kind, Listening, Name, Returned, Rx, Socket, Sockets, Tx, Who,
    not_offered,
};

/// Which ends are ours, and over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onecopy {
    /// Both, by listener and connect, upgraded to shared memory in both directions.
    Connected,
    /// Both, by `Stream::pair`, told to block and never to spin.
    Pair,
    /// Both, by `Stream::pair`, told to spin and never to block.
    Spin,
    /// Both, told to stay with the kernel.
    Kernel,
    /// The client; the server is a plain socket.
    ToPlain,
    /// The server; the client is a plain socket.
    FromPlain,
}

impl Onecopy {
    /// Whether it is ours over shared memory.
    fn shares(self) -> bool {
        self.column() == Column::Shared
    }

    /// What sockets of that kind are made with.
    fn config(self, kind: Kind) -> io::Result<Config> {
        if kind == Kind::Pieces && !self.shares() {
            return Err(not_offered(ATOMIC));
        }
        if kind == Kind::Tcp {
            return Err(not_offered(UNIX));
        }
        let records = if kind == Kind::Pieces { Records::Stream } else { Records::Atomic };
        let transport = if self == Onecopy::Kernel { Transport::Kernel } else { Transport::Auto };
        let wait = match self {
            Onecopy::Pair => Wait::Block,
            Onecopy::Spin => Wait::Spin,
            _ => Wait::Adaptive,
        };
        Ok(Config { transport, wait, records, ..Config::default() })
    }

    /// A pair of a kind that is not that of datagrams.
    fn connected(self, kind: Kind, dir: &Path, config: &Config) -> io::Result<(Conn, Conn)> {
        if matches!(self, Onecopy::Pair | Onecopy::Spin) {
            return both(kind, config);
        }
        // The name is free again as soon as the listener is gone, so every pair can use it.
        let name = Name::Abstract(format!("pair-{}", dir.display()).into_bytes());
        let server = match self {
            Onecopy::ToPlain => Kernel.listen(kind, &name, None)?,
            _ => listen(kind, &name, config)?,
        };
        let client = match self {
            Onecopy::FromPlain => Kernel.connect(kind, &name)?,
            _ => connect(kind, &name, config)?,
        };
        let conn = server.accept()?;
        if self == Onecopy::Connected {
            upgrade(&*client, &*conn)?;
        }
        Ok((client, conn))
    }
}

impl Impl for Onecopy {
    fn name(&self) -> &'static str {
        match self {
            Onecopy::Connected => "onecopy",
            Onecopy::Pair => "onecopy-pair",
            Onecopy::Spin => "onecopy-spin",
            Onecopy::Kernel => "onecopy-kernel",
            Onecopy::ToPlain => "onecopy-to-plain",
            Onecopy::FromPlain => "plain-to-onecopy",
        }
    }

    fn column(&self) -> Column {
        match self {
            Onecopy::Connected | Onecopy::Pair | Onecopy::Spin => Column::Shared,
            Onecopy::Kernel | Onecopy::ToPlain | Onecopy::FromPlain => Column::OnKernel,
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Onecopy::Connected => "ours, connected by name and moved to shared memory in both directions",
            Onecopy::Pair => "ours, from `Stream::pair`, told to block and never to spin",
            Onecopy::Spin => "ours, from `Stream::pair`, told to spin and never to block",
            Onecopy::Kernel => "ours, told to stay with the kernel",
            Onecopy::ToPlain => "our client, a plain server: the first end of a pair is ours",
            Onecopy::FromPlain => "our server, a plain client: the second end of a pair is ours",
        }
    }

    fn pair(&self, kind: Kind, dir: &Path) -> io::Result<(Conn, Conn)> {
        if kind == Kind::Dgram && !matches!(self, Onecopy::Pair | Onecopy::Spin) {
            let (a, b) = self.datagrams(&Name::Unnamed, &Name::Unnamed)?;
            return Ok((a, b));
        }
        let pair = self.connected(kind, dir, &self.config(kind)?)?;
        if self.shares() && [&pair.0, &pair.1].iter().any(|end| end.path() != SHARED) {
            return Err(io::Error::other("a pair is not over shared memory"));
        }
        Ok(pair)
    }

    fn listen(&self, kind: Kind, at: &Name, backlog: Option<i32>) -> io::Result<Box<dyn Listening>> {
        if *self == Onecopy::ToPlain {
            return Kernel.listen(kind, at, backlog);
        }
        let mut config = self.config(kind)?;
        if let Some(n) = backlog {
            config.backlog = n as u32;
        }
        listen(kind, at, &config)
    }

    fn connect(&self, kind: Kind, to: &Name) -> io::Result<Conn> {
        if *self == Onecopy::FromPlain {
            return Kernel.connect(kind, to);
        }
        connect(kind, to, &self.config(kind)?)
    }

    fn stream_records(&self, dir: &Path, buffer: usize) -> io::Result<(Conn, Conn)> {
        let (send_buffer, receive_buffer) = (Some(buffer), Some(buffer));
        let config = Config { send_buffer, receive_buffer, ..self.config(Kind::Pieces)? };
        self.connected(Kind::Pieces, dir, &config)
    }

    fn sleeps(&self) -> bool {
        *self != Onecopy::Spin
    }

    fn datagrams(&self, a: &Name, b: &Name) -> io::Result<Sockets> {
        let ours = || -> io::Result<Box<dyn Socket>> {
            Ok(Box::new(OurDatagrams(unix::Datagram::unbound_with(&self.config(Kind::Dgram)?)?)))
        };
        let plain = || -> io::Result<Box<dyn Socket>> { Ok(Box::new(Kernel::open(Kind::Dgram)?)) };
        let pair = match self {
            Onecopy::ToPlain => (ours()?, plain()?),
            Onecopy::FromPlain => (plain()?, ours()?),
            _ => (ours()?, ours()?),
        };
        meet(&*pair.0, &*pair.1, a, b)?;
        if matches!(self, Onecopy::Connected | Onecopy::Pair | Onecopy::Spin) {
            upgrade(&*pair.0, &*pair.1)?;
        }
        Ok(pair)
    }

    fn socket(&self, kind: Kind) -> Option<Box<dyn Socket>> {
        // The other kinds come bound or connected.
        if kind != Kind::Dgram {
            return None;
        }
        let socket = unix::Datagram::unbound_with(&self.config(kind).ok()?).ok()?;
        Some(Box::new(OurDatagrams(socket)))
    }
}

const UNIX: &str = "it makes unix sockets";

const SHARED: (&str, &str) = ("shared memory", "shared memory");

fn both(kind: Kind, config: &Config) -> io::Result<(Conn, Conn)> {
    Ok(match kind {
        Kind::Stream => {
            let (a, b) = unix::Stream::pair_with(config)?;
            (Box::new(Ours(a)), Box::new(Ours(b)))
        }
        Kind::SeqPacket | Kind::Pieces => {
            let (a, b) = unix::SeqPacket::pair_with(config)?;
            (Box::new(OurPackets(a)), Box::new(OurPackets(b)))
        }
        Kind::Dgram => {
            let (a, b) = unix::Datagram::pair_with(config)?;
            (Box::new(OurDatagrams(a)), Box::new(OurDatagrams(b)))
        }
        Kind::Tcp => return Err(not_offered(UNIX)),
    })
}

fn listen(kind: Kind, at: &Name, config: &Config) -> io::Result<Box<dyn Listening>> {
    Ok(match kind {
        Kind::Stream => Box::new(unix::Listener::bind_with(to_ours(at)?, config)?),
        Kind::SeqPacket | Kind::Pieces => Box::new(unix::SeqListener::bind_with(to_ours(at)?, config)?),
        Kind::Dgram => return Err(not_offered("datagram sockets do not listen")),
        Kind::Tcp => return Err(not_offered(UNIX)),
    })
}

fn connect(kind: Kind, to: &Name, config: &Config) -> io::Result<Conn> {
    Ok(match kind {
        Kind::Stream => Box::new(Ours(unix::Stream::connect_with(to_ours(to)?, config)?)),
        Kind::SeqPacket | Kind::Pieces => {
            Box::new(OurPackets(unix::SeqPacket::connect_with(to_ours(to)?, config)?))
        }
        Kind::Dgram => {
            let socket = unix::Datagram::unbound_with(config)?;
            socket.connect(to_ours(to)?)?;
            Box::new(OurDatagrams(socket))
        }
        Kind::Tcp => return Err(not_offered(UNIX)),
    })
}

/// Sends a byte to and fro until both directions of both ends run over shared memory: an end learns of the
/// other's memory when it receives.
fn upgrade(a: &dyn End, b: &dyn End) -> io::Result<()> {
    for _ in 0..40 {
        if [a, b].iter().all(|e| e.path() == SHARED) {
            return Ok(());
        }
        for (from, to) in [(a, b), (b, a)] {
            from.send(b"u", Tx { eor: true, ..Tx::default() })?;
            to.recv(&mut [0], Rx::default())?;
        }
    }
    Err(io::Error::other(format!(
        "not upgraded to shared memory: client {:?}, server {:?}",
        a.path(),
        b.path()
    )))
}

fn to_ours(name: &Name) -> io::Result<unix::SocketAddr> {
    match name {
        Name::Path(p) => Ok(unix::SocketAddr::from_pathname(p)?),
        Name::Abstract(n) => Ok(unix::SocketAddr::from_abstract_name(n)?),
        Name::Unnamed => Err(not_offered("no autobind")),
    }
}

fn from_ours(name: &unix::SocketAddr) -> Name {
    match (name.as_pathname(), name.as_abstract_name()) {
        (Some(p), _) => Name::Path(p.to_owned()),
        (_, Some(n)) => Name::Abstract(n.to_vec()),
        _ => Name::Unnamed,
    }
}

pub(super) fn send_flags(f: Tx) -> io::Result<SendFlags> {
    if f.oob {
        return Err(not_offered("no out-of-band data"));
    }
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::DONTWAIT, f.dontwait);
    // The kernel raises it unless told not to, ours only if told to.
    flags.set(SendFlags::SIGPIPE, !f.nosignal);
    flags.set(SendFlags::EOR, f.eor);
    Ok(flags)
}

pub(super) fn recv_flags(f: Rx) -> io::Result<RecvFlags> {
    if f.oob {
        return Err(not_offered("no out-of-band data"));
    }
    let mut flags = RecvFlags::empty();
    flags.set(RecvFlags::DONTWAIT, f.dontwait);
    flags.set(RecvFlags::PEEK, f.peek);
    flags.set(RecvFlags::WAITALL, f.waitall);
    flags.set(RecvFlags::TRUNC, f.trunc);
    Ok(flags)
}

fn came(len: usize, with: unix::Ancillary) -> Came {
    let who = with.credentials.map(|who| (who.pid, who.uid, who.gid));
    Came { len, returned: Returned::default(), ctrunc: with.truncated, fds: with.fds, who }
}

fn seen(view: &unix::View) -> Vec<u8> {
    let mut bytes = vec![0; view.len()];
    view.copy_to(&mut bytes);
    bytes
}

fn returned(flags: ReceivedFlags) -> Returned {
    Returned { trunc: flags.contains(ReceivedFlags::TRUNC), eor: flags.contains(ReceivedFlags::EOR) }
}

/// What all kinds of our sockets have in common.
macro_rules! in_common {
    (control) => {
        fn send_msg(&self, data: &[IoSlice<'_>], fds: &[BorrowedFd<'_>], f: Tx) -> io::Result<usize> {
            Ok(self.0.send_msg(data, SendAncillary::fds(fds), send_flags(f)?)?)
        }

        fn send_as(&self, data: &[u8], (pid, uid, gid): Who, f: Tx) -> io::Result<usize> {
            let credentials = Some(unix::Credentials { pid, uid, gid });
            let ancillary = SendAncillary { credentials, ..SendAncillary::default() };
            Ok(self.0.send_msg(&[IoSlice::new(data)], ancillary, send_flags(f)?)?)
        }

        fn set_pass_credentials(&self, on: bool) -> io::Result<()> {
            Ok(self.0.set_pass_credentials(on)?)
        }
    };
    (connected) => {
        in_common!(control);

        fn send_in_place(&self, data: &[u8], f: Tx) -> io::Result<usize> {
            let mut slot = self.0.reserve_with_flags(data.len(), send_flags(f)?)?;
            slot.copy_from(data);
            Ok(slot.commit()?)
        }

        fn send_to(&self, _data: &[u8], _to: &Name) -> io::Result<usize> {
            Err(not_offered("no sendto"))
        }
    };
    () => {
        fn send(&self, data: &[u8], f: Tx) -> io::Result<usize> {
            Ok(self.0.send_with_flags(data, send_flags(f)?)?)
        }

        fn recv(&self, buf: &mut [u8], f: Rx) -> io::Result<usize> {
            Ok(self.0.recv_with_flags(buf, recv_flags(f)?)?)
        }

        fn shutdown(&self, how: Shutdown) -> io::Result<()> {
            Ok(self.0.shutdown(how)?)
        }

        fn set_nonblocking(&self, on: bool) -> io::Result<()> {
            Ok(self.0.set_nonblocking(on)?)
        }

        fn set_read_timeout(&self, after: Option<Duration>) -> io::Result<()> {
            Ok(self.0.set_read_timeout(after)?)
        }

        fn set_write_timeout(&self, after: Option<Duration>) -> io::Result<()> {
            Ok(self.0.set_write_timeout(after)?)
        }

        fn readable_bytes(&self) -> io::Result<usize> {
            Ok(self.0.readable_bytes()?)
        }

        fn take_error(&self) -> io::Result<Option<i32>> {
            Ok(self.0.take_error()?.map(|e| e.raw_os_error()))
        }

        fn set_peek_off(&self, _at: i32) -> io::Result<()> {
            Err(not_offered("no SO_PEEK_OFF"))
        }

        fn peer_cred(&self) -> io::Result<(i32, u32)> {
            let c = self.0.peer_cred()?;
            Ok((c.pid, c.uid))
        }

        fn local_name(&self) -> io::Result<Name> {
            Ok(from_ours(&self.0.local_addr()?))
        }

        fn peer_name(&self) -> io::Result<Name> {
            Ok(from_ours(&self.0.peer_addr()?))
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn path(&self) -> (&'static str, &'static str) {
            let word = |c| match c {
                Carrier::Kernel => "kernel",
                Carrier::SharedMemory => "shared memory",
                Carrier::Stack => "a stack of its own",
            };
            (word(self.0.path().send), word(self.0.path().receive))
        }
    };
}

/// A stream of ours.
pub struct Ours(pub unix::Stream);

impl End for Ours {
    in_common!();

    in_common!(connected);

    fn send_loan(&self, pool: &SharedPool, data: &[u8]) -> io::Result<usize> {
        let mut loan = pool.loan_within(data.len(), onecopy_testing::LONG)?;
        loan.copy_from_slice(data);
        Ok(self.0.send_loan(loan).map_err(|not| not.error)?)
    }

    fn recv_msg(&self, bufs: &mut [IoSliceMut<'_>], control: bool, f: Rx) -> io::Result<Came> {
        let flags = recv_flags(f)?;
        let (len, with) = match control {
            false => (self.0.recv_vectored_with_flags(bufs, flags)?, Ancillary::default()),
            true => self.0.recv_msg(bufs, flags)?,
        };
        Ok(came(len, with))
    }

    fn recv_in_place(&self, max: usize, f: Rx) -> io::Result<(Vec<u8>, Returned)> {
        let view = self.0.recv_borrowed_with_flags(max, recv_flags(f)?)?;
        Ok((seen(&view), Returned::default()))
    }
}

/// A seqpacket socket of ours.
pub struct OurPackets(pub unix::SeqPacket);

impl End for OurPackets {
    in_common!();

    in_common!(connected);

    fn recv_msg(&self, bufs: &mut [IoSliceMut<'_>], control: bool, f: Rx) -> io::Result<Came> {
        let (got, with) = match (bufs, control) {
            ([buf], false) => (self.0.recv_record_with_flags(buf, recv_flags(f)?)?, Ancillary::default()),
            (bufs, control) => {
                let (got, with) = self.0.recv_msg(bufs, recv_flags(f)?)?;
                (got, if control { with } else { Ancillary::default() })
            }
        };
        let len = if f.trunc { got.full } else { got.len };
        Ok(Came { returned: returned(got.flags), ..came(len, with) })
    }

    fn recv_in_place(&self, max: usize, f: Rx) -> io::Result<(Vec<u8>, Returned)> {
        let (view, flags) = self.0.recv_borrowed_with_flags(max, recv_flags(f)?)?;
        Ok((seen(&view), returned(flags)))
    }
}

/// A datagram socket of ours.
pub struct OurDatagrams(pub unix::Datagram);

impl End for OurDatagrams {
    in_common!();

    in_common!(control);

    fn send_in_place(&self, data: &[u8], f: Tx) -> io::Result<usize> {
        let mut slot = self.0.reserve_with_flags(data.len(), send_flags(f)?)?;
        slot.copy_from(data);
        Ok(slot.commit()?)
    }

    fn recv_in_place(&self, max: usize, f: Rx) -> io::Result<(Vec<u8>, Returned)> {
        let (view, received, _) = self.0.recv_borrowed_with_flags(max, recv_flags(f)?)?;
        Ok((seen(&view), returned(received.flags)))
    }

    fn send_to(&self, data: &[u8], to: &Name) -> io::Result<usize> {
        Ok(self.0.send_to(data, to_ours(to)?)?)
    }

    fn recv_from(&self, buf: &mut [u8], f: Rx) -> io::Result<(usize, Name)> {
        let (n, name) = self.0.recv_from_with_flags(buf, recv_flags(f)?)?;
        Ok((n, from_ours(&name)))
    }

    fn recv_msg(&self, bufs: &mut [IoSliceMut<'_>], control: bool, f: Rx) -> io::Result<Came> {
        let (got, with) = match (bufs, control) {
            ([buf], false) => (self.0.recv_datagram_with_flags(buf, recv_flags(f)?)?.0, Ancillary::default()),
            (bufs, control) => {
                let (mut got, with, _) = self.0.recv_msg(bufs, recv_flags(f)?)?;
                if !control && !with.fds.is_empty() {
                    // They are closed here, as the kernel closes those that nobody asks for.
                    got.flags |= ReceivedFlags::CTRUNC;
                }
                (got, if control { with } else { Ancillary::default() })
            }
        };
        let ctrunc = got.flags.contains(ReceivedFlags::CTRUNC);
        let len = if f.trunc { got.full } else { got.len };
        Ok(Came { returned: returned(got.flags), ctrunc, ..came(len, with) })
    }

    fn send_fds_to(&self, data: &[u8], fds: &[BorrowedFd<'_>], to: &Name) -> io::Result<usize> {
        Ok(self.0.send_msg_to(
            &[IoSlice::new(data)],
            to_ours(to)?,
            SendAncillary::fds(fds),
            SendFlags::empty(),
        )?)
    }

    fn recv_with_from(&self, buf: &mut [u8], f: Rx) -> io::Result<(Came, Name)> {
        let (got, with, from) = self.0.recv_fds_with_flags(buf, recv_flags(f)?)?;
        let ctrunc = got.flags.contains(ReceivedFlags::CTRUNC);
        let len = if f.trunc { got.full } else { got.len };
        Ok((Came { returned: returned(got.flags), ctrunc, ..came(len, with) }, from_ours(&from)))
    }
}

impl Socket for OurDatagrams {
    fn bind(&self, name: &Name) -> io::Result<()> {
        match name {
            Name::Unnamed => self.0.autobind().map(drop)?,
            name => self.0.bind_to(to_ours(name)?)?,
        }
        Ok(())
    }

    fn connect(&self, name: &Name) -> io::Result<()> {
        Ok(self.0.connect(to_ours(name)?)?)
    }

    fn disconnect(&self) -> io::Result<()> {
        Ok(self.0.disconnect()?)
    }

    fn listen(&self, _backlog: i32) -> io::Result<()> {
        Err(not_offered("datagram sockets do not listen"))
    }

    fn accept(&self) -> io::Result<Conn> {
        Err(not_offered("datagram sockets do not accept"))
    }
}

macro_rules! listening {
    ($listener:ty, $end:ident) => {
        impl Listening for $listener {
            fn accept(&self) -> io::Result<Conn> {
                Ok(Box::new($end(<$listener>::accept(self)?.0)))
            }

            fn set_nonblocking(&self, on: bool) -> io::Result<()> {
                Ok(<$listener>::set_nonblocking(self, on)?)
            }

            fn readable_bytes(&self) -> io::Result<usize> {
                Ok(rustix::io::ioctl_fionread(self)? as usize)
            }

            fn local_name(&self) -> io::Result<Name> {
                Ok(from_ours(&<$listener>::local_addr(self)?))
            }

            fn fd(&self) -> BorrowedFd<'_> {
                self.as_fd()
            }
        }
    };
}

listening!(unix::Listener, Ours);
listening!(unix::SeqListener, OurPackets);
