//! What a segment does (RFC 9293, section 3.10.7; the kernel's tcp_rcv_established() and tcp_rcv_state_process()).

use super::close::Fin;
use super::limited::By;
use super::segment::HEADERS;
use super::timers::nanos;
use super::{After, Connection, NEVER, Traits, milliseconds};
use crate::tcp::emit::{Context, Wake};
use crate::tcp::error::Error;
use crate::tcp::memory::Pressure;
use crate::tcp::rcv::{AckWhen, Arrival, Check as Acceptable, Paws, Refused};
use crate::tcp::snd::Ack;
use crate::tcp::state::State;
use crate::wire::{Ecn, Flags, Seq, Tcp};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;

/// What was found out of a segment that does not belong.
enum Check {
    Good,
    /// Its ACK counts, and nothing else of it.
    AckAlone,
    Drop,
    Reset,
}

impl Connection {
    /// A segment has arrived for it. What is taken of `payload` is taken out of there. `ecn` is what its network header said, `cut` how long the segments were that it was put together of, 0
    /// where it came as it is.
    pub fn arrive(
        &mut self,
        ctx: &mut Context<'_>,
        header: &Tcp,
        payload: &mut Segment<Chain>,
        cut: u16,
        ecn: Ecn,
    ) -> After {
        let len = payload.payload().len() as u32;
        let segments = if cut > 0 { len.div_ceil(cut.into()).max(1) } else { 1 };
        self.segments_in = self.segments_in.wrapping_add(segments);
        if len > 0 {
            self.data_segments_in = self.data_segments_in.wrapping_add(segments);
        }
        match self.state {
            State::Closed => {
                ctx.stats.no_socket += 1;
                return After::Refuse;
            }
            State::SynSent => return self.arrive_syn_sent(ctx, header, payload),
            _ => {}
        }
        if self.repeats_early_syn(ctx, header) {
            return After::Keep;
        }
        match self.check(ctx, header, len) {
            Check::Good => {}
            Check::AckAlone => return self.arrive_ack_alone(ctx, header, len),
            Check::Drop => return After::Keep,
            Check::Reset => return self.reset_by_peer(ctx),
        }
        if !header.flags.contains(Flags::ACK) {
            ctx.stats.no_ack += 1;
            return After::Keep;
        }
        let early = self.opens_early();
        if early && !self.acknowledges_sent(header) {
            ctx.stats.invalid_ack += 1;
            return After::Refuse;
        }
        if self.state == State::SynReceived && !early {
            if !self.crossed_acknowledged(ctx, header) {
                return After::Refuse;
            }
            if header.flags.contains(Flags::SYN) {
                // It came once before, without its ACK: the peer hears of both.
                let moment = self.moment(ctx.now);
                self.rcv.note_timestamp(&moment, header);
                self.rcv.unacceptable(header.seq, 1);
                self.send_ack(ctx);
            }
        } else if !self.acknowledged(ctx, header, len) {
            return After::Keep;
        }
        self.soft_error = None;
        if early {
            self.early_is_through(ctx);
        }
        self.received_at = milliseconds(ctx.now);
        self.probes = 0;
        let after = self.follow_fin(ctx);
        if after != After::Keep {
            return after;
        }
        let after = self.arrive_data(ctx, header, payload, cut, ecn);
        if after != After::Keep {
            return after;
        }
        self.push_pending(ctx);
        self.tell_room(ctx);
        let moment = self.moment(ctx.now);
        if self.rcv.check_ack(&moment) == AckWhen::Now {
            self.send_ack(ctx);
        }
        self.arm_probe(ctx);
        After::Keep
    }

