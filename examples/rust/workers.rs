//! A pool of threads that accept from one listener: whoever is free takes the next client. The kernel hands each
//! connection to one of them, so they need no lock and no thread that shares them out.
//!
//! ```console
//! $ cargo run -p onecopy --example workers            # 4 workers, 200 jobs
//! $ cargo run -p onecopy --example workers -- 8 1000
//! ```

use std::env;
use std::error::Error;
use std::io::{self, Read, Write};
use std::thread;

use onecopy::unix::{Listener, SocketAddr, Stream};

/// Threads that send the jobs.
const CLIENTS: u64 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let number = |n: usize, default: u64| env::args().nth(n).map_or(Ok(default), |text| text.parse());
    let (workers, jobs) = (number(1, 4)?, number(2, 200)?);
    if workers == 0 {
        return Err("no worker would do any job".into());
    }
    let name = SocketAddr::from_abstract_name(format!("onecopy-workers-{}", std::process::id()))?;
    let listener = Listener::bind(&name)?;
    let done = thread::scope(|scope| -> Result<Vec<u64>, Box<dyn Error>> {
        let pool: Vec<_> = (0..workers).map(|_| scope.spawn(|| work(&listener))).collect();
        let name = &name;
        let order = |first| scope.spawn(move || order(name, first, jobs));
        let clients: Vec<_> = (0..CLIENTS).map(order).collect();
        let answered = clients.into_iter().try_for_each(|c| c.join().expect("no client panics"));
        // Wakes those who wait for one more client; also after an error, or they would wait for ever.
        listener.shutdown()?;
        let done = pool.into_iter().map(|w| w.join().expect("no worker panics")).collect::<io::Result<_>>();
        answered?;
        Ok(done?)
    })?;
    let total: u64 = done.iter().sum();
    if total != jobs {
        return Err(format!("{jobs} jobs were sent and {total} were done").into());
    }
    println!("{jobs} jobs, each done once, by workers that took {done:?}");
    Ok(())
}

/// Takes clients until the listener is shut down. How many it took.
fn work(listener: &Listener) -> io::Result<u64> {
    for taken in 0.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // EINVAL: nobody will come any more (accept(2)).
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(taken),
            Err(error) => return Err(error.into()),
        };
        serve(stream)?;
    }
    unreachable!("nobody counts that far")
}

/// A job is a number, little-endian; its answer the sum of the squares up to it.
fn serve(mut stream: Stream) -> io::Result<()> {
    let mut job = [0; 8];
    stream.read_exact(&mut job)?;
    let answer: u64 = (1..=u64::from_le_bytes(job)).map(|n| n * n).sum();
    stream.write_all(&answer.to_le_bytes())
}

/// Sends every `CLIENTS`-th job from `first` on, each on a connection of its own, and checks the answers.
fn order(name: &SocketAddr, first: u64, jobs: u64) -> io::Result<()> {
    for n in (first..jobs).step_by(CLIENTS as usize) {
        let mut stream = Stream::connect(name)?;
        stream.write_all(&n.to_le_bytes())?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        if u64::from_le_bytes(answer) != n * (n + 1) * (2 * n + 1) / 6 {
            return Err(io::Error::other(format!("the answer to {n} is wrong")));
        }
    }
    Ok(())
}
