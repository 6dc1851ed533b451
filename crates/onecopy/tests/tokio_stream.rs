//! Streams in a tokio runtime, in the shapes of tokio's `UnixStream`.

use onecopy::advanced::chain::Chain;
use onecopy::advanced::notify::Segment;
use onecopy::unix::tokio::{Listener, SeqListener, SeqPacket, Socket, Stream};
use onecopy::unix::{self, Config, SharedPool, SocketAddr};
use onecopy::{Policy, RecvFlags, SendFlags};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::{JoinSet, yield_now};

/// Far longer than any of it takes: a wake-up was lost, or the runtime's thread is blocked.
const LIMIT: Duration = Duration::from_secs(60);

async fn within_limit<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("it hangs")
}

/// Polls once.
async fn once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    let mut future = Some(future);
    poll_fn(|context| Poll::Ready(future.take().expect("polled once").poll(context))).await
}

fn name(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-tokio-{what}-{}", std::process::id())).unwrap()
}

/// hyper and h2 ask `is_write_vectored`, and put the pieces of a message together where it says no.
#[tokio::test]
async fn a_vectored_write_is_one_send_and_one_copy() {
    let (mut a, mut b) = Stream::pair().unwrap();
    assert!(a.is_write_vectored());
    let pieces: Vec<Vec<u8>> = (0..64u8).map(|n| vec![n; 1 + usize::from(n) * 13]).collect();
    let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let len = pieces.concat().len();

    // The reader sleeps.
    let mut buffer = vec![0; len + 1];
    let mut read = Box::pin(b.recv(&mut buffer));
    assert!(once(read.as_mut()).await.is_pending());
    let before = a.stats();
    let wrote = poll_fn(|context| Pin::new(&mut a).poll_write_vectored(context, &slices)).await.unwrap();
    assert_eq!(wrote, len);
    assert_eq!(a.stats().doorbells - before.doorbells, 1);
    assert_eq!(a.stats().user_copied_in - before.user_copied_in, len as u64);
    assert_eq!(a.stats().kernel_copied, before.kernel_copied);
    assert_eq!(within_limit(read).await.unwrap(), len, "all at once");
    assert!(buffer[..len] == pieces.concat());

    // So do both kinds of halves.
    let (_, write) = a.split();
    assert!(write.is_write_vectored());
    let (_a_read, mut write) = a.into_split();
    assert!(write.is_write_vectored());
    assert_eq!(write.write_vectored(&slices).await.unwrap(), len);
    let mut got = vec![0; len];
    b.read_exact(&mut got).await.unwrap();
    assert!(got == pieces.concat());
}

/// Everything runs on one thread here: a connect that blocks it would wait for ever for the accept.
#[tokio::test]
async fn a_full_backlog_does_not_block_the_runtime() {
    const CLIENTS: usize = 10;
    let config = Config { backlog: 1, ..Config::default() };
    let at = name("backlog");
    let listener = Listener::bind_with(&at, &config).unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let at = at.clone();
        clients.spawn(async move { Stream::connect(&at).await });
    }
    // The backlog takes two, and those are through.
    within_limit(async {
        for _ in 0..2 {
            clients.join_next().await.unwrap().unwrap().unwrap();
        }
    })
    .await;
    for _ in 0..1000 {
        assert!(clients.try_join_next().is_none(), "there is no room for another one");
        yield_now().await;
    }
    within_limit(async {
        for _ in 0..CLIENTS {
            listener.accept().await.unwrap();
        }
        while let Some(client) = clients.join_next().await {
            client.unwrap().unwrap();
        }
    })
    .await;

    // One that is dropped while it waits does not come later.
    let held = [Stream::connect(&at).await.unwrap(), Stream::connect(&at).await.unwrap()];
    let mut waits = Box::pin(Stream::connect(&at));
    assert!(once(waits.as_mut()).await.is_pending());
    drop(waits);
    for _ in held {
        within_limit(listener.accept()).await.unwrap();
    }
    let none = listener.get_ref().accept().unwrap_err();
    assert!(none.would_block());
}

