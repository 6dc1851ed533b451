//! `onecopy nc --devmem`: receives into a device's memory, or sends from it, and says truthfully what that came to. It does what the kernel's
//! ncdevmem does (tools/testing/selftests/drivers/net/hw/ncdevmem.c), on a stack of our own.
//!
//! | file | what |
//! |---|---|
//! | `receive` | a connection's bytes come to bound queues, and their tokens go back |
//! | `send` | bytes of a device's memory go out, whole or in chunks |
//! | `pattern` | the bytes that `--validate` expects |
//! | `check` | `--check`: what has to be refused, and what has to work |
//! | `peer` | whom `--check` speaks with |
//! | `report` | what is told in the end |

mod check;
mod pattern;
mod peer;
mod receive;
mod report;
mod send;

use super::ends::Sink;
use super::target::Target;
use crate::failure::Usage;
use crate::process::{self, Stop};
use crate::units;
use anyhow::Context;
use onecopy::advanced::link::Tap;
use onecopy::advanced::pool::{DeviceId, DeviceMemory};
use onecopy::devmem::Binding;
use onecopy::storage::Storage;
use onecopy::{Stack, tcp};
use pattern::Pattern;
use report::State;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

/// Flags of `onecopy nc --devmem`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Device memory")]
pub struct Flags {
    /// Receive into a device's memory (with -l), or send from it, over a stack of our own (--tap, or --pair) or the kernel's TCP
    /// (--transport kernel-uring). The only kind there is so far, opaque, is a stand-in: memory that no process maps, with no GPU behind it
    #[arg(
        long,
        value_name = "KIND",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "opaque",
        conflicts_with_all = ["unix", "udp", "sum", "no_stdin", "quit", "no_shutdown", "shutdown"]
    )]
    devmem: Option<Kind>,
    /// Bytes of that memory; left out, 64M
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires = "devmem")]
    memory: Option<usize>,
    /// The first receive queue to bind; the connection's flow is steered to it
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "devmem")]
    queue: u32,
    /// How many receive queues to bind. One more is left to all other flows
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = units::some, requires = "devmem")]
    queues: usize,
    /// Have the NIC of this interface receive into the memory by itself, with --transport kernel-uring: --queue is a queue of its. It takes CAP_NET_ADMIN, a NIC that can, and
    /// /dev/udmabuf. Where it refuses, what is done instead is told, and why. (No hardware has been tried yet)
    #[arg(long, value_name = "INTERFACE", requires = "devmem", requires = "listen", conflicts_with_all = ["tap", "pair", "check"])]
    nic: Option<String>,
    /// Compare what is received with the pattern 1, 2 ... N-1, newline, and give up after 20 wrong bytes. (`yes $(echo -e
    /// \\x01\\x02\\x03\\x04\\x05\\x06)` makes that of 7.) With --generate: what is sent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..), requires = "devmem")]
    validate: Option<u8>,
    /// Send so many bytes of the pattern of --validate
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires_all = ["devmem", "validate"], conflicts_with = "send")]
    generate: Option<usize>,
    /// Send in ranges of at most so many bytes, of which each send has as many as it takes
    #[arg(long, value_name = "BYTES", value_parser = units::some, requires = "devmem")]
    chunk: Option<usize>,
    /// Give up when bytes come that were not split from their headers
    #[arg(long, requires = "devmem")]
    fail_on_linear: bool,
    /// Look at nothing that is received: give the tokens back as they come
    #[arg(long, requires = "devmem", conflicts_with_all = ["validate", "recv"])]
    discard: bool,
    /// Be both sides, over a cable in this process: takes no privilege
    #[arg(long, requires = "devmem", conflicts_with_all = ["tap", "transport", "listen", "address"])]
    pair: bool,
    /// Try what has to be refused and what has to work, a line each, over a cable in this process or with the kernel behind --tap
    #[arg(long, requires = "devmem", conflicts_with_all = [
        "transport", "listen", "address", "send", "recv", "generate", "validate", "chunk", "discard", "fail_on_linear", "pair", "memory", "queue",
        "queues", "timeout"
    ])]
    check: bool,
}

/// What kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A memfd that no process maps.
    Opaque,
}

impl Flags {
    /// The interface whose NIC is to receive.
    pub fn nic(&self) -> Option<&str> {
        self.nic.as_deref()
    }

    /// Whether it is asked for.
    pub fn is_some(&self) -> bool {
        self.devmem.is_some()
    }
}

/// Bytes of memory where nothing was said.
const MEMORY: usize = 64 << 20;

/// What is to be done, once the flags are found to make sense.
struct Plan {
    args: super::Args,
    role: Role,
}

/// What this side does.
enum Role {
    /// Listens, and receives.
    Receive(Target),
    /// Connects, or listens, and sends.
    Send(Target),
    /// Both, in this process.
    Pair,
    Check,
}

