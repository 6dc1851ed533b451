//! `onecopy stack`: a stack of our own that stays up, for people who try it, watch it, or test their own programs against it.

mod capture;
mod counters;
mod services;

use crate::failure::Usage;
use crate::own_stack::{Network, describe, list};
use crate::{process, terminal};
use anyhow::Context;
use capture::Capture;
use counters::Counters;
use onecopy::{Builder, Cidr, Mac, Port, Stack, Wait};
use onecopy_inet::trace::{Printer, Trace, Tracer};
use onecopy_sys::netns::Namespace;
use serde_json::{Value, json};
use services::{Service, Services};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long peers have at the end.
const GRACE: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
Examples:
  onecopy stack --netns --addr 10.0.0.2/24 -- ping -c 3 10.0.0.2
  onecopy stack --netns --addr 10.0.0.2/24 --echo 7 --trace -- nc -N 10.0.0.2 7
  onecopy stack --tap onecopy0 --addr 10.0.0.2/24 --kernel-addr 10.0.0.1/24 --echo 7
  onecopy stack --xdp veth0 --addr 10.0.0.2/24 --echo 7
  onecopy stack --tap onecopy0 --addr 10.0.0.2/24 --addr fd00::2/64 \
      --gateway 10.0.0.1 --route 10.1.0.0/16=10.0.0.9 --echo 7

It takes root, or a user namespace, which has a network of its own:
  unshare --user --map-root-user --net onecopy stack --addr 10.0.0.2/24 \\
      --kernel-addr 10.0.0.1/24 -- ping -c 3 10.0.0.2

The TAP, if this made it, and the namespace are gone with the program, however
it ends. SIGUSR1 has it print its counters as JSON on standard error.
Where there is neither root nor /dev/net/tun, `onecopy nc` without --tap uses
the kernel's sockets.";

/// Flags of `onecopy stack`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Args {
    /// The TAP that the stack is on. It is made where there is none
    #[arg(long, value_name = "NAME", default_value = "onecopy0")]
    tap: String,
    /// Put it on this network interface instead, past the kernel's IP (AF_XDP): all that arrives there is the stack's. It is up, with one queue that it receives
    /// by, and stays as it is
    #[arg(long, value_name = "IFACE", conflicts_with_all = ["tap", "netns"])]
    xdp: Option<String>,
    #[command(flatten)]
    network: Network,
    /// Make a network namespace, with the kernel's side of the TAP in it, which gets --kernel-addr, or of IPv4 and of IPv6 the first address that is
    /// left in the stack's network
    #[arg(long)]
    netns: bool,
    /// Send back what comes to this port (RFC 862); may be given several times. All services together have 1024 connections at once; who comes
    /// later is let go
    #[arg(long, value_name = "PORT")]
    echo: Vec<u16>,
    /// Throw away what comes to this port (RFC 863); may be given several times
    #[arg(long, value_name = "PORT")]
    discard: Vec<u16>,
    /// Send lines without end to who connects to this port (RFC 864); may be given several times
    #[arg(long, value_name = "PORT")]
    source: Vec<u16>,
    /// Write all packets to this file, for Wireshark and tcpdump (pcapng)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print a line for each packet
    #[arg(long, conflicts_with = "json")]
    trace: bool,
    /// One JSON object a line on standard output: when it is up, and at the end what it did
    #[arg(long)]
    json: bool,
    /// Run this, in the namespace if there is one, and end when it ends, with its exit status
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What is up.
struct Up {
    stack: Stack,
    services: Services,
    capture: Option<Capture>,
}

impl Up {
    /// For SIGUSR1.
    fn report(&self) {
        if let Some(capture) = &self.capture {
            capture.flush();
        }
        tell!("stats {}", self.counters().json());
    }

