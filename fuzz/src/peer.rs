//! The hostile end.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use onecopy::unix::Datagram;
use onecopy::{RecvFlags, SendFlags};
use onecopy_conformance::impls::kernel::Plain;
use onecopy_conformance::lender;
use onecopy_conformance::liar::{Field, HEADER_LEN, Liar, Rings, SEALS};
use onecopy_conformance::tools::Dice;
use rustix::net::{RecvFlags as Raw, Shutdown};

use crate::values::value;
use crate::{Secret, Socket, share};

/// A liar that acts by the dice. Its own failures mean nothing: it tries what it likes.
pub struct Peer {
    liar: Liar,
    /// Of a datagram socket: what hangs up when this peer goes.
    life: Option<OwnedFd>,
    /// Of a pair: the half that was taken apart, which does nothing by itself but be open.
    half: Option<Datagram>,
    /// Of a server: by what the victim knows it.
    rendezvous: Option<Plain>,
    /// Bytes that it has seen and may not have.
    leak: Option<String>,
}

impl Peer {
    /// Of a connected liar.
    pub fn new(liar: Liar) -> Peer {
        Peer { liar, life: None, half: None, rendezvous: None, leak: None }
    }

    /// Of a liar that has accepted, and may be known as one of ours.
    pub fn known_by(rendezvous: Option<Plain>, liar: Liar) -> Peer {
        Peer { rendezvous, ..Peer::new(liar) }
    }

    /// Of one half of a pair, and its end of the lifeline.
    pub fn half(liar: Liar, half: Datagram, life: OwnedFd) -> Peer {
        Peer { life: Some(life), half: Some(half), ..Peer::new(liar) }
    }

    /// A peer's process ends, or it closes: with a word of farewell or without.
    pub fn hang_up(&mut self, says_so: bool) {
        if self.life.take().is_some() {
            self.liar.channel = None;
        }
        if self.half.take().is_some() {
            // (Which said so. A dead process has not.)
            if !says_so && let Ok(ring) = self.liar.mine() {
                let _ = ring.set(Field::Shut, 0);
            }
        }
        if let Ok(null) = File::open("/dev/null") {
            self.liar.fd = OwnedFd::from(null);
        }
    }

    /// What it lies with.
    #[cfg(test)]
    pub fn liar(&mut self) -> &mut Liar {
        &mut self.liar
    }

    /// In the end: all of the memory that it can look at.
    ///
    /// # Errors
    ///
    /// Where another connection's bytes came to it.
    pub fn finish(self, secret: Secret) -> Result<(), String> {
        if let Some(leak) = self.leak {
            return Err(leak);
        }
        for (whose, memory) in
            [("the peer's ring", &self.liar.mine), ("the victim's ring", &self.liar.theirs)]
        {
            let Some(memory) = memory else { continue };
            let mut all = vec![0; (HEADER_LEN + memory.capacity) as usize];
            if memory.read(&mut all, 0).is_ok() {
                secret.is_not_in(whose, &all)?;
            }
        }
        Ok(())
    }

