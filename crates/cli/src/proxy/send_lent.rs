//! Sending bodies that the daemon lends: the kernel takes them from where they lie, files by reference, and memory with one copy.

use super::choice::{Choice, Found, class};
use super::loan::{Loan, PIECE};
use super::pipe::Pipe;
use super::send_stacked;
use super::tcp::{Tcp, send_all, wait_writable};
use super::trouble::{Patience, Trouble};
use super::turns::Turns;
use crate::counters::Counters;
use rustix::fd::OwnedFd;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes that one call sends at most: other clients wait meanwhile.
const STEP: u64 = 1 << 20;

/// How a lent body gets into the client's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SendLent {
    /// What suits it: up to 64 KiB sendfile, then `splice` for files and for small parts of memory, and for other memory `map` or
    /// `splice`, as is found faster on what is sent
    #[default]
    Auto,
    /// By reference, in the kernel's own pieces of 64 KiB
    Sendfile,
    /// By reference through a pipe, up to 1 MiB in a piece
    Splice,
    /// Copied by the kernel out of a mapping, above 64 KiB; less goes by sendfile. What is not sealed memory is spliced, and so is
    /// less than half of it
    Map,
}

/// What one thread sends lent bodies with.
#[derive(Debug)]
pub struct Sender {
    way: SendLent,
    /// Made when a body wants one. Only an empty one comes back here.
    pipe: RefCell<Option<Pipe>>,
    /// What was found out about bodies in memory, by their lengths' powers of two.
    choices: RefCell<BTreeMap<u32, Choice>>,
    /// Of all threads.
    found: Arc<Found>,
    /// When its clock began.
    began: Instant,
}

/// An answer under way that is compared with others.
struct Compared<'a> {
    sender: &'a Sender,
    class: u32,
    sent: u64,
}

impl Drop for Compared<'_> {
    /// Also where the client has gone.
    fn drop(&mut self) {
        if let Some(choice) = self.sender.choices.borrow_mut().get_mut(&self.class)
            && choice.end(self.sent, self.sender.now())
        {
            self.sender.found.note(self.class, choice);
        }
    }
}

impl Sender {
    /// Sends as `way` says, and tells `found` what it finds out.
    pub fn new(way: SendLent, found: Arc<Found>) -> Sender {
        Sender { way, pipe: RefCell::default(), choices: RefCell::default(), found, began: Instant::now() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes a body that was lent, made ready for the way that it will go.
    pub fn take(&self, lent: OwnedFd, at: u64, length: u64) -> Result<Loan, Trouble> {
        Loan::take(lent, at, length, matches!(self.way, SendLent::Auto | SendLent::Map))
    }

    /// Sends `head` and then the body. After an error the client has a head that promises more than came.
    pub async fn pass(
        &self,
        loan: &Loan,
        head: &[u8],
        client: &Tcp,
        patience: Patience,
        counters: &mut Counters,
    ) -> Result<(), Trouble> {
        let socket = match client {
            Tcp::Kernel(socket) => socket,
            Tcp::Stack(stacked) => {
                return send_stacked::pass_loan(loan, head, (client, stacked), patience, counters).await;
            }
        };
        let Some(body) = loan.memory() else {
            return self.pass_file(loan, head, (client, socket), patience, counters).await;
        };
        if self.way != SendLent::Auto {
            return pass_memory(body, head, (client, socket), patience, counters).await;
        }
        let before = counters.body_bytes;
        let (mut compared, by_reference) = self.compare(body.len() as u64);
        let passed = match by_reference {
            true => self.pass_file(loan, head, (client, socket), patience, counters).await,
            false => pass_memory(body, head, (client, socket), patience, counters).await,
        };
        compared.sent = counters.body_bytes - before;
        passed
    }

    /// Begins an answer of so many bytes in memory. Returns whether it goes by reference.
    fn compare(&self, length: u64) -> (Compared<'_>, bool) {
        let (class, now) = (class(length), self.now());
        let mut choices = self.choices.borrow_mut();
        let by_reference = choices.entry(class).or_insert_with(|| Choice::new(class, now)).begin(now);
        (Compared { sender: self, class, sent: 0 }, by_reference)
    }

    /// Sends a head, and then the body as its pages.
    async fn pass_file(
        &self,
        loan: &Loan,
        head: &[u8],
        (client, socket): (&Tcp, &TcpStream),
        patience: Patience,
        counters: &mut Counters,
    ) -> Result<(), Trouble> {
        let Range { start: mut at, end } = loan.range();
        send_all(client, head, at < end, patience).await?;
        let mut turns = Turns::default();
        while at < end {
            let most = (end - at).min(STEP) as usize;
            let more = at + (most as u64) < end;
            if !more && let Err(why) = loan.still() {
                counters.changed = 1;
                return Err(Trouble::Cut(why.to_owned()));
            }
            match socket.try_io(Interest::WRITABLE, || self.step(loan, at, most, socket, more)) {
                Ok(0) => {
                    counters.changed = 1;
                    return Err(Trouble::Cut("the file became shorter while it was being sent".to_owned()));
                }
                Ok(n) => {
                    at += n as u64;
                    counters.body_bytes += n as u64;
                    counters.referenced += n as u64;
                    turns.take(n).await;
                }
                Err(error) => wait_writable(client, error, patience.client).await?,
            }
        }
        Ok(())
    }

    /// One call, or two. Bytes sent, 0 where the file has ended.
    fn step(&self, loan: &Loan, at: u64, most: usize, client: &TcpStream, more: bool) -> io::Result<usize> {
        let sendfile = |mut at| Ok(rustix::fs::sendfile(client, loan.fd(), Some(&mut at), most)?);
        // One piece of sendfile's needs no pipe of ours.
        if self.way == SendLent::Sendfile || most <= PIECE {
            return sendfile(at);
        }
        let Some(pipe) = self.pipe.take().or_else(|| Pipe::new().ok()) else {
            // No descriptors are left: sendfile brings a pipe of its own.
            return sendfile(at);
        };
        let (sent, empty) = pipe.pass(loan.fd(), at, most, client, more);
        self.pipe.replace(empty);
        sent
    }
}

/// Sends a head and a body in memory, together: a small answer is one call.
async fn pass_memory(
    body: &[u8],
    head: &[u8],
    (client, socket): (&Tcp, &TcpStream),
    patience: Patience,
    counters: &mut Counters,
) -> Result<(), Trouble> {
    let mut sent = 0;
    let mut turns = Turns::default();
    while sent < head.len() + body.len() {
        let (head_left, at) = (&head[sent.min(head.len())..], sent.saturating_sub(head.len()));
        let piece = &body[at..][..(body.len() - at).min(STEP as usize)];
        let more = at + piece.len() < body.len();
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        let slices = [IoSlice::new(head_left), IoSlice::new(piece)];
        let send = || Ok(sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)?);
        match socket.try_io(Interest::WRITABLE, send) {
            Ok(n) => {
                sent += n;
                let of_body = n - n.min(head_left.len());
                counters.body_bytes += of_body as u64;
                counters.kernel_copied += of_body as u64;
                turns.take(n).await;
            }
            Err(error) => wait_writable(client, error, patience.client).await?,
        }
    }
    Ok(())
}
