//! A client's connection: plain TCP, or TLS over it. Reading never waits; sending does, within the client's patience.

use super::tcp::{Tcp, send_all, wait_writable};
use super::timeout::within;
use super::trouble::{Patience, Trouble};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// A client's connection.
#[derive(Debug)]
pub enum Peer {
    /// As it comes.
    Plain(Tcp),
    /// Encrypted.
    Tls(Box<Session>),
}

/// A TLS connection, after its handshake.
#[derive(Debug)]
pub struct Session {
    tcp: Tcp,
    tls: ServerConnection,
    /// Bytes of plain text encrypted since the last flush.
    held: usize,
}

/// Why there is no session.
#[derive(Debug)]
pub enum Refused {
    /// The client began in plain text: it may be told.
    Plain(Tcp),
    /// The handshake failed, was too slow, or the client left.
    Failed,
}

/// Plain text that is encrypted before the records leave in one call: they still lie in the cache then.
const FLUSH: usize = 64 << 10;

/// The most plain text of one record (RFC 8446 section 5.1): the piece in which a body is copied out and encrypted.
pub const RECORD: usize = 16 << 10;

/// Records looked at in one call, before others get their turn.
const LOOKS: usize = 16;

impl Peer {
    /// The TCP connection itself, where bytes go out as they are: never under TLS.
    pub fn plain(&self) -> Option<&Tcp> {
        match self {
            Peer::Plain(tcp) => Some(tcp),
            Peer::Tls(_) => None,
        }
    }

    /// The same, where it is the kernel's, and bytes may go around this program.
    pub fn kernel(&self) -> Option<&TcpStream> {
        match self {
            Peer::Plain(Tcp::Kernel(tcp)) => Some(tcp),
            _ => None,
        }
    }

    fn tcp(&self) -> &Tcp {
        match self {
            Peer::Plain(tcp) => tcp,
            Peer::Tls(session) => &session.tcp,
        }
    }

    /// Copies that sending costs in user space for each byte: rustls puts plain text into a record and encrypts it
    /// there.
    pub fn copies(&self) -> u64 {
        u64::from(self.plain().is_none())
    }

    /// Waits until `take` may have something.
    pub async fn readable(&self) -> io::Result<()> {
        self.tcp().readable().await
    }

    /// Adds what has come to the inbox, without waiting. 0 at the end.
    pub fn take(&mut self, inbox: &mut Vec<u8>) -> io::Result<usize> {
        let have = inbox.len();
        inbox.resize(have + (2 << 10), 0);
        let got = match self {
            Peer::Plain(tcp) => tcp.try_read(&mut inbox[have..]),
            Peer::Tls(session) => session.take(&mut inbox[have..]),
        };
        inbox.truncate(have + got.as_ref().map_or(0, |n| *n));
        got
    }

    /// Sends all of `bytes`; `more` follows at once.
    pub async fn send_all(&mut self, bytes: &[u8], more: bool, patience: Patience) -> Result<(), Trouble> {
        match self {
            Peer::Plain(tcp) => send_all(tcp, bytes, more, patience).await,
            Peer::Tls(session) => session.send_all(bytes, more, patience.client).await,
        }
    }

    /// Sends what was to go with more that has not come yet. (The kernel sends what it was told to keep by itself after
    /// 200 ms, tcp(7).)
    pub async fn flush(&mut self, patience: Patience) -> Result<(), Trouble> {
        match self {
            Peer::Plain(_) => Ok(()),
            Peer::Tls(session) => session.flush(patience.client).await,
        }
    }

    /// Says goodbye where the protocol has a word for it (close_notify, RFC 8446 section 6.1), without waiting. A body
    /// that was broken off never gets here: its client must be able to tell.
    pub fn say_goodbye(&mut self) {
        if let Peer::Tls(session) = self {
            session.tls.send_close_notify();
            let _ = session.flush_now();
        }
    }

