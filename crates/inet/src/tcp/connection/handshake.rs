//! How a connection comes to be (RFC 9293, section 3.5).

use super::early::{FastOpen, SynData};
use super::outbox::Outbox;
use super::segment::{HEADERS, TIMESTAMPS_LEN};
use super::{After, Connection, NEVER, Traits, microseconds, milliseconds};
use crate::tcp::config::{Config, EcnUse};
use crate::tcp::emit::{Context, Sent, Wake};
use crate::tcp::error::Error;
use crate::tcp::rcv::{self, Limits, Moment, Receiver};
use crate::tcp::settings::{LEAST_RECEIVE_BUFFER, Settings};
use crate::tcp::snd::{Ack, Habits, Sender, Transmit};
use crate::tcp::state::State;
use crate::wire::tcp::{Blocks, Options, Timestamps};
use crate::wire::{Flags, Seq, Tcp};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use std::sync::Arc;
use std::time::Duration;

/// What a peer takes over IPv4 that does not say (RFC 9293, section 3.7.1); over IPv6 the stack says it for him.
pub const DEFAULT_MSS: u16 = 536;

/// What is waited for the answer to a SYN at first (RFC 6298, section 2.1).
const SYN_WAIT: u64 = 1_000_000_000;

/// What this side says of itself in a SYN.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The longest segment that it takes.
    pub mss: u16,
    /// The window, and how later ones are scaled.
    pub window: rcv::Offer,
    /// Windows are scaled.
    pub scales: bool,
    /// It understands SACK.
    pub sack: bool,
    /// It has a clock.
    pub timestamps: bool,
}

/// What a socket of these settings may keep of what arrives.
pub(super) fn limits(config: &Config, settings: &Settings) -> Limits {
    Limits {
        buffer: settings.receive_buffer.unwrap_or(config.rmem[1]).max(LEAST_RECEIVE_BUFFER),
        most: config.rmem[2],
        settable: config.rmem_max,
        locked: settings.receive_buffer.is_some() || !config.moderate_rcvbuf,
        clamp: settings.window_clamp.unwrap_or(0),
    }
}

impl Offer {
    /// What a socket of these settings offers on a way of this MTU.
    pub fn new(config: &Config, settings: &Settings, mtu: u32) -> Offer {
        let longest = u16::try_from(mtu.saturating_sub(HEADERS)).unwrap_or(u16::MAX);
        let mss = settings.max_segment.map_or(longest, |most| longest.min(most)).max(48);
        Offer {
            mss,
            window: limits(config, settings).offer(mss, config.window_scaling),
            scales: config.window_scaling,
            sack: config.sack,
            timestamps: config.timestamps,
        }
    }

    /// What of it holds, with a peer that offered `theirs`.
    #[must_use]
    pub fn agreed(self, config: &Config, settings: &Settings, theirs: &Options) -> Offer {
        let scales = self.scales && theirs.window_scale.is_some();
        let timestamps = self.timestamps && theirs.timestamps.is_some();
        let mut window = self.window;
        if !scales && self.scales {
            window = limits(config, settings).offer(self.mss, false);
        }
        Offer { scales, sack: self.sack && theirs.sack_permitted, timestamps, window, ..self }
    }

    /// As who answers a SYN says it: the window is whole segments of those that are agreed on (the kernel's tcp_openreq_init_rwin()).
    #[must_use]
    pub fn answer(self, config: &Config, settings: &Settings, theirs: &Options) -> Offer {
        let mut offer = self.agreed(config, settings, theirs);
        let less = if offer.timestamps { TIMESTAMPS_LEN as u16 } else { 0 };
        offer.window = limits(config, settings).offer(offer.mss.saturating_sub(less), offer.scales);
        offer
    }

    /// The window as a SYN says it.
    pub fn said(&self) -> u16 {
        u16::try_from(self.window.window).unwrap_or(u16::MAX)
    }

    /// The options of a SYN that says so.
    pub fn options(&self, clock: u32, echo: u32) -> Options {
        Options {
            mss: Some(self.mss),
            window_scale: self.scales.then_some(self.window.shift),
            sack_permitted: self.sack,
            timestamps: self.timestamps.then_some(Timestamps { value: clock, echo }),
            ..Options::default()
        }
    }

    fn traits(&self) -> Traits {
        let mut traits = Traits::empty();
        traits.set(Traits::SACK, self.sack);
        traits.set(Traits::TIMESTAMPS, self.timestamps);
        traits.set(Traits::SCALED, self.scales);
        traits
    }