#[tokio::test]
async fn a_full_backlog_of_records_does_not_block_the_runtime() {
    let config = Config { backlog: 1, ..Config::default() };
    let at = name("seq-backlog");
    let listener = SeqListener::bind_with(&at, &config).unwrap();
    let mut clients = JoinSet::new();
    for n in 0..6u8 {
        let at = at.clone();
        clients.spawn(async move {
            let client = SeqPacket::connect(&at).await.unwrap();
            client.send(&[n]).await.unwrap();
            client.recv(&mut [0]).await.unwrap()
        });
    }
    within_limit(async {
        for _ in 0..6 {
            let (server, _) = listener.accept().await.unwrap();
            let mut who = [0];
            server.recv(&mut who).await.unwrap();
            server.send(&who).await.unwrap();
        }
        while let Some(answered) = clients.join_next().await {
            assert_eq!(answered.unwrap(), 1);
        }
    })
    .await;
}

#[tokio::test]
async fn errors_keep_their_reason() {
    let nobody = Stream::connect(name("nobody")).await.unwrap_err();
    assert_eq!((nobody.kind(), nobody.argument()), (ErrorKind::ConnectionRefused, Some("name")));
    assert!(nobody.reason().unwrap().contains("nobody listens there"), "{nobody}");

    // The listener goes before it accepts.
    let at = name("gone");
    let listener = Listener::bind(&at).unwrap();
    let mut connect = Box::pin(Stream::connect(&at));
    assert!(once(connect.as_mut()).await.is_pending());
    drop(listener);
    let gone = within_limit(connect).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::ConnectionReset);
    assert!(gone.reason().unwrap().contains("before it accepted"), "{gone}");

    let (a, b) = Stream::pair().unwrap();
    let empty = a.recv_with_flags(&mut [0], RecvFlags::DONTWAIT).await.unwrap_err();
    assert!(empty.would_block() && empty.reason().is_some());
    assert_eq!(a.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(a.try_read(&mut [0]).unwrap_err().raw_os_error().is_some(), "the errno, as the kernel's");
    drop(b);
    let gone = a.send(b"x").await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::BrokenPipe);
    assert!(gone.reason().is_some());
}

