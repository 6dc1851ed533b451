//! A sender in small: a file is read into pages once, and goes out in segments that refer to those pages, each behind a
//! header of its own. Some are lost (they are never written) and sent again from what the sender still holds. No byte of a
//! file is copied in user space.
//!
//! ```console
//! $ cargo run --release -p onecopy --example chain            # a file of its own making
//! $ cargo run --release -p onecopy --example chain -- FILE
//! ```

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use onecopy::advanced::chain::{Chain, Sum, Writer};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{PagePool, PoolConfig};

/// Payload bytes of a segment: no multiple of a page, so that most segments lie in two or more pages.
const SEGMENT: usize = 6000;

/// Bytes of a header: position, length, checksum.
const HEADER: usize = 8 + 4 + 2;

/// Every so many segments one is lost.
const LOST: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let pool = PagePool::new(PoolConfig::new(), Heap::new())?;
    let (socket, peer) = UnixStream::pair()?;

    // The file lies in pages, and the queue refers to them.
    let mut queue = Chain::new();
    let writer = Writer::new(&pool);
    match env::args_os().nth(1) {
        Some(path) => {
            let file = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            writer.read_from(&mut queue, file, 16 << 20)?;
        }
        None => {
            let sample = (0..500_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8);
            writer.append(&mut queue, &sample.collect::<Vec<u8>>())?;
        }
    }
    let total = queue.len();
    println!("{total} bytes in {} fragments, which hold {} bytes", queue.fragment_count(), queue.true_size());
    let expected = queue.host()?.sum(0, total)?;

    let receiver = thread::spawn(move || receive(peer, total));
    let (mut segments, mut again) = (0, Vec::new());
    for at in (0..total).step_by(SEGMENT) {
        let len = SEGMENT.min(total - at);
        if segments % LOST == LOST - 1 {
            again.push((at, len));
        } else {
            send(&socket, &writer, &queue, at, len)?;
        }
        segments += 1;
    }
    // What the sender still holds it can send again: (chain, offset, length) is all it has to remember.
    for (at, len) in &again {
        send(&socket, &writer, &queue, *at, *len)?;
    }
    drop(socket);
    let received = receiver.join().expect("the receiver does not panic")?;

    // Acknowledged: the pages go home.
    queue.advance(total)?;
    let stats = pool.stats();
    let held = stats.in_flight - stats.in_cache - stats.in_ring;
    if Sum::of(&received) != expected || held != 0 {
        return Err(format!("received {} bytes, {held} pages are still held", received.len()).into());
    }
    println!(
        "{segments} segments arrived as they were, {} of them at the second try; every page is home",
        again.len()
    );
    Ok(())
}

/// Sends `len` bytes of the queue from byte `at` on, behind a header.
fn send(
    socket: &UnixStream,
    writer: &Writer<'_>,
    queue: &Chain,
    at: usize,
    len: usize,
) -> Result<(), Box<dyn Error>> {
    let mut segment = queue.range(at, len)?; // by reference
    let sum = segment.host()?.sum(0, len)?;
    let mut header = Vec::with_capacity(HEADER);
    header.extend((at as u64).to_be_bytes());
    header.extend((len as u32).to_be_bytes());
    header.extend(sum.checksum().to_be_bytes());
    writer.push_header(&mut segment, &header)?; // a page of its own: the queue holds the payload's
    while !segment.is_empty() {
        // As `segment.write_to(socket)` does; spelled out, for whoever has something else that takes iovecs.
        let mut entries = [IoSlice::new(&[]); 16];
        let count = segment.host()?.gather(0, &mut entries)?;
        let n = (&mut &*socket).write_vectored(&entries[..count])?;
        segment.advance(n)?;
    }
    Ok(())
}

/// Puts segments where they belong, in whatever order they come.
fn receive(mut socket: UnixStream, total: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; total];
    let mut missing = total;
    while missing > 0 {
        let mut header = [0; HEADER];
        socket.read_exact(&mut header)?;
        let (at, rest) = header.split_at(8);
        let (len, checksum) = rest.split_at(4);
        let at = u64::from_be_bytes(at.try_into().expect("8 bytes")) as usize;
        let len = u32::from_be_bytes(len.try_into().expect("4 bytes")) as usize;
        let place = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..len));
        let place = place.ok_or_else(|| io::Error::other("a segment outside of the file"))?;
        socket.read_exact(place)?;
        if Sum::of(place).checksum().to_be_bytes() != checksum {
            return Err(io::Error::other("a segment is broken"));
        }
        missing -= len;
    }
    Ok(bytes)
}
