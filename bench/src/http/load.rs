//! HTTP clients that keep their connections: each a blocking thread that asks, reads the whole answer and asks again.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use rustls::{ClientConnection, StreamOwned};

use super::servers::PATIENCE;
use super::tls::Certificate;

/// Bytes that a client takes from its socket at once.
const READ: usize = 256 << 10;

/// One kept connection.
#[derive(Debug)]
pub struct Client {
    way: Way,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Way {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Client {
    /// Connects, with `tls` where there is one.
    pub fn connect(address: SocketAddr, tls: Option<&Certificate>) -> Result<Client> {
        let tcp = TcpStream::connect_timeout(&address, PATIENCE)
            .with_context(|| format!("connecting to {address}"))?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_nodelay(true)?;
        let way = match tls {
            None => Way::Plain(tcp),
            Some(tls) => {
                let session = ClientConnection::new(tls.client.clone(), "localhost".try_into()?)?;
                Way::Tls(Box::new(StreamOwned::new(session, tcp)))
            }
        };
        Ok(Client { way, buffer: vec![0; READ] })
    }

    /// Asks for `path` and gives each piece of the body to `sink`. Returns the body's length.
    pub fn get(&mut self, path: &str, mut sink: impl FnMut(&[u8])) -> Result<u64> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
        match &mut self.way {
            Way::Plain(tcp) => tcp.write_all(request.as_bytes())?,
            Way::Tls(stream) => stream.write_all(request.as_bytes())?,
        }
        let mut have = 0;
        let (head, length) = loop {
            have += self.read(have)?;
            if let Some(end) = self.buffer[..have].windows(4).position(|w| w == b"\r\n\r\n") {
                break (end + 4, length(&self.buffer[..end])?);
            }
            ensure!(have < READ, "the head does not end");
        };
        sink(&self.buffer[head..have]);
        let mut got = (have - head) as u64;
        while got < length {
            let n = self.read(0)?;
            sink(&self.buffer[..n]);
            got += n as u64;
        }
        ensure!(got == length, "{path}: {got} bytes came instead of {length}");
        Ok(length)
    }

    fn read(&mut self, at: usize) -> Result<usize> {
        loop {
            let room = &mut self.buffer[at..];
            let got = match &mut self.way {
                Way::Plain(tcp) => tcp.read(room),
                Way::Tls(stream) => stream.read(room),
            };
            match got {
                Ok(0) => bail!("the server closed the connection in the middle of an answer"),
                Ok(n) => return Ok(n),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("reading an answer"),
            }
        }
    }
}

fn length(head: &[u8]) -> Result<u64> {
    let head = std::str::from_utf8(head)?;
    ensure!(head.get(9..12) == Some("200"), "the answer is {:?}", head.lines().next().unwrap_or_default());
    let value = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim())
    });
    Ok(value.context("the answer has no Content-Length")?.parse()?)
}

/// What a round of load came to.
#[derive(Debug)]
pub struct Outcome {
    /// Wall-clock seconds from the first request to the end of the last answer.
    pub seconds: f64,
    /// Bytes of bodies that came.
    pub bytes: u64,
    /// Times from a request to the last byte of its answer, in microseconds.
    pub latency: Histogram<u64>,
}

/// Has the clients ask for `requests` objects in all; `path(i)` is the i-th. Whoever is free takes the next one.
pub fn drive(clients: &mut [Client], requests: u64, path: impl Fn(u64) -> String + Sync) -> Result<Outcome> {
    let next = Mutex::new(0..requests);
    let start = Instant::now();
    let one = |client: &mut Client| -> Result<(u64, Histogram<u64>)> {
        let mut latency = Histogram::new(3)?;
        let mut bytes = 0;
        loop {
            let Some(i) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
            let start = Instant::now();
            bytes += client.get(&path(i), |_| {})?;
            latency.record(start.elapsed().as_micros() as u64)?;
        }
        Ok((bytes, latency))
    };
    let parts: Vec<Result<(u64, Histogram<u64>)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| one(client))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a client panicked"))).collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut outcome = Outcome { seconds, bytes: 0, latency: Histogram::new(3)? };
    for part in parts {
        let (bytes, latency) = part?;
        outcome.bytes += bytes;
        outcome.latency.add(latency)?;
    }
    Ok(outcome)
}
