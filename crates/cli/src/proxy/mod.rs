//! `onecopy proxy`: HTTP/1.1 reverse proxy. A task for each client on tokio (ten thousand idle clients cost no
//! thread), on a thread for each CPU unless told otherwise: what the kernel does for a client's socket is most of the
//! work, and over loopback that includes the client's own receiving.

mod choice;
mod client;
mod congestion;
mod direct;
mod front;
mod line;
mod loan;
mod peer;
mod pipe;
mod pool;
mod rewrite;
mod seats;
mod send_lent;
mod send_stacked;
mod shared;
mod shelf;
mod stacked;
mod tcp;
mod timeout;
mod tls;
mod trouble;
mod turns;

use crate::address::Address;
use crate::counters::{Counters, Totals};
use crate::failure::Usage;
use crate::http::request::Limits;
use crate::operate::access::AccessLog;
use crate::operate::again::{Again, Operated, Times};
use crate::operate::given::{Bound, Given, Wanted};
use crate::operate::role::Role;
use crate::operate::says::Says;
use crate::operate::{metrics, takeover};
use crate::own_stack::OwnStack;
use crate::transport::Transport;
use crate::{failure, operate, process, units};
use choice::Found;
use front::{Arrived, Front};
use line::Forward;
use pool::{Backend, Pool};
use sd_notify::NotifyState;
use seats::{Seat, Seats, Shares};
use send_lent::{SendLent, Sender};
use shared::Proxy;
use shelf::Shelf;
use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tls::Identity;
use tokio::sync::{Notify, mpsc, watch};
use tracing::{info, warn};

/// Flags of `onecopy proxy`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where clients connect, as IP:PORT or tcp:IP:PORT; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", value_parser = units::tcp_place)]
    listen: SocketAddr,
    #[command(flatten)]
    stack: OwnStack,
    #[command(flatten)]
    operate: operate::Flags,
    /// Speak TLS (1.2 and 1.3) to the clients: the certificate chain, PEM, the server's own first. Read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// With --tls-cert: its private key, PEM, without a passphrase
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The daemon's socket: unix:/path or unix:@name.
    #[arg(long, value_name = "ADDRESS")]
    backend: Address,
    /// Which sockets carry the answers.
    #[arg(long, value_enum, default_value_t)]
    transport: Transport,
    /// With --transport kernel: how a body crosses from backend to client.
    #[arg(long, value_enum, default_value_t)]
    forward: Forward,
    /// How a body that the daemon lends (`serve --lend`) goes to the client.
    #[arg(long, value_enum, default_value_t)]
    send_lent: SendLent,
    /// Threads, each with its own clients and backend connections; left out, one for each CPU.
    #[arg(long, value_name = "N", value_parser = units::some)]
    threads: Option<usize>,
    /// Most connections to the backend; a slow client holds one as long as its body lasts, unless the body is lent
    #[arg(long, value_name = "N", default_value = "256", value_parser = units::some)]
    backends: usize,
    /// Most requests waiting for a backend connection; who comes later gets 503.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    queue: usize,
    /// Size of each backend connection's receive buffer; left out, 256K over shared memory (a few of them fit a
    /// second-level cache) and 1M over the kernel
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    buffer: Option<usize>,
    /// Most clients at once; who comes later waits in the listen queue. Left out, 100000, or as many as the limit of open
    /// files leaves room for
    #[arg(long, value_name = "N", value_parser = units::some)]
    max_clients: Option<usize>,
    /// A client without a request is let go after this.
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = units::span)]
    idle_timeout: Duration,
    /// A request head must be complete within this, or 408; and so must a body that is dropped and a TLS handshake, or the
    /// connection ends.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::span)]
    head_timeout: Duration,
    /// A client whose side of the connection acknowledges no byte for this long is given up; one that takes a few now and
    /// then is not
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::span)]
    send_timeout: Duration,
    /// A backend that is silent for this long is given up: 504, or the body is broken off.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::span)]
    backend_timeout: Duration,
    /// Longest request line, or 414; at most 64K.
    #[arg(long, value_name = "SIZE", default_value = "8K", value_parser = units::size)]
    max_line: usize,
    /// Longest request head, or 431; at most 64K. It may have 64 fields.
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = units::size)]
    max_head: usize,
    /// On SIGTERM or SIGINT (and SIGHUP, where there is no file to read or open again), answers in flight may take this long to finish. SIGINT (Ctrl-C) a
    /// second after that, or later, ends all at once; further signals else change nothing.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::span)]
    grace: Duration,
    /// Lend a client's socket to the daemon (`serve --direct`, same user) for each body; the connection ends after it,
    /// since what is lent cannot be taken back
    #[arg(long)]
    direct: bool,
    /// With --direct: keep the client's connection, trusting the daemon to have let go of it
    #[arg(long, requires = "direct")]
    trust_backend: bool,
    /// Stop when the process that started this one is gone
    #[arg(long, hide = true)]
    die_with_parent: Option<i32>,
    /// Stay on this CPU (for measurements)
    #[arg(long, value_name = "CPU", hide = true)]
    cpu: Option<usize>,
}

