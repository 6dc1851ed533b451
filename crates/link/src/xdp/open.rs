//! From an interface's name to a link.

use super::error::What;
use super::receive::Receiver;
use super::ring::{Emptied, Filled};
use super::transmit::Transmitter;
use super::umem::Umem;
use super::{About, Hook, Stats, Xdp, XdpConfig};
use crate::capabilities::{Capabilities, Medium};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use onecopy_sys::netdev::Netdev;
use onecopy_sys::xdp::{Bind, FRAME, HEADROOM, MOST_ENTRIES, Rings};
use onecopy_sys::{bpf, interface, tun, xdp};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes beside the MTU in a frame: Ethernet's header and two tags.
const BESIDE: u32 = 14 + 8;

/// The longest MTU of packets of one frame.
const MOST: u32 = (FRAME - HEADROOM) as u32 - BESIDE;

/// The longest of packets of several, as many as the kernel takes.
const MOST_OF_SEVERAL: u32 = (MOST_ENTRIES * (FRAME - HEADROOM)) as u32 - BESIDE;

/// Pages that what was received is copied to where frames are short: 64 MiB, taken as needed.
const PAGES: u32 = 1 << 14;

/// Bytes that a packet takes of the send buffer: a frame, and what the kernel has beside it.
const SEND_BUFFER: usize = 2 * FRAME;

pub(super) fn open(config: XdpConfig) -> Result<Xdp, What> {
    if config.generic && config.zero_copy == Some(true) {
        return Err(What::Config(
            "behind the driver the kernel copies: do not ask for both generic and zero_copy",
        ));
    }
    // A socket without a copy has a driver's queue, and to that leads no program but the driver's.
    let copying = XdpConfig { zero_copy: Some(false), generic: true, ..config.clone() };
    if config.generic {
        return open_as(copying);
    }
    let must = config.zero_copy == Some(true);
    match open_as(config)? {
        xdp if xdp.about.hook == Hook::Driver || !xdp.about.zero_copy => Ok(xdp),
        _ if must => Err(What::Config(
            "its driver takes no program, and behind it the kernel copies: do not ask for zero_copy",
        )),
        xdp => {
            drop(xdp);
            open_as(copying)
        }
    }
}

fn open_as(config: XdpConfig) -> Result<Xdp, What> {
    let XdpConfig { name, queue, frames, zero_copy, generic, by_reference, unfinished, address } = config;
    if !frames.is_power_of_two() || !(256..=1 << 20).contains(&frames) {
        return Err(What::Config("frames are a power of two, 256 to 1,048,576"));
    }
    let index = interface::index(&name).map_err(What::Interface)?;
    let hardware_address =
        interface::hardware_address(&name).map_err(What::Interface)?.ok_or(What::NotEthernet)?;
    if !interface::is_up(&name).map_err(What::Interface)? {
        return Err(What::Down);
    }
    // (A driver that does not say how many queues it has, has one.)
    let queue = match (queue, interface::receive_queues(&name).unwrap_or(1)) {
        (Some(queue), _) => queue,
        (None, 0 | 1) => 0,
        (None, count) => return Err(What::Queues(count)),
    };
    let mtu = tun::mtu(&name).map_err(What::Interface)?;
    if mtu > MOST_OF_SEVERAL {
        return Err(What::Mtu { mtu, most: MOST_OF_SEVERAL });
    }
    let (rx, tx) = (frames / 4, frames / 8);
    let umem = Umem::new(frames, tx).map_err(What::Pages)?;
    let pages = PoolConfig::new().limit(PAGES);
    let pages = PagePool::new(pages, Heap::new()).map_err(What::Pages)?;
    let fd = xdp::socket().map_err(What::Socket)?;
    let (base, len) = (umem.region().base(), umem.region().len());
    xdp::register(&fd, base, len).map_err(|errno| What::Memory(len, errno))?;
    let rings = Rings::new(&fd, rx, tx).map_err(What::Rings)?;
    // (Where it is refused, what does not fit waits, and is tried again.)
    let _ = xdp::set_send_buffer(&fd, tx as usize * SEND_BUFFER);
    let several = bind(&fd, index, queue, zero_copy)?;
    let zero_copy = xdp::is_zero_copy(&fd).map_err(What::Socket)?;
    let entries = match (several, zero_copy) {
        (false, _) => 1,
        (true, false) => MOST_ENTRIES,
        // Of a packet in more parts the driver takes the rest for the next one. Where it does not say how many it takes, that is one.
        (true, true) => Netdev::open()
            .and_then(|netdev| netdev.most_segments(index))
            .ok()
            .flatten()
            .map_or(1, |most| (most as usize).clamp(1, MOST_ENTRIES)),
    };
    let most = if several { entries as u32 * (MOST + BESIDE) - BESIDE } else { MOST };
    if mtu > most {
        return Err(What::Mtu { mtu, most });
    }
    let multicast = match interface::receive_all(index, false) {
        Err(Errno::AFNOSUPPORT) => None,
        socket => Some(socket.map_err(What::Packets)?),
    };
    let other = address.is_some_and(|address| address != hardware_address);
    let whatever = other.then(|| interface::receive_all(index, true)).transpose().map_err(What::Packets)?;
    let map = bpf::socket_map(queue + 1).map_err(|errno| What::Program("a map of sockets", errno))?;
    let program = bpf::redirect_program(&map, several);
    let program = program.map_err(|errno| What::Program("the program", errno))?;
    let (link, hook) = attach(&program, index, generic)?;
    bpf::set_socket(&map, queue, &fd).map_err(|errno| What::Program("a place in the map", errno))?;
    let unfinished =
        unfinished.unwrap_or_else(|| interface::driver(&name).is_ok_and(|driver| driver == "veth"));
    let capabilities = Capabilities::none(Medium::Ethernet, mtu);
    let lent = if by_reference.unwrap_or(zero_copy) { entries } else { 0 };
    let Rings { fill, rx: received, tx, completion, origin } = rings;
    let mut xdp = Xdp {
        receiver: Receiver::new(Filled::new(fill), Emptied::new(received), rx, pages, unfinished, mtu),
        transmitter: Transmitter::new(
            Filled::new(tx),
            Emptied::new(completion),
            capabilities,
            lent,
            zero_copy,
        ),
        about: About { name, queue, hook, zero_copy, several, unfinished, hardware_address },
        _program: link,
        _multicast: multicast,
        _whatever: whatever,
        fd,
        umem,
        stats: Stats::default(),
        origin,
        again: None,
        looks_at: 0,
        gone: false,
    };
    xdp.fill(false);
    Ok(xdp)
}

