//! getsockopt(2) and setsockopt(2).

use crate::bytes::TCP_INQ;
use crate::control;
use crate::environment;
use crate::errno::{Errno, Outcome};
use crate::memory::User;
use crate::tcp::{Info, Keys, Settings};
use crate::world::{self, World};
use libc::{IPPROTO_TCP, SOL_IP, SOL_SOCKET};
use std::time::Duration;

/// include/uapi/asm-generic/socket.h.
const SO_MEMINFO: i32 = 55;
const SO_ZEROCOPY: i32 = 60;
/// include/uapi/linux/tcp.h.
const TCP_FASTOPEN_KEY: i32 = 33;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
/// The least that a send buffer is (SOCK_MIN_SNDBUF), and a receive buffer (SOCK_MIN_RCVBUF), in include/net/sock.h.
const LEAST_SEND_BUFFER: u32 = 4608;
const LEAST_RECEIVE_BUFFER: u32 = 2304;
/// The MSS before anything is known (TCP_MSS_DEFAULT).
const DEFAULT_MSS: u32 = 536;

/// Options that are kept and told again: the kernel's stack does something by them that no script here looks at, or that the adapter has no
/// use for. (level, name, value before it is set)
const KEPT: [(i32, i32, i32); 18] = [
    (SOL_SOCKET, libc::SO_DEBUG, 0),
    (SOL_SOCKET, libc::SO_DONTROUTE, 0),
    (SOL_SOCKET, libc::SO_OOBINLINE, 0),
    (SOL_SOCKET, libc::SO_PRIORITY, 0),
    (SOL_SOCKET, libc::SO_MARK, 0),
    (SOL_SOCKET, libc::SO_REUSEPORT, 0),
    (SOL_SOCKET, libc::SO_TIMESTAMP, 0),
    (SOL_SOCKET, libc::SO_INCOMING_CPU, -1),
    (SOL_SOCKET, libc::SO_BUSY_POLL, 0),
    (SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT),
    (SOL_IP, libc::IP_FREEBIND, 0),
    (SOL_IP, libc::IP_TRANSPARENT, 0),
    (SOL_IP, libc::IP_RECVERR, 0),
    (SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 0),
    (IPPROTO_TCP, libc::TCP_QUICKACK, 1),
    (IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, 0),
    (IPPROTO_TCP, libc::TCP_THIN_DUPACK, 0),
    (IPPROTO_TCP, libc::TCP_SAVE_SYN, 0),
];

/// setsockopt(2).
pub(crate) fn set(fd: i32, level: i32, name: i32, at: User, len: u32) -> Outcome<isize> {
    world::call(|world| {
        let (id, now) = (world.socket(fd)?.id, world.now);
        if (level, name) == (SOL_SOCKET, libc::SO_LINGER) {
            let mut settings = world.tcp.settings(id);
            let (on, seconds) = (at.int()?, at.at(4).int()?);
            settings.linger = (on != 0).then(|| Duration::from_secs(seconds.max(0) as u64));
            world.tcp.set(now, id, &settings)?;
            return Ok(0);
        }
        if level == SOL_SOCKET && (name == libc::SO_RCVTIMEO || name == libc::SO_SNDTIMEO) {
            let span = at.word()? * 1_000_000_000 + at.at(8).word()? * 1_000;
            let socket = world.socket(fd)?;
            let timeout = if name == libc::SO_RCVTIMEO {
                &mut socket.receive_timeout
            } else {
                &mut socket.send_timeout
            };
            *timeout = (span > 0).then_some(span);
            return Ok(0);
        }
        if (level, name) == (IPPROTO_TCP, TCP_FASTOPEN_KEY) {
            let bytes = at.read((len as usize).min(33))?;
            let mut settings = world.tcp.settings(id);
            settings.fast_open_keys = Some(Keys::from_bytes(&bytes).ok_or(Errno(libc::EINVAL))?);
            world.tcp.set(now, id, &settings)?;
            return Ok(0);
        }
        // As IP_TOS and its like, a single byte is a number, too.
        let value = match len {
            4.. => at.int()?,
            1..=3 if level == SOL_IP => i32::from(at.read(1)?[0]),
            _ => return Err(Errno(libc::EINVAL)),
        };
        if !set_own(world, fd, level, name, value)? {
            set_connection(world, fd, level, name, value)?;
        }
        Ok(0)
    })
}

