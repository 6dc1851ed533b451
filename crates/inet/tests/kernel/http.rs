//! Programs of others, who know nothing of us.

use crate::programs::pattern;
use crate::world::{Host, Kernel, OURS6, Program, Setup, World, ours, tool};
use onecopy_chain::{Sum, Writer};
use onecopy_inet::stack::Event;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{self, Error, Received};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send, socket_with,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

/// Bytes of the answer's body.
const BODY: u64 = 3_000_000;

fn body() -> Vec<u8> {
    let mut body = Vec::new();
    while (body.len() as u64) < BODY {
        body.extend_from_slice(pattern(1, body.len() as u64, BODY - body.len() as u64));
    }
    body
}

/// Answers each request with the same body, and keeps the connection.
struct Server {
    listener: Id,
    connections: HashMap<Id, Connection>,
    requests: usize,
    client: Option<Kernel<Output>>,
    output: Option<Output>,
}

#[derive(Default)]
struct Connection {
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

impl Server {
    fn listen(host: &mut Host, at: SocketAddr) -> Server {
        let listener = host.stack.tcp_open().unwrap();
        host.stack.tcp_bind(listener, at, false).unwrap();
        host.stack.tcp_listen(listener, 8).unwrap();
        Server { listener, connections: HashMap::new(), requests: 0, client: None, output: None }
    }

    fn serve(&mut self, host: &mut Host, id: Id) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        loop {
            while connection.sent < connection.answer.len() {
                let writer = Writer::new(&host.pool);
                let rest = &connection.answer[connection.sent..];
                match host.stack.tcp_send_bytes(host.now, id, rest, &writer, tcp::SendFlags::empty()) {
                    Ok(sent) => connection.sent += sent,
                    Err(Error::WouldBlock) => return,
                    Err(error) => panic!("sending: {error}"),
                }
            }
            if let Some(end) = connection.request.windows(4).position(|at| at == b"\r\n\r\n") {
                let request: Vec<u8> = connection.request.drain(..end + 4).collect();
                assert!(request.starts_with(b"GET /"), "{}", String::from_utf8_lossy(&request));
                self.requests += 1;
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
                (connection.answer, connection.sent) = ([head.into_bytes(), body()].concat(), 0);
                continue;
            }
            match host.stack.tcp_receive(host.now, id, usize::MAX) {
                Ok(Received::Data(data)) => {
                    let host = data.payload().host().unwrap();
                    host.slices().for_each(|slice| connection.request.extend_from_slice(slice));
                }
                Ok(Received::End) => break,
                Err(Error::WouldBlock) => return,
                Err(error) => panic!("receiving: {error}"),
            }
        }
        host.stack.tcp_close(host.now, id);
        self.connections.remove(&id);
    }
}

impl Program for Server {
    fn turn(&mut self, host: &mut Host, events: &[Event]) -> bool {
        for event in events {
            if event.id == self.listener {
                while let Ok((id, _)) = host.stack.tcp_accept(event.id) {
                    self.connections.insert(id, Connection::default());
                    self.serve(host, id);
                }
            } else {
                self.serve(host, event.id);
            }
        }
        if let Some(output) = Kernel::take(&mut self.client) {
            self.output = Some(output);
            host.stack.tcp_close(host.now, self.listener);
        }
        self.client.is_none() && self.connections.is_empty()
    }
}

#[test]
fn curl_fetches_from_us() {
    fetch(Setup::all(1500), ours(80));
}

#[test]
fn curl_fetches_from_us_over_ipv6() {
    fetch(Setup::all(1500).six(), SocketAddr::new(OURS6.into(), 80));
}

fn fetch(setup: Setup, at: SocketAddr) {
    let Some(mut world) = World::new(setup) else { return };
    if !tool(&world.namespace, "curl --version") {
        return println!("lacking: curl");
    }
    let mut server = Server::listen(&mut world.host, at);
    server.client = Some(world.kernel(move || {
        let mut curl = Command::new("curl");
        // Two of them on one connection.
        curl.args(["-sS", "--fail", "--noproxy", "*", "--max-time", "60"]);
        // (It takes brackets for a range of names else.)
        curl.arg("--globoff")
            .args(["one", "two"].map(|path| format!("http://{at}/{path}")))
            .stdin(Stdio::null());
        curl.output().unwrap()
    }));
    world.run(&mut server);
    let output = server.output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == [body(), body()].concat(), "{} bytes, not what was sent", output.stdout.len());
    assert_eq!(server.requests, 2);
    world.finish();
}

/// Waits for something on the kernel's side.
pub struct Until(pub Option<Kernel<()>>);

impl Program for Until {
    fn turn(&mut self, _: &mut Host, _: &[Event]) -> bool {
        Kernel::take(&mut self.0).is_some()
    }
}

#[test]
fn the_kernel_pings_us() {
    let Some(mut world) = World::new(Setup::all(1500)) else { return };
    let ping = world.kernel(|| {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP)).unwrap();
        connect(&socket, &ours(0)).unwrap();
        for len in [0, 1, 56, 1000, 1472, 20_000] {
            // Echo, number 1 of 7.
            let mut echo = vec![8, 0, 0, 0, 0, 7, 0, 1];
            echo.extend_from_slice(pattern(1, 0, len));
            let sum = Sum::of(&echo).checksum().to_be_bytes();
            echo[2..4].copy_from_slice(&sum);
            assert_eq!(send(&socket, &echo, SendFlags::empty()), Ok(echo.len()));
            // What is longer than the MTU comes and goes in fragments.
            let mut back = [0; 21_000];
            let (_, n) = recv(&socket, &mut back[..], RecvFlags::empty()).unwrap();
            // With IP's header.
            assert_eq!((back[20], &back[24..n]), (0, &echo[4..]), "{len} bytes");
        }
    });
    world.run(&mut Until(Some(ping)));
    assert_eq!(world.host.stack.interface().stats().echoes, 6);
    world.finish();
}
