//! Streams and listeners for tokio, between two stacks, whoever carries their bytes: what programs do with tokio's own.

mod carriers;

use carriers::{World, with_each_carrier};
use onecopy_net::tcp::tokio::{Listener, Stream};
use onecopy_net::{Carrier, SendFlags};
use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

with_each_carrier! {
    halves_move_bytes_both_ways_at_once_and_a_dropped_half_is_the_end,
    halves_of_one_stream_are_put_together_again,
    a_future_that_is_dropped_has_moved_nothing,
    tries_say_what_would_wait_and_readiness_says_when_not,
    what_is_reserved_or_was_received_is_sent_on_in_place,
    a_chain_is_given_away_and_comes_back,
}

async fn pair(world: &World) -> (Stream, Stream) {
    let listener = Listener::bind(&world.b, world.at(0)).await.unwrap();
    let to = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(Stream::connect(&world.a, to), listener.accept());
    let (client, (server, from)) = (client.unwrap(), server.unwrap());
    assert_eq!((client.local_addr().unwrap(), client.peer_addr().unwrap()), (from, to));
    (client, server)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// Polls a future once, and drops it.
fn polled_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

async fn halves_move_bytes_both_ways_at_once_and_a_dropped_half_is_the_end(world: &World) {
    let (client, server) = pair(world).await;
    let (mut from_server, mut to_server) = client.into_split();
    let (mut from_client, mut to_client) = server.into_split();
    let data = pattern(3 << 20);
    let sent = data.clone();
    let echo = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_client).await.unwrap() });
    let send = tokio::spawn(async move {
        to_server.write_all(&sent).await.unwrap();
    });
    let mut back = Vec::new();
    from_server.read_to_end(&mut back).await.unwrap();
    assert!(back == data);
    assert_eq!(echo.await.unwrap(), data.len() as u64);
    send.await.unwrap();
}

