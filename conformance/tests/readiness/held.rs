//! A socket of any sort, of ours or of the kernel's, under one set of calls.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use onecopy::unix::{self, Config, Datagram, Records, SeqPacket, SharedPool, Stream, View};
use onecopy::{ReceivedFlags, RecvFlags, SendFlags, Transport};
use onecopy_conformance::impls::kernel::{Kernel, Plain};
use onecopy_conformance::impls::onecopy::{OurDatagrams, OurPackets, Ours};
use onecopy_conformance::impls::{Conn, End, Impl, Kind, Listening, Name, Rx, Socket, Tx};
use onecopy_conformance::tools::TX_NOW;

use crate::model::Sort;

/// What a socket is made with.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub sort: Sort,
    pub plain: bool,
    pub shares: bool,
    pub passable: bool,
    pub buffer: Option<usize>,
}

impl Made {
    pub fn config(self) -> Config {
        Config {
            receive_buffer: self.buffer,
            send_buffer: self.buffer,
            transport: if self.shares { Transport::Auto } else { Transport::Kernel },
            records: if self.sort == Sort::Pieces { Records::Stream } else { Records::Atomic },
            passable: self.passable,
            ..Config::default()
        }
    }

    fn kind(self) -> Kind {
        match self.sort {
            Sort::Stream => Kind::Stream,
            Sort::Records => Kind::SeqPacket,
            Sort::Pieces => Kind::Pieces,
            Sort::Datagrams | Sort::Crowd => Kind::Dgram,
        }
    }
}

/// A socket.
pub enum Held {
    Stream(Ours),
    Packets(OurPackets),
    Datagrams(OurDatagrams),
    Plain(Plain),
}

/// What a receive got.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    pub len: usize,
    /// A stream record ended with it.
    pub end: bool,
    /// Nothing will come any more.
    pub over: bool,
    /// Whose it is: the first byte, if there is one.
    pub from: Option<usize>,
}

/// Who listens.
pub enum Listener {
    Stream(unix::Listener),
    Packets(unix::SeqListener),
    Plain(Plain),
}

fn plain(name: &str) -> Name {
    Name::Abstract(name.into())
}

/// How long a call waits that waits.
const SOON: Duration = Duration::from_millis(1);

impl Listener {
    pub fn bind(name: &str, made: Made) -> io::Result<Listener> {
        if made.plain {
            let socket = Kernel::open(made.kind())?;
            Socket::bind(&socket, &plain(name))?;
            Socket::listen(&socket, 5)?;
            return Ok(Listener::Plain(socket));
        }
        Ok(match made.sort {
            Sort::Stream => Listener::Stream(unix::Listener::bind_with(
                unix::SocketAddr::from_abstract_name(name).unwrap(),
                &made.config(),
            )?),
            _ => Listener::Packets(unix::SeqListener::bind_with(
                unix::SocketAddr::from_abstract_name(name).unwrap(),
                &made.config(),
            )?),
        })
    }

    pub fn accept(&self) -> io::Result<Held> {
        let held = match self {
            Listener::Stream(listener) => Held::Stream(Ours(listener.accept()?.0)),
            Listener::Packets(listener) => Held::Packets(OurPackets(listener.accept()?.0)),
            Listener::Plain(listener) => {
                let conn: Conn = Listening::accept(listener)?;
                Held::Plain(Plain(conn.fd().try_clone_to_owned()?))
            }
        };
        held.be_patient()
    }
}

impl Held {
    pub fn connect(name: &str, made: Made) -> io::Result<Held> {
        let held = if made.plain {
            let socket = Kernel::open(made.kind())?;
            if let Some(bytes) = made.buffer {
                rustix::net::sockopt::set_socket_send_buffer_size(&socket.0, bytes)?;
            }
            Socket::connect(&socket, &plain(name))?;
            Held::Plain(socket)
        } else {
            match made.sort {
                Sort::Stream => Held::Stream(Ours(Stream::connect_with(
                    unix::SocketAddr::from_abstract_name(name).unwrap(),
                    &made.config(),
                )?)),
                _ => Held::Packets(OurPackets(SeqPacket::connect_with(
                    unix::SocketAddr::from_abstract_name(name).unwrap(),
                    &made.config(),
                )?)),
            }
        };
        held.be_patient()
    }

