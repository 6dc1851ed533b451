//! Other connections of the process that has the hostile peer: nothing that this peer does may be seen in them, and none
//! of their bytes may come to it.
//!
//! All that they carry, and the pages around the victim's buffer, is one secret, eight bytes again and again. So their bytes can be
//! compared at any place, and what was read out of bounds shows, as the secret, in what the victim receives or in
//! what the peer finds in its memory, wherever it came from.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use onecopy::unix::{Config, Datagram, Records, SeqPacket, SharedPool, Stream, View};
use onecopy::{Error, RecvFlags, SendFlags};
use onecopy_conformance::tools::Dice;

/// Eight bytes that nobody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secret(u64);

impl Secret {
    /// Of a run. No two places of it look the same.
    pub fn new(seed: u64) -> Secret {
        let mut dice = Dice(seed ^ 0x5ec2_e700);
        loop {
            let secret = Secret(dice.roll());
            if (1..8).all(|n| secret.0.rotate_right(n * 8) != secret.0) {
                return secret;
            }
        }
    }

    /// What stands from `at` on.
    pub fn bytes(self, at: usize, len: usize) -> Vec<u8> {
        let word = self.0.to_le_bytes();
        (at..at + len).map(|i| word[i % 8]).collect()
    }

    /// Whether `got` is what stands at `at`.
    fn check(self, what: &str, at: usize, got: &[u8]) -> Result<(), String> {
        match got.iter().zip(self.bytes(at, got.len())).position(|(got, want)| *got != want) {
            None => Ok(()),
            Some(i) => Err(format!("{what}: byte {} of a neighbour is {:#04x}", at + i, got[i])),
        }
    }

    /// Fails where the secret, 15 bytes of it at least, stands in somebody else's bytes.
    pub fn is_not_in(self, what: &str, bytes: &[u8]) -> Result<(), String> {
        let turns: [u64; 8] = std::array::from_fn(|n| self.0.rotate_right(n as u32 * 8));
        let words =
            bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)));
        match words.enumerate().find(|(_, word)| turns.contains(word)) {
            None => Ok(()),
            Some((at, _)) => Err(format!("{what}: a neighbour's bytes at {} of {}", at * 8, bytes.len())),
        }
    }
}

/// Bytes of the canaries on each side of a buffer.
const CANARY: usize = 4096;

/// A buffer between two canaries.
pub struct Guarded {
    bytes: Vec<u8>,
    secret: Secret,
}

impl Guarded {
    /// Of `len` zeroes, a multiple of eight.
    pub fn new(len: usize, secret: Secret) -> Guarded {
        let mut bytes = secret.bytes(0, CANARY + len + CANARY);
        bytes[CANARY..CANARY + len].fill(0);
        Guarded { bytes, secret }
    }

    /// Both canaries.
    ///
    /// # Errors
    ///
    /// Where something was written over them.
    pub fn check(&self) -> Result<(), String> {
        let behind = self.bytes.len() - CANARY;
        self.secret.check("before the buffer", 0, &self.bytes[..CANARY])?;
        self.secret.check("behind the buffer", behind, &self.bytes[behind..])
    }
}

impl Deref for Guarded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[CANARY..self.bytes.len() - CANARY]
    }
}

impl DerefMut for Guarded {
    fn deref_mut(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - CANARY;
        &mut self.bytes[CANARY..end]
    }
}

/// A pair whose rings lie beside the victim's, since they are mapped right before or after them, and are full of the secret.
pub struct Fence {
    from: Stream,
    to: Stream,
    sent: usize,
    secret: Secret,
}

