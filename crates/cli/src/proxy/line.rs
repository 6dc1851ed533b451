//! One connection to the backend, and the ways in which a body crosses from it to a client's TCP socket.

use super::peer::{Peer, RECORD};
use super::rewrite::{self, Client, Reply};
use super::send_stacked;
use super::tcp::{Tcp, wait_writable};
use super::timeout::within;
use super::trouble::{Patience, Trouble};
use super::turns::Turns;
use crate::counters::Counters;
use onecopy::unix::View;
use onecopy::unix::tokio::Stream;
use onecopy::{Carrier, RecvFlags, SendFlags};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// With `--transport kernel`: how a body crosses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Forward {
    /// Read into a buffer, write from it: two kernel copies.
    #[default]
    Copy,
    /// Spliced through a pipe: references to the kernel's pages, no copy.
    Splice,
}

/// The largest buffer, pipe or borrowed view that is in one step between backend and client.
const STEP: usize = 256 << 10;

/// Bytes of a onecopy stream that are looked at to find a head: the daemon's heads have about 300.
const LOOK: usize = 1 << 10;

/// Interim answers (1xx) that are read over before an answer.
const INTERIM: usize = 16;

/// A connection that was not used for so long has been waited on with a doorbell.
const IDLE: Duration = Duration::from_millis(10);

/// A connection to the backend, kept from request to request.
#[derive(Debug)]
pub struct Line {
    way: Way,
    /// What was received and not yet used: a head, and perhaps the first bytes of a body.
    inbox: Vec<u8>,
    scratch: Vec<u8>,
    /// Kept at its full size: clearing it for each answer would cost as much as a copy.
    body: Vec<u8>,
    /// The backend runs as this process's user.
    same_user: bool,
    /// A descriptor that came with the head.
    lent: Option<OwnedFd>,
    /// The head that it came with, as the backend wrote it.
    lent_head: Vec<u8>,
    /// One came that this process could not open.
    lost: bool,
}

#[derive(Debug)]
enum Way {
    Copy(UnixStream),
    Splice(UnixStream, OwnedFd, OwnedFd),
    /// The bytes of a head that was only looked at, and has to be taken before the body.
    Onecopy(Stream, usize),
}

impl Line {
    /// Over a kernel socket.
    pub fn kernel(stream: UnixStream, forward: Forward) -> io::Result<Line> {
        let way = match forward {
            Forward::Copy => Way::Copy(stream),
            Forward::Splice => {
                let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
                // Less than asked for (a user's pipe quota) works too, only slower.
                let _ = rustix::pipe::fcntl_setpipe_size(&write, 1 << 20);
                Way::Splice(stream, read, write)
            }
        };
        Ok(Line::over(way))
    }

    /// Over a onecopy stream.
    pub fn onecopy(stream: Stream) -> io::Result<Line> {
        let own = rustix::process::geteuid().as_raw();
        let same_user = stream.peer_cred().is_ok_and(|peer| peer.uid == own);
        Ok(Line { same_user, ..Line::over(Way::Onecopy(stream, 0)) })
    }

    fn over(way: Way) -> Line {
        Line {
            way,
            inbox: Vec::new(),
            scratch: Vec::new(),
            body: Vec::new(),
            same_user: false,
            lent: None,
            lent_head: Vec::new(),
            lost: false,
        }
    }

    /// Whether a body may be lent: descriptors come over this line from a program of the same user, and the client's bytes go
    /// out as they are.
    pub fn takes_loans(&self, client: &Peer) -> bool {
        self.same_user && client.plain().is_some()
    }

    /// Whether what came with the last head could not be opened: too many descriptors are open.
    pub fn lost_loan(&self) -> bool {
        self.lost && self.lent.is_none()
    }

    /// What came with the last head, and that head as the backend wrote it.
    pub fn lent(&mut self) -> Result<(OwnedFd, Vec<u8>), Trouble> {
        let none = || Trouble::Bad("the backend lent a body and sent no descriptor".into());
        Ok((self.lent.take().ok_or_else(none)?, std::mem::take(&mut self.lent_head)))
    }

