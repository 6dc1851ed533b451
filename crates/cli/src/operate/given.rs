//! Sockets that this program did not bind itself: systemd's (LISTEN_FDS, sd_listen_fds(3)), or those of the one that ran before it
//! ([`takeover`](super::takeover)). Each is known by where it is bound.

use super::Flags;
use super::role::Role;
use super::takeover::{Predecessor, Sockets};
use super::user::User;
use crate::address::{Address, Place};
use anyhow::{Context, bail, ensure};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{SocketAddrUnix, SocketType, getsockname, sockopt};
use std::ffi::OsStr;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;

/// How many may wait at a unix socket, as far as net.core.somaxconn allows it.
const BACKLOG: i32 = 4096;

/// Where a listener is bound, or is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    Tcp(SocketAddr),
    Unix(Address),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Tcp(address) => address.fmt(f),
            Bound::Unix(address) => address.fmt(f),
        }
    }
}

impl Bound {
    /// Where `socket` is. None: it is no stream socket that listens.
    fn of(socket: impl AsFd) -> Option<Bound> {
        let listens = sockopt::socket_acceptconn(&socket).ok()?
            && sockopt::socket_type(&socket).ok()? == SocketType::STREAM;
        let name = getsockname(&socket).ok().filter(|_| listens)?;
        if let Ok(address) = SocketAddr::try_from(name.clone()) {
            return Some(Bound::Tcp(address));
        }
        let name = SocketAddrUnix::try_from(name).ok()?;
        if let Some(path) = name.path() {
            return Some(Bound::Unix(Address::Path(OsStr::from_bytes(path.to_bytes()).into())));
        }
        let name = String::from_utf8(name.abstract_name()?.to_vec()).ok()?;
        Some(Bound::Unix(Address::Abstract(name)))
    }

    /// Whether who asks for this may have what is bound to `other`.
    fn takes(&self, other: &Bound) -> bool {
        match (self, other) {
            (Bound::Tcp(this), Bound::Tcp(other)) => {
                this == other || this.port() == 0 && this.ip() == other.ip()
            }
            (Bound::Unix(this), Bound::Unix(other)) => this.is_same(other),
            _ => false,
        }
    }
}

/// Where a program is to listen, and what for.
pub type Wanted = Vec<(Role, Bound)>;

/// Listeners that are there already.
#[derive(Debug, Default)]
pub struct Given {
    sockets: Sockets,
    /// They come from a predecessor, and with them their files.
    handed: bool,
    /// They are systemd's: who is not taken by this program is taken by the next one.
    outlive: bool,
}

impl Given {
    /// Takes what there is for a program that listens at `wanted`; and who is to be told that it serves.
    ///
    /// # Errors
    ///
    /// Systemd or the predecessor have something else.
    pub fn find(
        flags: &Flags,
        wanted: &Wanted,
        user: Option<&User>,
    ) -> anyhow::Result<(Given, Option<Predecessor>)> {
        let activated = Given::of_systemd(wanted)?;
        let Some(meet) = &flags.takeover else { return Ok((activated, None)) };
        ensure!(
            activated.sockets.is_empty(),
            "systemd has this program's sockets (LISTEN_FDS), and keeps them over a restart: leave out --takeover"
        );
        let Some((before, sockets)) = Predecessor::ask(meet, user)? else { return Ok((activated, None)) };
        let mut kept = Sockets::new();
        for (role, socket) in sockets {
            let at = Bound::of(&socket).context("--takeover: what was handed over is no listener")?;
            if wanted.iter().any(|(of, bound)| *of == role && bound.takes(&at)) {
                kept.push((role, socket));
            } else {
                ensure!(
                    role != Role::Listen,
                    "the listener that this program was given is bound to {at}: say --listen {at}"
                );
            }
        }
        Ok((Given { sockets: kept, handed: true, outlive: false }, Some(before)))
    }

