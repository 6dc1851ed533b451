//! Giving memory away to TCP: pages are sent from where they lie, and come back once the peer has acknowledged them.
//!
//! Two stacks of this process on one cable, so it needs neither root nor a network. The pages go round: each is filled again as soon as it is back.
//!
//! ```console
//! $ cargo run --release -p onecopy --example give
//! ```

use onecopy::advanced::chain::{Chain, Fragment};
use onecopy::advanced::link::Tap;
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{PagePool, PoolConfig};
use onecopy::zerocopy::{Allowance, Sent, Small};
use onecopy::{Stack, tcp};
use std::collections::VecDeque;
use std::error::Error;
use std::io::Read;
use std::thread;

/// Blocks to send, pages of a block, and blocks that may be under way.
const BLOCKS: u8 = 200;
const PAGES: usize = 16;
const UNDER_WAY: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let (here, there) = Tap::cable(9000)?;
    // Nothing is copied for its size: this is to show that the same pages come back.
    let allowance = Allowance { small: Small::Below(0), ..Allowance::default() };
    let here = Stack::builder().link(here).address("10.0.0.1/24").zerocopy(allowance).build()?;
    let there = Stack::builder().link(there).address("10.0.0.2/24").build()?;

    let listener = tcp::Listener::bind(&there, "10.0.0.2:9000".parse()?)?;
    let reader = thread::spawn(move || -> std::io::Result<usize> {
        let (mut stream, _) = listener.accept()?;
        let mut block = vec![0; PAGES * 4096];
        let mut good = 0;
        for number in 0..BLOCKS {
            stream.read_exact(&mut block)?;
            good += usize::from(block.iter().all(|byte| *byte == number));
        }
        Ok(good)
    });

    let stream = tcp::Stream::connect(&here, "10.0.0.2:9000".parse()?)?;
    let pool = PagePool::new(PoolConfig::new().limit((UNDER_WAY * PAGES) as u32), Heap::new())?;
    let mut under_way: VecDeque<Sent> = VecDeque::new();
    let mut copied = 0;
    for number in 0..BLOCKS {
        if under_way.len() == UNDER_WAY
            && let Some(sent) = under_way.pop_front()
        {
            // Ours again; dropping the chain gives its pages to the pool, which has no others.
            let (_chain, how) = sent.wait();
            copied += usize::from(how.copied);
        }
        let mut chain = Chain::new();
        for _ in 0..PAGES {
            let mut page = pool.alloc()?;
            page.bytes_mut().ok_or("a fresh page is ours alone")?.fill(number);
            chain.append(Fragment::new(page, 0, 4096)?)?;
        }
        under_way.push_back(stream.send_zerocopy(chain)?);
    }
    for sent in under_way {
        copied += usize::from(sent.wait().1.copied);
    }
    let good = reader.join().map_err(|_| "the reader panicked")??;
    let stats = stream.stats();
    println!(
        "{good} blocks of {BLOCKS} arrived; the link copied {copied} of them in the kernel, this program copied {} bytes",
        stats.user_copied_in
    );
    if good != BLOCKS as usize || copied != BLOCKS as usize || stats.user_copied_in != 0 {
        return Err("not each block arrived by reference".into());
    }
    Ok(())
}
