//! One connection of the daemon: requests in, answers out, in order, until someone has enough.

use super::answer::Answer;
use super::daemon::Daemon;
use super::hotset::HotSet;
use super::lend::Lend;
use super::store::has_changed;
use super::wire::Wire;
use crate::counters::Counters;
use crate::http::request::{Limits, Refusal, Request};
use crate::operate::access::Begun;
use crate::ss::visible;
use std::io;
use std::time::Instant;
use tracing::{debug, warn};

/// What `serve` returns when a client is done.
type Done = io::Result<()>;

/// Serves one connection until it ends.
pub fn serve(daemon: &Daemon, id: u64, wire: &Wire) -> Done {
    debug!(target: "onecopy serve", "connection {id} came");
    let mut inbox: Vec<u8> = Vec::with_capacity(4 << 10);
    let hot = daemon.hot_set.map(HotSet::new);
    let mut upgraded = false; // counted, which it is behind a first answer at the earliest
    let lend = if wire.peer_is_same_user() { daemon.lend } else { Lend::Never };
    let late = Refusal { status: 408, why: "the request took too long" };
    let mut deadline = None; // of the request that is being read
    loop {
        let (request, head) = match Request::parse(&inbox, Limits::BACKEND) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => {
                if inbox.is_empty() && !daemon.desk.idle(id) {
                    return Ok(()); // shutting down
                }
                match fill(daemon, wire, &mut inbox, &mut deadline) {
                    Ok(0) => return Ok(()),
                    Ok(_) => daemon.desk.busy(id),
                    Err(error) if is_late(&error) && !inbox.is_empty() => {
                        return finish(daemon, wire, &inbox, late);
                    }
                    Err(error) => return Err(error),
                }
                continue;
            }
            Err(refusal) => return finish(daemon, wire, &inbox, refusal),
        };
        if let Some(refusal) = request.unwanted(false) {
            return finish(daemon, wire, &inbox, refusal);
        }
        let begun = Begun::now(None);
        let keep = request.keep && !daemon.desk.closing();
        let mut counters = Counters::default();
        let answer = daemon.reply(&request, keep, &mut counters);
        let reader = request.text("onecopy-reader");
        wire.set_reader(reader);
        let before = hot.as_ref().filter(|_| answer.object_bytes() > 0).map(HotSet::before);
        let lent = lend.offer(wire, &request, &answer, &mut counters);
        // How what is lent goes on is the proxy's affair.
        let reader = if lent.is_some() { None } else { reader };
        let result = lent.unwrap_or_else(|| wire.send(&answer, &mut counters));
        if let (Some(hot), Some(before)) = (&hot, before) {
            hot.after(before, &mut counters);
        }
        counters.told(reader, counters.body_bytes);
        counters.broken = u64::from(result.is_err());
        counters.changed = u64::from(result.as_ref().is_err_and(has_changed));
        counters.upgraded = u64::from(!upgraded && wire.upgraded());
        upgraded |= counters.upgraded > 0;
        daemon.totals.took(begun.took());
        daemon.log.add(|done| begun.request(&request, Some(answer.status), done), &mut counters);
        daemon.totals.add(counters);
        if let Err(error) = result {
            // A peer that went away is its own affair; all else the operator should hear of.
            if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
                warn!(target: "onecopy serve", "{} was broken off: {error}", visible(request.target));
            }
            return Err(error);
        }
        let mut skip = head + request.body as usize;
        while skip > inbox.len() {
            skip -= inbox.len();
            inbox.clear();
            if fill(daemon, wire, &mut inbox, &mut deadline)? == 0 {
                return Ok(());
            }
        }
        inbox.drain(..skip);
        if deadline.take().is_some() {
            wire.set_read_timeout(daemon.times().idle)?;
        }
        if !keep {
            return Ok(());
        }
    }
}

/// Reads more of a request: its first bytes within the time that a connection may be idle, and all the rest within the
/// time for a head, whether it drips or does not come at all.
fn fill(
    daemon: &Daemon,
    wire: &Wire,
    inbox: &mut Vec<u8>,
    deadline: &mut Option<Instant>,
) -> io::Result<usize> {
    let have = inbox.len();
    if have > 0 || deadline.is_some() {
        let now = Instant::now();
        let left = deadline.get_or_insert(now + daemon.times().head).saturating_duration_since(now);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        wire.set_read_timeout(left)?;
    }
    inbox.resize(have + (4 << 10), 0);
    let got = wire.read(&mut inbox[have..]);
    inbox.truncate(have + got.as_ref().map_or(0, |n| *n));
    got
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn finish(daemon: &Daemon, wire: &Wire, came: &[u8], refusal: Refusal) -> Done {
    let begun = Begun::now(None);
    let mut counters = Counters { requests: 1, refused: 1, ..Default::default() };
    let result = wire.send(&Answer::refusal(refusal, false, false), &mut counters);
    daemon.log.add(|done| begun.nonsense(came, refusal.status, done), &mut counters);
    daemon.totals.add(counters);
    result
}
