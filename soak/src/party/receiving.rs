//! How an end receives next, and whether it is what must come.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

use onecopy::advanced::chain::Chain;
use onecopy::advanced::copy::Hint;
use onecopy::unix::{Ancillary, Datagram, Received, SeqPacket, Stream, View};
use onecopy::{Error, ReceivedFlags, RecvFlags};
use onecopy_conformance::socket::Socket;
use onecopy_conformance::tools::Dice;

use super::{HELD, MOST, Party, Stop, Tally, serial};
use crate::plan::Kind;

fn cannot(e: Error) -> Stop {
    Stop::Cannot(false, e)
}

fn wrong(what: impl Into<String>) -> Stop {
    Stop::Wrong(what.into())
}

/// What a receive came to; its bytes are in the buffer.
#[derive(Default)]
struct Came {
    received: Received,
    /// It tells how long the record was.
    tells_full: bool,
    /// It took nothing.
    peek: bool,
    /// It had room for so many bytes of a record, and not for `max`.
    room: Option<usize>,
    /// It asked for descriptors.
    with: Option<Vec<OwnedFd>>,
}

impl Came {
    fn bytes(len: usize) -> Came {
        Came { received: Received { len, ..Received::default() }, ..Came::default() }
    }

    fn of(received: Received) -> Came {
        Came { received, tells_full: true, ..Came::default() }
    }

    fn with(received: Received, ancillary: Ancillary) -> Came {
        Came { with: Some(ancillary.fds), ..Came::of(received) }
    }

    fn peeked(self) -> Came {
        Came { peek: true, ..self }
    }
}

impl Party {
    /// Receives something, and looks at it.
    pub(super) fn recv(&mut self, dice: &mut Dice, buf: &mut [u8], tally: &mut Tally) -> Result<(), Stop> {
        let most = match self.plan.kind {
            Kind::Stream | Kind::Pieces => MOST,
            Kind::Records | Kind::Grams => 4000,
        };
        let max = dice.size(most.min(buf.len()));
        let socket = self.socket.clone();
        let came = match &*socket {
            Socket::Bytes(s) => self.recv_bytes(s, max, dice, buf)?,
            Socket::Records(s) if self.plan.kind == Kind::Pieces => self.recv_piece(s, max, dice, buf)?,
            Socket::Records(s) => self.recv_record(s, max, dice, buf)?,
            Socket::Grams(s) => self.recv_gram(s, max, dice, buf)?,
        };
        match self.plan.kind {
            Kind::Stream => self.look_at_bytes(came, buf, tally),
            Kind::Pieces => self.look_at_piece(came, buf, tally),
            Kind::Records | Kind::Grams => self.look_at_record(came, max, buf, tally),
        }
    }

    fn recv_bytes(&mut self, s: &Stream, max: usize, dice: &mut Dice, buf: &mut [u8]) -> Result<Came, Stop> {
        let counts = self.plan.counts_descriptors(self.side);
        let now = RecvFlags::DONTWAIT;
        let way = dice.roll() % 9;
        self.last = match way {
            0 => "peek",
            1 if !counts => "waitall",
            2 if !counts => "vectored",
            3 | 4 if !counts => "borrow",
            5 if !counts => "plain",
            6 if !counts => "chain",
            _ => "with descriptors",
        };
        Ok(match self.last {
            "peek" => Came::bytes(s.recv_with_flags(&mut buf[..max], now | RecvFlags::PEEK).map_err(cannot)?)
                .peeked(),
            "waitall" => {
                Came::bytes(s.recv_with_flags(&mut buf[..max], now | RecvFlags::WAITALL).map_err(cannot)?)
            }
            "vectored" => {
                let (a, b) = buf[..max].split_at_mut(dice.roll() as usize % max);
                let n = s.recv_vectored_with_flags(&mut [IoSliceMut::new(a), IoSliceMut::new(b)], now);
                Came::bytes(n.map_err(cannot)?)
            }
            "borrow" => {
                let view = s.recv_borrowed_with_flags(max, now).map_err(cannot)?;
                Came::bytes(self.hold_view(view, dice, buf)?)
            }
            "plain" => Came::bytes(s.recv_with_flags(&mut buf[..max], now).map_err(cannot)?),
            "chain" => {
                let chain = s.recv_chain_with_flags(max, now).map_err(cannot)?;
                Came::bytes(self.hold_chain(chain, dice, buf)?)
            }
            _ => {
                let (len, ancillary) = s.recv_fds_with_flags(&mut buf[..max], now).map_err(cannot)?;
                let lost = ancillary.truncated;
                if lost && counts {
                    return Err(wrong("descriptors were lost (MSG_CTRUNC)"));
                }
                Came { with: Some(ancillary.fds), ..Came::bytes(len) }
            }
        })
    }

