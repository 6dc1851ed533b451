//! What the program asks of a connection.

use super::{Connection, Traits, milliseconds};
use crate::tcp::config::Config;
use crate::tcp::emit::{Context, Wake};
use crate::tcp::error::Error;
use crate::tcp::info::Info;
use crate::tcp::memory::Pressure;
use crate::tcp::settings::Settings;
use crate::tcp::state::State;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, ChainError, Writer};
use onecopy_pool::Pages;
use std::sync::Arc;

/// Which way is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// No more is received (SHUT_RD).
    Read,
    /// No more is sent (SHUT_WR).
    Write,
    /// Both (SHUT_RDWR).
    Both,
}

bitflags::bitflags! {
    /// How bytes are sent (send(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// More comes: a small segment waits for it (MSG_MORE).
        const MORE = 1;
        /// Nothing is put into one segment with the last byte (MSG_EOR).
        const END_OF_RECORD = 2;
        /// The caller waits, and gives what was not taken as soon as there is a connection: what makes the connection waits for that.
        const WAITS = 4;
    }
}

bitflags::bitflags! {
    /// What would not wait (poll(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Readiness: u8 {
        /// Receiving or accepting (EPOLLIN).
        const READ = 1;
        /// Sending (EPOLLOUT).
        const WRITE = 2;
        /// The peer sends no more (EPOLLRDHUP).
        const PEER_CLOSED = 4;
        /// Both ways are shut down (EPOLLHUP).
        const HUNG_UP = 8;
        /// There is an error (EPOLLERR).
        const ERROR = 16;
    }
}

bitflags::bitflags! {
    /// What follows from a read; most often nothing does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Follows: u8 {
        /// The peer is told that there is room.
        const ACK = 1;
        /// A timer is set.
        const PROBE = 2;
    }
}

/// What was received.
#[derive(Debug)]
pub enum Received {
    /// Bytes.
    Data(Segment<Chain>),
    /// The peer sends no more.
    End,
}

/// What the kernel counts of its own beside the bytes of a piece that waits or is under way: an sk_buff and its fragments' table.
const PIECE_COST: u64 = 1280;

impl Connection {
    /// What would not wait (tcp_poll()).
    pub fn readiness(&self, config: &Config) -> Readiness {
        let mut ready = Readiness::empty();
        let (shut_read, shut_write) =
            (self.traits.contains(Traits::SHUT_READ), self.traits.contains(Traits::SHUT_WRITE));
        let peer_closed = self.peer_closed();
        if (shut_read || peer_closed) && shut_write || self.state == State::Closed {
            ready |= Readiness::HUNG_UP;
        }
        if shut_read || peer_closed {
            ready |= Readiness::READ | Readiness::PEER_CLOSED;
        }
        if !self.is_connecting() {
            if self.rcv.is_readable() {
                ready |= Readiness::READ;
            }
            if shut_write || self.has_room_to_write(config) {
                ready |= Readiness::WRITE;
            }
        }
        if self.error.is_some() {
            ready |= Readiness::ERROR;
        }
        ready
    }

    /// Whether the peer's FIN has come.
    pub fn peer_closed(&self) -> bool {
        self.rcv.finished() || self.state == State::Closed
    }

    /// Bytes of memory that what was given to be sent takes, as the kernel counts it.
    fn send_memory(&self) -> u64 {
        self.out.len() + PIECE_COST * (self.out.unsent().count() + self.snd.pieces()) as u64
    }

    fn notsent_lowat(&self, config: &Config) -> u32 {
        // (Linux would never take a byte with a sysctl of 0.)
        self.settings.notsent_lowat.filter(|limit| *limit > 0).unwrap_or(config.notsent_lowat).max(1)
    }

    /// sk_stream_memory_free().
    fn may_queue(&self, config: &Config) -> bool {
        self.send_memory() < u64::from(self.send_buffer)
            && self.out.unsent().len() < self.notsent_lowat(config)
    }

    /// How short memory is for this connection, which has taken `more` since the call began: while it is short, there is none for who has
    /// more than his share, so that there is some for who has less (__sk_mem_raise_allocated()).
    pub(super) fn pressure(&self, ctx: &Context<'_>, more: u64) -> Pressure {
        match ctx.pressure {
            _ if more >= ctx.memory_left => Pressure::Full,
            Pressure::Short if self.memory() > ctx.memory_share => Pressure::Full,
            pressure => pressure,
        }
    }

