//! `onecopy nc`: bytes between standard input, standard output or files and a connection, over the kernel, a stack of our own, or a unix
//! socket of ours.

mod devmem;
mod ends;
mod open;
mod progress;
mod report;
mod sum;
mod talk;
mod tally;
mod target;
mod udp;
mod wire;

use crate::failure::Usage;
use crate::lessons::{self, Lessons};
use crate::own_stack::OwnStack;
use crate::process::{self, Stop};
use crate::units;
use ends::{Sink, Source};
use onecopy::{Stack, Transport};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use target::Target;

const AFTER_HELP: &str = "\
Both directions end by themselves: the end of standard input, or of --send FILE,
ends what is sent (a half-close: the peer sees the end, and can still answer);
the end of what the peer sends ends what is received. When both have ended, so
does the program. With --recv FILE alone nothing is sent, and the peer's end is
the end.

Examples:
  onecopy nc -l 9000 --recv image.raw --sum         on the one host
  onecopy nc 10.0.0.1:9000 --send image.raw --sum   on the other
  printf 'GET / HTTP/1.0\\r\\n\\r\\n' | onecopy nc example.org 80
  onecopy nc --unix /run/jobs.sock                  shared memory, where the peer can
  onecopy nc --tap onecopy0 --addr 10.0.0.2/24 --kernel-addr 10.0.0.1/24 10.0.0.1:9000
                                                    our own TCP, as root
  onecopy nc --transport kernel-uring 10.0.0.1:9000 the kernel's TCP (with --udp its
                                                    UDP), our sockets above it
  onecopy nc --devmem --pair --generate 64M --validate 7
                                                    from one device's memory to another's

A stack of our own (--tap) is there as long as the program is, and so is the TAP
if it made it: nothing has to be cleaned up, however it ends.";

/// Flags of `onecopy nc`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Args {
    /// Whom to connect to: HOST:PORT, HOST PORT or unix:PATH; with -l where to listen, PORT alone meaning all addresses of IPv4
    #[arg(value_name = "ADDRESS", num_args = 0..=2)]
    address: Vec<String>,
    /// Listen, and talk to the first who connects
    #[arg(short, long)]
    listen: bool,
    /// A unix socket: a path, or @name. Shared memory carries the bytes where the peer is onecopy's, too
    #[arg(short = 'U', long, value_name = "PATH", conflicts_with_all = ["udp", "tap", "xdp"])]
    unix: Option<String>,
    /// Datagrams: each read of standard input is one, of 16 KiB at most
    #[arg(short, long)]
    udp: bool,
    #[command(flatten)]
    own: OwnStack,
    /// Who carries TCP, or UDP: the kernel, the kernel through io_uring (no privilege is needed), a stack of our own (--tap), or that one if it
    /// can be had and else the kernel through io_uring. Left out: a stack of our own with --tap, the kernel without
    #[arg(long, value_enum, value_name = "WAY", conflicts_with = "unix")]
    transport: Option<Way>,
    /// Send this file instead of standard input
    #[arg(long, value_name = "FILE", conflicts_with = "no_stdin")]
    send: Option<PathBuf>,
    /// Write what is received to this file instead of standard output; standard input is not read then
    #[arg(long, value_name = "FILE")]
    recv: Option<PathBuf>,
    /// Tell the SHA-256 of what was sent and received at the end, as sha256sum has it. A file is then copied through a buffer
    /// instead of being read to where it is sent from
    #[arg(long)]
    sum: bool,
    /// Tell at the end what passed as one JSON object on a line of standard error
    #[arg(long)]
    json: bool,
    /// With --unix: at the end, save what was learned about the stores of this machine in the profile of `onecopy tune`, with which
    /// programs begin that are started later. (Of a file that is sent without --sum, nothing is copied, and nothing learned)
    #[arg(long, conflicts_with_all = ["udp", "tap", "xdp"])]
    save_profile: bool,
    /// Tell where it listens, to whom it is connected, and at the end what passed
    #[arg(short, long)]
    verbose: bool,
    /// Do not read standard input
    #[arg(short = 'd', long)]
    no_stdin: bool,
    /// End this long after what is sent has ended, though the peer has not
    #[arg(short = 'q', long, value_name = "TIME", value_parser = units::span)]
    quit: Option<Duration>,
    /// At the end of what is sent, do not tell the peer before it has ended itself (as OpenBSD's nc does without -N)
    #[arg(long, conflicts_with = "shutdown")]
    no_shutdown: bool,
    /// At the end of what is sent, tell the peer: as it is anyway
    #[arg(short = 'N', hide = true)]
    shutdown: bool,
    /// Give up connecting, or waiting for somebody to connect, after this long
    #[arg(short = 'w', long, value_name = "TIME", value_parser = units::span)]
    timeout: Option<Duration>,
    #[command(flatten)]
    devmem: devmem::Flags,
}

/// Who carries TCP, or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The kernel's sockets.
    Kernel,
    /// The kernel's TCP and UDP through io_uring, with our own sockets above it.
    KernelUring,
    /// A stack of our own.
    Stack,
    /// The latter if it can be had, else the kernel's through io_uring.
    Auto,
}

/// What `nc` is to do, once the flags are found to make sense.
pub struct Plan {
    args: Args,
    target: Target,
}

