//! One client of the proxy: its requests, in order, each answered before the next is read.

use super::direct::Lent;
use super::peer::{Peer, Refused, Session};
use super::rewrite::{self, Asked, Client, Reply};
use super::shared::Proxy;
use super::shelf::Shelf;
use super::tcp::Tcp;
use super::timeout::within;
use super::trouble::Trouble;
use crate::counters::Counters;
use crate::http::path::relative;
use crate::http::request::{Method, Refusal, Request};
use crate::http::response::page;
use crate::operate::access::Begun;
use crate::ss::visible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// How long, and for how many bytes, a refused client's further input is read away.
const LINGER: (Duration, usize) = (Duration::from_millis(500), 1 << 20);

/// How long, once the proxy is asked to stop, a connection may take to bring its first request.
const FIRST: Duration = Duration::from_secs(2);

/// Whether a connection goes on after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

/// What became of a request, for those who count and for the log.
#[derive(Debug, Default)]
struct Account {
    counters: Counters,
    /// None: nobody here knows it.
    status: Option<u16>,
}

/// Serves one client until it ends.
pub async fn serve(proxy: &Proxy, tcp: Tcp, ip: IpAddr) {
    debug!(target: "onecopy proxy", "a client came from {ip}");
    tcp.set_nodelay(); // MSG_MORE says when more follows
    let Some(identity) = &proxy.identity else { return requests(proxy, &mut Peer::Plain(tcp), ip).await };
    let mut stop = proxy.stop.clone();
    let accepted = tokio::select! {
        accepted = within(proxy.times().head, Session::accept(tcp, identity.settings())) => accepted,
        // Like a client without a request: nothing is in flight yet.
        () = leave(&mut stop, true) => return,
    };
    let (handshakes, session) = match accepted {
        Some(Ok(session)) => (Counters { tls_handshakes: 1, ..Default::default() }, Ok(session)),
        other => (Counters { tls_failures: 1, ..Default::default() }, other.unwrap_or(Err(Refused::Failed))),
    };
    proxy.totals.add(handshakes);
    match session {
        Ok(session) => requests(proxy, &mut Peer::Tls(Box::new(session)), ip).await,
        Err(Refused::Plain(tcp)) => {
            let why = "this port speaks TLS: ask with https://";
            refuse(proxy, &mut Peer::Plain(tcp), ip, b"", Refusal { status: 400, why }).await;
        }
        Err(Refused::Failed) => {}
    }
}

/// Waits until a client without a request is let go: when the proxy is asked to stop, unless its request may be on its way, since
/// it has only just come.
async fn leave(stop: &mut watch::Receiver<bool>, new: bool) {
    let _ = stop.wait_for(|stop| *stop).await;
    if new {
        tokio::time::sleep(FIRST).await;
    }
}

async fn requests(proxy: &Proxy, peer: &mut Peer, ip: IpAddr) {
    let mut inbox = Vec::new();
    let mut heads = Heads::default();
    let mut new = true;
    loop {
        let (request, head) = match next_request(proxy, peer, &mut inbox, std::mem::take(&mut new)).await {
            Ok(Some(length)) => match Request::parse(&inbox[..length], proxy.limits) {
                Ok(Some(parsed)) => parsed,
                _ => return, // it was whole a moment ago
            },
            Ok(None) => return peer.say_goodbye(),
            Err(refusal) => return refuse(proxy, peer, ip, &inbox, refusal).await,
        };
        match answer(proxy, peer, ip, &request, &mut heads).await {
            Ok(Next::Close) => return linger(peer).await,
            Ok(Next::Request) => {}
            // Closing is all that is left to say: the client has a head that promises more.
            Err(()) => return,
        }
        let skip = head as u64 + request.body;
        if skip_body(proxy, peer, &mut inbox, skip).await.is_err() {
            return;
        }
    }
}

#[derive(Default)]
struct Heads {
    to_backend: Vec<u8>,
    to_client: Vec<u8>,
}