impl Operated for Args {
    fn flags(&self) -> &operate::Flags {
        &self.operate
    }

    fn times(&self) -> Times {
        let Args { idle_timeout: idle, head_timeout: head, send_timeout: send, grace, .. } = *self;
        Times { idle, head, send, grace }
    }
}

/// Clients at once, where the limit of open files leaves room for as many.
const MAX_CLIENTS: usize = 100_000;

/// A client on its way from the thread that accepted it to the one that will serve it.
struct Arrival {
    tcp: Arrived,
    from: SocketAddr,
    /// A share of its thread's, and its own of all.
    seat: (Arc<()>, Seat),
}

/// Where a thread's clients come in. The one with the fewest gets the next: left to the kernel, who accepts first may
/// get them all.
struct Door {
    arrivals: mpsc::UnboundedSender<Arrival>,
    /// A share for each client of that thread, and this one.
    seat: Arc<()>,
}

impl Door {
    fn present(&self) -> usize {
        Arc::strong_count(&self.seat) - 1
    }
}

impl Args {
    /// Where it is to listen.
    fn wanted(&self) -> Wanted {
        let metrics = self.operate.metrics.map(|address| (Role::Metrics, Bound::Tcp(address)));
        let mut wanted = Vec::from_iter(metrics);
        if !self.stack.is_some() {
            wanted.push((Role::Listen, Bound::Tcp(self.listen)));
        }
        wanted
    }

