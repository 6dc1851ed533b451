//! The stack behind the calls: what this crate asks of it, in one place.

use crate::environment::{self, Environment};
use crate::errno::{Errno, Outcome};
use onecopy_chain::Chain;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_inet::stack::{self, Stack, slab};
use onecopy_inet::tcp::config::EcnUse;
use onecopy_inet::tcp::congestion::Algorithm;
use onecopy_inet::tcp::fast_open::Use;
use onecopy_inet::tcp::{Error, Received, SendFlags, Side, State};
use onecopy_inet::{ip, wire};
use onecopy_link::{Capabilities, Medium, Packet};
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

pub(crate) use onecopy_inet::tcp::fast_open::Keys;
pub(crate) use onecopy_inet::tcp::{Info, Readiness, Settings, Wake};
pub(crate) use slab::Id;

/// MAX_SKB_FRAGS: scripts see where a packet ends for it.
const FRAGMENTS: usize = 17;
/// Packets that wait to leave.
const QUEUE: usize = 4096;
/// Bytes of the longest packet that IP can say.
const LONGEST: u32 = 65535;
/// A run repeats: its secrets are always the same.
const SEED: [u8; 16] = *b"packetdrill runs";

/// See the module. It is made with the first socket, when the script has said how everything is to be.
#[derive(Debug, Default)]
pub(crate) struct Tcp {
    stack: Option<Stack>,
}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        Errno(error.errno())
    }
}

impl Tcp {
    fn stack(&mut self) -> Outcome<&mut Stack> {
        self.stack.as_mut().ok_or(Errno(libc::EBADF))
    }

    /// Takes over what commands have changed.
    pub(crate) fn configure(&mut self, environment: &mut Environment) {
        if let Some(stack) = &mut self.stack {
            read_sysctls(stack.tcp_config_mut(), environment);
            // A qdisc that takes nothing.
            stack.interface_mut().set_queue(if environment.refuses { 0 } else { QUEUE });
            if environment.take_flush() {
                stack.tcp_forget_cookies();
            }
        }
    }

    /// An IP packet for it.
    pub(crate) fn receive(&mut self, now: u64, packet: &[u8], pool: &onecopy_pool::PagePool) {
        let Some(stack) = &mut self.stack else { return };
        let mut chain = Chain::new();
        if onecopy_chain::Writer::new(pool).append(&mut chain, packet).is_ok() {
            stack.receive(now, Packet::from(Segment::from(chain)));
        }
    }

    /// What leaves next, if anything; none of it where the link refuses it. `whole` packets stay super-segments, as on a card that cuts
    /// them itself: what is seen of them is one packet.
    pub(crate) fn transmit(&mut self, refused: bool, whole: bool) -> Option<Vec<Vec<u8>>> {
        let packet = self.stack.as_mut()?.transmit()?;
        if refused {
            packet.free(Fate::Dropped);
            return Some(Vec::new());
        }
        let mut packets = Vec::new();
        let mut take = |mut packet: Packet| {
            packets.extend(packet.finish().and_then(|()| packet.to_vec()));
            packet.free(Fate::Copied);
        };
        match packet.gso() {
            Some(_) if !whole => drop(packet.cut(&mut take)),
            _ => take(packet),
        }
        Some(packets)
    }

    pub(crate) fn advance(&mut self, now: u64) {
        if let Some(stack) = &mut self.stack {
            stack.advance(now);
        }
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.stack.as_ref()?.deadline()
    }

    pub(crate) fn event(&mut self) -> Option<(Id, Wake)> {
        let event = self.stack.as_mut()?.event()?;
        Some((event.id, event.wake))
    }

    pub(crate) fn open(&mut self, environment: &Environment) -> Outcome<Id> {
        if self.stack.is_none() {
            self.stack = Some(make(environment)?);
        }
        Ok(self.stack()?.tcp_open()?)
    }

    pub(crate) fn bind(&mut self, id: Id, address: SocketAddrV4, reuse: bool) -> Outcome<()> {
        Ok(self.stack()?.tcp_bind(id, address.into(), reuse)?)
    }

    pub(crate) fn listen(&mut self, id: Id, backlog: u32) -> Outcome<()> {
        Ok(self.stack()?.tcp_listen(id, backlog)?)
    }

    pub(crate) fn connect(&mut self, now: u64, id: Id, address: SocketAddrV4) -> Outcome<()> {
        Ok(self.stack()?.tcp_connect(now, id, address.into())?)
    }