    /// Whether it is the peer's, and of now: timestamps, numbers, RST, SYN (the kernel's tcp_validate_incoming()).
    fn check(&mut self, ctx: &mut Context<'_>, header: &Tcp, len: u32) -> Check {
        let flags = header.flags;
        let (reset, syn) = (flags.contains(Flags::RST), flags.contains(Flags::SYN));
        let size = len + u32::from(syn) + u32::from(flags.contains(Flags::FIN));
        let end = header.seq.plus(size);
        let moment = self.moment(ctx.now);
        if !reset {
            let window = u32::from(header.window) << self.peer_shift;
            let repeats = header.ack == self.snd.una() && window == self.snd.window();
            match self.rcv.paws(&moment, header, size, repeats) {
                Paws::Passed => {}
                Paws::OldAck => {
                    ctx.stats.paws += 1;
                    return Check::Drop;
                }
                Paws::Rejected => {
                    ctx.stats.paws += 1;
                    if syn {
                        return self.challenge_syn(ctx);
                    }
                    return self.answer_duplicate(ctx, header.seq, size);
                }
            }
        }
        let place = self.rcv.check(header, len);
        if place != Acceptable::Acceptable {
            ctx.stats.outside_window += 1;
            if reset {
                // One that was right before we took the FIN is believed (the kernel's tcp_reset_check()).
                let before = header.seq == self.rcv.nxt().minus(1) && self.rcv.finished();
                return if before { Check::Reset } else { Check::Drop };
            }
            if syn {
                return self.challenge_syn(ctx);
            }
            if place == Acceptable::Old && self.has_news(header) && self.rcv.hears_behind(header.seq) {
                return Check::AckAlone;
            }
            return self.answer_duplicate(ctx, header.seq, size);
        }
        if reset {
            // RFC 5961, section 3.2; behind the last block, too, since the peer has got so far.
            let nxt = self.rcv.nxt();
            let right = header.seq == nxt
                || Some(header.seq) == self.rcv.rightmost_sack()
                || header.seq == nxt.minus(1) && self.rcv.finished();
            if right {
                return Check::Reset;
            }
            self.challenge(ctx);
            return Check::Drop;
        }
        if syn {
            let crossed = self.state == State::SynReceived
                && flags.contains(Flags::ACK)
                && header.seq.plus(1) == end
                && end == self.rcv.nxt();
            if !crossed {
                return self.challenge_syn(ctx);
            }
        }
        Check::Good
    }

    /// Whether it acknowledges something that was sent and not acknowledged before.
    fn has_news(&self, header: &Tcp) -> bool {
        self.state.is_synchronized()
            && header.flags.contains(Flags::ACK)
            && header.ack.after(self.snd.una())
            && !header.ack.after(self.snd.nxt())
    }

    /// A segment from before the window that is believed as far as its ACK goes. It is answered, as the peer may send again what is here.
    fn arrive_ack_alone(&mut self, ctx: &mut Context<'_>, header: &Tcp, len: u32) -> After {
        if self.acknowledged(ctx, header, 0) {
            self.received_at = milliseconds(ctx.now);
            self.probes = 0;
            let after = self.follow_fin(ctx);
            if after != After::Keep {
                return after;
            }
            self.push_pending(ctx);
            self.tell_room(ctx);
            self.arm_probe(ctx);
        }
        let size = len + u32::from(header.flags.contains(Flags::FIN));
        let _ = self.answer_duplicate(ctx, header.seq, size);
        After::Keep
    }

    fn challenge_syn(&mut self, ctx: &mut Context<'_>) -> Check {
        ctx.stats.syn_challenges += 1;
        self.challenge(ctx);
        Check::Drop
    }

    /// Says again what has arrived, since the peer does not know (the kernel's tcp_send_dupack()).
    fn answer_duplicate(&mut self, ctx: &mut Context<'_>, seq: Seq, size: u32) -> Check {
        // Who sends nothing new could be answered for ever.
        if size > 0 || self.may_scold(ctx) {
            self.rcv.unacceptable(seq, size);
            self.send_ack(ctx);
        }
        Check::Drop
    }

