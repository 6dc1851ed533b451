//! The echo server and many clients at once, in one thread, with mio's Poll.
//!
//! ```console
//! $ cargo run -p onecopy --features mio --example mio_echo             # 100 clients
//! $ cargo run -p onecopy --features mio --example mio_echo -- 1000
//! ```

use std::env;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

use mio::{Events, Interest, Poll, Token};
use onecopy::unix::SocketAddr;
use onecopy::unix::mio::{Listener, Stream};

/// Bytes that each client sends: more than fits any buffer, so that both directions have to flow at once.
const BYTES: usize = 1 << 20;
const LISTENER: Token = Token(0);
const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// One end of a connection.
enum End {
    /// The server's, with what it has received and not sent back yet.
    Server(Stream, Vec<u8>),
    /// A client's, with what it sends, how much of that it has sent, and what came back.
    Client(Stream, Vec<u8>, usize, Vec<u8>),
}

fn main() -> Result<(), Box<dyn Error>> {
    let clients: u32 = env::args().nth(1).map_or(Ok(100), |count| count.parse())?;
    let name = SocketAddr::from_abstract_name(format!("onecopy-mio-echo-{}", std::process::id()))?;
    let mut listener = Listener::bind(&name)?;
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(256));
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;

    let mut ends = Vec::new();
    for seed in 0..clients {
        let mut stream = Stream::connect(&name)?;
        poll.registry().register(&mut stream, Token(1 + ends.len()), BOTH)?;
        let sent = (0..BYTES as u32).map(|n| ((n ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8);
        ends.push(Some(End::Client(stream, sent.collect(), 0, Vec::new())));
    }
    let mut left = 2 * clients;
    while left > 0 {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                // An event is told once: go on until there is nothing more.
                while let Some((mut stream, _)) = unless_blocked(listener.accept())? {
                    poll.registry().register(&mut stream, Token(1 + ends.len()), BOTH)?;
                    ends.push(Some(End::Server(stream, Vec::new())));
                }
            } else if let Some(end) = &mut ends[event.token().0 - 1]
                && end.go_on()?
            {
                ends[event.token().0 - 1] = None;
                left -= 1;
            }
        }
    }
    println!("{clients} clients got back the {BYTES} bytes that each of them sent");
    Ok(())
}

/// Returns None where the call would have to wait.
fn unless_blocked<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        done => done.map(Some),
    }
}

impl End {
    /// Sends and receives until both would have to wait. Returns whether all is done.
    fn go_on(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 16 << 10];
        match self {
            End::Server(stream, held) => loop {
                while !held.is_empty() {
                    let Some(n) = unless_blocked(stream.write(held))? else { return Ok(false) };
                    held.drain(..n);
                }
                match unless_blocked(stream.read(&mut buffer))? {
                    None => return Ok(false),
                    Some(0) => return Ok(true),
                    Some(n) => held.extend_from_slice(&buffer[..n]),
                }
            },
            End::Client(stream, bytes, sent, back) => loop {
                let mut blocked = true;
                if *sent < bytes.len()
                    && let Some(n) = unless_blocked(stream.write(&bytes[*sent..]))?
                {
                    blocked = false;
                    *sent += n;
                    if *sent == bytes.len() {
                        stream.shutdown(Shutdown::Write)?;
                    }
                }
                match unless_blocked(stream.read(&mut buffer))? {
                    Some(0) if back == bytes => return Ok(true),
                    Some(0) => return Err(io::Error::other("a client got back something else")),
                    Some(n) => back.extend_from_slice(&buffer[..n]),
                    None if blocked => return Ok(false),
                    None => {}
                }
            },
        }
    }
}