    /// Connects with as many bytes from the front of `bytes` as go with the SYN, and says how many; `waits`: the caller will give the rest.
    pub(crate) fn connect_with(
        &mut self,
        now: u64,
        id: Id,
        address: SocketAddrV4,
        bytes: &mut Segment<Chain>,
        waits: bool,
    ) -> Outcome<usize> {
        let flags = if waits { SendFlags::WAITS } else { SendFlags::empty() };
        Ok(self.stack()?.tcp_connect_with(now, id, address.into(), bytes, flags)?)
    }

    /// Whether bytes would go with the SYN.
    pub(crate) fn carries(&self, now: u64, id: Id, to: SocketAddrV4) -> bool {
        self.stack.as_ref().is_some_and(|stack| stack.tcp_carries(now, id, (*to.ip()).into()))
    }

    /// Whether connect waits for the first bytes.
    pub(crate) fn is_deferred(&self, id: Id) -> bool {
        self.stack.as_ref().is_some_and(|stack| stack.tcp_is_deferred(id))
    }

    /// Whether it is neither connected nor listens.
    pub(crate) fn is_unconnected(&self, id: Id) -> bool {
        self.stack.as_ref().and_then(|stack| stack.tcp_state(id)) == Some(State::Closed)
    }

    pub(crate) fn listens(&self, id: Id) -> bool {
        self.stack.as_ref().and_then(|stack| stack.tcp_state(id)) == Some(State::Listen)
    }

    pub(crate) fn accept(&mut self, id: Id) -> Outcome<(Id, SocketAddrV4)> {
        let (id, peer) = self.stack()?.tcp_accept(id)?;
        Ok((id, of_ipv4(peer).ok_or(Errno(libc::EAFNOSUPPORT))?))
    }

    /// Takes bytes from the front of `bytes`, as many as there is room for.
    pub(crate) fn send(&mut self, now: u64, id: Id, bytes: &mut Segment<Chain>, flags: i32) -> Outcome<()> {
        let mut how = SendFlags::empty();
        how.set(SendFlags::MORE, flags & libc::MSG_MORE != 0);
        how.set(SendFlags::END_OF_RECORD, flags & libc::MSG_EOR != 0);
        self.stack()?.tcp_send(now, id, bytes, how)?;
        Ok(())
    }

    /// At most `max` bytes behind the first `offset`, which stay; none at the end.
    pub(crate) fn peek(&mut self, now: u64, id: Id, offset: usize, max: usize) -> Outcome<Vec<u8>> {
        let stack = self.stack()?;
        if let Some(segment) = stack.tcp_peek(id, offset as u64, max)
            && !segment.payload().is_empty()
        {
            return segment.payload().host().map(|host| host.to_vec()).map_err(|_| Errno(libc::EFAULT));
        }
        if offset > 0 {
            return Err(Errno(libc::EAGAIN));
        }
        // There is nothing: it says why.
        match stack.tcp_receive(now, id, max)? {
            Received::Data(_) => Err(Errno(libc::EAGAIN)),
            Received::End => Ok(Vec::new()),
        }
    }

    /// Takes bytes that were looked at.
    pub(crate) fn consume(&mut self, now: u64, id: Id, mut count: usize) -> Outcome<()> {
        while count > 0 {
            match self.stack()?.tcp_receive(now, id, count)? {
                Received::Data(segment) if !segment.payload().is_empty() => count -= segment.payload().len(),
                _ => break,
            }
        }
        Ok(())
    }

    pub(crate) fn ready(&self, id: Id) -> Readiness {
        self.stack.as_ref().map_or(Readiness::empty(), |stack| stack.tcp_readiness(id))
    }

    pub(crate) fn take_error(&mut self, id: Id) -> Option<Errno> {
        self.stack.as_mut()?.tcp_take_error(id).map(Errno::from)
    }

    pub(crate) fn shutdown(&mut self, now: u64, id: Id, read: bool, write: bool) -> Outcome<()> {
        let side = match (read, write) {
            (true, true) => Side::Both,
            (true, false) => Side::Read,
            _ => Side::Write,
        };
        Ok(self.stack()?.tcp_shutdown(now, id, side)?)
    }

    pub(crate) fn close(&mut self, now: u64, id: Id) {
        if let Some(stack) = &mut self.stack {
            stack.tcp_close(now, id);
        }
    }

    pub(crate) fn disconnect(&mut self, now: u64, id: Id) -> Outcome<()> {
        Ok(self.stack()?.tcp_disconnect(now, id)?)
    }

    pub(crate) fn set(&mut self, now: u64, id: Id, settings: &Settings) -> Outcome<()> {
        Ok(self.stack()?.tcp_set(now, id, |own| *own = settings.clone())?)
    }

    /// Sends what waits to become a full segment.
    pub(crate) fn push(&mut self, now: u64, id: Id) {
        if let Some(stack) = &mut self.stack {
            // Nothing waits where there is no connection.
            let _ = stack.tcp_push(now, id);
        }
    }

