//! `onecopy serve`: the storage daemon. A blocking thread for each connection, because a connection here is a
//! proxy's pooled one (dozens, not thousands) and a thread can wait in the stream's own adaptive way.

mod answer;
mod connection;
mod daemon;
mod desk;
mod direct;
mod door;
mod hotset;
mod interrupted;
mod lend;
mod place;
mod stacked;
mod store;
mod wire;

use crate::address::Address;
use crate::counters::Totals;
use crate::failure::Usage;
use crate::lessons::{self, Lessons};
use crate::operate::access::AccessLog;
use crate::operate::again::{Again, Operated, Times};
use crate::operate::given::{Bound, Files, Given, UnixSocket, Wanted};
use crate::operate::role::Role;
use crate::operate::says::Says;
use crate::operate::takeover::Sockets;
use crate::operate::{metrics, takeover};
use crate::own_stack::OwnStack;
use crate::transport::Transport;
use crate::{operate, process, units};
use daemon::Daemon;
use desk::Desk;
use door::{Door, Ear};
use lend::Lend;
use place::Listen;
use sd_notify::NotifyState;
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::sync::watch;
use tracing::{info, warn};
use wire::{FileSend, Stores};

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
    /// At the end, save what --policy auto has learned about the stores of this machine in the profile of `onecopy tune`, with which
    /// programs begin that are started later
    #[arg(long)]
    save_profile: bool,
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
    /// Where it is to listen.
    fn wanted(&self) -> Wanted {
        let metrics = self.operate.metrics.map(|address| (Role::Metrics, Bound::Tcp(address)));
        let mut wanted = Vec::from_iter(metrics);
        if let Listen::Unix(address) = &self.listen {
            wanted.push((Role::Listen, Bound::Unix(address.clone())));
            if self.direct {
                wanted.push((Role::Direct, Bound::Unix(self.direct_address(address))));
            }
        }
        wanted
    }

    /// Where loans come in, beside `listen`.
    fn direct_address(&self, listen: &Address) -> Address {
        listen.beside(".direct")
    }

    /// What of the flags goes together where the daemon speaks TCP.
    fn check(&self) -> anyhow::Result<()> {
        let tcp = matches!(self.listen, Listen::Tcp(_));
        let why = if tcp != self.stack.is_some() {
            "--listen tcp:IP:PORT and --tap go together (or --xdp): the daemon speaks TCP on a stack of its own, and proxies on this host \
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

/// Runs `onecopy serve`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let says = Says::start(args.operate.log_level)?;
    let user = args.operate.find_user()?;
    process::raise_open_files();
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
    // Before there are threads.
    let (mut given, before) = Given::find(&args.operate, &args.wanted(), user.as_ref())?;
    let (mut listener, mut direct) = (None, None);
    if let Listen::Unix(address) = &args.listen {
        listener = Some(given.unix(Role::Listen, address, user.as_ref())?);
        if args.direct {
            direct = Some(given.unix(Role::Direct, &args.direct_address(address), user.as_ref())?);
        }
    }
    let asked = given.metrics(&args.operate)?;
    args.operate.enter(user.as_ref())?;
    if let Some(parent) = args.die_with_parent {
        process::die_with_parent(parent)?; // whoever becomes another user is not told any more (prctl(2))
    }
    if args.save_profile {
        lessons::place()?; // told now: what is learned should not end in "no place to save it"
    }
    let totals = Arc::new(Totals::default());
    let log = AccessLog::open(args.operate.log(), totals.clone())?;
    let end = log.end();
    let (renewed, times) = Again::new("serve", args, says, log.clone())?;
    let daemon = Arc::new(Daemon {
        store: Store::open(&args.root, args.cache, args.revalidate)?,
        totals,
        log: log.clone(),
        desk: Desk::default(),
        lessons: Lessons::default(),
        times,
        hot_set: args.hot_set,
        lend: if kernel { Lend::Never } else { args.lend },
        tells: args.stats,
    });
    let mut files = Files::default();
    let mut listen = |socket: Option<UnixSocket>| {
        let Some((listener, file)) = socket.map(UnixSocket::listen).transpose()? else { return Ok(None) };
        files.add(file);
        anyhow::Ok(Some(listener))
    };
    let (listener, direct) = (listen(listener)?, listen(direct)?);
    let mut shared = Sockets::new();
    if args.operate.takeover.is_some() {
        for (role, socket) in [(Role::Listen, &listener), (Role::Direct, &direct)] {
            shared.extend(
                socket.as_ref().map(|socket| anyhow::Ok((role, socket.try_clone()?.into()))).transpose()?,
            );
        }
        shared.extend(
            asked.as_ref().map(|asked| anyhow::Ok((Role::Metrics, asked.try_clone()?.into()))).transpose()?,
        );
    }
    let (door, name) = Door::open(args, listener)?;
    let files = RefCell::new(files);
    let result = process::block_on(async {
        // The handlers are in place before anybody is told that the daemon is there.
        let reports = daemon.clone();
        tokio::task::spawn_local(process::at_usr1(move || tell!("stats {}", reports.totals.json())));
        let again = args.operate.outlives_hang_up();
        if again {
            tokio::task::spawn_local(process::at_hup(async move || renewed.read::<Args>()));
        }
        let last = log.clone();
        let stop = process::asked_to_stop("onecopy serve", !again, move || last.finish());
        let stop = tokio::task::spawn_local(stop);
        tokio::task::yield_now().await;
        let (stopping, stopped) = watch::channel(false);
        let open = |listener| metrics::open(listener, "serve", daemon.totals.clone(), stopped, None);
        let metrics = asked.map(open).transpose()?;
        let limits = (args.max_connections, args.transport.buffer(args.buffer));
        let (ear, bell) = Ear::new()?;
        let mut bell = Some(bell);
        let mut threads = Vec::new();
        if let Some(direct) = direct {
            threads.push(direct::open(&daemon, direct, ear.clone(), args.max_connections)?);
        }
        let doorman = daemon.clone();
        let run = move || door::accept(&doorman, &door, &ear, limits);
        threads.push(std::thread::Builder::new().name("accept".into()).spawn(run)?);
        info!(target: "onecopy serve", "{} on {name}", args.root.display());
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let handing = async {
            if let Some(before) = before {
                // Connections are served meanwhile.
                tokio::task::spawn_blocking(move || before.relieve()).await??;
                files.borrow_mut().adopt();
                info!(target: "onecopy serve", "took over from the one that ran");
            }
            match &args.operate.takeover {
                Some(meet) => takeover::wait(meet, shared).await?,
                None => std::future::pending().await,
            }
            files.borrow_mut().leave();
            anyhow::Ok(())
        };
        let why = tokio::select! {
            stop = stop => Some(stop??),
            handed = handing => handed.map(|()| None)?,
        };
        if why.is_none() || given.outlive() {
            // Nobody is taken in here any more: who comes now is the successor's.
            bell = None;
            let ended = move || threads.into_iter().all(|thread| thread.join().is_ok());
            anyhow::ensure!(tokio::task::spawn_blocking(ended).await?, "a thread that accepts panicked");
        } // else who comes until the process ends is told so
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        if let Some(metrics) = metrics {
            metrics.leave().await;
        }
        stopping.send_replace(true);
        Ok((why, bell))
    });
    drop(files); // the threads that accept still have the sockets
    // Also behind an error: requests are answered, and the log has its lines, before the program ends.
    let grace = daemon.times().grace;
    let cut = daemon.desk.close(grace);
    drop(end);
    let (why, _bell) = result?;
    let why = why.map_or_else(|| "a successor took over".to_owned(), |stop| stop.to_string());
    info!(target: "onecopy serve", "{why}; {}", daemon.totals.sum());
    daemon.lessons.add_threads(onecopy::advanced::copy::learned());
    if let Some(learned) = daemon.lessons.text() {
        info!(target: "onecopy serve", "{learned}");
    }
    if args.save_profile {
        info!(target: "onecopy serve", "{}", daemon.lessons.save()?);
    }
    if cut > 0 {
        warn!(target: "onecopy serve", "{cut} connections did not finish within {:?} and were cut", grace);
    }
    Ok(())
}
