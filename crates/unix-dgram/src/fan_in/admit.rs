//! How a fan-in receiver gives lanes to its senders. `readiness.rs` and `schedule.rs` decide what it receives
//! when.
//!
//! A socket that is bound and connected to nobody has a rendezvous listener (one descriptor) from its first
//! datagram on. A sender that connects there and sends a join request ([`super::sender`]) gets a lane. A lane
//! costs one descriptor here, the line, and a ring of the capacity that a connection would have, whose memory
//! is taken as it is used. With the first lane the receiver also makes a door into its own queue, to keep
//! itself readable. At most [`LANES`] senders have a lane. Further senders, and plain ones, stay with the
//! kernel.
//!
//! A sender that misbehaves on its lane costs only itself: the receiver closes and counts the lane, and no
//! other sender notices.

use crate::fan_in::lane::over_line;
use crate::fan_in::receiver::{CALLERS, FanIn, FanInReceiver, LANES, Member, is_sender, name_for_many};
use crate::fan_in::turns::Turns;
use crate::pairing::line::{other_end, seqpacket};
use crate::socket::Socket;
use crate::wire::control_message::{Answer, CONTROL_LEN, ControlMessage};
use crate::wire::hello::Hello;
use onecopy_ring::MIN_CAPACITY;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use onecopy_sys::scm;
use onecopy_sys::socket::unix_address;
use onecopy_sys::unix_diag::Diag;
use onecopy_unix::core::kind::Kind;
use onecopy_unix::core::{PASS_CREDENTIALS, PASS_PIDFD};
use onecopy_unix::handshake::invitation::{capacity_for, nonce};
use onecopy_unix::handshake::upgrade;
use onecopy_unix::handshake::upgrade::Nonce;
use onecopy_unix::{SocketAddr, Transport};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::SendFlags;
use std::cell::Cell;
use std::io::IoSlice;

impl Socket {
    /// Handles the arrival of a datagram over the kernel. From here on senders may have lanes, if anybody may
    /// send here. The caller holds the receiving side.
    #[inline]
    pub fn begin_fan_in(&self) {
        let may = self.fan_in().is_none() && self.known_pairing().is_none() && self.lifeline().is_none();
        if may && self.config().transport == Transport::Auto && self.is_first_fan_in() {
            // If this fails, the kernel carries the datagrams for good.
            if self.begin_fan_in_now().is_err() {
                self.counters().fallbacks.add(1);
            }
        }
    }

    #[cold]
    fn begin_fan_in_now(&self) -> io::Result<()> {
        // A socket that several processes have stays with the kernel: one process would have the lanes, and
        // the others would not.
        let shared = !self.is_here_alone();
        let named = onecopy_unix::connection::options::local_addr(self.fd())
            .is_ok_and(|name| name != SocketAddr::unnamed());
        if shared || !named || rustix::net::getpeername(self.fd()).is_ok() {
            return Ok(());
        }
        let inode = rustix::fs::fstat(self.fd())?.st_ino;
        let rendezvous = seqpacket()?;
        rustix::net::bind(&rendezvous, &name_for_many(inode)?)?;
        rustix::net::listen(&rendezvous, CALLERS as i32)?;
        let state = FanIn {
            rendezvous,
            inode,
            nonce: nonce()?,
            door: None,
            token: false,
            callers: Vec::new(),
            lanes: Vec::new(),
            turns: Turns::default(),
            all_live: false,
            since_kernel: 0,
            left: 0,
            closing: false,
        };
        let fan_in = FanInReceiver {
            state: Mutex::new(state),
            sleepers: AtomicU32::new(0),
            open: AtomicU32::new(1),
            laned: AtomicU32::new(0),
            left_over: AtomicU32::new(0),
        };
        self.set_fan_in(fan_in);
        Ok(())
    }