    /// What it means for who receives.
    fn receiver(&self, moment: &Moment, limits: &Limits, theirs: &Theirs) -> Receiver {
        let less = if self.timestamps { TIMESTAMPS_LEN as u16 } else { 0 };
        let agreed = rcv::Agreed {
            offer: self.window,
            scaled: self.scales,
            sack: self.sack,
            timestamps: self.timestamps.then_some(theirs.ts_recent),
            ecn: theirs.ecn,
            mss: self.mss.saturating_sub(less),
        };
        Receiver::new(moment, theirs.irs, limits, &agreed, theirs.mss.saturating_sub(less))
    }
}

/// What a peer's SYN says to who receives.
struct Theirs {
    irs: Seq,
    mss: u16,
    ts_recent: u32,
    ecn: bool,
}

/// What is known before both sides' SYNs are acknowledged. Made with the first SYN, and gone with its ACK.
#[derive(Debug)]
pub struct Handshake {
    offer: Offer,
    /// When the first SYN left.
    first_at: u64,
    /// ECN is asked for.
    ecn: bool,
    /// The peer's SYN came, too, before ours was acknowledged: ours is a SYN-ACK.
    crossed: bool,
    /// What only those have that are opened with data in the SYN.
    pub(super) fast_open: Option<FastOpen>,
}

impl Handshake {
    /// Of a connection that has begun before its last ACK.
    pub(super) fn early(now: u64, agreed: &Agreed, fast_open: FastOpen) -> Handshake {
        let fast_open = Some(fast_open);
        Handshake { offer: agreed.offer, first_at: now, ecn: agreed.ecn, crossed: true, fast_open }
    }

    /// The way is shorter than was believed.
    pub(super) fn shorten(&mut self, mtu: u32) {
        let longest = u16::try_from(mtu.saturating_sub(HEADERS)).unwrap_or(u16::MAX);
        self.offer.mss = self.offer.mss.min(longest);
    }

    /// Whether the SYN asks for ECN.
    pub(super) fn asks_for_ecn(&self) -> bool {
        self.ecn
    }

    /// What was offered.
    pub(super) fn offer(&self) -> &Offer {
        &self.offer
    }
}

/// What a listener knows of a connection whose last ACK has come.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// Our SYN-ACK's place, and the peer's SYN's.
    pub iss: Seq,
    /// See `iss`.
    pub irs: Seq,
    /// What was offered, and holds.
    pub offer: Offer,
    /// What the peer's SYN offered.
    pub peer_mss: u16,
    /// By how many bits the peer's windows are scaled.
    pub peer_scale: u8,
    /// What the peer's SYN said of its window.
    pub peer_window: u16,
    /// The peer's clock, as it was said last.
    pub ts_recent: u32,
    /// What our clock begins with.
    pub clock_offset: u32,
    /// Both take part in ECN.
    pub ecn: bool,
    /// When the SYN-ACK left, and how often it was sent again.
    pub sent_at: u64,
    /// See `sent_at`.
    pub retries: u8,
}

impl Connection {
    /// Begins one: sends a SYN.
    pub fn connect(
        ctx: &mut Context<'_>,
        settings: Arc<Settings>,
        iss: Seq,
        clock_offset: u32,
    ) -> Connection {
        let mut connection = Connection::new_active(ctx, settings, iss, clock_offset);
        connection.send_syn(ctx);
        let syn = Transmit { seq: iss, syn: true, packets: 1, ..Transmit::default() };
        connection.snd.transmitted(ctx.now, syn);
        connection
    }

    /// One that has not sent its SYN.
    pub(super) fn new_active(
        ctx: &mut Context<'_>,
        settings: Arc<Settings>,
        iss: Seq,
        clock_offset: u32,
    ) -> Connection {
        let offer = Offer::new(ctx.config, &settings, ctx.mtu);
        let handshake = Handshake {
            offer,
            first_at: ctx.now,
            ecn: ctx.config.ecn == EcnUse::Ask,
            crossed: false,
            fast_open: None,
        };
        let moment = Moment { now: ctx.now, ..Moment::default() };
        let nobody = Theirs { irs: Seq(0), mss: DEFAULT_MSS, ts_recent: 0, ecn: false };
        let rcv = offer.receiver(&moment, &limits(ctx.config, &settings), &nobody);
        let mut connection = Connection::new(ctx, settings, iss, rcv, State::SynSent);
        connection.clock_offset = clock_offset;
        connection.handshake = Some(Box::new(handshake));
        if connection.settings.syn_retries.is_none() {
            connection.snd.set_linear_timeouts(ctx.config.syn_linear_timeouts);
        }
        ctx.stats.active_opens += 1;
        connection
    }

