//! Our stack as the host under test, in virtual time.

use crate::host::{Host, Setting};
use crate::run;
use crate::script::Script;
use crate::wire::Family;
use crate::{MILLISECOND, defaults};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::ip::{self, Cidr, Route};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{self, Stack};
use onecopy_inet::tcp::config::EcnUse;
use onecopy_inet::tcp::congestion::{Algorithm, SlowStart};
use onecopy_inet::tcp::fast_open::{Keys, Use};
use onecopy_inet::tcp::{Config, Error, Info, Readiness, Received, SendFlags, Settings, Side};
use onecopy_inet::wire::Mac;
use onecopy_link::{Capabilities, Medium, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// What passes by each packet and each call: no two packets of a real host leave at the same moment.
const TICK: u64 = 1_000;
/// The stack's secrets: always the same, so that a run repeats.
const SEED: [u8; 16] = *b"onecopy's script";
/// Nanoseconds after which a first sequence number is one more (RFC 9293, section 3.4.1).
const NUMBER_TICK: u64 = 4_000;

/// Runs `script` on our stack: as it is; with the peer's sequence numbers wrapping in it; and with ours wrapping.
///
/// # Errors
///
/// Where in the script what was expected, and what came.
pub fn on_ours(script: &Script, family: Family) -> Result<(), String> {
    let begin = 10_000 * crate::SECOND;
    let slow_start = if script.plus_plus { SlowStart::HyStartPlusPlus } else { SlowStart::HyStart };
    let at = |now| Ours::new(now, family, slow_start);
    let ran = run::run(script, &mut at(begin)?, 0)?;
    run::run(script, &mut at(begin)?, 0xffff_fc00)
        .map_err(|why| format!("{why}\n(where the peer's numbers wrap)"))?;
    if let Some((_, first)) = ran.first_number {
        // Begun so much later, the same connection has a first number that is 1,000 below the wrap.
        let later = u64::from((u32::MAX - 1_000).wrapping_sub(first)) * NUMBER_TICK;
        let ran = run::run(script, &mut at(begin + later)?, 0)
            .map_err(|why| format!("{why}\n(where our numbers wrap)"))?;
        if ran.first_number.is_none_or(|(_, first)| u32::MAX - first > 2_000) {
            return Err("our numbers were to wrap, and began elsewhere".to_owned());
        }
    }
    Ok(())
}

struct Ours {
    family: Family,
    now: u64,
    stack: Stack,
    pool: PagePool,
    sockets: Vec<Open>,
    out: VecDeque<(u64, Vec<u8>)>,
}

struct Open {
    id: Id,
    reuse: bool,
}

impl Ours {
    fn new(now: u64, family: Family, slow_start: SlowStart) -> Result<Ours, String> {
        let capabilities = Capabilities {
            checksum: true,
            tcp_segmentation: true,
            super_segment: 65_535,
            fragments: 17,
            ..Capabilities::none(Medium::Ip, family.mtu())
        };
        let own = Cidr::new(family.host(), family.prefix()).ok_or("a prefix of so many bits")?;
        let mut below = ip::Config::new(capabilities, Mac([2, 0, 0, 0, 0, 1]), &[own], SEED);
        below
            .routes
            .push(Route { to: if family == Family::V6 { Cidr::ALL_V6 } else { Cidr::ALL }, gateway: None });
        let stack = Stack::new(stack::Config::new(below, SEED)).map_err(|error| error.to_string())?;
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).map_err(|error| error.to_string())?;
        let mut ours = Ours { family, now, stack, pool, sockets: Vec::new(), out: VecDeque::new() };
        ours.stack.tcp_config_mut().slow_start = slow_start;
        for (name, value) in defaults::SYSCTLS {
            ours.sysctl(name, value)?;
        }
        Ok(ours)
    }

    fn id(&self, socket: usize) -> Result<Id, i32> {
        self.sockets.get(socket).map(|open| open.id).ok_or(Error::NoSuchSocket.errno())
    }

    fn open(&mut self, id: Id) -> usize {
        self.sockets.push(Open { id, reuse: false });
        self.sockets.len() - 1
    }

    /// What follows from what was just done leaves.
    fn settle(&mut self) -> Result<(), String> {
        while self.stack.event().is_some() {}
        while let Some(mut packet) = self.stack.transmit() {
            packet.finish().map_err(|error| error.to_string())?;
            self.out.push_back((self.now, packet.to_vec().map_err(|error| error.to_string())?));
            self.now += TICK;
        }
        Ok(())
    }

    fn called<R>(&mut self, result: Result<R, Error>) -> Result<R, i32> {
        self.now += TICK;
        // Packets are looked at by the next question for them.
        result.map_err(Error::errno)
    }
}