impl Plan {
    fn of(args: &super::Args) -> anyhow::Result<Plan> {
        let flags = &args.devmem;
        args.carried()?;
        let sends = flags.generate.is_some() || args.send.is_some();
        let role = match (flags.check, flags.pair) {
            (true, _) => Role::Check,
            (_, true) if !sends => {
                return Err(Usage(
                    "--pair has to send something: add --send FILE, or --generate SIZE and --validate N"
                        .into(),
                )
                .into());
            }
            (_, true) => Role::Pair,
            _ => {
                let target = Target::of(&args.address, None, args.listen)?;
                if matches!(target, Target::Unix(_)) {
                    return Err(Usage(format!("{target} is a unix socket: leave out --devmem")).into());
                }
                if matches!(args.transport, None | Some(super::Way::Kernel)) && !args.own.is_some() {
                    let why = "device memory takes sockets of ours: add --tap NAME and --addr for a stack of our own, --transport kernel-uring for the kernel's TCP, or --pair for both sides in this process";
                    return Err(Usage(why.into()).into());
                }
                match args.listen && !sends {
                    true => Role::Receive(target),
                    false => Role::Send(target),
                }
            }
        };
        let receives = matches!(role, Role::Receive(_) | Role::Pair);
        let validates = flags.validate.is_some() && flags.generate.is_none();
        if !receives && (args.recv.is_some() || flags.discard || flags.fail_on_linear || validates) {
            let why = "who receives into a device's memory listens, since its flow is steered by the port: add -l, or send something";
            return Err(Usage(why.into()).into());
        }
        if flags.nic.is_some()
            && !matches!((&role, args.transport), (Role::Receive(_), Some(super::Way::KernelUring)))
        {
            let why = "--nic is for who receives over the kernel's TCP: add --transport kernel-uring, and send nothing";
            return Err(Usage(why.into()).into());
        }
        if matches!(role, Role::Receive(_)) && flags.chunk.is_some() {
            return Err(Usage("--chunk is for who sends: leave it out with -l".into()).into());
        }
        Ok(Plan { args: args.clone(), role })
    }

    fn flags(&self) -> &Flags {
        &self.args.devmem
    }

    fn pattern(&self) -> Option<Pattern> {
        self.flags().validate.map(Pattern::new)
    }

    /// Memory for one direction.
    fn memory(&self, device: u32) -> anyhow::Result<DeviceMemory> {
        let len = self.flags().memory.unwrap_or(MEMORY);
        let pages = u32::try_from(len / 4096).unwrap_or(u32::MAX);
        DeviceMemory::opaque(pages.max(1), DeviceId(device))
            .with_context(|| format!("no memory of {len} bytes (--memory)"))
    }

    fn run(&self, state: &State) -> anyhow::Result<()> {
        match &self.role {
            Role::Check => check::run(&self.args),
            Role::Pair => self.pair(state),
            Role::Receive(target) => {
                let stack = self.stack()?;
                let at = address(&stack, target)?;
                let sink = self.sink()?;
                let (listener, receiver) = self.listen(&stack, at)?;
                let stream = self.accept(&listener)?;
                receiver.receive(stream, self, &sink, state)
            }
            Role::Send(target) => {
                // What is not there is told before anybody is connected.
                let source = send::Source::of(&self.args, self.pattern())?;
                let stack = self.stack()?;
                let at = address(&stack, target)?;
                let memory = self.memory(0)?;
                let stream = match self.args.listen {
                    true => {
                        let listener = listen(&stack, at)?;
                        self.listening(listener.local_addr()?);
                        self.accept(&listener)?
                    }
                    false => {
                        let made = match self.args.timeout {
                            Some(limit) => tcp::Stream::connect_timeout(&stack, at, limit),
                            None => tcp::Stream::connect(&stack, at),
                        };
                        made.map_err(|error| {
                            super::open::of_ours(&stack, error, &format!("cannot connect to {at}"))
                        })?
                    }
                };
                send::send(stream, &memory, source, self.flags().chunk, state)
            }
        }
    }

    /// The stack on the TAP, or the kernel's TCP.
    fn stack(&self) -> anyhow::Result<Stack> {
        let (stack, _) = self.args.stack()?.context("--tap and --transport were looked for before")?;
        Ok(stack)
    }

    /// Where received bytes go, if somebody looks at them.
    fn sink(&self) -> anyhow::Result<Option<Sink>> {
        let flags = self.flags();
        match &self.args.recv {
            Some(path) => Sink::create(path).map(Some),
            None if flags.discard || flags.validate.is_some() || flags.pair => Ok(None),
            None => Sink::stdout().map(Some),
        }
    }

    /// Listens, with memory bound for who connects.
    fn listen(&self, stack: &Stack, at: SocketAddr) -> anyhow::Result<(tcp::Listener, receive::Receiver)> {
        // Nobody knows a port that is chosen before he is told of it. At another one somebody may wait, and what he sends is to find the memory bound.
        let chosen = (at.port() == 0).then(|| listen(stack, at)).transpose()?;
        let at = chosen.as_ref().map_or(Ok(at), tcp::Listener::local_addr)?;
        let memory = self.memory(0)?;
        let (binding, queues) = self.bind(stack, at, &memory)?;
        let listener = chosen.map_or_else(|| listen(stack, at), Ok)?;
        if self.args.verbose {
            tell!(
                "onecopy nc: queues {queues:?} have {} bytes of memory, binding {}",
                memory.len(),
                binding.id()
            );
        }
        // Who asks for a NIC hears when it is none.
        if self.args.verbose || self.flags().nic.is_some() {
            tell!("onecopy nc: payload comes {}", binding.path());
        }
        self.listening(at);
        Ok((listener, receive::Receiver { stack: stack.clone(), memory, binding, queues }))
    }