    fn new(
        ctx: &Context<'_>,
        settings: Arc<Settings>,
        iss: Seq,
        mut rcv: Receiver,
        state: State,
    ) -> Connection {
        let algorithm = settings.congestion.unwrap_or(ctx.config.congestion);
        let mut snd = Sender::new(iss, algorithm, ctx.config.slow_start, ctx.config.initial_window.into());
        snd.set_habits(Habits { tail_probes: ctx.config.tail_loss_probe, frto: ctx.config.frto });
        snd.rtt_mut().set_bounds(ctx.config.rto_min.as_micros() as u32, 120_000_000);
        rcv.set_low_water(settings.receive_low_water.max(1));
        Connection {
            state,
            traits: Traits::empty(),
            error: None,
            soft_error: None,
            probes: 0,
            probe_backoff: 0,
            peer_mss: DEFAULT_MSS,
            peer_shift: 0,
            small_end: iss,
            settings,
            snd,
            out: Outbox::default(),
            rcv,
            handshake: None,
            probe_at: NEVER,
            keep_at: NEVER,
            sent_at: microseconds(ctx.now),
            received_at: milliseconds(ctx.now),
            scolded_at: 0,
            clock_offset: 0,
            send_buffer: 0,
            segments_in: 0,
            data_segments_in: 0,
            limited: Default::default(),
        }
    }

    /// One that a listener has agreed on, whose last ACK is `header`.
    pub fn accepted(
        ctx: &mut Context<'_>,
        settings: Arc<Settings>,
        agreed: &Agreed,
        header: &Tcp,
    ) -> Connection {
        let mut connection = Connection::new_passive(ctx, settings, agreed);
        // The SYN-ACK left before there was a connection.
        let syn = Transmit { seq: agreed.iss, syn: true, packets: 1, ..Transmit::default() };
        connection.snd.transmitted(agreed.sent_at, syn);
        for _ in 0..agreed.retries {
            connection.snd.retransmitted(agreed.sent_at, &syn);
        }
        connection.begin(ctx, header, u32::from(header.window) << connection.peer_shift);
        connection
    }

    /// One whose SYN has come.
    pub(super) fn new_passive(ctx: &mut Context<'_>, settings: Arc<Settings>, agreed: &Agreed) -> Connection {
        let moment = Moment {
            now: ctx.now,
            stamp: milliseconds(ctx.now).wrapping_add(agreed.clock_offset),
            ..Moment::default()
        };
        let theirs =
            Theirs { irs: agreed.irs, mss: agreed.peer_mss, ts_recent: agreed.ts_recent, ecn: agreed.ecn };
        let rcv = agreed.offer.receiver(&moment, &limits(ctx.config, &settings), &theirs);
        let mut connection = Connection::new(ctx, settings, agreed.iss, rcv, State::SynReceived);
        connection.clock_offset = agreed.clock_offset;
        // The SYN. (The SYN-ACK is no packet of the connection's: tcp_create_openreq_child().)
        connection.segments_in = 1;
        connection.traits = agreed.offer.traits();
        connection.traits.set(Traits::ECN, agreed.ecn);
        connection.peer_shift = if agreed.offer.scales { agreed.peer_scale } else { 0 };
        connection.peer_mss = agreed.peer_mss;
        connection.snd.set_window(agreed.irs, agreed.peer_window.into());
        ctx.stats.passive_opens += 1;
        connection
    }

    /// Both SYNs are acknowledged.
    fn begin(&mut self, ctx: &mut Context<'_>, header: &Tcp, window: u32) {
        self.state = State::Established;
        self.handshake = None;
        self.traits.remove(Traits::CONNECTING);
        (self.received_at, self.sent_at) = (milliseconds(ctx.now), microseconds(ctx.now));
        self.snd.sack_ok(self.traits.contains(Traits::SACK));
        self.snd.timestamps(self.traits.contains(Traits::TIMESTAMPS));
        let times = header.options.timestamps.filter(|_| self.traits.contains(Traits::TIMESTAMPS));
        let ack = Ack {
            seq: header.seq,
            ack: header.ack,
            window,
            sack: &Blocks::default(),
            data: false,
            ece: false,
            echo: times.map(|times| times.echo),
            clock: self.clock(ctx.now),
            unsent: !self.out.unsent().is_empty(),
        };
        let done = self.snd.acknowledge(ctx.now, &ack);
        ctx.heard |= done.progress;
        self.out.acknowledged(done.acked.into());
        self.snd.set_window(header.seq, window);
        let algorithm = self.settings.congestion.unwrap_or(ctx.config.congestion);
        self.snd.established(algorithm, ctx.config.slow_start, ctx.config.initial_window.into());
        self.snd.set_mss(self.segment_len(ctx));
        self.snd.rest(ctx.now);
        self.expand_send_buffer(ctx.config);
        let moment = self.moment(ctx.now);
        self.rcv.established(&moment);
        self.arm_keepalive(ctx);
        ctx.wake |= Wake::WRITE | Wake::STATE;
    }

