//! A stack in a program's own poll loop: no thread of the stack's, no runtime, one poll(2) for all that the program waits for.
//!
//! The server polls its stack's descriptor beside those of its sockets, and drives the stack when that one is readable. Its client is
//! another stack in another thread, whose calls wait.
//!
//! ```console
//! $ cargo run -p onecopy --example own_loop             # 4 clients, one after the other, of 1 MiB each
//! $ cargo run -p onecopy --example own_loop -- 100
//! ```

use std::collections::VecDeque;
use std::env;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

use onecopy::advanced::link::Tap;
use onecopy::tcp::{Listener, Stream};
use onecopy::{Driver, Stack};
use rustix::event::{PollFd, PollFlags, poll};

type Done<R = ()> = Result<R, Box<dyn Error + Send + Sync>>;

/// Bytes that each client sends, and gets back.
const BYTES: usize = 1 << 20;
/// Bytes that the server keeps of one that does not receive.
const MOST: usize = 256 << 10;

fn main() -> Done {
    let clients: u32 = env::args().nth(1).map_or(Ok(4), |clients| clients.parse())?;
    let (a, b) = Tap::cable(1500)?;
    let server = Stack::builder().link(a).address("10.0.0.1/24").driver(Driver::Caller).build()?;
    let listener = Listener::bind(&server, "10.0.0.1:0".parse()?)?;
    let to = listener.local_addr()?;
    let calling = thread::spawn(move || -> Done {
        let stack = Stack::builder().link(b).address("10.0.0.2/24").build()?;
        (0..clients).try_for_each(|seed| call(&stack, to, seed))
    });
    let polls = serve(server, listener, clients)?;
    calling.join().map_err(|_| "a client panicked")??;
    println!(
        "{clients} clients got back the {BYTES} bytes that each of them sent; the server called poll {polls} times"
    );
    Ok(())
}

/// What is echoed on one connection.
struct Echo {
    stream: Stream,
    /// Received, and not sent yet.
    waits: VecDeque<u8>,
    ended: bool,
}

impl Echo {
    /// What it waits for.
    fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, !self.ended && self.waits.len() < MOST);
        events.set(PollFlags::OUT, !self.waits.is_empty());
        events
    }

    /// Does what can be done without waiting. Returns whether it is over.
    fn go_on(&mut self) -> Done<bool> {
        let mut buffer = [0; 64 << 10];
        while !self.ended && self.waits.len() < MOST {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(n) => self.waits.extend(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        while !self.waits.is_empty() {
            match self.stream.write(self.waits.as_slices().0) {
                Ok(n) => drop(self.waits.drain(..n)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.ended && self.waits.is_empty())
    }
}

/// Serves so many clients, and drops the stack: whoever drops the last handle waits until the last bytes have arrived ([`Stack`]). Returns how
/// often it slept.
fn serve(stack: Stack, listener: Listener, clients: u32) -> Done<u64> {
    listener.set_nonblocking(true)?;
    let (mut left, mut polls) = (clients, 0);
    let mut echoes: Vec<Echo> = Vec::new();
    while left > 0 {
        let mut fds = vec![
            PollFd::from_borrowed_fd(stack.poll_fd()?, PollFlags::IN),
            PollFd::from_borrowed_fd(listener.poll_fd()?, PollFlags::IN),
        ];
        for echo in &echoes {
            fds.push(PollFd::from_borrowed_fd(echo.stream.poll_fd()?, echo.events()));
        }
        // (All that the program waits for besides may be among them.)
        poll(&mut fds, None)?;
        polls += 1;
        if !fds[0].revents().is_empty() {
            // Packets, or a timer: the sockets' descriptors tell of what comes of it.
            while stack.drive(Duration::ZERO)? {}
        }
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                echoes.push(Echo { stream, waits: VecDeque::new(), ended: false });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let mut at = 0;
        while at < echoes.len() {
            if echoes[at].go_on()? {
                echoes.swap_remove(at).stream.shutdown(Shutdown::Write)?;
                left -= 1;
            } else {
                at += 1;
            }
        }
    }
    Ok(polls)
}

/// Sends, and looks whether the same comes back.
fn call(stack: &Stack, to: SocketAddr, seed: u32) -> Done {
    let sent: Vec<u8> =
        (0..BYTES as u32).map(|n| ((n ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut stream = Stream::connect(stack, to)?;
    let mut reader = stream.try_clone()?;
    let reading = thread::spawn(move || -> io::Result<Vec<u8>> {
        let mut back = Vec::new();
        reader.read_to_end(&mut back)?;
        Ok(back)
    });
    stream.write_all(&sent)?;
    stream.shutdown(Shutdown::Write)?;
    let back = reading.join().map_err(|_| "the reader panicked")??;
    if back != sent {
        return Err(format!("client {seed} got back something else").into());
    }
    Ok(())
}