    fn recv_piece(
        &mut self,
        s: &SeqPacket,
        max: usize,
        dice: &mut Dice,
        buf: &mut [u8],
    ) -> Result<Came, Stop> {
        let counts = self.plan.counts_descriptors(self.side);
        let now = RecvFlags::DONTWAIT;
        Ok(match dice.roll() % 8 {
            0 => Came::of(s.recv_record_with_flags(&mut buf[..max], now | RecvFlags::PEEK).map_err(cannot)?)
                .peeked(),
            1 if !counts => {
                Came::of(s.recv_record_with_flags(&mut buf[..max], now | RecvFlags::WAITALL).map_err(cannot)?)
            }
            2 if !counts => {
                let (a, b) = buf[..max].split_at_mut(dice.roll() as usize % max);
                let came = s.recv_msg(&mut [IoSliceMut::new(a), IoSliceMut::new(b)], now);
                let (received, ancillary) = came.map_err(cannot)?;
                Came::with(received, ancillary)
            }
            3 if !counts => {
                let (view, flags) = s.recv_borrowed_with_flags(max, now).map_err(cannot)?;
                let len = self.hold_view(view, dice, buf)?;
                Came { received: Received { len, full: len, flags }, ..Came::default() }
            }
            4 if !counts => Came::of(s.recv_record_with_flags(&mut buf[..max], now).map_err(cannot)?),
            _ => {
                let (received, ancillary) = s.recv_fds_with_flags(&mut buf[..max], now).map_err(cannot)?;
                if ancillary.truncated && counts {
                    return Err(wrong("descriptors were lost (MSG_CTRUNC)"));
                }
                Came::with(received, ancillary)
            }
        })
    }

    fn recv_record(
        &mut self,
        s: &SeqPacket,
        max: usize,
        dice: &mut Dice,
        buf: &mut [u8],
    ) -> Result<Came, Stop> {
        let now = RecvFlags::DONTWAIT;
        Ok(match dice.roll() % 8 {
            0 => {
                let (view, flags) = s.recv_borrowed_with_flags(max, now).map_err(cannot)?;
                let len = self.hold_view(view, dice, buf)?;
                Came { received: Received { len, full: len, flags }, ..Came::default() }
            }
            1 => {
                let (a, b) = buf[..max].split_at_mut(dice.roll() as usize % max);
                let came = s.recv_msg(&mut [IoSliceMut::new(a), IoSliceMut::new(b)], now);
                let (received, ancillary) = came.map_err(cannot)?;
                Came::with(received, ancillary)
            }
            2 => {
                let came = s.recv_record_with_flags(&mut buf[..max], now | RecvFlags::PEEK);
                Came::of(came.map_err(cannot)?).peeked()
            }
            3 => {
                let (received, ancillary) = s.recv_fds_with_flags(&mut buf[..max], now).map_err(cannot)?;
                Came::with(received, ancillary)
            }
            // Bytes first, which have to have room, and behind them pages, which need none.
            4 => {
                let (received, chain) = s.recv_chain_with_flags(buf, now).map_err(cannot)?;
                let head = received.len;
                let behind = self.hold_chain(chain, dice, &mut buf[head..])?;
                let received = Received { len: head + behind, ..received };
                Came { room: Some(buf.len()), ..Came::of(received) }
            }
            _ => Came::of(s.recv_record_with_flags(&mut buf[..max], now).map_err(cannot)?),
        })
    }

    fn recv_gram(&mut self, s: &Datagram, max: usize, dice: &mut Dice, buf: &mut [u8]) -> Result<Came, Stop> {
        let now = RecvFlags::DONTWAIT;
        let (came, from) = match dice.roll() % 6 {
            0 => {
                let (a, b) = buf[..max].split_at_mut(dice.roll() as usize % max);
                let came = s.recv_msg(&mut [IoSliceMut::new(a), IoSliceMut::new(b)], now);
                let (received, ancillary, from) = came.map_err(cannot)?;
                (Came::with(received, ancillary), from)
            }
            1 => {
                let came = s.recv_datagram_with_flags(&mut buf[..max], now | RecvFlags::PEEK);
                let (received, from) = came.map_err(cannot)?;
                (Came::of(received).peeked(), from)
            }
            2 | 3 => {
                let (received, ancillary, from) =
                    s.recv_fds_with_flags(&mut buf[..max], now).map_err(cannot)?;
                (Came::with(received, ancillary), from)
            }
            _ => {
                let (received, from) = s.recv_datagram_with_flags(&mut buf[..max], now).map_err(cannot)?;
                (Came::of(received), from)
            }
        };
        match Some(&from) == self.peer.as_ref() {
            true => Ok(came),
            false => Err(wrong(format!("a datagram of {from:?}, not of {:?}", self.peer))),
        }
    }

    /// Copies a view to the buffer, and maybe keeps it for a while.
    fn hold_view(&mut self, view: View, dice: &mut Dice, buf: &mut [u8]) -> Result<usize, Stop> {
        let n = view.copy_to(buf);
        if n != view.len() {
            return Err(wrong(format!("{n} bytes of a view of {}", view.len())));
        }
        if dice.one_in(3) && self.views.len() < HELD {
            self.views.push(view);
        }
        Ok(n)
    }

