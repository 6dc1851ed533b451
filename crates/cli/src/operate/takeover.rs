//! Restart without a refused connection: the sockets that others connect to outlive the program, since systemd has them
//! ([`Given`](super::given::Given)) or since they are handed to the successor (`--takeover`). They go as descriptors (SCM_RIGHTS,
//! unix(7)): the queues of those who wait go with them. The successor says that it serves; then the old one takes no more clients,
//! and ends when those that it has are done.

use super::role::Role;
use super::user::User;
use crate::address::{Address, Place};
use anyhow::{Context, bail, ensure};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg, sockopt,
};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::net::UnixListener;
use tracing::warn;

/// What goes with the descriptors, and then the name of each. Another version would have another number.
const OFFER: &str = "onecopy-takeover 2";
const READY: &[u8] = b"ready\n";

/// What is handed over.
pub type Sockets = Vec<(Role, OwnedFd)>;

/// No offer is longer.
const LONGEST: usize = 128;

/// How long each step of the other side may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether who is across `stream` is one of these users.
fn is_of(stream: impl AsFd, users: &[u32]) -> bool {
    sockopt::socket_peercred(stream).is_ok_and(|peer| users.contains(&peer.uid.as_raw()))
}

/// The one who served until now, waiting to be told that this program does.
#[derive(Debug)]
pub struct Predecessor(UnixStream);

impl Predecessor {
    /// Asks who is at `meet` for its sockets. None: nobody is there. `user` is who this program will be.
    pub fn ask(meet: &Address, user: Option<&User>) -> anyhow::Result<Option<(Predecessor, Sockets)>> {
        if meet.probe().is_err() {
            return Ok(None);
        }
        let cannot = || format!("--takeover: the one at {meet} does not hand over its listener");
        let stream = meet.connect_nonblocking().with_context(cannot)?;
        stream.set_nonblocking(false)?;
        let own = rustix::process::geteuid().as_raw();
        let users = [own, user.map_or(own, User::uid)];
        ensure!(is_of(&stream, &users), "--takeover: who is at {meet} is another user's");
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (mut text, mut sockets) = ([0; LONGEST], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(Role::ALL.len()))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut text)];
        let got = recvmsg(&stream, slices, &mut beside, RecvFlags::CMSG_CLOEXEC).with_context(cannot)?;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                sockets.extend(descriptors);
            }
        }
        let roles = std::str::from_utf8(&text[..got.bytes]).ok().and_then(roles);
        let Some(roles) = roles.filter(|roles| roles.len() == sockets.len() && roles.contains(&Role::Listen))
        else {
            bail!("{}", cannot())
        };
        Ok(Some((Predecessor(stream), roles.into_iter().zip(sockets).collect())))
    }

    /// Tells it that this program takes clients, and waits until it has left the meeting place.
    pub fn relieve(mut self) -> anyhow::Result<()> {
        self.0.write_all(READY).and_then(|()| self.0.read(&mut [0])).context("the predecessor hangs")?;
        Ok(())
    }
}

/// What an offer says of its descriptors.
fn roles(offer: &str) -> Option<Vec<Role>> {
    let names = offer.strip_suffix('\n')?.strip_prefix(OFFER)?;
    let role = |name: &str| Role::ALL.into_iter().find(|role| role.name() == name);
    names.split(' ').skip(1).map(role).collect()
}

/// Waits at `meet` for a successor, and gives it `sockets`. Comes back when that serves; who has to end then.
pub async fn wait(meet: &Address, sockets: Sockets) -> anyhow::Result<()> {
    let (meeting, place): (_, Place) = meet.bind()?;
    meeting.set_nonblocking(true)?;
    let meeting = UnixListener::from_std(meeting)?;
    loop {
        let Ok((stream, _)) = meeting.accept().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(stream) = stream.into_std() else { continue };
        // Root will be another user (`--user`) when it serves.
        if !is_of(&stream, &[rustix::process::geteuid().as_raw(), 0]) {
            warn!(target: "onecopy", "a process of another user asked for the listener and was turned away");
            continue;
        }
        let clone = |(role, socket): &(Role, OwnedFd)| Ok((*role, socket.try_clone()?));
        let sockets = sockets.iter().map(clone).collect::<std::io::Result<Sockets>>()?;
        // What it waits for is a program that starts.
        let handed = tokio::task::spawn_blocking(move || hand(&stream, &sockets).map(|()| stream)).await?;
        match handed {
            Ok(stream) => {
                drop(place); // before the successor hears of it, and takes the place
                drop(meeting);
                drop(stream);
                return Ok(());
            }
            Err(why) => {
                warn!(target: "onecopy", "a successor took the listener, and did not get to serve: {why}")
            }
        }
    }
}

fn hand(mut stream: &UnixStream, sockets: &[(Role, OwnedFd)]) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
    let names: Vec<&str> = sockets.iter().map(|(role, _)| role.name()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(Role::ALL.len()))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&descriptors));
    let offer = format!("{OFFER} {}\n", names.join(" "));
    sendmsg(stream, &[IoSlice::new(offer.as_bytes())], &mut beside, SendFlags::NOSIGNAL)?;
    let mut word = [0; READY.len()];
    stream.read_exact(&mut word)?;
    if word == READY { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_names_its_sockets() {
        let offer = |names: &str| roles(&format!("{OFFER}{names}\n"));
        assert_eq!(offer(" listen metrics"), Some(vec![Role::Listen, Role::Metrics]));
        assert_eq!(offer(""), Some(vec![]));
        assert_eq!(offer(" listen tap"), None);
        assert_eq!(roles("onecopy-takeover 1\n"), None);
        assert_eq!(roles(&format!("{OFFER} listen")), None, "it was cut off");
        let longest: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
        assert!(OFFER.len() + longest.join(" ").len() + 2 <= LONGEST);
    }
}
