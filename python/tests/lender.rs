//! A peer for the package's tests, which no Python program can be: it lends pages, and sends them by reference.
//!
//! `lender unix:/path FRAMES` connects, waits for a byte, and sends so many pages, each full of its number, out of three. It ends well when all of them have come
//! home.

use std::env;
use std::error::Error;
use std::time::Duration;

use onecopy::unix::{SharedPool, SocketAddr, Stream};

const FRAME: usize = 64 << 10;
const PAGES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [name, frames] = &args[..] else { return Err("usage: lender unix:/path FRAMES".into()) };
    let stream = Stream::connect(name.parse::<SocketAddr>()?)?;
    // From the peer's first byte on both know that the other one shares memory.
    stream.recv(&mut [0])?;
    let pool = SharedPool::new(FRAME, PAGES)?;
    for number in 0..frames.parse()? {
        let mut frame = pool.loan_within(FRAME, PATIENCE)?;
        frame.fill(number);
        stream.send_loan(frame)?;
    }
    let mut home = Vec::new();
    for _ in 0..PAGES {
        home.push(pool.loan_within(FRAME, PATIENCE)?);
    }
    let copied = stream.stats().user_copied();
    if copied > 0 { Err(format!("{copied} bytes were copied, not lent").into()) } else { Ok(()) }
}