    /// What it acknowledges. Whether the rest of the segment counts.
    fn acknowledged(&mut self, ctx: &mut Context<'_>, header: &Tcp, len: u32) -> bool {
        let una = self.snd.una();
        if !header.ack.before(una) && !header.ack.after(self.snd.nxt()) {
            let moment = self.moment(ctx.now);
            self.rcv.note_timestamp(&moment, header);
        }
        let said = header.flags & (Flags::ECE | Flags::SYN) == Flags::ECE;
        let times = header.options.timestamps.filter(|_| self.traits.contains(Traits::TIMESTAMPS));
        self.snd.set_mss(self.segment_len(ctx));
        let ack = Ack {
            seq: header.seq,
            ack: header.ack,
            window: u32::from(header.window) << self.peer_shift,
            sack: &header.options.sack,
            data: len > 0 || header.flags.contains(Flags::FIN),
            ece: said && self.traits.contains(Traits::ECN),
            echo: times.map(|times| times.echo),
            clock: self.clock(ctx.now),
            unsent: !self.out.unsent().is_empty(),
        };
        let done = self.snd.acknowledge(ctx.now, &ack);
        ctx.heard |= done.progress || done.is_dup;
        if done.too_new {
            // RFC 9293, section 3.10.7.4, fifth check: it is answered.
            ctx.stats.ack_unsent += 1;
            self.challenge(ctx);
            return false;
        }
        if done.too_old {
            ctx.stats.ack_too_old += 1;
            self.challenge(ctx);
            return false;
        }
        if done.acked > 0 {
            self.out.acknowledged(done.acked.into());
        }
        // (tcp_ack_update_window().)
        if done.window_update && !self.out.unsent().is_empty() {
            self.look_idle(ctx);
        }
        if done.acked > 0 || done.fin_acked || done.window_update {
            self.window_opened();
        }
        if done.new_first {
            self.push_all(ctx);
        }
        self.retransmit_lost(ctx);
        true
    }

    /// Its data, and its FIN.
    pub(super) fn arrive_data(
        &mut self,
        ctx: &mut Context<'_>,
        header: &Tcp,
        payload: &mut Segment<Chain>,
        cut: u16,
        ecn: Ecn,
    ) -> After {
        let len = payload.payload().len() as u32;
        if header.flags.contains(Flags::URG) {
            ctx.stats.urgent += 1;
        }
        let beyond = header.seq.plus(len).after(self.rcv.nxt());
        // Who has sent all and reads no more, as who is gone.
        let deaf = matches!(self.state, State::FinWait1 | State::FinWait2)
            && self.traits.contains(Traits::SHUT_READ)
            || self.is_orphan();
        if deaf && len > 0 && beyond {
            // Nobody will read it: RFC 2525, section 2.17.
            ctx.stats.data_after_close += 1;
            ctx.stats.orphans_ended += u64::from(self.is_orphan());
            self.end(ctx, (!self.is_orphan()).then_some(Error::Reset));
            return After::EndedRefuse;
        }
        let moment = self.moment(ctx.now);
        let pressure = self.pressure(ctx, 0);
        self.rcv.set_pressure(pressure);
        let took = self.rcv.accept(&moment, Arrival { header, payload, cut, ecn }, ctx.pages);
        ctx.stats.bytes_in += u64::from(took.readable);
        ctx.stats.out_of_order += u64::from(took.out_of_order);
        ctx.stats.collapsed += u64::from(took.collapsed > 0);
        ctx.stats.pruned += u64::from(took.reneged > 0);
        match took.refused {
            Some(Refused::Old | Refused::Overlap) => ctx.stats.duplicate += 1,
            Some(Refused::Memory) => {
                ctx.stats.no_memory += 1;
                ctx.stats.memory_full += u64::from(pressure == Pressure::Full);
            }
            Some(Refused::BehindFin) => ctx.stats.behind_fin += 1,
            Some(_) => ctx.stats.outside_window += 1,
            None => {}
        }
        // Who waits for more than there is room for has to read first.
        if (took.readable > 0 || took.refused == Some(Refused::Memory)) && self.rcv.is_readable() {
            ctx.wake |= Wake::READ;
        }
        if took.fin {
            return self.fin_received(ctx);
        }
        After::Keep
    }

    fn fin_received(&mut self, ctx: &mut Context<'_>) -> After {
        ctx.wake |= Wake::READ | Wake::STATE;
        match self.state {
            State::Established => {
                // What is sent from now on answers.
                self.rcv.expect_turns();
                self.state = State::CloseWait;
                After::Keep
            }
            State::FinWait1 => {
                self.send_ack(ctx);
                self.state = State::Closing;
                After::Keep
            }
            State::FinWait2 => {
                self.send_ack(ctx);
                self.state = State::TimeWait;
                After::TimeWait
            }
            _ => After::Keep,
        }
    }