    fn identity(&self) -> anyhow::Result<Option<Arc<Identity>>> {
        let (Some(certificates), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        anyhow::ensure!(
            !self.direct,
            "--direct has the daemon write into the client's socket, where under TLS only this proxy's encrypted \
             records may go: leave out --direct or --tls-cert"
        );
        anyhow::ensure!(
            self.transport == Transport::Onecopy || self.forward == Forward::Copy,
            "--forward splice passes bodies on unread, and TLS has to read them to encrypt them: leave out --forward or \
             --tls-cert"
        );
        Identity::open(certificates, key).map(Some)
    }

    /// Tells the operator if there is less room than was asked for.
    fn warn(&self, open_files: u64, shares: Shares) {
        let mut less = Vec::new();
        if let Some(asked) = self.max_clients.filter(|asked| *asked > shares.clients) {
            less.push(format!("{} clients at once (--max-clients {asked})", shares.clients));
        }
        if self.backends > shares.lines {
            less.push(format!("{} connections to the backend (--backends {})", shares.lines, self.backends));
        }
        if !less.is_empty() {
            warn!(
                target: "onecopy proxy",
                "this process may open {open_files} files, which is enough for {}: raise the limit (ulimit -n, or \
                 LimitNOFILE= of systemd) or ask for less",
                less.join(" and ")
            );
        }
    }
}

/// Runs `onecopy proxy`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let says = Says::start(args.operate.log_level)?;
    let user = args.operate.find_user()?;
    let open_files = process::raise_open_files();
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    if args.transport == Transport::Onecopy && args.forward != Forward::Copy {
        let why = "--forward says how a body crosses between kernel sockets: add --transport kernel";
        return Err(Usage(why.into()).into());
    }
    if args.stack.is_some() && args.direct {
        let why = "--direct lends the daemon a kernel's socket, and on a stack of our own there is none: leave out one of the two";
        return Err(Usage(why.into()).into());
    }
    if args.stack.is_some() && args.forward == Forward::Splice {
        let why = "--forward splice passes bytes between kernel sockets, and on a stack of our own the client's is none: leave out one \
                   of the two";
        return Err(Usage(why.into()).into());
    }
    if args.max_line > Limits::MOST.line || args.max_head > Limits::MOST.head {
        return Err(
            Usage("--max-line and --max-head go up to 64K: `onecopy serve` takes no more".into()).into()
        );
    }
    // Before there are threads.
    let (mut given, before) = Given::find(&args.operate, &args.wanted(), user.as_ref())?;
    let listener = match args.stack.is_some() {
        false => Some(front::listen(given.tcp(Role::Listen)?, args.listen)?),
        true => None,
    };
    let asked = given.metrics(&args.operate)?;
    args.operate.enter(user.as_ref())?;
    if let Some(parent) = args.die_with_parent {
        process::die_with_parent(parent)?; // whoever becomes another user is not told any more (prctl(2))
    }
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let of_a_line = seats::of_a_line(args.transport, args.forward, args.direct);
    let shares = Shares::of(open_files, threads, args.backends, of_a_line);
    // Each has backend connections of its own.
    let threads = threads.min(shares.lines);
    let seats = Arc::new(Seats::new(args.max_clients.unwrap_or(MAX_CLIENTS), shares.clients));
    let identity = args.identity()?;
    let stack = args.stack.open()?;
    let scheme = if identity.is_some() { "https" } else { "http" };
    let totals = Arc::new(Totals::default());
    let log = AccessLog::open(args.operate.log(), totals.clone())?;
    let end = log.end();
    let (renewed, times) = Again::new("proxy", args, says, log.clone())?;
    let (stop, stopped) = watch::channel(false);
    process::block_on(async {
        let mut shared = Vec::new();
        if let Some(asked) = asked.as_ref().filter(|_| args.operate.takeover.is_some()) {
            shared.push((Role::Metrics, asked.try_clone()?.into()));
        }
        let (front, address) = Front::open(args.listen, listener, stack.as_ref())?;
        let reports = totals.clone();
        tokio::task::spawn_local(process::at_usr1(move || tell!("stats {}", reports.json())));
        let again = identity.is_some() || args.operate.outlives_hang_up();
        if again {
            let (identity, totals) = (identity.clone(), totals.clone());
            tokio::task::spawn_local(process::at_hup(async move || {
                if let Some(identity) = &identity {
                    renew(identity, &totals).await;
                }
                renewed.read::<Args>();
            }));
        }
        let last = log.clone();
        let signal = process::asked_to_stop("onecopy proxy", !again, move || last.finish());
        let signal = tokio::task::spawn_local(signal);
        tokio::task::yield_now().await; // the handlers are in place before anybody is told
        let open = |listener| {
            let backend = Some(args.backend.clone());
            metrics::open(listener, "proxy", totals.clone(), stopped.clone(), backend)
        };
        let metrics = asked.map(open).transpose()?;
        let (shelf, found) = (Arc::new(Shelf::new(shares.kept)), Arc::new(Found::default()));
        let old = shelf.clone();
        tokio::task::spawn_local(async move { old.sweep().await });
        let mut doors = Vec::new();
        let (mut workers, mut taking) = (Workers::default(), None);
        let serving = async {
            for n in 0..threads {
                let (door, arrivals) = mpsc::unbounded_channel();
                doors.push(Door { arrivals: door, seat: Arc::new(()) });
                let worker = Worker {
                    args: args.clone(),
                    shelf: shelf.clone(),
                    found: found.clone(),
                    backends: shares.lines / threads,
                    identity: identity.clone(),
                    totals: totals.clone(),
                    log: log.clone(),
                    times: times.clone(),
                    seats: seats.clone(),
                    stopped: stopped.clone(),
                };
                if n == 0 {
                    workers.main = Some(tokio::task::spawn_local(worker.serve(arrivals)));
                } else {
                    let run = move || process::block_on(async { Ok(worker.serve(arrivals).await) });
                    workers.others.push(std::thread::Builder::new().name(format!("proxy-{n}")).spawn(run)?);
                }
            }
            info!(target: "onecopy proxy", "{scheme}://{address} in front of {}", args.backend);
            if let Err(error) = args.backend.probe() {
                warn!(target: "onecopy proxy", "{}", failure::not_there(&args.backend, &error));
            }
            args.warn(open_files, shares);
            if args.operate.takeover.is_some() {
                shared.push((Role::Listen, front.share()?));
            }
            taking = Some(tokio::task::spawn_local(take(front, doors, seats)));
            let _ = sd_notify::notify(&[NotifyState::Ready]);
            let handing = async {
                if let Some(before) = before {
                    // Clients are served meanwhile.
                    tokio::task::spawn_blocking(move || before.relieve()).await??;
                    info!(target: "onecopy proxy", "took over from the one that ran");
                }
                match &args.operate.takeover {
                    Some(meet) => takeover::wait(meet, shared).await?,
                    None => std::future::pending().await,
                }
                // Who asks for health is to hear of the successor's, and nobody of this one's end.
                if let Some(metrics) = metrics {
                    metrics.leave().await;
                }
                anyhow::Ok(())
            };
            tokio::select! {
                stop = signal => Ok(stop??.to_string()),
                handed = handing => handed.map(|()| "a successor took over".to_owned()),
            }
        };
        let why = serving.await;
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        if let Some(taking) = taking {
            taking.abort();
        }
        // Also behind an error: clients have their answers, and the log its lines, before the program ends.
        stop.send_replace(true);
        let cut = workers.end().await;
        drop(end);
        let (why, cut) = (why?, cut?);
        info!(target: "onecopy proxy", "{why}; {}", totals.sum());
        if let Some(text) = found.text() {
            info!(target: "onecopy proxy", "{text}");
        }
        if cut > 0 {
            warn!(target: "onecopy proxy", "{cut} clients did not finish within {:?} and were cut", times.borrow().grace);
        }
        Ok(())
    })
}

