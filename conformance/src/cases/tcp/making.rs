//! How connections begin: who listens, who is refused, who is accepted.

use std::net::SocketAddr;

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;

use super::{error_of, listener, made, nobody, recv, reset};
use crate::case::Ctx;
use crate::impls::Conn;
use crate::stop::{Outcome, Stop};
use crate::tools::{Epoll, ok, poll, poll_now, said, tx};

pub fn refused(cx: &Ctx<'_>) -> Outcome {
    made(cx.tcp()?.connect_to(nobody(cx)?))
}

pub fn refused_closed(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 4)?;
    drop((cx.tcp()?.connect_to(at)?, server.accept()?));
    drop(server);
    made(cx.tcp()?.connect_to(at))
}

/// Begins to connect to `at`: what that said, and the socket.
fn begin(cx: &Ctx<'_>, at: SocketAddr) -> Result<(String, Conn), Stop> {
    let (begun, client) = cx.tcp()?.begin(at);
    Ok((ok(begun)?, client.ok_or_else(|| Stop::broken("no socket"))?))
}

pub fn nonblocking_connect(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 4)?;
    let (begun, client) = begin(cx, at)?;
    let polled = poll_now(&*client)?;
    let error = error_of(&*client)?;
    tx(&*client, b"x")?;
    Ok(format!("{begun}, {polled}, {error}, {}", recv(&*server.accept()?)?))
}

pub fn nonblocking_refused(cx: &Ctx<'_>) -> Outcome {
    let (begun, client) = begin(cx, nobody(cx)?)?;
    let polled = poll_now(&*client)?;
    Ok(format!("{begun}, {polled}, {}, {}", error_of(&*client)?, error_of(&*client)?))
}

pub fn nonblocking_refused_recv(cx: &Ctx<'_>) -> Outcome {
    let (_, client) = begin(cx, nobody(cx)?)?;
    Ok(format!("{}, {}, {}", recv(&*client)?, recv(&*client)?, tx(&*client, b"x")?))
}

pub fn nonblocking_refused_send(cx: &Ctx<'_>) -> Outcome {
    let (_, client) = begin(cx, nobody(cx)?)?;
    Ok(format!("{}, {}", tx(&*client, b"x")?, tx(&*client, b"x")?))
}

pub fn in_use(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 4)?;
    let second = ok(cx.tcp()?.listen_at(at, 4).map(drop))?;
    drop(server);
    Ok(format!("{second}, {}", ok(cx.tcp()?.listen_at(at, 4).map(drop))?))
}

pub fn in_use_connect(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 4)?;
    let client = cx.tcp()?.connect_to(at)?;
    let _accepted = server.accept()?;
    made(cx.tcp()?.connect_from(client.addresses()?.0, at))
}

pub fn not_ours(cx: &Ctx<'_>) -> Outcome {
    // (192.0.2.0/24 is for documents: RFC 5737.)
    ok(cx.tcp()?.listen_at(SocketAddr::from(([192, 0, 2, 7], 0)), 4).map(drop))
}

pub fn relisten(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 4)?;
    let client = cx.tcp()?.connect_to(at)?;
    drop(server.accept()?);
    drop((client, server));
    ok(cx.tcp()?.listen_at(at, 4).map(drop))
}

pub fn names(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 4)?;
    let client = cx.tcp()?.connect_to(at)?;
    let accepted = server.accept()?;
    let ((from, to), (local, peer)) = (client.addresses()?, accepted.addresses()?);
    let same = if (from, to) == (peer, local) { "the same" } else { "others" };
    Ok(format!("{same}, {}", if to == at { "the server's port" } else { "another port" }))
}

pub fn names_after_reset(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    reset(b)?;
    said(a.addresses().map(|(_, peer)| peer))
}

pub fn accept_empty(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 4)?;
    server.set_nonblocking(true)?;
    let polled = || poll(server.fd(), PollFlags::IN | PollFlags::OUT, 0);
    let before = format!("{}, {}", polled()?, made(server.accept())?);
    let _client = cx.tcp()?.connect_to(at)?;
    Ok(format!("{before}, {}, {}, {}", polled()?, made(server.accept())?, polled()?))
}

pub fn backlog(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 2)?;
    let clients = (0..4).map(|_| Ok(begin(cx, at)?.1)).collect::<Result<Vec<Conn>, Stop>>()?;
    let mut made = 0;
    for client in &clients {
        made += usize::from(poll_now(&**client)? == "OUT");
    }
    let before = format!("{made} made, {} waits", clients.len() - made);
    let _accepted = server.accept()?;
    // (Its SYN is sent again after a second.)
    let last = clients.last().ok_or_else(|| Stop::broken("no client"))?;
    let then = poll(last.fd(), PollFlags::OUT, 20_000)?;
    Ok(format!("{before}, {}", if then == "OUT" { "made" } else { &then }))
}

pub fn accept_order(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 8)?;
    let connect = |_| Ok(cx.tcp()?.connect_to(at)?);
    let clients = (0..5).map(connect).collect::<Result<Vec<Conn>, Stop>>()?;
    let mut order = Vec::new();
    for _ in &clients {
        let peer = server.accept()?.addresses()?.1;
        for (index, client) in clients.iter().enumerate() {
            if client.addresses().is_ok_and(|(local, _)| local == peer) {
                order.push(index.to_string());
            }
        }
    }
    Ok(order.join(" "))
}

pub fn closed_before_accept(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 8)?;
    let client = cx.tcp()?.connect_to(at)?;
    tx(&*client, b"bye")?;
    drop(client);
    let accepted = server.accept()?;
    Ok(format!("{}, {}", recv(&*accepted)?, recv(&*accepted)?))
}

pub fn reset_before_accept(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 8)?;
    reset(cx.tcp()?.connect_to(at)?)?;
    server.set_nonblocking(true)?;
    match server.accept() {
        Ok(accepted) => Ok(format!("ok, {}", recv(&*accepted)?)),
        Err(error) => said::<&str>(Err(error)),
    }
}

pub fn listener_closed(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 8)?;
    let client = cx.tcp()?.connect_to(at)?;
    drop(server);
    recv(&*client)
}

pub fn listener_edge(cx: &Ctx<'_>) -> Outcome {
    let (server, at) = listener(cx, 8)?;
    let ep = Epoll::of(server.fd(), EventFlags::IN | EventFlags::ET)?;
    let _first = cx.tcp()?.connect_to(at)?;
    let told = format!("{}, {}", ep.wait(0)?, ep.wait(0)?);
    let _second = cx.tcp()?.connect_to(at)?;
    Ok(format!("{told}, {}", ep.wait(0)?))
}