    /// Those of systemd, if it has any for this program. To be called while there is one thread: it takes variables away.
    fn of_systemd(wanted: &Wanted) -> anyhow::Result<Given> {
        let mut all = listenfd::ListenFd::from_env();
        let mut given = Given::default();
        for n in 0..all.len() {
            let socket: OwnedFd = match (all.take_tcp_listener(n), all.take_unix_listener(n)) {
                (Ok(Some(tcp)), _) => tcp.into(),
                (_, Ok(Some(unix))) => unix.into(),
                _ => bail!("what systemd gave (LISTEN_FDS) is no stream socket: it takes ListenStream="),
            };
            let at = Bound::of(&socket)
                .context("what systemd gave (LISTEN_FDS) does not listen: it takes Accept=no")?;
            let role = wanted.iter().find(|(_, bound)| bound.takes(&at)).map(|(role, _)| *role);
            let role = role.with_context(|| {
                let wanted: Vec<String> = wanted.iter().map(|(_, bound)| bound.to_string()).collect();
                format!(
                    "the listener that this program was given is bound to {at}, and this program listens on {}: say \
                     --listen {at}, or change ListenStream=",
                    wanted.join(" and ")
                )
            })?;
            ensure!(
                given.sockets.iter().all(|(of, _)| *of != role),
                "systemd gave two sockets that are bound to {at} (LISTEN_FDS): leave one ListenStream="
            );
            given.sockets.push((role, socket));
        }
        given.outlive = !given.sockets.is_empty();
        Ok(given)
    }

    /// Whether the sockets are there when this program is not.
    pub fn outlive(&self) -> bool {
        self.outlive
    }

    fn take(&mut self, role: Role) -> Option<OwnedFd> {
        let at = self.sockets.iter().position(|(of, _)| *of == role)?;
        Some(self.sockets.swap_remove(at).1)
    }

    /// The TCP listener for `role`, if it is there.
    pub fn tcp(&mut self, role: Role) -> anyhow::Result<Option<TcpListener>> {
        let listener = self.take(role).map(TcpListener::from);
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        Ok(listener)
    }

    /// The listener of the counters, if `flags` ask for it: one that is there, or a new one.
    pub fn metrics(&mut self, flags: &Flags) -> anyhow::Result<Option<TcpListener>> {
        let Some(address) = flags.metrics else { return Ok(None) };
        if let Some(listener) = self.tcp(Role::Metrics)? {
            return Ok(Some(listener));
        }
        let listener = TcpListener::bind(address)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .with_context(|| format!("--metrics: cannot listen on {address}"))?;
        Ok(Some(listener))
    }

    /// The unix listener at `address` for `role`: one that is there, or a new one, which is `user`'s then.
    pub fn unix(&mut self, role: Role, address: &Address, user: Option<&User>) -> anyhow::Result<UnixSocket> {
        if let Some(listener) = self.take(role) {
            let handed = self.handed.then(|| address.clone());
            return Ok(UnixSocket { listener: listener.into(), place: None, handed });
        }
        let (listener, place) = address.bind()?;
        if let (Some(user), Address::Path(path)) = (user, address) {
            user.own(path)?;
        }
        Ok(UnixSocket { listener, place: Some(place), handed: None })
    }
}

/// A unix listener, and whose its file is.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    place: Option<Place>,
    /// Where the file is that comes with it, once its predecessor has gone.
    handed: Option<Address>,
}

impl UnixSocket {
    /// Listens, again where it does already: peers are shown the user and the process that did so last (SO_PEERCRED; unix_listen in
    /// net/unix/af_unix.c). To be called as the user that this program runs as.
    pub fn listen(self) -> anyhow::Result<(UnixListener, Files)> {
        rustix::net::listen(&self.listener, BACKLOG)?;
        self.listener.set_nonblocking(true)?;
        let files = Files { own: Vec::from_iter(self.place), handed: Vec::from_iter(self.handed) };
        Ok((self.listener, files))
    }
}

/// The files of a program's unix sockets. Dropped, those that are its own are removed.
#[derive(Debug, Default)]
pub struct Files {
    own: Vec<Place>,
    handed: Vec<Address>,
}

impl Files {
    pub fn add(&mut self, other: Files) {
        self.own.extend(other.own);
        self.handed.extend(other.handed);
    }

    /// From now on those that came with their sockets are this program's, too: its predecessor has let go.
    pub fn adopt(&mut self) {
        self.own.extend(std::mem::take(&mut self.handed).iter().map(Address::adopt));
    }

    /// They are the successor's.
    pub fn leave(&mut self) {
        std::mem::take(&mut self.own).into_iter().for_each(Place::leave);
    }
}