    /// Handles a control message that `from` has sent. Returns whether it is one of this socket's.
    #[cold]
    pub fn handle_control(&self, fan_in: &mut FanIn, control: ControlMessage, from: SocketAddr) -> bool {
        match control {
            ControlMessage::Doorbell(nonce) => nonce == fan_in.nonce,
            ControlMessage::Token(nonce) if nonce == fan_in.nonce => {
                fan_in.token = false;
                true
            }
            ControlMessage::Token(_) => false,
            ControlMessage::Switched { fan_in: nonce, .. } if nonce != fan_in.nonce => false,
            ControlMessage::Switched { lane, .. } => {
                let Some(at) = fan_in.lanes.iter().position(|member| member.key == lane) else { return true };
                let member = &fan_in.lanes[at];
                // Another program may have been made to send it.
                let its = member.name == from || is_sender(fan_in, member.inode, member.end.fd(), &from);
                let member = &mut fan_in.lanes[at];
                // This side's own control message has no name. Neither has that of a sender without a name.
                if its && from != SocketAddr::unnamed() {
                    (member.named, member.name) = (true, from);
                }
                member.live = true;
                true
            }
            // Those go with datagrams.
            ControlMessage::Join { .. } | ControlMessage::Proof { .. } => false,
        }
    }

    /// Handles a join request, which came with a datagram that `from` has sent.
    #[cold]
    pub fn handle_join(&self, fan_in: &mut FanIn, join_request: ControlMessage, from: SocketAddr) {
        let ControlMessage::Join { hello, secret, cookie, inode } = join_request else { return };
        // The sender of that hello may be gone, or may have been sent away as one too many. Or it reached
        // another process, since a fork.
        let Some((line, said)) = fan_in.line_of(hello) else { return };
        let open = self.fan_in().is_some_and(|all| all.open.load(Relaxed) != 0);
        if open && !fan_in.closing && other_end(&line) == Ok(cookie) {
            // A sender that cannot have a lane finds the line closed.
            match self.give_lane(fan_in, line, said, secret, (inode, from)) {
                Ok(true) => {}
                Ok(false) | Err(_) => self.counters().fallbacks.add(1),
            }
        }
    }

    /// Gives a sender a lane. Returns false if none is left.
    fn give_lane(
        &self,
        fan_in: &mut FanIn,
        line: OwnedFd,
        hello: Hello,
        secret: Nonce,
        (inode, name): (u64, SocketAddr),
    ) -> io::Result<bool> {
        if !is_sender(fan_in, inode, line.as_fd(), &name) {
            return Ok(false);
        }
        if fan_in.lanes.len() >= LANES {
            fan_in.look_who_died();
            fan_in.remove_dead();
            if fan_in.lanes.len() >= LANES {
                return Ok(false);
            }
        }
        // A fork clears `open` and then loads `laned`; here it is the other way round. Both are SeqCst, so
        // that one of the two sees the other.
        let Some(all) = self.fan_in() else { return Ok(false) };
        all.laned.store(fan_in.lanes.len() as u32 + 1, SeqCst);
        if all.open.load(SeqCst) == 0 {
            return Ok(false);
        }
        let config = self.config();
        let wish = hello.send_buffer;
        let capacity = capacity_for(Kind::SeqPacket, config.receive_buffer, wish, config.max_ring);
        let lane_config =
            onecopy_unix::Config { max_shared: 0, pass_credentials: false, passable: false, ..*config };
        let (mine, to) = upgrade::new_ring(capacity, &lane_config)?;
        let (theirs, back) = upgrade::new_ring(MIN_CAPACITY, &lane_config)?;
        mine.header().info.0.shut.store(self.is_recv_shut().into(), Release);
        if fan_in.door.is_none() {
            // Made while the name is certainly this socket's: later another socket may have it, or none.
            fan_in.door = Some(self.door(fan_in)?);
        }
        let answer = Answer {
            secret,
            fan_in: fan_in.nonce,
            lane: nonce()?,
            capacity: capacity as u64,
            back: MIN_CAPACITY as u64,
        };
        let end = over_line(line, mine, theirs, config).map_err(|_| Errno::NOMEM)?;
        let (asks, _) = self.asks();
        for which in [PASS_CREDENTIALS, PASS_PIDFD] {
            if asks & which != 0 {
                end.pass(which, true)?;
            }
        }
        let fds = [to.as_fd(), back.as_fd()];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        scm::send(end.fd(), &[IoSlice::new(&answer.encode())], &fds, None, flags)?;
        let (live, switched, called, dead, named, until) = (false, false, false, false, false, None);
        let (key, empty_at) = (answer.lane, Cell::new(u64::MAX));
        fan_in.all_live = false;
        fan_in.lanes.push(Member {
            end,
            key,
            inode,
            name,
            live,
            switched,
            called,
            dead,
            named,
            until,
            empty_at,
        });
        Ok(true)
    }

