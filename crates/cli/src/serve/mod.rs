//! `onecopy serve`: the storage daemon. A blocking thread for each connection, because a connection here is a
//! proxy's pooled one (dozens, not thousands) and a thread can wait in the stream's own adaptive way.

mod answer;
mod connection;
mod daemon;
mod desk;
mod direct;
mod hotset;
mod interrupted;
mod lend;
mod place;
mod stacked;
mod store;
mod wire;

use crate::address::Place;
use crate::counters::{Counters, Totals};
use crate::failure::Usage;
use crate::operate::access::AccessLog;
use crate::operate::again::{Again, Operated, Times};
use crate::operate::metrics;
use crate::operate::says::Says;
use crate::own_stack::OwnStack;
use crate::transport::{Transport, send_buffer};
use crate::{operate, process, units};
use anyhow::Context;
use daemon::Daemon;
use desk::Desk;
use lend::Lend;
use place::Listen;
use sd_notify::NotifyState;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::sync::watch;
use tracing::{info, warn};
use wire::{FileSend, Stores, Wire};

/// Flags of `onecopy serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder whose files are served. No path, and no link, leads out of it.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Where to listen: unix:/path or unix:@name; with --tap tcp:IP:PORT, for clients on the network
    #[arg(long, value_name = "ADDRESS")]
    listen: Listen,
    #[command(flatten)]
    stack: OwnStack,
    #[command(flatten)]
    operate: operate::Flags,
    /// Which sockets carry the answers.
    #[arg(long, value_enum, default_value_t)]
    transport: Transport,
    /// With --transport kernel: how a file's bytes enter the socket.
    #[arg(long, value_enum, default_value_t)]
    file_send: FileSend,
    /// With --transport onecopy: which stores put a file kept in memory before the proxy.
    #[arg(long, value_enum, default_value_t)]
    policy: Stores,
    /// With --transport onecopy: what a proxy of the same user may have lent instead of its bytes, to send it on from where it
    /// lies. Counted as `lent_bytes`: what the proxy then sends of it, the proxy counts.
    #[arg(long, value_enum, default_value_t)]
    lend: Lend,
    /// Keep up to this many bytes of files in memory, the least recently asked for leaving first; up to as many again may be
    /// on their way to the proxy, or kept there for --revalidate. What was lent and a client still takes comes on top.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size)]
    cache: usize,
    /// What is kept in memory (--cache) is looked at again after this long, and so are the folders on the way to an open file; 0
    /// looks at every request. What is done to an open file shows at the next request. A proxy gives what was lent to it to others
    /// for as long without asking, ten minutes at most.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::span)]
    revalidate: Duration,
    /// Size of each backend connection's send buffer; left out, 256K over shared memory (a few of them fit a
    /// second-level cache) and 1M over the kernel
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    buffer: Option<usize>,
    /// Most connections at once; who comes later gets 503.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = units::some)]
    max_connections: usize,
    /// A connection without a request ends after this.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::span)]
    idle_timeout: Duration,
    /// A request must be complete within this, or 408.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::span)]
    head_timeout: Duration,
    /// A peer that takes no byte for this long is given up.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::span)]
    send_timeout: Duration,
    /// On SIGTERM or SIGINT (and SIGHUP, where there is no file to open again), answers in flight may take this long to finish. SIGINT (Ctrl-C) a
    /// second after that, or later, ends all at once; further signals else change nothing.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::span)]
    grace: Duration,
    /// Also listen on ADDRESS.direct for client sockets that a proxy of the same user lends for one answer
    #[arg(long)]
    direct: bool,
    /// Answer GET /.onecopy/stats with the counters (JSON), as SIGUSR1 prints them, to whoever sends it to this socket
    ///
    /// `onecopy proxy` passes no such request on; another proxy has to be told to keep /.onecopy/ to itself.
    #[arg(long)]
    stats: bool,
    /// Stop when the process that started this one is gone
    #[arg(long, hide = true)]
    die_with_parent: Option<i32>,
    /// Stay on this CPU (for measurements)
    #[arg(long, value_name = "CPU", hide = true)]
    cpu: Option<usize>,
    /// Walk a working set of this size around every body, and count how much slower it got.
    #[arg(long, value_name = "SIZE", value_parser = units::size, hide = true)]
    hot_set: Option<usize>,
}

impl Args {
    /// What of the flags goes together where the daemon speaks TCP.
    fn check(&self) -> anyhow::Result<()> {
        let tcp = matches!(self.listen, Listen::Tcp(_));
        let why = if tcp != self.stack.is_some() {
            "--listen tcp:IP:PORT and --tap go together: the daemon speaks TCP on a stack of its own, and proxies on this host \
             reach it by a unix socket (for clients over the kernel's TCP put `onecopy proxy` in front)"
        } else if tcp && self.transport == Transport::Kernel {
            "--transport kernel speaks of unix sockets: leave it out with --listen tcp:"
        } else if tcp && self.direct {
            "--direct takes clients' sockets over a unix socket: leave it out with --listen tcp:"
        } else {
            return self.stack.check();
        };
        Err(Usage(why.into()).into())
    }
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

/// Where connections come from.
enum Door {
    Kernel(UnixListener, FileSend),
    Onecopy(onecopy::unix::Listener),
    Stack(onecopy::tcp::Listener),
}

impl Door {
    /// And what is to be removed in the end, and what it is called.
    fn open(args: &Args) -> anyhow::Result<(Door, Option<Place>, String)> {
        let listen = match &args.listen {
            Listen::Unix(address) => address,
            Listen::Tcp(address) => {
                let stack = args.stack.open()?.context("no stack")?; // `Args::check` asks for one
                let listener = onecopy::tcp::Listener::bind(&stack, *address);
                let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
                let at = Listen::Tcp(listener.local_addr()?).to_string();
                return Ok((Door::Stack(listener), None, at));
            }
        };
        if args.transport == Transport::Kernel {
            let (listener, place) = listen.bind()?;
            return Ok((Door::Kernel(listener, args.file_send), Some(place), listen.to_string()));
        }
        let config = onecopy::unix::Config {
            send_buffer: Some(args.transport.buffer(args.buffer)),
            policy: args.policy.into(),
            ..Default::default()
        };
        let (listener, place) = listen.claim(|| {
            let listener = onecopy::unix::Listener::bind_with(listen.name()?, &config);
            listener.with_context(|| format!("cannot listen on {listen}"))
        })?;
        Ok((Door::Onecopy(listener), Some(place), listen.to_string()))
    }

