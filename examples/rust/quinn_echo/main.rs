//! quinn, unchanged, over UDP of the program's own: QUIC between two stacks on one cable, some megabytes both ways.
//!
//! quinn asks for a socket by its trait `AsyncUdpSocket`; [`Datagrams`] is one of `onecopy::udp::tokio::Socket`, and passes on all that quinn
//! knows of UDP: trains out and in, congestion marks, this side's address.
//!
//! ```console
//! $ cargo run -p onecopy --features tokio --example quinn_echo             # 16 MiB
//! $ cargo run -p onecopy --features tokio --example quinn_echo -- 1000000
//! ```

use std::error::Error;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::{array, env, fmt};

use onecopy::advanced::link::Tap;
use onecopy::udp::tokio::Socket;
use onecopy::udp::{Ecn, Envelope, Meta};
use onecopy::{SendFlags, Stack, udp};
use quinn::udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, TokioRuntime, UdpPoller};
use tokio::io::Interest;

/// A socket for quinn.
#[derive(Debug)]
struct Datagrams {
    socket: Socket,
    counts: Mutex<Counts>,
}

/// What the kernel's sockets would have to be asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    trains_out: u64,
    trains_in: u64,
    /// Packets received with a congestion mark.
    marked: u64,
}

impl Datagrams {
    async fn bind(stack: &Stack, address: SocketAddr) -> onecopy::Result<Arc<Datagrams>> {
        let socket = Socket::bind(stack, address).await?;
        socket.get_ref().set_gro(true)?;
        socket.get_ref().set_recv_buffer_size(4 << 20)?;
        Ok(Arc::new(Datagrams { socket, counts: Mutex::default() }))
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) -> Counts {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut counts);
        *counts
    }
}

impl AsyncUdpSocket for Datagrams {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let envelope = Envelope {
            to: Some(transmit.destination),
            // (No longer than a datagram is.)
            gso: transmit.segment_size.map(|size| size as u16),
            service: transmit.ecn.map(|mark| mark as u8),
            source: transmit.src_ip,
        };
        self.count(|counts| counts.trains_out += u64::from(transmit.segment_size.is_some()));
        let contents = [IoSlice::new(transmit.contents)];
        let socket = self.socket.get_ref();
        let send = || Ok(socket.send_msg(&contents, &envelope, SendFlags::DONTWAIT)?);
        match self.socket.try_io(Interest::WRITABLE, send) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // What is lost QUIC sends again; one that is too long was to find out whether it is.
            _ => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        told: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut meta = [Meta::default(); BATCH_SIZE];
        let most = told.len().min(meta.len());
        let count = ready!(self.socket.poll_recv_many(context, buffers, &mut meta[..most]))?;
        for (told, meta) in told.iter_mut().zip(&meta[..count]) {
            *told = RecvMeta {
                addr: meta.from,
                len: meta.len,
                stride: meta.segment_size,
                ecn: match meta.ecn() {
                    Ecn::NotEct => None,
                    Ecn::Ect0 => Some(EcnCodepoint::Ect0),
                    Ecn::Ect1 => Some(EcnCodepoint::Ect1),
                    Ecn::Ce => Some(EcnCodepoint::Ce),
                },
                dst_ip: Some(meta.to.ip()),
            };
            self.count(|counts| {
                counts.trains_in += u64::from(meta.datagrams() > 1);
                counts.marked += u64::from(told.ecn.is_some());
            });
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.socket.local_addr()?)
    }

    /// As many as one packet takes of the longest.
    fn max_transmit_segments(&self) -> usize {
        udp::MAX_LEN / 1500
    }

    /// quinn's buffers are so many times as long as a datagram: they take any train.
    fn max_receive_segments(&self) -> usize {
        64
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// Waits for room, for one of quinn's tasks.
struct Room {
    socket: Arc<Datagrams>,
    waiting: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Arc::clone(&self.socket);
        let waiting =
            self.waiting.get_or_insert_with(|| Box::pin(async move { socket.socket.writable().await }));
        let done = ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(done)
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").finish_non_exhaustive()
    }
}

/// The configurations of a server whose certificate the client trusts.
fn configs() -> Result<(quinn::ServerConfig, quinn::ClientConfig), Box<dyn Error>> {
    let own = rcgen::generate_simple_self_signed(["example.org".to_owned()])?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let server = quinn::ServerConfig::with_single_cert(vec![own.cert.der().clone()], key.into())?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(own.cert.der().clone())?;
    Ok((server, quinn::ClientConfig::with_root_certificates(Arc::new(roots))?))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let len: usize = env::args().nth(1).map_or(Ok(16 << 20), |len| len.parse())?;
    // Two hosts. (Where a TAP may be had, `tap("onecopy0")` is the way to the kernel, and the world.)
    let (left, right) = Tap::cable(1500)?;
    let left = Stack::builder().link(left).address("10.0.0.1/24").build()?;
    let right = Stack::builder().link(right).address("10.0.0.2/24").build()?;
    let [near, far]: [SocketAddr; 2] = array::from_fn(|n| ([10, 0, 0, n as u8 + 1], 4433).into());
    let (server_config, client_config) = configs()?;

    let server_socket = Datagrams::bind(&right, far).await?;
    let runtime = Arc::new(TokioRuntime);
    let server = Endpoint::new_with_abstract_socket(
        EndpointConfig::default(),
        Some(server_config),
        server_socket.clone(),
        runtime.clone(),
    )?;
    let serving = tokio::spawn(async move {
        let connection = server.accept().await.ok_or("no connection")?.await?;
        let (mut send, mut receive) = connection.accept_bi().await?;
        let mut buffer = vec![0; 64 << 10];
        while let Some(n) = receive.read(&mut buffer).await? {
            send.write_all(&buffer[..n]).await?;
        }
        send.finish()?;
        connection.closed().await;
        Ok::<_, Box<dyn Error + Send + Sync>>(connection.stats())
    });

    let client_socket = Datagrams::bind(&left, near).await?;
    let client =
        Endpoint::new_with_abstract_socket(EndpointConfig::default(), None, client_socket.clone(), runtime)?;
    let connection = client.connect_with(client_config, far, "example.org")?.await?;
    let (mut send, mut receive) = connection.open_bi().await?;
    let data = pattern(len);
    let writing = async {
        send.write_all(&data).await?;
        send.finish()?;
        Ok::<_, Box<dyn Error>>(())
    };
    let reading = async { Ok::<_, Box<dyn Error>>(receive.read_to_end(len).await?) };
    let ((), back) = tokio::try_join!(writing, reading)?;
    assert!(back == data, "what came back is what was sent");
    let stats = connection.stats();
    connection.close(0_u8.into(), b"done");
    client.wait_idle().await;
    let server_stats = serving.await?.map_err(|error| error as Box<dyn Error>)?;

    println!("{len} bytes there and back, checked");
    for (name, socket, stats) in [("client", &client_socket, stats), ("server", &server_socket, server_stats)]
    {
        let Counts { trains_out, trains_in, marked } = socket.count(|_| ());
        println!(
            "{name}: {} datagrams out, {trains_out} trains; {} in, {trains_in} trains, {marked} packets with a mark; {} lost",
            stats.udp_tx.datagrams, stats.udp_rx.datagrams, stats.path.lost_packets,
        );
        // (A few bytes make no train.)
        if len > 1 << 20 {
            assert!(trains_out > 0 && trains_in > 0 && marked > 0, "quinn has what it asked for");
        }
    }
    Ok(())
}
