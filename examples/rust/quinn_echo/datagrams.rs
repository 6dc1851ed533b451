//! A socket of `onecopy::udp` as quinn asks for one.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use onecopy::udp::tokio::Socket;
use onecopy::udp::{Ecn, Envelope, Meta};
use onecopy::{SendFlags, Stack, udp};
use quinn::udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;

/// A socket for quinn.
#[derive(Debug)]
pub struct Datagrams {
    socket: Socket,
    counts: Mutex<Counts>,
}

/// What the kernel's sockets would have to be asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub trains_out: u64,
    pub trains_in: u64,
    /// Packets received with a congestion mark.
    pub marked: u64,
}

impl Datagrams {
    /// Binds one, which asks for trains.
    pub async fn bind(stack: &Stack, address: SocketAddr) -> onecopy::Result<Arc<Datagrams>> {
        let socket = Socket::bind(stack, address).await?;
        socket.get_ref().set_gro(true)?;
        socket.get_ref().set_recv_buffer_size(4 << 20)?;
        Ok(Arc::new(Datagrams { socket, counts: Mutex::default() }))
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
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