    /// Upgrades: honestly mostly, else with something wrong.
    pub fn upgrade(&mut self, dice: &mut Dice, victim: &Socket) {
        let liar = &mut self.liar;
        // What is to come has been sent already, or never will be.
        liar.patience = Duration::from_millis(3);
        let rooms = [4096, 8192, 65_536, 100_032, 1 << 20];
        let mut room = || rooms[(dice.roll() % 5) as usize];
        let capacities = [room(), room()];
        if self.half.is_some() || dice.one_in(40) {
            return;
        }
        if matches!(victim, Socket::Grams(_)) {
            self.life = share::share(liar, dice, victim, capacities[0]).ok();
            // What comes with a datagram lies there, too.
            liar.channel = self.life.as_ref().and_then(|life| life.try_clone().ok());
            return;
        }
        let invited = liar.client || self.rendezvous.is_some();
        let victim_first = if invited { dice.one_in(2) } else { dice.one_in(40) };
        // A few bytes first, so that the switch is at some byte (who sends such, and then rings, is plain).
        if dice.one_in(if victim_first { 3 } else { 40 }) {
            let _ = liar.send_over_kernel(&vec![b'k'; dice.size(3000)]);
        }
        if victim_first {
            if self.rendezvous.is_some() {
                // (A client keeps its rings for its second message.)
                let _ = victim.send_with_flags(b"f", SendFlags::DONTWAIT | SendFlags::EOR);
            }
            let _ = victim.send_with_flags(b"v", SendFlags::DONTWAIT | SendFlags::EOR);
            // Both at once.
            if dice.one_in(8) {
                let _ = offer(liar, dice, capacities);
            }
            if liar.take_rings().is_ok() && !dice.one_in(20) {
                join(liar, dice, victim);
            }
        } else {
            let _ = offer(liar, dice, capacities);
            look(victim, dice);
            // Or it wants larger ones, and gets them, or gets less.
            if liar.theirs().and_then(|ring| ring.get(Field::Joined)).ok() == Some(2) && !dice.one_in(10) {
                let wanted = [liar.theirs(), liar.mine()].map(|ring| {
                    ring.and_then(|ring| ring.get(Field::Larger)).map_or(4096, |n| n.min(1 << 24))
                });
                let wanted = if dice.one_in(20) { capacities } else { wanted };
                let _ = offer(liar, dice, wanted);
                look(victim, dice);
            }
        }
        let _ = if dice.one_in(20) {
            liar.theirs().and_then(|ring| ring.set(Field::SwitchAt, value(dice, liar.over_kernel, 4096)))
        } else {
            liar.switch()
        };
        look(victim, dice);
    }

    /// Does one thing.
    pub fn step(&mut self, dice: &mut Dice, secret: Secret) {
        let liar = &mut self.liar;
        match dice.roll() % 20 {
            0..5 => {
                let bytes = vec![b'p'; dice.size(20_000)];
                let _ = if !liar.records || dice.one_in(20) {
                    liar.publish(&bytes)
                } else if dice.one_in(15) {
                    with_frame(liar, dice, &bytes)
                } else if dice.one_in(20) {
                    liar.publish_framed(value(dice, bytes.len() as u64, 1 << 32), &bytes)
                } else {
                    liar.publish_frame(&bytes, !dice.one_in(9))
                };
            }
            5..9 => {
                if let Ok(bytes) = liar.take()
                    && let Err(leak) = secret.is_not_in("sent to the peer", &bytes)
                {
                    self.leak = Some(leak);
                }
            }
            9 => {
                let _ = liar.doorbell(dice.size(40));
            }
            10..12 => {
                // Reads doorbells and fillers, as an honest receiver does.
                let mut buf = vec![0; dice.size(20_000)];
                if let Ok((n, _)) = rustix::net::recv(&liar.fd, &mut buf[..], Raw::DONTWAIT)
                    && let Err(leak) = secret.is_not_in("sent over the control socket", &buf[..n])
                {
                    self.leak = Some(leak);
                }
            }
            12..14 if dice.one_in(4) => {
                let ring = if dice.one_in(2) { liar.theirs() } else { liar.mine() };
                let field = Field::ALL[dice.roll() as usize % Field::ALL.len()];
                if let Ok(ring) = ring {
                    let now = ring.get(field).unwrap_or(0);
                    // Mostly plausible, so that the conversation goes on and deeper.
                    let next = match dice.roll() % 3 {
                        0 => value(dice, now, ring.capacity),
                        _ => now.wrapping_add(dice.size(500) as u64),
                    };
                    let _ = ring.set(field, next);
                }
            }
            14 if dice.one_in(8) => {
                let bytes: Vec<u8> = (0..dice.size(5000)).map(|_| dice.roll() as u8).collect();
                let _ = liar.send_with(&bytes, &[]);
            }
            15 if dice.one_in(8) => {
                if let Ok(null) = File::open("/dev/null") {
                    let _ = liar.send_with(&[0; 3], &[null.as_fd(); 3]);
                }
            }
            16 if dice.one_in(8) => {
                let ring = if dice.one_in(2) { liar.theirs() } else { liar.mine() };
                if let Ok(ring) = ring {
                    let page = dice.roll() % (ring.capacity / 4096 + 1);
                    let _ = ring.punch(page * 4096, HEADER_LEN + dice.size(200_000) as u64);
                }
            }
            17 if dice.one_in(60) => {
                let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][(dice.roll() % 3) as usize];
                let _ = rustix::net::shutdown(&liar.fd, how);
            }
            19 if dice.one_in(2) => marks(liar, dice),
            18 if dice.one_in(100) => match self.half.is_some() {
                true => self.hang_up(dice.one_in(2)),
                false => {
                    if let Ok(null) = File::open("/dev/null") {
                        liar.fd = OwnedFd::from(null);
                    }
                }
            },
            // (The line of a pair may hang up while the socket stays.)
            13 if dice.one_in(60) => {
                if let Some(life) = self.life.take() {
                    let _ = rustix::net::shutdown(&life, Shutdown::Both);
                    liar.channel = None;
                }
            }
            _ => std::thread::yield_now(),
        }
    }
}