    /// Sends the SYN, or the SYN-ACK where the peer's came.
    pub(super) fn send_syn(&mut self, ctx: &mut Context<'_>) -> Sent {
        let cookie = self.take_cookie();
        let Some(handshake) = self.handshake.as_deref() else { return Sent::Left };
        let mut header = Tcp { seq: self.snd.iss(), flags: Flags::SYN, ..Tcp::default() };
        let clock = self.clock(ctx.now);
        header.window = handshake.offer.said();
        if handshake.crossed {
            header.flags |= Flags::ACK;
            header.ack = self.rcv.nxt();
            header.options = handshake.offer.options(clock, self.rcv.ts_recent().unwrap_or(0));
            header.options.fast_open = cookie;
            header.flags.set(Flags::ECE, self.traits.contains(Traits::ECN));
        } else {
            header.options = handshake.offer.options(clock, 0);
            header.flags.set(Flags::ECE | Flags::CWR, handshake.ecn);
        }
        self.emit(ctx, header)
    }

    /// Nobody has answered the SYN: sends it again, or gives up (the kernel's tcp_write_timeout()).
    pub(super) fn syn_timeout(&mut self, ctx: &mut Context<'_>) -> After {
        let doubled = u32::from(match self.state {
            State::SynReceived => ctx.config.synack_retries,
            _ => self.settings.syn_retries.unwrap_or(ctx.config.syn_retries),
        });
        let mut most = doubled;
        if self.state == State::SynSent && self.settings.syn_retries.is_none() {
            // Those come on top of those that double.
            most += u32::from(ctx.config.syn_linear_timeouts);
        }
        let first_at = self.handshake.as_deref().map_or(ctx.now, |handshake| handshake.first_at);
        let waited = u128::from(ctx.now.saturating_sub(first_at));
        let limit = self.settings.user_timeout.filter(|limit| !limit.is_zero());
        // Nor longer than as many that double would last, from a second on (retransmits_timed_out()).
        let model = SYN_WAIT.saturating_mul((2u64 << doubled.min(30)) - 1);
        let limit = limit.unwrap_or(Duration::from_nanos(model));
        if self.snd.retries() >= most || waited >= limit.as_nanos() {
            let error = self.soft_error.unwrap_or(Error::TimedOut);
            ctx.stats.attempts_failed += 1;
            ctx.stats.timed_out += 1;
            self.end(ctx, Some(error));
            return After::Ended;
        }
        self.snd.on_timer(ctx.now, false);
        if let Some(handshake) = self.handshake.as_deref_mut() {
            // A host on the way may not like it (RFC 3168, section 6.1.1.1).
            handshake.ecn = false;
        }
        self.syn_goes_plain(ctx);
        ctx.stats.timeouts += 1;
        while let Some(syn) = self.snd.next_retransmission(1) {
            ctx.stats.retransmitted += 1;
            if self.send_syn(ctx) == Sent::Refused {
                self.snd.not_retransmitted(ctx.now, &syn);
                break;
            }
            self.snd.retransmitted(ctx.now, &syn);
        }
        After::Keep
    }