#[tokio::test]
async fn halves_end_and_come_together_again() {
    let (a, mut b) = Stream::pair().unwrap();
    let (read, mut write) = a.into_split();
    write.write_all(b"all").await.unwrap();
    assert!(read.peer_addr().unwrap().is_unnamed() && write.local_addr().unwrap().is_unnamed());
    drop(write);
    let mut all = String::new();
    within_limit(b.read_to_string(&mut all)).await.unwrap();
    assert_eq!(all, "all");
    // The other direction goes on.
    b.write_all(b"back").await.unwrap();
    assert_eq!(within_limit(read.as_ref().recv(&mut [0; 9])).await.unwrap(), 4);

    let ((a, mut b), (c, _d)) = (Stream::pair().unwrap(), Stream::pair().unwrap());
    let ((a_read, a_write), (c_read, c_write)) = (a.into_split(), c.into_split());
    let strangers = a_read.reunite(c_write).unwrap_err();
    let mut a = strangers.0.reunite(a_write).unwrap();
    assert!(strangers.1.reunite(c_read).is_ok());
    a.write_all(b"whole").await.unwrap();
    b.read_exact(&mut [0; 5]).await.unwrap();

    // Who forgets his half ends nothing.
    let (a_read, a_write) = a.into_split();
    a_write.forget();
    assert_eq!(b.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(a_read);
    assert_eq!(within_limit(b.read(&mut [0])).await.unwrap(), 0);
}

/// A slot may be held over an await: the others are woken when it goes.
#[tokio::test]
async fn who_was_turned_away_by_a_slot_is_woken() {
    let (a, b) = Stream::pair().unwrap();
    for commits in [true, false] {
        let mut slot = a.reserve(5).await.unwrap();
        slot.copy_from(b"first");
        let mut second = Box::pin(a.send(b"second"));
        // Until it has been turned away, and waits.
        for _ in 0..100 {
            assert!(once(second.as_mut()).await.is_pending());
            yield_now().await;
        }
        if commits {
            slot.commit().unwrap();
        } else {
            drop(slot);
        }
        assert_eq!(within_limit(second).await.unwrap(), 6);
        let mut got = [0; 20];
        let n = b.recv(&mut got).await.unwrap();
        assert_eq!(&got[..n], if commits { &b"firstsecond"[..] } else { b"second" });
    }
}

#[tokio::test]
async fn a_dropped_send_gives_the_loan_to_its_pool_and_leaves_the_chain() {
    let config = Config { send_buffer: Some(4096), receive_buffer: Some(4096), ..Config::default() };
    let (a, b) = Stream::pair_with(&config).unwrap();
    let pool = SharedPool::new(4096, 1).unwrap();
    // The peer says that it maps pools by having received one page.
    let mut page = pool.loan(4096).unwrap();
    page.fill(1);
    assert_eq!(a.send_loan(page).await.unwrap(), 4096);
    assert_eq!(b.recv_chain(4096).await.unwrap().len(), 4096);
    assert!(a.stats().referenced == 4096);
    let mut filled = 0;
    while let Ok(n) = a.try_write(&[2; 1000]) {
        filled += n;
    }
    let page = pool.loan(4096).unwrap();
    assert!(pool.loan(1).is_err(), "there is one page");
    let mut send = Box::pin(a.send_loan(page));
    assert!(once(send.as_mut()).await.is_pending());
    drop(send);
    drop(pool.loan(1).expect("it is back"));

    let mut chain = Chain::new();
    pool.writer().append(&mut chain, &[3; 4000]).unwrap();
    let mut chain = Segment::from(chain);
    let mut send = Box::pin(a.send_chain(&mut chain));
    assert!(once(send.as_mut()).await.is_pending());
    drop(send);
    assert_eq!(chain.payload().len(), 4000, "it is as it was");
    // Sent later, it comes once, behind what was there.
    let receive = async {
        let mut got = Vec::new();
        while got.len() < filled + 4000 {
            let mut bytes = [0; 3000];
            let n = b.recv(&mut bytes).await.unwrap();
            got.extend_from_slice(&bytes[..n]);
        }
        got
    };
    let (sent, got) = within_limit(async { tokio::join!(a.send_chain(&mut chain), receive) }).await;
    assert_eq!(sent.unwrap(), 4000);
    assert!(got[..filled].iter().all(|byte| *byte == 2) && got[filled..].iter().all(|byte| *byte == 3));
    assert!(chain.payload().is_empty());
    assert!(b.try_read(&mut [0]).is_err(), "and nothing besides");
}

#[tokio::test]
async fn a_pair_and_an_accepted_stream_need_no_turn_of_the_driver() {
    let (a, b) = Stream::pair().unwrap();
    let mut writable = pin!(a.writable());
    assert!(once(writable.as_mut()).await.is_ready());
    let mut send = Box::pin(a.send(b"here"));
    assert!(once(send.as_mut()).await.is_ready());
    // It is there before epoll has told of it.
    assert_eq!(b.try_read(&mut [0; 9]).unwrap(), 4);
    let mut readable = Box::pin(b.readable());
    assert!(once(readable.as_mut()).await.is_pending());

    let at = name("accepted");
    let listener = Listener::bind(&at).unwrap();
    let client = Stream::connect(&at).await.unwrap();
    client.send(b"early").await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    let mut buffer = [0; 9];
    let mut recv = Box::pin(server.recv(&mut buffer));
    assert!(matches!(once(recv.as_mut()).await, Poll::Ready(Ok(5))));
}

#[tokio::test]
async fn it_goes_to_threads_and_back() {
    let (a, b) = Stream::pair().unwrap();
    let (a, b): (unix::Stream, unix::Stream) = (a.into_std().unwrap(), b.into_inner());
    assert!(a.nonblocking().unwrap());
    a.set_nonblocking(false).unwrap();
    a.send(b"by threads").unwrap();
    let (a, b) = (Stream::from_std(a).unwrap(), Stream::try_from(b).unwrap());
    assert!(a.get_ref().nonblocking().unwrap());
    let mut got = Vec::with_capacity(100);
    assert_eq!(b.try_read_buf(&mut got).unwrap(), 10);
    assert_eq!(got, b"by threads");
    assert!(a.path().is_shared_memory() && a.stats().sent == 10);
    assert_eq!(a.peer_cred().unwrap().pid(), Some(std::process::id() as i32));
    let _ = b.as_fd();

    // What a program does by itself goes by the runtime's readiness.
    a.send_with_flags(b"x", SendFlags::NTCOPY).await.unwrap();
    let read = || Ok::<_, io::Error>(b.get_ref().recv(&mut [0; 4])?);
    assert_eq!(within_limit(b.async_io(tokio::io::Interest::READABLE, read)).await.unwrap(), 1);
    let again =
        b.try_io(tokio::io::Interest::READABLE, || Ok::<_, io::Error>(b.get_ref().recv(&mut [0; 4])?));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_socket_is_bound_and_then_becomes_what_it_is_asked_to() {
    let (at, from) = (name("socket"), name("socket-from"));
    let socket = Socket::new_stream().unwrap();
    socket.bind(&at).unwrap();
    let listener = socket.listen(8).unwrap();
    assert_eq!(listener.local_addr().unwrap(), at);

    // With a name of its own, which the listener sees, it stays with the kernel. Without, it shares memory.
    for bound in [true, false] {
        let socket = Socket::new_stream().unwrap();
        if bound {
            socket.bind(&from).unwrap();
        }
        let client = socket.connect(&at).await.unwrap();
        let (server, who) = listener.accept().await.unwrap();
        assert_eq!(who.as_abstract_name(), from.as_abstract_name().filter(|_| bound));
        assert_eq!(client.peer_addr().unwrap(), at);
        for _ in 0..3 {
            client.send(b"there").await.unwrap();
            server.recv(&mut [0; 5]).await.unwrap();
            server.send(b"and back").await.unwrap();
            client.recv(&mut [0; 8]).await.unwrap();
        }
        assert_eq!(client.path().is_shared_memory(), !bound);
    }

    let datagram = || Socket::new_datagram().unwrap();
    let refused = [
        datagram().listen(8).unwrap_err(),
        datagram().connect(&at).await.unwrap_err(),
        Socket::new_stream().unwrap().datagram().unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.reason().unwrap().contains("cannot be called on a")));
    assert_eq!(Socket::new_stream().unwrap().listen(8).unwrap_err().kind(), ErrorKind::InvalidInput);
    let socket = datagram();
    socket.bind(&from).unwrap();
    assert_eq!(socket.datagram().unwrap().local_addr().unwrap(), from);
}

#[tokio::test]
async fn both_sides_wait_for_memory_and_a_wait_that_is_dropped_costs_nothing() {
    let name = name("wait");
    let listener = Listener::bind(&name).unwrap();
    let client = Stream::connect(&name).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    // Nobody waits at the other end.
    let alone = tokio::time::timeout(Duration::from_millis(20), client.wait_shared()).await;
    assert!(alone.is_err() && !client.path().is_shared_memory());
    let other = tokio::spawn(async move {
        server.wait_shared().await.unwrap();
        server
    });
    client.wait_shared().await.unwrap();
    let server = other.await.unwrap();
    client.set_policy(Policy::Cached);
    client.send(b"in memory").await.unwrap();
    let mut buffer = [0; 20];
    assert_eq!(server.recv(&mut buffer).await.unwrap(), 9);
    assert_eq!((client.policy(), client.stats().kernel_copied), (Policy::Cached, 0));
}