    /// Who will read the body, told to the daemon so that it can choose its stores.
    pub fn reader(&self) -> &'static str {
        match &self.way {
            // The view is read by the CPU that runs send().
            Way::Copy(_) | Way::Onecopy(..) => "other-core",
            Way::Splice(..) => "no-cpu",
        }
    }

    /// Whether it runs over shared memory.
    pub fn upgraded(&self) -> bool {
        match &self.way {
            Way::Copy(_) | Way::Splice(..) => false,
            Way::Onecopy(stream, _) => stream.path().receive == Carrier::SharedMemory,
        }
    }

    /// Whether it stays with the kernel although shared memory was wanted.
    pub fn fell_back(&self) -> bool {
        matches!(&self.way, Way::Onecopy(stream, _) if stream.stats().fallbacks > 0)
    }

    /// Whether nothing has come since the last answer. What comes unasked (a body behind an answer to HEAD, a second answer)
    /// would be taken for the answer to the next client's request; and a connection that has ended is of no use either.
    pub fn is_quiet(&self, idle: Duration) -> bool {
        if !self.inbox.is_empty() {
            return false;
        }
        let unasked = match &self.way {
            // (tokio's try_read asks the kernel only where an event has told of something.)
            Way::Copy(stream) | Way::Splice(stream, ..) => peek(stream, &mut [0]),
            // To receive from an empty ring is to ask for a doorbell, which the next answer would have to ring: only a connection
            // pays that which was idle anyway. How much lies there costs a look at one line of memory.
            Way::Onecopy(stream, _) if self.upgraded() && idle < IDLE => {
                return stream.get_ref().readable_bytes().is_ok_and(|unasked| unasked == 0);
            }
            Way::Onecopy(stream, _) => {
                let look = RecvFlags::DONTWAIT | RecvFlags::PEEK;
                stream.get_ref().recv_with_flags(&mut [0], look).map_err(io::Error::from)
            }
        };
        matches!(unasked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a request head and waits for the head of the answer, which is written for the client into `out`. A line that is
    /// `new` was not looked at yet.
    pub async fn ask(
        &mut self,
        head: &[u8],
        new: bool,
        client: Client,
        out: &mut Vec<u8>,
        patience: Patience,
    ) -> Result<Reply, Trouble> {
        let exchange = async {
            self.inbox.clear();
            self.send(head, new).await?;
            (self.lent, self.lost) = (None, false);
            let mut interim = 0;
            loop {
                match rewrite::reply(&self.inbox, client, out) {
                    Ok(Some(reply)) => {
                        if reply.lent.is_some() {
                            self.lent_head = self.inbox[..reply.head].to_vec();
                        }
                        match &mut self.way {
                            // Nothing but the head was copied, and of the body nothing is taken yet.
                            Way::Onecopy(_, looked) if *looked > 0 => {
                                *looked = reply.head;
                                self.inbox.clear();
                                if reply.status < 200 || reply.lent.is_some() {
                                    self.take_head().await.map_err(|_| Trouble::Gone)?;
                                }
                            }
                            _ => drop(self.inbox.drain(..reply.head)),
                        }
                        if reply.status >= 200 {
                            return Ok(reply);
                        }
                        interim += 1;
                        if interim > INTERIM {
                            return Err(Trouble::Bad(
                                "the backend sends interim answers (1xx) without end".into(),
                            ));
                        }
                        continue;
                    }
                    Ok(None) => {}
                    Err(why) => return Err(Trouble::Bad(why.into())),
                }
                match self.receive_head().await {
                    Ok(n) if n > 0 => {}
                    _ if self.inbox.is_empty() => return Err(Trouble::Gone),
                    _ => return Err(Trouble::Bad("the backend went away in its head".into())),
                }
            }
        };
        within(patience.backend, exchange).await.unwrap_or(Err(Trouble::Late))
    }

    /// Sends a head. What comes before its last piece has gone out cannot be the answer to it, and is none: looked for before
    /// each piece, but for the first on a line that was looked at when it was leased.
    async fn send(&mut self, head: &[u8], new: bool) -> Result<(), Trouble> {
        let mut left = head;
        while !left.is_empty() {
            let wary = new || left.len() < head.len();
            let mut early = None;
            let mut write = || {
                if wary && let Err(trouble) = self.nothing_early() {
                    early = Some(trouble);
                    return Err(io::ErrorKind::InvalidData.into());
                }
                match &self.way {
                    Way::Copy(stream) | Way::Splice(stream, ..) => {
                        Ok(rustix::net::send(stream, left, rustix::net::SendFlags::NOSIGNAL)?)
                    }
                    Way::Onecopy(stream, _) => {
                        Ok(stream.get_ref().send_with_flags(left, SendFlags::DONTWAIT)?)
                    }
                }
            };
            let sent = match &self.way {
                Way::Copy(stream) | Way::Splice(stream, ..) => {
                    stream.async_io(Interest::WRITABLE, write).await
                }
                Way::Onecopy(stream, _) if !wary => stream.send(left).await.map_err(io::Error::from),
                // As it stands: a stream is told of room by an event only after it found none.
                Way::Onecopy(stream, _) => match write() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        stream.async_io(Interest::WRITABLE, write).await
                    }
                    other => other,
                },
            };
            match sent {
                Ok(n) => left = &left[n..],
                // A daemon that is full says so and hangs up, which may be since the look.
                Err(_) if new && early.is_none() => {
                    return Err(self.nothing_early().err().unwrap_or(Trouble::Gone));
                }
                Err(_) => return Err(early.unwrap_or(Trouble::Gone)),
            }
        }
        Ok(())
    }

    /// Whether nothing has come yet.
    fn nothing_early(&self) -> Result<(), Trouble> {
        let mut came = [0; LOOK];
        let n = match &self.way {
            Way::Copy(stream) | Way::Splice(stream, ..) => peek(stream, &mut came).unwrap_or(0),
            // (What the ring has to say about its end is heard when the answer is waited for.)
            Way::Onecopy(stream, _) => match stream.get_ref().readable_bytes() {
                Ok(0) | Err(_) => 0,
                Ok(_) => {
                    let look = RecvFlags::DONTWAIT | RecvFlags::PEEK;
                    stream.get_ref().recv_with_flags(&mut came, look).unwrap_or(0)
                }
            },
        };
        let anyone = Client { head: true, keep: false, minor: 1 };
        match rewrite::reply(&came[..n], anyone, &mut Vec::new()) {
            _ if n == 0 => Ok(()),
            // What a backend says to a connection for which it has no room.
            Ok(Some(Reply { status: 503, keep: false, .. })) => Err(Trouble::Busy),
            _ => Err(Trouble::Bad("the backend sent something before it was asked".into())),
        }
    }

    /// Adds what came to the inbox. The copying way takes some of the body along, since it has to come into a
    /// buffer anyway; the splicing way takes little, since what it takes is not spliced.
    /// A onecopy stream is only looked at first (PEEK): the whole head is there in all but odd cases, and the body
    /// must not be copied.
    async fn receive_head(&mut self) -> io::Result<usize> {
        if let Way::Onecopy(_, 1..) = self.way {
            self.take_head().await?; // it was not whole: taken after all, and waited for the rest of it
        }
        let (stream, most) = match &mut self.way {
            Way::Onecopy(stream, looked) => {
                let have = self.inbox.len();
                self.inbox.resize(have + LOOK, 0);
                let flags = if have == 0 { RecvFlags::PEEK } else { RecvFlags::empty() };
                let result = stream.recv_with_flags(&mut self.inbox[have..], flags).await;
                let got = result.unwrap_or(0);
                self.inbox.truncate(have + got);
                *looked = if have == 0 { got } else { 0 };
                return Ok(result?);
            }
            Way::Copy(stream) => (stream, 16 << 10),
            Way::Splice(stream, ..) => (stream, 1 << 10),
        };
        let have = self.inbox.len();
        self.inbox.resize(have + most, 0);
        let result = loop {
            stream.readable().await?;
            match stream.try_read(&mut self.inbox[have..]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => break other,
            }
        };
        self.inbox.truncate(have + result.as_ref().map_or(0, |n| *n));
        result
    }

    /// Takes the bytes that were only looked at.
    async fn take_head(&mut self) -> io::Result<()> {
        if let Way::Onecopy(stream, looked) = &mut self.way {
            while *looked > 0 {
                let mut gone = [0; LOOK];
                let room = &mut gone[..(*looked).min(LOOK)];
                let (took, with) = stream.recv_fds(room).await?;
                *looked -= took.max(1);
                self.lost |= with.truncated;
                self.lent = with.fds.into_iter().next().or(self.lent.take());
            }
        }
        Ok(())
    }

    /// Sends `head` and then `length` bytes of body to the client. After an error the connection to the client
    /// is of no use: it has a head that promises more than came.
    pub async fn pass(
        &mut self,
        head: &[u8],
        length: u64,
        client: &mut Peer,
        patience: Patience,
        counters: &mut Counters,
    ) -> Result<(), Trouble> {
        if self.inbox.len() as u64 > length {
            return Err(Trouble::Bad("the backend sent more than it said".into()));
        }
        if let Way::Onecopy(stream, looked) = &mut self.way
            && self.inbox.is_empty()
        {
            let (skip, to) = (std::mem::take(looked), (client, &mut self.body));
            return borrow(stream, skip, head, length, to, patience, counters).await;
        }
        let early = self.inbox.len() as u64;
        // Head and first bytes leave in one call.
        self.scratch.clear();
        self.scratch.extend_from_slice(head);
        let whole = early == length;
        if early <= 4096 {
            self.scratch.extend_from_slice(&self.inbox);
            client.send_all(&self.scratch, !whole, patience).await?;
        } else {
            client.send_all(&self.scratch, true, patience).await?;
            client.send_all(&self.inbox, !whole, patience).await?;
        }
        self.inbox.clear();
        counters.kernel_copied += 2 * early;
        counters.user_copied += client.copies() * early;
        counters.body_bytes += early;
        match &mut self.way {
            Way::Copy(stream) => {
                copy(stream, &mut self.body, client, length - early, patience, counters).await
            }
            Way::Splice(stream, read, write) => {
                // `run` refuses the two together.
                let client = client.plain().ok_or(Trouble::Broken)?;
                splice(stream, (read, write), client, length - early, patience, counters).await
            }
            Way::Onecopy(stream, _) => {
                let to = (client, &mut self.body);
                borrow(stream, 0, &[], length - early, to, patience, counters).await
            }
        }
    }
}