    pub fn pair(made: Made) -> io::Result<(Held, Held)> {
        if made.plain {
            // (A clone of its descriptors is as good, and theirs are closed.)
            let kind = if made.sort == Sort::Pieces { Kind::SeqPacket } else { made.kind() };
            let (a, b) = Kernel.pair(kind, "".as_ref())?;
            let held = |conn: Conn| -> io::Result<Held> {
                Held::Plain(Plain(conn.fd().try_clone_to_owned()?)).be_patient()
            };
            return Ok((held(a)?, held(b)?));
        }
        let (a, b) = match made.sort {
            Sort::Stream => {
                let (a, b) = Stream::pair_with(&made.config())?;
                (Held::Stream(Ours(a)), Held::Stream(Ours(b)))
            }
            Sort::Records | Sort::Pieces => {
                let (a, b) = SeqPacket::pair_with(&made.config())?;
                (Held::Packets(OurPackets(a)), Held::Packets(OurPackets(b)))
            }
            Sort::Datagrams | Sort::Crowd => {
                let (a, b) = Datagram::pair_with(&made.config())?;
                (Held::Datagrams(OurDatagrams(a)), Held::Datagrams(OurDatagrams(b)))
            }
        };
        Ok((a.be_patient()?, b.be_patient()?))
    }

    /// A datagram socket with that name.
    pub fn bind(name: &str, made: Made) -> io::Result<Held> {
        let held = if made.plain {
            Held::Plain(Kernel::open(Kind::Dgram)?)
        } else {
            Held::Datagrams(OurDatagrams(Datagram::unbound_with(&made.config())?))
        };
        match &held {
            Held::Datagrams(socket) => Socket::bind(socket, &plain(name))?,
            Held::Plain(socket) => Socket::bind(socket, &plain(name))?,
            _ => {}
        }
        held.be_patient()
    }