    /// Ends the connection so that the last answer arrives although the client may still be sending: closing at once
    /// would reset it and take the answer with it (RFC 9112 section 9.6). Reads on for `span` and `most` bytes.
    pub async fn linger(&mut self, span: Duration, mut most: usize) {
        self.say_goodbye();
        let tcp = self.tcp();
        if tcp.shut_write().is_err() {
            return;
        }
        let mut sink = [0; 4096];
        let drain = async {
            while most > 0 && tcp.readable().await.is_ok() {
                match tcp.try_read(&mut sink) {
                    Ok(0) => return,
                    Ok(n) => most = most.saturating_sub(n),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        within(span, drain).await;
    }
}

impl Session {
    /// Waits for the client's part of the handshake. Who calls bounds the time.
    pub async fn accept(tcp: Tcp, config: Arc<ServerConfig>) -> Result<Session, Refused> {
        let mut first = [0; 1];
        match tcp.peek(&mut first).await {
            // A record of a handshake begins with 22; a method with a letter.
            Ok(1..) if first[0].is_ascii_uppercase() => return Err(Refused::Plain(tcp)),
            Ok(1..) => {}
            _ => return Err(Refused::Failed),
        }
        let mut tls = ServerConnection::new(config).map_err(|_| Refused::Failed)?;
        // `send_all` flushes before much is held; a write cut short by a limit would be one more case.
        tls.set_buffer_limit(None);
        let mut session = Session { tcp, tls, held: 0 };
        loop {
            match session.flush_now() {
                Ok(()) if !session.tls.is_handshaking() => return Ok(session),
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    session.tcp.writable().await.map_err(|_| Refused::Failed)?;
                    continue;
                }
                Err(_) => return Err(Refused::Failed),
            }
            match session.look() {
                Ok(0) => return Err(Refused::Failed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    session.tcp.readable().await.map_err(|_| Refused::Failed)?;
                }
                Err(_) => return Err(Refused::Failed),
            }
        }
    }

    /// Takes what came and decrypts it. Bytes that were read: 0 at the end of the TCP connection.
    fn look(&mut self) -> io::Result<usize> {
        let got = self.tls.read_tls(&mut Nonblocking(&self.tcp))?;
        if let Err(why) = self.tls.process_new_packets() {
            let _ = self.flush_now(); // the alert that says why
            return Err(io::Error::other(why));
        }
        Ok(got)
    }

    fn take(&mut self, room: &mut [u8]) -> io::Result<usize> {
        for _ in 0..LOOKS {
            match self.tls.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A TCP connection that ended without close_notify: nothing whole is lost by taking it for an end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            self.look()?;
            // What the client's message called for, such as new keys. What does not fit goes with the next answer.
            match self.flush_now() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        // Nothing but messages of the protocol so far, and more of them: others first.
        Err(io::ErrorKind::WouldBlock.into())
    }

    async fn send_all(&mut self, bytes: &[u8], more: bool, patience: Duration) -> Result<(), Trouble> {
        for piece in bytes.chunks(FLUSH) {
            self.tls.writer().write_all(piece).map_err(|_| Trouble::Broken)?;
            self.held += piece.len();
            if self.held >= FLUSH {
                self.flush(patience).await?;
            }
        }
        if more { Ok(()) } else { self.flush(patience).await }
    }

    async fn flush(&mut self, patience: Duration) -> Result<(), Trouble> {
        while let Err(error) = self.flush_now() {
            wait_writable(&self.tcp, error, patience).await?;
        }
        Ok(())
    }

    /// Sends the records that wait, as far as there is room: WouldBlock when there is not.
    fn flush_now(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Nonblocking(&self.tcp))?;
        }
        self.held = 0;
        Ok(())
    }
}

/// A TCP connection as rustls wants it.
struct Nonblocking<'t>(&'t Tcp);

impl Read for Nonblocking<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Nonblocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_send(bytes, false)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
