//! Accounting of the control socket's queue, for the receiving side.
//!
//! Doorbells, fillers and the channel are in that queue. [`Accounting`] takes them, knows which of them are
//! still owed, and tells what explains a byte that is left. The sum that it keeps is in
//! [`onecopy_ring::doorbell`].

use crate::ancillary::channel::Inlet;
use crate::control;
use crate::core::Core;
use crate::core::kind::Kind;
use onecopy_ring::{Consumer, PeerMisbehaved};
use onecopy_socket::{Error, Op, Result};
use onecopy_sync::atomic::Ordering::SeqCst;
use onecopy_sync::atomic::fence;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Most records that can be before a channel: doorbells that are pending or owed, and fillers, of which there
/// are few. This bounds a call that looks for the channel, even if the peer sends records as fast as they are
/// taken.
const MAX_BEFORE: u32 = 4 * MAX_DOORBELL_DEBT as u32;

/// Most doorbells that can be on their way at once: one for each sender that was killed between arming and
/// ringing.
const MAX_DOORBELL_DEBT: isize = 64;
/// How long a filler may be under way before its sender misbehaves. It takes microseconds, unless that sender
/// has no CPU or is stopped half-way, which is no misbehaviour. So this is longer than a busy machine keeps
/// anybody waiting. A peer that means ill can make poll(2) report nothing useful for as long; the same peer
/// could send doorbells for nothing.
const MAX_PARKING: Duration = Duration::from_secs(10);

/// The account of the control socket's queue: what is in it besides what the ring's header says, and what was
/// taken out.
#[derive(Debug, Default)]
pub struct Accounting {
    /// Doorbells that were on their way when they should have been taken: they are taken when they come.
    /// Negative if doorbells were taken in place of the channel's byte, which is still to be found.
    debt: isize,
    /// A filler was taken in place of a doorbell that is still on its way (seqpacket sockets only).
    stray: bool,
    /// Bytes in the queue that a killed process left. They are taken, and not called misbehaviour.
    forgiven: usize,
    /// Since when the queue has had bytes that only a filler under way explains.
    unexplained_since: Option<Instant>,
    /// Room was made that the sender will see when the lock is released.
    made_room: bool,
    /// The inlet of the channel, through which descriptors come. The channel's own byte is one more in the
    /// queue.
    channel: Inlet,
}

/// The part of the accounts that processes which share the connection tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Doorbells still to be taken.
    pub debt: isize,
    /// A filler was taken in place of a doorbell.
    pub stray: bool,
    /// Bytes that a killed process left.
    pub forgiven: usize,
}

impl Accounting {
    /// Makes accounts with a channel that is known from the beginning.
    pub fn over(channel: Inlet) -> Accounting {
        Accounting { channel, ..Accounting::default() }
    }

    /// The inlet of the channel, through which descriptors come.
    pub fn channel(&self) -> &Inlet {
        &self.channel
    }

    /// The inlet of the channel, to receive from.
    pub fn channel_mut(&mut self) -> &mut Inlet {
        &mut self.channel
    }

    /// Returns what another process needs to know of the accounts.
    pub fn balance(&self) -> Balance {
        Balance { debt: self.debt, stray: self.stray, forgiven: self.forgiven }
    }

    /// Goes on with the accounts that another process has left.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`] if they owe more than can ever be owed.
    pub fn resume(&mut self, balance: Balance) -> std::result::Result<(), PeerMisbehaved> {
        self.unexplained_since = None;
        self.stray = balance.stray;
        self.forgiven = balance.forgiven;
        let possible = (-MAX_DOORBELL_DEBT..=MAX_DOORBELL_DEBT).contains(&balance.debt);
        self.debt = if possible { balance.debt } else { 0 };
        if possible { Ok(()) } else { Err(PeerMisbehaved::Member) }
    }

    /// Forgives all bytes in the queue, after the death of a process that was receiving. What it left and
    /// nothing explains is no misbehaviour.
    pub fn forgive_queued(&mut self, core: &Core) {
        self.forgiven = self.forgiven.saturating_add(control::queued(core.fd()).unwrap_or(0));
    }

    /// Counts as a process would that has taken a doorbell without need.
    #[cfg(test)]
    pub fn forgive_debt(&mut self) {
        self.debt -= 1;
    }

    /// Notes that something came which explains the bytes in the queue.
    #[inline]
    pub fn is_explained(&mut self) {
        self.unexplained_since = None;
    }