    /// What a segment does to who has sent a SYN (RFC 9293, section 3.10.7.3; the kernel's tcp_rcv_synsent_state_process()).
    pub(super) fn arrive_syn_sent(
        &mut self,
        ctx: &mut Context<'_>,
        header: &Tcp,
        payload: &mut Segment<Chain>,
    ) -> After {
        let Some(handshake) = self.handshake.as_deref() else { return After::Refuse };
        let (offer, ecn, first_at) = (handshake.offer, handshake.ecn, handshake.first_at);
        let flags = header.flags;
        let reset = flags.contains(Flags::RST);
        if flags.contains(Flags::ACK) {
            if !header.ack.after(self.snd.una()) || header.ack.after(self.snd.nxt()) {
                // Somebody's who thinks that there is an old connection. Our reset will have told him: we need not wait to ask again.
                if self.snd.retries() == 0 {
                    self.snd.hasten(ctx.now);
                }
                ctx.stats.invalid_ack += 1;
                return if reset { After::Keep } else { After::Refuse };
            }
            if offer.timestamps
                && let Some(times) = header.options.timestamps.filter(|times| times.echo != 0)
            {
                let (first, now) = (self.clock(first_at), self.clock(ctx.now));
                if now.wrapping_sub(times.echo) > now.wrapping_sub(first) {
                    ctx.stats.paws += 1;
                    return if reset { After::Keep } else { After::Refuse };
                }
            }
            if reset {
                ctx.stats.attempts_failed += 1;
                self.end(ctx, Some(Error::Refused));
                return After::Ended;
            }
            if !flags.contains(Flags::SYN) {
                ctx.stats.stray += 1;
                return After::Keep;
            }
        } else if reset || !flags.contains(Flags::SYN) {
            // A reset without an ACK may be anybody's.
            ctx.stats.no_ack += 1;
            return After::Keep;
        }
        let agreed = offer.agreed(ctx.config, &self.settings, &header.options);
        let answered = flags.contains(Flags::ACK);
        let ecn = match answered {
            true => ecn && flags & (Flags::ECE | Flags::CWR) == Flags::ECE,
            false => ctx.config.ecn != EcnUse::Never && flags.contains(Flags::ECE | Flags::CWR),
        };
        self.agree(ctx, header, &agreed, ecn);
        if answered {
            let asked = self.handshake.as_deref_mut().and_then(|handshake| handshake.fast_open.take());
            // What a SYN says of the window is not scaled.
            self.begin(ctx, header, header.window.into());
            let answered = self.syn_data_answered(ctx, header, asked);
            if flags.contains(Flags::FIN) || !payload.payload().is_empty() {
                // They come behind the SYN.
                let behind = Tcp { seq: header.seq.plus(1), flags: header.flags - Flags::SYN, ..*header };
                let after = self.arrive_data(ctx, &behind, payload, 0, crate::wire::Ecn::NotEct);
                if after != After::Keep {
                    return after;
                }
            }
            if !self.push_pending(ctx) {
                match answered {
                    SynData::SentAgain => {}
                    SynData::MoreComes => {
                        let moment = self.moment(ctx.now);
                        self.rcv.delay_ack(&moment);
                    }
                    SynData::Over => self.send_ack(ctx),
                }
            }
            return After::Keep;
        }
        // Both have called each other at once.
        self.state = State::SynReceived;
        if let Some(handshake) = self.handshake.as_deref_mut() {
            handshake.crossed = true;
            handshake.offer = agreed;
        }
        self.send_syn(ctx);
        After::Keep
    }

    /// Takes what the peer's SYN says.
    fn agree(&mut self, ctx: &Context<'_>, header: &Tcp, agreed: &Offer, ecn: bool) {
        self.traits -= Traits::SACK | Traits::TIMESTAMPS | Traits::SCALED | Traits::ECN;
        self.traits |= agreed.traits();
        self.traits.set(Traits::ECN, ecn);
        self.peer_mss = header.options.mss.filter(|mss| *mss > 0).unwrap_or(DEFAULT_MSS);
        let ts_recent = header.options.timestamps.map_or(0, |times| times.value);
        let theirs = Theirs { irs: header.seq, mss: self.peer_mss, ts_recent, ecn };
        let moment = self.moment(ctx.now);
        self.rcv = agreed.receiver(&moment, &limits(ctx.config, &self.settings), &theirs);
        self.rcv.set_low_water(self.settings.receive_low_water.max(1));
        self.peer_shift = if agreed.scales { header.options.window_scale.unwrap_or(0).min(14) } else { 0 };
        self.snd.set_window(header.seq, header.window.into());
    }

    /// The peer has acknowledged our SYN-ACK: both had called each other. Whether it has.
    pub(super) fn crossed_acknowledged(&mut self, ctx: &mut Context<'_>, header: &Tcp) -> bool {
        if !header.ack.after(self.snd.una()) || header.ack.after(self.snd.nxt()) {
            ctx.stats.invalid_ack += 1;
            return false;
        }
        // A SYN-ACK says the window unscaled, what comes after it scaled.
        let shift = if header.flags.contains(Flags::SYN) { 0 } else { self.peer_shift };
        self.begin(ctx, header, u32::from(header.window) << shift);
        if self.traits.contains(Traits::SHUT_WRITE) {
            // The program had enough before.
            self.send_fin(ctx);
        }
        true
    }
}
