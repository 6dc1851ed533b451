//! What a connection says where it fails, and what its peer's misbehaviour costs.

use crate::control;
use crate::core::kind::Kind;
use crate::core::{Core, broken};
use onecopy_ring::PeerMisbehaved;
use onecopy_socket::{Error, Op, Result, SendFlags};
use onecopy_sync::atomic::Ordering::Relaxed;
use rustix::io::Errno;

impl Core {
    /// Ends the connection because the peer misbehaved: in both directions, and for the peer too.
    #[cold]
    pub fn misbehaved(&self, op: Op, misbehaved: PeerMisbehaved) -> Error {
        self.counters.protocol_errors.add(1);
        self.broken.store(broken::MISBEHAVED, Relaxed);
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        self.end_life();
        Error::new(op, Errno::PROTO).because(match misbehaved {
            PeerMisbehaved::Head { .. } => "the peer published an impossible amount of data; this connection is lost",
            PeerMisbehaved::Tail { .. } => "the peer gave back an impossible amount of room; this connection is lost",
            PeerMisbehaved::Filler(_) => "the peer parked an impossible filler; this connection is lost",
            PeerMisbehaved::Frame { .. } => "the peer published an impossible record; this connection is lost",
            PeerMisbehaved::Doorbells => "the peer rings doorbells for nothing; this connection is lost",
            PeerMisbehaved::Marks { .. } | PeerMisbehaved::Mark { .. } => {
                "the peer laid a mark that cannot be; this connection is lost"
            }
            PeerMisbehaved::Reference => "the peer sent a reference to no page of its pools; this connection is lost",
            PeerMisbehaved::Pool => {
                "the peer's pool is no memfd sealed for its owner, or larger than Config::max_shared; \
                 this connection is lost"
            }
            PeerMisbehaved::Channel => {
                "the peer announced descriptors or credentials that are not there or another user's, or took none that it \
                 was sent; this connection is lost"
            }
            PeerMisbehaved::Returned(_) => "the peer gave back a page that it does not have; this connection is lost",
            PeerMisbehaved::Member => {
                "a process that shares this socket left a state that cannot be, or was killed while it received one of \
                 several empty records before the connection was upgraded; this connection is lost"
            }
            PeerMisbehaved::Switch { .. } => "the peer switched to shared memory in the past; this connection is lost",
        })
    }

    /// Does as [`Core::misbehaved`] where what the peer sent as rings are none.
    #[cold]
    pub fn bad_rings(&self, op: Op) -> Error {
        self.counters.protocol_errors.add(1);
        self.broken.store(broken::MISBEHAVED, Relaxed);
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        self.end_life();
        Error::new(op, Errno::PROTO).because(
            "the peer's rings are no sealed memfd of the size that they say; this connection is lost",
        )
    }

    /// Returns the error of a send that failed on the control socket. The kernel reports a reset once: it is
    /// kept for the next receive, and on a seqpacket socket for whichever call comes first.
    #[cold]
    pub fn send_failed(&self, errno: Errno) -> Error {
        match errno {
            Errno::CONNRESET => {
                self.reset.store(1, Relaxed);
                self.gone(Op::Send)
            }
            Errno::PIPE => self.gone(Op::Send),
            errno => Error::new(Op::Send, errno),
        }
    }

    /// Returns the error of a send when sending is over. On a seqpacket socket whichever call comes first
    /// gets the reset.
    #[cold]
    pub fn gone(&self, op: Op) -> Error {
        let reset = self.kind == Kind::SeqPacket && self.take_reset();
        Error::new(op, if reset { Errno::CONNRESET } else { Errno::PIPE })
    }

    /// Returns whether the peer closed without reading what this end sent into its ring. True once.
    #[cold]
    pub fn take_reset(&self) -> bool {
        if let Ok(Err(Errno::CONNRESET)) = rustix::net::sockopt::socket_error(&self.fd) {
            self.reset.store(1, Relaxed);
        }
        self.reset.swap(0, Relaxed) != 0 && self.was_reset()
    }

    /// Returns the result of a send: a count if anything was sent, else the error. Raises SIGPIPE where
    /// send(2) does.
    pub fn finish(&self, result: Result<()>, sent: usize, flags: SendFlags) -> Result<usize> {
        match result {
            Err(error) if sent == 0 => {
                // Only streams raise it: records go through unix_dgram_sendmsg, which sends no signal
                // (net/unix/af_unix.c).
                if error.raw_os_error() == Errno::PIPE.raw_os_error()
                    && flags.contains(SendFlags::SIGPIPE)
                    && self.kind == Kind::Stream
                {
                    control::raise_sigpipe(self.fd());
                }
                Err(error)
            }
            _ => Ok(sent),
        }
    }

    /// Returns whether the connection lives on although its channel failed. It does where several processes
    /// share the other end, and the channel has gone with the process that had it.
    pub fn can_go_on(&self, errno: Errno) -> bool {
        matches!(errno, Errno::PIPE | Errno::CONNRESET) && self.kind != Kind::Datagram && !self.cannot_send()
    }

    /// Returns the error of a send that failed on the channel.
    pub fn no_channel(&self, errno: Errno) -> Error {
        // The channel is a connection of its own. Its reset only says that the peer is gone.
        let errno = if errno == Errno::CONNRESET { Errno::PIPE } else { errno };
        let error = Error::new(Op::Send, errno);
        match errno {
            Errno::PERM => {
                error.about("who").because("a sender may only claim what it is; more takes a privilege")
            }
            _ => error,
        }
    }

    /// Returns the error of a send of a record that is longer than the ring. A pending error comes first
    /// (net/unix/af_unix.c: unix_seqpacket_sendmsg), but not on a datagram socket (unix_dgram_sendmsg).
    #[cold]
    pub fn too_long(&self) -> Error {
        let reset = self.kind == Kind::SeqPacket && self.take_reset();
        if reset { Error::new(Op::Send, Errno::CONNRESET) } else { too_long() }
    }

    /// Returns the error where the peer does not keep stream records, or has left before it could say so.
    #[cold]
    pub fn no_agreement(&self, op: Op) -> Error {
        if op == Op::Send && (control::gone(self.fd()) || control::hung_up(self.fd())) {
            return Error::new(op, Errno::PIPE);
        }
        Error::new(op, Errno::PROTONOSUPPORT)
            .about("Config::records")
            .because("the peer does not keep stream records; use atomic ones, or set the same at both ends")
    }
}

#[cold]
pub fn too_long() -> Error {
    Error::new(Op::Send, Errno::MSGSIZE).about("bytes").because(
        "the record is longer than the buffer takes whole; raise the send buffer, or send less at once",
    )
}