async fn wait_readable(stream: &UnixStream, error: io::Error, patience: Patience) -> Result<(), Trouble> {
    match error.kind() {
        io::ErrorKind::WouldBlock => match within(patience.backend, stream.readable()).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Trouble::Cut(error.to_string())),
            None => Err(Trouble::Stuck("it is silent".to_owned())),
        },
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(Trouble::Cut(error.to_string())),
    }
}

async fn copy(
    stream: &UnixStream,
    buffer: &mut Vec<u8>,
    client: &mut Peer,
    mut left: u64,
    patience: Patience,
    counters: &mut Counters,
) -> Result<(), Trouble> {
    buffer.resize(STEP, 0);
    let mut turns = Turns::default();
    while left > 0 {
        let most = left.min(STEP as u64) as usize;
        let got = match stream.try_read(&mut buffer[..most]) {
            Ok(0) => return Err(ended()),
            Ok(got) => got,
            Err(error) => {
                client.flush(patience).await?;
                wait_readable(stream, error, patience).await?;
                continue;
            }
        };
        left -= got as u64;
        client.send_all(&buffer[..got], left > 0, patience).await?;
        counters.kernel_copied += 2 * got as u64;
        counters.user_copied += client.copies() * got as u64;
        counters.body_bytes += got as u64;
        turns.take(got).await;
    }
    Ok(())
}

