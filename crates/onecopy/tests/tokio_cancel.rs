//! Futures that are dropped at random: nothing is lost, nothing comes twice, nothing out of order. The programs go by
//! a seed, which a failure shows.

use onecopy::advanced::chain::{Chain, Kind};
use onecopy::advanced::notify::Segment;
use onecopy::unix::tokio::{Datagram, Listener, SeqListener, SeqPacket, Stream};
use onecopy::unix::{Config, SharedPool, SocketAddr};
use onecopy::{Carrier, ReceivedFlags, Transport};
use std::future::{Future, poll_fn};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::task::yield_now;

/// Far longer than any of it takes: a wake-up was lost.
const LIMIT: Duration = Duration::from_secs(120);

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Polls the future at most so many times, from none to three, and drops it.
async fn briefly<F: Future>(random: &mut Random, future: F) -> Option<F::Output> {
    let polls = random.below(4);
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
        yield_now().await;
    }
    None
}

/// The bytes of a stream at a position, and of record `at`.
fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn in_three(bytes: &[u8]) -> [IoSlice<'_>; 3] {
    let (a, rest) = bytes.split_at(bytes.len() / 5);
    let (b, c) = rest.split_at(rest.len() / 3);
    [IoSlice::new(a), IoSlice::new(b), IoSlice::new(c)]
}

/// A descriptor that tells its number.
fn numbered(number: usize) -> OwnedFd {
    let (reader, mut writer) = std::io::pipe().unwrap();
    write!(writer, "{number}").unwrap();
    reader.into()
}

fn number(fd: OwnedFd) -> usize {
    let mut text = String::new();
    std::fs::File::from(fd).read_to_string(&mut text).unwrap();
    text.parse().unwrap()
}

fn contents(chain: &Chain) -> Vec<u8> {
    let mut bytes = vec![0; chain.len()];
    match chain.kind() {
        Some(Kind::Peer) => {
            chain.peer().unwrap().copy_to(0, &mut bytes, onecopy::advanced::copy::Hint::AUTO).unwrap()
        }
        _ => chain.host().unwrap().copy_to(0, &mut bytes, onecopy::advanced::copy::Hint::AUTO).unwrap(),
    };
    bytes
}

/// Makes a chain of the pool's pages, or none while the peer has them.
fn chain_of(pool: &SharedPool, bytes: &[u8]) -> Option<Segment<Chain>> {
    let mut chain = Chain::new();
    pool.writer().append(&mut chain, bytes).ok()?;
    Some(Segment::from(chain))
}

fn name(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-tokio-cancel-{what}-{}", std::process::id())).unwrap()
}

/// Small buffers, which are full most of the time.
fn small(transport: Transport) -> Config {
    Config { transport, send_buffer: Some(8192), receive_buffer: Some(8192), ..Config::default() }
}

/// What the bytes go through in the end, even if the connection was upgraded on the way.
fn carrier(transport: Transport) -> Carrier {
    match transport {
        Transport::Auto => Carrier::SharedMemory,
        Transport::Kernel => Carrier::Kernel,
    }
}

async fn within_limit(what: impl Future) {
    tokio::time::timeout(LIMIT, what).await.expect("it hangs");
}

const BYTES: usize = 200_000;

