//! What all connections of the daemon share, and the answer that each request gets from it.

use super::answer::{Answer, answer};
use super::desk::Desk;
use super::lend::Lend;
use super::store::Store;
use crate::counters::Totals;
use crate::http::path::relative;
use crate::http::request::{Method, Request};
use crate::http::response::Head;
use std::time::Duration;

/// What all connections share.
#[derive(Debug)]
pub struct Daemon {
    pub store: Store,
    pub totals: Totals,
    pub desk: Desk,
    pub idle_timeout: Duration,
    pub head_timeout: Duration,
    pub hot_set: Option<usize>,
    pub lend: Lend,
}

impl Daemon {
    /// The answer to one request. The counters are told to whoever can open the socket itself, never to a
    /// request that came through a proxy.
    pub fn reply(&self, request: &Request<'_>, keep: bool) -> Answer {
        let found = answer(request, keep, |target| {
            let path = relative(target)?;
            let found = self.store.find(&path)?;
            Ok((path, found))
        });
        let asked = request.target == "/.onecopy/stats" && request.field("via").is_none();
        if found.status == 404 && asked { self.stats(request, keep) } else { found }
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
