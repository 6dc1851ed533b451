//! A process that connects, and may be killed at any moment.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use onecopy::unix::{Listener, Name, RecvFlags, SendFlags, SeqPacket, Stream};

use crate::crowd::{Common, Crowd, lock};
use crate::held::Held;
use crate::party::{Party, Socket};
use crate::plan::{Plan, Side};

/// How a worker is started.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Abstract name of the stream listener
    pub streams: String,
    /// Path of the seqpacket listener
    pub records: PathBuf,
    /// Seed of the run
    pub run: u64,
    /// Which of all workers this is
    pub generation: u32,
    /// Connections to keep
    pub connections: usize,
}

/// Threads that serve connections in each process.
pub const THREADS: usize = 2;

/// Connects and says which connection it is.
fn call(args: &Args, index: u32) -> Result<Party, String> {
    let id = u64::from(args.generation) << 32 | u64::from(index);
    // A refused one comes with a full backlog or a survivor that ends: tried for a while.
    let until = Instant::now() + Duration::from_secs(10);
    let records = index % 2 == 1;
    let plan = Plan::of(args.run, id, records);
    let config = plan.config();
    loop {
        let socket = if records {
            SeqPacket::connect_with(Name::path(&args.records), &config).map(Socket::Records)
        } else {
            Stream::connect_with(Name::abstract_(&args.streams), &config).map(Socket::Stream)
        };
        let error = match socket {
            Ok(socket) => {
                let said = match &socket {
                    Socket::Stream(s) => s.send(&id.to_le_bytes(), SendFlags::NOSIGNAL),
                    Socket::Records(s) => s.send(&id.to_le_bytes(), SendFlags::NOSIGNAL),
                };
                match said {
                    Ok(8) => {}
                    other => return Err(format!("the first eight bytes: {other:?}")),
                }
                let nonblocking = match &socket {
                    Socket::Stream(s) => s.set_nonblocking(true),
                    Socket::Records(s) => s.set_nonblocking(true),
                };
                nonblocking.map_err(|e| format!("O_NONBLOCK: {e}"))?;
                return Ok(Party::new(socket, plan, Side::Client));
            }
            Err(e) => e,
        };
        if !error.would_block() || Instant::now() > until {
            return Err(format!("cannot connect: {error}"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// The server's end of a connection whose client says which it is; none where it died before it did.
pub fn answer(socket: Socket, run: u64) -> Result<Option<Party>, String> {
    let mut id = [0; 8];
    let patience = Some(Duration::from_secs(20));
    let got = match &socket {
        Socket::Stream(s) => {
            let _ = s.set_read_timeout(patience);
            s.recv(&mut id, RecvFlags::WAITALL)
        }
        Socket::Records(s) => {
            let _ = s.set_read_timeout(patience);
            s.recv(&mut id, RecvFlags::empty())
        }
    };
    match got {
        Ok(8) => {}
        Ok(0) => return Ok(None),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
        other => return Err(format!("a client's first eight bytes: {other:?}")),
    }
    let nonblocking = match &socket {
        Socket::Stream(s) => s.set_nonblocking(true),
        Socket::Records(s) => s.set_nonblocking(true),
    };
    nonblocking.map_err(|e| format!("O_NONBLOCK: {e}"))?;
    let records = matches!(socket, Socket::Records(_));
    let plan = Plan::of(run, u64::from_le_bytes(id), records);
    Ok(Some(Party::new(socket, plan, Side::Server)))
}

/// Keeps its connections until standard input ends; then closes all of them, and says what it did.
///
/// # Errors
///
/// What did not hold, or is left.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // The first sockets make what stays: the table of counters.
    drop(onecopy::unix::Stream::pair());
    drop(Listener::bind(Name::abstract_(format!("{}-{}", args.streams, args.generation)))?);
    let before = Held::now();
    let common = Arc::new(Common::new(false));
    let mut crowds = Vec::new();
    for n in 0..THREADS {
        let (sender, inbox) = mpsc::channel();
        let mine = args.clone();
        // Each thread has numbers of its own, and connects to both listeners in turn.
        let mut index = (n as u32) << 24;
        let mut refill = move || {
            index += 1;
            call(&mine, index)
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
    println!("{}", serde_json::to_string(&*lock(&common.tally))?);
    Ok(())
}
