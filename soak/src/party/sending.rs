//! What an end sends next, and in which way.

use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::AsFd;

use onecopy::advanced::chain::Chain;
use onecopy::unix::{Datagram, SeqPacket, Stream};
use onecopy::{Error, SendFlags};
use onecopy_conformance::socket::Socket;
use onecopy_conformance::tools::Dice;
use rustix::io::Errno;

use super::{MOST, Party, Stop, Tally, token};
use crate::plan::{Ending, Kind};

fn cannot(e: Error) -> Stop {
    Stop::Cannot(true, e)
}

impl Party {
    /// The next bytes, record or datagram; in the end, what the plan has for that.
    pub(super) fn send(&mut self, dice: &mut Dice, tally: &mut Tally) -> Result<(), Stop> {
        let left = self.plan.total(self.side) - self.sent;
        if left == 0 {
            return self.end();
        }
        let mut flags = SendFlags::DONTWAIT;
        flags.set(SendFlags::NTCOPY, dice.one_in(4));
        // (Bytes, or nothing: it has to come again.)
        let socket = self.socket.clone();
        let went = match &*socket {
            Socket::Bytes(s) => {
                let n = dice.size(MOST.min(left as usize));
                let bytes = self.plan.pattern(self.side).bytes(self.sent as usize, n);
                let went = self.send_bytes(s, &bytes, flags, dice, tally)?;
                self.sent += went.unwrap_or(0) as u64;
                went.map(|went| (went, n))
            }
            Socket::Records(s) if self.plan.kind == Kind::Pieces => {
                let left = self.plan.record_len(self.side, self.sent) - self.sent_of;
                let n = if left == 0 { 0 } else { dice.size(MOST.min(left)) };
                let bytes = self.plan.part(self.side, self.sent, self.sent_of, n);
                // The end may go apart from the last bytes.
                let end = n == left && (n == 0 || !dice.one_in(4));
                flags.set(SendFlags::EOR, end);
                let went = self.send_piece(s, &bytes, flags, dice)?;
                self.sent_of += went.unwrap_or(0);
                if end && went == Some(n) {
                    (self.sent, self.sent_of) = (self.sent + 1, 0);
                }
                went.map(|went| (went, n))
            }
            Socket::Records(s) => {
                let record = self.plan.record(self.side, self.sent);
                self.whole(self.send_record(s, &record, flags, dice, tally)?, record.len())?
            }
            Socket::Grams(s) => {
                let datagram = self.plan.record(self.side, self.sent);
                self.whole(self.send_gram(s, &datagram, flags, dice)?, datagram.len())?
            }
        };
        match went {
            Some((went, n)) if went > n => Err(Stop::Wrong(format!("sent {went} of {n} bytes"))),
            _ => Ok(()),
        }
    }

    /// Everything is sent.
    fn end(&mut self) -> Result<(), Stop> {
        self.sending = false;
        let shut = match self.plan.ending(self.side) {
            Ending::HalfClose => self.socket.shutdown(Shutdown::Write),
            Ending::ShutBoth => self.socket.shutdown(Shutdown::Both),
            Ending::Close => Ok(()),
        };
        self.closed = self.plan.ending(self.side) != Ending::HalfClose;
        shut.or_else(|e| match e.raw_os_error() {
            // The peer was faster.
            no if no == Errno::NOTCONN.raw_os_error() => Ok(()),
            _ => Err(Stop::Wrong(format!("cannot shut down: {e}"))),
        })
    }

    /// A record goes as one, or not.
    fn whole(&mut self, went: Option<usize>, len: usize) -> Result<Option<(usize, usize)>, Stop> {
        match went {
            Some(went) if went != len => Err(Stop::Wrong(format!("sent {went} of a record of {len}"))),
            Some(went) => {
                self.sent += 1;
                Ok(Some((went, len)))
            }
            None => Ok(None),
        }
    }

    fn send_bytes(
        &mut self,
        s: &Stream,
        bytes: &[u8],
        flags: SendFlags,
        dice: &mut Dice,
        tally: &mut Tally,
    ) -> Result<Option<usize>, Stop> {
        let n = bytes.len();
        let sent = match dice.roll() % 10 {
            0 | 1 => {
                let (a, b) = bytes.split_at(dice.roll() as usize % (n + 1));
                s.send_vectored_with_flags(&[IoSlice::new(a), IoSlice::new(b)], flags)
            }
            2 | 3 => match s.reserve_with_flags(n, flags) {
                Ok(mut slot) => {
                    slot.copy_from(bytes);
                    if dice.one_in(4) {
                        return Ok(None);
                    }
                    slot.commit()
                }
                // Its turn comes again: what waits for room is a send.
                Err(e) if e.would_block() => s.send_with_flags(bytes, flags),
                Err(e) => Err(e),
            },
            4 if dice.one_in(3) => {
                let token = token(self.plan.id, self.tokens_sent)?;
                let sent = s.send_fds_with_flags(bytes, &[token.as_fd()], flags);
                self.tokens_sent += u64::from(sent.is_ok());
                sent
            }
            5 => match self.pool.as_ref().map(|pool| pool.loan(n.min(4096))) {
                Some(Ok(mut loan)) => {
                    let len = loan.len();
                    loan.copy_from_slice(&bytes[..len]);
                    tally.pages += 1;
                    // Over the kernel a part of it may have gone.
                    s.send_loan_with_flags(loan, flags).or_else(|not| match len - not.loan.len() {
                        0 => Err(not.error),
                        part => Ok(part),
                    })
                }
                _ => s.send_with_flags(bytes, flags),
            },
            6 => match self.in_pages(&bytes[..n.min(10_000)], tally) {
                Some(chain) => {
                    let len = chain.len();
                    s.send_chain_with_flags(chain, flags).or_else(|not| {
                        match len - not.loan.payload().len() {
                            0 => Err(not.error),
                            part => Ok(part),
                        }
                    })
                }
                None => s.send_with_flags(bytes, flags),
            },
            _ => s.send_with_flags(bytes, flags),
        };
        sent.map(Some).map_err(cannot)
    }