/// Sends in every way, with descriptors if asked for. Returns how many bytes and how many descriptors.
async fn stream_sender(
    mut stream: Stream,
    mut random: Random,
    carrier: Carrier,
    with_fds: bool,
) -> (usize, usize) {
    let pool = SharedPool::new(4096, 4).unwrap();
    let (mut at, mut fds) = (0, 0);
    while at < BYTES {
        let bytes = pattern(at, 1 + random.below(6000));
        match random.below(7) {
            0 => at += briefly(&mut random, stream.send(&bytes)).await.map_or(0, Result::unwrap),
            1 => {
                let sent = briefly(&mut random, stream.send_vectored(&in_three(&bytes))).await;
                at += sent.map_or(0, Result::unwrap);
            }
            2 if with_fds => {
                let fd = numbered(fds);
                if let Some(sent) = briefly(&mut random, stream.send_fds(&bytes, &[fd.as_fd()])).await {
                    at += sent.unwrap();
                    fds += 1;
                }
            }
            3 => {
                let (mut other, keeps) = (Random(random.0 ^ 99), random.below(2) == 0);
                if let Some(slot) = briefly(&mut random, stream.reserve(bytes.len())).await {
                    let mut slot = slot.unwrap();
                    slot.copy_from(&bytes);
                    // Others wait meanwhile.
                    briefly(&mut other, yield_now()).await;
                    match if keeps { slot.commit() } else { Ok(0) } {
                        Err(error) if error.would_block() => {}
                        sent => at += sent.unwrap(),
                    }
                }
            }
            4 => {
                let bytes = &bytes[..bytes.len().min(4096)];
                let Ok(mut loan) = pool.loan(bytes.len()) else { continue };
                loan.copy_from_slice(bytes);
                match briefly(&mut random, stream.send_loan(loan)).await {
                    Some(Ok(sent)) => at += sent,
                    // A copy that had not room for all.
                    Some(Err(not)) => {
                        assert!(not.error.would_block(), "{not}");
                        at += bytes.len() - not.loan.len();
                    }
                    None => {}
                }
            }
            5 => {
                let Some(mut chain) = chain_of(&pool, &bytes) else { continue };
                let mut left = bytes.len();
                for _ in 0..3 {
                    let sent = briefly(&mut random, stream.send_chain(&mut chain)).await;
                    left -= sent.map_or(0, Result::unwrap);
                    assert_eq!(chain.payload().len(), left, "the chain is cut to what was not sent");
                }
                at += bytes.len() - left;
            }
            _ => {
                let sent = briefly(&mut random, stream.write_vectored(&in_three(&bytes))).await;
                at += sent.map_or(0, Result::unwrap);
            }
        }
        if random.below(3) == 0 {
            yield_now().await;
        }
    }
    assert_eq!(stream.path().send, carrier);
    stream.get_ref().shutdown(Shutdown::Write).unwrap();
    // What the peer holds comes home before the stream goes.
    let _ = stream.recv(&mut [0]).await;
    (at, fds)
}

async fn stream_receiver(mut stream: Stream, mut random: Random, with_fds: bool) -> (usize, usize) {
    let (mut at, mut fds) = (0, 0);
    let (mut one, mut two) = (vec![0; 3000], vec![0; 3000]);
    loop {
        let way = if with_fds { random.below(2) } else { random.below(8) };
        let got = match way {
            0 => {
                let got = briefly(&mut random, stream.recv_fds(&mut one)).await;
                got.map(|got| {
                    let (n, came) = got.unwrap();
                    for fd in came.fds {
                        assert_eq!(number(fd), fds, "descriptors at {at}");
                        fds += 1;
                    }
                    one[..n].to_vec()
                })
            }
            1 => {
                if let Some(seen) = briefly(&mut random, stream.peek(&mut one)).await {
                    let seen = seen.unwrap();
                    assert!(one[..seen] == pattern(at, seen), "peeked at {at}");
                }
                continue;
            }
            2 => {
                let got = briefly(&mut random, stream.recv(&mut one)).await;
                got.map(|n| one[..n.unwrap()].to_vec())
            }
            3 => {
                let mut slices = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
                let got = briefly(&mut random, stream.recv_vectored(&mut slices)).await;
                got.map(|n| [&one[..], &two[..]].concat()[..n.unwrap()].to_vec())
            }
            4 => briefly(&mut random, stream.recv_borrowed(5000)).await.map(|view| {
                let (view, mut bytes) = (view.unwrap(), vec![0; 5000]);
                let n = view.copy_to(&mut bytes);
                bytes[..n].to_vec()
            }),
            5 => {
                let got = briefly(&mut random, stream.recv_chain(5000)).await;
                got.map(|chain| contents(&chain.unwrap()))
            }
            6 => {
                let mut bytes = Vec::with_capacity(5000);
                let got = briefly(&mut random, stream.read_buf(&mut bytes)).await;
                assert_eq!(*got.as_ref().map_or(&0, |n| n.as_ref().unwrap()), bytes.len());
                got.map(|_| bytes)
            }
            _ => {
                let _ = briefly(&mut random, stream.readable()).await;
                match stream.try_read(&mut one) {
                    Ok(n) => Some(one[..n].to_vec()),
                    Err(error) => {
                        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                        None
                    }
                }
            }
        };
        match got {
            Some(bytes) if bytes.is_empty() => return (at, fds),
            Some(bytes) => {
                assert!(bytes == pattern(at, bytes.len()), "{} bytes at {at}, way {way}", bytes.len());
                at += bytes.len();
            }
            None => yield_now().await,
        }
    }
}

