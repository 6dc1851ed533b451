//! What runs on either side. Ours act on events alone: one that is not told stands still, and the test fails.

use crate::world::{Host, Program};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::stack::Event;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Error, Received, SendFlags, Side};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;

/// Bytes that are the same nowhere near, so that none can stand in for another one: those of a stream are these again and again.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    // A length that nothing here is a multiple of.
    (0..131_101).flat_map(|_| next()).collect()
});

/// Bytes of stream `stream` from byte `at` on; at most `max`, and at least one.
pub fn pattern(stream: u64, at: u64, max: u64) -> &'static [u8] {
    let len = PATTERN.len() as u64;
    let from = (stream * 7919 + at) % len;
    &PATTERN[from as usize..(from + max).min(len) as usize]
}

/// Looks that `bytes` are the stream's from byte `at` on.
pub fn check(stream: u64, mut at: u64, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let expected = pattern(stream, at, bytes.len() as u64);
        let (these, rest) = bytes.split_at(expected.len());
        assert!(these == expected, "stream {stream} is not what was sent, from about byte {at} on");
        (at, bytes) = (at + these.len() as u64, rest);
    }
}

/// Sends back what comes, by reference; over when so many connections have come and gone.
pub struct Echo {
    listener: Option<Id>,
    connections: HashMap<Id, Segment<Chain>>,
    left: usize,
    /// The most at once.
    pub most: usize,
}

impl Echo {
    pub fn listen(host: &mut Host, at: SocketAddr, count: usize) -> Echo {
        let id = host.stack.tcp_open().unwrap();
        host.stack.tcp_bind(id, at, false).unwrap();
        host.stack.tcp_listen(id, 1024).unwrap();
        Echo { listener: Some(id), connections: HashMap::new(), left: count, most: 0 }
    }

    fn serve(&mut self, host: &mut Host, id: Id) {
        let Some(back) = self.connections.get_mut(&id) else { return };
        loop {
            while !back.payload().is_empty() {
                match host.stack.tcp_send(host.now, id, back, SendFlags::empty()) {
                    Ok(sent) => assert!(sent > 0),
                    Err(Error::WouldBlock) => return,
                    Err(error) => panic!("sending back: {error}"),
                }
            }
            match host.stack.tcp_receive(host.now, id, 1 << 18) {
                Ok(Received::Data(data)) => *back = data,
                Ok(Received::End) => break,
                Err(Error::WouldBlock) => return,
                Err(error) => panic!("receiving: {error}"),
            }
        }
        host.stack.tcp_close(host.now, id);
        self.connections.remove(&id);
        self.left -= 1;
    }
}

impl Program for Echo {
    fn turn(&mut self, host: &mut Host, events: &[Event]) -> bool {
        for event in events {
            if Some(event.id) == self.listener {
                while let Ok((id, _)) = host.stack.tcp_accept(event.id) {
                    self.connections.insert(id, Segment::default());
                    self.most = self.most.max(self.connections.len());
                    self.serve(host, id);
                }
            } else {
                self.serve(host, event.id);
            }
        }
        if self.left == 0
            && let Some(listener) = self.listener.take()
        {
            host.stack.tcp_close(host.now, listener);
        }
        self.left == 0
    }
}

/// Sends streams of so many bytes, each on a connection of its own, and looks that they come back.
pub struct Clients {
    connections: HashMap<Id, Client>,
    len: u64,
}

struct Client {
    stream: u64,
    sent: u64,
    received: u64,
    over: bool,
}

impl Clients {
    pub fn connect(host: &mut Host, to: SocketAddr, count: u64, len: u64) -> Clients {
        let mut connections = HashMap::new();
        for stream in 0..count {
            let id = host.stack.tcp_open().unwrap();
            assert_eq!(host.stack.tcp_connect(host.now, id, to), Err(Error::InProgress));
            connections.insert(id, Client { stream, sent: 0, received: 0, over: false });
        }
        Clients { connections, len }
    }

    /// Does what it can; whether it is over.
    fn go_on(client: &mut Client, host: &mut Host, id: Id, len: u64) -> bool {
        if let Some(error) = host.stack.tcp_take_error(id) {
            panic!("a connection failed: {error}");
        }
        while client.sent < len {
            let bytes = pattern(client.stream, client.sent, (len - client.sent).min(1 << 17));
            let writer = Writer::new(&host.pool);
            match host.stack.tcp_send_bytes(host.now, id, bytes, &writer, SendFlags::empty()) {
                Ok(sent) => client.sent += sent as u64,
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("sending: {error}"),
            }
        }
        if client.sent == len && !client.over {
            client.over = true;
            host.stack.tcp_shutdown(host.now, id, Side::Write).unwrap();
        }
        loop {
            match host.stack.tcp_receive(host.now, id, usize::MAX) {
                Ok(Received::Data(data)) => {
                    for slice in data.payload().host().unwrap().slices() {
                        check(client.stream, client.received, slice);
                        client.received += slice.len() as u64;
                    }
                }
                Ok(Received::End) => break,
                Err(Error::WouldBlock | Error::NotConnected) => return false,
                Err(error) => panic!("receiving: {error}"),
            }
        }
        assert_eq!(client.received, len, "it ended early");
        host.stack.tcp_close(host.now, id);
        true
    }
}

impl Program for Clients {
    fn turn(&mut self, host: &mut Host, events: &[Event]) -> bool {
        for Event { id, .. } in events {
            if let Some(client) = self.connections.get_mut(id)
                && Clients::go_on(client, host, *id, self.len)
            {
                self.connections.remove(id);
            }
        }
        self.connections.is_empty()
    }
}

/// The kernel's client: sends a stream and looks that it comes back.
pub fn kernel_client(socket: TcpStream, stream: u64, len: u64) {
    let mut writer = socket.try_clone().unwrap();
    let sends = std::thread::spawn(move || {
        let mut at = 0;
        while at < len {
            let bytes = pattern(stream, at, (len - at).min(1 << 17));
            writer.write_all(bytes).unwrap();
            at += bytes.len() as u64;
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let (mut buffer, mut at, mut socket) = (vec![0; 1 << 17], 0, socket);
    loop {
        match socket.read(&mut buffer).unwrap() {
            0 => break,
            n => {
                check(stream, at, &buffer[..n]);
                at += n as u64;
            }
        }
    }
    assert_eq!(at, len, "stream {stream} ended early");
    sends.join().unwrap();
}

/// The kernel's server: sends back what comes on so many connections.
pub fn kernel_echo(listener: TcpListener, count: usize) {
    let serve = |mut socket: TcpStream| {
        let mut buffer = vec![0; 1 << 17];
        loop {
            match socket.read(&mut buffer).unwrap() {
                0 => return,
                n => socket.write_all(&buffer[..n]).unwrap(),
            }
        }
    };
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let (socket, _) = listener.accept().unwrap();
            std::thread::spawn(move || serve(socket))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