    /// Whether there is no memory for more to be sent. A little may always be given: it is acknowledged some time, and then the program
    /// hears of room.
    fn is_squeezed(&self, ctx: &Context<'_>, more: u64) -> bool {
        self.pressure(ctx, more) == Pressure::Full && self.send_memory() >= u64::from(ctx.config.wmem[0])
    }

    /// Looks whether memory has come back for who found none.
    pub(super) fn breathe(&mut self, ctx: &Context<'_>) {
        if self.traits.contains(Traits::SQUEEZED) && !self.is_squeezed(ctx, 0) {
            self.traits.remove(Traits::SQUEEZED);
        }
    }

    /// Whether poll(2) says so, and whether who was told that there is none is woken: __sk_stream_is_writeable() with `wake`.
    pub(super) fn has_room_to_write(&self, config: &Config) -> bool {
        let used = self.send_memory();
        !self.traits.contains(Traits::SQUEEZED)
            && u64::from(self.send_buffer).saturating_sub(used) >= used >> 1
            && u64::from(self.out.unsent().len()) * 2 < u64::from(self.notsent_lowat(config))
    }

    /// Whether bytes may be given to be sent.
    fn may_send(&mut self) -> Result<(), Error> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.traits.contains(Traits::SHUT_WRITE) || self.state == State::Closed {
            return Err(Error::BrokenPipe);
        }
        if self.is_connecting() { Err(Error::WouldBlock) } else { Ok(()) }
    }

    /// Gives bytes to be sent: takes as many from the front of `data` as there is room for, and says how many. They go by reference, and
    /// what they are of completes when they are acknowledged, or will never be.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] for want of room, [`Error::BrokenPipe`], and why the connection ended.
    pub fn send(
        &mut self,
        ctx: &mut Context<'_>,
        data: &mut Segment<Chain>,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        self.give(ctx, data.payload().len(), flags, |queue, len| {
            // Most often it is all of it, and nothing is to be divided.
            if len < data.payload().len() {
                let rest = data.divide(len)?;
                queue.push(std::mem::replace(data, rest));
            } else {
                queue.take_in(data);
            }
            Ok(())
        })
    }

    /// As [`Connection::send`], of a copy in pages of `pages`.
    ///
    /// # Errors
    ///
    /// As [`Connection::send`], and [`Error::NoMemory`] where there is no page: there is no room then, until something comes from the peer, or [`Connection::pages_came`].
    pub fn send_bytes<A: Pages + ?Sized>(
        &mut self,
        ctx: &mut Context<'_>,
        bytes: &[u8],
        writer: &Writer<'_, A>,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        let mut at = 0;
        self.give(ctx, bytes.len(), flags, |queue, len| {
            queue.write(writer, &bytes[at..at + len])?;
            at += len;
            Ok(())
        })
    }

    /// tcp_sendmsg_locked(): fills pieces, and sends what is full on the way.
    fn give(
        &mut self,
        ctx: &mut Context<'_>,
        len: usize,
        flags: SendFlags,
        mut put: impl FnMut(&mut onecopy_chain::notify::SegmentQueue, usize) -> Result<(), ChainError>,
    ) -> Result<usize, Error> {
        self.may_send()?;
        if len == 0 {
            return Ok(0);
        }
        self.look_idle(ctx);
        let mss = self.segment_len(ctx);
        let goal = self.piece_goal(ctx, mss);
        let mut given = 0;
        let mut failed = None;
        let kept = self.out.true_size();
        while given < len {
            if self.is_squeezed(ctx, self.out.true_size().saturating_sub(kept)) {
                self.traits |= Traits::SQUEEZED;
                break;
            }
            let mut room = self.out.unsent().room(goal);
            if room == 0 {
                if !self.may_queue(ctx.config) {
                    // tcp_push(): what is there goes, and room will come of it.
                    break;
                }
                room = goal;
            }
            let part = (room as usize).min(len - given);
            if let Err(error) = put(self.out.queue_mut(), part) {
                failed = Some(error);
                break;
            }
            self.out.unsent_mut().put(part as u32, goal);
            given += part;
            if given == len {
                break;
            }
            if self.forced_push() {
                self.out.unsent_mut().push();
                self.push_all(ctx);
            } else if self.out.unsent().is_last() {
                self.push_one(ctx);
            }
        }
        if given == 0 {
            self.traits |= Traits::WANTS_ROOM;
            return match failed {
                Some(ChainError::NoPage(_)) => {
                    self.traits |= Traits::SQUEEZED;
                    Err(Error::NoMemory)
                }
                Some(_) => Err(Error::Invalid),
                None => Err(Error::WouldBlock),
            };
        }
        if given < len {
            self.traits |= Traits::WANTS_ROOM;
            self.snd.cramped(true);
        }
        if flags.contains(SendFlags::END_OF_RECORD) && given == len {
            self.out.unsent_mut().close_last();
        }
        if flags.contains(SendFlags::MORE) && given == len {
            self.push_full(ctx);
        } else {
            self.out.unsent_mut().push();
            self.push_pending(ctx);
        }
        if !self.has_room_to_write(ctx.config) {
            self.traits |= Traits::WANTS_ROOM;
        }
        Ok(given)
    }

    /// There are pages again, of which [`Connection::send_bytes`] had none. Whether somebody waits for one.
    pub fn pages_came(&mut self, ctx: &mut Context<'_>) -> bool {
        let waits = self.traits.contains(Traits::SQUEEZED);
        self.tell_room(ctx);
        waits
    }

    /// Where nothing was sent for long, the window of congestion says nothing any more (tcp_slow_start_after_idle_check()).
    pub(super) fn look_idle(&mut self, ctx: &Context<'_>) {
        let shrinks = ctx.config.slow_start_after_idle;
        self.snd.shrinks(shrinks);
        if shrinks {
            self.snd.wake(ctx.now);
        }
    }

    /// Whether more than half of the peer's largest window waits since the last push (forced_push()).
    fn forced_push(&self) -> bool {
        self.out.unsent().since_push() > self.snd.max_window() >> 1
    }

    /// Up to `max` bytes of what has arrived, of one kind of memory.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`], [`Error::NotConnected`], and why the connection ended.
    pub fn receive(&mut self, ctx: &mut Context<'_>, max: usize) -> Result<Received, Error> {
        let pressure = self.pressure(ctx, 0);
        if let Some((data, follows)) = self.read(ctx.now, pressure, max) {
            self.was_read(ctx, follows);
            return Ok(Received::Data(data));
        }
        // What has come to its end has, whatever happened then (SOCK_DONE); a call that sends, or SO_ERROR, is told.
        if self.rcv.finished() {
            return Ok(Received::End);
        }
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let over = self.peer_closed() || self.traits.contains(Traits::SHUT_READ);
        match self.state {
            _ if over => Ok(Received::End),
            _ => Err(Error::WouldBlock),
        }
    }

    /// Up to `max` bytes of what has arrived, and what is to be done then ([`Connection::was_read`]).
    #[inline]
    pub(crate) fn read(
        &mut self,
        now: u64,
        pressure: Pressure,
        max: usize,
    ) -> Option<(Segment<Chain>, Follows)> {
        let moment = self.moment(now);
        self.rcv.set_pressure(pressure);
        let data = self.rcv.read(&moment, max)?;
        let mut follows = Follows::empty();
        let due = self.state.is_synchronized() && self.rcv.window_update_due(data.payload().len() as u64);
        follows.set(Follows::ACK, due);
        follows.set(Follows::PROBE, self.probe_moves());
        Some((data, follows))
    }

    /// Does what follows from a read.
    pub(crate) fn was_read(&mut self, ctx: &mut Context<'_>, follows: Follows) {
        if follows.contains(Follows::ACK) {
            self.send_ack(ctx);
        }
        self.arm_probe(ctx);
    }

    /// See [`Receiver::set_room`](crate::tcp::rcv::Receiver::set_room).
    pub fn set_room(&mut self, bytes: Option<u64>) {
        self.rcv.set_room(bytes);
    }

    /// There is more room than there was: the peer is told, if that is worth a packet.
    pub fn room_came(&mut self, ctx: &mut Context<'_>) {
        if self.state.is_synchronized() && self.rcv.window_update_due(1) {
            self.send_ack(ctx);
        }
    }

    /// Up to `max` bytes from byte `offset` of what has arrived, which stay.
    pub fn peek(&self, offset: u64, max: usize) -> Option<Segment<Chain>> {
        (offset < self.rcv.available()).then(|| self.rcv.peek(offset, max))
    }

    /// The program has set options.
    pub fn set(&mut self, ctx: &mut Context<'_>, settings: Arc<Settings>) {
        let rate = self.pacing_rate(ctx);
        let before = std::mem::replace(&mut self.settings, settings);
        let now = Arc::clone(&self.settings);
        if (before.keepalive, before.keepalive_time) != (now.keepalive, now.keepalive_time) {
            self.keepalive_changed(ctx);
        }
        if before.receive_buffer != now.receive_buffer
            && let Some(buffer) = now.receive_buffer
        {
            self.rcv.set_buffer(buffer);
        }
        if let Some(algorithm) = now.congestion.filter(|_| before.congestion != now.congestion) {
            self.snd.set_algorithm(algorithm, ctx.config.slow_start);
        }
        if before.window_clamp != now.window_clamp {
            self.rcv.set_clamp(now.window_clamp.unwrap_or(0));
        }
        if before.receive_low_water != now.receive_low_water {
            let readable = self.rcv.is_readable();
            self.rcv.set_low_water(now.receive_low_water.max(1));
            if !readable && self.rcv.is_readable() {
                ctx.wake |= Wake::READ;
            }
        }
        if let Some(buffer) = now.send_buffer {
            self.send_buffer = buffer;
        }
        let uncorked = before.cork && !now.cork;
        if !self.state.is_synchronized() && self.state != State::Established {
            return;
        }
        if before.max_pacing_rate != now.max_pacing_rate {
            self.repace(ctx, rate);
        }
        if !before.nodelay && now.nodelay {
            self.push(ctx);
        } else if uncorked {
            self.push_pending(ctx);
        }
        self.tell_room(ctx);
    }

    /// Sends what waits to become a full segment, corked or not: setting TCP_NODELAY does so each time (do_tcp_setsockopt()).
    pub fn push(&mut self, ctx: &mut Context<'_>) {
        self.push_all(ctx);
    }

    /// Whether ACKs leave at once, for now; one that waits does (TCP_QUICKACK, which the kernel does not keep, either).
    pub fn quick_ack(&mut self, ctx: &mut Context<'_>, on: bool) {
        if self.rcv.set_quick_ack(on) && self.state.is_synchronized() {
            self.send_ack(ctx);
        }
    }

    /// What is known of it (TCP_INFO).
    pub fn info(&self, now: u64) -> Info {
        let mut info = Info { state: self.state as u8, ..Info::default() };
        self.snd.fill_info(now, &mut info);
        let figures = self.rcv.figures();
        info.probes = self.probes;
        info.backoff = info.backoff.max(self.probe_backoff);
        let scaled = self.traits.contains(Traits::SCALED);
        info.options |= u8::from(scaled) << 2 | u8::from(self.traits.contains(Traits::ECN)) << 3;
        info.options |=
            u8::from(figures.ecn_seen) << 4 | u8::from(self.traits.contains(Traits::SYN_DATA)) << 5;
        info.fast_open_fail = (self.traits.bits() >> 12) as u8 & 3;
        info.snd_wscale = self.peer_shift;
        info.rcv_wscale = if scaled { self.rcv.shift() } else { 0 };
        info.ato = figures.delay;
        info.rcv_mss = figures.mss;
        info.last_data_recv = milliseconds(now).wrapping_sub(figures.last_data);
        info.last_ack_recv = milliseconds(now).wrapping_sub(self.received_at);
        info.rcv_ssthresh = figures.threshold;
        info.rcv_rtt = figures.round_trip;
        info.rcv_space = figures.space;
        info.rcv_wnd = figures.window;
        info.bytes_received = figures.received;
        (info.segs_in, info.data_segs_in) = (self.segments_in, self.data_segments_in);
        info.rcv_ooopack = figures.out_of_order;
        info.notsent_bytes = self.out.unsent().len();
        (info.busy_time, info.rwnd_limited, info.sndbuf_limited) = self.limited.told(now);
        info
    }
}
