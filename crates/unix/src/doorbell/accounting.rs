//! Bells and fillers in the queue of the control socket, and what else lies there: what is taken, what is owed, and
//! what explains a byte that is left.

use crate::connection::core::Core;
use crate::connection::kind::Kind;
use crate::connection::rx::{MAX_OWED, MAX_PARKING, RxRing};
use crate::doorbell::control;
use crate::{Error, Op, Result};
use onecopy_ring::Lie;
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use rustix::io::Errno;
use std::time::Instant;

/// Most records that lie before a channel: bells that are pending, or owed, and fillers, of which there are few. A peer that
/// sends them as fast as they are taken must not keep a call that looks for it.
const MAX_BEFORE: u32 = 4 * MAX_OWED as u32;

impl RxRing {
    /// Takes bells or bytes of a filler from the control socket. Returns how many were there.
    pub fn take(&mut self, core: &Core, count: usize) -> usize {
        let taken = self.inlet.take(core.fd(), count);
        if taken.reset {
            core.reset.store(1, Relaxed);
        }
        if taken.surplus {
            // The channel's byte is one that neither bells nor fillers explain.
            self.owed += 1 - self.inlet.take(core.fd(), 1).bytes as isize;
        }
        taken.bytes
    }

    /// That many bytes are in the queue, or on their way, which must be taken.
    pub fn owe(&mut self, count: usize) {
        self.owed += count as isize;
    }

    /// Takes of what should have been taken before what is there now.
    pub fn take_owed(&mut self, core: &Core) {
        if self.owed > 0 {
            let taken = self.take_bells(core, self.owed as usize);
            self.owed -= taken as isize;
        }
    }

    /// Takes the bell that was pending, or owes it.
    pub fn take_bell(&mut self, core: &Core) {
        self.owed += 1;
        if self.owed > 0 {
            let taken = self.take_bells(core, 1);
            point!("bell taken");
            self.owed -= taken as isize;
        }
    }

    /// The ring seems empty: takes the bell and arms, so that the control socket is not readable until there is
    /// data. Returns whether there is data after all.
    pub fn settle(&mut self, core: &Core) -> std::result::Result<bool, Lie> {
        if core.kind == Kind::SeqPacket && core.peer_left() {
            // Readable for good. Taking a bell would take the pending error with it, which poll(2) must show.
            return Ok(self.consumer.available(1)? > 0);
        }
        if core.kind == Kind::Datagram && core.peer_left() && control::is_failed(core.fd()) {
            // So would it here, until a call has told the error.
            return Ok(self.consumer.available(1)? > 0);
        }
        self.take_owed(core);
        let header = self.consumer.header();
        if header.is_rung() {
            header.arm(self.consumer.position());
            point!("armed");
            let data = self.consumer.available(1)? > 0;
            if data && self.consumer.header().disarm() {
                return Ok(true);
            }
            self.take_bell(core);
            if self.owed > MAX_OWED {
                return Err(Lie::Bells);
            }
        }
        Ok(self.consumer.available(1)? > 0)
    }

    /// As `settle`, while `data` bytes are there that will all be taken now. Who slept does this before he looks at
    /// them: the kernel wakes the *sender* when a byte of its is taken (net/unix/af_unix.c: unix_write_space), so that
    /// the sender's CPU has left its idle state by the time the answer comes. Returns the bytes there.
    pub fn settle_ahead(&mut self, core: &Core, data: usize) -> std::result::Result<usize, Lie> {
        let header = self.consumer.header();
        if self.owed > 0 || !header.is_rung() {
            return Ok(data);
        }
        header.arm(self.consumer.position() + data as u64);
        point!("armed");
        let now = self.consumer.available(data + 1)?;
        if now == data || !self.consumer.header().disarm() {
            self.take_bell(core);
        }
        Ok(now)
    }

    /// Takes the filler of a sender that waits for room, if it has now what it waits for.
    #[inline]
    pub fn unpark(&mut self, core: &Core) -> std::result::Result<(), Lie> {
        fence(SeqCst);
        self.unpark_if_seen(core)
    }