async fn splice(
    stream: &UnixStream,
    (read, write): (&OwnedFd, &OwnedFd),
    client: &Tcp,
    mut left: u64,
    patience: Patience,
    counters: &mut Counters,
) -> Result<(), Trouble> {
    // `run` refuses it over a stack of our own.
    let Tcp::Kernel(socket) = client else { return Err(Trouble::Broken) };
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut turns = Turns::default();
    while left > 0 {
        let most = left.min(1 << 20) as usize;
        // The pipe is empty here, so EAGAIN speaks of the socket.
        let into = || Ok(rustix::pipe::splice(stream, None, write, None, most, flags)?);
        let mut held = match stream.try_io(Interest::READABLE, into) {
            Ok(0) => return Err(ended()),
            Ok(held) => held,
            Err(error) => {
                wait_readable(stream, error, patience).await?;
                continue;
            }
        };
        left -= held as u64;
        turns.take(held).await;
        let flags = if left > 0 { flags | SpliceFlags::MORE } else { flags };
        while held > 0 {
            // The pipe is not empty here: EAGAIN speaks of the client.
            let out = || Ok(rustix::pipe::splice(read, None, socket, None, held, flags)?);
            match socket.try_io(Interest::WRITABLE, out) {
                Ok(0) => return Err(Trouble::Broken),
                Ok(n) => {
                    held -= n;
                    counters.body_bytes += n as u64;
                    counters.referenced += n as u64;
                }
                Err(error) => wait_writable(client, error, patience.client).await?,
            }
        }
    }
    Ok(())
}