#[tokio::test]
async fn streams_lose_and_double_nothing() {
    for seed in 1..=6u64 {
        println!("seed {seed}");
        let random = |n: u64| Random((seed * 2 + n) * 0x9e37_79b9);
        for (transport, with_fds) in
            [(Transport::Auto, false), (Transport::Auto, true), (Transport::Kernel, true)]
        {
            let config = small(transport);
            // Half of them are upgraded on the way.
            let (a, b) = if seed % 2 == 0 {
                Stream::pair_with(&config).unwrap()
            } else {
                let name = name("streams");
                let listener = Listener::bind_with(&name, &config).unwrap();
                let client = Stream::connect_with(&name, &config).await.unwrap();
                (client, listener.accept().await.unwrap().0)
            };
            within_limit(async {
                let (sent, got) = tokio::join!(
                    stream_sender(a, random(1), carrier(transport), with_fds),
                    tokio::spawn(stream_receiver(b, random(2), with_fds))
                );
                assert_eq!(sent, got.unwrap(), "bytes and descriptors");
            })
            .await;
        }
    }
}

const RECORDS: usize = 700;

/// Record `n`: its length and its bytes follow from the number.
fn record(n: usize) -> Vec<u8> {
    pattern(n, 4 + n * 7 % 2500)
}

/// Sends all records in every way, with descriptors if asked for. Returns how many of those.
async fn record_sender(socket: SeqPacket, mut random: Random, with_fds: bool) -> usize {
    let pool = SharedPool::new(4096, 4).unwrap();
    let (mut n, mut fds) = (0, 0);
    while n < RECORDS {
        let bytes = record(n);
        let sent = match random.below(6) {
            0 => briefly(&mut random, socket.send(&bytes)).await.map(Result::unwrap),
            1 => briefly(&mut random, socket.send_vectored(&in_three(&bytes))).await.map(Result::unwrap),
            2 if with_fds => {
                let fd = numbered(fds);
                let sent = briefly(&mut random, socket.send_fds(&bytes, &[fd.as_fd()])).await;
                fds += usize::from(sent.is_some());
                sent.map(Result::unwrap)
            }
            3 => match briefly(&mut random, socket.reserve(bytes.len())).await {
                Some(slot) => {
                    let mut slot = slot.unwrap();
                    slot.copy_from(&bytes);
                    (n % 3 != 0).then(|| slot.commit().unwrap())
                }
                None => None,
            },
            4 => {
                let Ok(mut loan) = pool.loan(bytes.len()) else { continue };
                loan.copy_from_slice(&bytes);
                briefly(&mut random, socket.send_loan(loan)).await.map(Result::unwrap)
            }
            _ => {
                let (head, tail) = bytes.split_at(3);
                let Some(mut chain) = chain_of(&pool, tail) else { continue };
                let sent =
                    briefly(&mut random, socket.send_chain(head, &mut chain)).await.map(Result::unwrap);
                assert_eq!(chain.payload().len(), if sent.is_some() { 0 } else { tail.len() });
                sent
            }
        };
        if let Some(sent) = sent {
            assert_eq!(sent, bytes.len());
            n += 1;
        }
        if random.below(3) == 0 {
            yield_now().await;
        }
    }
    socket.get_ref().shutdown(Shutdown::Write).unwrap();
    let _ = socket.recv(&mut [0]).await;
    fds
}

