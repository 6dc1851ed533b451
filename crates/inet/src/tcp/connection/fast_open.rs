//! Connections that are opened with data in the SYN (RFC 7413; the kernel's net/ipv4/tcp_fastopen.c).
//!
//! Who connects sends bytes with its SYN. The answer says whether they were taken: what was not is sent again at once. A SYN that is sent
//! again goes without them, and without the option, since something on the way may not like either.
//!
//! Who accepts such a SYN has a connection at once, in SYN-RECEIVED, that may be read and written. It sends its SYN-ACK itself, again and
//! again, and nothing else a second time, until the peer's ACK has come: [`Connection::opens_early`].

use super::early::{Client, FastOpen, Server, SynData};
use super::handshake::Handshake;
use super::limited::By;
use super::segment::HEADERS;
use super::{After, Agreed, Connection, DEFAULT_MSS, Traits, microseconds};
use crate::tcp::emit::{Context, Wake};
use crate::tcp::error::Error;
use crate::tcp::fast_open::{Attempt, Fail, News};
use crate::tcp::settings::Settings;
use crate::tcp::snd::Transmit;
use crate::tcp::state::State;
use crate::wire::tcp::{Cookie, Options};
use crate::wire::{Ecn, Flags, Seq, Tcp};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use std::sync::Arc;

/// The first wait for the last ACK, and the longest (TCP_TIMEOUT_INIT, TCP_RTO_MAX).
const FIRST_WAIT: u64 = 1_000_000_000;
const LONGEST_WAIT: u64 = 120_000_000_000;

impl Connection {
    /// Begins one with as much of `data` as goes with the SYN (tcp_send_syn_data()). `waits`: the caller waits to give the rest.
    pub fn connect_early(
        ctx: &mut Context<'_>,
        settings: Arc<Settings>,
        (iss, clock_offset): (Seq, u32),
        attempt: &Attempt,
        data: &mut Segment<Chain>,
        waits: bool,
    ) -> Connection {
        let mut connection = Connection::new_active(ctx, settings, iss, clock_offset);
        let taken = if attempt.carries { connection.take_syn_data(ctx, attempt.mss, data) } else { 0 };
        connection.note_failure(if taken > 0 { Fail::None } else { attempt.fail });
        let more = waits && (taken == 0 || !data.payload().is_empty());
        let mut header = Tcp { seq: iss, flags: Flags::SYN, ..Tcp::default() };
        let clock = connection.clock(ctx.now);
        if let Some(handshake) = connection.handshake.as_deref_mut() {
            let client = Client { option: attempt.option, data: taken, again: false, waits: more };
            handshake.fast_open = Some(FastOpen::Client(client));
            header.window = handshake.offer().said();
            header.options = Options { fast_open: attempt.option, ..handshake.offer().options(clock, 0) };
            header.flags.set(Flags::ECE | Flags::CWR, handshake.asks_for_ecn());
        }
        let packet = connection.out.packet(0, taken as usize);
        connection.emit_with(ctx, header, packet, None, false);
        let syn = Transmit { seq: iss, len: taken, syn: true, packets: 1, push: true, ..Transmit::default() };
        connection.snd.transmitted(ctx.now, syn);
        if taken > 0 {
            connection.sent_at = microseconds(ctx.now);
            connection.limited.set(ctx.now, By::Busy);
        }
        connection
    }

    /// Takes what goes with the SYN. Room for all options is left: something on the way may add some.
    fn take_syn_data(&mut self, ctx: &Context<'_>, mss: Option<u16>, data: &mut Segment<Chain>) -> u32 {
        let way = ctx.mtu.saturating_sub(HEADERS);
        let chosen = self.settings.max_segment.map_or(way, u32::from);
        let mss = mss.map_or(way, u32::from).min(chosen).min(way);
        self.snd.set_mss(mss);
        let room = mss.saturating_sub(Options::MAX as u32) as usize;
        let fragments = data.payload().fragments().take(ctx.fragments.max(1));
        let fits: usize = fragments.map(|fragment| fragment.len()).sum();
        let len = room.min(fits);
        if len == 0 {
            return 0;
        }
        let Ok(rest) = data.divide(len) else { return 0 };
        self.out.queue_mut().push(std::mem::replace(data, rest));
        len as u32
    }

    /// Bytes that went with the SYN.
    pub fn syn_data(&self) -> usize {
        match self.handshake.as_deref().and_then(|handshake| handshake.fast_open.as_ref()) {
            Some(FastOpen::Client(client)) => client.data as usize,
            _ => 0,
        }
    }

    fn note_failure(&mut self, fail: Fail) {
        self.traits -= Traits::SYN_DATA_FAIL;
        self.traits |= Traits::from_bits_truncate(u16::from(fail as u8) << 12);
    }