impl Plan {
    fn of(args: &Args) -> anyhow::Result<Plan> {
        let target = Target::of(&args.address, args.unix.as_deref(), args.listen)?;
        if args.save_profile {
            if !matches!(target, Target::Unix(_)) {
                return Err(Usage(
                    "--save-profile is about shared memory: add --unix PATH, or leave it out".into(),
                )
                .into());
            }
            lessons::place()?;
        }
        if matches!(target, Target::Unix(_)) && (args.udp || args.own.is_some()) {
            let flag = if args.udp { "--udp" } else { "--tap, or --xdp" };
            return Err(Usage(format!("{target} is a unix socket: leave out {flag}")).into());
        }
        args.carried()?;
        if args.transport.is_some() && matches!(target, Target::Unix(_)) {
            let why = "a unix socket is carried as its peer can: leave out --transport";
            return Err(Usage(why.into()).into());
        }
        for (flag, span) in [("-w", args.timeout), ("-q", args.quit.filter(|_| args.udp))] {
            if span == Some(Duration::ZERO) {
                return Err(Usage(format!("{flag} 0 leaves no time for anything: write 1s or more")).into());
            }
        }
        Ok(Plan { args: args.clone(), target })
    }

    /// What is sent, if anything.
    fn source(&self) -> anyhow::Result<Option<Source>> {
        match &self.args.send {
            Some(path) => Source::open(path).map(Some),
            None if self.args.no_stdin || self.args.recv.is_some() => Ok(None),
            None => Source::stdin().map(Some),
        }
    }

    fn sink(&self) -> anyhow::Result<Sink> {
        self.args.recv.as_deref().map_or_else(Sink::stdout, Sink::create)
    }

    /// Whether anything is told at the end.
    fn tells(&self) -> bool {
        let args = &self.args;
        args.sum || args.json || args.verbose || args.send.is_some() || args.recv.is_some()
    }
}

impl Args {
    /// Whether what is said of who carries the bytes makes sense.
    fn carried(&self) -> anyhow::Result<()> {
        self.own.check()?;
        let why = match (self.transport, self.own.is_some()) {
            (Some(Way::Kernel | Way::KernelUring), true) => {
                "--tap and --xdp are for a stack of our own: leave it out, or say --transport stack"
            }
            (Some(Way::Stack), false) => {
                "a stack of our own needs a device: add --tap NAME, or --xdp IFACE, and --addr, or leave out --transport"
            }
            _ => return Ok(()),
        };
        Err(Usage(why.into()).into())
    }

    /// What carries the bytes, if not the kernel's sockets: a stack of our own with its TAP's name, or the kernel through io_uring.
    fn stack(&self) -> anyhow::Result<Option<(Stack, Option<String>)>> {
        let opened = match self.transport {
            Some(Way::KernelUring) => return self.kernel().map(Some),
            Some(Way::Auto) if !self.own.is_some() => return self.kernel().map(Some),
            Some(Way::Auto) => match self.own.open_named() {
                Ok(opened) => opened,
                Err(error) => {
                    if self.verbose {
                        tell!("onecopy nc: {error:#}");
                    }
                    return self.kernel().map(Some);
                }
            },
            Some(Way::Kernel | Way::Stack) | None => self.own.open_named()?,
        };
        Ok(opened.map(|(stack, name, about)| {
            if self.verbose {
                tell!("onecopy nc: {about}");
            }
            (stack, Some(name))
        }))
    }

    /// The kernel's TCP and UDP through io_uring.
    fn kernel(&self) -> anyhow::Result<(Stack, Option<String>)> {
        let builder = Stack::builder().transport(Transport::Kernel);
        let stack = match self.devmem.nic() {
            Some(interface) => builder.interface(interface),
            None => builder,
        };
        let stack = stack.build()?;
        if self.verbose {
            let registered =
                stack.link_counters().iter().any(|(name, value)| *name == "pages_registered" && *value > 0);
            let how = if registered {
                "are registered"
            } else {
                "are not registered: RLIMIT_MEMLOCK (ulimit -l) is too low"
            };
            let carried = if self.udp { "UDP" } else { "TCP" };
            tell!("onecopy nc: the kernel's {carried} through io_uring; the pages that are sent from {how}");
        }
        Ok((stack, None))
    }
}

/// Something that goes on and can be told about at any moment.
pub trait Job: Send + Sync {
    /// Until it is over.
    fn run(&self, plan: &Plan) -> anyhow::Result<()>;
    /// What came of it so far; `None` as long as nobody is connected.
    fn report(&self, cut: Option<String>) -> Option<report::Report>;
    /// Ends it as well as that goes at once.
    fn cut(&self);
}

/// Runs `onecopy nc`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.devmem.is_some() {
        return devmem::run(args);
    }
    let plan = Arc::new(Plan::of(args)?);
    let job: Arc<dyn Job> = match plan.args.udp {
        true => Arc::new(udp::Datagrams::new(&plan)),
        false => Arc::new(talk::Talk::new(&plan)),
    };
    let (worker, orders) = (job.clone(), plan.clone());
    match process::beside(move || worker.run(&orders))? {
        Ok(done) => {
            let why = done.as_ref().err().filter(|error| !error.is::<crate::terminal::ReaderGone>());
            tell(&plan, &*job, why.map(|error| format!("{error:#}")));
            done
        }
        Err(stop) => {
            job.cut();
            tell(&plan, &*job, Some(stop.to_string()));
            std::process::exit(Stop::code(stop))
        }
    }
}

fn tell(plan: &Plan, job: &dyn Job, cut: Option<String>) {
    let Some(report) = job.report(cut) else { return };
    match (plan.tells(), plan.args.json) {
        (false, _) => {}
        (true, true) => tell!("{}", report.json()),
        (true, false) => tell!("{}", report.text()),
    }
    if plan.args.save_profile {
        let lessons = Lessons::default();
        report.learned.into_iter().for_each(|lesson| lessons.add(lesson));
        lessons.add_threads(onecopy::advanced::copy::learned());
        match lessons.save() {
            Ok(saved) => tell!("onecopy nc: {saved}"),
            Err(error) => tell!("onecopy nc: {error:#}"),
        }
    }
}