/// Who serves: on the main thread, and on the others.
#[derive(Default)]
struct Workers {
    main: Option<tokio::task::JoinHandle<usize>>,
    others: Vec<std::thread::JoinHandle<anyhow::Result<usize>>>,
}

impl Workers {
    /// Waits until each of them has ended, who were asked to. Returns how many clients were cut.
    async fn end(self) -> anyhow::Result<usize> {
        let panicked = || anyhow::anyhow!("a thread of the proxy panicked");
        let mut ends = Vec::new();
        if let Some(main) = self.main {
            ends.push(main.await.map_err(|_| panicked()));
        }
        for thread in self.others {
            // Not waited for on this thread: who asks for health is answered meanwhile.
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            ends.push(joined.ok().and_then(Result::ok).unwrap_or_else(|| Err(panicked())));
        }
        ends.into_iter().sum()
    }
}

/// Reads the certificate again when called. On another thread than the clients': a file system over the network may take
/// its time.
async fn renew(identity: &Arc<Identity>, totals: &Totals) {
    let identity = identity.clone();
    let read = tokio::task::spawn_blocking(move || identity.reload()).await;
    match read.unwrap_or_else(|died| Err(died.into())) {
        Ok(()) => info!(target: "onecopy proxy", "read the certificate and its key again"),
        Err(why) => {
            totals.add(Counters { tls_reload_failures: 1, ..Default::default() });
            warn!(target: "onecopy proxy", "goes on with the certificate that it has: {why:#}");
        }
    }
}

