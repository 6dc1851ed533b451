//! What the clients of one thread share.

use super::direct::Direct;
use super::pool::Pool;
use super::seats::Seats;
use super::send_lent::Sender;
use super::shelf::Shelf;
use super::tls::Identity;
use super::trouble::Patience;
use crate::counters::Totals;
use crate::http::request::Limits;
use crate::operate::access::AccessLog;
use crate::operate::again::Times;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What the clients of one thread share.
#[derive(Debug)]
pub struct Proxy {
    pub pool: Pool,
    pub totals: Arc<Totals>,
    pub log: AccessLog,
    /// Of all threads.
    pub seats: Arc<Seats>,
    pub direct: Option<Direct>,
    pub sender: Sender,
    /// Of all threads.
    pub shelf: Arc<Shelf>,
    pub identity: Option<Arc<Identity>>,
    pub limits: Limits,
    pub backend_timeout: Duration,
    pub times: watch::Receiver<Times>,
    /// The last exchange with the backend failed, and the operator was told.
    pub ill: Cell<bool>,
    /// True once the proxy is asked to stop.
    pub stop: watch::Receiver<bool>,
}

impl Proxy {
    /// How long what may take, at the moment.
    pub fn times(&self) -> Times {
        *self.times.borrow()
    }

    /// The bounds of an exchange that begins now.
    pub fn patience(&self) -> Patience {
        Patience { backend: self.backend_timeout, client: self.times().send }
    }
}
