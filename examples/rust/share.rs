//! One socket in several programs: a queue of jobs is shared with workers that are no children by fork, each of which takes
//! jobs from it and answers on it. What each sends stays whole, and each job is done once. (The workers are this program
//! again, and one of them ends in the middle.)
//!
//! ```console
//! $ cargo run -p onecopy --example share
//! ```

use std::env;
use std::error::Error;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::process::Command;

use onecopy::RecvFlags;
use onecopy::unix::{Config, Listener, SeqPacket, SocketAddr, Stream};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const WORKERS: usize = 3;
const JOBS: u32 = 5_000;
/// What the first worker does before it leaves.
const FEW: usize = 500;

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(name), Some(id)) => work(&name, id.parse()?),
        _ => master(),
    }
}

fn master() -> Result<()> {
    let name = format!("onecopy-share-{}", std::process::id());
    let listener = Listener::bind(SocketAddr::from_abstract_name(&name)?)?;
    // `passable` keeps descriptors of the socket's memory, of which others will need copies.
    let (jobs, queue) = SeqPacket::pair_with(&Config { passable: true, ..Config::default() })?;
    let mut workers = Vec::new();
    for id in 0..WORKERS {
        let child = Command::new(env::current_exe()?).args([&name, &id.to_string()]).spawn()?;
        let (to, _) = listener.accept()?;
        // A list for each of them; this process goes on holding the queue.
        let fds = queue.share_fds()?;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        to.send_fds(b"!", &fds)?;
        // It is there.
        to.recv(&mut [0; 1])?;
        workers.push(child);
    }
    let (mut sum, mut answers) = (0, 0);
    let mut answer = [0; 8];
    for job in 0..JOBS {
        jobs.send(&job.to_le_bytes())?;
        while let Ok(8) = jobs.recv_with_flags(&mut answer, RecvFlags::DONTWAIT) {
            (sum, answers) = (sum + u64::from_le_bytes(answer), answers + 1);
        }
    }
    jobs.shutdown(Shutdown::Write)?;
    // From here on the workers alone have it, so its end comes when they are gone.
    drop(queue);
    while jobs.recv(&mut answer)? == 8 {
        (sum, answers) = (sum + u64::from_le_bytes(answer), answers + 1);
    }
    for mut worker in workers {
        if !worker.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    let right = (0..u64::from(JOBS)).map(|job| job * job).sum::<u64>();
    if (sum, answers) != (right, JOBS) {
        return Err(format!("{answers} answers of {JOBS}, {sum} in all where {right} is right").into());
    }
    println!("{JOBS} jobs, each done once, {:?}", jobs.path().receive);
    Ok(())
}

/// One of the others.
fn work(name: &str, id: usize) -> Result<()> {
    let to = Stream::connect(SocketAddr::from_abstract_name(name)?)?;
    let (_, with) = to.recv_fds(&mut [0; 1])?;
    let queue = SeqPacket::from_fds(with.fds)?;
    to.send(b"!")?;
    let (mut done, mut job) = (0, [0; 4]);
    // The first one has no more time: those who are left do its work.
    while (id > 0 || done < FEW) && queue.recv(&mut job)? == 4 {
        let job = u64::from(u32::from_le_bytes(job));
        queue.send(&(job * job).to_le_bytes())?;
        done += 1;
    }
    println!("worker {id} did {done} jobs");
    Ok(())
}
