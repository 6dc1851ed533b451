//! Sockets of UDP, as programs hold them.
//!
//! A datagram waits for nobody but for room: so a call that copies is one system call of the program's thread. A send from where the bytes
//! lie is the ring's ([`outbox`](super::outbox)): the kernel has them for longer than the call takes, and often than the socket lives. So shards are
//! nothing to a socket but where such sends are made: it is a shard's from the first of them on.

use super::address::{addresses, family};
use super::config::ZeroCopy;
use super::engine::Kernel;
use super::options;
use super::outbox::{Answer, MAX_PARTS, Outbox};
use super::shared::Shared;
use super::socket::{TAKES, made};
use super::submitter::{For, Submitters};
use super::wait::{explained, here};
use crate::carrier::udp::Endpoint;
use crate::carrier::{Common, Counts, Limits, Message, Meta, PIECE, Taken, Way, alike, lend};
use crate::zerocopy::{At, Lender, NotSent, Range, Small};
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, Kind, Writer};
use onecopy_inet::stack::Bound;
use onecopy_inet::udp::{Envelope, MAX_LEN, Settings};
use onecopy_pool::Pages;
use onecopy_socket::registry::{Protocol, Row, Type};
use onecopy_socket::{Carrier, Error, Op, Reader, RecvFlags, Result, SendFlags, Wait};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::atomic::{AtomicU64, spin_loop};
use onecopy_sys::datagram::{self, Control, Got, Said};
use onecopy_sys::signal;
use onecopy_sys::sockopt::drops;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// A socket without an address.
pub(crate) fn open(kernel: &Kernel) -> Arc<dyn Endpoint> {
    Arc::new(Datagrams::new(kernel))
}

/// One with an address, which others who say so may have, too, where it is to `reuse` it.
pub(crate) fn bind(kernel: &Kernel, address: SocketAddr, reuse: bool) -> Result<Arc<dyn Endpoint>> {
    let socket = Datagrams::new(kernel);
    let bound = socket.made(Some(address)).and_then(|made| {
        sockopt::set_socket_reuseaddr(&made.fd, reuse)?;
        rustix::net::bind(&made.fd, &address)
    });
    bound.map_err(|errno| explained(Op::Bind, errno).about("address"))?;
    socket.named();
    Ok(Arc::new(socket))
}

/// A socket. The kernel's is made once its family is known.
struct Datagrams {
    shared: Arc<Shared>,
    /// Of which one makes the requests of the outbox.
    submitters: Arc<Submitters>,
    common: Common,
    row: Arc<Row>,
    fd: OnceLock<Made>,
    making: Mutex<()>,
    options: Mutex<Settings>,
    /// Its sends that are told of; made with the first.
    lender: OnceLock<Lender>,
    /// Its sends from where the bytes lie; made with the first.
    outbox: OnceLock<Arc<Outbox>>,
    /// Bytes from which on such a send is one without a copy.
    least: AtomicU64,
    /// Whoever has it receives what he has asked the length of.
    taking: Mutex<()>,
    /// 1 once its address was shown.
    named: AtomicU64,
}

struct Made {
    fd: Arc<OwnedFd>,
    ipv6: bool,
}

impl Datagrams {
    fn new(kernel: &Kernel) -> Datagrams {
        let row = Arc::new(Row::claim_unnamed(std::process::id(), Type::Datagram, false));
        row.names(Protocol::Udp, None, None);
        Datagrams {
            shared: Arc::clone(kernel.shared()),
            submitters: Arc::clone(kernel.submitters()),
            common: Common::new(&row, kernel.shared().wait, Reader::OtherCore),
            row,
            fd: OnceLock::new(),
            making: Mutex::new(()),
            options: Mutex::new(Settings::default()),
            lender: OnceLock::new(),
            outbox: OnceLock::new(),
            least: AtomicU64::new(ZeroCopy::LEAST as u64),
            taking: Mutex::new(()),
            named: AtomicU64::new(0),
        }
    }

