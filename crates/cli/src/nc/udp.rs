//! Datagrams: what one read gives is one, and what one brings is written.

use super::ends::{Sink, Source};
use super::open::of_stack;
use super::report::Report;
use super::tally::Tally;
use super::target::{Target, resolve};
use super::wire::locked;
use super::{Job, Plan};
use crate::failure::Usage;
use anyhow::Context;
use onecopy::{Carrier, Stack, Stats, udp};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that is made of what was read, as nc has it.
const SENT: usize = 16 << 10;
/// The longest that there is.
const LONGEST: usize = 65_535;
/// How long a report waits for a datagram that is being sent.
const SETTLES: Duration = Duration::from_secs(1);

/// See the [module](self).
pub struct Datagrams(Arc<Peer>);

struct Peer {
    socket: OnceLock<Socket>,
    /// What carries it.
    carrier: OnceLock<&'static str>,
    tap: OnceLock<String>,
    /// Held while a datagram is sent, and until it is counted.
    sending: Mutex<()>,
    sent: Mutex<Tally>,
    received: Mutex<Tally>,
}

impl Datagrams {
    /// None yet.
    pub fn new(plan: &Plan) -> Datagrams {
        let tally = || Mutex::new(Tally::new(plan.args.sum));
        Datagrams(Arc::new(Peer {
            socket: OnceLock::new(),
            carrier: OnceLock::new(),
            tap: OnceLock::new(),
            sending: Mutex::new(()),
            sent: tally(),
            received: tally(),
        }))
    }
}