/// Reads until a whole head is in the inbox: its length, None when the client is done (or the proxy is), or why
/// the head is refused.
async fn next_request(
    proxy: &Proxy,
    peer: &mut Peer,
    inbox: &mut Vec<u8>,
    new: bool,
) -> Result<Option<usize>, Refusal> {
    let late = Refusal { status: 408, why: "the request took too long to arrive" };
    // A head can only have become whole, or wrong, where a line ended: a client that drips bytes must not make
    // the whole head be read again for each.
    let mut parse = !inbox.is_empty();
    let mut deadline = Instant::now() + proxy.times().head;
    // Absolute: bytes that are not yet a whole TLS record bring nothing into the inbox, however often they come.
    let (mut idle, mut begun) = (Instant::now() + proxy.times().idle, false);
    // How much had come when it was looked at behind the deadline.
    let mut looked = 0;
    loop {
        // Nothing below need ever wait for who sends fast enough, and others want their turn.
        tokio::task::consume_budget().await;
        if parse {
            match Request::parse(inbox, proxy.limits) {
                Ok(Some((_, length))) => return Ok(Some(length)),
                Ok(None) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        let have = inbox.len();
        match peer.take(inbox) {
            Ok(0) => return Ok(None),
            // What has come is not late because this thread had no CPU: only who is waited for can be. (A head has its limit in bytes.)
            Ok(_) => parse = have == 0 || inbox[have..].contains(&b'\n') || inbox.len() > proxy.limits.line,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                parse = false;
                if inbox.is_empty() {
                    *inbox = Vec::new(); // ten thousand idle clients must not hold ten thousand buffers
                    let mut stop = proxy.stop.clone();
                    tokio::select! {
                        ready = tokio::time::timeout_at(idle, peer.readable()) => {
                            if !matches!(ready, Ok(Ok(()))) { return Ok(None) }
                        }
                        () = leave(&mut stop, new) => return Ok(None),
                    }
                    deadline = Instant::now() + proxy.times().head;
                    if !std::mem::replace(&mut begun, true) {
                        idle = idle.max(deadline);
                    }
                } else {
                    if Instant::now() > deadline {
                        if looked == inbox.len() {
                            return Err(late);
                        }
                        // The time may be over before the runtime has looked at the sockets: after SIGCONT it is. Once for what has come, since
                        // records of TLS may bring nothing for ever.
                        looked = inbox.len();
                        tokio::task::yield_now().await;
                    }
                    if let Ok(Err(_)) = tokio::time::timeout_at(deadline, peer.readable()).await {
                        return Ok(None);
                    }
                }
            }
            Err(_) => return Ok(None),
        }
    }
}

async fn answer(
    proxy: &Proxy,
    peer: &mut Peer,
    ip: IpAddr,
    request: &Request<'_>,
    heads: &mut Heads,
) -> Result<Next, ()> {
    // And whether the connection goes on after it.
    let refusal = match (request.unwanted(peer.plain().is_none()), relative(request.target)) {
        (Some(refusal), _) => Some((refusal, false)),
        (None, Err(refusal)) => Some((refusal, true)),
        // The daemon's own pages are for who can open its socket.
        (None, Ok(path)) if path.starts_with(".onecopy/") => {
            Some((Refusal { status: 404, why: "there is no such file" }, true))
        }
        (None, Ok(_)) => None,
    };
    let keep = request.keep && !*proxy.stop.borrow();
    let client = Client { head: request.method == Method::Head, keep, minor: request.minor };
    let begun = Begun::now(Some(ip));
    let mut account = Account { counters: Counters { requests: 1, ..Default::default() }, status: None };
    let result = match refusal {
        Some((Refusal { status, why }, goes_on)) => {
            account.counters.refused = 1;
            account.status = Some(status);
            send_page(proxy, peer, status, why, Client { keep: keep && goes_on, ..client }).await
        }
        None => match exchange(proxy, peer, ip, request, client, heads, &mut account).await {
            Ok(next) => {
                if proxy.ill.replace(false) {
                    info!(target: "onecopy proxy", "the backend answers again");
                }
                Ok(next)
            }
            Err(trouble) => {
                trouble.count(&mut account.counters);
                give_up(proxy, peer, request, client, trouble, &mut account).await
            }
        },
    };
    let Account { mut counters, status } = account;
    counters.broken = u64::from(result.is_err());
    proxy.totals.took(begun.took());
    proxy.log.add(|done| begun.request(request, status, done), &mut counters);
    proxy.totals.add(counters);
    result
}

/// Answers a request that the backend did not answer well, where there is still something to say.
async fn give_up(
    proxy: &Proxy,
    peer: &mut Peer,
    request: &Request<'_>,
    client: Client,
    trouble: Trouble,
    account: &mut Account,
) -> Result<Next, ()> {
    // What is wrong with the backend is for its operator, once, not for each client.
    let (status, why, detail) = match trouble {
        Trouble::Broken => return Err(()),
        Trouble::Cut(why) | Trouble::Stuck(why) => {
            warn!(target: "onecopy proxy", "the backend broke off the body of {}: {why}", visible(request.target));
            return Err(());
        }
        Trouble::Bad(why) => (502, "the backend gave no answer that could be passed on", why),
        Trouble::Gone => (502, "the backend went away without an answer", String::new()),
        Trouble::Full => (503, "too many requests wait for the backend", String::new()),
        Trouble::Busy => (503, "the backend has all the connections that it takes", String::new()),
        Trouble::Late => (504, "the backend took too long", String::new()),
    };
    if !proxy.ill.replace(true) {
        let detail = if detail.is_empty() { why } else { &detail };
        warn!(target: "onecopy proxy", "{status} for {}, and so on: {detail}", visible(request.target));
    }
    account.counters.refused = 1;
    account.status = Some(status);
    send_page(proxy, peer, status, why, client).await
}

/// Asks the backend and passes its answer on. A connection that had been kept and has ended meanwhile is
/// replaced once: GET and HEAD can be asked twice, and nothing of an answer has been seen.
async fn exchange(
    proxy: &Proxy,
    peer: &mut Peer,
    ip: IpAddr,
    request: &Request<'_>,
    mut client: Client,
    heads: &mut Heads,
    account: &mut Account,
) -> Result<Next, Trouble> {
    let Account { counters, status } = account;
    // HTTP/1.0 would need words of its own in a head that the daemon writes.
    let lending = proxy.direct.as_ref().filter(|_| !client.head && client.minor == 1);
    if let (Some(direct), Some(tcp)) = (lending, peer.kernel()) {
        let keep = client.keep && direct.trusted;
        let asked = Asked { client: ip, secure: false, reader: "other-core", lent: false };
        rewrite::request(&mut heads.to_backend, request, asked);
        if !keep {
            let end = heads.to_backend.len() - 2;
            heads.to_backend.truncate(end);
            heads.to_backend.extend_from_slice(b"Connection: close\r\n\r\n");
        }
        match direct.lend(&heads.to_backend, tcp, proxy.patience(), counters).await? {
            Lent::Done => return Ok(if keep { Next::Request } else { Next::Close }),
            Lent::Back => client.keep = keep,
            Lent::Never => {}
        }
    }
    let again = Shelf::serves(request);
    if again
        && let Some(tcp) = peer.plain()
        && let Some(kept) = proxy.shelf.find(request.target)
        && let Some(_seat) = kept.seat(&proxy.seats)
        && let Ok(Some(reply)) = rewrite::reply(&kept.head, client, &mut heads.to_client)
    {
        *status = Some(reply.status);
        counters.lent_again = 1;
        let passed = proxy.sender.pass(&kept.loan, &heads.to_client, tcp, proxy.patience(), counters).await;
        counters.told(Some(kept.loan.reader()), counters.body_bytes);
        passed?;
        return Ok(if client.keep { Next::Request } else { Next::Close });
    }
    let (mut fresh, mut lending) = (false, !client.head);
    let (mut lease, reply, seat) = loop {
        let mut lease = proxy.pool.lease(fresh).await?;
        let may = lending && lease.line.takes_loans(peer);
        let seat = may.then(|| proxy.seats.one_more()).flatten().map(Arc::new);
        let takes = seat.is_some();
        let secure = peer.plain().is_none();
        let asked = Asked { client: ip, secure, reader: lease.line.reader(), lent: takes };
        rewrite::request(&mut heads.to_backend, request, asked);
        let new = !lease.used;
        match lease.line.ask(&heads.to_backend, new, client, &mut heads.to_client, proxy.patience()).await {
            Ok(Reply { lent: Some(_), .. }) if !takes => {
                return Err(Trouble::Bad("the backend lent a body that nobody had asked it to lend".into()));
            }
            // There was a descriptor, and this process could not open it: asked again for the bytes themselves.
            Ok(Reply { lent: Some(_), keep, .. }) if lease.line.lost_loan() => {
                lending = false;
                if keep {
                    lease.keep();
                }
            }
            Ok(reply) => break (lease, reply, seat.filter(|_| reply.lent.is_some())),
            Err(Trouble::Gone) if lease.used && !fresh => fresh = true,
            Err(trouble) => return Err(trouble),
        }
    };
    counters.refused = u64::from(reply.status >= 400);
    *status = Some(reply.status);
    // The upgrade travels with the first request and its answer: a connection is judged by these.
    counters.upgraded = u64::from(!lease.used && lease.line.upgraded());
    counters.fallbacks = u64::from(!lease.used && lease.line.fell_back());
    let (reader, passed) = match (reply.lent, peer.plain(), &seat) {
        (Some(at), Some(tcp), Some(seat)) => {
            let (lent, head) = lease.line.lent()?;
            let loan = proxy.sender.take(lent, at, reply.body)?;
            // A part, or a page that says that there is none, is not what the next one asks for, whoever says so.
            let same =
                again && reply.status == 200 && reply.changed.is_none_or(|changed| loan.is_of(changed));
            let fresh = if same { Duration::from_millis(reply.fresh) } else { Duration::ZERO };
            let kept = proxy.shelf.keep(request.target, loan, head, fresh, seat);
            counters.lent = 1;
            // All that the line had to give is here: a slow client must not keep others from it.
            if reply.keep {
                lease.keep();
            } else {
                drop(lease);
            }
            let passed =
                proxy.sender.pass(&kept.loan, &heads.to_client, tcp, proxy.patience(), counters).await;
            (kept.loan.reader(), passed)
        }
        _ => {
            let passed =
                lease.line.pass(&heads.to_client, reply.body, peer, proxy.patience(), counters).await;
            let reader = lease.line.reader();
            if passed.is_ok() && reply.keep {
                lease.keep();
            }
            (reader, passed)
        }
    };
    counters.told(Some(reader), counters.body_bytes);
    passed?;
    Ok(if client.keep { Next::Request } else { Next::Close })
}

async fn send_page(
    proxy: &Proxy,
    peer: &mut Peer,
    status: u16,
    why: &str,
    client: Client,
) -> Result<Next, ()> {
    let extra = match client {
        Client { keep: true, minor: 0, .. } => vec![("Connection", "keep-alive".to_owned())],
        _ => vec![],
    };
    let text = page(status, why, &extra, client.keep, client.head);
    peer.send_all(text.as_bytes(), false, proxy.patience()).await.map_err(drop)?;
    Ok(if client.keep { Next::Request } else { Next::Close })
}

async fn refuse(proxy: &Proxy, peer: &mut Peer, ip: IpAddr, came: &[u8], refusal: Refusal) {
    let mut counters = Counters { requests: 1, refused: 1, ..Default::default() };
    let begun = Begun::now(Some(ip));
    proxy.log.add(|done| begun.nonsense(came, refusal.status, done), &mut counters);
    proxy.totals.add(counters);
    let client = Client { head: false, keep: false, minor: 1 };
    if send_page(proxy, peer, refusal.status, refusal.why, client).await.is_ok() {
        linger(peer).await;
    }
}

/// Removes a head and its body from the input, reading what of it has not come yet, within the time for a head.
async fn skip_body(proxy: &Proxy, peer: &mut Peer, inbox: &mut Vec<u8>, mut skip: u64) -> io::Result<()> {
    let deadline = Instant::now() + proxy.times().head;
    while skip > inbox.len() as u64 {
        skip -= inbox.len() as u64;
        inbox.clear();
        match peer.take(inbox) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::timeout_at(deadline, peer.readable()).await??;
            }
            Err(error) => return Err(error),
        }
    }
    inbox.drain(..skip as usize);
    Ok(())
}

async fn linger(peer: &mut Peer) {
    let (span, most) = LINGER;
    peer.linger(span, most).await;
}