    fn bind(
        &self,
        stack: &Stack,
        at: SocketAddr,
        memory: &DeviceMemory,
    ) -> anyhow::Result<(Binding, Vec<u32>)> {
        let (first, count) = (self.flags().queue, self.flags().queues as u32);
        let end = first.checked_add(count).filter(|end| *end <= MOST_QUEUES);
        let end = end.ok_or_else(|| {
            Usage(format!("--queue {first} and --queues {count}: there are {MOST_QUEUES} queues at most"))
        })?;
        // One is left for who is not steered.
        stack.set_queues(end.max(count + 1)).context("--queues")?;
        stack.steer(at, first).context("--queue")?;
        let queues: Vec<u32> = (first..end).collect();
        let binding = stack.bind_rx(memory, &queues).context("the memory cannot be bound")?;
        Ok((binding, queues))
    }

    fn listening(&self, at: SocketAddr) {
        if self.args.verbose {
            tell!("onecopy nc: listening on {at}");
        }
    }

    fn accept(&self, listener: &tcp::Listener) -> anyhow::Result<tcp::Stream> {
        listener.set_accept_timeout(self.args.timeout)?;
        match listener.accept() {
            Ok((stream, _)) => Ok(stream),
            Err(error) if error.would_block() => Err(super::open::nobody(self.args.timeout)),
            Err(error) => Err(error.into()),
        }
    }

    /// Both sides: from one memory to another.
    fn pair(&self, state: &State) -> anyhow::Result<()> {
        let source = send::Source::of(&self.args, self.pattern())?;
        let sink = self.sink()?;
        let (near, far) = cable()?;
        let (listener, receiver) = self.listen(&far, PAIR.1.parse()?)?;
        let memory = self.memory(1)?;
        let stream = tcp::Stream::connect(&near, listener.local_addr()?)?;
        let accepted = self.accept(&listener)?;
        thread::scope(|scope| {
            let sender = scope.spawn(|| send::send(stream, &memory, source, self.flags().chunk, state));
            let received = receiver.receive(accepted, self, &sink, state);
            // What the receiver gave up on, the sender cannot end: its connection went with the receiver.
            let sent = sender.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the sending thread panicked")));
            received.and(sent)
        })
    }
}

/// More would be of no use to anybody.
const MOST_QUEUES: u32 = 1024;

/// The addresses of a cable's ends: the sender's network, and where the receiver listens.
const PAIR: (&str, &str) = ("10.0.0.1/24", "10.0.0.2:5201");

/// Where the sender's side listens, when it is to be sent to.
const PAIR_TX: &str = "10.0.0.1:5301";

/// Two stacks of this process on one cable.
fn cable() -> anyhow::Result<(Stack, Stack)> {
    let (a, b) = Tap::cable(1500).context("no cable in this process")?;
    let build = |tap, address| Stack::builder().link(tap).address(address).build();
    Ok((build(a, PAIR.0)?, build(b, "10.0.0.2/24")?))
}

/// What moves files to memory and back; none where io_uring is forbidden.
fn storage(args: &super::Args) -> Option<Storage> {
    match Storage::new() {
        Ok(storage) => Some(storage),
        Err(refused) => {
            if args.verbose {
                tell!("onecopy nc: files go through a buffer: {refused}");
            }
            None
        }
    }
}

fn address(stack: &Stack, target: &Target) -> anyhow::Result<SocketAddr> {
    match target {
        Target::Net(host, port) => super::open::of_stack(stack, host, *port),
        Target::Unix(_) => Err(Usage(format!("{target} is a unix socket: leave out --devmem")).into()),
    }
}

fn listen(stack: &Stack, at: SocketAddr) -> anyhow::Result<tcp::Listener> {
    tcp::Listener::bind(stack, at)
        .map_err(|error| super::open::of_ours(stack, error, &format!("cannot listen on {at}")))
}

/// Runs it.
pub fn run(args: &super::Args) -> anyhow::Result<()> {
    let plan = Arc::new(Plan::of(args)?);
    let state = Arc::new(State::default());
    let (worker, theirs) = (Arc::clone(&plan), Arc::clone(&state));
    match process::beside(move || worker.run(&theirs))? {
        Ok(done) => {
            let why = done.as_ref().err().filter(|error| !error.is::<crate::terminal::ReaderGone>());
            state.tell(args.json, why.map(|error| format!("{error:#}")));
            done
        }
        Err(stop) => {
            state.tell(args.json, Some(stop.to_string()));
            std::process::exit(Stop::code(stop))
        }
    }
}