/// The kernel frees a queue a little after its socket was closed, on a thread of its own (net/xdp/xsk_buff_pool.c: xp_release_deferred()): so long a queue that is in use
/// is tried again.
const PATIENCE: Duration = Duration::from_millis(500);

/// Binds the socket in the best way that there is: without a copy, if that is not unwanted, and with several frames a packet. Returns whether it is the latter.
fn bind(fd: &OwnedFd, index: u32, queue: u32, wanted: Option<bool>) -> Result<bool, What> {
    let ways = [(true, true), (true, false), (false, true), (false, false)];
    let ways = ways.into_iter().filter(|(zero_copy, _)| wanted.is_none_or(|wanted| wanted == *zero_copy));
    let (mut last, begun) = (Errno::OPNOTSUPP, Instant::now());
    for (zero_copy, several) in ways {
        let mut bound = xdp::bind(fd, index, queue, Bind { zero_copy, several });
        while bound == Err(Errno::BUSY) && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
            bound = xdp::bind(fd, index, queue, Bind { zero_copy, several });
        }
        match bound {
            Ok(()) => return Ok(several),
            // No other way is better.
            Err(errno @ (Errno::BUSY | Errno::NODEV | Errno::NETDOWN | Errno::PERM | Errno::ACCESS)) => {
                last = errno;
                break;
            }
            // The driver, or the kernel, cannot do it so. (Drivers say that in many ways.)
            Err(errno) => last = errno,
        }
    }
    Err(What::Bind { queue, zero_copy: wanted == Some(true), errno: last })
}

/// Attaches the program: in the driver, or else behind it.
fn attach(program: &OwnedFd, index: u32, generic: bool) -> Result<(OwnedFd, Hook), What> {
    let mut driver = Errno::OPNOTSUPP;
    if !generic {
        match bpf::attach(program, index, Hook::Driver) {
            Ok(link) => return Ok((link, Hook::Driver)),
            // There is a program, or no right to attach one: that is no better behind the driver.
            Err(errno @ (Errno::BUSY | Errno::EXIST | Errno::PERM | Errno::ACCESS)) => {
                return Err(What::Attach { driver: errno, generic: None });
            }
            Err(errno) => driver = errno,
        }
    }
    let link = bpf::attach(program, index, Hook::Generic);
    link.map(|link| (link, Hook::Generic)).map_err(|errno| What::Attach { driver, generic: Some(errno) })
}