/// Passes a body on from where it lies: borrowed views of shared memory, sent by the kernel from there, or copied out
/// and encrypted. `skip` bytes of head lie before it.
async fn borrow(
    stream: &Stream,
    mut skip: usize,
    head: &[u8],
    mut left: u64,
    (client, room): (&mut Peer, &mut Vec<u8>),
    patience: Patience,
    counters: &mut Counters,
) -> Result<(), Trouble> {
    client.send_all(head, left > 0, patience).await?;
    let mut turns = Turns::default();
    while left + skip as u64 > 0 {
        let most = (left + skip as u64).min(STEP as u64) as usize;
        let before = stream.stats();
        let mut next = pin!(stream.recv_borrowed(most));
        let ready = match poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
            Poll::Ready(view) => Some(view),
            Poll::Pending => {
                client.flush(patience).await?;
                within(patience.backend, next).await
            }
        };
        let mut view = match ready {
            Some(Ok(view)) if view.is_empty() => return Err(ended()),
            Some(Ok(view)) => view,
            Some(Err(error)) => return Err(Trouble::Cut(error.to_string())),
            None => return Err(Trouble::Stuck("it is silent".to_owned())),
        };
        let head = skip.min(view.len());
        // Over the kernel a view is a copy: counted as what it is. The first body may begin there and go on in memory, whose
        // bytes are then copied behind it.
        let after = stream.stats();
        counters.kernel_copied += (after.kernel_copied - before.kernel_copied).saturating_sub(head as u64);
        counters.user_copied += after.user_copied_out - before.user_copied_out;
        view.advance(head);
        skip -= head;
        left -= view.len() as u64;
        while !view.is_empty() {
            let more = left > 0;
            let moved = match client.plain() {
                Some(plain @ Tcp::Kernel(socket)) => {
                    send_view(&mut view, (plain, socket), more, patience).await?
                }
                Some(plain @ Tcp::Stack(stacked)) => {
                    let moved = send_stacked::pass_view(&mut view, (plain, stacked), more, patience).await?;
                    counters.user_copied += moved as u64;
                    moved
                }
                None => {
                    room.resize(RECORD, 0);
                    let moved = encrypt_view(&mut view, client, room, more, patience).await?;
                    counters.user_copied += (1 + client.copies()) * moved as u64;
                    moved
                }
            } as u64;
            counters.kernel_copied += moved;
            counters.body_bytes += moved;
            turns.take(moved as usize).await;
        }
    }
    Ok(())
}

/// One send from where the bytes lie. Bytes sent.
async fn send_view(
    view: &mut View,
    (client, socket): (&Tcp, &TcpStream),
    more: bool,
    patience: Patience,
) -> Result<usize, Trouble> {
    let flags = if more { SendFlags::DONTWAIT | SendFlags::MORE } else { SendFlags::DONTWAIT };
    loop {
        match socket.try_io(Interest::WRITABLE, || view.send_to_with_flags(socket, flags)) {
            Ok(n) => {
                view.advance(n);
                return Ok(n);
            }
            Err(error) => wait_writable(client, error, patience.client).await?,
        }
    }
}

/// Copies a record's worth out and has it encrypted. The copy has to be: the backend could still write what is in
/// view, and a cipher wants bytes that keep still. It also gives the backend its room back before the client took
/// anything.
async fn encrypt_view(
    view: &mut View,
    client: &mut Peer,
    room: &mut [u8],
    more: bool,
    patience: Patience,
) -> Result<usize, Trouble> {
    let n = view.copy_to(room);
    view.advance(n);
    client.send_all(&room[..n], more || !view.is_empty(), patience).await?;
    Ok(n)
}

/// Looks at what has come, without waiting.
fn peek(stream: &UnixStream, room: &mut [u8]) -> io::Result<usize> {
    let flags = rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::PEEK;
    Ok(rustix::net::recv(stream, room, flags)?.1)
}

fn ended() -> Trouble {
    Trouble::Cut("it ended the connection".to_owned())
}