impl Host for Ours {
    fn family(&self) -> Family {
        self.family
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn pass(&mut self, until: u64) -> Result<(), String> {
        match self.stack.deadline().filter(|at| *at <= until) {
            Some(at) => {
                self.now = self.now.max(at);
                self.stack.advance(self.now);
                let stands = self.stack.deadline().is_some_and(|next| next <= at && next < self.now);
                if stands && self.out.is_empty() {
                    // It would be asked for ever.
                    self.now += TICK;
                }
            }
            None => self.now = self.now.max(until),
        }
        Ok(())
    }

    fn sent(&mut self) -> Result<Option<(u64, Vec<u8>)>, String> {
        self.settle()?;
        Ok(self.out.pop_front())
    }

    fn receive(&mut self, packet: &[u8]) -> Result<(), String> {
        let mut chain = Chain::new();
        Writer::new(&self.pool).append(&mut chain, packet).map_err(|error| error.to_string())?;
        self.stack.receive(self.now, Packet::from(Segment::from(chain)));
        self.now += TICK;
        Ok(())
    }

    fn finishes_checksums(&self) -> bool {
        true
    }

    fn tolerance(&self) -> u64 {
        4 * MILLISECOND
    }

    fn comes_to(&mut self, _: u64) {}

    fn sysctl(&mut self, name: &str, value: &str) -> Result<(), String> {
        let short = name.strip_prefix("net.ipv4.").ok_or_else(|| format!("{name} is none of ours"))?;
        set_sysctl(self.stack.tcp_config_mut(), short, value)
    }

    fn socket(&mut self) -> Result<usize, i32> {
        let made = self.stack.tcp_open();
        let id = self.called(made)?;
        Ok(self.open(id))
    }

    fn bind(&mut self, socket: usize, port: u16) -> Result<(), i32> {
        let address = SocketAddr::new(self.family.any(), port);
        let reuse = self.sockets.get(socket).is_some_and(|open| open.reuse);
        let bound = self.stack.tcp_bind(self.id(socket)?, address, reuse);
        self.called(bound)
    }

    fn listen(&mut self, socket: usize, backlog: i32) -> Result<(), i32> {
        let listens = self.stack.tcp_listen(self.id(socket)?, backlog.cast_unsigned());
        self.called(listens)
    }

    fn connect(&mut self, socket: usize, port: u16) -> Result<(), i32> {
        let begun =
            self.stack.tcp_connect(self.now, self.id(socket)?, SocketAddr::new(self.family.peer(), port));
        self.called(begun)
    }

    fn accept(&mut self, socket: usize) -> Result<(usize, u16), i32> {
        let accepted = self.stack.tcp_accept(self.id(socket)?);
        let (id, peer) = self.called(accepted)?;
        Ok((self.open(id), peer.port()))
    }

    fn read(&mut self, socket: usize, len: usize, flags: i32) -> Result<Vec<u8>, i32> {
        const MSG_PEEK: i32 = 2;
        let id = self.id(socket)?;
        let mut bytes = Vec::new();
        if flags & MSG_PEEK != 0
            && let Some(segment) = self.stack.tcp_peek(id, 0, len)
        {
            copy(&segment, &mut bytes);
            return Ok(bytes);
        }
        if len == 0 {
            return Ok(bytes);
        }
        // recv(2) goes on over pieces; what stands behind them is the next call's.
        loop {
            let received = self.stack.tcp_receive(self.now, id, len - bytes.len());
            match self.called(received)? {
                Received::Data(segment) => copy(&segment, &mut bytes),
                Received::End => return Ok(bytes),
            }
            if bytes.len() == len || self.readable(socket)? == 0 {
                return Ok(bytes);
            }
        }
    }

    fn write(&mut self, socket: usize, bytes: &[u8], flags: i32) -> Result<usize, i32> {
        const MSG_EOR: i32 = 0x80;
        const MSG_MORE: i32 = 0x8000;
        let id = self.id(socket)?;
        let mut how = SendFlags::empty();
        how.set(SendFlags::MORE, flags & MSG_MORE != 0);
        how.set(SendFlags::END_OF_RECORD, flags & MSG_EOR != 0);
        let sent = self.stack.tcp_send_bytes(self.now, id, bytes, &Writer::new(&self.pool), how);
        self.called(sent)
    }

    fn connect_with(&mut self, socket: usize, port: u16, bytes: &[u8], flags: i32) -> Result<usize, i32> {
        if flags != 0 {
            return Err(Error::Invalid.errno());
        }
        let (id, to) = (self.id(socket)?, SocketAddr::new(self.family.peer(), port));
        let mut chain = Chain::new();
        Writer::new(&self.pool).append(&mut chain, bytes).map_err(|_| Error::NoMemory.errno())?;
        let sent = self.stack.tcp_connect_with(self.now, id, to, &mut chain.into(), SendFlags::empty());
        self.called(sent)
    }

    fn shutdown(&mut self, socket: usize, how: i32) -> Result<(), i32> {
        let side = match how {
            0 => Side::Read,
            1 => Side::Write,
            _ => Side::Both,
        };
        let done = self.stack.tcp_shutdown(self.now, self.id(socket)?, side);
        self.called(done)
    }

    fn close(&mut self, socket: usize) {
        if let Ok(id) = self.id(socket) {
            self.stack.tcp_close(self.now, id);
            self.now += TICK;
        }
    }

    fn poll(&mut self, socket: usize, events: i16) -> i16 {
        // POLLERR and POLLHUP are told unasked.
        const NAMES: [(Readiness, i16); 5] = [
            (Readiness::READ, 1),
            (Readiness::WRITE, 4),
            (Readiness::ERROR, 8),
            (Readiness::HUNG_UP, 0x10),
            (Readiness::PEER_CLOSED, 0x2000),
        ];
        let Ok(id) = self.id(socket) else { return 0 };
        let ready = self.stack.tcp_readiness(id);
        let told = NAMES.iter().filter(|(flag, _)| ready.contains(*flag)).fold(0, |all, (_, bit)| all | bit);
        told & (events | 0x18)
    }

    fn readable(&mut self, socket: usize) -> Result<i32, i32> {
        let connection = self.stack.tcp_connection(self.id(socket)?).ok_or(Error::Invalid.errno())?;
        Ok(connection.receiver().available() as i32)
    }

    fn set(&mut self, socket: usize, level: i32, option: i32, value: Setting<'_>) -> Result<(), i32> {
        let id = self.id(socket)?;
        if (level, option) == (1, 2) {
            self.sockets[socket].reuse = matches!(value, Setting::Number(value) if value != 0);
            return Ok(());
        }
        let config = self.stack.tcp_config().clone();
        let mut known = Ok(());
        let set = self
            .stack
            .tcp_set(self.now, id, |settings| known = change(settings, &config, level, option, value));
        known.and(self.called(set))
    }

    fn get(&mut self, socket: usize, level: i32, option: i32) -> Result<i32, i32> {
        let id = self.id(socket)?;
        match (level, option) {
            (1, 4) => Ok(self.stack.tcp_take_error(id).map_or(0, Error::errno)),
            (6, 2) => {
                let own = self.stack.tcp_settings(id).and_then(|settings| settings.max_segment);
                let info = self.stack.tcp_info(self.now, id).unwrap_or_default();
                Ok(match own {
                    Some(own) if info.snd_mss == 0 => own.into(),
                    _ => info.snd_mss as i32,
                })
            }
            (1, 7 | 8) | (6, 8 | 10) => {
                let settings = self.stack.tcp_settings(id).ok_or(Error::Invalid.errno())?;
                let number = match (level, option) {
                    (1, 7) => settings.send_buffer,
                    (1, 8) => settings.receive_buffer,
                    (6, 8) => settings.fin_wait.map(|limit| limit.as_secs() as u32),
                    _ => settings.window_clamp,
                };
                Ok(number.unwrap_or(0).cast_signed())
            }
            _ => Err(Error::NoProtocol.errno()),
        }
    }

    fn info(&mut self, socket: usize) -> Result<BTreeMap<&'static str, u64>, i32> {
        let info = self.stack.tcp_info(self.now, self.id(socket)?).ok_or(Error::Invalid.errno())?;
        Ok(fields(&info))
    }
}

