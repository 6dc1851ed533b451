//! Doorbells and fillers in the queue of the control socket, and what else lies there: what is taken, what is owed, and
//! what explains a byte that is left.

use crate::connection::core::Core;
use crate::connection::kind::Kind;
use crate::connection::rx::{MAX_DOORBELL_DEBT, MAX_PARKING, RxRing};
use crate::doorbell::control;
use crate::{Error, Op, Result};
use onecopy_ring::PeerMisbehaved;
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use rustix::io::Errno;
use std::time::Instant;

/// Most records that lie before a channel: doorbells that are pending, or owed, and fillers, of which there are few. A peer that
/// sends them as fast as they are taken must not keep a call that looks for it.
const MAX_BEFORE: u32 = 4 * MAX_DOORBELL_DEBT as u32;

impl RxRing {
    /// Takes doorbells or bytes of a filler from the control socket. Returns how many were there.
    pub fn take(&mut self, core: &Core, count: usize) -> usize {
        let taken = self.inlet.take(core.fd(), count);
        if taken.reset {
            core.reset.store(1, Relaxed);
        }
        if taken.surplus {
            // The channel's byte is one that neither doorbells nor fillers explain.
            self.doorbell_debt += 1 - self.inlet.take(core.fd(), 1).bytes as isize;
        }
        taken.bytes
    }

    /// That many bytes are in the queue, or on their way, which must be taken.
    pub fn add_debt(&mut self, count: usize) {
        self.doorbell_debt += count as isize;
    }

    /// Takes of what should have been taken before what is there now.
    pub fn take_debt(&mut self, core: &Core) {
        if self.doorbell_debt > 0 {
            let taken = self.take_doorbells(core, self.doorbell_debt as usize);
            self.doorbell_debt -= taken as isize;
        }
    }

    /// Takes the doorbell that was pending, or owes it.
    pub fn take_doorbell(&mut self, core: &Core) {
        self.doorbell_debt += 1;
        if self.doorbell_debt > 0 {
            let taken = self.take_doorbells(core, 1);
            point!("bell taken");
            self.doorbell_debt -= taken as isize;
        }
    }

    /// The ring seems empty: takes the doorbell and arms, so that the control socket is not readable until there is
    /// data. Returns whether there is data after all.
    pub fn settle(&mut self, core: &Core) -> std::result::Result<bool, PeerMisbehaved> {
        if core.kind == Kind::SeqPacket && core.peer_left() {
            // Readable for good. Taking a doorbell would take the pending error with it, which poll(2) must show.
            return Ok(self.consumer.available(1)? > 0);
        }
        if core.kind == Kind::Datagram && core.peer_left() && control::is_failed(core.fd()) {
            // So would it here, until a call has told the error.
            return Ok(self.consumer.available(1)? > 0);
        }
        self.take_debt(core);
        let header = self.consumer.header();
        if header.is_rung() {
            header.arm(self.consumer.position());
            point!("armed");
            let data = self.consumer.available(1)? > 0;
            if data && self.consumer.header().disarm() {
                return Ok(true);
            }
            self.take_doorbell(core);
            if self.doorbell_debt > MAX_DOORBELL_DEBT {
                return Err(PeerMisbehaved::Doorbells);
            }
        }
        Ok(self.consumer.available(1)? > 0)
    }

    /// As `settle`, while `data` bytes are there that will all be taken now. Who slept does this before he looks at
    /// them: the kernel wakes the *sender* when a byte of its is taken (net/unix/af_unix.c: unix_write_space), so that
    /// the sender's CPU has left its idle state by the time the answer comes. Returns the bytes there.
    pub fn settle_ahead(&mut self, core: &Core, data: usize) -> std::result::Result<usize, PeerMisbehaved> {
        let header = self.consumer.header();
        if self.doorbell_debt > 0 || !header.is_rung() {
            return Ok(data);
        }
        header.arm(self.consumer.position() + data as u64);
        point!("armed");
        let now = self.consumer.available(data + 1)?;
        if now == data || !self.consumer.header().disarm() {
            self.take_doorbell(core);
        }
        Ok(now)
    }