    fn client_mut(&mut self) -> Option<&mut Client> {
        match self.handshake.as_deref_mut()?.fast_open.as_mut()? {
            FastOpen::Client(client) => Some(client),
            FastOpen::Server(_) => None,
        }
    }

    /// What the first SYN-ACK says; later ones do not.
    pub(super) fn take_cookie(&mut self) -> Option<Cookie> {
        self.server_mut()?.cookie.take()
    }

    /// A SYN is sent again.
    pub(super) fn syn_goes_plain(&mut self, ctx: &mut Context<'_>) {
        let retries = self.snd.retries();
        if let Some(client) = self.client_mut() {
            client.again = true;
            // (tcp_fastopen_active_detect_blackhole().)
            if retries == 2 && (client.option.is_some() || client.data > 0) {
                ctx.news = Some(News::Swallowed);
            }
        }
    }

    /// The peer has answered our SYN (tcp_rcv_fastopen_synack()).
    pub(super) fn syn_data_answered(
        &mut self,
        ctx: &mut Context<'_>,
        header: &Tcp,
        asked: Option<FastOpen>,
    ) -> SynData {
        let lost = self.snd.has_unacked();
        let Some(FastOpen::Client(client)) = asked else { return SynData::Over };
        let waits = client.waits;
        let (data, again) = (client.data > 0, client.again);
        if data || client.option.is_some() {
            let said = header.options.fast_open.filter(|_| client.option.is_some());
            let unknown = match client.option {
                Some(option) if !again && said.is_none() && !data => 1 + u8::from(option.experimental),
                _ => 0,
            };
            ctx.news = Some(News::Answered {
                mss: header.options.mss.filter(|mss| *mss > 0).unwrap_or(DEFAULT_MSS),
                cookie: said.filter(|cookie| !cookie.bytes().is_empty()),
                unknown,
                good: data && !lost,
            });
        }
        if data && lost {
            ctx.stats.fast_open_not_taken += 1;
            self.note_failure(if again { Fail::Retransmitted } else { Fail::NotAcknowledged });
            self.snd.syn_data_lost();
            self.retransmit_lost(ctx);
            return SynData::SentAgain;
        }
        if data {
            ctx.stats.fast_open_taken += 1;
            self.traits |= Traits::SYN_DATA;
            self.snd.syn_data_acknowledged();
        }
        if waits { SynData::MoreComes } else { SynData::Over }
    }

    /// A router says that the SYN with its data is too long: it goes without, at once. Whether that is so.
    pub(super) fn syn_data_too_long(&mut self, ctx: &mut Context<'_>) -> bool {
        if self.state != State::SynSent {
            return false;
        }
        let Some(client) = self.client_mut().filter(|client| client.data > 0 && !client.again) else {
            return false;
        };
        client.again = true;
        if let Some(handshake) = self.handshake.as_deref_mut() {
            handshake.shorten(ctx.mtu);
        }
        self.snd.syn_data_lost();
        while let Some(lost) = self.snd.next_retransmission(1).filter(|lost| lost.syn) {
            ctx.stats.retransmitted += 1;
            self.send_syn(ctx);
            self.snd.retransmitted(ctx.now, &lost);
        }
        true
    }

    /// One whose SYN may open it early: it sends its SYN-ACK, with `cookie` if the peer is to have a new one
    /// (tcp_fastopen_create_child()).
    pub fn answer_early(
        ctx: &mut Context<'_>,
        settings: Arc<Settings>,
        agreed: &Agreed,
        syn: &Tcp,
        payload: &mut Segment<Chain>,
        cookie: Option<Cookie>,
    ) -> Connection {
        let mut connection = Connection::new_passive(ctx, settings, agreed);
        connection.snd.begin_behind_syn();
        connection.snd.sack_ok(connection.traits.contains(Traits::SACK));
        connection.snd.timestamps(connection.traits.contains(Traits::TIMESTAMPS));
        let algorithm = connection.settings.congestion.unwrap_or(ctx.config.congestion);
        connection.snd.established(algorithm, ctx.config.slow_start, ctx.config.initial_window.into());
        connection.snd.set_mss(connection.segment_len(ctx));
        connection.small_end = connection.snd.nxt();
        connection.expand_send_buffer(ctx.config);
        let moment = connection.moment(ctx.now);
        connection.rcv.established(&moment);
        if !payload.payload().is_empty() {
            let behind = Tcp { seq: syn.seq.plus(1), flags: Flags::ACK, ..*syn };
            let before = connection.rcv.nxt();
            connection.data_segments_in = 1;
            // It neither ends nor is refused by data that is the first.
            let _ = connection.arrive_data(ctx, &behind, payload, 0, Ecn::NotEct);
            connection.rcv.took_syn_data();
            connection.traits.set(Traits::SYN_DATA, connection.rcv.nxt().after(before));
        }
        let server = Server {
            irs: agreed.irs,
            due_at: ctx.now.saturating_add(FIRST_WAIT),
            wait: FIRST_WAIT,
            sent_at: ctx.now,
            retries: 0,
            cookie,
        };
        connection.handshake = Some(Box::new(Handshake::early(ctx.now, agreed, FastOpen::Server(server))));
        connection.send_syn(ctx);
        ctx.stats.fast_open_begun += 1;
        connection
    }

