//! UDP in a tokio runtime, whoever carries the bytes.

mod carriers;

use carriers::{World, with_each_carrier};
use onecopy_net::SendFlags;
use onecopy_net::udp::tokio::Socket;
use onecopy_net::udp::{Message, Meta};
use std::future::poll_fn;
use std::io::{ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{Interest, ReadBuf};

with_each_carrier! {
    an_echo_by_many_tasks,
    what_would_wait_says_so,
    batches_and_trains,
    a_refusal_wakes_who_waits,
}

/// Two that know each other.
async fn pair(world: &World) -> (Socket, Socket) {
    let a = Socket::bind(&world.a, SocketAddr::new(world.hosts.0, 0)).await.unwrap();
    let b = Socket::bind(&world.b, world.at(0)).await.unwrap();
    let to = b.local_addr().unwrap();
    a.send_to(b"hello", to).await.unwrap();
    let mut buffer = [0; 10];
    assert_eq!(b.peek_from(&mut buffer).await.unwrap(), (5, a.local_addr().unwrap()));
    assert_eq!(b.recv_from(&mut buffer).await.unwrap(), (5, a.local_addr().unwrap()));
    // Both have asked for the other's station: else no more than some hundred datagrams wait for the answer, and the rest is lost.
    b.send_to(b"hello", a.local_addr().unwrap()).await.unwrap();
    assert_eq!(a.recv_from(&mut buffer).await.unwrap(), (5, to));
    (a, b)
}

async fn an_echo_by_many_tasks(world: &World) {
    let (a, b) = pair(world).await;
    b.get_ref().set_recv_buffer_size(8 << 20).unwrap();
    a.get_ref().set_recv_buffer_size(8 << 20).unwrap();
    a.connect(b.local_addr().unwrap()).await.unwrap();
    let (a, b) = (Arc::new(a), Arc::new(b));
    let servers: Vec<_> = (0..3)
        .map(|_| {
            let b = Arc::clone(&b);
            tokio::spawn(async move {
                let mut buffer = [0; 100];
                loop {
                    let (n, from) = b.recv_from(&mut buffer).await.unwrap();
                    if n == 0 {
                        return;
                    }
                    b.send_to(&buffer[..n], from).await.unwrap();
                }
            })
        })
        .collect();
    let back = tokio::spawn({
        let a = Arc::clone(&a);
        async move {
            let mut seen = [false; 256];
            let mut byte = [0];
            while seen.contains(&false) {
                assert_eq!(a.recv(&mut byte).await.unwrap(), 1);
                seen[usize::from(byte[0])] = true;
            }
        }
    });
    for byte in 0..=255 {
        assert_eq!(a.send(&[byte]).await.unwrap(), 1);
    }
    back.await.unwrap();
    // An empty one ends whoever gets it.
    for _ in &servers {
        a.send(b"").await.unwrap();
    }
    for server in servers {
        server.await.unwrap();
    }
}

async fn what_would_wait_says_so(world: &World) {
    let (a, b) = pair(world).await;
    let mut buffer = [0; 10];
    assert_eq!(b.try_recv_from(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(b.try_recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    a.connect(b.local_addr().unwrap()).await.unwrap();
    a.writable().await.unwrap();
    assert_eq!(a.try_send(b"one").unwrap(), 3);
    assert_eq!(a.try_send_to(b"two!", b.local_addr().unwrap()).unwrap(), 4);
    b.readable().await.unwrap();
    assert!(b.ready(Interest::READABLE).await.unwrap().is_readable());
    assert_eq!(b.try_recv(&mut buffer).unwrap(), 3);
    let mut filled = ReadBuf::new(&mut buffer);
    let from = poll_fn(|context| b.poll_recv_from(context, &mut filled)).await.unwrap();
    assert_eq!((filled.filled(), from), (&b"two!"[..], a.local_addr().unwrap()));
    assert_eq!(poll_fn(|context| a.poll_send(context, b"three")).await.unwrap(), 5);
    let got = b.async_io(Interest::READABLE, || Ok(b.get_ref().recv(&mut buffer)?)).await.unwrap();
    assert_eq!(got, 5);
    // A future that is dropped has taken nothing.
    {
        let mut nothing = Box::pin(b.recv(&mut buffer));
        assert!(futures_poll(nothing.as_mut()).await.is_none());
    }
    a.send(b"last").await.unwrap();
    let socket = b.into_inner();
    assert!(socket.nonblocking().unwrap());
    let b = Socket::new(socket).unwrap();
    assert_eq!(b.recv_borrowed().await.unwrap().0.to_vec(), b"last");
}

/// Polls once.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

async fn batches_and_trains(world: &World) {
    let (a, b) = pair(world).await;
    b.get_ref().set_recv_buffer_size(8 << 20).unwrap();
    let to = b.local_addr().unwrap();
    let messages = [Message::to(b"0123456789", to); 50];
    let mut sent = 0;
    while sent < messages.len() {
        sent += a.send_many(&messages[sent..], SendFlags::NTCOPY).await.unwrap();
    }
    a.send_segments(&[7; 1000], 100, Some(to)).await.unwrap();
    let (mut count, mut bytes) = (0, 0);
    while count < 60 {
        let mut storage = [[0; 200]; 16];
        let mut buffers: Vec<_> = storage.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let mut meta = [Meta::default(); 16];
        let n = match count {
            0 => b.recv_many(&mut buffers, &mut meta).await.unwrap(),
            _ => poll_fn(|context| b.poll_recv_many(context, &mut buffers, &mut meta)).await.unwrap(),
        };
        count += n;
        bytes += meta[..n].iter().map(|meta| meta.len).sum::<usize>();
    }
    assert_eq!((count, bytes), (60, 1500));
    b.get_ref().set_gro(true).unwrap();
    a.send_segments(&[7; 1000], 100, Some(to)).await.unwrap();
    assert_eq!(b.recv_segments(&mut [0; 2000]).await.unwrap().datagrams(), 10);
}

async fn a_refusal_wakes_who_waits(world: &World) {
    let (a, b) = pair(world).await;
    let nobody = b.local_addr().unwrap();
    // The host is there, and the socket is not.
    let _right = b.get_ref().stack().clone();
    drop(b);
    a.connect(nobody).await.unwrap();
    a.send(b"anybody?").await.unwrap();
    let error = a.recv(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains("start the server"), "{error}");
    assert!(a.take_error().unwrap().is_none());
}
