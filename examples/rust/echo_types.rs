//! The same echo over each type of socket: a stream of bytes, records in order on a connection, and datagrams.
//!
//! ```console
//! $ cargo run -p onecopy --example echo_types
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use onecopy::unix::{Datagram, Listener, SeqListener, SeqPacket, SocketAddr, Stream};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What is sent, a piece at a time. Two of them together are not what was sent; an empty one is one, too.
const PIECES: [&str; 4] = ["one", "", "three", "and the last one"];

fn main() -> Result<()> {
    let name = |kind| SocketAddr::from_abstract_name(format!("onecopy-echo-{kind}-{}", std::process::id()));
    stream(&name("stream")?)?;
    seqpacket(&name("seqpacket")?)?;
    datagram(&name("datagram")?, &name("client")?)
}

/// Bytes: where one send ended cannot be seen.
fn stream(name: &SocketAddr) -> Result<()> {
    let listener = Listener::bind(name)?;
    let server = thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = [0; 1024];
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                n => stream.write_all(&buffer[..n])?,
            }
        }
    });
    let mut stream = Stream::connect(name)?;
    for piece in PIECES {
        stream.write_all(piece.as_bytes())?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut back = String::new();
    stream.read_to_string(&mut back)?;
    server.join().expect("the server does not panic")?;
    told("stream", &[back], &[PIECES.concat()])
}

/// Records: one send, one receive.
fn seqpacket(name: &SocketAddr) -> Result<()> {
    let listener = SeqListener::bind(name)?;
    let server = thread::spawn(move || -> Result<()> {
        let (socket, _) = listener.accept()?;
        let mut buffer = [0; 1024];
        loop {
            let record = socket.recv_record(&mut buffer)?;
            if record.is_end() {
                return Ok(());
            }
            socket.send(&buffer[..record.len])?;
        }
    });
    let socket = SeqPacket::connect(name)?;
    let mut back = Vec::new();
    for piece in PIECES {
        socket.send(piece.as_bytes())?;
        let mut buffer = [0; 1024];
        let n = socket.recv(&mut buffer)?;
        back.push(String::from_utf8_lossy(&buffer[..n]).into_owned());
    }
    drop(socket);
    server.join().expect("the server does not panic")?;
    told("seqpacket", &back, &PIECES)
}

/// Datagrams: records without a connection, so the answer goes to whom the name says.
fn datagram(name: &SocketAddr, client: &SocketAddr) -> Result<()> {
    let server = Datagram::bind(name)?;
    let answering = thread::spawn(move || -> Result<()> {
        let mut buffer = [0; 1024];
        for _ in PIECES {
            let (n, from) = server.recv_from(&mut buffer)?;
            server.send_to(&buffer[..n], from)?;
        }
        Ok(())
    });
    let socket = Datagram::bind(client)?;
    let mut back = Vec::new();
    for piece in PIECES {
        socket.send_to(piece.as_bytes(), name)?;
        let mut buffer = [0; 1024];
        let (n, from) = socket.recv_from(&mut buffer)?;
        if from != *name {
            return Err(format!("{from:?} answered for {name:?}").into());
        }
        back.push(String::from_utf8_lossy(&buffer[..n]).into_owned());
    }
    answering.join().expect("the server does not panic")?;
    told("datagram", &back, &PIECES)
}

fn told<A: AsRef<str>, B: AsRef<str>>(kind: &str, back: &[A], sent: &[B]) -> Result<()> {
    let back: Vec<&str> = back.iter().map(A::as_ref).collect();
    let sent: Vec<&str> = sent.iter().map(B::as_ref).collect();
    println!("{kind}: {back:?}");
    if back == sent { Ok(()) } else { Err(format!("{kind}: sent {sent:?}").into()) }
}