impl Fence {
    /// Maps one.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub fn new(secret: Secret) -> io::Result<Fence> {
        let small = Config { receive_buffer: Some(2048), send_buffer: Some(2048), ..Config::default() };
        let (from, to) = Stream::pair_with(&small)?;
        let mut sent = 0;
        loop {
            match from.send_with_flags(&secret.bytes(sent, 4096), SendFlags::DONTWAIT) {
                Ok(n) => sent += n,
                Err(e) if e.would_block() => return Ok(Fence { from, to, sent, secret }),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// All that lies in it.
    ///
    /// # Errors
    ///
    /// What is not as it was sent.
    pub fn check(self) -> Result<(), String> {
        drop(self.from);
        let mut buf = vec![0; self.sent];
        let got =
            self.to.recv_with_flags(&mut buf, RecvFlags::WAITALL).map_err(|e| format!("a fence: {e}"))?;
        if got != self.sent {
            return Err(format!("{got} of {} bytes of a fence", self.sent));
        }
        self.secret.check("a fence", 0, &buf)
    }
}

/// One direction in which messages are sent, and what of it is on its way.
struct Lane<S> {
    from: S,
    to: S,
    under_way: VecDeque<usize>,
    at: usize,
}

impl<S> Lane<S> {
    fn over((from, to): (S, S)) -> Lane<S> {
        Lane { from, to, under_way: VecDeque::new(), at: 0 }
    }

    /// Receives one message or two, and sends as many.
    fn turn(
        &mut self,
        what: &str,
        secret: Secret,
        dice: &mut Dice,
        send: impl Fn(&S, &[u8]) -> Result<usize, Error>,
        recv: impl Fn(&S, &mut [u8]) -> Result<usize, Error>,
    ) -> Result<(), String> {
        let failed = |e| format!("{what}: a neighbour's call fails: {e}");
        for _ in 0..2 {
            let n = dice.size(3000);
            // (Eight to a neighbour: always room in the ring.)
            if self.under_way.len() < 8 {
                let sent = send(&self.from, &secret.bytes(self.at, n)).map_err(failed)?;
                if sent != n {
                    return Err(format!("{what}: a neighbour sent {sent} of {n}"));
                }
                self.under_way.push_back(self.at);
                self.under_way.push_back(n);
                self.at += n;
            }
            if self.under_way.len() > 4
                && let (Some(at), Some(n)) = (self.under_way.pop_front(), self.under_way.pop_front())
            {
                let mut buf = vec![0; n];
                let got = recv(&self.to, &mut buf).map_err(failed)?;
                if got != n {
                    return Err(format!("{what}: a neighbour received {got} of {n}"));
                }
                secret.check(what, at, &buf)?;
            }
        }
        Ok(())
    }
}

/// Connections of every kind, which carry the secret all the time.
pub struct Neighbours {
    secret: Secret,
    dice: Dice,
    stream: Lane<Stream>,
    records: Lane<SeqPacket>,
    pieces: Lane<SeqPacket>,
    grams: Lane<Datagram>,
    descriptors: Lane<Stream>,
    /// Borrowed from a ring, and a page that was lent: held for the whole run.
    views: [View; 2],
    _lent: (Stream, Stream, SharedPool),
    next: u64,
    checks: u64,
}

impl Neighbours {
    /// Moves in.
    ///
    /// # Errors
    ///
    /// The sockets'.
    pub fn new(secret: Secret) -> io::Result<Neighbours> {
        let config =
            Config { receive_buffer: Some(16 << 10), send_buffer: Some(16 << 10), ..Config::default() };
        let pieces = Config { records: Records::Stream, ..config };
        let (from, to) = Stream::pair_with(&config)?;
        from.send_with_flags(&secret.bytes(0, 3000), SendFlags::empty())?;
        let borrowed = to.recv_borrowed(3000)?;
        let pool = SharedPool::new(4096, 1)?;
        let mut loan = pool.loan(4096)?;
        loan.copy_from_slice(&secret.bytes(0, 4096));
        from.send_loan(loan).map_err(|not| not.error)?;
        let page = to.recv_borrowed(4096)?;
        Ok(Neighbours {
            secret,
            dice: Dice(secret.0),
            stream: Lane::over(Stream::pair_with(&config)?),
            records: Lane::over(SeqPacket::pair_with(&config)?),
            pieces: Lane::over(SeqPacket::pair_with(&pieces)?),
            grams: Lane::over(Datagram::pair_with(&config)?),
            descriptors: Lane::over(Stream::pair_with(&config)?),
            views: [borrowed, page],
            _lent: (from, to, pool),
            next: 0,
            checks: 0,
        })
    }

    /// What they all carry.
    pub fn secret(&self) -> Secret {
        self.secret
    }

    /// How often one of them was looked at.
    pub fn checks(&self) -> u64 {
        self.checks
    }

    /// One of them goes on, and looks at what it receives.
    ///
    /// # Errors
    ///
    /// What is not as it should be.
    pub fn check(&mut self) -> Result<(), String> {
        let (secret, dice) = (self.secret, &mut self.dice);
        let (now, all) = (SendFlags::DONTWAIT, RecvFlags::DONTWAIT);
        self.next += 1;
        self.checks += 1;
        match self.next % 6 {
            0 => self.stream.turn(
                "a stream",
                secret,
                dice,
                |s, bytes| s.send_with_flags(bytes, now),
                |s, buf| s.recv_with_flags(buf, all | RecvFlags::WAITALL),
            ),
            1 => self.records.turn(
                "records",
                secret,
                dice,
                |s, bytes| s.send_with_flags(bytes, now),
                |s, buf| s.recv_with_flags(buf, all),
            ),
            2 => self.pieces.turn(
                "records as streams",
                secret,
                dice,
                |s, bytes| s.send_with_flags(bytes, now | SendFlags::EOR),
                |s, buf| s.recv_with_flags(buf, all),
            ),
            3 => self.grams.turn(
                "datagrams",
                secret,
                dice,
                |s, bytes| s.send_with_flags(bytes, now),
                |s, buf| s.recv_with_flags(buf, all),
            ),
            4 => self.descriptors.turn("descriptors", secret, dice, send_token, recv_token),
            _ => {
                for (what, view) in ["a view", "a page"].into_iter().zip(&self.views) {
                    let mut buf = vec![0; view.len()];
                    view.copy_to(&mut buf);
                    secret.check(what, 0, &buf)?;
                }
                Ok(())
            }
        }
    }

    /// None of them has noticed anything.
    ///
    /// # Errors
    ///
    /// Where one has.
    pub fn finish(&self) -> Result<(), String> {
        let caught = [
            self.stream.to.stats().protocol_errors + self.stream.from.stats().protocol_errors,
            self.records.to.stats().protocol_errors + self.records.from.stats().protocol_errors,
            self.pieces.to.stats().protocol_errors + self.pieces.from.stats().protocol_errors,
            self.grams.to.stats().protocol_errors + self.grams.from.stats().protocol_errors,
            self.descriptors.to.stats().protocol_errors + self.descriptors.from.stats().protocol_errors,
        ];
        match caught {
            [0, 0, 0, 0, 0] => Ok(()),
            _ => Err(format!("neighbours caught lies: {caught:?}")),
        }
    }
}

/// Sends bytes with a descriptor that says what they are.
fn send_token(stream: &Stream, bytes: &[u8]) -> Result<usize, Error> {
    let token = || -> io::Result<File> {
        let file =
            File::from(rustix::fs::memfd_create("onecopy-fuzz-token", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.write_all_at(bytes, 0)?;
        Ok(file)
    };
    match token() {
        Ok(token) => stream.send_fds_with_flags(bytes, &[token.as_fd()], SendFlags::DONTWAIT),
        Err(_) => stream.send_with_flags(bytes, SendFlags::DONTWAIT),
    }
}

/// Receives them; as none where the descriptor is another one.
fn recv_token(stream: &Stream, buf: &mut [u8]) -> Result<usize, Error> {
    let (n, with) = stream.recv_fds_with_flags(buf, RecvFlags::DONTWAIT)?;
    let mut said = vec![0; n];
    let fits = match &with.fds[..] {
        [fd] => {
            let token = fd.try_clone().map(File::from);
            token.is_ok_and(|token| token.read_exact_at(&mut said, 0).is_ok()) && said == buf[..n]
        }
        _ => false,
    };
    Ok(if fits { n } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_neighbours_own_is_seen() {
        let mut neighbours = Neighbours::new(Secret::new(7)).unwrap();
        for _ in 0..1000 {
            neighbours.check().unwrap();
        }
        neighbours.finish().unwrap();
        // A byte too many, a byte that is another.
        neighbours.stream.from.send_with_flags(b"x", SendFlags::empty()).unwrap();
        assert!((0..20).any(|_| neighbours.check().is_err()));
        let fence = Fence::new(Secret::new(8)).unwrap();
        assert!(fence.sent >= 4096);
        fence.check().unwrap();
        let mut guarded = Guarded::new(80, Secret::new(9));
        guarded.fill(1);
        guarded.check().unwrap();
        guarded.bytes[CANARY + 80] ^= 1;
        assert!(guarded.check().is_err());
    }

    #[test]
    fn a_secret_is_found_wherever_it_stands() {
        let secret = Secret::new(1);
        for at in 0..9 {
            let mut bytes = vec![0; 100];
            secret.is_not_in("nothing", &bytes).unwrap();
            bytes[20 + at..35 + at].copy_from_slice(&secret.bytes(at, 15));
            assert!(secret.is_not_in("some of it", &bytes).is_err(), "{at}");
        }
    }
}
