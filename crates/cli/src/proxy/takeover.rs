//! Restart without a refused connection: the socket that clients connect to outlives the program, since systemd has it
//! (LISTEN_FDS, sd_listen_fds(3)) or since it is handed to the successor (`--takeover`). It goes as a descriptor (SCM_RIGHTS,
//! unix(7)): its queue of clients goes with it. The successor says that it serves; then the old one takes no more clients, and
//! ends when those that it has are done.

use crate::address::{Address, Place};
use crate::transport::same_user;
use anyhow::{Context, bail, ensure};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::net::UnixListener;
use tracing::warn;

/// What goes with the descriptor. Another version would have another number.
const OFFER: &[u8] = b"onecopy-takeover 1\n";
const READY: &[u8] = b"ready\n";

/// How long each step of the other side may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The socket that systemd has for this program, if it has one.
///
/// # Errors
///
/// There are more, it is something else, or it is bound elsewhere than at `address`.
pub fn activated(address: SocketAddr) -> anyhow::Result<Option<TcpListener>> {
    let mut given = listenfd::ListenFd::from_env();
    match given.len() {
        0 => return Ok(None),
        1 => {}
        n => bail!(
            "systemd gave {n} sockets (LISTEN_FDS), and the proxy listens on one: leave one ListenStream="
        ),
    }
    let listener = given.take_tcp_listener(0).context("what systemd gave (LISTEN_FDS) is no TCP listener")?;
    listener.map(|listener| at(listener, address)).transpose()
}

/// A listener that came from elsewhere, if it is the one that was asked for.
fn at(listener: TcpListener, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = listener.local_addr()?;
    let any = address.port() == 0 && bound.ip() == address.ip();
    ensure!(
        bound == address || any,
        "the listener that this program was given is bound to {bound}: say --listen {bound}"
    );
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The one who served until now, waiting to be told that this program does.
#[derive(Debug)]
pub struct Predecessor(UnixStream);

impl Predecessor {
    /// Asks who is at `meet` for its listener. None: nobody is there.
    pub fn ask(meet: &Address, address: SocketAddr) -> anyhow::Result<Option<(Predecessor, TcpListener)>> {
        if meet.probe().is_err() {
            return Ok(None);
        }
        let cannot = || format!("--takeover: the proxy at {meet} does not hand over its listener");
        let stream = meet.connect_nonblocking().with_context(cannot)?;
        stream.set_nonblocking(false)?;
        ensure!(same_user(&stream), "--takeover: who is at {meet} is another user's");
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (mut text, mut listener) = ([0; OFFER.len()], None::<OwnedFd>);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut text)];
        let got = recvmsg(&stream, slices, &mut beside, RecvFlags::CMSG_CLOEXEC).with_context(cannot)?;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                listener = descriptors.last().or(listener);
            }
        }
        let (OFFER, Some(listener)) = (&text[..got.bytes], listener) else { bail!("{}", cannot()) };
        ensure!(rustix::net::sockopt::socket_acceptconn(&listener).unwrap_or(false), "{}", cannot());
        Ok(Some((Predecessor(stream), at(listener.into(), address)?)))
    }

    /// Tells it that this program takes clients, and waits until it has left the meeting place.
    pub fn relieve(mut self) -> anyhow::Result<()> {
        self.0.write_all(READY).and_then(|()| self.0.read(&mut [0])).context("the predecessor hangs")?;
        Ok(())
    }
}

/// Waits at `meet` for a successor, and gives it `listener`. Comes back when that serves; who has to end then.
pub async fn wait(meet: &Address, listener: OwnedFd) -> anyhow::Result<()> {
    let (meeting, place): (_, Place) = meet.bind()?;
    meeting.set_nonblocking(true)?;
    let meeting = UnixListener::from_std(meeting)?;
    loop {
        let Ok((stream, _)) = meeting.accept().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(stream) = stream.into_std() else { continue };
        if !same_user(&stream) {
            warn!(target: "onecopy proxy", "a process of another user asked for the listener and was turned away");
            continue;
        }
        let fd = listener.try_clone()?;
        // What it waits for is a program that starts.
        let handed = tokio::task::spawn_blocking(move || hand(&stream, &fd).map(|()| stream)).await?;
        match handed {
            Ok(stream) => {
                drop(place); // before the successor hears of it, and takes the place
                drop(meeting);
                drop(stream);
                return Ok(());
            }
            Err(why) => {
                warn!(target: "onecopy proxy", "a successor took the listener, and did not get to serve: {why}")
            }
        }
    }
}

fn hand(mut stream: &UnixStream, listener: &OwnedFd) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let descriptors = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(stream, &[IoSlice::new(OFFER)], &mut beside, SendFlags::NOSIGNAL)?;
    let mut word = [0; READY.len()];
    stream.read_exact(&mut word)?;
    if word == READY { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
}