    pub(crate) fn settings(&self, id: Id) -> Settings {
        self.stack.as_ref().and_then(|stack| stack.tcp_settings(id)).cloned().unwrap_or_default()
    }

    pub(crate) fn info(&self, now: u64, id: Id) -> Info {
        self.stack.as_ref().and_then(|stack| stack.tcp_info(now, id)).unwrap_or_default()
    }

    /// Whether a handshake is under way.
    pub(crate) fn is_connecting(&self, id: Id) -> bool {
        let connection = self.stack.as_ref().and_then(|stack| stack.tcp_connection(id));
        connection.is_some_and(onecopy_inet::tcp::Connection::is_connecting)
    }

    /// Whether sending fails whatever is sent, and how.
    pub(crate) fn may_send(&mut self, now: u64, id: Id) -> Outcome<()> {
        match self.send(now, id, &mut Segment::from(Chain::new()), 0) {
            Err(Errno(libc::EAGAIN)) | Ok(()) => Ok(()),
            other => other,
        }
    }

    /// Bytes that were sent at least once, and that were acknowledged.
    pub(crate) fn progress(&self, id: Id) -> (u64, u64) {
        let connection = self.stack.as_ref().and_then(|stack| stack.tcp_connection(id));
        connection.filter(|connection| connection.state() != State::SynSent).map_or((0, 0), |connection| {
            let sender = connection.sender();
            // The SYN is no byte.
            let bytes = |seq: wire::Seq| u64::from((seq.since(sender.iss()) as u32).saturating_sub(1));
            (bytes(sender.nxt()), bytes(sender.una()))
        })
    }

    /// Bytes to read, and whether a FIN stands behind them.
    pub(crate) fn readable(&self, id: Id) -> (u64, bool) {
        let connection = self.stack.as_ref().and_then(|stack| stack.tcp_connection(id));
        connection.map_or((0, false), |connection| {
            (connection.receiver().available(), connection.receiver().finished())
        })
    }

    /// Bytes not acknowledged, and those not sent.
    pub(crate) fn unsent(&self, id: Id) -> (u64, u64) {
        let connection = self.stack.as_ref().and_then(|stack| stack.tcp_connection(id));
        connection.map_or((0, 0), |connection| (connection.queued(), connection.unsent().into()))
    }

    pub(crate) fn local(&self, id: Id) -> Option<SocketAddrV4> {
        of_ipv4(self.stack.as_ref()?.tcp_addresses(id).local?)
    }

    /// What TCP_CONGESTION tells.
    pub(crate) fn congestion(&self, id: Id) -> &'static str {
        let chosen = self.settings(id).congestion;
        let default = self.stack.as_ref().map(|stack| stack.tcp_config().congestion);
        match chosen.or(default) {
            Some(Algorithm::Reno) => "reno",
            _ => "cubic",
        }
    }

    /// What SO_MEMINFO tells, in its order.
    pub(crate) fn memory(&self, id: Id) -> [u32; 9] {
        let Some(stack) = &self.stack else { return [0; 9] };
        let (settings, config) = (self.settings(id), stack.tcp_config());
        let mut memory = [0; 9];
        memory[1] = settings.receive_buffer.unwrap_or(config.rmem[1]);
        memory[3] = settings.send_buffer.unwrap_or(config.wmem[1]);
        if let Some(connection) = stack.tcp_connection(id) {
            let figures = connection.receiver().figures();
            (memory[0], memory[1]) = (figures.held as u32, figures.buffer);
            memory[5] = connection.queued() as u32;
        }
        memory
    }
}

/// What scripts know: sockets of AF_INET.
fn of_ipv4(address: SocketAddr) -> Option<SocketAddrV4> {
    if let SocketAddr::V4(address) = address { Some(address) } else { None }
}

/// A stack as the script wants it.
fn make(environment: &Environment) -> Outcome<Stack> {
    let mtu = environment.metric("mtu").map_or(environment.mtu, |route| route.min(environment.mtu));
    let capabilities = Capabilities {
        checksum: true,
        tcp_segmentation: true,
        super_segment: LONGEST,
        fragments: FRAGMENTS,
        ..Capabilities::none(Medium::Ip, mtu)
    };
    let (address, prefix) = environment.address;
    let own = ip::Cidr::new(address, prefix).ok_or(Errno(libc::EADDRNOTAVAIL))?;
    let mut below = ip::Config::new(capabilities, wire::Mac([2, 0, 0, 0, 0, 1]), &[own], SEED);
    // The link leads to one other host, so that any gateway does.
    below.routes.push(ip::Route { to: ip::Cidr::ALL, gateway: None });
    let mut config = stack::Config::new(below, SEED);
    read_sysctls(&mut config.tcp, environment);
    Stack::new(config).map_err(|error| {
        eprintln!("onecopy: {error}");
        Errno(libc::EADDRNOTAVAIL)
    })
}

