//! One connection of the daemon: requests in, answers out, in order, until someone has enough.

use super::Daemon;
use super::answer::{Answer, answer};
use super::hotset::HotSet;
use super::wire::Wire;
use crate::counters::Counters;
use crate::http::path::relative;
use crate::http::request::{Limits, Method, Refusal, Request};
use crate::http::response::Head;
use std::io;
use std::time::Instant;

/// Bodies of GET and HEAD have no meaning; up to this they are read and dropped, beyond it refused.
pub const MAX_IGNORED_BODY: u64 = 64 << 10;

/// What `serve` returns when a client is done.
type Done = io::Result<()>;

/// Serves one connection until it ends.
pub fn serve(daemon: &Daemon, id: u64, wire: &Wire) -> Done {
    let mut inbox: Vec<u8> = Vec::with_capacity(4 << 10);
    let hot = daemon.hot_set.map(HotSet::new);
    let mut first = true;
    let mut since = Instant::now(); // when the head that is being read began
    loop {
        let limits = Limits::default();
        let (request, head) = match Request::parse(&inbox, limits) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => {
                if inbox.is_empty() {
                    if !daemon.desk.idle(id) {
                        return Ok(()); // shutting down
                    }
                    since = Instant::now();
                } else if since.elapsed() > daemon.head_timeout {
                    return finish(daemon, wire, Refusal { status: 408, why: "the request took too long" });
                }
                if fill(wire, &mut inbox)? == 0 {
                    return Ok(());
                }
                daemon.desk.busy(id);
                continue;
            }
            Err(refusal) => return finish(daemon, wire, refusal),
        };
        if request.body > MAX_IGNORED_BODY {
            return finish(daemon, wire, Refusal { status: 413, why: "GET and HEAD need no body" });
        }
        if request.expects {
            return finish(daemon, wire, Refusal { status: 417, why: "no expectations are met here" });
        }
        let keep = request.keep && !daemon.desk.closing();
        let answer = reply(daemon, &request, keep);
        let reader = request.text("onecopy-reader");
        wire.set_reader(reader);
        let mut counters =
            Counters { requests: 1, refused: u64::from(answer.status >= 400), ..Default::default() };
        let before = hot.as_ref().filter(|_| answer.object_bytes() > 0).map(HotSet::before);
        let result = wire.send(&answer, &mut counters);
        if let (Some(hot), Some(before)) = (&hot, before) {
            hot.after(before, &mut counters);
        }
        counters.told(reader, counters.body_bytes);
        counters.broken = u64::from(result.is_err());
        counters.upgraded = u64::from(std::mem::take(&mut first) && wire.upgraded());
        daemon.totals.add(counters);
        if let Err(error) = result {
            // A peer that went away is its own affair; all else the operator should hear of.
            if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
                eprintln!("onecopy serve: {} was broken off: {error}", request.target);
            }
            return Err(error);
        }
        let mut skip = head + request.body as usize;
        while skip > inbox.len() {
            skip -= inbox.len();
            inbox.clear();
            if fill(wire, &mut inbox)? == 0 {
                return Ok(());
            }
        }
        inbox.drain(..skip);
        if !keep {
            return Ok(());
        }
    }
}

fn fill(wire: &Wire, inbox: &mut Vec<u8>) -> io::Result<usize> {
    let have = inbox.len();
    inbox.resize(have + (4 << 10), 0);
    let got = wire.read(&mut inbox[have..]);
    inbox.truncate(have + got.as_ref().map_or(0, |n| *n));
    got
}

fn finish(daemon: &Daemon, wire: &Wire, refusal: Refusal) -> Done {
    let mut counters = Counters { requests: 1, refused: 1, ..Default::default() };
    let result = wire.send(&Answer::refusal(refusal, false, false), &mut counters);
    daemon.totals.add(counters);
    result
}

/// The answer to one request. The counters are told to whoever can open the socket itself, never to a
/// request that came through a proxy.
pub fn reply(daemon: &Daemon, request: &Request<'_>, keep: bool) -> Answer {
    answer(request, keep, |target| {
        let path = relative(target)?;
        let found = daemon.store.find(&path)?;
        Ok((path, found))
    })
    .or_stats(daemon, request, keep)
}

impl Answer {
    fn or_stats(self, daemon: &Daemon, request: &Request<'_>, keep: bool) -> Answer {
        let asked = request.target == "/.onecopy/stats" && request.field("via").is_none();
        if self.status != 404 || !asked {
            return self;
        }
        let body = daemon.totals.json() + "\n";
        let mut head = Head::new(200);
        head.field("Content-Type", "application/json").field("Content-Length", body.len());
        head.field("Cache-Control", "no-store");
        let text = head.close_unless(keep).finish();
        Answer::text(200, if request.method == Method::Head { text } else { text + &body })
    }
}