    pub fn connect_to(&self, name: &str) -> io::Result<()> {
        match self {
            Held::Datagrams(socket) => Socket::connect(socket, &plain(name)),
            Held::Plain(socket) => Socket::connect(socket, &plain(name)),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn be_patient(self) -> io::Result<Held> {
        self.end().set_read_timeout(Some(SOON))?;
        self.end().set_write_timeout(Some(SOON))?;
        Ok(self)
    }

    pub fn end(&self) -> &dyn End {
        match self {
            Held::Stream(end) => end,
            Held::Packets(end) => end,
            Held::Datagrams(end) => end,
            Held::Plain(end) => end,
        }
    }

    /// Whether what it sends goes over the kernel, as far as is known.
    pub fn sends_over_kernel(&self) -> bool {
        self.end().path().0 == "kernel"
    }

    /// Bytes that its sending direction has room for.
    pub fn capacity(&self) -> usize {
        match self {
            Held::Stream(end) => end.0.capacity().0,
            Held::Packets(end) => end.0.capacity().0,
            Held::Datagrams(end) => end.0.capacity().0,
            Held::Plain(_) => self.send_buffer(),
        }
    }

    /// SO_SNDBUF.
    pub fn send_buffer(&self) -> usize {
        rustix::net::sockopt::socket_send_buffer_size(self.end().fd()).unwrap_or(0)
    }

    /// Sends, and does not wait.
    pub fn send(&self, at: usize, len: usize, eor: bool) -> io::Result<usize> {
        self.end().send(&vec![at as u8; len], Tx { eor, ..TX_NOW })
    }

    pub fn send_fds(&self, at: usize, len: usize, fds: &[OwnedFd]) -> io::Result<usize> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.end().send_msg(&[IoSlice::new(&vec![at as u8; len])], &fds, TX_NOW)
    }

    /// Reserves and writes; `meanwhile` is called while it is held.
    pub fn send_in_place(
        &self,
        at: usize,
        len: usize,
        commit: bool,
        meanwhile: impl FnOnce(),
    ) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT;
        let bytes = vec![at as u8; len];
        let mut slot = match self {
            Held::Stream(end) => end.0.reserve_with_flags(len, flags)?,
            Held::Packets(end) => end.0.reserve_with_flags(len, flags)?,
            Held::Datagrams(end) => end.0.reserve_with_flags(len, flags)?,
            Held::Plain(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        slot.copy_from(&bytes);
        meanwhile();
        if commit { Ok(slot.commit()?) } else { Ok(0) }
    }

    pub fn send_loan(&self, at: usize, len: usize, pool: &SharedPool) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT;
        let mut loan = pool.loan(len).map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
        loan.fill(at as u8);
        match self {
            Held::Stream(end) => match end.0.send_loan_with_flags(loan, flags) {
                // (As a copy it may go in part.)
                Err(not) if not.loan.len() < len => Ok(len - not.loan.len()),
                result => result.map_err(|not| not.error.into()),
            },
            Held::Packets(end) => match end.0.send_loan_with_flags(loan, flags) {
                Err(not) if not.loan.payload().len() < len => Ok(len - not.loan.payload().len()),
                result => result.map_err(|not| not.error.into()),
            },
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Receives, and does not wait; with room for descriptors, or without.
    pub fn recv(&self, max: usize, fds: bool, peek: bool) -> io::Result<Got> {
        let mut buf = vec![0xff; max];
        let flags = Rx { dontwait: true, peek, ..Rx::default() };
        let (len, end, over) = match self {
            Held::Packets(socket) => {
                let mut flags = RecvFlags::DONTWAIT;
                flags.set(RecvFlags::PEEK, peek);
                let got = match fds {
                    true => socket.0.recv_fds_with_flags(&mut buf, flags)?.0,
                    false => socket.0.recv_record_with_flags(&mut buf, flags)?,
                };
                (got.len, got.flags.contains(ReceivedFlags::EOR), got.is_end())
            }
            _ if fds => (self.end().recv_with(&mut buf, flags)?.len, false, false),
            _ => (self.end().recv_msg(&mut [IoSliceMut::new(&mut buf)], false, flags)?.len, false, false),
        };
        let from = buf.first().filter(|_| len > 0).map(|byte| usize::from(*byte));
        Ok(Got { len, end, over, from })
    }

    pub fn borrow(&self, max: usize) -> io::Result<(View, bool, bool)> {
        match self {
            Held::Stream(end) => {
                Ok((end.0.recv_borrowed_with_flags(max, RecvFlags::DONTWAIT)?, false, false))
            }
            Held::Packets(end) => {
                let (view, flags) = end.0.recv_borrowed_with_flags(max, RecvFlags::DONTWAIT)?;
                Ok((view, flags.contains(ReceivedFlags::EOR), flags.contains(ReceivedFlags::END)))
            }
            Held::Datagrams(end) => {
                let (view, received, _) = end.0.recv_borrowed_with_flags(max, RecvFlags::DONTWAIT)?;
                Ok((view, false, received.is_end()))
            }
            Held::Plain(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.end().shutdown(how)
    }

    /// Lets go of it and goes on with it; itself, if that was refused.
    pub fn pass(self, made: Made) -> (Option<Held>, Result<(), i32>) {
        macro_rules! pass {
            ($socket:expr, $wrap:expr) => {
                match $socket.0.into_fds() {
                    Ok(fds) => match Held::from_fds(fds, made) {
                        Ok(held) => (Some(held), Ok(())),
                        Err(e) => (None, Err(crate::others::errno_of(&e))),
                    },
                    Err(refused) => (Some($wrap(refused.socket)), Err(refused.error.raw_os_error())),
                }
            };
        }
        match self {
            Held::Stream(socket) => pass!(socket, |socket| Held::Stream(Ours(socket))),
            Held::Packets(socket) => pass!(socket, |socket| Held::Packets(OurPackets(socket))),
            other => (Some(other), Err(0)),
        }
    }

    pub fn share(&self) -> io::Result<Vec<OwnedFd>> {
        match self {
            Held::Stream(end) => Ok(end.0.share_fds()?),
            Held::Packets(end) => Ok(end.0.share_fds()?),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub fn from_fds(fds: Vec<OwnedFd>, made: Made) -> io::Result<Held> {
        let held = match made.sort {
            Sort::Stream => Held::Stream(Ours(Stream::from_fds_with(fds, &made.config())?)),
            Sort::Records | Sort::Pieces => {
                Held::Packets(OurPackets(SeqPacket::from_fds_with(fds, &made.config())?))
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        held.be_patient()
    }
}