    /// As `hold_view`, of a chain.
    fn hold_chain(&mut self, chain: Chain, dice: &mut Dice, buf: &mut [u8]) -> Result<usize, Stop> {
        let n = chain.len();
        let Some(buf) = buf.get_mut(..n) else {
            return Err(wrong(format!("a chain of {n} bytes, more than were sent")));
        };
        let copied = match (chain.peer(), chain.host()) {
            (Ok(pages), _) => pages.copy_to(0, buf, Hint::AUTO),
            (_, Ok(pages)) => pages.copy_to(0, buf, Hint::AUTO),
            (Err(e), _) => Err(e),
        };
        copied.map_err(|e| wrong(format!("a chain that cannot be copied: {e}")))?;
        if dice.one_in(3) && self.chains.len() < HELD {
            self.chains.push(chain);
        }
        Ok(n)
    }

    /// Descriptors that come one after the other, with bytes: each of them where they are counted, else some.
    fn look_at_descriptors(&mut self, came: &mut Came, tally: &mut Tally) -> Result<(), Stop> {
        let counts = self.plan.counts_descriptors(self.side);
        for fd in came.with.take().into_iter().flatten() {
            let serial = serial(File::from(fd), self.plan.id)?;
            let least = self.tokens_seen;
            if serial < least || counts && serial > least {
                return Err(wrong(format!("descriptor {serial} in place of {least}")));
            }
            if !came.peek {
                self.tokens_seen = serial + 1;
                tally.descriptors += 1;
            }
        }
        Ok(())
    }

    fn look_at_bytes(&mut self, mut came: Came, buf: &[u8], tally: &mut Tally) -> Result<(), Stop> {
        self.look_at_descriptors(&mut came, tally)?;
        let n = came.received.len;
        if n == 0 {
            return Err(Stop::End);
        }
        let pattern = self.plan.pattern(self.side.other());
        pattern.check(self.received as usize, &buf[..n]).map_err(|e| wrong(format!("{e:?}")))?;
        if !came.peek {
            self.received += n as u64;
            tally.bytes += n as u64;
        }
        Ok(())
    }

    fn look_at_piece(&mut self, mut came: Came, buf: &[u8], tally: &mut Tally) -> Result<(), Stop> {
        let Received { len, flags, .. } = came.received;
        if flags.contains(ReceivedFlags::END) {
            return Err(Stop::End);
        }
        self.look_at_descriptors(&mut came, tally)?;
        let (record, at) = (self.received, self.received_of);
        let full = match record < self.plan.total(self.side.other()) {
            true => self.plan.record_len(self.side.other(), record),
            false => return Err(wrong(format!("{len} bytes and {flags:?} behind the last record"))),
        };
        let end = flags.contains(ReceivedFlags::EOR);
        // An end may come without bytes, bytes never without any.
        let fits = at + len <= full && (!end || at + len == full) && (end || len > 0);
        if !fits || buf[..len] != self.plan.part(self.side.other(), record, at, len) {
            return Err(wrong(format!(
                "{len} bytes and {flags:?} where {at} of the {full} bytes of record {record} have come, as they should: {fits}"
            )));
        }
        if !came.peek {
            tally.bytes += len as u64;
            self.received_of += len;
            if end {
                (self.received, self.received_of) = (record + 1, 0);
                tally.records += 1;
            }
        }
        Ok(())
    }

    fn look_at_record(&mut self, came: Came, max: usize, buf: &[u8], tally: &mut Tally) -> Result<(), Stop> {
        let Received { len, full, flags } = came.received;
        if flags.contains(ReceivedFlags::END) {
            return Err(Stop::End);
        }
        let (room, theirs) = (came.room.unwrap_or(max), self.side.other());
        let record = self.plan.record(theirs, self.received);
        let cut = flags.contains(ReceivedFlags::TRUNC);
        if self.received >= self.plan.total(theirs)
            || came.tells_full && full != record.len()
            || len != record.len().min(room)
            || cut != (record.len() > room)
            || buf[..len] != record[..len]
        {
            return Err(wrong(format!(
                "record {} of {} bytes came as {len} of {full}, {flags:?}, room {room}, the same: {}",
                self.received,
                record.len(),
                buf[..len.min(record.len())] == record[..len.min(record.len())],
            )));
        }
        // With exactly its record.
        let comes = self.plan.comes_with(theirs, self.received);
        if let Some(fds) = came.with {
            if fds.len() != usize::from(comes) {
                return Err(wrong(format!("{} descriptors came with record {}", fds.len(), self.received)));
            }
            for fd in fds {
                let serial = serial(File::from(fd), self.plan.id)?;
                if serial != self.received {
                    return Err(wrong(format!("descriptor {serial} came with record {}", self.received)));
                }
                tally.descriptors += u64::from(!came.peek);
            }
        } else if flags.contains(ReceivedFlags::CTRUNC) != comes && came.tells_full && !came.peek {
            return Err(wrong(format!("{flags:?} of record {}, with a descriptor: {comes}", self.received)));
        }
        if !came.peek {
            self.received += 1;
            tally.bytes += len as u64;
            tally.records += 1;
            // A datagram socket is not told of an end.
            if self.plan.kind == Kind::Grams && self.received == self.plan.total(theirs) {
                self.receiving = false;
            }
        }
        Ok(())
    }
}
