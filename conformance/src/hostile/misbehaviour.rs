//! What a lie is, who tells it to whom, and what may come of it.

use std::io;

use onecopy::unix::Stream;
use onecopy::{RecvFlags, SendFlags};

use crate::impls::kernel::Plain;
use crate::liar::{Field, Liar, Rings};

/// Who tells the lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client, which makes the rings; the victim accepted it.
    Client,
    /// A server, which makes the rings; the victim called it.
    Server,
    /// A client to which the victim sends rings that it has made.
    JoiningClient,
    /// A server of which the victim knows that it is one of ours, and to which it sends rings that it has made.
    JoiningServer,
}

impl Role {
    /// As the tests and the table call it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Server => "server",
            Role::JoiningClient => "joining-client",
            Role::JoiningServer => "joining-server",
        }
    }

    /// The one of that name.
    pub fn of(name: &str) -> Option<Role> {
        ALL.iter().copied().find(|role| role.name() == name)
    }

    /// Whether the rings are the victim's.
    pub(super) fn joins(self) -> bool {
        matches!(self, Role::JoiningClient | Role::JoiningServer)
    }

    /// Whether the victim accepted it.
    pub(super) fn calls(self) -> bool {
        matches!(self, Role::Client | Role::JoiningClient)
    }
}

/// A lie.
pub struct Misbehaviour {
    /// Its name.
    pub name: &'static str,
    /// What the peer does.
    pub what: &'static str,
    /// Who can tell it.
    pub roles: &'static [Role],
    /// What a victim may see.
    pub allowed: &'static [&'static str],
    /// What a victim must see in one of its activities at least, or `""`.
    pub must: &'static str,
    /// Tells it. The victim is there to be nudged.
    pub tell: fn(&mut Scene) -> io::Result<()>,
    /// Goes on telling it while the victim is active, for a tenth of a second.
    pub meanwhile: Option<fn(&Liar)>,
}

/// All roles.
pub const ALL: &[Role] = &[Role::Client, Role::Server, Role::JoiningClient, Role::JoiningServer];
/// Those who make the rings.
pub const ATTACHING: &[Role] = &[Role::Client, Role::Server];
/// Those who are sent rings.
pub const JOINING: &[Role] = &[Role::JoiningClient, Role::JoiningServer];
/// Found out.
pub const CAUGHT: &[&str] = &["EPROTO"];
/// Found out by who receives; who only sends may go on.
pub const RECEIVER_SEES: &[&str] = &["EPROTO", "waits", "carries on"];
/// The connection is over, however it is called.
pub const OVER: &[&str] = &["end", "ECONNRESET", "EPIPE", "EPROTO"];
/// Nothing that the victim could or need notice.
pub const HARMLESS: &[&str] = &["waits", "carries on"];
/// The program gets descriptors that are no rings of this connection.
pub const FOREIGN: &[&str] = &["descriptors", "waits", "carries on"];
/// Whatever ends in time.
pub const ANY: &[&str] = &["waits", "carries on", "end", "ECONNRESET", "EPIPE", "EPROTO"];

/// Bytes of the rings that the liar makes.
pub const ROOM: u64 = 64 << 10;

/// A liar and its victim.
pub struct Scene {
    /// The liar's end.
    pub liar: Liar,
    /// The victim's end.
    pub victim: Stream,
    /// Whose the liar is.
    pub role: Role,
    /// By which the victim knows its server.
    _rendezvous: Option<Plain>,
}

impl Scene {
    /// The two ends of a connection, and by what the victim knows its server, if it does.
    pub(super) fn new(liar: Liar, victim: Stream, role: Role, rendezvous: Option<Plain>) -> Scene {
        Scene { liar, victim, role, _rendezvous: rendezvous }
    }

    /// Both have the rings, and the victim may send into the liar's: honestly.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong: then it is no lie that was tried.
    pub fn meet(&mut self) -> io::Result<()> {
        if self.role.joins() {
            self.theirs()?;
            return self.liar.join();
        }
        self.attach(Rings::honest([ROOM; 2], self.liar.nonce)?)?;
        if self.victim.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).ok() != Some(1) {
            return Err(io::Error::other("the byte that rings came with was not received"));
        }
        match self.liar.theirs()?.get(Field::Joined)? {
            1 => Ok(()),
            other => Err(io::Error::other(format!("the victim has not joined: {other}"))),
        }
    }

    /// Completes the upgrade honestly, so that both directions run over shared memory.
    ///
    /// # Errors
    ///
    /// As [`Scene::meet`].
    pub fn upgrade(&mut self) -> io::Result<()> {
        self.meet()?;
        self.liar.switch()?;
        self.shared()
    }

    /// The victim makes rings, and sends them with its first byte.
    ///
    /// # Errors
    ///
    /// As [`Scene::meet`].
    pub fn theirs(&mut self) -> io::Result<()> {
        self.victim.send_with_flags(b"v", SendFlags::DONTWAIT)?;
        let came = self.liar.take_rings()?;
        match came.bytes == b"v" && came.fds.is_empty() {
            true => Ok(()),
            false => Err(io::Error::other(format!("besides rings there came {came:?}"))),
        }
    }

    /// Sends rings with the liar's first byte.
    ///
    /// # Errors
    ///
    /// sendmsg's.
    pub fn attach(&mut self, rings: Rings) -> io::Result<()> {
        self.liar.attach(b"h", &[], rings)
    }

    /// Fails unless both directions run over shared memory, now that the victim looks.
    ///
    /// # Errors
    ///
    /// Where they do not.
    pub fn shared(&self) -> io::Result<()> {
        self.nudge();
        match self.victim.path().is_shared_memory() {
            true => Ok(()),
            false => Err(io::Error::other(format!("not upgraded: {:?}", self.victim.path()))),
        }
    }

    /// Lets the victim look at what came, in both directions.
    pub fn nudge(&self) {
        let _ = self.victim.recv_with_flags(&mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        // (A slot that is given up sends nothing.)
        drop(self.victim.reserve_with_flags(1, SendFlags::DONTWAIT));
    }
}
