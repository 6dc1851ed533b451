//! Receiving stream records while they come over the kernel, before the peer has switched.
//!
//! They come in pieces, each of which is one of the kernel's records. The first byte of a piece says whether
//! the stream record ends with it.

use crate::ancillary::channel::Fds;
use crate::connection::Connection;
use crate::connection::call::{Call, scatter};
use crate::connection::carry::Carry;
use crate::connection::received::Received;
use crate::connection::rx::Rx;
use crate::connection::side::SideGuard;
use crate::control;
use onecopy_ring::PeerMisbehaved;
use onecopy_socket::{Error, Op, ReceivedFlags, Result};
use rustix::io::Errno;
use std::io::IoSliceMut;

impl Connection {
    /// Receives the next piece, or a part of it.
    pub fn part_from_kernel(
        &self,
        mut guard: SideGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        got: &mut Received,
        peek: bool,
        call: &mut Call<'_>,
        last: &mut bool,
    ) -> Result<()> {
        let Rx::Switching(switching) = &mut *guard else { return Err(self.no_agreement(Op::Recv)) };
        let carry = switching.carry_mut();
        if let Some(fds) = &carry.fds {
            if got.len > 0 {
                *last = true;
                return Ok(());
            }
            let lost = fds.truncated || call.fds.is_none() && !fds.list.is_empty();
            got.flags.set(ReceivedFlags::CTRUNC, lost);
            if let Some(to) = &mut call.fds {
                fds.copy_to(to)?;
            }
            if !peek {
                carry.fds = None;
            }
        }
        let room = slices.iter().map(|slice| slice.len()).sum::<usize>() - got.len;
        let n = carry.left().min(room);
        scatter(slices, got.len, n, |done, part| {
            part.copy_from_slice(&carry.bytes[carry.at + done..][..part.len()]);
        });
        got.len += n;
        let whole = n == carry.left();
        if whole && carry.end && (room > 0 || n > 0) {
            got.flags |= ReceivedFlags::EOR;
        }
        if !peek {
            carry.at += n;
            carry.pending = !whole;
            self.counters().received.add_exclusive(n);
            if whole {
                self.take_piece()?;
                switching.count(1);
            }
        }
        Ok(())
    }

    /// Looks at the next piece of a stream record in the kernel's queue, if none is being received. Takes a
    /// piece that had nothing but rings with it, which came ahead of the peer's first record
    /// (`send_rings_ahead`). Returns whether it took one: then there may be no other yet.
    pub fn take_rings_ahead(&self, rx: &mut Rx) -> Result<bool> {
        let carry = self.next_piece(rx)?;
        let Rx::Switching(switching) = rx else { return Err(self.no_agreement(Op::Recv)) };
        let Some(carry) = carry else { return Ok(false) };
        let ahead = switching.received() == 0 && carry.has_nothing();
        if ahead {
            self.take_piece()?;
            switching.count(1);
        } else {
            *switching.carry_mut() = carry;
        }
        Ok(ahead)
    }

    /// Returns the next piece of a stream record in the kernel's queue, if none is being received. Joins
    /// rings that come with it.
    fn next_piece(&self, rx: &mut Rx) -> Result<Option<Carry>> {
        if let Rx::Switching(switching) = &*rx
            && switching.carry().is_pending()
        {
            return Ok(None);
        }
        let error = |errno| Error::new(Op::Recv, errno);
        // All that is queued is no less than the next record.
        let mut bytes = vec![0; control::queued(self.fd()).map_err(error)?];
        // The piece stays in the queue until all of it was received: poll(2) tells of what is in the kernel's
        // queue.
        let flags = rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::PEEK;
        let mut fds = Fds::default();
        let n = fds.recv(self.fd(), &mut [IoSliceMut::new(&mut bytes)], flags).map_err(error)?.bytes;
        bytes.truncate(n);
        let rings = rx.may_bring_rings().and_then(|nonce| fds.take_rings(&nonce));
        if let Rx::Undecided(_) = rx {
            self.received_over_kernel(rx, 0, rings, Op::Recv)?;
        }
        let with = fds.truncated || !fds.list.is_empty() || fds.who.is_some() || fds.pidfd.is_some();
        let fds = Some(fds).filter(|_| with);
        match bytes.first() {
            Some(end @ 0..=1) => {
                let end = *end == 1;
                self.counters().kernel_copied.add(n);
                Ok(Some(Carry { bytes, at: 1, end, pending: true, fds }))
            }
            _ => Err(self.misbehaved(Op::Recv, PeerMisbehaved::Frame { word: 0, available: n as u64 })),
        }
    }

    /// Takes the next record out of the kernel's queue. It was received before, and so were copies of its
    /// descriptors.
    pub fn take_piece(&self) -> Result<()> {
        loop {
            match rustix::net::recv(self.fd(), &mut [0; 0][..], rustix::net::RecvFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                // The kernel reports it first and once. The caller hears of it after it has received what is
                // there.
                Err(Errno::CONNRESET) => self.note_reset(),
                Err(errno) => return Err(Error::new(Op::Recv, errno)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::failpoint::at;
    use crate::{Config, Records, RecvFlags, SendFlags, SeqListener, SeqPacket, SocketAddr};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fd::AsFd;
    use std::sync::Arc;

    const NOW: RecvFlags = RecvFlags::DONTWAIT;
    const EOR: SendFlags = SendFlags::EOR;

    fn connection(test: &str) -> (Arc<SeqPacket>, Arc<SeqPacket>) {
        let config = Config { records: Records::Stream, ..Config::default() };
        let name =
            SocketAddr::from_abstract_name(format!("onecopy-pieces-{test}-{}", std::process::id())).unwrap();
        let listener = SeqListener::bind_with(name.clone(), &config).unwrap();
        let client = SeqPacket::connect_with(name, &config).unwrap();
        (Arc::new(client), Arc::new(listener.accept().unwrap().0))
    }

    fn is_readable(socket: &SeqPacket) -> bool {
        poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    #[test]
    fn who_receives_between_the_rings_and_their_record_finds_nothing() {
        crate::tests::alone!();
        for (i, flags) in [NOW, NOW | RecvFlags::PEEK, NOW | RecvFlags::WAITALL].into_iter().enumerate() {
            let (client, server) = connection(&format!("between-{i}"));
            let receiver = server.clone();
            at("rings sent ahead", move || {
                assert!(is_readable(&receiver));
                assert!(receiver.recv_with_flags(&mut [0; 8], flags).unwrap_err().would_block());
                assert!(!is_readable(&receiver), "it was taken");
            });
            assert_eq!(client.send_fds_with_flags(b"abc", &[client.as_fd(); 253], EOR).unwrap(), 3);
            let (received, with) = server.recv_fds_with_flags(&mut [0; 8], NOW).unwrap();
            assert_eq!((received.len, with.fds.len()), (3, 253));
            for (from, to) in [(&client, &server), (&server, &client), (&client, &server)] {
                from.send_with_flags(b"on", EOR).unwrap();
                assert_eq!(to.recv_with_flags(&mut [0; 8], NOW).unwrap(), 2);
            }
            assert!(server.path().is_shared_memory());
        }
    }

    #[test]
    fn rings_that_no_record_follows_are_none() {
        crate::tests::alone!();
        let (client, server) = connection("alone");
        let sender = client.clone();
        at("rings sent ahead", move || sender.shutdown(std::net::Shutdown::Write).unwrap());
        client.send_fds_with_flags(b"abc", &[client.as_fd(); 253], EOR).unwrap_err();
        assert!(server.recv_record_with_flags(&mut [0; 8], NOW).unwrap().is_end());
    }
}