async fn record_receiver(socket: SeqPacket, mut random: Random, with_fds: bool) -> usize {
    let (mut n, mut fds) = (0, 0);
    let mut buffer = vec![0; 4096];
    loop {
        let got = match if with_fds { random.below(2) } else { random.below(6) } {
            0 => briefly(&mut random, socket.recv_fds(&mut buffer)).await.map(|got| {
                let (received, came) = got.unwrap();
                for fd in came.fds {
                    assert_eq!(number(fd), fds, "descriptors at {n}");
                    fds += 1;
                }
                (buffer[..received.len].to_vec(), received.flags)
            }),
            1 => {
                if let Some(len) = briefly(&mut random, socket.peek(&mut buffer)).await {
                    let len = len.unwrap();
                    assert!(len == 0 || buffer[..len] == record(n), "peeked at {n}");
                }
                continue;
            }
            2 => briefly(&mut random, socket.recv_borrowed(4096)).await.map(|got| {
                let (view, flags) = got.unwrap();
                let len = view.copy_to(&mut buffer);
                (buffer[..len].to_vec(), flags)
            }),
            3 => briefly(&mut random, socket.recv_chain(&mut buffer)).await.map(|got| {
                let (head, chain) = got.unwrap();
                ([&buffer[..head.len], &contents(&chain)].concat(), head.flags)
            }),
            4 => poll_fn(|context| match socket.poll_recv_record(context, &mut buffer) {
                Poll::Ready(got) => Poll::Ready(Some(got.unwrap())),
                Poll::Pending => Poll::Ready(None),
            })
            .await
            .map(|got| (buffer[..got.len].to_vec(), got.flags)),
            _ => briefly(&mut random, socket.recv_record(&mut buffer)).await.map(|got| {
                let got = got.unwrap();
                (buffer[..got.len].to_vec(), got.flags)
            }),
        };
        match got {
            Some((_, flags)) if flags.contains(ReceivedFlags::END) => {
                assert_eq!(n, RECORDS);
                return fds;
            }
            Some((bytes, _)) => {
                assert!(bytes == record(n), "record {n}: {} bytes", bytes.len());
                n += 1;
            }
            None => yield_now().await,
        }
    }
}

#[tokio::test]
async fn records_are_neither_lost_nor_doubled() {
    for seed in 1..=4u64 {
        println!("seed {seed}");
        let random = |n: u64| Random((seed * 2 + n) * 0x9e37_79b9);
        for (transport, with_fds) in
            [(Transport::Auto, false), (Transport::Auto, true), (Transport::Kernel, true)]
        {
            let config = small(transport);
            let (a, b) = if seed % 2 == 0 {
                SeqPacket::pair_with(&config).unwrap()
            } else {
                let name = name("records");
                let listener = SeqListener::bind_with(&name, &config).unwrap();
                let client = SeqPacket::connect_with(&name, &config).await.unwrap();
                (client, listener.accept().await.unwrap().0)
            };
            within_limit(async {
                let (sent, got) = tokio::join!(
                    record_sender(a, random(1), with_fds),
                    tokio::spawn(record_receiver(b, random(2), with_fds))
                );
                assert_eq!(sent, got.unwrap(), "descriptors");
            })
            .await;
        }
    }
}

async fn datagram_sender(
    socket: &Datagram,
    to: Option<&SocketAddr>,
    mut random: Random,
    with_fds: bool,
) -> usize {
    let (mut n, mut fds) = (0, 0);
    while n < RECORDS {
        let bytes = record(n);
        let sent = match (random.below(4), to) {
            (3, None) if with_fds => {
                let fd = numbered(fds);
                let sent = briefly(&mut random, socket.send_fds(&bytes, &[fd.as_fd()])).await;
                fds += usize::from(sent.is_some());
                sent.map(Result::unwrap)
            }
            (2, None) => {
                briefly(&mut random, socket.send_vectored(&in_three(&bytes))).await.map(Result::unwrap)
            }
            (_, None) => briefly(&mut random, socket.send(&bytes)).await.map(Result::unwrap),
            (0, Some(name)) => {
                poll_fn(|context| match socket.poll_send_to(context, &bytes, name) {
                    Poll::Ready(sent) => Poll::Ready(Some(sent.unwrap())),
                    Poll::Pending => Poll::Ready(None),
                })
                .await
            }
            (_, Some(name)) => briefly(&mut random, socket.send_to(&bytes, name)).await.map(Result::unwrap),
        };
        if let Some(sent) = sent {
            assert_eq!(sent, bytes.len());
            n += 1;
        }
        if random.below(3) == 0 {
            yield_now().await;
        }
    }
    fds
}