    /// Makes a socket that is connected to this one.
    fn door(&self, fan_in: &FanIn) -> io::Result<OwnedFd> {
        let me = unix_address(rustix::net::getsockname(self.fd())?).ok_or(Errno::INVAL)?;
        let door = Kind::Datagram.socket().map_err(|_| Errno::MFILE)?;
        rustix::net::connect(&door, &me)?;
        // The path may be another socket's by now.
        let there = Diag::open()?.look(rustix::fs::fstat(&door)?.st_ino)?.peer;
        if there == Some(fan_in.inode) { Ok(door) } else { Err(Errno::NOENT) }
    }

    /// Leaves a token in this socket's own queue, which makes it readable. A queue without room for it is
    /// readable anyway.
    pub fn leave_token(&self, fan_in: &mut FanIn) {
        if fan_in.token {
            return;
        }
        let Some(door) = &fan_in.door else { return }; // there is no lane, and was none
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        fan_in.token =
            rustix::net::send(door, &ControlMessage::Token(fan_in.nonce).encode(), flags) == Ok(CONTROL_LEN);
    }

    /// Marks the end of what senders that have switched sent over the kernel. Called after a datagram was
    /// taken from the kernel's queue, where more of theirs may follow. What is behind this side's own control
    /// message is not theirs. If there is no room for it, there is another datagram to take.
    pub fn call_who_switched(&self, fan_in: &mut FanIn) {
        let (Some(door), nonce) = (&fan_in.door, fan_in.nonce) else { return };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        for member in fan_in.lanes.iter_mut().filter(|member| member.switched && !member.live) {
            let control = ControlMessage::Switched { fan_in: nonce, lane: member.key };
            member.called =
                member.called || rustix::net::send(door, &control.encode(), flags) == Ok(CONTROL_LEN);
        }
    }

    /// Tells the senders that they cannot send here any more: this socket receives no more, or is about to be
    /// connected. The senders then ask the kernel for the error.
    pub fn shut_lanes(&self) {
        if let Some(fan_in) = self.fan_in() {
            for member in &fan_in.lock().lanes {
                member.shut();
            }
        }
    }

    /// Passes on to every lane what this socket asks of its senders.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) returns.
    pub fn ask_lanes(&self, which: u32, on: bool) -> rustix::io::Result<()> {
        let Some(fan_in) = self.fan_in() else { return Ok(()) };
        fan_in.lock().lanes.iter().try_for_each(|member| member.end.pass(which, on))
    }

    /// Prepares for connecting this socket, from when on it cannot keep itself readable. It also takes
    /// control messages from the queue: the kernel would take them for lost datagrams, and tell the peer.
    pub fn before_connecting(&self) {
        if let Some(fan_in) = self.fan_in() {
            let mut fan_in = fan_in.lock();
            if fan_in.lanes.iter().any(Member::has_some) {
                self.leave_token(&mut fan_in);
            } else {
                self.handle_controls(&mut fan_in);
            }
        }
    }

    /// Handles a connect, after which nobody else may send here. `lost`: the kernel has discarded what was in
    /// its queue.
    pub fn after_connecting(&self, lost: bool) {
        let Some(fan_in) = self.fan_in() else { return };
        let mut state = fan_in.lock();
        fan_in.open.store(0, SeqCst);
        if lost {
            state.lanes.clear();
            state.token = false;
        }
        state.closing = !state.lanes.is_empty();
        fan_in.left_over.store(u32::from(state.closing), Relaxed);
        for member in &mut state.lanes {
            member.until = Some(member.shut());
            member.live = true;
        }
    }

    /// Forgets what lies in the lanes of a receiver that was connected: the kernel has discarded what was in its
    /// queue, since the peer is gone.
    pub fn forget_lanes(&self) {
        let Some(fan_in) = self.fan_in() else { return };
        let _rx = self.rx().lock();
        let mut state = fan_in.lock();
        state.lanes.clear();
        (state.token, state.closing) = (false, false);
        fan_in.left_over.store(0, Relaxed);
    }

    /// Runs before a fork. A socket with lanes belongs to one process; one without belongs to the kernel, and
    /// to every process. Returns whether there are lanes.
    pub fn fan_in_forks(&self) -> bool {
        let Some(fan_in) = self.fan_in() else { return false };
        let open = fan_in.open.swap(0, SeqCst);
        let has_some = fan_in.laned.load(SeqCst) > 0;
        if has_some {
            fan_in.open.store(open, SeqCst);
        }
        has_some
    }
}