    /// Takes the filler of a sender that waits for room, if it has now what it waits for.
    #[inline]
    pub fn unpark(&mut self, core: &Core) -> std::result::Result<(), PeerMisbehaved> {
        fence(SeqCst);
        self.unpark_if_seen(core)
    }

    /// As `unpark`, without the fence: a sender that parks at this very moment may be missed.
    #[inline]
    pub fn unpark_if_seen(&mut self, core: &Core) -> std::result::Result<(), PeerMisbehaved> {
        let (room, capacity) = (self.consumer.room(), self.consumer.ring().capacity());
        let header = self.consumer.header();
        if self.stray && header.is_parked() {
            return self.take_filler(core);
        }
        if !header.must_unpark(room, capacity) {
            return Ok(());
        }
        // The sender may have gone on since its head was last looked at, and have less room than it seems from here.
        self.consumer.available(usize::MAX)?;
        if self.consumer.header().must_unpark(self.consumer.room(), capacity) {
            return self.take_filler(core);
        }
        Ok(())
    }

    /// Room was made otherwise than by a receive, which looks itself whether somebody waits for it.
    pub fn freed(&mut self, core: &Core) -> std::result::Result<(), PeerMisbehaved> {
        if self.consumer.is_shared() {
            // The room is the sender's only when this process has saved what it knows.
            self.freed = true;
            return Ok(());
        }
        self.unpark(core)
    }

    /// Takes a filler however little room there is.
    pub fn unpark_now(&mut self, core: &Core) -> std::result::Result<(), PeerMisbehaved> {
        if self.consumer.header().is_parked() { self.take_filler(core) } else { Ok(()) }
    }

    /// The peer of a datagram socket has left, and all that it had sent through memory was received: takes what it leaves in
    /// the queue. One that was killed while it parked has not said that a filler lies there. Whatever does is that peer's then:
    /// it was sending through memory, and while the kernel has not forgotten it, nobody else can send to this socket.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`].
    pub fn clear_away(&mut self, core: &Core) -> std::result::Result<(), PeerMisbehaved> {
        let header = self.consumer.header();
        if header.is_parking() && !header.is_parked() && rustix::net::getpeername(core.fd()).is_ok() {
            while self.take_record(core).is_some() {}
            return Ok(());
        }
        self.unpark_now(core)
    }

    #[cold]
    pub fn take_filler(&mut self, core: &Core) -> std::result::Result<(), PeerMisbehaved> {
        // The parking that was puzzled over has ended: the next one gets its own time.
        self.puzzled = None;
        let bytes = self.consumer.header().unpark()? as usize;
        point!("filler claimed");
        if core.kind.has_records() {
            return self.take_filler_record(core, bytes);
        }
        let short = bytes - self.take(core, bytes);
        point!("filler taken");
        if short > 0 && !core.hung_up() {
            // The doorbell of another sender is still on its way, and `settle` took a byte of the filler for it: the
            // bytes are all alike, so it is taken when it comes.
            self.add_debt(short);
            if self.doorbell_debt > MAX_DOORBELL_DEBT {
                return Err(PeerMisbehaved::Doorbells);
            }
        }
        Ok(())
    }

    /// Takes up to `count` doorbells. Returns how many were there.
    pub fn take_doorbells(&mut self, core: &Core, count: usize) -> usize {
        if core.kind == Kind::Stream {
            return self.take(core, count);
        }
        for taken in 0..count {
            match self.take_record(core) {
                Some(1) => {}
                None => return taken,
                // The filler of one sender, while the doorbell of another is still on its way: that one stays owed, and the
                // filler's sender is woken to park again.
                Some(_) => {
                    self.stray = true;
                    return taken;
                }
            }
        }
        count
    }