async fn datagram_receiver(socket: Datagram, mut random: Random, with_fds: bool) -> usize {
    let (mut n, mut fds) = (0, 0);
    let mut buffer = vec![0; 4096];
    while n < RECORDS {
        let got = match if with_fds { random.below(2) } else { random.below(6) } {
            0 => briefly(&mut random, socket.recv_fds(&mut buffer)).await.map(|got| {
                let (received, came, _) = got.unwrap();
                for fd in came.fds {
                    assert_eq!(number(fd), fds, "descriptors at {n}");
                    fds += 1;
                }
                buffer[..received.len].to_vec()
            }),
            1 => {
                if let Some(len) = briefly(&mut random, socket.peek(&mut buffer)).await {
                    assert!(buffer[..len.unwrap()] == record(n), "peeked at {n}");
                }
                continue;
            }
            2 => {
                let got = briefly(&mut random, socket.recv_from(&mut buffer)).await;
                got.map(|got| buffer[..got.unwrap().0].to_vec())
            }
            3 => {
                let mut bytes = Vec::with_capacity(4096);
                let got = briefly(&mut random, socket.recv_buf(&mut bytes)).await;
                got.map(|n| bytes[..n.unwrap()].to_vec())
            }
            4 => {
                let mut bytes = ReadBuf::new(&mut buffer);
                let polled = poll_fn(|context| Poll::Ready(socket.poll_recv(context, &mut bytes))).await;
                polled.is_ready().then(|| bytes.filled().to_vec())
            }
            _ => {
                let got = briefly(&mut random, socket.recv(&mut buffer)).await;
                got.map(|n| buffer[..n.unwrap()].to_vec())
            }
        };
        match got {
            Some(bytes) => {
                assert!(bytes == record(n), "datagram {n}: {} bytes", bytes.len());
                n += 1;
            }
            None => yield_now().await,
        }
    }
    fds
}

#[tokio::test]
async fn datagrams_are_neither_lost_nor_doubled() {
    for seed in 1..=4u64 {
        println!("seed {seed}");
        let random = |n: u64| Random((seed * 2 + n) * 0x9e37_79b9);
        for way in ["pair", "kernel", "fan-in", "unconnected"] {
            println!("{way}");
            let config = small(if way == "kernel" { Transport::Kernel } else { Transport::Auto });
            let name = name("datagrams");
            let (a, b, to) = match way {
                "pair" | "kernel" => {
                    let (a, b) = Datagram::pair_with(&config).unwrap();
                    (a, b, None)
                }
                "fan-in" => {
                    let many = Datagram::bind_with(&name, &config).unwrap();
                    let one = Datagram::unbound_with(&config).unwrap();
                    one.connect(&name).unwrap();
                    (one, many, None)
                }
                _ => {
                    let many = Datagram::bind_with(&name, &config).unwrap();
                    (Datagram::unbound_with(&config).unwrap(), many, Some(&name))
                }
            };
            within_limit(async {
                let with_fds = to.is_none() && seed % 2 == 0;
                let receiver = tokio::spawn(datagram_receiver(b, random(2), with_fds));
                let sent = datagram_sender(&a, to, random(1), with_fds).await;
                // The sender stays until all is received: what it sent would be gone with it.
                let got = receiver.await.unwrap();
                assert!(!with_fds || sent == got, "descriptors");
            })
            .await;
        }
    }
}

#[tokio::test]
async fn each_connection_is_accepted_once() {
    const CONNECTIONS: usize = 200;
    let name = name("accept");
    let config = Config { backlog: 2, ..Config::default() };
    let listener = Listener::bind_with(&name, &config).unwrap();
    within_limit(async {
        let server = tokio::spawn(async move {
            let (mut random, mut seen) = (Random(77), Vec::new());
            while seen.len() < CONNECTIONS {
                let Some(accepted) = briefly(&mut random, listener.accept()).await else {
                    yield_now().await;
                    continue;
                };
                let mut text = String::new();
                accepted.unwrap().0.read_to_string(&mut text).await.unwrap();
                // A connect that was dropped may have come as far as here, and says nothing.
                if !text.is_empty() {
                    seen.push(text.parse::<usize>().unwrap());
                }
            }
            seen
        });
        let mut random = Random(78);
        for n in 0..CONNECTIONS {
            let mut client = loop {
                if let Some(connected) = briefly(&mut random, Stream::connect(&name)).await {
                    break connected.unwrap();
                }
            };
            client.write_all(n.to_string().as_bytes()).await.unwrap();
        }
        assert_eq!(server.await.unwrap(), (0..CONNECTIONS).collect::<Vec<_>>());
    })
    .await;
}
