//! smoltcp, with what it has to be fast: a device that takes checksums, and super-segments where that is asked for, off its hands.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use onecopy_sys::tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use super::super::job::with;
use super::super::{aligned::Aligned, bytes};
use super::load::Trips;
use super::meter::Meter;
use super::plan::{ENGINE, PREFIX, Plan, Way};
use super::{add_up, check, seed};
use crate::proc;

/// The engine.
pub fn engine(job: &Value) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    let mut world = World::new(&plan)?;
    world.connect(&plan)?;
    let figures = match plan.way {
        Way::Send => world.send(&plan),
        Way::Recv => world.receive(&plan),
        Way::RoundTrips => world.round_trips(&plan),
    }?;
    let facts = json!({"buffers": format!("{0} out, {0} in", plan.buffer), "says": world.tap.says()});
    Ok(with(figures, facts))
}

/// virtio's header, as a TAP has it in front of each packet (linux/virtio_net.h).
const VIRTIO: usize = 10;
/// Ethernet, IPv4 without options: where TCP begins.
const TCP: usize = 14 + 20;

/// A TAP as smoltcp has devices.
struct Tap {
    fd: OwnedFd,
    mtu: usize,
    segmentation: bool,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    packets: [u64; 2],
    bytes: [u64; 2],
    refused: u64,
}

impl Tap {
    fn open(plan: &Plan) -> Result<Tap> {
        let open = || -> Result<OwnedFd, Errno> {
            let fd = tun::open()?;
            tun::attach(&fd, &plan.device, tun::Kind { ethernet: true, multi_queue: false })?;
            tun::set_header_len(&fd, VIRTIO as u32)?;
            tun::set_offload(&fd, tun::CHECKSUM | if plan.segmentation { tun::TSO4 } else { 0 })?;
            Ok(fd)
        };
        let fd = plan.peers()?.run(open)?.context("opening the TAP")?;
        let room = vec![0; VIRTIO + 14 + 65536];
        Ok(Tap {
            fd,
            mtu: plan.mtu as usize,
            segmentation: plan.segmentation,
            incoming: room.clone(),
            outgoing: room,
            packets: [0; 2],
            bytes: [0; 2],
            refused: 0,
        })
    }

    fn says(&self) -> String {
        let mean = |way: usize| self.bytes[way] / self.packets[way].max(1);
        format!(
            "{} packets out of {} bytes, {} in of {}, {} refused",
            self.packets[0],
            mean(0),
            self.packets[1],
            mean(1),
            self.refused
        )
    }
}

impl phy::Device for Tap {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Outgoing<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + 14;
        capabilities.checksum.tcp = Checksum::None;
        if self.segmentation {
            capabilities.segmentation.tcpv4 = (65535 + 14).try_into().ok();
        }
        capabilities
    }

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Outgoing<'_>)> {
        let read = rustix::io::read(&self.fd, &mut self.incoming[..]).ok()?;
        let packet = self.incoming.get(VIRTIO..read)?;
        self.packets[1] += 1;
        self.bytes[1] += packet.len() as u64;
        let Tap { fd, outgoing, packets, bytes, refused, .. } = self;
        let (packets, bytes) = (&mut packets[0], &mut bytes[0]);
        Some((
            Received(packet),
            Outgoing { fd, buffer: outgoing, packets, bytes, refused, meta: PacketMeta::default() },
        ))
    }

    fn transmit(&mut self, _: Instant) -> Option<Outgoing<'_>> {
        let Tap { fd, outgoing, packets, bytes, refused, .. } = self;
        let (packets, bytes) = (&mut packets[0], &mut bytes[0]);
        Some(Outgoing { fd, buffer: outgoing, packets, bytes, refused, meta: PacketMeta::default() })
    }
}

struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, act: F) -> R {
        act(self.0)
    }
}

struct Outgoing<'a> {
    fd: &'a OwnedFd,
    buffer: &'a mut [u8],
    packets: &'a mut u64,
    bytes: &'a mut u64,
    refused: &'a mut u64,
    meta: PacketMeta,
}

