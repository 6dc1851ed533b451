//! TCP: what is said of streams, once more, and what is its own.

mod life;
mod making;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::case::Source::Linux;
use crate::case::{Case, Ctx, Expect};
use crate::impls::{Conn, End, Kind, Listening};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, errno, ok, rx};

/// A case of unix streams, tried with TCP: whatever the kernel's answers is right.
pub fn again(case: &Case) -> Case {
    let expect = if matches!(case.expect, Expect::Same(_)) { Expect::Oracle } else { case.expect };
    let name = format!("tcp/{}", case.name);
    Case { name: name.leak(), expect, ..*case }.of(Kind::Tcp)
}

/// Cases of unix streams that TCP is not asked.
pub const NOT_AGAIN: &[&str] = &[
    // Sockets in a state that neither implementation lets a case hold here.
    "stream.send_unconnected",
    "stream.recv_unconnected",
    "stream.sendto_connected",
    "stream.sendto_unconnected",
    "shutdown.unconnected",
    "poll.unconnected",
    // TCP waits there, the kernel's and ours, which a case cannot.
    "stream.waitall_peek_short",
    // SHUT_RD frees no writer of TCP: the peer does not hear of it.
    "wait.writer_freed_by_shut_rd",
    // How much a buffer holds: TCP's grow while they are used, and each stack counts what it has in its own way.
    "stream.counts_bytes",
    "stream.buffer_doubled",
    "poll.full_half_drained",
    "poll.low_water",
    // What is left unread: unix sockets and TCP of the same kernel differ, and the mirror of a stack's socket is as that of a ring.
    "epoll.edge_partial",
    // Pools are of unix sockets.
    "transfer.loans",
    // The kernel's concurrent sends mix.
    "transfer.no_interleave",
    // The upgrade, and other programs over unix sockets.
    "upgrade.chopped",
    "upgrade.quiet_client",
    "upgrade.quiet_server",
    "upgrade.close_at_once",
    "upgrade.half_close",
    "upgrade.path",
    "interop.std_client",
    "interop.std_server",
    "interop.std_bulk",
    "interop.curl",
    "interop.socat",
    // Credentials and descriptors.
    "ready.credentials",
    "ready.descriptors",
];

