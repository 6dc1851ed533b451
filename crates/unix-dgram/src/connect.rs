//! Connecting to a peer, to another one, or to none.

use crate::socket::Socket;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_unix::connection::rx::Rx;
use onecopy_unix::connection::tx::Tx;
use onecopy_unix::{Error, Op, Result, Transport};
use rustix::net::SocketAddrUnix;
use std::sync::{Arc, Weak};

impl Socket {
    /// Connects to the socket at `address`, or removes the peer.
    ///
    /// # Errors
    ///
    /// What connect(2) returns; then nothing has changed.
    pub fn connect_datagram(self: &Arc<Socket>, address: Option<&SocketAddrUnix>) -> Result<()> {
        self.check(Op::Connect)?;
        // A sender that sleeps for room looks at this counter at least every half second, and then unlocks
        // its side. Relaxed: the counter publishes nothing but itself.
        self.while_connecting(|| self.connect_now(address))
    }

    fn connect_now(self: &Arc<Socket>, address: Option<&SocketAddrUnix>) -> Result<()> {
        let mut tx = self.tx().lock();
        let mut rx = self.rx().lock();
        // The kernel would take an unread doorbell for a lost datagram, and tell the peer ECONNRESET.
        if let Some(pairing) = self.known_pairing()
            && matches!(&*rx, Rx::Plain)
            && pairing.is_counting()
        {
            let _ = self.look_for_switch(pairing, &mut rx);
        }
        if let Rx::Ring(ring) = &mut *rx {
            self.clear_queue(ring);
        }
        // The two sockets keep what they share if the new peer is the old one. That holds for a single
        // direction too, if an end was shut down.
        let sends = self.tx_ring().is_some() && !self.has_parted();
        let shares = sends || matches!(&*rx, Rx::Ring(_));
        // A slot that is out is for the old peer, or for the same one still.
        let asks = shares || self.pairing().is_some() || self.slots().are_out();
        let before = if asks { self.peer_inode() } else { None };
        let known = if self.fan_in().is_some() { self.peer_inode() } else { None };
        self.before_connecting();
        let connected = match address {
            Some(address) => rustix::net::connect(self.fd(), address),
            None => rustix::net::connect_unspec(self.fd()),
        };
        if connected.is_ok() {
            self.take_noted_refusal(); // it was of the old peer
        }
        let same = || before.is_some() && self.peer_inode() == before;
        if connected.is_ok() && !same() {
            self.slots().move_on();
            if let Some(ring) = self.rx_ring() {
                // Relaxed: the flag publishes nothing but itself. A peer that sees it asks the kernel which
                // error to tell.
                ring.header().info.0.shut.store(1, Relaxed);
            }
            *rx = Rx::Plain;
            *tx = Tx::Kernel { sent: 0 };
            // A socket shares memory with one peer, once. After that a new peer is reached over the kernel.
            if let Some(pairing) = self.known_pairing() {
                pairing.reset(false);
            }
            let fresh = self.lifeline().is_none() && self.rx_ring().is_none();
            if fresh && self.config().transport == Transport::Auto {
                let pairing = self.pairing_of_any();
                let front: Weak<Socket> = Arc::downgrade(self);
                pairing.is_of(front);
                pairing.reset(address.is_some());
            } else {
                self.part();
                self.end_life();
            }
        }
        if connected.is_ok() && self.fan_in().is_some() && (known.is_some() || address.is_some()) {
            let now = self.peer_inode();
            if known.is_none() || known != now {
                self.after_connecting(known.is_some());
            }
        }
        drop(rx);
        tx.unlock_fenced();
        self.welcome_back();
        connected.map_err(|errno| Error::new(Op::Connect, errno))
    }
}