/// What the adapter keeps itself; whether it was one of these.
fn set_own(world: &mut World, fd: i32, level: i32, name: i32, value: i32) -> Outcome<bool> {
    let id = world.socket(fd)?.id;
    let acknowledged = world.tcp.progress(id).1;
    let socket = world.socket(fd)?;
    match (level, name) {
        (SOL_SOCKET, libc::SO_REUSEADDR) => socket.reuse = value != 0,
        (SOL_SOCKET, SO_ZEROCOPY) if !(0..=1).contains(&value) => return Err(Errno(libc::EINVAL)),
        (SOL_SOCKET, SO_ZEROCOPY) => socket.zerocopy = value != 0,
        (SOL_SOCKET, libc::SO_TIMESTAMPING) => {
            socket.stamping = value as u32;
            socket.key_base = acknowledged;
        }
        (IPPROTO_TCP, TCP_INQ) if !(0..=1).contains(&value) => return Err(Errno(libc::EINVAL)),
        (IPPROTO_TCP, TCP_INQ) => socket.inquire = value != 0,
        _ if KEPT.iter().any(|kept| (kept.0, kept.1) == (level, name)) => socket.keep(level, name, value),
        _ => return Ok(false),
    }
    Ok(true)
}

/// What the connection goes by.
fn set_connection(world: &mut World, fd: i32, level: i32, name: i32, value: i32) -> Outcome<()> {
    let (id, now) = (world.socket(fd)?.id, world.now);
    let mut settings = world.tcp.settings(id);
    let set = &mut settings;
    let seconds = |value: i32| Duration::from_secs(value.max(0) as u64);
    let invalid = Err(Errno(libc::EINVAL));
    // (TCP_CLOSE and TCP_LISTEN.)
    let idle = world.tcp.is_unconnected(id) || world.tcp.listens(id);
    match (level, name) {
        (SOL_SOCKET, libc::SO_KEEPALIVE) => set.keepalive = value != 0,
        (SOL_SOCKET, libc::SO_SNDBUF) => set.send_buffer = Some(buffer(value, "wmem_max", LEAST_SEND_BUFFER)),
        (SOL_SOCKET, libc::SO_SNDBUFFORCE) => {
            set.send_buffer = Some((value.max(0) as u32).saturating_mul(2).max(LEAST_SEND_BUFFER));
        }
        (SOL_SOCKET, libc::SO_RCVBUF) => {
            set.receive_buffer = Some(buffer(value, "rmem_max", LEAST_RECEIVE_BUFFER));
        }
        (SOL_SOCKET, libc::SO_RCVBUFFORCE) => {
            set.receive_buffer = Some((value.max(0) as u32).saturating_mul(2).max(LEAST_RECEIVE_BUFFER));
        }
        (SOL_SOCKET, libc::SO_RCVLOWAT) => {
            set.receive_low_water = if value < 0 { i32::MAX as u32 } else { (value as u32).max(1) };
        }
        (SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            set.max_pacing_rate = (value != -1).then_some(value as u32).map(u64::from);
        }
        (SOL_IP, libc::IP_TOS) => set.service = value as u8 & !3,
        (SOL_IP, libc::IP_TTL) if value == -1 => set.ttl = 64,
        (SOL_IP, libc::IP_TTL) if !(1..=255).contains(&value) => return invalid,
        (SOL_IP, libc::IP_TTL) => set.ttl = value as u8,
        (IPPROTO_TCP, libc::TCP_NODELAY) => set.nodelay = value != 0,
        (IPPROTO_TCP, libc::TCP_CORK) => set.cork = value != 0,
        (IPPROTO_TCP, libc::TCP_MAXSEG) if value != 0 && !(88..=32767).contains(&value) => return invalid,
        (IPPROTO_TCP, libc::TCP_MAXSEG) => set.max_segment = (value != 0).then_some(value as u16),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) if !(1..=32767).contains(&value) => return invalid,
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) => set.keepalive_time = Some(seconds(value)),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL) if !(1..=32767).contains(&value) => return invalid,
        (IPPROTO_TCP, libc::TCP_KEEPINTVL) => set.keepalive_interval = Some(seconds(value)),
        (IPPROTO_TCP, libc::TCP_KEEPCNT) if !(1..=127).contains(&value) => return invalid,
        (IPPROTO_TCP, libc::TCP_KEEPCNT) => set.keepalive_probes = Some(value as u8),
        (IPPROTO_TCP, libc::TCP_SYNCNT) if !(1..=127).contains(&value) => return invalid,
        (IPPROTO_TCP, libc::TCP_SYNCNT) => set.syn_retries = Some(value as u8),
        (IPPROTO_TCP, libc::TCP_LINGER2) => set.fin_wait = Some(seconds(value)),
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => set.defer_accept = (value > 0).then(|| seconds(value)),
        (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => set.window_clamp = (value != 0).then_some(value as u32),
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) if value < 0 => return invalid,
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            set.user_timeout = (value > 0).then(|| Duration::from_millis(value as u64));
        }
        (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => set.notsent_lowat = (value != 0).then_some(value as u32),
        (IPPROTO_TCP, libc::TCP_FASTOPEN) if value < 0 || !idle => return invalid,
        (IPPROTO_TCP, libc::TCP_FASTOPEN) => set.fast_open_queue = Some(value as u32),
        (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) if !(0..=1).contains(&value) => return invalid,
        (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) if !control::fast_open_client() => {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) if !world.tcp.is_unconnected(id) => return invalid,
        (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => set.fast_open_connect = value != 0,
        (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) if !(0..=1).contains(&value) || !idle => return invalid,
        (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => set.fast_open_no_cookie = value != 0,
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    }
    world.tcp.set(now, id, &settings)?;
    if (level, name) == (IPPROTO_TCP, libc::TCP_NODELAY) && value != 0 {
        world.tcp.push(now, id);
    }
    world.touch();
    Ok(())
}

/// What becomes of a buffer's size that a program asks for.
fn buffer(value: i32, most: &str, least: u32) -> u32 {
    // Without a namespace's own there is the host's.
    let most = environment::core(most).unwrap_or(212_992);
    (value as u32).min(most).saturating_mul(2).max(least)
}

/// getsockopt(2).
pub(crate) fn get(fd: i32, level: i32, name: i32, at: User, len_at: User) -> Outcome<isize> {
    world::call(|world| {
        let room = usize::try_from(len_at.int()?).map_err(|_| Errno(libc::EINVAL))?;
        let bytes = answer(world, fd, level, name)?;
        let len = bytes.len().min(room);
        at.write(&bytes[..len])?;
        len_at.put_int(len as i32)?;
        Ok(0)
    })
}

fn answer(world: &mut World, fd: i32, level: i32, name: i32) -> Outcome<Vec<u8>> {
    let now = world.now;
    let socket = world.socket(fd)?;
    let id = socket.id;
    let own = match (level, name) {
        (SOL_SOCKET, libc::SO_REUSEADDR) => Some(i32::from(socket.reuse)),
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => Some(i32::from(socket.listening)),
        (SOL_SOCKET, libc::SO_TYPE) => Some(libc::SOCK_STREAM),
        (SOL_SOCKET, libc::SO_DOMAIN) => Some(libc::AF_INET),
        (SOL_SOCKET, libc::SO_PROTOCOL) => Some(IPPROTO_TCP),
        (SOL_SOCKET, SO_ZEROCOPY) => Some(i32::from(socket.zerocopy)),
        (SOL_SOCKET, libc::SO_TIMESTAMPING) => Some(socket.stamping as i32),
        (IPPROTO_TCP, TCP_INQ) => Some(i32::from(socket.inquire)),
        _ => {
            let kept = KEPT.iter().find(|kept| (kept.0, kept.1) == (level, name));
            kept.map(|kept| socket.kept(level, name).unwrap_or(kept.2))
        }
    };
    if let Some(value) = own {
        return Ok(value.to_le_bytes().to_vec());
    }
    let settings = world.tcp.settings(id);
    let seconds = |span: Option<Duration>, sysctl: &str| {
        span.map_or_else(|| environment::one(sysctl).unwrap_or(0) as i32, |span| span.as_secs() as i32)
    };
    let memory = |place: usize| world.tcp.memory(id)[place] as i32;
    let value = match (level, name) {
        (SOL_SOCKET, libc::SO_ERROR) => world.tcp.take_error(id).map_or(0, |errno| errno.0),
        (SOL_SOCKET, libc::SO_LINGER) => {
            let mut bytes = i32::from(settings.linger.is_some()).to_le_bytes().to_vec();
            let span = settings.linger.map_or(0, |span| span.as_secs() as i32);
            bytes.extend_from_slice(&span.to_le_bytes());
            return Ok(bytes);
        }
        (SOL_SOCKET, SO_MEMINFO) => {
            return Ok(world.tcp.memory(id).iter().flat_map(|word| word.to_le_bytes()).collect());
        }
        (SOL_SOCKET, libc::SO_KEEPALIVE) => i32::from(settings.keepalive),
        (SOL_SOCKET, libc::SO_SNDBUF) => memory(3),
        (SOL_SOCKET, libc::SO_RCVBUF) => memory(1),
        (SOL_SOCKET, libc::SO_RCVLOWAT) => settings.receive_low_water as i32,
        (SOL_IP, libc::IP_TOS) => i32::from(settings.service),
        (SOL_IP, libc::IP_TTL) => i32::from(settings.ttl),
        (SOL_IP, libc::IP_MTU) => world.environment.mtu as i32,
        (IPPROTO_TCP, libc::TCP_INFO) => return Ok(crate::info::bytes(&world.tcp.info(now, id))),
        // Neither Reno nor CUBIC has anything to tell.
        (IPPROTO_TCP, libc::TCP_CC_INFO) => return Ok(Vec::new()),
        (IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let mut name = world.tcp.congestion(id).as_bytes().to_vec();
            name.resize(16, 0);
            return Ok(name);
        }
        (IPPROTO_TCP, libc::TCP_MAXSEG) => max_segment(&settings, &world.tcp.info(now, id)),
        (IPPROTO_TCP, libc::TCP_NODELAY) => i32::from(settings.nodelay),
        (IPPROTO_TCP, libc::TCP_CORK) => i32::from(settings.cork),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) => seconds(settings.keepalive_time, "tcp_keepalive_time"),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL) => seconds(settings.keepalive_interval, "tcp_keepalive_intvl"),
        (IPPROTO_TCP, libc::TCP_KEEPCNT) => settings
            .keepalive_probes
            .map_or_else(|| environment::one("tcp_keepalive_probes").unwrap_or(9) as i32, i32::from),
        (IPPROTO_TCP, libc::TCP_SYNCNT) => settings
            .syn_retries
            .map_or_else(|| environment::one("tcp_syn_retries").unwrap_or(6) as i32, i32::from),
        (IPPROTO_TCP, libc::TCP_LINGER2) => seconds(settings.fin_wait, "tcp_fin_timeout"),
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
            settings.defer_accept.map_or(0, |span| span.as_secs() as i32)
        }
        (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => settings.window_clamp.unwrap_or(0) as i32,
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            settings.user_timeout.map_or(0, |span| span.as_millis() as i32)
        }
        (IPPROTO_TCP, libc::TCP_FASTOPEN) => settings.fast_open_queue.unwrap_or(0) as i32,
        (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => i32::from(settings.fast_open_connect),
        (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => i32::from(settings.fast_open_no_cookie),
        (IPPROTO_TCP, TCP_FASTOPEN_KEY) => {
            let own = settings.fast_open_keys;
            let keys = own.or_else(|| Keys::parse(&environment::word("tcp_fastopen_key")));
            return Ok(keys.map(|keys| keys.bytes()).unwrap_or_default());
        }
        (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => settings.notsent_lowat.unwrap_or(0) as i32,
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    };
    Ok(value.to_le_bytes().to_vec())
}

/// TCP_MAXSEG: what was set, as long as there is no connection; then what goes into a segment.
fn max_segment(settings: &Settings, info: &Info) -> i32 {
    /// TCP_CLOSE and TCP_LISTEN.
    const UNCONNECTED: [u8; 2] = [7, 10];
    let unconnected = UNCONNECTED.contains(&info.state);
    match settings.max_segment {
        Some(chosen) if unconnected => chosen.into(),
        None if unconnected => DEFAULT_MSS as i32,
        _ => info.snd_mss as i32,
    }
}