impl phy::TxToken for Outgoing<'_> {
    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }

    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, act: F) -> R {
        let packet = &mut self.buffer[..VIRTIO + len];
        packet[..VIRTIO].fill(0);
        let result = act(&mut packet[VIRTIO..]);
        let frame = &packet[VIRTIO..];
        // Of TCP alone is the checksum left out.
        if frame.len() > TCP + 13 && frame[12..14] == [8, 0] && frame[14 + 9] == 6 {
            let headers = (TCP + usize::from(frame[TCP + 12] >> 4) * 4) as u16;
            // VIRTIO_NET_HDR_F_NEEDS_CSUM
            packet[0] = 1;
            packet[6..8].copy_from_slice(&(TCP as u16).to_ne_bytes());
            packet[8..10].copy_from_slice(&16u16.to_ne_bytes());
            if let Some(size) = self.meta.segmentation_offload_size {
                // VIRTIO_NET_HDR_GSO_TCPV4
                packet[1] = 1;
                packet[2..4].copy_from_slice(&headers.to_ne_bytes());
                packet[4..6].copy_from_slice(&size.get().to_ne_bytes());
            }
        }
        *self.packets += 1;
        *self.bytes += len as u64;
        *self.refused += u64::from(rustix::io::write(self.fd, packet).is_err());
        result
    }
}

struct World {
    tap: Tap,
    interface: Interface,
    sockets: SocketSet<'static>,
    streams: Vec<SocketHandle>,
    spin: bool,
}

/// What a program says that it did with a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Did {
    Something,
    Nothing,
    Over,
}

fn time() -> Instant {
    Instant::from_micros((proc::now() * 1e6) as i64)
}

impl World {
    fn new(plan: &Plan) -> Result<World> {
        let mut tap = Tap::open(plan)?;
        let mac = EthernetAddress([2, 0, 0, 0, 0, 2]);
        let mut config = iface::Config::new(mac.into());
        config.random_seed = std::process::id().into();
        let mut interface = Interface::new(config, &mut tap, time());
        let mut full = false;
        interface
            .update_ip_addrs(|all| full = all.push(IpCidr::new(IpAddress::Ipv4(ENGINE), PREFIX)).is_err());
        ensure!(!full, "smoltcp has no room for an address");
        let mut sockets = SocketSet::new(Vec::new());
        let room = || SocketBuffer::new(vec![0; plan.buffer]);
        let streams = (0..plan.streams).map(|_| {
            let mut socket = Socket::new(room(), room());
            socket.set_nagle_enabled(!plan.nodelay());
            sockets.add(socket)
        });
        let streams = streams.collect();
        Ok(World { tap, interface, sockets, streams, spin: plan.spin })
    }

    fn connect(&mut self, plan: &Plan) -> Result<()> {
        for (stream, handle) in self.streams.iter().enumerate() {
            let socket = self.sockets.get_mut::<Socket>(*handle);
            // One that the rounds before did not have.
            let port = 10_000 + ((std::process::id() as usize * 64 + stream) % 50_000) as u16;
            let to = plan.address(stream);
            socket
                .connect(self.interface.context(), (IpAddress::Ipv4(*to.ip()), to.port()), port)
                .map_err(|error| anyhow!("connecting: {error:?}"))?;
        }
        self.run(|_, socket| match socket.state() {
            State::SynSent => Ok(Did::Nothing),
            State::Closed => bail!("the peer refused"),
            _ => Ok(Did::Over),
        })
    }