/// Takes clients and shows each to the thread that has the fewest, as long as there are places.
async fn take(front: Front, doors: Vec<Door>, seats: Arc<Seats>) {
    let mut told = false;
    loop {
        let full = || {
            if !std::mem::replace(&mut told, true) {
                warn!(
                    target: "onecopy proxy",
                    "all descriptors for clients are in use, and further clients wait: raise the limit of open \
                     files (ulimit -n, or LimitNOFILE= of systemd)"
                );
            }
        };
        let Some(seat) = seats.take(full).await else { return };
        let Some(door) = doors.iter().min_by_key(|door| door.present()) else { return };
        match front.accept().await {
            // A thread that ended has said why.
            Ok((tcp, from)) => {
                drop(door.arrivals.send(Arrival { tcp, from, seat: (door.seat.clone(), seat) }));
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            // Out of descriptors: those here will leave.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// One thread of the proxy.
struct Worker {
    args: Args,
    shelf: Arc<Shelf>,
    found: Arc<Found>,
    backends: usize,
    identity: Option<Arc<Identity>>,
    totals: Arc<Totals>,
    log: AccessLog,
    times: watch::Receiver<Times>,
    seats: Arc<Seats>,
    stopped: watch::Receiver<bool>,
}

impl Worker {
    /// Serves those who arrive until asked to stop, then waits for those in flight. Returns how many were cut.
    async fn serve(self, mut arrivals: mpsc::UnboundedReceiver<Arrival>) -> usize {
        let Worker { args, shelf, found, backends, identity, totals, log, times, seats, mut stopped } = self;
        let direct = args.direct.then(|| direct::Direct::new(&args.backend, args.trust_backend, backends));
        let backend = Backend {
            address: args.backend,
            transport: args.transport,
            forward: args.forward,
            buffer: args.transport.buffer(args.buffer),
            patience: args.backend_timeout,
            queue: args.queue,
        };
        let proxy = Rc::new(Proxy {
            pool: Pool::new(backend, backends),
            totals,
            log,
            seats,
            direct,
            sender: Sender::new(args.send_lent, found),
            shelf,
            identity,
            limits: Limits { line: args.max_line, head: args.max_head, ..Limits::default() },
            ill: Cell::new(false),
            backend_timeout: args.backend_timeout,
            times: times.clone(),
            stop: stopped.clone(),
        });
        // Of those served here: the last share is this one.
        let (present, gone) = (Rc::new(()), Rc::new(Notify::new()));
        let come = |Arrival { tcp, from, seat }: Arrival| {
            let Ok(tcp) = tcp.settle() else { return };
            let (proxy, present, gone) = (proxy.clone(), present.clone(), gone.clone());
            proxy.totals.add(Counters { connections: 1, ..Default::default() });
            tokio::task::spawn_local(async move {
                client::serve(&proxy, tcp, from.ip()).await;
                drop((seat, present));
                gone.notify_one();
            });
        };
        let taking = async {
            while let Some(arrival) = arrivals.recv().await {
                come(arrival);
            }
        };
        tokio::select! {
            () = taking => {}
            _ = stopped.wait_for(|stop| *stop) => {}
        }
        // Those that were accepted before that, too: to close them now would be to refuse them.
        arrivals.close();
        while let Some(arrival) = arrivals.recv().await {
            come(arrival);
        }
        let leaving = async {
            while Rc::strong_count(&present) > 1 {
                gone.notified().await;
            }
        };
        let grace = times.borrow().grace;
        timeout::within(grace, leaving).await;
        Rc::strong_count(&present) - 1
    }
}