/// The victim sees what came: it receives mostly, since a look joins nothing.
fn look(victim: &Socket, dice: &mut Dice) {
    let peek = if dice.one_in(8) { RecvFlags::PEEK } else { RecvFlags::empty() };
    let _ = victim.recv_with_flags(&mut vec![0; dice.size(4000)], RecvFlags::DONTWAIT | peek);
}

/// Says that it has joined the victim's rings: or that it wants others, or what nobody says.
fn join(liar: &mut Liar, dice: &mut Dice, victim: &Socket) {
    let again = |victim: &Socket| {
        let _ = victim.send_with_flags(b"w", SendFlags::DONTWAIT | SendFlags::EOR);
    };
    let Ok(ring) = liar.mine() else { return };
    match dice.roll() % 12 {
        0 => {
            let _ = ring.set(Field::Joined, value(dice, 1, 2));
        }
        1 | 2 => {
            let _ = ring.set(Field::Larger, value(dice, ring.capacity, ring.capacity));
            let _ = liar.theirs().and_then(|ring| ring.set(Field::Larger, value(dice, 4096, 1 << 20)));
            let _ = ring.set(Field::Joined, 2);
            again(victim);
            if liar.take_rings().is_ok() {
                let _ = liar.join();
            }
        }
        _ => {
            let _ = liar.join();
        }
    }
    // Before it sends again it looks whether this one has joined.
    again(victim);
}

/// Sends rings with a byte: as they should be, mostly.
fn offer(liar: &mut Liar, dice: &mut Dice, capacities: [u64; 2]) -> std::io::Result<()> {
    let rings = Rings::unsealed(capacities, liar.nonce)?;
    for ring in [&rings.first, &rings.second] {
        if dice.one_in(60) {
            let field = Field::ALL[dice.roll() as usize % Field::ALL.len()];
            ring.set(field, value(dice, ring.get(field)?, ring.capacity))?;
        }
    }
    if !dice.one_in(40) {
        rings.seal(SEALS)?;
    }
    let null = File::open("/dev/null")?;
    let others = if dice.one_in(12) { dice.roll() as usize % 4 } else { 0 };
    let bytes = vec![b'h'; if dice.one_in(2) { 1 } else { dice.size(3000) }];
    if dice.one_in(30) {
        // Not behind the others, and so the program's.
        let memfd = rings.first.file.as_fd();
        return liar.say(&bytes, &[memfd, null.as_fd()]);
    }
    liar.attach(&bytes, &vec![null.as_fd(); others], rings)
}

/// A frame that says that something comes with it, which is in the channel mostly; or where to look for it.
fn with_frame(liar: &mut Liar, dice: &mut Dice, bytes: &[u8]) -> std::io::Result<usize> {
    if liar.channel.is_none() && !dice.one_in(12) {
        liar.open_channel()?;
    }
    if dice.one_in(2) {
        return by_reference(liar, dice, &bytes[..bytes.len().min(300)]);
    }
    let count = dice.roll() % 3;
    let said = if dice.one_in(3) { 1 << (dice.roll() % 3) } else { 0 };
    let put = if dice.one_in(12) { dice.roll() % 5 } else { count };
    if count > 0 || said == 1 {
        let null = File::open("/dev/null")?;
        let fds = vec![null.as_fd(); put as usize];
        // What nothing announces may lie before it.
        if dice.one_in(8) {
            let number = value(dice, liar.head, liar.theirs()?.capacity).to_le_bytes();
            let _ = liar.put_as(&number[..if dice.one_in(6) { 3 } else { 8 }], &fds);
        }
        let _ = liar.put(&fds);
    }
    let word = bytes.len() as u64 | 1 << 32 | (count | said << 8) << 40;
    // At least a mark's room, mostly.
    let least = if dice.one_in(12) { 0 } else { liar.theirs()?.capacity / lender::MARKS };
    let mut frame = word.to_le_bytes().to_vec();
    frame.extend(bytes);
    frame.resize(frame.len().max(least as usize).next_multiple_of(8), 0);
    liar.publish(&frame)
}