    fn server(&self) -> Option<&Server> {
        match self.handshake.as_deref()?.fast_open.as_ref()? {
            FastOpen::Server(server) => Some(server),
            FastOpen::Client(_) => None,
        }
    }

    fn server_mut(&mut self) -> Option<&mut Server> {
        match self.handshake.as_deref_mut()?.fast_open.as_mut()? {
            FastOpen::Server(server) => Some(server),
            FastOpen::Client(_) => None,
        }
    }

    /// Whether it was begun by a SYN, and the peer's ACK has not come: in SYN-RECEIVED, or in FIN-WAIT-1 where the program has closed it.
    pub fn opens_early(&self) -> bool {
        self.server().is_some()
    }

    /// Whether it is too early for the program to send or receive.
    pub fn is_connecting(&self) -> bool {
        matches!(self.state, State::SynSent | State::SynReceived) && !self.opens_early()
    }

    /// Why it ended, as long as nobody was told.
    pub fn failure(&self) -> Option<Error> {
        self.error
    }

    /// When something that was sent is to be looked at. As long as the SYN-ACK is unanswered, nothing else is sent again.
    pub(super) fn sent_deadline(&self) -> Option<u64> {
        match self.server() {
            Some(server) => Some(server.due_at),
            None => self.snd.deadline(),
        }
    }

    /// The peer's SYN once more: our answer was lost. Whether it is that (tcp_check_req()).
    pub(super) fn repeats_early_syn(&mut self, ctx: &mut Context<'_>, header: &Tcp) -> bool {
        let plain = header.flags & (Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN;
        if !plain || self.server().is_none_or(|server| server.irs != header.seq) {
            return false;
        }
        if self.may_scold(ctx) {
            self.syn_ack_again(ctx);
        }
        true
    }

    fn syn_ack_again(&mut self, ctx: &mut Context<'_>) {
        if let Some(server) = self.server_mut() {
            server.retries = server.retries.saturating_add(1);
        }
        ctx.stats.retransmitted += 1;
        self.send_syn(ctx);
    }

    /// Nobody has answered the SYN-ACK (tcp_fastopen_synack_timer()).
    pub(super) fn early_timeout(&mut self, ctx: &mut Context<'_>) -> After {
        // It is one more than of those that nobody holds yet.
        let usual = ctx.config.synack_retries.saturating_add(1);
        let most = self.settings.syn_retries.unwrap_or(usual);
        let Some(server) = self.server_mut() else { return After::Keep };
        if server.retries >= most {
            ctx.stats.attempts_failed += 1;
            return self.give_up(ctx);
        }
        let second = server.retries == 1;
        server.wait = server.wait.saturating_mul(2).min(LONGEST_WAIT);
        server.due_at = ctx.now.saturating_add(server.wait);
        if second && !self.snd.has_unacked() {
            // RFC 6298, section 5.7: the network may be full.
            let algorithm = self.settings.congestion.unwrap_or(ctx.config.congestion);
            self.snd.established(algorithm, ctx.config.slow_start, 1);
        }
        ctx.stats.timeouts += 1;
        self.syn_ack_again(ctx);
        After::Keep
    }

    /// Whether a segment acknowledges our SYN, and nothing that was never sent.
    pub(super) fn acknowledges_sent(&self, header: &Tcp) -> bool {
        !header.ack.before(self.snd.iss().plus(1)) && !header.ack.after(self.snd.nxt())
    }

    /// The peer's ACK has come (tcp_rcv_synrecv_state_fastopen()).
    pub(super) fn early_is_through(&mut self, ctx: &mut Context<'_>) {
        let Some(server) = self.server() else { return };
        let once = server.retries == 0;
        let rtt_us = u32::try_from(ctx.now.saturating_sub(server.sent_at) / 1_000).unwrap_or(u32::MAX);
        self.snd.syn_acknowledged(ctx.now, once.then_some(rtt_us));
        self.handshake = None;
        if self.state == State::SynReceived {
            self.state = State::Established;
        }
        if !self.is_orphan() {
            self.keepalive_changed(ctx);
        }
        ctx.wake |= Wake::WRITE | Wake::STATE;
    }
}