    /// Returns whether a doorbell is still to be taken.
    pub fn is_in_debt(&self) -> bool {
        self.debt > 0
    }

    /// Notes whether room was `made` that the sender is to see when the lock is released.
    pub fn notes_room(&mut self, made: bool) {
        self.made_room |= made;
    }

    /// Returns whether such room was made since the last call.
    pub fn takes_note_of_room(&mut self) -> bool {
        std::mem::take(&mut self.made_room)
    }

    /// Takes doorbells or bytes of a filler from the control socket. Returns how many were there.
    pub fn take(&mut self, core: &Core, count: usize) -> usize {
        let taken = self.channel.take(core.fd(), count);
        if taken.reset {
            core.note_reset();
        }
        if taken.surplus {
            // Neither doorbells nor fillers explain the channel's byte.
            self.debt += 1 - self.channel.take(core.fd(), 1).bytes as isize;
        }
        taken.bytes
    }

    /// Notes that so many bytes are in the queue, or on their way, and must be taken.
    pub fn add_debt(&mut self, count: usize) {
        self.debt += count as isize;
    }

    /// Takes the bytes that should have been taken before, as far as they have come.
    pub fn take_debt(&mut self, core: &Core) {
        if self.debt > 0 {
            let taken = self.take_doorbells(core, self.debt as usize);
            self.debt -= taken as isize;
        }
    }

    /// Takes the doorbell that was pending, or notes that it is owed.
    pub fn take_doorbell(&mut self, core: &Core) {
        self.debt += 1;
        if self.debt > 0 {
            let taken = self.take_doorbells(core, 1);
            point!("doorbell taken");
            self.debt -= taken as isize;
        }
    }

    /// Takes the doorbell and arms, since the ring seems empty, so that the control socket is not readable
    /// until there is data. Returns whether there is data after all.
    pub fn settle(
        &mut self,
        core: &Core,
        consumer: &mut Consumer,
    ) -> std::result::Result<bool, PeerMisbehaved> {
        if core.kind() == Kind::SeqPacket && core.peer_left() {
            // The socket stays readable for good. Taking a doorbell would take the pending error with it,
            // which poll(2) must show.
            return Ok(consumer.available(1)? > 0);
        }
        if core.kind() == Kind::Datagram && core.peer_left() && control::is_failed(core.fd()) {
            // Here, too, taking a doorbell would take the pending error, until a call has reported it.
            return Ok(consumer.available(1)? > 0);
        }
        self.take_debt(core);
        let header = consumer.header();
        if header.is_rung() {
            header.arm(consumer.position());
            point!("armed");
            let data = consumer.available(1)? > 0;
            if data && consumer.header().disarm() {
                return Ok(true);
            }
            self.take_doorbell(core);
            if self.debt > MAX_DOORBELL_DEBT {
                return Err(PeerMisbehaved::Doorbells);
            }
        }
        Ok(consumer.available(1)? > 0)
    }

    /// Settles as `settle` does, while `data` bytes are in the ring that will all be taken now. Returns how
    /// many bytes are there.
    ///
    /// A receiver that slept does this before it looks at the bytes. The kernel wakes the *sender* when one
    /// of its bytes is taken (net/unix/af_unix.c: unix_write_space). So the sender's CPU has left its idle
    /// state by the time the answer comes.
    pub fn settle_ahead(
        &mut self,
        core: &Core,
        consumer: &mut Consumer,
        data: usize,
    ) -> std::result::Result<usize, PeerMisbehaved> {
        let header = consumer.header();
        if self.debt > 0 || !header.is_rung() {
            return Ok(data);
        }
        header.arm(consumer.position() + data as u64);
        point!("armed");
        let now = consumer.available(data + 1)?;
        if now == data || !consumer.header().disarm() {
            self.take_doorbell(core);
        }
        Ok(now)
    }

    /// Takes the filler of a sender that waits for room, if there is now the room that it waits for.
    #[inline]
    pub fn unpark(
        &mut self,
        core: &Core,
        consumer: &mut Consumer,
    ) -> std::result::Result<(), PeerMisbehaved> {
        fence(SeqCst);
        self.unpark_if_seen(core, consumer)
    }