/// Bytes of a page of the peer's pools.
const PAGE: u64 = 4096;

/// A record that lies in pages, or the pool that they are of: mostly such as there can be.
fn by_reference(liar: &mut Liar, dice: &mut Dice, bytes: &[u8]) -> std::io::Result<usize> {
    let wrong = dice.one_in(12);
    let name = if wrong { value(dice, 1, 2) } else { dice.roll() % 2 } as u32;
    if dice.one_in(4) {
        let memory = lender::honest_memory(4 * PAGE)?;
        return liar.share_framed(&memory, lender::pool(name, PAGE, if wrong { 5 } else { 4 }));
    }
    let references: Vec<_> = (0..1 + dice.roll() % 5)
        .map(|_| {
            let mut number = |most: u64| match wrong && dice.one_in(3) {
                true => value(dice, most, most + 1),
                false => dice.roll() % most,
            };
            let (slot, page) = (number(512) as u32, number(4) as u32);
            lender::reference(slot, name, page, number(2000) as u32, (number(2000) as u32).wrapping_add(1))
        })
        .collect();
    let mut list = lender::list(bytes, &references);
    if wrong && dice.one_in(3) {
        let at = dice.roll() as usize % list.len();
        list[at] ^= dice.roll() as u8;
    }
    let mut flags = lender::PARTS;
    if dice.one_in(6) {
        // And descriptors, or what no frame can be.
        liar.put(&[File::open("/dev/null")?.as_fd()])?;
        flags |= if dice.one_in(6) { lender::OF_POOL | lender::WITH } else { lender::WITH };
    }
    liar.publish_with(flags, &list)
}

/// Says something besides bytes: mostly what an honest peer would, so that the conversation goes on and deeper.
fn marks(liar: &mut Liar, dice: &mut Dice) {
    let wrong = dice.one_in(12);
    let mut number = |most: u64| match wrong {
        true => value(dice, most, most + 1),
        false => dice.roll() % most,
    };
    let (slot, pool, page) = (number(512) as u32, number(1) as u32, number(4) as u32);
    let (offset, len, count) =
        (number(2000) as u32, (number(2000) as u32).wrapping_add(1), (number(3) as u32).wrapping_add(1));
    let _ = match dice.roll() % 9 {
        8 => {
            // Who sends: the kernel says it, where the channel is one of ours.
            let said = count > 1;
            let put = if said { liar.put(&[]) } else { Ok(()) };
            put.and_then(|()| liar.mark(lender::who(said)))
        }
        0 if liar.channel.is_none() || wrong => liar.open_channel(),
        0 | 1 => match lender::honest_memory(4 * PAGE) {
            Ok(memory) => liar.share(&memory, lender::pool(pool, PAGE, if wrong { 5 } else { 4 })),
            Err(error) => Err(error),
        },
        2 => File::open("/dev/null").and_then(|null| {
            liar.put(&vec![null.as_fd(); if wrong { 2 } else { count.min(3) as usize }])?;
            liar.mark(lender::fds(count, u64::from(len)))?;
            liar.publish(&vec![b'd'; len.min(2000) as usize]).map(drop)
        }),
        3 => liar.mine().and_then(|ring| ring.set(Field::MaxShared, 1 << 30)),
        4 if dice.one_in(3) => liar.mine().and_then(|ring| ring.set(Field::Returned, 1 << (slot % 4))),
        _ => liar.mark(lender::reference(slot, pool, page, offset, len)),
    };
}
