//! What all connections of the daemon share, and the answer that each request gets from it.

use super::answer::{Answer, answer};
use super::desk::Desk;
use super::lend::Lend;
use super::store::{NOT_FOUND, Store};
use crate::counters::{Counters, Totals};
use crate::http::path::relative;
use crate::http::request::{Method, Request};
use crate::http::response::Head;
use crate::lessons::Lessons;
use crate::operate::access::AccessLog;
use crate::operate::again::Times;
use std::sync::Arc;
use tokio::sync::watch;

/// What all connections share.
#[derive(Debug)]
pub struct Daemon {
    pub store: Store,
    pub totals: Arc<Totals>,
    pub log: AccessLog,
    pub desk: Desk,
    pub lessons: Lessons,
    pub times: watch::Receiver<Times>,
    pub hot_set: Option<usize>,
    pub lend: Lend,
    /// --stats: the page with the counters.
    pub tells: bool,
}

impl Daemon {
    /// How long what may take, at the moment.
    pub fn times(&self) -> Times {
        *self.times.borrow()
    }

    /// The answer to one request, begun to be counted. What begins with `.onecopy` is no file's name: it is kept for this program's
    /// own pages, of which there is one. It is told to whoever can open the socket itself, and only with --stats, since a proxy
    /// that is not ours opens the socket for everybody and need not say so; to a request that says that it came through one, never.
    pub fn reply(&self, request: &Request<'_>, keep: bool, counters: &mut Counters) -> Answer {
        let path = relative(request.target);
        let asked = matches!(path.as_deref(), Ok(".onecopy/stats"));
        let found = match path {
            Ok(_) if asked && self.tells && request.field("via").is_none() => self.stats(request, keep),
            path => answer(request, keep, |_| {
                let path = path?;
                if path.split('/').next() == Some(".onecopy") {
                    return Err(NOT_FOUND);
                }
                let found = self.store.find(&path, counters)?;
                Ok((path, found))
            }),
        };
        counters.requests += 1;
        counters.refused += u64::from(found.status >= 400);
        let kept = found.object.as_ref().is_some_and(|object| object.memory.is_some());
        // What had to be read first was not there.
        let hit = kept && found.object_bytes() > 0 && counters.cache_fills == 0;
        counters.cache_hits += u64::from(hit);
        found
    }

    fn stats(&self, request: &Request<'_>, keep: bool) -> Answer {
        let body = self.totals.json() + "\n";
        let mut head = Head::new(200);
        head.field("Content-Type", "application/json").field("Content-Length", body.len());
        head.field("Cache-Control", "no-store");
        let text = head.close_unless(keep).finish();
        Answer::text(200, if request.method == Method::Head { text } else { text + &body })
    }
}