    /// The kernel's socket, made if there is none: of the family of `address`, or of IPv4 where there is none.
    fn made(&self, address: Option<SocketAddr>) -> std::result::Result<&Made, Errno> {
        let ipv6 = address.map(|address| address.is_ipv6());
        let _one = self.making.lock();
        if let Some(made) = self.fd.get() {
            // One of IPv6 takes an address of IPv4, mapped, which is for its program to say.
            return if ipv6.is_some_and(|ipv6| ipv6 != made.ipv6) {
                Err(Errno::AFNOSUPPORT)
            } else {
                Ok(made)
            };
        }
        let (ipv6, family) = (ipv6.unwrap_or(false), address.map_or(AddressFamily::INET, family));
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        datagram::tell_all(&fd, ipv6).map_err(errno)?;
        let settings = self.options.lock();
        // What the kernel begins with, as far as it differs from ours.
        let mut fresh = Settings { dont_fragment: !settings.dont_fragment, ..Settings::default() };
        options::apply_udp(fd.as_fd(), ipv6, &mut fresh, &settings)?;
        Ok(self.fd.get_or_init(|| Made { fd: Arc::new(fd), ipv6 }))
    }

    /// Calls `attempt` until it does not say EAGAIN, waiting in between as the socket's settings say.
    fn call<R>(
        &self,
        (op, way): (Op, Way),
        dont_wait: bool,
        fd: BorrowedFd<'_>,
        mut attempt: impl FnMut() -> std::result::Result<R, Errno>,
    ) -> std::result::Result<R, Errno> {
        let settings = self.common.settings();
        let none = dont_wait || settings.nonblocking();
        let (limit, wanted) = match way {
            Way::Read => (settings.read_timeout(), PollFlags::IN),
            Way::Write => (settings.write_timeout(), PollFlags::OUT),
        };
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        debug_assert!(matches!(op, Op::Send | Op::Recv));
        loop {
            match attempt() {
                Err(Errno::AGAIN) if !none => {}
                done => return done,
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Errno::AGAIN);
            }
            if settings.wait() == Wait::Spin {
                spin_loop();
                continue;
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&fd, wanted)], left.as_ref()) {
                Ok(0) => return Err(Errno::AGAIN),
                Ok(_) => {}
                // poll(2) is never restarted, other calls that wait are, without a limit (signal(7)).
                Err(Errno::INTR) if until.is_none() && signal::all_restart() => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends the slices by one call, which copies them.
    fn send_copy(
        &self,
        slices: &[IoSlice<'_>],
        envelope: &Envelope,
        dont_wait: bool,
    ) -> std::result::Result<usize, Errno> {
        let made = self.made(envelope.to)?;
        let control = Control::new(&said(envelope), made.ipv6)?;
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let n = self.call((Op::Send, Way::Write), dont_wait, made.fd.as_fd(), || {
            datagram::send(&made.fd, slices, envelope.to, &control, flags)
        })?;
        self.common.counters().kernel_copied.add(n);
        self.named();
        Ok(n)
    }

    /// Sends `data` by reference, or has the kernel copy it at once where that is better; it stays there where it is refused. Whoever calls
    /// has the right to send.
    fn send_whole(
        &self,
        data: &mut Segment<Chain>,
        envelope: &Envelope,
        dont_wait: bool,
    ) -> std::result::Result<usize, Errno> {
        if data.payload().kind() == Some(Kind::Device) {
            return Err(Errno::FAULT);
        }
        let len = data.payload().len();
        let made = self.made(envelope.to)?;
        let wanted = match self.shared.config.zero_copy {
            ZeroCopy::Always => true,
            // Relaxed: nothing else is read because of it.
            ZeroCopy::Auto => len as u64 >= self.least.load(Relaxed),
            ZeroCopy::Never => false,
        };
        if wanted && len > 0 && data.payload().fragment_count() <= MAX_PARTS && self.shared.is_here() {
            let outbox = self.outbox.get_or_init(|| {
                Outbox::new(self.submitters.next(For::Other), &made.fd, Arc::clone(&self.row))
            });
            if !outbox.copies() {
                match self.send_by_ring(outbox, made, data, envelope, dont_wait) {
                    // Neither memory to pin the pages nor for a notification: the kernel copies.
                    Err(Errno::NOBUFS | Errno::NOMEM) if !data.payload().is_empty() => {
                        self.common.counters().references_copied.add(1);
                    }
                    sent => {
                        self.named();
                        return sent;
                    }
                }
            }
        }
        let sent = match data.payload().is_empty() {
            true => self.send_copy(&[], envelope, dont_wait),
            false => {
                let host = data.payload().host().map_err(|_| Errno::FAULT)?;
                let slices: Vec<IoSlice<'_>> = host.slices().map(IoSlice::new).collect();
                self.send_copy(&slices, envelope, dont_wait)
            }
        }?;
        std::mem::replace(data, Chain::new().into()).free(Fate::Copied);
        Ok(sent)
    }

    fn send_by_ring(
        &self,
        outbox: &Outbox,
        made: &Made,
        data: &mut Segment<Chain>,
        envelope: &Envelope,
        dont_wait: bool,
    ) -> std::result::Result<usize, Errno> {
        let control = Control::new(&said(envelope), made.ipv6)?;
        let how = onecopy_uring::Send {
            zero_copy: true,
            dont_wait: true,
            to: envelope.to,
            control: Some(control),
            ..onecopy_uring::Send::default()
        };
        self.call((Op::Send, Way::Write), dont_wait, made.fd.as_fd(), || {
            let given = std::mem::replace(data, Chain::new().into());
            match outbox.send(given, how) {
                Answer::Taken(n) => Ok(n),
                Answer::Refused(errno, back) => {
                    *data = back;
                    Err(errno)
                }
            }
        })
    }

    /// It may have got a port by now: whoever looks from outside sees it.
    fn named(&self) {
        // Relaxed: whoever comes twice says the same.
        if self.named.swap(1, Relaxed) == 0 {
            let bound = Endpoint::addresses(self);
            self.row.names(Protocol::Udp, bound.local, bound.remote);
        }
    }

    fn meta(&self, got: &Got, room: usize, made: &Made) -> Meta {
        let unspecified: IpAddr = match made.ipv6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        let port = addresses(&*made.fd).local.map_or(0, |local| local.port());
        Meta {
            len: got.full.min(room),
            full: got.full,
            from: got.from.unwrap_or(SocketAddr::new(unspecified, 0)),
            to: SocketAddr::new(got.to.unwrap_or(unspecified), port),
            segment_size: got.segment.map_or(got.full, usize::from),
            service: got.service,
            ttl: got.hops,
        }
    }

    fn recv_copy(
        &self,
        slices: &mut [IoSliceMut<'_>],
        peek: bool,
        dont_wait: bool,
    ) -> std::result::Result<Meta, Errno> {
        let made = self.made(None)?;
        let flags = match peek {
            true => rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::PEEK,
            false => rustix::net::RecvFlags::DONTWAIT,
        };
        let room = slices.iter().map(|slice| slice.len()).sum();
        let got = self.call((Op::Recv, Way::Read), dont_wait, made.fd.as_fd(), || {
            datagram::recv(&made.fd, slices, flags)
        })?;
        let meta = self.meta(&got, room, made);
        let counters = self.common.counters();
        counters.kernel_copied.add(meta.len);
        if !peek {
            counters.received.add(meta.len);
        }
        Ok(meta)
    }

    /// Takes a datagram into pages of ours, as many as it needs.
    fn recv_pages(&self, made: &Made) -> std::result::Result<(Segment<Chain>, Meta), Errno> {
        let _one = self.taking.lock();
        // Of the next one; 0 where there is none, or it is empty.
        let len = rustix::io::ioctl_fionread(&made.fd)? as usize;
        let count = len.div_ceil(PAGE).max(1);
        let pool = self.shared.received()?.reservoir(count);
        let pages = (0..count).map(|_| pool.alloc()).collect::<std::result::Result<Vec<_>, _>>();
        let mut pages = pages.map_err(|_| Errno::NOBUFS)?;
        // (Pages that were just taken have no other holder.)
        let mut slices: Vec<IoSliceMut<'_>> =
            pages.iter_mut().filter_map(|page| page.bytes_mut()).map(IoSliceMut::new).collect();
        let got = datagram::recv(&made.fd, &mut slices, rustix::net::RecvFlags::DONTWAIT)?;
        let meta = self.meta(&got, count * PAGE, made);
        let (mut chain, mut left) = (Chain::new(), meta.len);
        for page in pages {
            let n = left.min(PAGE);
            if n == 0 {
                break;
            }
            left -= n;
            let part = onecopy_chain::Fragment::new(page, 0, n).map_err(|_| Errno::INVAL)?;
            chain.append(part).map_err(|_| Errno::INVAL)?;
        }
        self.common.counters().kernel_copied.add(meta.len);
        Ok((chain.into(), meta))
    }

    fn outbox_closes(&self) {
        // What another process forked from is its own.
        if let Some(outbox) = self.outbox.get().filter(|_| self.shared.is_here()) {
            outbox.close();
        }
    }
}

/// Bytes of a page that datagrams are received into.
const PAGE: usize = 4096;

/// Trains of many messages have datagrams that go through any network; the kernel refuses those that its way does not take.
const TRAINS: Limits = Limits { each: 1452, all: MAX_LEN };

fn said(envelope: &Envelope) -> Said {
    Said { segment: envelope.gso, service: envelope.service, source: envelope.source }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Endpoint for Datagrams {
    fn counts(&self) -> Weak<dyn Counts> {
        let weak: Weak<Row> = Arc::downgrade(&self.row);
        weak
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn carrier(&self) -> Carrier {
        Carrier::Kernel
    }

    fn connect(&self, to: SocketAddr) -> Result<()> {
        let done = match to.port() {
            0 => Err(Errno::INVAL),
            _ => self.made(Some(to)).and_then(|made| rustix::net::connect(&made.fd, &to)),
        };
        let bound = Endpoint::addresses(self);
        self.row.names(Protocol::Udp, bound.local, bound.remote);
        done.map_err(|errno| explained(Op::Connect, errno))
    }

    fn disconnect(&self) -> Result<()> {
        let Some(made) = self.fd.get() else { return Ok(()) };
        let done = rustix::net::connect_unspec(&made.fd);
        let bound = Endpoint::addresses(self);
        self.row.names(Protocol::Udp, bound.local, bound.remote);
        done.map_err(|errno| explained(Op::Connect, errno))
    }

    fn addresses(&self) -> Bound {
        let bound = self.fd.get().map(|made| addresses(&*made.fd));
        let mut bound = bound.unwrap_or(Bound { local: None, remote: None });
        // Nobody has the port 0: it has none yet.
        bound.local = bound.local.filter(|local| local.port() != 0);
        bound
    }

    fn take_error(&self) -> Option<Error> {
        match sockopt::socket_error(&self.fd.get()?.fd) {
            Ok(Err(errno)) => Some(explained(Op::Send, errno)),
            _ => None,
        }
    }

    fn drops(&self) -> u64 {
        self.fd.get().and_then(|made| drops(made.fd.as_fd()).ok()).map_or(0, u64::from)
    }

    fn receive_buffer(&self) -> usize {
        let made = self.made(None);
        made.and_then(|made| sockopt::socket_recv_buffer_size(&made.fd)).unwrap_or_default()
    }

    fn change(&self, change: &mut dyn FnMut(&mut Settings)) -> Result<()> {
        let refused = |errno| explained(Op::Option, errno);
        // One that is being made takes its settings from here.
        let _one = self.making.lock();
        let mut settings = self.options.lock();
        let mut new = settings.clone();
        change(&mut new);
        new.settle().map_err(|_| refused(Errno::INVAL))?;
        match self.fd.get() {
            Some(made) => {
                options::apply_udp(made.fd.as_fd(), made.ipv6, &mut settings, &new).map_err(refused)
            }
            None if new.all_errors => Err(refused(Errno::NOPROTOOPT)),
            None => {
                *settings = new;
                Ok(())
            }
        }
    }

    fn look(&self, look: &mut dyn FnMut(&Settings)) {
        look(&self.options.lock());
    }

    fn fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.made(None).map_err(|errno| Error::new(Op::Socket, errno))?.fd.as_fd())
    }

    fn send_slices(&self, slices: &[IoSlice<'_>], envelope: &Envelope, flags: SendFlags) -> Result<usize> {
        let sent = self.send_copy(slices, envelope, flags.contains(SendFlags::DONTWAIT));
        let n = sent.map_err(|errno| explained(Op::Send, errno))?;
        self.common.counters().sent.add(n);
        Ok(n)
    }

    fn send_segment(
        &self,
        data: &mut Segment<Chain>,
        envelope: &Envelope,
        flags: SendFlags,
    ) -> Result<usize> {
        let dont_wait = flags.contains(SendFlags::DONTWAIT);
        let _one = self.common.send_alone(dont_wait)?;
        let sent = self.send_whole(data, envelope, dont_wait);
        let n = sent.map_err(|errno| explained(Op::Send, errno))?;
        self.common.referenced(n);
        Ok(n)
    }

    fn send_many(&self, messages: &[Message<'_>], flags: SendFlags) -> Result<usize> {
        let dont_wait = flags.contains(SendFlags::DONTWAIT);
        let mut done = 0;
        while done < messages.len() {
            let alike = alike(&messages[done..], &TRAINS);
            let train = match alike {
                [_] | [] => None,
                [first, ..] => {
                    let slices: Vec<_> = alike.iter().map(|message| IoSlice::new(message.bytes)).collect();
                    let envelope = first.envelope.gso(first.bytes.len() as u16);
                    Some(self.send_copy(&slices, &envelope, dont_wait))
                }
            };
            let sent = match train {
                Some(Ok(n)) => Ok((alike.len(), n)),
                // Its way takes no trains, or not of such: one by one.
                None | Some(Err(Errno::INVAL | Errno::MSGSIZE | Errno::IO | Errno::OPNOTSUPP)) => {
                    let one = [IoSlice::new(messages[done].bytes)];
                    self.send_copy(&one, &messages[done].envelope, dont_wait).map(|n| (1, n))
                }
                Some(Err(errno)) => Err(errno),
            };
            match sent {
                Ok((count, n)) => {
                    self.common.counters().sent.add(n);
                    done += count;
                }
                Err(errno) if done == 0 => return Err(explained(Op::Send, errno)),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn lend(
        &self,
        chain: Chain,
        tell: Tell,
        envelope: &Envelope,
        flags: SendFlags,
    ) -> std::result::Result<Taken, NotSent> {
        let dont_wait = flags.contains(SendFlags::DONTWAIT);
        let begin = |lender: &Lender, chain| {
            // (Nothing is copied there; one page is as good as another.)
            let pool = self.submitters.all()[0].pool.reservoir(1);
            lender.begin(TAKES, chain, tell, &Writer::new(&pool), self.shared.now())
        };
        lend(self.lender_made(), &self.common, chain, dont_wait, begin, |begun, taken| {
            let sent = self.send_whole(&mut begun.data, envelope, dont_wait);
            *taken = sent.map_err(|errno| explained(Op::Send, errno))?;
            self.common.referenced(*taken);
            Ok(())
        })
    }

    fn at(&self) -> At {
        At::Ring
    }

    fn lender(&self) -> Option<&Lender> {
        self.lender.get()
    }

    fn lender_made(&self) -> Result<&Lender> {
        made(&self.lender, &self.shared)
    }

    fn wait_notice(&self, limit: Option<Duration>) -> Result<Option<Range>> {
        here(&self.shared, Op::Wait)?;
        Ok(self.lender_made()?.wait_notice(limit))
    }

    fn set_small(&self, small: Option<Small>) -> Result<()> {
        let least = match small {
            Some(Small::Below(bytes)) => bytes.into(),
            Some(Small::Measured) | None => ZeroCopy::LEAST as u64,
        };
        self.least.store(least, Relaxed);
        Ok(())
    }

    fn recv_msg(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<Meta> {
        let (peek, dont_wait) = (flags.contains(RecvFlags::PEEK), flags.contains(RecvFlags::DONTWAIT));
        self.recv_copy(slices, peek, dont_wait).map_err(|errno| explained(Op::Recv, errno))
    }

    fn recv_segment(&self, dont_wait: bool) -> Result<(Segment<Chain>, Meta)> {
        let taken = self.made(None).and_then(|made| {
            self.call((Op::Recv, Way::Read), dont_wait, made.fd.as_fd(), || self.recv_pages(made))
        });
        taken.map_err(|errno| explained(Op::Recv, errno))
    }

    fn recv_many(&self, buffers: &mut [IoSliceMut<'_>], meta: &mut [Meta], dont_wait: bool) -> Result<usize> {
        let (mut count, mut bytes) = (0, 0);
        for (buffer, meta) in buffers.iter_mut().zip(meta.iter_mut()) {
            match self.recv_copy(std::slice::from_mut(buffer), false, dont_wait || count > 0) {
                Ok(got) => *meta = got,
                Err(errno) if count == 0 => return Err(explained(Op::Recv, errno)),
                Err(_) => break,
            }
            (count, bytes) = (count + 1, bytes + meta.len);
            if bytes >= PIECE {
                break;
            }
        }
        Ok(count)
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.outbox_closes();
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = Endpoint::addresses(self);
        f.debug_struct("Socket")
            .field("local", &bound.local)
            .field("remote", &bound.remote)
            .finish_non_exhaustive()
    }
}