    /// Does what `unpark` does, without the fence: it may miss a sender that parks at this very moment.
    #[inline]
    pub fn unpark_if_seen(
        &mut self,
        core: &Core,
        consumer: &mut Consumer,
    ) -> std::result::Result<(), PeerMisbehaved> {
        let (room, capacity) = (consumer.room(), consumer.ring().capacity());
        let header = consumer.header();
        if self.stray && header.is_parked() {
            return self.take_filler(core, consumer);
        }
        if !header.must_unpark(room, capacity) {
            return Ok(());
        }
        // The sender may have gone on since its head was last looked at. It then has less room than it seems
        // from here.
        consumer.available(usize::MAX)?;
        if consumer.header().must_unpark(consumer.room(), capacity) {
            return self.take_filler(core, consumer);
        }
        Ok(())
    }

    /// Handles room that was made without a receive; a receive itself looks whether a sender waits for room.
    pub fn freed(&mut self, core: &Core, consumer: &mut Consumer) -> std::result::Result<(), PeerMisbehaved> {
        if consumer.is_shared() {
            // The sender gets the room only when this process has saved its state.
            self.made_room = true;
            return Ok(());
        }
        self.unpark(core, consumer)
    }

    /// Takes a filler, however little room there is.
    pub fn unpark_now(
        &mut self,
        core: &Core,
        consumer: &mut Consumer,
    ) -> std::result::Result<(), PeerMisbehaved> {
        if consumer.header().is_parked() { self.take_filler(core, consumer) } else { Ok(()) }
    }

    /// Takes what the peer of a datagram socket leaves in the queue. The peer has left, and all that it had
    /// sent through memory was received.
    ///
    /// A peer that was killed while it parked has not said that a filler is there. Then everything in the
    /// queue is that peer's: it was sending through memory, and while the kernel still knows it as the peer,
    /// nobody else can send to this socket.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`] if the header says what cannot be.
    pub fn clear_away(
        &mut self,
        core: &Core,
        consumer: &mut Consumer,
    ) -> std::result::Result<(), PeerMisbehaved> {
        let header = consumer.header();
        if header.is_parking() && !header.is_parked() && rustix::net::getpeername(core.fd()).is_ok() {
            while self.take_record(core).is_some() {}
            return Ok(());
        }
        self.unpark_now(core, consumer)
    }

    /// Takes the filler that is parked.
    #[cold]
    pub fn take_filler(
        &mut self,
        core: &Core,
        consumer: &mut Consumer,
    ) -> std::result::Result<(), PeerMisbehaved> {
        // The parking that had no explanation has ended: the next one gets a time limit of its own.
        self.unexplained_since = None;
        let bytes = consumer.header().unpark()? as usize;
        point!("filler claimed");
        if core.kind().has_records() {
            return self.take_filler_record(core, bytes);
        }
        let short = bytes - self.take(core, bytes);
        point!("filler taken");
        if short > 0 && !core.hung_up() {
            // The doorbell of another sender is still on its way, and `settle` took a byte of the filler for
            // it. The bytes are all alike, so one is taken when that doorbell comes.
            self.add_debt(short);
            if self.debt > MAX_DOORBELL_DEBT {
                return Err(PeerMisbehaved::Doorbells);
            }
        }
        Ok(())
    }

    /// Takes up to `count` doorbells. Returns how many were there.
    pub fn take_doorbells(&mut self, core: &Core, count: usize) -> usize {
        if core.kind() == Kind::Stream {
            return self.take(core, count);
        }
        for taken in 0..count {
            match self.take_record(core) {
                Some(1) => {}
                None => return taken,
                // The filler of one sender came, while the doorbell of another is still on its way. That
                // doorbell stays owed, and the filler's sender is woken to park again.
                Some(_) => {
                    self.stray = true;
                    return taken;
                }
            }
        }
        count
    }

    /// Takes a filler that is one record, and as many doorbells as came with it. So a doorbell stays where
    /// one was pending.
    pub fn take_filler_record(
        &mut self,
        core: &Core,
        records: usize,
    ) -> std::result::Result<(), PeerMisbehaved> {
        let Some(own) = records.checked_sub(1) else { return Ok(()) };
        let mut doorbells: usize = 0;
        while !std::mem::take(&mut self.stray) {
            match self.take_record(core) {
                Some(1) if doorbells <= MAX_DOORBELL_DEBT as usize => doorbells += 1,
                Some(n) if n > 1 => break,
                None if core.hung_up() => return Ok(()),
                _ => return Err(PeerMisbehaved::Doorbells),
            }
        }
        if doorbells < own {
            doorbells += self.take_doorbells(core, own - doorbells);
        }
        // Late doorbells may be before the filler, or its own doorbells may be counted as late ones. The
        // record of a channel that was not met may be among them, and that channel then brings a doorbell to
        // be taken.
        let least = self.debt.min(0);
        self.debt += own as isize - doorbells as isize;
        if !(least..=MAX_DOORBELL_DEBT).contains(&self.debt) {
            return Err(PeerMisbehaved::Doorbells);
        }
        // A doorbell in whose place the filler was taken was behind it. It would make this end readable until
        // the next receive.
        self.take_debt(core);
        Ok(())
    }

