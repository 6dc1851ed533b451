//! How a connection comes to be.

use super::Plan;
use super::target::{Target, resolve};
use super::wire::Wire;
use crate::address::{Address, Place};
use crate::failure::Usage;
use anyhow::Context;
use onecopy::{Carrier, Stack, tcp, unix};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Connects, or waits for who connects; `place` gets a socket's file as soon as there is one.
pub fn open(plan: &Plan, stack: Option<&Stack>, place: impl FnOnce(Place)) -> anyhow::Result<Wire> {
    let limit = plan.args.timeout;
    let wire = match (&plan.target, stack, plan.args.listen) {
        (Target::Unix(address), _, false) => {
            let stream = unix::Stream::connect(address.name()?);
            Wire::Unix(stream.with_context(|| format!("cannot connect to {address}"))?, None)
        }
        (Target::Unix(address), _, true) => {
            let (listener, made) = listen_unix(address)?;
            place(made);
            listening(plan, &address.to_string());
            until_somebody(&listener, limit)?;
            // The file stays until the end: a client looks once more, after its connect, whether the name is still this listener's.
            Wire::Unix(listener.accept()?.0, Some(listener))
        }
        (Target::Net(host, port), None, false) => Wire::Kernel(connect(host, *port, limit)?),
        (Target::Net(host, port), None, true) => {
            let at = &resolve(host, *port)?[..];
            let listener =
                TcpListener::bind(at).with_context(|| format!("cannot listen on {}", plan.target))?;
            listening(plan, &listener.local_addr()?.to_string());
            until_somebody(&listener, limit)?;
            Wire::Kernel(listener.accept()?.0)
        }
        (Target::Net(host, port), Some(stack), false) => {
            let to = of_stack(stack, host, *port)?;
            let made = match limit {
                Some(limit) => tcp::Stream::connect_timeout(stack, to, limit),
                None => tcp::Stream::connect(stack, to),
            };
            Wire::Stack(made.map_err(|error| of_ours(stack, error, &format!("cannot connect to {to}")))?)
        }
        (Target::Net(host, port), Some(stack), true) => {
            let at = of_stack(stack, host, *port)?;
            let listener = tcp::Listener::bind(stack, at)
                .map_err(|error| of_ours(stack, error, &format!("cannot listen on {at}")))?;
            listening(plan, &listener.local_addr()?.to_string());
            listener.set_accept_timeout(limit)?;
            match listener.accept() {
                Ok((stream, _)) => Wire::Stack(stream),
                Err(error) if error.would_block() => return Err(nobody(limit)),
                Err(error) => return Err(error.into()),
            }
        }
    };
    if plan.args.verbose {
        match wire.names() {
            (Some(own), Some(peer)) => tell!("onecopy nc: {own} is connected to {peer}"),
            _ => tell!("onecopy nc: connected by {}", plan.target),
        }
    }
    Ok(wire)
}

fn listening(plan: &Plan, at: &str) {
    if plan.args.verbose {
        tell!("onecopy nc: listening on {at}");
    }
}

fn listen_unix(address: &Address) -> anyhow::Result<(unix::Listener, Place)> {
    address.claim(|| {
        unix::Listener::bind(address.name()?).with_context(|| format!("cannot listen on {address}"))
    })
}

/// Waits until somebody wants to be accepted.
fn until_somebody(listener: impl AsFd, limit: Option<Duration>) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(&listener, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(nobody(limit)),
            done => return done.map(drop).map_err(Into::into),
        }
    }
}

pub fn nobody(limit: Option<Duration>) -> anyhow::Error {
    anyhow::anyhow!(
        "nobody has connected within {:?}; give a longer time with -w, or leave it out",
        limit.unwrap_or_default()
    )
}

/// Connects by the kernel to the first address of `host` that answers.
fn connect(host: &str, port: u16, limit: Option<Duration>) -> anyhow::Result<TcpStream> {
    let mut last = None;
    for to in resolve(host, port)? {
        let made = match limit {
            Some(limit) => TcpStream::connect_timeout(&to, limit),
            None => TcpStream::connect(to),
        };
        match made {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(anyhow::Error::new(error).context(format!("cannot connect to {to}"))),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("{host} has no address; check the name")))
}

/// The address that the stack can have to do with.
pub fn of_stack(stack: &Stack, host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let own = stack.addresses();
    let found = resolve(host, port)?;
    // The kernel has both families.
    let speaks = |to: &&SocketAddr| {
        stack.carrier() == Carrier::Kernel || own.iter().any(|own| own.address().is_ipv4() == to.is_ipv4())
    };
    let unfit =
        || Usage(format!("{host} has no address of the family that the stack has: give it one with --addr"));
    found.iter().find(speaks).copied().ok_or_else(|| unfit().into())
}

/// What our stack says, with this program's flags as the advice where a program's calls are meant.
pub fn of_ours(stack: &Stack, error: onecopy::Error, what: &str) -> anyhow::Error {
    match error.kind() {
        _ if stack.carrier() == Carrier::Kernel => anyhow::Error::new(error).context(what.to_owned()),
        ErrorKind::NetworkUnreachable => {
            anyhow::anyhow!(
                "{what}: no route leads there; name a router of the stack's network with --gateway, or --route"
            )
        }
        ErrorKind::AddrNotAvailable => {
            anyhow::anyhow!(
                "{what}: the stack does not have that address; give it with --addr, or name the port alone"
            )
        }
        _ => anyhow::Error::new(error).context(what.to_owned()),
    }
}
