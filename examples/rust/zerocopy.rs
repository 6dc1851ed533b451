//! Sending without a copy: a buffer is given to a send, and comes back when its last byte has left.
//!
//! Records are read into pages of a pool, each page is sent by reference, and is read into again once it is back: the
//! buffers go round, and nobody writes into one that is still under way, because nobody has it.
//!
//! ```console
//! $ cargo run --release -p onecopy --example zerocopy
//! ```

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use onecopy::advanced::link::{Link, Packet, Sink};
use onecopy::advanced::notify::{Config, Lender, Loan, Segment};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{Page, PagePool, PoolConfig};

/// Records to send, pages to send them from, and records on a segment.
const RECORDS: usize = 1000;
const PAGES: usize = 16;
const STACKED: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let pool = PagePool::new(PoolConfig::new(), Heap::new())?;
    let mut idle = (0..PAGES).map(|_| pool.alloc()).collect::<Result<Vec<Page>, _>>()?;

    // The other end of the road: a thread that transmits segments, and so frees them.
    let (road, segments) = channel();
    let link = thread::spawn(move || drive(segments));

    let mut lender = Lender::new(Config::default())?;
    let mut lent: Vec<Loan<Page>> = Vec::new();
    let mut segment = Segment::default();
    for record in 0..RECORDS {
        if idle.is_empty() {
            // The oldest comes back first: completions are in order. (No runtime: `wait` is a plain call.)
            for loan in lent.drain(..PAGES / 2) {
                let (page, how) = loan.wait();
                assert!(page.is_unique() && !how.copied && !how.dropped);
                idle.push(page);
            }
        }
        let Some(mut page) = idle.pop() else { return Err("every page is under way".into()) };
        page.bytes_mut().ok_or("a page that came back is ours alone")?.fill(record as u8);
        lent.push(lender.send(&mut segment, page, 0)?);
        if record % STACKED == STACKED - 1 {
            road.send(std::mem::take(&mut segment))?;
        }
    }
    if !segment.payload().is_empty() {
        road.send(segment)?;
    }

    // A loan is a future as well; any executor does, this one parks the thread.
    let count = lent.len();
    for loan in lent {
        let (page, _) = block_on(loan);
        idle.push(page);
    }
    drop(road);
    let sunk = link.join().expect("the link does not panic")?;
    println!("{RECORDS} records left in {} segments; the last {count} pages were awaited", sunk.segments);
    if (idle.len(), sunk.bytes) != (PAGES, (RECORDS * idle[0].len()) as u64) {
        return Err(format!("{} of {PAGES} pages came back, {} bytes left", idle.len(), sunk.bytes).into());
    }
    Ok(())
}

/// Transmits what comes, a little later.
fn drive(
    segments: Receiver<Segment<onecopy::advanced::chain::Chain>>,
) -> Result<onecopy::advanced::link::Sunk, String> {
    let mut sink = Sink::new();
    for (n, segment) in segments.into_iter().enumerate() {
        if n % 50 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        let bytes = segment.payload().host().map_err(|error| error.to_string())?.to_vec();
        // Whole records: nobody wrote into a page that was under way.
        for record in bytes.chunks(bytes.len().div_ceil(STACKED).max(1)) {
            if record.iter().any(|byte| *byte != record[0]) {
                return Err(format!("a record of segment {n} changed under way"));
            }
        }
        sink.transmit(0, Packet::from(segment));
    }
    Ok(sink.sunk())
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