#[tokio::test]
async fn connections_of_all_shards_are_accepted() {
    for (carrier, shards) in
        [Carrier::Stack, Carrier::Kernel].into_iter().flat_map(|one| [(one, 2), (one, 4)])
    {
        let Some(world) = World::new(carrier, shards) else { continue };
        let listener = Listener::bind(&world.b, world.at(0)).await.unwrap();
        let to = listener.local_addr().unwrap();
        let echo = tokio::spawn(async move {
            let mut echoes = Vec::new();
            for _ in 0..32 {
                let (stream, _) = listener.accept().await.unwrap();
                echoes.push(tokio::spawn(async move {
                    let (mut from, mut to) = stream.into_split();
                    tokio::io::copy(&mut from, &mut to).await.unwrap()
                }));
            }
            for echo in echoes {
                assert_eq!(echo.await.unwrap(), 100_000);
            }
        });
        let clients: Vec<_> = (0..32)
            .map(|_| {
                let a = world.a.clone();
                tokio::spawn(async move {
                    let mut client = Stream::connect(&a, to).await.unwrap();
                    let (data, mut back) = (pattern(100_000), Vec::new());
                    client.write_all(&data).await.unwrap();
                    client.shutdown().await.unwrap();
                    client.read_to_end(&mut back).await.unwrap();
                    assert!(back == data);
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        echo.await.unwrap();
        assert!(world.all_took_part());
    }
}

async fn halves_of_one_stream_are_put_together_again(world: &World) {
    let (client, mut server) = pair(world).await;
    let (read, write) = client.into_split();
    let (other_read, _other) = pair(world).await.0.into_split();
    let (refused, write) = match other_read.reunite(write) {
        Err(error) => (error.0, error.1),
        Ok(_) => panic!("they are of two streams"),
    };
    drop(refused);
    let client = read.reunite(write).unwrap();
    client.send(b"still open").await.unwrap();
    let mut buffer = [0; 10];
    server.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"still open");
    let (mut read, mut write) = server.split();
    write.write_all(b"both").await.unwrap();
    write.shutdown().await.unwrap();
    assert_eq!(client.recv(&mut buffer).await.unwrap(), 4);
    assert_eq!(client.recv(&mut buffer).await.unwrap(), 0);
    drop(client);
    assert_eq!(read.read(&mut buffer).await.unwrap(), 0);
}

async fn a_future_that_is_dropped_has_moved_nothing(world: &World) {
    let (client, server) = pair(world).await;
    let mut buffer = [0; 64];
    for round in 0..50_u8 {
        assert!(polled_once(server.recv(&mut buffer)).is_none());
        assert!(polled_once(server.recv_borrowed(64)).is_none());
        client.send(&[round; 3]).await.unwrap();
        server.readable().await.unwrap();
        match polled_once(server.recv(&mut buffer)) {
            Some(n) => assert_eq!((n.unwrap(), buffer[0]), (3, round)),
            None => panic!("it is readable"),
        }
    }
    // A sender that finds no room, likewise.
    let block = pattern(1 << 16);
    let mut sent = Vec::new();
    while let Some(n) = polled_once(client.send(&block)) {
        let n = n.unwrap();
        sent.extend_from_slice(&block[..n]);
    }
    drop(client);
    let mut all = Vec::new();
    let mut server = server;
    server.read_to_end(&mut all).await.unwrap();
    assert!(all == sent, "{} and {}", all.len(), sent.len());
}

async fn tries_say_what_would_wait_and_readiness_says_when_not(world: &World) {
    let (client, server) = pair(world).await;
    let mut buffer = Vec::new();
    assert_eq!(server.try_read_buf(&mut Vec::with_capacity(8)).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(client.ready(Interest::READABLE | Interest::WRITABLE).await.unwrap().is_writable());
    assert_eq!(client.try_write(b"hello").unwrap(), 5);
    while buffer.len() < 5 {
        server.readable().await.unwrap();
        match server.try_read_buf(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            done => drop(done.unwrap()),
        }
    }
    assert_eq!(buffer, b"hello");
    assert!(server.send_with_flags(b"x", SendFlags::DONTWAIT).await.is_ok());
    let refused = Stream::connect(&world.a, world.at(9)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(refused.to_string().contains("start the server"), "{refused}");
}

async fn what_is_reserved_or_was_received_is_sent_on_in_place(world: &World) {
    let (client, server) = pair(world).await;
    let data = pattern(200_000);
    let mut slot = client.get_ref().reserve(data.len()).unwrap();
    slot.copy_from(&data);
    let mut segment = slot.into_segment();
    let send = async {
        while !segment.payload().is_empty() {
            client.send_some(&mut segment).await.unwrap();
        }
    };
    let back = async {
        let mut left = data.len();
        while left > 0 {
            let mut view = server.recv_borrowed(left).await.unwrap().into_segment();
            left -= view.payload().len();
            while !view.payload().is_empty() {
                server.send_some(&mut view).await.unwrap();
            }
        }
    };
    let mut received = Vec::new();
    let receive = async {
        while received.len() < data.len() {
            let mut buffer = [0; 5000];
            let n = client.recv(&mut buffer).await.unwrap();
            received.extend_from_slice(&buffer[..n]);
        }
    };
    tokio::join!(send, back, receive);
    assert!(received == data);
    assert_eq!((server.stats().user_copied_in, server.stats().user_copied_out), (0, 0));
}

async fn a_chain_is_given_away_and_comes_back(world: &World) {
    use onecopy_chain::{Chain, Fragment};
    use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
    let (client, mut server) = pair(world).await;
    client.get_ref().set_small(Some(onecopy_net::zerocopy::Small::Below(0))).unwrap();
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let mut left = Chain::new();
    for _ in 0..256 {
        left.append(Fragment::new(pool.alloc().unwrap(), 0, 4096).unwrap()).unwrap();
    }
    let reader = tokio::spawn(async move {
        let mut all = vec![0; (1 << 20) + 4096];
        server.read_exact(&mut all).await.unwrap();
        server
    });
    let (mut under_way, mut back) = (Vec::new(), 0);
    while !left.is_empty() {
        let mut sent = client.send_zerocopy(left).await.unwrap();
        left = sent.take_rest();
        under_way.push(sent);
    }
    for sent in under_way {
        let (chain, how) = sent.await;
        // (The kernel cannot say it of one that was stacked.)
        assert!((how.copied || how.unknown) && !how.dropped);
        back += chain.len();
    }
    assert_eq!((back, client.get_ref().stats().user_copied_in), (1 << 20, 0));
    let chain = Chain::from(Fragment::new(pool.alloc().unwrap(), 0, 4096).unwrap());
    let sent = client.get_ref().send_numbered(chain, onecopy_net::SendFlags::empty()).unwrap();
    let range = client.notice().await.unwrap();
    assert_eq!((Some(range.hi), range.copied), (sent.number, true));
    drop(reader.await.unwrap());
}
