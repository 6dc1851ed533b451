//! A process that connects, and may be killed at any moment.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use onecopy::unix::{Config, Datagram, Listener, SeqPacket, SocketAddr, Stream};
use onecopy::{RecvFlags, SendFlags};
use onecopy_conformance::socket::Socket;

use crate::crowd::{Common, Crowd, THREADS};
use crate::held::{Held, Memory};
use crate::mail::lock;
use crate::party::Party;
use crate::plan::{Ending, Kind, Names, Plan, Side, config};

/// How a worker is started.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Abstract name that the survivor's are made of
    pub base: String,
    /// The survivor's folder
    pub folder: PathBuf,
    /// Seed of the run
    pub run: u64,
    /// Which of all workers this is
    pub generation: u32,
    /// Connections to keep
    pub connections: usize,
}

/// Longest wait for the other process to do its part of a connection.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// Connects and says which connection it is. None where its other end has come and gone meanwhile.
fn call(args: &Args, index: u32) -> Result<Option<Party>, String> {
    let id = u64::from(args.generation) << 32 | u64::from(index);
    // A refused one comes with a full backlog or a survivor that ends: tried for a while.
    let until = Instant::now() + Duration::from_secs(10);
    let plan = Plan::of(args.run, id);
    let (config, names) = (plan.config(), Names::new(&args.base, &args.folder));
    let at = names.reception(plan.kind);
    if plan.kind == Kind::Grams {
        return call_by_datagram(&plan, &names, &config)
            .map_err(|e| format!("cannot connect a datagram socket: {e}"));
    }
    loop {
        let socket = match plan.kind {
            Kind::Stream => Stream::connect_with(at.clone(), &config).map(Socket::Bytes),
            _ => SeqPacket::connect_with(at.clone(), &config).map(Socket::Records),
        };
        let error = match socket {
            Ok(socket) => {
                // (Records in parts wait here for the accept.)
                let _ = socket.set_write_timeout(PATIENCE);
                match socket.send_with_flags(&id.to_le_bytes(), SendFlags::EOR) {
                    Ok(8) => {}
                    other => return Err(format!("the first eight bytes: {other:?}")),
                }
                socket.set_nonblocking(true).map_err(|e| format!("O_NONBLOCK: {e}"))?;
                return Ok(Some(Party::new(socket, None, plan, Side::Client)));
            }
            Err(e) => e,
        };
        if !error.would_block() || Instant::now() > until {
            return Err(format!("cannot connect: {error}"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Tells the survivor that there is a socket, and connects to the one that answers.
fn call_by_datagram(plan: &Plan, names: &Names, config: &Config) -> onecopy::Result<Option<Party>> {
    let socket = Datagram::bind_with(names.of_gram(plan.id, Side::Client), config)?;
    socket.set_write_timeout(PATIENCE)?;
    socket.set_read_timeout(PATIENCE)?;
    socket.send_to_with_flags(&plan.id.to_le_bytes(), names.reception(Kind::Grams), SendFlags::empty())?;
    socket.recv_with_flags(&mut [0; 8], RecvFlags::empty())?;
    let peer = names.of_gram(plan.id, Side::Server);
    match socket.connect(peer.clone()) {
        // It had little to say, and does not wait for more.
        Err(e)
            if e.kind() == ErrorKind::ConnectionRefused && plan.ending(Side::Server) != Ending::HalfClose =>
        {
            return Ok(None);
        }
        connected => connected?,
    }
    socket.set_nonblocking(true)?;
    Ok(Some(Party::new(Socket::Grams(socket), Some(peer), *plan, Side::Client)))
}

/// The server's end of a connection whose client says which it is; none where it died before it did.
pub fn answer(socket: Socket, run: u64) -> Result<Option<Party>, String> {
    let mut id = [0; 8];
    let _ = socket.set_read_timeout(PATIENCE);
    let flags = if matches!(socket, Socket::Bytes(_)) { RecvFlags::WAITALL } else { RecvFlags::empty() };
    match socket.recv_with_flags(&mut id, flags) {
        Ok(8) => {}
        Ok(0) => return Ok(None),
        Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(None),
        other => return Err(format!("a client's first eight bytes: {other:?}")),
    }
    socket.set_nonblocking(true).map_err(|e| format!("O_NONBLOCK: {e}"))?;
    let plan = Plan::of(run, u64::from_le_bytes(id));
    Ok(Some(Party::new(socket, None, plan, Side::Server)))
}

/// As `answer`, of a datagram socket that was announced to `reception`: another one that is connected to it.
pub fn answer_by_datagram(reception: &Datagram, names: &Names, run: u64) -> Result<Option<Party>, String> {
    let mut id = [0; 8];
    let (n, from) = match reception.recv_from_with_flags(&mut id, RecvFlags::DONTWAIT) {
        Ok(came) => came,
        Err(e) if e.would_block() => return Ok(None),
        Err(e) => return Err(format!("the reception of datagrams: {e}")),
    };
    let plan = Plan::of(run, u64::from_le_bytes(id));
    if n != 8 || plan.kind != Kind::Grams || from != names.of_gram(plan.id, Side::Client) {
        return Err(format!("{n} bytes of {from:?} came to the reception of datagrams"));
    }
    let greet = || {
        let socket = Datagram::bind_with(names.of_gram(plan.id, Side::Server), &config(Kind::Grams))?;
        socket.connect(from.clone())?;
        socket.send_with_flags(&id, SendFlags::empty())?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    match greet() {
        Ok(socket) => Ok(Some(Party::new(Socket::Grams(socket), Some(from.clone()), plan, Side::Server))),
        // It died before.
        Err(e) if onecopy::Error::kind(&e) == ErrorKind::ConnectionRefused => Ok(None),
        Err(e) => Err(format!("cannot connect to a datagram socket: {e}")),
    }
}

/// Keeps its connections until standard input ends; then closes all of them, and says what it did.
///
/// # Errors
///
/// What did not hold, or is left.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // The first sockets make what stays: the table of counters.
    drop(onecopy::unix::Stream::pair());
    drop(Listener::bind(SocketAddr::from_abstract_name(format!("{}-{}", args.base, args.generation))?)?);
    let (before, memory_before) = (Held::now(), Memory::now());
    let common = Arc::new(Common::new(false, false));
    common.post.expect(args.generation);
    let mut crowds = Vec::new();
    for n in 0..THREADS {
        let (sender, inbox) = mpsc::channel();
        let mine = args.clone();
        // Each thread has numbers of its own, and makes connections of every kind in turn.
        let mut index = (n as u32) << 24;
        let mut refill = move || {
            loop {
                index += 1;
                if let Some(party) = call(&mine, index)? {
                    return Ok(party);
                }
            }
        };
        let share = args.connections / THREADS + usize::from(n < args.connections % THREADS);
        let seed = args.run ^ u64::from(args.generation) << 8 ^ n as u64;
        let crowd_common = common.clone();
        crowds.push(thread::spawn(move || {
            for _ in 0..share {
                match refill() {
                    Ok(party) => drop(sender.send(party)),
                    Err(what) => return crowd_common.fail(what),
                }
            }
            Crowd::new(crowd_common, n, inbox, Some(Box::new(refill)), seed).run();
        }));
    }
    let told = common.clone();
    let _ends_with_the_process = thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            match line.parse() {
                Ok(line) => told.post.deliver(line),
                Err(what) => told.fail(what),
            }
        }
        // The survivor has ended, or says that it is over.
        let _ = told.stop.set(());
    });
    for crowd in crowds {
        if crowd.join().is_err() {
            common.fail("a thread panicked".into());
        }
    }
    if let Some(what) = common.wrong() {
        anyhow::bail!(what);
    }
    let mut after = Held::now();
    // The one that waits for the end of standard input may or may not be gone.
    after.threads = before.threads;
    anyhow::ensure!(before == after, "left in a worker: {before:?} became {after:?}");
    common.post.forget(args.generation);
    let memory = Memory::now().has_no_more_than(&memory_before);
    memory.map_err(|what| anyhow::anyhow!("left in a worker: {what}"))?;
    println!("{}", serde_json::to_string(&*lock(&common.tally))?);
    Ok(())
}