fn copy(segment: &Segment<Chain>, into: &mut Vec<u8>) {
    if let Ok(host) = segment.payload().host() {
        host.slices().for_each(|slice| into.extend_from_slice(slice));
    }
}

/// setsockopt(2), for the options that scripts set.
fn change(
    settings: &mut Settings,
    config: &Config,
    level: i32,
    option: i32,
    value: Setting<'_>,
) -> Result<(), i32> {
    let wrong = |_| Error::Invalid.errno();
    let seconds =
        |value: i32| u64::try_from(value).map(|value| Some(Duration::from_secs(value))).map_err(wrong);
    let byte = |value: i32| u8::try_from(value).map_err(wrong);
    match (level, option, value) {
        (1, 7, Setting::Number(value)) => {
            settings.send_buffer = Some(config.send_buffer(value.cast_unsigned()))
        }
        (1, 8, Setting::Number(value)) => {
            settings.receive_buffer = Some(config.receive_buffer(value.cast_unsigned()))
        }
        (1, 9, Setting::Number(value)) => settings.keepalive = value != 0,
        // Urgent bytes are bytes like others in any case.
        (1, 10, Setting::Number(_)) => {}
        (1, 13, Setting::Linger(on, time)) => {
            settings.linger = on.then(|| Duration::from_secs(time.into()));
        }
        (1, 18, Setting::Number(value)) => settings.receive_low_water = value.unsigned_abs(),
        (0, 1, Setting::Number(value)) => settings.service = value as u8 & !3,
        (0, 2, Setting::Number(value)) => settings.ttl = byte(value)?,
        (6, 1, Setting::Number(value)) => settings.nodelay = value != 0,
        (6, 2, Setting::Number(value)) => settings.max_segment = Some(u16::try_from(value).map_err(wrong)?),
        (6, 3, Setting::Number(value)) => settings.cork = value != 0,
        (6, 4, Setting::Number(value)) => settings.keepalive_time = seconds(value)?,
        (6, 5, Setting::Number(value)) => settings.keepalive_interval = seconds(value)?,
        (6, 6, Setting::Number(value)) => settings.keepalive_probes = Some(byte(value)?),
        (6, 7, Setting::Number(value)) => settings.syn_retries = Some(byte(value)?),
        (6, 8, Setting::Number(value)) => settings.fin_wait = seconds(value)?,
        (6, 10, Setting::Number(value)) => settings.window_clamp = Some(u32::try_from(value).map_err(wrong)?),
        (6, 13, Setting::Text("reno")) => settings.congestion = Some(Algorithm::Reno),
        (6, 13, Setting::Text("cubic")) => settings.congestion = Some(Algorithm::Cubic),
        (6, 18, Setting::Number(value)) => {
            let limit = u64::try_from(value).map_err(wrong)?;
            settings.user_timeout = Some(Duration::from_millis(limit));
        }
        (6, 23, Setting::Number(value)) => {
            settings.fast_open_queue = Some(u32::try_from(value).map_err(wrong)?);
        }
        (6, 30, Setting::Number(value)) => settings.fast_open_connect = value != 0,
        (6, 25, Setting::Number(value)) => settings.notsent_lowat = u32::try_from(value).ok(),
        _ => return Err(Error::NoProtocol.errno()),
    }
    Ok(())
}