    /// Takes a filler that is one record, and as many doorbells as came with it, so that a doorbell stays where one was
    /// pending.
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
        // Late doorbells may lie before the filler, or its own be taken for late ones.
        // (The record of a channel that was not met may be among them, which then brings a doorbell to be taken.)
        let least = self.doorbell_debt.min(0);
        self.doorbell_debt += own as isize - doorbells as isize;
        if !(least..=MAX_DOORBELL_DEBT).contains(&self.doorbell_debt) {
            return Err(PeerMisbehaved::Doorbells);
        }
        // One in whose place the filler was taken lay behind it, and would have this end readable until the next receive.
        self.take_debt(core);
        Ok(())
    }

    /// Takes one record from a seqpacket control socket. An error that the kernel tells before it is kept.
    pub fn take_record(&mut self, core: &Core) -> Option<usize> {
        let taken = self.inlet.take_record(core.fd()).or_else(|_| {
            core.reset.store(1, Relaxed);
            self.inlet.take_record(core.fd())
        });
        let record = taken.ok().flatten()?;
        self.doorbell_debt += isize::from(record.surplus);
        Some(record.len)
    }

    /// Nothing more will come: takes what lies in the queue, a dead sender's doorbells and fillers, and maybe a channel.
    pub fn drain(&mut self, core: &Core) {
        match core.kind {
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
        match self.inlet.find(core.fd(), core.kind) {
            Ok(true) => {}
            Err(Errno::CONNRESET) => {
                core.reset.store(1, Relaxed);
                return Ok(false);
            }
            other => return other,
        }
        // Its byte is one more than doorbells and fillers explain.
        self.add_debt(1);
        self.take_debt(core);
        Ok(true)
    }

    /// As `find_channel`, where the ring says that it is there: of records, those before it are taken.
    ///
    /// # Errors
    ///
    /// EMFILE, with which it stays; doorbells that were taken before it are made up for when it is met. EPROTO where there is no end of
    /// records before it.
    pub fn meet_channel(&mut self, core: &Core) -> Result<()> {
        let error = |errno| Error::new(Op::Recv, errno);
        let mut before = 0;
        while !self.inlet.has_channel() && !self.find_channel(core).map_err(error)? && core.kind.has_records()
        {
            if self.inlet.has_channel() {
                break; // whose record was counted before
            }
            point!("before the channel");
            before += 1;
            if before > MAX_BEFORE {
                return Err(core.misbehaved(Op::Recv, PeerMisbehaved::Doorbells));
            }
            match self.take_record(core) {
                None => break,
                Some(1) => self.doorbell_debt -= 1,
                // A filler, and a doorbell that came with it and stays. Its sender is woken.
                Some(_) if self.consumer.header().is_parked() => {
                    let records = self.consumer.header().unpark().unwrap_or(1) as isize;
                    self.doorbell_debt += records - 1;
                }
                Some(_) => self.stray = true,
            }
        }
        Ok(())
    }

    /// A byte is in the queue that nothing explains: takes it, if a process that was killed may have left it.
    pub fn forgive(&mut self, core: &Core) -> bool {
        if self.forgiven == 0 {
            return false;
        }
        self.forgiven -= 1;
        match core.kind {
            Kind::Stream => self.take(core, 1) == 1,
            Kind::SeqPacket | Kind::Datagram => self.take_record(core).is_some(),
        }
    }

    /// A byte is in the queue although the ring is empty and the doorbell was taken: what explains it?
    pub fn explain(&mut self) -> std::result::Result<(), PeerMisbehaved> {
        let header = self.consumer.header();
        if header.is_rung() || self.doorbell_debt > 0 {
            self.puzzled = None;
            return Ok(());
        }
        if header.is_parking() {
            // A filler that waits for more room than there is, or one under way: only the latter must end soon.
            return match self.puzzled {
                _ if header.is_parked() => {
                    self.puzzled = None;
                    Ok(())
                }
                None => {
                    self.puzzled = Some(Instant::now());
                    Ok(())
                }
                Some(since) if since.elapsed() < MAX_PARKING => Ok(()),
                Some(_) => Err(PeerMisbehaved::Doorbells),
            };
        }
        Err(PeerMisbehaved::Doorbells)
    }
}
