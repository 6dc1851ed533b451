//! Batches of any size from one process to another, without a copy between them: the publisher fills pages of a shared pool,
//! the subscriber passes them on from where they lie, and each batch is told to be over once the last page of it is home.
//!
//! ```console
//! $ cargo run -p onecopy --example publish                         # both, one beside the other
//! $ cargo run -p onecopy --example publish -- subscribe unix:/tmp/batches.sock   # or each in a terminal of its own
//! $ cargo run -p onecopy --example publish -- publish unix:/tmp/batches.sock
//! ```

use std::env;
use std::error::Error;
use std::fs::File;
use std::thread;
use std::time::Duration;

use onecopy::advanced::chain::Chain;
use onecopy::advanced::notify::{Config, Context, Segment};
use onecopy::unix::{Listener, SharedPool, SocketAddr, Stream};

const PAGE: usize = 64 << 10;
const PAGES: usize = 64;
const BATCH: usize = 1_000_000;
const BATCHES: u64 = 200;
const SECOND: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => {
            let name = SocketAddr::from_abstract_name(format!("onecopy-publish-{}", std::process::id()))?;
            let listener = Listener::bind(&name)?;
            let subscriber = thread::spawn(move || subscribe(&listener).map_err(|error| error.to_string()));
            publish(&name)?;
            Ok(subscriber.join().expect("the subscriber does not panic")?)
        }
        ["subscribe", name] => subscribe(&Listener::bind(name.parse::<SocketAddr>()?)?),
        ["publish", name] => publish(&name.parse()?),
        _ => {
            Err("usage: publish [subscribe NAME | publish NAME], with a NAME such as unix:/tmp/batches.sock"
                .into())
        }
    }
}

fn publish(name: &SocketAddr) -> Result<(), Box<dyn Error>> {
    let stream = Stream::connect(name)?;
    // The subscriber's first byte: from here on both know that the other one shares memory.
    stream.recv_with_flags(&mut [0], Default::default())?;
    let pool = SharedPool::new(PAGE, PAGES)?;
    // Who wants to know when a batch is over has a lane; without one, a chain is sent as it is.
    let (context, mut over) = Context::new();
    let mut lane = context.lane(Config::default())?;
    let source = File::open("/dev/zero")?;
    let (mut told, mut copied) = (0, 0);
    for number in 0..BATCHES {
        let mut batch = Chain::new();
        while batch.len() < BATCH {
            // The kernel's copy, straight to where the subscriber will use it.
            let left = BATCH - batch.len();
            if pool.writer().read_from(&mut batch, &source, left).is_err() {
                // All pages are with the subscriber.
                pool.reclaim_within(SECOND)?;
            }
        }
        let mut batch = Segment::from(batch);
        lane.send_there(&mut batch, number, 0)?;
        stream.send_chain(batch)?;
        over.reap(|done| {
            told += 1;
            copied += u64::from(done.how.copied);
        });
    }
    while told < BATCHES && pool.lent() > 0 {
        pool.reclaim_within(SECOND)?;
        told += over.reap(|done| copied += u64::from(done.how.copied)) as u64;
    }
    let stats = stream.stats();
    println!("published {told} batches, {} bytes by reference; {copied} were copied", stats.referenced);
    Ok(())
}

fn subscribe(listener: &Listener) -> Result<(), Box<dyn Error>> {
    let (stream, _) = listener.accept()?;
    stream.send_with_flags(b"!", Default::default())?;
    let out = File::options().write(true).open("/dev/null")?;
    let mut seen = 0;
    loop {
        let mut batch = stream.recv_chain(BATCH)?;
        if batch.is_empty() {
            break;
        }
        while !batch.is_empty() {
            // From where it lies. (To look at bytes: `batch.peer()?.copy_to(...)`, since the publisher could still write.)
            let n = batch.write_to(&out)?;
            seen += n;
            // Each page goes back as soon as it is passed.
            batch.advance(n)?;
        }
    }
    println!("saw {seen} bytes, copied {}", stream.stats().user_copied());
    Ok(())
}