    /// Waits until the connections have ended, but not for long.
    fn settle(&self) {
        let begun = Instant::now();
        let over = || {
            (0..self.stack.shards()).all(|shard| {
                let census = self.stack.with_shard(shard, |inet| inet.census());
                census.sockets <= census.over
            })
        };
        while !over() && begun.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn counters(&self) -> Counters {
        Counters::of(&self.stack, self.services.totals())
    }
}

/// Runs `onecopy stack`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.network.check()?;
    let own = args.network.addresses()?;
    let kernel = args.network.kernel_addresses(args.netns)?;
    let namespace = match args.netns {
        true => Some(Namespace::new().map_err(|errno| {
            anyhow::anyhow!(
                "no network namespace: {errno}; run as root, or leave out --netns and let unshare make one (unshare --user \
                 --map-root-user --net onecopy stack ...)"
            )
        })?),
        false => None,
    };
    if args.network.shards() > 1 && (args.pcap.is_some() || args.trace) {
        let why = "--pcap and --trace look at a link of one queue: leave out --shards, or let tcpdump look at the TAP";
        return Err(Usage(why.into()).into());
    }
    let capture = args.pcap.as_deref().map(Capture::create).transpose()?;
    let builder = args.network.set(Stack::builder())?.wait(Wait::Block);
    let (name, about, builder) = match &args.xdp {
        Some(name) => {
            let xdp = args.network.open_xdp(name)?;
            let (mac, about) = (Mac(xdp.hardware_address()), xdp.describe());
            (name.clone(), about, on(builder.mac(mac), vec![xdp], capture.as_ref(), args.trace))
        }
        None => {
            let taps = args.network.open(&args.tap, &kernel, namespace.as_ref()).map_err(|error| {
                error.context(
                    "no stack (without one `onecopy nc`, `serve` and `proxy` use the kernel's sockets)",
                )
            })?;
            let (name, about) = (taps[0].name().to_owned(), describe(&taps));
            (name, about, on(builder, taps, capture.as_ref(), args.trace))
        }
    };
    let stack = builder.build()?;
    let services = Services::default();
    let mut offered = Vec::new();
    for (word, service, ports) in [
        ("echo", Service::Echo, &args.echo),
        ("discard", Service::Discard, &args.discard),
        ("source", Service::Source, &args.source),
    ] {
        for port in ports {
            offered.extend(services.offer(&stack, service, *port)?.into_iter().map(|at| (word, at)));
        }
    }
    let up = Rc::new(Up { stack, services, capture });
    let place = namespace
        .as_ref()
        .map(|namespace| format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd()));
    let (why, status) = process::block_on(async {
        let reports = up.clone();
        tokio::task::spawn_local(process::at_usr1(move || reports.report()));
        let stop = tokio::task::spawn_local(process::asked_to_stop("onecopy stack", true, || ()));
        tokio::task::yield_now().await; // the handlers are in place before anybody is told that it is up
        if args.json {
            let device = if args.xdp.is_some() { "xdp" } else { "tap" };
            let offered: Vec<_> =
                offered.iter().map(|(word, at)| json!({ "service": word, "at": at.to_string() })).collect();
            terminal::print(&line(&json!({
                "event": "up",
                device: name,
                "addresses": own.iter().map(Cidr::to_string).collect::<Vec<_>>(),
                "kernel": kernel.iter().map(Cidr::to_string).collect::<Vec<_>>(),
                "namespace": place,
                "services": offered,
            })))?;
        }
        let own = list(own);
        tell!("onecopy stack: {own} on {about}{}", around(&kernel, place.as_deref(), &offered));
        let program = Program::start(&args.command, namespace.as_ref())?;
        let pid = program.as_ref().map(Program::pid);
        tokio::select! {
            why = stop => {
                if let Some(pid) = pid {
                    // (A terminal has told it, too.)
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
                Ok((why??.to_string(), None))
            }
            status = ended(program) => {
                let status = status?;
                Ok((format!("{} ended, {status}", args.command[0]), Some(status)))
            }
        }
    })?;
    up.services.close();
    up.settle();
    let counters = up.counters();
    if let Some(capture) = &up.capture {
        capture.flush();
    }
    // The last handle: the TAP is gone, if this made it, before anybody is told so.
    drop(up);
    if args.json {
        let mut counted = counters.json();
        (counted["event"], counted["why"]) = ("down".into(), why.clone().into());
        terminal::print(&line(&counted))?;
    }
    tell!("onecopy stack: {why}; {}", counters.text());
    match status {
        Some(status) if !status.success() => std::process::exit(code(status)),
        _ => Ok(()),
    }
}

fn line(object: &Value) -> String {
    format!("{object}\n")
}

/// The exit status as a shell has it.
fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// What is around the stack.
fn around(kernel: &[Cidr], place: Option<&str>, offered: &[(&str, SocketAddr)]) -> String {
    let mut text = String::new();
    if !kernel.is_empty() {
        text += &format!("; the kernel has {}", list(kernel));
    }
    if let Some(place) = place {
        text += &format!(" in a namespace (nsenter --net={place} COMMAND)");
    }
    for (service, at) in offered {
        text += &format!("; {service} at {at}");
    }
    text
}

/// The stack on these links, with whoever looks on in between.
fn on<P: Port + 'static>(builder: Builder, links: Vec<P>, capture: Option<&Capture>, trace: bool) -> Builder {
    let printer = || Printer::new(Tracer::new(), std::io::stdout());
    let links = links.into_iter();
    match (capture, trace) {
        (None, false) => builder.links(links),
        (None, true) => builder.links(links.map(|link| Trace::new(link, printer()))),
        (Some(capture), false) => builder.links(links.map(|link| capture.around(link))),
        (Some(capture), true) => builder.links(links.map(|link| Trace::new(capture.around(link), printer()))),
    }
}

/// The command that is run beside the stack.
struct Program {
    child: Child,
}

impl Program {
    fn start(words: &[String], namespace: Option<&Namespace>) -> anyhow::Result<Option<Program>> {
        let [program, rest @ ..] = words else { return Ok(None) };
        let spawn = || Command::new(program).args(rest).spawn();
        let child = match namespace {
            None => spawn(),
            // What a thread starts is in the thread's namespace.
            Some(namespace) => namespace.run(spawn)?,
        };
        let child = child.with_context(|| format!("cannot run {program}"))?;
        Ok(Some(Program { child }))
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }
}

/// Waits for its end; for ever where there is none.
async fn ended(program: Option<Program>) -> anyhow::Result<ExitStatus> {
    let Some(mut program) = program else { return std::future::pending().await };
    let waiting = tokio::task::spawn_blocking(move || program.child.wait());
    waiting.await?.context("cannot wait for the command")
}