const fn same(
    name: &'static str,
    rule: &'static str,
    expect: &'static str,
    run: fn(&Ctx<'_>) -> Outcome,
) -> Case {
    Case::same(name, rule, Linux, expect, run).of(Kind::Tcp)
}

pub const CASES: &[Case] = &[
    same("tcp.refused", "connect() to where nobody listens: ECONNREFUSED", "ECONNREFUSED", making::refused),
    same(
        "tcp.refused_closed",
        "connect() to a listener that was closed: ECONNREFUSED",
        "ECONNREFUSED",
        making::refused_closed,
    ),
    same(
        "tcp.nonblocking_connect",
        "a connect() that does not wait: writable once it is made, and SO_ERROR has none",
        "ok, OUT, none, \"x\"",
        making::nonblocking_connect,
    ),
    same(
        "tcp.nonblocking_refused",
        "a connect() that does not wait, refused: POLLERR, POLLHUP; SO_ERROR says why, once",
        "ok, IN+OUT+RDHUP+HUP+ERR, ECONNREFUSED, none",
        making::nonblocking_refused,
    ),
    same(
        "tcp.nonblocking_refused_recv",
        "a connect() that was refused is told to who receives, once; then there is nothing but the end",
        "ECONNREFUSED, end, EPIPE",
        making::nonblocking_refused_recv,
    ),
    same(
        "tcp.nonblocking_refused_send",
        "a connect() that was refused is told to who sends, once; then EPIPE",
        "ECONNREFUSED, EPIPE",
        making::nonblocking_refused_send,
    ),
    same(
        "tcp.address_in_use",
        "a second listener at an address: EADDRINUSE, until the first is closed",
        "EADDRINUSE, ok",
        making::in_use,
    ),
    same(
        "tcp.address_in_use_connect",
        "bind() to the port of a connection to the same place: EADDRINUSE",
        "EADDRINUSE",
        making::in_use_connect,
    ),
    same(
        "tcp.address_not_ours",
        "a listener at an address of nobody's: EADDRNOTAVAIL",
        "EADDRNOTAVAIL",
        making::not_ours,
    ),
    same(
        "tcp.relisten_after_close",
        "a port whose connections the server closed first is free for a listener at once (SO_REUSEADDR)",
        "ok",
        making::relisten,
    ),
    same(
        "tcp.names",
        "what a client says of itself, its server says of the peer",
        "the same, the server's port",
        making::names,
    ),
    same(
        "tcp.names_after_reset",
        "getpeername() after a reset: ENOTCONN",
        "ENOTCONN",
        making::names_after_reset,
    ),
    same(
        "tcp.accept_empty",
        "accept() with nobody there: EAGAIN; a listener is readable when somebody is",
        "nothing, EAGAIN, IN, ok, nothing",
        making::accept_empty,
    ),
    same(
        "tcp.backlog",
        "a backlog of n takes n + 1 connections before anybody accepts; the next waits, and goes on when there is room",
        "3 made, 1 waits, made",
        making::backlog,
    ),
    same(
        "tcp.accept_order",
        "connections are accepted in the order they were made",
        "0 1 2 3 4",
        making::accept_order,
    ),
    same(
        "tcp.closed_before_accept",
        "a connection whose client has sent and closed can still be accepted",
        "\"bye\", end",
        making::closed_before_accept,
    ),
    same(
        "tcp.reset_before_accept",
        "a connection whose client has reset it can be accepted still, and says so",
        "ok, ECONNRESET",
        making::reset_before_accept,
    ),
    same(
        "tcp.listener_closed_pending",
        "who closes a listener resets what nobody accepted",
        "ECONNRESET",
        making::listener_closed,
    ),
    same(
        "tcp.listener_edge",
        "edge: a listener tells of each connection",
        "IN, nothing, IN",
        making::listener_edge,
    ),
    same(
        "tcp.half_close",
        "SHUT_WR ends one way: the other still carries an answer, then its own end",
        "\"request\", end, 6, \"answer\", end",
        life::half_close,
    ),
    same(
        "tcp.close_unread",
        "close with unread bytes resets: the peer gets ECONNRESET, once",
        "ECONNRESET, end",
        life::close_unread,
    ),
    same(
        "tcp.linger_zero",
        "close with SO_LINGER 0 resets: ECONNRESET once, then the end",
        "IN+OUT+RDHUP+HUP+ERR, ECONNRESET, end, EPIPE",
        life::linger_zero,
    ),
    same(
        "tcp.linger_zero_unread",
        "a reset leaves what was received before it",
        "\"early\", ECONNRESET",
        life::linger_zero_unread,
    ),
    same(
        "tcp.linger_zero_send",
        "a send after a reset: ECONNRESET once, then EPIPE",
        "ECONNRESET, EPIPE",
        life::linger_zero_send,
    ),
    same(
        "tcp.so_error_reset",
        "SO_ERROR after a reset, once; the end stays",
        "ECONNRESET, none, end",
        life::so_error_reset,
    ),
    same(
        "tcp.send_to_closed",
        "a send to who has closed goes out; the answer is a reset, and the next is EPIPE",
        "1, EPIPE, end",
        life::send_to_closed,
    ),
    same(
        "tcp.error_by_send",
        "who sent to a closed peer: SO_ERROR says EPIPE, and poll all there is",
        "IN+OUT+RDHUP+HUP+ERR, EPIPE, IN+OUT+RDHUP+HUP",
        life::error_by_send,
    ),
    same(
        "tcp.peek",
        "PEEK takes nothing and sees what several segments brought",
        "\"abcdef\", 6, \"abcdef\", EAGAIN",
        life::peek,
    ),
    same("tcp.peek_end", "PEEK at the end of a stream", "end, end", life::peek_end),
    same(
        "tcp.trunc",
        "MSG_TRUNC throws away: how many bytes, and none of them is copied",
        "3, untouched, \"def\"",
        life::trunc,
    ),
    same(
        "tcp.trunc_peek",
        "MSG_TRUNC with PEEK says how many, and takes none",
        "3, \"abcdef\"",
        life::trunc_peek,
    ),
    same(
        "tcp.waitall_segments",
        "WAITALL gathers what comes in many segments",
        "5000 bytes",
        life::waitall_segments,
    ),
    same("tcp.waitall_fin", "WAITALL ends with what came before the end", "\"abc\", end", life::waitall_fin),
    same("tcp.rcvtimeo", "SO_RCVTIMEO: EAGAIN, and the connection goes on", "EAGAIN, \"x\"", life::rcvtimeo),
    same(
        "tcp.dontwait_timeo",
        "a receive with DONTWAIT never waits, whatever SO_RCVTIMEO says",
        "EAGAIN",
        life::dontwait_timeo,
    ),
    same(
        "tcp.own_shut_rd",
        "own SHUT_RD: the end at once; what the peer still sends is taken, and can be received",
        "end, 2, IN+OUT+RDHUP, \"hi\", end",
        life::own_shut_rd,
    ),
    same("tcp.own_shut_wr_again", "SHUT_WR twice, and SHUT_RD after it", "ok, ok, ok", life::shut_again),
    same("tcp.shut_after_reset", "shutdown() after a reset: ENOTCONN", "ENOTCONN", life::shut_after_reset),
    same(
        "tcp.shut_both_peer",
        "SHUT_RDWR: the peer reads the end, and its bytes are refused",
        "end, 1, EPIPE",
        life::shut_both_peer,
    ),
    same(
        "tcp.both_shut",
        "both SHUT_WR, one after the other: both hung up",
        "IN+OUT+RDHUP+HUP IN+OUT+RDHUP+HUP",
        life::both_shut,
    ),
    same(
        "tcp.steps_level",
        "readiness after each step of a connection's life",
        "OUT OUT, OUT IN+OUT, OUT OUT, IN+OUT+RDHUP OUT, IN+OUT+RDHUP+HUP IN+OUT+RDHUP+HUP",
        life::steps,
    ),
    same(
        "tcp.steps_edge",
        "edges of each step: bytes, more bytes, the end, the hang-up",
        "OUT, IN+OUT, IN+OUT, IN+OUT+RDHUP, IN+OUT+RDHUP+HUP",
        life::steps_edge,
    ),
    same("tcp.edge_reset", "a reset is an edge", "nothing, IN+RDHUP+HUP+ERR", life::edge_reset),
    same("tcp.unacknowledged", "SIOCOUTQ: none once all is acknowledged", "0, 0", life::unacknowledged),
    same(
        "tcp.large_to_closed_window",
        "what does not fit waits, and arrives when the peer reads, the end behind it",
        "all of it, end",
        life::closed_window,
    ),
];

/// A server's listener, and where it listens.
fn listener(cx: &Ctx<'_>, backlog: u32) -> Result<(Box<dyn Listening>, SocketAddr), Stop> {
    let tcp = cx.tcp()?;
    let listener = tcp.listen_at(SocketAddr::new(tcp.host(), 0), backlog)?;
    let at = listener.address()?;
    Ok((listener, at))
}

/// An address at which nobody listens.
fn nobody(cx: &Ctx<'_>) -> Result<SocketAddr, Stop> {
    Ok(listener(cx, 1)?.1)
}

/// Closes it with a reset.
fn reset(end: Conn) -> Result<(), Stop> {
    Ok(end.set_linger(Some(Duration::ZERO))?)
}

fn recv(end: &dyn End) -> Outcome {
    rx(end, 20, NOW)
}

fn error_of(end: &dyn End) -> Outcome {
    Ok(match end.take_error()? {
        None => "none".to_owned(),
        Some(no) => errno(&io::Error::from_raw_os_error(no)),
    })
}

fn made(answer: io::Result<Conn>) -> Outcome {
    ok(answer.map(drop))
}