    /// Drives it until `act` says of every stream that it is over.
    fn run(&mut self, mut act: impl FnMut(usize, &mut Socket<'static>) -> Result<Did>) -> Result<()> {
        let mut over = vec![false; self.streams.len()];
        loop {
            // What comes, a few at a time, so that the program has its turn; what is to be said of it goes with the rest.
            let mut came = 0;
            for _ in 0..64 {
                match self.interface.poll_ingress_single(time(), &mut self.tap, &mut self.sockets) {
                    iface::PollIngressSingleResult::None => break,
                    _ => came += 1,
                }
            }
            let mut did = false;
            for (stream, handle) in self.streams.iter().enumerate() {
                if !over[stream] {
                    match act(stream, self.sockets.get_mut(*handle))? {
                        Did::Something => did = true,
                        Did::Nothing => {}
                        Did::Over => over[stream] = true,
                    }
                }
            }
            while self.interface.poll_egress(time(), &mut self.tap, &mut self.sockets)
                != iface::PollResult::None
            {}
            if over.iter().all(|over| *over) {
                return Ok(());
            }
            if came == 0 && !did && !self.spin {
                self.sleep()?;
            }
        }
    }

    fn sleep(&mut self) -> Result<()> {
        let delay =
            self.interface.poll_delay(time(), &self.sockets).map_or(100_000, |delay| delay.total_micros());
        let timeout = Timespec { tv_sec: (delay / 1_000_000) as _, tv_nsec: (delay % 1_000_000 * 1000) as _ };
        match poll(&mut [PollFd::new(&self.tap.fd.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn send(&mut self, plan: &Plan) -> Result<Value> {
        let until = proc::now() + plan.sending();
        let mut piece = Aligned::new(plan.piece, 0x5a);
        let mut sent = vec![0; plan.streams];
        self.run(|stream, socket| {
            if !socket.may_send() {
                // Its end was sent: over when the peer has it, and has ended the stream, too.
                return Ok(if socket.may_recv() || socket.state() == State::LastAck {
                    Did::Nothing
                } else {
                    Did::Over
                });
            }
            let at = &mut sent[stream];
            let left = plan.verify.map_or(u64::MAX, |total| total - *at);
            if left == 0 || plan.verify.is_none() && proc::now() >= until {
                socket.close();
                return Ok(Did::Something);
            }
            if !socket.can_send() {
                return Ok(Did::Nothing);
            }
            let len = left.min(piece.len() as u64) as usize;
            if plan.verify.is_some() {
                bytes::fill(&mut piece[..len], seed(stream), *at);
            }
            let len = socket.send_slice(&piece[..len]).map_err(|error| anyhow!("sending: {error:?}"))?;
            *at += len as u64;
            Ok(Did::Something)
        })?;
        Ok(json!({}))
    }

    fn receive(&mut self, plan: &Plan) -> Result<Value> {
        let mut meter = Meter::start(plan);
        let (mut counts, mut all, mut sum) = (vec![0; plan.streams], 0, 0);
        self.run(|stream, socket| {
            if plan.verify.is_none() {
                meter.tick(all)?;
            }
            if !socket.can_recv() {
                if socket.may_recv() {
                    return Ok(Did::Nothing);
                }
                socket.close();
                return Ok(Did::Over);
            }
            let at = counts[stream];
            // Read where it lies.
            let read = |part: &mut [u8]| {
                sum = add_up(sum, part);
                let right = if plan.verify.is_some() { check(stream, at, part) } else { Ok(()) };
                (part.len(), right.map(|()| part.len()))
            };
            let len = socket.recv(read).map_err(|error| anyhow!("receiving: {error:?}"))??;
            counts[stream] += len as u64;
            all += len as u64;
            Ok(Did::Something)
        })?;
        std::hint::black_box(sum);
        if plan.verify.is_some() { Ok(json!({"verified": all})) } else { meter.figures() }
    }

    fn round_trips(&mut self, plan: &Plan) -> Result<Value> {
        let mut trips = Trips::start(plan)?;
        let mut message = vec![0x5a; plan.piece];
        let mut sent = None;
        self.run(|_, socket| {
            if let Some(at) = sent {
                if socket.recv_queue() < message.len() {
                    ensure!(socket.may_recv(), "the peer is gone");
                    return Ok(Did::Nothing);
                }
                socket.recv_slice(&mut message).map_err(|error| anyhow!("receiving: {error:?}"))?;
                trips.back(at, &message)?;
            }
            sent = trips.message(&mut message);
            if sent.is_none() {
                socket.close();
                return Ok(Did::Over);
            }
            let len = socket.send_slice(&message).map_err(|error| anyhow!("sending: {error:?}"))?;
            ensure!(len == message.len(), "a message did not fit");
            message.fill(0);
            Ok(Did::Something)
        })?;
        Ok(trips.figures())
    }
}