impl Peer {
    /// A socket that has a peer. Of one that listens, it is who sends first; what he sent is written.
    fn open(&self, plan: &Plan, stack: Option<&Stack>, sink: &Sink) -> anyhow::Result<Socket> {
        let Target::Net(host, port) = &plan.target else {
            return Err(Usage("--udp takes HOST:PORT".into()).into());
        };
        let to = match stack {
            Some(stack) => of_stack(stack, host, *port)?,
            None => resolve(host, *port)?[0],
        };
        if !plan.args.listen {
            let socket = Socket::new(stack, SocketAddr::new(any(to), 0))?;
            socket.connect(to).with_context(|| format!("cannot send to {to}"))?;
            return Ok(socket);
        }
        let socket = Socket::new(stack, to).with_context(|| format!("cannot listen on {to}"))?;
        if plan.args.verbose {
            tell!("onecopy nc: listening on {}", socket.names().0.unwrap_or_default());
        }
        socket.set_read_timeout(plan.args.timeout)?;
        let mut buffer = vec![0; LONGEST];
        let (n, from) = match again(|| socket.recv_from(&mut buffer)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                anyhow::bail!("nobody has sent anything in time; give a longer time with -w, or leave it out")
            }
            done => done?,
        };
        socket.set_read_timeout(None)?;
        socket.connect(from)?;
        locked(&self.received).begin();
        sink.write(&buffer[..n])?;
        locked(&self.received).passed(&buffer[..n], socket.copies() * n);
        Ok(socket)
    }

    fn send(&self, mut source: Source) -> anyhow::Result<()> {
        let Some(socket) = self.socket.get() else { return Ok(()) };
        let mut buffer = vec![0; SENT];
        loop {
            let n = source.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            again(|| socket.send(&buffer[..n]))?;
            locked(&self.sent).passed(&buffer[..n], socket.copies() * n);
        }
    }

    /// Waits until what has been sent is counted: the peer may have it before that. A send that waits itself is not waited for.
    fn settle(&self) {
        let until = Instant::now() + SETTLES;
        while matches!(self.sending.try_lock(), Err(TryLockError::WouldBlock)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn receive(&self, sink: &Sink) -> anyhow::Result<()> {
        let Some(socket) = self.socket.get() else { return Ok(()) };
        let mut buffer = vec![0; LONGEST];
        loop {
            // (An empty one is none of the ends of anything.)
            let n = again(|| socket.recv(&mut buffer))?;
            sink.write(&buffer[..n])?;
            locked(&self.received).passed(&buffer[..n], socket.copies() * n);
        }
    }
}

fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl Job for Datagrams {
    fn run(&self, plan: &Plan) -> anyhow::Result<()> {
        let peer = &self.0;
        let (source, sink) = (plan.source()?, plan.sink()?);
        let stack = plan.args.stack()?;
        if let Some((stack, tap)) = &stack {
            let _ = peer.carrier.set(match stack.carrier() {
                Carrier::Kernel => "kernel, by io_uring",
                _ => "stack",
            });
            tap.iter().for_each(|tap| drop(peer.tap.set(tap.clone())));
        }
        let socket = peer.open(plan, stack.as_ref().map(|(stack, _)| stack), &sink)?;
        let socket = peer.socket.get_or_init(|| socket);
        if plan.args.verbose {
            let (own, other) = socket.names();
            tell!(
                "onecopy nc: {} and {} send to each other",
                own.unwrap_or_default(),
                other.unwrap_or_default()
            );
        }
        locked(&peer.sent).begin();
        locked(&peer.received).begin();
        let (tell, ended) = mpsc::channel();
        let sends = source.is_some();
        if let Some(source) = source {
            let (peer, tell) = (peer.clone(), tell.clone());
            thread::spawn(move || drop(tell.send(peer.send(source))));
        }
        let receiver = peer.clone();
        thread::spawn(move || drop(tell.send(receiver.receive(&sink))));
        if sends {
            ended.recv()??;
        }
        // Nobody says when a peer has sent its last: Ctrl-C does, or -q.
        match plan.args.quit.filter(|_| sends) {
            None => ended.recv()?,
            Some(limit) => ended.recv_timeout(limit).unwrap_or(Ok(())),
        }
    }

    fn report(&self, cut: Option<String>) -> Option<Report> {
        let peer = &self.0;
        let socket = peer.socket.get()?;
        peer.settle();
        let carrier = peer.carrier.get().unwrap_or(&"kernel");
        Some(Report {
            family: "udp",
            tap: peer.tap.get().cloned(),
            carriers: (carrier, carrier),
            names: socket.names(),
            sent: locked(&peer.sent).clone(),
            received: locked(&peer.received).clone(),
            stats: socket.stats(),
            learned: None,
            cut,
        })
    }

    fn cut(&self) {}
}

/// Any address of the same family.
fn any(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The kernel's, or one of ours: on a stack of our own, or on the kernel through io_uring.
enum Socket {
    Kernel(UdpSocket),
    Stack(udp::Socket),
}

impl Socket {
    fn new(stack: Option<&Stack>, at: SocketAddr) -> anyhow::Result<Socket> {
        Ok(match stack {
            None => Socket::Kernel(UdpSocket::bind(at)?),
            Some(stack) => Socket::Stack(udp::Socket::bind(stack, at)?),
        })
    }

    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        match self {
            Socket::Kernel(socket) => socket.connect(to),
            Socket::Stack(socket) => Ok(socket.connect(to)?),
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Kernel(socket) => socket.send(bytes),
            Socket::Stack(socket) => Ok(socket.send(bytes)?),
        }
    }

    fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Kernel(socket) => socket.recv(buffer),
            Socket::Stack(socket) => Ok(socket.recv(buffer)?),
        }
    }

    fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        match self {
            Socket::Kernel(socket) => socket.recv_from(buffer),
            Socket::Stack(socket) => Ok(socket.recv_from(buffer)?),
        }
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Kernel(socket) => socket.set_read_timeout(limit),
            Socket::Stack(socket) => Ok(socket.set_read_timeout(limit)?),
        }
    }

    /// How often the kernel copies a byte that passes, in calls that no socket of ours counts: on files, and on its own sockets.
    fn copies(&self) -> usize {
        match self {
            Socket::Kernel(_) => 2,
            Socket::Stack(_) => 1,
        }
    }

    fn stats(&self) -> Option<Stats> {
        match self {
            Socket::Kernel(_) => None,
            Socket::Stack(socket) => Some(socket.stats()),
        }
    }

    /// Its own address and the peer's.
    fn names(&self) -> (Option<String>, Option<String>) {
        fn text<E>(address: Result<SocketAddr, E>) -> Option<String> {
            address.ok().map(|address| address.to_string())
        }
        match self {
            Socket::Kernel(socket) => (text(socket.local_addr()), text(socket.peer_addr())),
            Socket::Stack(socket) => (text(socket.local_addr()), text(socket.peer_addr())),
        }
    }
}