/// What a sysctl sets; an error for one that is not known here, as a script would show nothing with it.
fn set_sysctl(config: &mut Config, name: &str, text: &str) -> Result<(), String> {
    let wrong = || format!("{name} can't be {text:?} here");
    let number = || match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| wrong()),
        None => text.parse::<u64>().map_err(|_| wrong()),
    };
    let byte = || text.parse::<u8>().map_err(|_| wrong());
    let yes = || number().map(|number| number != 0);
    let seconds = || number().map(Duration::from_secs);
    let three = || {
        let all: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
        all.ok().and_then(|all| <[u32; 3]>::try_from(all).ok()).ok_or_else(wrong)
    };
    match name {
        "tcp_abort_on_overflow" => config.abort_on_overflow = yes()?,
        "tcp_congestion_control" => {
            config.congestion = match text {
                "reno" => Algorithm::Reno,
                "cubic" => Algorithm::Cubic,
                _ => return Err(wrong()),
            }
        }
        // Ours has these on, always.
        "tcp_dsack" | "tcp_recovery" if number()? & 1 == 1 => {}
        "tcp_early_retrans" => config.tail_loss_probe = number()? >= 3,
        "tcp_ecn" => {
            config.ecn = match number()? {
                0 => EcnUse::Never,
                1 => EcnUse::Ask,
                _ => EcnUse::Accept,
            }
        }
        "tcp_fastopen" => {
            let bits = u16::try_from(number()?).map_err(|_| wrong())?;
            config.fast_open = Use::from_bits(bits).ok_or_else(wrong)?;
        }
        "tcp_fastopen_blackhole_timeout_sec" => config.fast_open_pause = seconds()?,
        "tcp_fastopen_key" => config.fast_open_keys = Some(Keys::parse(text).ok_or_else(wrong)?),
        "tcp_fin_timeout" => config.fin_timeout = seconds()?,
        "tcp_frto" => config.frto = yes()?,
        "tcp_invalid_ratelimit" => config.invalid_ratelimit = Duration::from_millis(number()?),
        "tcp_keepalive_intvl" => config.keepalive_interval = seconds()?,
        "tcp_keepalive_probes" => config.keepalive_probes = byte()?,
        "tcp_keepalive_time" => config.keepalive_time = seconds()?,
        "tcp_min_tso_segs" => config.min_tso_segments = byte()?,
        "tcp_moderate_rcvbuf" => config.moderate_rcvbuf = yes()?,
        "tcp_notsent_lowat" => config.notsent_lowat = number()? as u32,
        "tcp_orphan_retries" => config.orphan_retries = byte()?,
        "tcp_reordering" => config.reordering = byte()?,
        "tcp_retries2" => config.retries = byte()?,
        "tcp_rfc1337" => config.rfc1337 = yes()?,
        "tcp_rmem" => config.rmem = three()?,
        "tcp_sack" => config.sack = yes()?,
        "tcp_slow_start_after_idle" => config.slow_start_after_idle = yes()?,
        "tcp_syn_linear_timeouts" => config.syn_linear_timeouts = byte()?,
        "tcp_syn_retries" => config.syn_retries = byte()?,
        "tcp_synack_retries" => config.synack_retries = byte()?,
        "tcp_timestamps" => {
            config.timestamps = yes()?;
            config.timestamp_offsets = number()? == 1;
        }
        "tcp_tso_win_divisor" => config.tso_window_divisor = byte()?,
        "tcp_window_scaling" => config.window_scaling = yes()?,
        "tcp_wmem" => config.wmem = three()?,
        // These have nothing to act on here: no cookies, no corking by itself, nothing remembered; TIME-WAIT gives way over loopback alone.
        "tcp_syncookies" | "tcp_autocorking" | "tcp_no_metrics_save" if number()? <= 1 => {}
        "tcp_tw_reuse" if text == "2" => {}
        _ => return Err(format!("{name} is a sysctl that scripts can't set; add it to scripts/src/ours.rs")),
    }
    Ok(())
}

fn fields(info: &Info) -> BTreeMap<&'static str, u64> {
    macro_rules! all {
        ($($field:ident)*) => { BTreeMap::from([$((stringify!($field), u64::from(info.$field))),*]) };
    }
    let mut fields = all!(state ca_state retransmits probes backoff options snd_wscale rcv_wscale rto ato snd_mss rcv_mss unacked sacked lost retrans
        last_data_sent last_data_recv last_ack_recv pmtu rcv_ssthresh rtt rttvar snd_ssthresh snd_cwnd advmss reordering rcv_rtt rcv_space
        total_retrans bytes_acked bytes_received segs_out segs_in notsent_bytes min_rtt data_segs_in data_segs_out delivered delivered_ce
        bytes_sent bytes_retrans dsack_dups reord_seen rcv_ooopack snd_wnd rcv_wnd total_rto total_rto_recoveries total_rto_time busy_time
        rwnd_limited sndbuf_limited);
    fields.insert("fastopen_client_fail", info.fast_open_fail.into());
    fields
}