    /// Takes one record from a seqpacket control socket. If the kernel reports an error before it, that is
    /// kept.
    pub fn take_record(&mut self, core: &Core) -> Option<usize> {
        let taken = self.channel.take_record(core.fd()).or_else(|_| {
            core.note_reset();
            self.channel.take_record(core.fd())
        });
        let record = taken.ok().flatten()?;
        self.debt += isize::from(record.surplus);
        Some(record.len)
    }

    /// Takes all that is in the queue, as nothing more will come: a dead sender's doorbells and fillers, and
    /// maybe a channel.
    pub fn drain(&mut self, core: &Core) {
        match core.kind() {
            Kind::Stream => {
                let _ = self.find_channel(core);
                core.take_all();
            }
            Kind::SeqPacket | Kind::Datagram => while self.take_record(core).is_some() {},
        }
    }

    /// Looks for the channel in the queue of the control socket. Returns whether it was met now.
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub fn find_channel(&mut self, core: &Core) -> rustix::io::Result<bool> {
        match self.channel.find(core.fd(), core.kind()) {
            Ok(true) => {}
            Err(Errno::CONNRESET) => {
                core.note_reset();
                return Ok(false);
            }
            other => return other,
        }
        // Doorbells and fillers do not explain its byte.
        self.add_debt(1);
        self.take_debt(core);
        Ok(true)
    }

    /// Looks for the channel when the ring says that it is there. Where the control socket has records, this
    /// takes those before it.
    ///
    /// # Errors
    ///
    /// EMFILE, and the channel stays in the queue. The doorbells that were taken before it are made up for
    /// when it is met. EPROTO if the records before it do not end.
    pub fn meet_channel(&mut self, core: &Core, consumer: &mut Consumer) -> Result<()> {
        let error = |errno| Error::new(Op::Recv, errno);
        let mut before = 0;
        while !self.channel.has_channel()
            && !self.find_channel(core).map_err(error)?
            && core.kind().has_records()
        {
            if self.channel.has_channel() {
                break; // its record was counted before
            }
            point!("before the channel");
            before += 1;
            if before > MAX_BEFORE {
                return Err(core.misbehaved(Op::Recv, PeerMisbehaved::Doorbells));
            }
            match self.take_record(core) {
                None => break,
                Some(1) => self.debt -= 1,
                // This is a filler, and a doorbell that came with it stays. Its sender is woken.
                Some(_) if consumer.header().is_parked() => {
                    let records = consumer.header().unpark().unwrap_or(1) as isize;
                    self.debt += records - 1;
                }
                Some(_) => self.stray = true,
            }
        }
        Ok(())
    }

    /// Takes a byte that nothing explains, if a process that was killed may have left it. Returns whether it
    /// did.
    pub fn forgive(&mut self, core: &Core) -> bool {
        if self.forgiven == 0 {
            return false;
        }
        self.forgiven -= 1;
        match core.kind() {
            Kind::Stream => self.take(core, 1) == 1,
            Kind::SeqPacket | Kind::Datagram => self.take_record(core).is_some(),
        }
    }

    /// Checks what explains a byte in the queue, although the ring is empty and the doorbell was taken.
    pub fn explain(&mut self, consumer: &mut Consumer) -> std::result::Result<(), PeerMisbehaved> {
        let header = consumer.header();
        if header.is_rung() || self.debt > 0 {
            self.unexplained_since = None;
            return Ok(());
        }
        if header.is_parking() {
            // A filler that is parked waits for more room than there is, and may do so for long. One that is
            // under way must end soon.
            return match self.unexplained_since {
                _ if header.is_parked() => {
                    self.unexplained_since = None;
                    Ok(())
                }
                None => {
                    self.unexplained_since = Some(Instant::now());
                    Ok(())
                }
                Some(since) if since.elapsed() < MAX_PARKING => Ok(()),
                Some(_) => Err(PeerMisbehaved::Doorbells),
            };
        }
        Err(PeerMisbehaved::Doorbells)
    }
}