    /// As `unpark`, without the fence: a sender that parks at this very moment may be missed.
    #[inline]
    pub fn unpark_if_seen(&mut self, core: &Core) -> std::result::Result<(), Lie> {
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
    pub fn freed(&mut self, core: &Core) -> std::result::Result<(), Lie> {
        if self.consumer.is_shared() {
            // The room is the sender's only when this process has saved what it knows.
            self.freed = true;
            return Ok(());
        }
        self.unpark(core)
    }

    /// Takes a filler however little room there is.
    pub fn unpark_now(&mut self, core: &Core) -> std::result::Result<(), Lie> {
        if self.consumer.header().is_parked() { self.take_filler(core) } else { Ok(()) }
    }

    /// The peer of a datagram socket has left, and all that it had sent through memory was received: takes what it leaves in
    /// the queue. One that was killed while it parked has not said that a filler lies there. Whatever does is that peer's then:
    /// it was sending through memory, and while the kernel has not forgotten it, nobody else can send to this socket.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn clear_away(&mut self, core: &Core) -> std::result::Result<(), Lie> {
        let header = self.consumer.header();
        if header.is_parking() && !header.is_parked() && rustix::net::getpeername(core.fd()).is_ok() {
            while self.take_record(core).is_some() {}
            return Ok(());
        }
        self.unpark_now(core)
    }

    #[cold]
    pub fn take_filler(&mut self, core: &Core) -> std::result::Result<(), Lie> {
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
            // The bell of another sender is still on its way, and `settle` took a byte of the filler for it: the
            // bytes are all alike, so it is taken when it comes.
            self.owe(short);
            if self.owed > MAX_OWED {
                return Err(Lie::Bells);
            }
        }
        Ok(())
    }

    /// Takes up to `count` bells. Returns how many were there.
    pub fn take_bells(&mut self, core: &Core, count: usize) -> usize {
        if core.kind == Kind::Stream {
            return self.take(core, count);
        }
        for taken in 0..count {
            match self.take_record(core) {
                Some(1) => {}
                None => return taken,
                // The filler of one sender, while the bell of another is still on its way: that one stays owed, and the
                // filler's sender is woken to park again.
                Some(_) => {
                    self.stray = true;
                    return taken;
                }
            }
        }
        count
    }

    /// Takes a filler that is one record, and as many bells as came with it, so that a bell stays where one was
    /// pending.
    pub fn take_filler_record(&mut self, core: &Core, records: usize) -> std::result::Result<(), Lie> {
        let Some(own) = records.checked_sub(1) else { return Ok(()) };
        let mut bells: usize = 0;
        while !std::mem::take(&mut self.stray) {
            match self.take_record(core) {
                Some(1) if bells <= MAX_OWED as usize => bells += 1,
                Some(n) if n > 1 => break,
                None if core.hung_up() => return Ok(()),
                _ => return Err(Lie::Bells),
            }
        }
        if bells < own {
            bells += self.take_bells(core, own - bells);
        }
        // Late bells may lie before the filler, or its own be taken for late ones.
        // (The record of a channel that was not met may be among them, which then brings a bell to be taken.)
        let least = self.owed.min(0);
        self.owed += own as isize - bells as isize;
        if !(least..=MAX_OWED).contains(&self.owed) {
            return Err(Lie::Bells);
        }
        // One in whose place the filler was taken lay behind it, and would have this end readable until the next receive.
        self.take_owed(core);
        Ok(())
    }

    /// Takes one record from a seqpacket control socket. An error that the kernel tells before it is kept.
    pub fn take_record(&mut self, core: &Core) -> Option<usize> {
        let taken = self.inlet.take_record(core.fd()).or_else(|_| {
            core.reset.store(1, Relaxed);
            self.inlet.take_record(core.fd())
        });
        let record = taken.ok().flatten()?;
        self.owed += isize::from(record.surplus);
        Some(record.len)
    }

    /// Nothing more will come: takes what lies in the queue, a dead sender's bells and fillers, and maybe a channel.
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
        // Its byte is one more than bells and fillers explain.
        self.owe(1);
        self.take_owed(core);
        Ok(true)
    }

    /// As `find_channel`, where the ring says that it is there: of records, those before it are taken.
    ///
    /// # Errors
    ///
    /// EMFILE, with which it stays; bells that were taken before it are made up for when it is met. EPROTO where there is no end of
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
                return Err(core.lie(Op::Recv, Lie::Bells));
            }
            match self.take_record(core) {
                None => break,
                Some(1) => self.owed -= 1,
                // A filler, and a bell that came with it and stays. Its sender is woken.
                Some(_) if self.consumer.header().is_parked() => {
                    let records = self.consumer.header().unpark().unwrap_or(1) as isize;
                    self.owed += records - 1;
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

    /// A byte is in the queue although the ring is empty and the bell was taken: what explains it?
    pub fn explain(&mut self) -> std::result::Result<(), Lie> {
        let header = self.consumer.header();
        if header.is_rung() || self.owed > 0 {
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
                Some(_) => Err(Lie::Bells),
            };
        }
        Err(Lie::Bells)
    }
}
