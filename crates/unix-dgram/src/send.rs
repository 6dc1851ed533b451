//! Sending datagrams into the peer's ring, on a lane, or over the kernel. Where memory cannot carry a
//! datagram, the kernel decides what becomes of it and which error is told.

use crate::outgoing::Outgoing;
use crate::pairing::state::Pairing;
use crate::socket::Socket;
use onecopy_sync::atomic::Ordering::SeqCst;
use onecopy_sync::atomic::fence;
use onecopy_sys::scm;
use onecopy_sys::unix_diag::Diag;
use onecopy_unix::ancillary::attached::SendAncillary;
use onecopy_unix::connection::call::{Cursor, IOV_MAX};
use onecopy_unix::connection::tx::Tx;
use onecopy_unix::control;
use onecopy_unix::core::failure::too_long;
use onecopy_unix::core::kind::Kind;
use onecopy_unix::{Error, Op, Result, SendFlags, SocketAddr};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, sockopt};
use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// The longest sleep for room in the kernel's queue before a sender looks whether another thread is
/// connecting.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// How long a sender stays away from the lock for a thread that connects, which needs less.
const BEHIND: Duration = Duration::from_millis(1);

impl Socket {
    /// Sends the slices as one datagram to the peer, with `attached`.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send_msg`].
    pub fn send_datagram(
        &self,
        slices: &[IoSlice<'_>],
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        attached.check()?;
        let mut cursor = Cursor::new(slices);
        let len = cursor.left();
        self.send_to_peer(&mut cursor, None, attached, flags).map(|()| len)
    }

    /// Sends to the peer, optionally by its name. If the kernel carries a datagram with a name, it looks the
    /// name up. For a peer that is gone it then says only that nobody has that name.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send_msg`].
    pub fn send_to_peer<O: Outgoing>(
        &self,
        out: &mut O,
        name: Option<&SocketAddrUnix>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        self.pair_now_and_then();
        let result = if O::LOCKS || self.shares_memory() {
            let (mut began, mut asked) = (None, false);
            loop {
                let mut tx = out.lock(self, flags)?;
                let mut result = match out.may_go(self) {
                    Ok(()) => self.send_datagram_locked(&mut tx, out, name, attached, flags),
                    error => error,
                };
                if self.is_mirrored()
                    && let Err(error) = tx.park_if_full(self)
                    && error.is_refused()
                {
                    // Nobody will receive this datagram.
                    self.was_refused(&mut tx, name.is_none());
                    result = Err(error);
                }
                tx.unlock_fenced();
                self.welcome_back();
                match result {
                    Err(error) if error.raw_os_error() == Errno::ALREADY.raw_os_error() => {
                        if self.must_not_wait(flags, &mut asked) {
                            break Err(Error::new(Op::Send, Errno::AGAIN));
                        }
                        self.let_connect(&mut began)?;
                    }
                    result => break result,
                }
            }
        } else {
            self.check(Op::Send)?;
            out.over_kernel(self, name, attached, flags, None)
        };
        if name.is_none() && matches!(&result, Err(error) if error.is_refused()) {
            // The kernel has discarded what the peer had sent, and so does this side (net/unix/af_unix.c:
            // unix_dgram_disconnected).
            self.forget_peer();
            self.forget_lanes();
        }
        result
    }

    /// Whether datagrams to the peer go through a ring, or may soon.
    fn shares_memory(&self) -> bool {
        self.pairing().is_some()
            || (self.tx_ring().is_some() && !self.has_parted())
            || self.known_pairing().is_some_and(|pairing| pairing.is_laned())
    }

    fn send_datagram_locked<O: Outgoing>(
        &self,
        tx: &mut Tx,
        out: &mut O,
        name: Option<&SocketAddrUnix>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        if matches!(tx, Tx::Kernel { .. }) {
            self.adopt_ring(tx);
            if let Some(done) = self.send_by_lane(out, attached, flags) {
                if name.is_some() && done.as_ref().is_err_and(Error::is_refused) {
                    self.note_refused(); // as in `was_refused`
                }
                return done;
            }
        }
        if let Tx::Ring(ring) = tx {
            if O::SENDS && self.passes_identity() {
                self.be_named();
            }
            match out.put(self, ring, attached, flags) {
                Ok(_) => {
                    // Pairs with the receiver's fence between arming and its last look.
                    fence(SeqCst);
                    let rung = self.ring_if_armed();
                    return rung.inspect_err(|error| match error.is_refused() {
                        true => self.was_refused(tx, name.is_none()),
                        false => self.leave_ring(tx),
                    });
                }
                // The peer is gone, or one of the two was shut down; the kernel knows which.
                Err(error) if error.raw_os_error() == Errno::PIPE.raw_os_error() => self.leave_ring(tx),
                Err(error) if error.is_refused() => {
                    self.was_refused(tx, name.is_none());
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        // A thread asleep in the kernel would keep the sending side from a thread that connects, so do not
        // wait there.
        let riding = self.pairing().filter(|pairing| pairing.rides());
        if let (Some(pairing), Some(_)) = (riding, name) {
            // Only the kernel knows which socket has that name.
            pairing.count_anew();
        }
        let riding = riding.filter(|_| name.is_none());
        match out.over_kernel(self, name, attached, flags | SendFlags::DONTWAIT, riding) {
            Err(error) if error.would_block() && !flags.contains(SendFlags::DONTWAIT) => {
                Err(Error::new(Op::Send, Errno::ALREADY))
            }
            result => result,
        }
    }

    /// Sends on the lane to a fan-in receiver, if this sender has one. Returns None if the kernel is to be
    /// asked, or is the only way.
    fn send_by_lane<O: Outgoing>(
        &self,
        out: &mut O,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Option<Result<()>> {
        let lane = self.lane()?;
        if !self.is_send_shut() {
            if O::SENDS && self.passes_identity() {
                self.be_named();
            }
            // A send that fails changes nothing.
            match self.send_on(&lane, out, attached, flags) {
                Err(error) if error.would_block() && !flags.contains(SendFlags::DONTWAIT) => {
                    return Some(Err(Error::new(Op::Send, Errno::ALREADY)));
                }
                Err(error) => match Errno::from_raw_os_error(error.raw_os_error()) {
                    // The receiver is gone, was shut down, or is connected to another socket; the kernel
                    // knows which.
                    Errno::PIPE | Errno::CONNRESET => {}
                    // The kernel has said so to a control message, and will not say it again.
                    Errno::CONNREFUSED => {
                        self.leave_lane();
                        return Some(Err(error));
                    }
                    Errno::PROTO => {
                        self.counters().protocol_errors.add(1);
                        self.leave_lane();
                        return Some(Err(error));
                    }
                    _ => return Some(Err(error)),
                },
                done => return Some(done),
            }
        }
        self.leave_lane();
        None
    }

    /// Gives a name to a socket that asks for its senders' identity, with its first send, so that others can
    /// ask for its own identity (net/unix/af_unix.c: unix_dgram_sendmsg).
    #[cold]
    fn be_named(&self) {
        if self.is_first_to_name() {
            // It is no error to have a name already. Without one the datagram goes all the same.
            if rustix::net::bind(self.fd(), &SocketAddrUnix::new_unnamed()).is_ok() {
                self.renamed();
            }
        }
    }

    /// Waits without the sending side until it makes sense to try again: there is room in the kernel's queue,
    /// or another thread has connected.
    #[cold]
    fn let_connect(&self, began: &mut Option<Instant>) -> Result<()> {
        let error = |errno| Error::new(Op::Send, errno);
        let began = *began.get_or_insert_with(Instant::now);
        let left = control::remaining(began, self.settings().write_timeout()).map_err(error)?;
        if self.is_connecting() {
            std::thread::sleep(BEHIND);
            return Ok(());
        }
        let nap = left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP));
        let lane = self.lane();
        let room = lane.as_ref().map_or(self.fd(), |lane| lane.connection().fd());
        match control::wait(room, PollFlags::OUT, Some(nap)) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(error(errno)),
        }
    }

    /// Makes the sending side use the kernel again, for good.
    pub fn leave_ring(&self, tx: &mut Tx) {
        *tx = Tx::Kernel { sent: 0 };
        self.part();
    }

    /// Handles the kernel's refusal of a doorbell or a filler, which it tells once. The kernel has
    /// disconnected from a peer that is gone. It has discarded what the peer had sent, including the doorbell
    /// for what is in the ring. The caller holds the sending side.
    ///
    /// `told`: the program is told by the call that it is in. If not, its next send is told, as it would be where
    /// the kernel carries everything. A send by name does not count: there the kernel looks the name up, finds
    /// nobody, and tells the next send without a name all the same.
    #[cold]
    pub fn was_refused(&self, tx: &mut Tx, told: bool) {
        if !told {
            self.note_refused();
        }
        self.leave_ring(tx);
        self.forget_peer();
        self.forget_lanes();
    }

    /// Forgets the peer and everything that it has sent.
    pub fn forget_peer(&self) {
        let mut rx = self.rx().lock();
        if let onecopy_unix::connection::rx::Rx::Ring(ring) = &*rx {
            ring.shut();
            *rx = onecopy_unix::connection::rx::Rx::Plain;
        }
        self.end_life();
        drop(rx);
        if let Some(pairing) = self.pairing() {
            pairing.reset(false);
        }
    }

    /// Sends the slices as one datagram to the socket of that name, with `attached`.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send_msg_to`].
    pub fn send_datagram_to(
        &self,
        slices: &[IoSlice<'_>],
        name: &SocketAddr,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.send_to_name(slices, name, attached, flags).map_err(|error| match error.is_refused() {
            true => error.about("name").because("nobody receives there; is the receiver running?"),
            false => error,
        })
    }

    fn send_to_name(
        &self,
        slices: &[IoSlice<'_>],
        name: &SocketAddr,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        attached.check()?;
        let cursor = Cursor::new(slices);
        let address = name.address(Op::Send)?;
        if !self.shares_memory() {
            self.check(Op::Send)?;
            return self
                .kernel_datagram(&cursor, Some(&address), attached, flags, None)
                .map(|()| cursor.left());
        }
        // The peer takes what it finds in the kernel's queue for a doorbell, so nothing else may be sent
        // there from here. And datagrams on a lane must not be overtaken.
        let is_peer = match self.lane() {
            Some(_) => Some(self.is_receiver(&address).map_err(|errno| Error::new(Op::Send, errno))?),
            None => self.is_peer(name),
        };
        match is_peer {
            Some(true) => {
                let mut cursor = cursor;
                let len = cursor.left();
                return self.send_to_peer(&mut cursor, Some(&address), attached, flags).map(|()| len);
            }
            Some(false) => {}
            None => {
                let mut tx = self.lock_tx(flags)?;
                self.leave_ring(&mut tx);
                tx.unlock_fenced();
                self.welcome_back();
                self.counters().fallbacks.add(1);
                self.forget_peer();
            }
        }
        self.kernel_datagram(&cursor, Some(&address), attached, flags, None).map(|()| cursor.left())
    }

    /// Whether the peer is the socket of that name; None if that cannot be told.
    fn is_peer(&self, name: &SocketAddr) -> Option<bool> {
        let peer = self.peer_addr().ok()?;
        match (peer.as_pathname(), name.as_pathname()) {
            _ if peer == *name => Some(true),
            // Two paths may be one file.
            (Some(a), Some(b)) => {
                let (a, b) = (std::fs::metadata(a).ok()?, std::fs::metadata(b).ok()?);
                (a.dev() != b.dev() || a.ino() != b.ino()).then_some(false)
            }
            _ => Some(false),
        }
    }

    /// Whether the socket that is bound to that address now is the fan-in receiver that this socket is
    /// connected to. Only the kernel knows: one socket may have many paths, and a path may have passed to
    /// another socket.
    #[cold]
    fn is_receiver(&self, address: &SocketAddrUnix) -> rustix::io::Result<bool> {
        let probe = Kind::Datagram.socket().map_err(|_| Errno::MFILE)?;
        if rustix::net::connect(&probe, address).is_err() {
            return Ok(false); // the kernel will say why
        }
        let peer = Diag::open()?.look(rustix::fs::fstat(&probe)?.st_ino)?.peer;
        Ok(peer.is_some() && peer == self.peer_inode())
    }

    /// Whether this send tells the program of a reset that the kernel told to one of this side's looks. That
    /// comes after EMSGSIZE and before ENOTCONN (net/unix/af_unix.c: unix_dgram_sendmsg). Returns true once.
    #[cold]
    pub fn tells_reset(&self, len: usize) -> bool {
        self.fits(len) && self.take_noted_reset() && (self.tx_ring().is_none() || self.left_unread())
    }

    /// Whether this send tells the program that the peer is gone, which the kernel told to what the program did not
    /// send. That comes after EMSGSIZE and the EPIPE of a socket that was shut down. Returns true once.
    #[cold]
    fn tells_refusal(&self, len: usize) -> bool {
        self.fits(len) && !self.is_send_shut() && self.take_noted_refusal()
    }

    /// Whether the kernel takes so long a datagram (net/unix/af_unix.c: unix_dgram_sendmsg).
    fn fits(&self, len: usize) -> bool {
        len <= sockopt::socket_send_buffer_size(self.fd()).unwrap_or(0).saturating_sub(32)
    }

    /// Sends over the kernel. `riding` is the pairing, if something is to be told to the peer with this
    /// datagram.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) returns.
    pub fn kernel_datagram(
        &self,
        cursor: &Cursor<'_, '_>,
        to: Option<&SocketAddrUnix>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
        riding: Option<&Pairing>,
    ) -> Result<()> {
        let len = cursor.left();
        let pieces = cursor.pieces(usize::MAX);
        if pieces.len() == IOV_MAX && pieces.iter().map(|piece| piece.len()).sum::<usize>() < len {
            return Err(too_long());
        }
        if self.is_reset_noted() && self.tells_reset(len) {
            return Err(Error::new(Op::Send, Errno::CONNRESET));
        }
        if to.is_none() && self.is_refusal_noted() && self.tells_refusal(len) {
            return Err(Error::new(Op::Send, Errno::CONNREFUSED));
        }
        let mut kernel = rustix::net::SendFlags::NOSIGNAL;
        kernel.set(rustix::net::SendFlags::DONTWAIT, flags.contains(SendFlags::DONTWAIT));
        let sent = match riding {
            Some(pairing) => self.send_with_proof(pairing, to, &pieces, attached, kernel),
            None => scm::send_to(self.fd(), to, &pieces, attached.fds, attached.ucred(), kernel),
        };
        if sent == Err(Errno::CONNRESET) {
            self.mirror_after_reset();
        }
        let n = sent.map_err(|errno| match errno {
            Errno::MSGSIZE => too_long(),
            Errno::TOOMANYREFS => self.no_channel(errno),
            errno => Error::new(Op::Send, errno),
        })?;
        self.counters().sent.add(n);
        self.counters().kernel_copied.add(n);
        Ok(())
    }
}