/// Sets what scripts set by sysctl.
fn read_sysctls(config: &mut onecopy_inet::tcp::Config, environment: &Environment) {
    let one = environment::one;
    let set = |place: &mut bool, name: &str| {
        if let Some(value) = one(name) {
            *place = value != 0;
        }
    };
    let byte = |place: &mut u8, name: &str| {
        if let Some(value) = one(name) {
            *place = value.clamp(0, 255) as u8;
        }
    };
    let seconds = |place: &mut Duration, name: &str| {
        if let Some(value) = one(name) {
            *place = Duration::from_secs(value.max(0) as u64);
        }
    };
    let three = |place: &mut [u32; 3], name: &str| {
        if let [least, usual, most] = environment::sysctl(name)[..] {
            *place = [least as u32, usual as u32, most as u32];
        }
    };
    byte(&mut config.syn_retries, "tcp_syn_retries");
    byte(&mut config.syn_linear_timeouts, "tcp_syn_linear_timeouts");
    byte(&mut config.synack_retries, "tcp_synack_retries");
    byte(&mut config.retries, "tcp_retries2");
    byte(&mut config.orphan_retries, "tcp_orphan_retries");
    byte(&mut config.keepalive_probes, "tcp_keepalive_probes");
    byte(&mut config.reordering, "tcp_reordering");
    byte(&mut config.min_tso_segments, "tcp_min_tso_segs");
    byte(&mut config.tso_window_divisor, "tcp_tso_win_divisor");
    byte(&mut config.tso_rtt_log, "tcp_tso_rtt_log");
    seconds(&mut config.fin_timeout, "tcp_fin_timeout");
    seconds(&mut config.keepalive_time, "tcp_keepalive_time");
    seconds(&mut config.keepalive_interval, "tcp_keepalive_intvl");
    set(&mut config.sack, "tcp_sack");
    set(&mut config.timestamps, "tcp_timestamps");
    set(&mut config.window_scaling, "tcp_window_scaling");
    set(&mut config.moderate_rcvbuf, "tcp_moderate_rcvbuf");
    set(&mut config.slow_start_after_idle, "tcp_slow_start_after_idle");
    set(&mut config.frto, "tcp_frto");
    set(&mut config.abort_on_overflow, "tcp_abort_on_overflow");
    set(&mut config.rfc1337, "tcp_rfc1337");
    if let Some(value) = one("tcp_fastopen") {
        config.fast_open = Use::from_bits_truncate(value as u16);
    }
    // One of zeros cannot be told from none, but is one (`sysctl` shows both so).
    config.fast_open_keys = Keys::parse(&environment::word("tcp_fastopen_key"));
    seconds(&mut config.fast_open_pause, "tcp_fastopen_blackhole_timeout_sec");
    config.timestamp_offsets = one("tcp_timestamps") == Some(1);
    config.tail_loss_probe = one("tcp_early_retrans").is_none_or(|value| value >= 3);
    config.ecn = match one("tcp_ecn") {
        Some(0) => EcnUse::Never,
        Some(1) => EcnUse::Ask,
        _ => EcnUse::Accept,
    };
    three(&mut config.rmem, "tcp_rmem");
    three(&mut config.wmem, "tcp_wmem");
    if let Some(value) = one("tcp_notsent_lowat") {
        config.notsent_lowat = value as u32;
    }
    if let Some(value) = one("tcp_pacing_ss_ratio") {
        config.pacing_slow_start = value as u16;
    }
    if let Some(value) = one("tcp_pacing_ca_ratio") {
        config.pacing_avoidance = value as u16;
    }
    if let Some(value) = one("tcp_rto_min_us") {
        config.rto_min = Duration::from_micros(value.max(0) as u64);
    }
    if let Some(value) = one("tcp_invalid_ratelimit") {
        config.invalid_ratelimit = Duration::from_millis(value.max(0) as u64);
    }
    config.rmem_max = environment::core("rmem_max").unwrap_or(config.rmem_max);
    config.wmem_max = environment::core("wmem_max").unwrap_or(config.wmem_max);
    if environment::word("tcp_congestion_control") == "reno" {
        config.congestion = Algorithm::Reno;
    } else {
        // A namespace may have been refused CUBIC, which scripts ask for.
        config.congestion = Algorithm::Cubic;
    }
    if let Some(window) = environment.metric("initcwnd") {
        config.initial_window = window.min(255) as u8;
    }
}