    fn accept(&self, buffer: usize) -> io::Result<Wire> {
        match self {
            Door::Kernel(listener, how) => {
                let (stream, _) = listener.accept()?;
                send_buffer(&stream, buffer);
                Ok(Wire::Kernel(stream, *how))
            }
            Door::Onecopy(listener) => Ok(Wire::Onecopy(listener.accept()?.0)),
            Door::Stack(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?; // MORE says when more follows
                Ok(Wire::Stack(stream))
            }
        }
    }
}

/// Runs `onecopy serve`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let says = Says::start(args.operate.log_level)?;
    process::raise_open_files();
    if let Some(parent) = args.die_with_parent {
        process::die_with_parent(parent)?;
    }
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    let kernel = args.transport == Transport::Kernel;
    args.check()?;
    if !kernel && args.file_send != FileSend::Copy {
        return Err(
            Usage("--file-send says how bytes enter a kernel socket: add --transport kernel".into()).into()
        );
    }
    if kernel && args.policy != Stores::Auto {
        return Err(
            Usage("--policy chooses stores into shared memory: leave out --transport kernel".into()).into()
        );
    }
    if kernel && args.lend != Lend::default() {
        return Err(Usage("--lend speaks of shared memory: leave out --transport kernel".into()).into());
    }
    let totals = Arc::new(Totals::default());
    let log = AccessLog::open(args.operate.log(), totals.clone())?;
    let (renewed, times) = Again::new("serve", args, says, log.clone())?;
    let daemon = Arc::new(Daemon {
        store: Store::open(&args.root, args.cache, args.revalidate)?,
        totals,
        log: log.clone(),
        desk: Desk::default(),
        times,
        hot_set: args.hot_set,
        lend: if kernel { Lend::Never } else { args.lend },
        tells: args.stats,
    });
    let (door, place, name) = Door::open(args)?;
    let mut places = Vec::from_iter(place);
    let result = process::block_on(async {
        // The handlers are in place before anybody is told that the daemon is there.
        let reports = daemon.clone();
        tokio::task::spawn_local(process::at_usr1(move || tell!("stats {}", reports.totals.json())));
        let again = args.operate.outlives_hang_up();
        if again {
            tokio::task::spawn_local(process::at_hup(async move || renewed.read::<Args>().await));
        }
        let stop = tokio::task::spawn_local(process::asked_to_stop("onecopy serve", !again));
        tokio::task::yield_now().await;
        let (stopping, stopped) = watch::channel(false);
        if let Some(address) = args.operate.metrics {
            metrics::open(address, "serve", daemon.totals.clone(), stopped, None)?;
        }
        let limits = (args.max_connections, args.transport.buffer(args.buffer));
        if let (true, Listen::Unix(listen)) = (args.direct, &args.listen) {
            places.push(direct::open(&daemon, listen, args.max_connections)?);
        }
        let doorman = daemon.clone();
        std::thread::Builder::new().name("accept".into()).spawn(move || accept(&doorman, &door, limits))?;
        info!(target: "onecopy serve", "{} on {name}", args.root.display());
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let why = stop.await?;
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        stopping.send_replace(true);
        why
    });
    drop(places); // the threads that accept still have the sockets
    let why = result?;
    let grace = daemon.times().grace;
    let cut = daemon.desk.close(grace);
    log.finish();
    info!(target: "onecopy serve", "{why}; {}", daemon.totals.sum());
    if cut > 0 {
        warn!(target: "onecopy serve", "{cut} connections did not finish within {:?} and were cut", grace);
    }
    Ok(())
}

fn accept(daemon: &Arc<Daemon>, door: &Door, (most, buffer): (usize, usize)) {
    loop {
        let wire = match door.accept(buffer) {
            Ok(wire) => Arc::new(wire),
            // Out of descriptors, or a client that left at once: neither is a reason to stop.
            Err(error) => {
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    std::thread::sleep(Duration::from_millis(20));
                }
                continue;
            }
        };
        let Times { idle, send, .. } = daemon.times();
        let _ = wire.set_read_timeout(idle).and_then(|()| wire.set_write_timeout(send));
        daemon.totals.add(Counters { connections: 1, ..Default::default() });
        let id = match daemon.desk.enter(&wire, most) {
            Ok(id) => id,
            Err(refusal) => {
                let _ = wire.send(&answer::Answer::refusal(refusal, false, false), &mut Counters::default());
                continue;
            }
        };
        let worker = daemon.clone();
        let spawned =
            std::thread::Builder::new().name(format!("conn-{id}")).stack_size(256 << 10).spawn(move || {
                let _ = connection::serve(&worker, id, &wire); // an error is the peer's going, and is counted
                let fallbacks = u64::from(wire.fell_back());
                worker.totals.add(Counters { fallbacks, ..Default::default() });
                worker.desk.leave(id);
            });
        if spawned.is_err() {
            daemon.desk.leave(id);
        }
    }
}