    fn send_piece(
        &mut self,
        s: &SeqPacket,
        bytes: &[u8],
        flags: SendFlags,
        dice: &mut Dice,
    ) -> Result<Option<usize>, Stop> {
        let n = bytes.len();
        let sent = match dice.roll() % 8 {
            0 | 1 => {
                let (a, b) = bytes.split_at(dice.roll() as usize % (n + 1));
                s.send_vectored_with_flags(&[IoSlice::new(a), IoSlice::new(b)], flags)
            }
            2 => match s.reserve_with_flags(n, flags) {
                // (What it has no room for must not be missing from a record that ends.)
                Ok(mut slot) => match slot.copy_from(bytes) == n && !dice.one_in(4) {
                    true => slot.commit(),
                    false => return Ok(None),
                },
                Err(e) if e.would_block() => s.send_with_flags(bytes, flags),
                Err(e) => Err(e),
            },
            // (Without a byte or an end to travel with they would be dropped.)
            3 if dice.one_in(3) => {
                let token = token(self.plan.id, self.tokens_sent)?;
                let sent = s.send_fds_with_flags(bytes, &[token.as_fd()], flags);
                self.tokens_sent += u64::from(sent.is_ok());
                sent
            }
            _ => s.send_with_flags(bytes, flags),
        };
        sent.map(Some).map_err(cannot)
    }

    fn send_record(
        &self,
        s: &SeqPacket,
        record: &[u8],
        flags: SendFlags,
        dice: &mut Dice,
        tally: &mut Tally,
    ) -> Result<Option<usize>, Stop> {
        if self.plan.comes_with(self.side, self.sent) {
            let token = token(self.plan.id, self.sent)?;
            return s.send_fds_with_flags(record, &[token.as_fd()], flags).map(Some).map_err(cannot);
        }
        let sent = match dice.roll() % 6 {
            0 => {
                let (a, b) = record.split_at(dice.roll() as usize % (record.len() + 1));
                s.send_vectored_with_flags(&[IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)], flags)
            }
            1 => match s.reserve_with_flags(record.len(), flags) {
                Ok(mut slot) => {
                    slot.copy_from(record);
                    if dice.one_in(4) {
                        return Ok(None);
                    }
                    slot.commit()
                }
                Err(e) if e.would_block() => s.send_with_flags(record, flags),
                Err(e) => Err(e),
            },
            2 => match self.pool.as_ref().map(|pool| pool.loan(record.len())) {
                Some(Ok(mut loan)) => {
                    loan.copy_from_slice(record);
                    tally.pages += 1;
                    s.send_loan_with_flags(loan, flags).map_err(|not| not.error)
                }
                _ => s.send_with_flags(record, flags),
            },
            // Its first bytes as bytes, the others in pages.
            3 => {
                let (head, rest) = record.split_at(dice.roll() as usize % (record.len() + 1));
                match self.in_pages(rest, tally) {
                    Some(chain) => s.send_chain_with_flags(head, chain, flags).map_err(|not| not.error),
                    None => s.send_with_flags(record, flags),
                }
            }
            _ => s.send_with_flags(record, flags),
        };
        sent.map(Some).map_err(cannot)
    }

    fn send_gram(
        &self,
        s: &Datagram,
        datagram: &[u8],
        flags: SendFlags,
        dice: &mut Dice,
    ) -> Result<Option<usize>, Stop> {
        let sent = if self.plan.comes_with(self.side, self.sent) {
            let token = token(self.plan.id, self.sent)?;
            s.send_fds_with_flags(datagram, &[token.as_fd()], flags)
        } else if dice.one_in(4) {
            let (a, b) = datagram.split_at(dice.roll() as usize % (datagram.len() + 1));
            s.send_vectored_with_flags(&[IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)], flags)
        } else {
            s.send_with_flags(datagram, flags)
        };
        sent.map(Some).map_err(cannot)
    }

    /// In pages of the pool, if there is one with so many.
    fn in_pages(&self, bytes: &[u8], tally: &mut Tally) -> Option<Chain> {
        let mut chain = Chain::new();
        self.pool.as_ref()?.writer().append(&mut chain, bytes).ok()?;
        tally.pages += chain.fragments().count() as u64;
        Some(chain)
    }
}
