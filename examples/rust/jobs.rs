//! A queue of jobs over a seqpacket socket: each job is one record, workers share one end, and what a job is stays whole.
//!
//! ```console
//! $ cargo run -p onecopy --example jobs
//! ```

use std::error::Error;
use std::net::Shutdown;
use std::thread;

use onecopy::RecvFlags;
use onecopy::unix::{SeqListener, SeqPacket, SocketAddr};

const JOBS: u32 = 10_000;
const WORKERS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let name = SocketAddr::from_abstract_name(format!("onecopy-jobs-{}", std::process::id()))?;
    let listener = SeqListener::bind(&name)?;
    let master = thread::spawn(move || -> onecopy::Result<(u64, usize)> {
        let (queue, _) = listener.accept()?;
        // Sends of several threads never interleave; these are of one, which also collects the answers.
        let (mut sum, mut answers) = (0, 0);
        let mut answer = [0; 8];
        for job in 0..JOBS {
            queue.send(format!("square {job}").as_bytes())?;
            while let Ok(8) = queue.recv_with_flags(&mut answer, RecvFlags::DONTWAIT) {
                (sum, answers) = (sum + u64::from_le_bytes(answer), answers + 1);
            }
        }
        queue.shutdown(Shutdown::Write)?;
        while answers < JOBS as usize && queue.recv(&mut answer)? == 8 {
            (sum, answers) = (sum + u64::from_le_bytes(answer), answers + 1);
        }
        Ok((sum, answers))
    });
    let queue = SeqPacket::connect(&name)?;
    thread::scope(|s| {
        let workers: Vec<_> = (0..WORKERS).map(|_| s.spawn(|| work(&queue))).collect();
        for (i, worker) in workers.into_iter().enumerate() {
            println!("worker {i} did {} jobs", worker.join().expect("a worker does not panic")?);
        }
        onecopy::Result::Ok(())
    })?;
    let (sum, answers) = master.join().expect("the master does not panic")?;
    println!("{answers} answers, {sum} in all, over {:?}", queue.path().receive);
    let right = (0..u64::from(JOBS)).map(|n| n * n).sum::<u64>();
    if sum == right { Ok(()) } else { Err(format!("{sum} is not {right}").into()) }
}

/// Does jobs until there are no more.
fn work(queue: &SeqPacket) -> onecopy::Result<u32> {
    let mut buffer = [0; 64];
    let mut done = 0;
    loop {
        let job = queue.recv_record(&mut buffer)?;
        if job.is_end() {
            return Ok(done);
        }
        let text = String::from_utf8_lossy(&buffer[..job.len]);
        let n: u64 = text.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        queue.send(&(n * n).to_le_bytes())?;
        done += 1;
    }
}
