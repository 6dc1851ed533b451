//! Sockets in async-io's reactor.
#![allow(missing_docs, reason = "a test")]

use async_io::{Async, block_on};
use futures_lite::future::zip;
use onecopy::Carrier;
use onecopy::unix::{Listener, SeqPacket, SocketAddr, Stream};
use std::io::{self, Read, Write};

/// Connects within one executor.
fn connected(of: &str) -> (Async<Stream>, Async<Stream>) {
    let name = format!("onecopy-async-io-{of}-{}", std::process::id());
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let listener = Async::new(Listener::bind(&name).unwrap()).unwrap();
    let accept = async { listener.read_with(|listener| Ok(listener.accept()?.0)).await.and_then(Async::new) };
    let connect = async { Async::new(Stream::connect(&name)?) };
    let (server, client) = block_on(zip(accept, connect));
    (server.unwrap(), client.unwrap())
}

async fn send_all(stream: &Async<Stream>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = stream.write_with(|mut stream| stream.write(bytes)).await?;
        bytes = &bytes[n..];
    }
    Ok(())
}

#[test]
fn async_makes_a_socket_non_blocking() {
    let (server, client) = connected("flag");
    assert!(server.get_ref().nonblocking().unwrap() && client.get_ref().nonblocking().unwrap());
    assert!(server.get_ref().recv(&mut [0; 1]).unwrap_err().would_block());
}

#[test]
fn an_echo_goes_over_shared_memory() {
    // More than fits any buffer: both directions have to flow at once.
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (server, client) = connected("echo");
    let echo = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = server.read_with(|mut stream| stream.read(&mut buffer)).await?;
            if n == 0 {
                return io::Result::Ok(server.get_ref().shutdown(std::net::Shutdown::Write)?);
            }
            send_all(&server, &buffer[..n]).await?;
        }
    };
    let send = async {
        send_all(&client, &sent).await?;
        io::Result::Ok(client.get_ref().shutdown(std::net::Shutdown::Write)?)
    };
    let receive = async {
        let mut back = Vec::new();
        loop {
            let view = client.read_with(|stream| Ok(stream.recv_borrowed(1 << 20)?)).await?;
            if view.is_empty() {
                return io::Result::Ok(back);
            }
            back.extend_from_slice(&view.into_vec());
        }
    };
    let (echoed, (said, back)) = block_on(zip(echo, zip(send, receive)));
    echoed.unwrap();
    said.unwrap();
    assert!(back.unwrap() == sent);
    assert_eq!(client.get_ref().path().receive, Carrier::SharedMemory);
}

/// Each side answers what the other one said, from its first word on.
#[test]
fn a_chat_of_two_in_one_executor() {
    async fn side(stream: &Async<Stream>, begins: bool) -> io::Result<u32> {
        let mut buffer = [0; 4];
        let mut heard = 0u32;
        while heard < 999 {
            if begins || heard > 0 {
                send_all(stream, &(heard + 1).to_le_bytes()).await?;
            }
            let n = stream.read_with(|mut stream| stream.read(&mut buffer)).await?;
            assert!(n == 4, "words are sent whole");
            let word = u32::from_le_bytes(buffer);
            assert!(word > heard);
            heard = word;
        }
        send_all(stream, &(heard + 1).to_le_bytes()).await?;
        Ok(heard)
    }
    let (server, client) = connected("chat");
    let (one, other) = block_on(zip(side(&client, true), side(&server, false)));
    assert!(one.unwrap() >= 999 && other.unwrap() >= 999);
    assert_eq!(server.get_ref().path().receive, Carrier::SharedMemory);
}

#[test]
fn records_come_one_by_one() {
    let (a, b) = SeqPacket::pair().unwrap();
    let (a, b) = (Async::new(a).unwrap(), Async::new(b).unwrap());
    let send = async {
        for n in 0..10_000u32 {
            a.write_with(|socket| Ok(socket.send(&n.to_le_bytes())?)).await?;
        }
        io::Result::Ok(())
    };
    let receive = async {
        for n in 0..10_000u32 {
            let mut record = [0; 4];
            assert_eq!(b.read_with(|socket| Ok(socket.recv(&mut record)?)).await?, 4);
            assert_eq!(u32::from_le_bytes(record), n);
        }
        io::Result::Ok(())
    };
    let (sent, received) = block_on(zip(send, receive));
    sent.unwrap();
    received.unwrap();
}
