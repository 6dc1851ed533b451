//! Connecting: to a peer, to another one, to none.

use crate::end::End;
use crate::rx::Rx;
use crate::tx::Tx;
use crate::{Error, Op, Result};
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use rustix::net::SocketAddrUnix;

impl End {
    /// Connects to a peer, or to none.
    ///
    /// # Errors
    ///
    /// What connect(2) says; then all is as it was.
    pub fn connect_datagram(&self, address: Option<&SocketAddrUnix>) -> Result<()> {
        self.check(Op::Connect)?;
        let mut tx = self.tx.lock();
        let mut rx = self.rx.lock();
        if let Rx::Ring(ring) = &mut *rx
            && ring.consumer.available(1) == Ok(0)
        {
            // The kernel would take a bell for a datagram that is lost, and tell the peer ECONNRESET.
            let _ = ring.settle(self);
        }
        let connected = match address {
            Some(address) => rustix::net::connect(&self.fd, address),
            None => rustix::net::connect_unspec(&self.fd),
        };
        if connected.is_ok() && self.tx_ring.get().is_some() {
            if let Some(ring) = self.rx_ring.get() {
                ring.header().info.0.shut.store(1, Release);
            }
            *rx = Rx::Plain;
            *tx = Tx::Kernel { sent: 0 };
            self.parted.store(1, Relaxed);
            self.end_life();
        }
        drop(rx);
        tx.unlock_fenced();
        self.welcome_back();
        connected.map_err(|errno| Error::new(Op::Connect, errno))
    }
}