    /// Whether our FIN has been acknowledged, and what that means.
    fn follow_fin(&mut self, ctx: &mut Context<'_>) -> After {
        if self.fin_state() != Fin::Acknowledged {
            return After::Keep;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                ctx.wake |= Wake::STATE | Wake::WRITE;
                if !self.is_orphan() {
                    return After::Keep;
                }
                match self.settings.fin_wait {
                    Some(limit) if limit.is_zero() => {
                        ctx.stats.orphans_ended += 1;
                        self.end(ctx, None);
                        After::Ended
                    }
                    limit => {
                        let limit = limit.unwrap_or(ctx.config.fin_timeout);
                        self.keep_at = ctx.now.saturating_add(nanos(limit));
                        After::Keep
                    }
                }
            }
            State::Closing => {
                self.state = State::TimeWait;
                After::TimeWait
            }
            State::LastAck => {
                self.end(ctx, None);
                After::Ended
            }
            _ => After::Keep,
        }
    }

    fn reset_by_peer(&mut self, ctx: &mut Context<'_>) -> After {
        ctx.stats.established_resets += 1;
        let error = match self.state {
            State::SynReceived if !self.opens_early() => Error::Refused,
            State::CloseWait => Error::BrokenPipe,
            _ => Error::Reset,
        };
        self.end(ctx, Some(error));
        After::Ended
    }

    /// The peer's window has opened, or what was sent has arrived: it need not be asked, as long as what waits next has room.
    fn window_opened(&mut self) {
        let fits =
            self.out.unsent().first().is_none_or(|piece| piece.len.min(self.snd.mss()) <= self.window_left());
        if fits {
            (self.probe_at, self.probe_backoff) = (NEVER, 0);
        }
        self.probes = 0;
    }

    /// Tells who may wait for it that there is room to send (the kernel's sk_stream_write_space()). Whoever finds none waits, whether a call
    /// said so or [`Connection::readiness`], which changes nothing: so it is noted here when there is none. Where the window of congestion has room, and
    /// only the buffer has not, the buffer grows first.
    pub(super) fn tell_room(&mut self, ctx: &mut Context<'_>) {
        self.breathe(ctx);
        if !self.traits.contains(Traits::WANTS_ROOM) {
            let none = !self.has_room_to_write(ctx.config);
            self.traits.set(Traits::WANTS_ROOM, none);
            return;
        }
        // (tcp_new_space(), tcp_should_expand_sndbuf().)
        if self.settings.send_buffer.is_none() && self.snd.quota() > 0 {
            self.expand_send_buffer(ctx.config);
            self.snd.refrain(ctx.now);
        }
        if self.has_room_to_write(ctx.config) {
            self.traits.remove(Traits::WANTS_ROOM);
            if self.limited.by() == By::Buffer {
                self.limited.set(ctx.now, By::Busy);
            }
            self.snd.cramped(false);
            ctx.wake |= Wake::WRITE;
        }
    }

    /// A router says that a packet was too long for the way (RFC 1191): the way is `ctx.mtu` long now.
    pub fn path_shrunk(&mut self, ctx: &mut Context<'_>) {
        if self.syn_data_too_long(ctx) {
            return;
        }
        if ctx.mtu > HEADERS {
            self.snd.set_mss(self.segment_len(ctx));
            self.snd.packets_too_big();
            self.retransmit_lost(ctx);
        }
    }

    /// A router, or the peer's host, says that something is wrong (RFC 1122, section 4.2.3.9): a connection that is being made
    /// ends by it (the kernel's tcp_v4_err()); one that is made tells of it when it ends for want of answers. `made`: it is as
    /// good as made.
    pub fn unreachable(&mut self, ctx: &mut Context<'_>, error: Error, made: bool) -> After {
        if !made && matches!(self.state, State::SynSent | State::SynReceived) {
            ctx.stats.attempts_failed += 1;
            self.end(ctx, Some(error));
            return After::Ended;
        }
        self.soft_error = Some(error);
        After::Keep
    }
}
