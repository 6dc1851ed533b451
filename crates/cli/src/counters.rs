//! What a daemon or proxy did with the bytes it was asked for, in two columns: copied by this program, and
//! copied by the kernel on its behalf.

use serde::Serialize;
use std::fmt;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};

/// Sums since the start. A copy is counted where it happens: a pread is one kernel copy, a send to a socket
/// one, a receive into a buffer one; a splice or a sendfile moves references and counts in `referenced`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Connections taken.
    pub connections: u64,
    /// Requests answered, refusals included.
    pub requests: u64,
    /// Of these, answered with a status of 400 or above.
    pub refused: u64,
    /// Bytes of bodies passed on whole or in part.
    pub body_bytes: u64,
    /// Bytes of bodies copied in user space, by cached or non-temporal stores.
    pub user_copied: u64,
    /// Of these, with non-temporal stores.
    pub user_copied_nt: u64,
    /// Bytes of bodies copied by the kernel at this program's call.
    pub kernel_copied: u64,
    /// Bytes of bodies passed on as references, without a copy.
    pub referenced: u64,
    /// Connections to the other program that run over shared memory.
    pub upgraded: u64,
    /// Bodies broken off: the client or the backend went away, or was too slow.
    pub broken: u64,
    /// Of these, because their file was overwritten or cut short meanwhile.
    pub changed: u64,
    /// Bodies sent by the daemon straight into a lent client socket.
    pub direct: u64,
    /// Bodies that the daemon lent to the proxy instead of sending them.
    pub lent: u64,
    /// Bodies that the proxy sent once more from what had been lent to it, without asking the daemon.
    pub lent_again: u64,
    /// Bodies that came from the memory cache.
    pub cache_hits: u64,
    /// Bytes of bodies that a CPU soon reads, as the proxy knew: to copy them into a client's socket, or to encrypt them.
    pub reader_cpu: u64,
    /// Bytes of bodies that no CPU reads, as the proxy knew: they are passed on by reference.
    pub reader_none: u64,
    /// TLS handshakes that clients completed.
    pub tls_handshakes: u64,
    /// TLS handshakes that failed, were too slow, or were none.
    pub tls_failures: u64,
    /// Times that a certificate could not be read again at SIGHUP: the old one stayed in use.
    pub tls_reload_failures: u64,
    /// Nanoseconds of the daemon's hot-set walks, and cache lines walked: before a body, and right after one.
    pub hot_before_ns: u64,
    /// See `hot_before_ns`.
    pub hot_after_ns: u64,
    /// Lines walked, the same number before and after.
    pub hot_lines: u64,
}

impl Counters {
    /// Counts `bytes` of a body under who was said to read it.
    pub fn told(&mut self, reader: Option<&str>, bytes: u64) {
        match reader {
            Some("no-cpu") => self.reader_none += bytes,
            Some("same-core" | "other-core") => self.reader_cpu += bytes,
            _ => {}
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        let Counters {
            connections,
            requests,
            refused,
            body_bytes,
            user_copied,
            user_copied_nt,
            kernel_copied,
            referenced,
            upgraded,
            broken,
            changed,
            direct,
            lent,
            lent_again,
            cache_hits,
            reader_cpu,
            reader_none,
            tls_handshakes,
            tls_failures,
            tls_reload_failures,
            hot_before_ns,
            hot_after_ns,
            hot_lines,
        } = other;
        self.connections += connections;
        self.requests += requests;
        self.refused += refused;
        self.body_bytes += body_bytes;
        self.user_copied += user_copied;
        self.user_copied_nt += user_copied_nt;
        self.kernel_copied += kernel_copied;
        self.referenced += referenced;
        self.upgraded += upgraded;
        self.broken += broken;
        self.changed += changed;
        self.direct += direct;
        self.lent += lent;
        self.lent_again += lent_again;
        self.cache_hits += cache_hits;
        self.reader_cpu += reader_cpu;
        self.reader_none += reader_none;
        self.tls_handshakes += tls_handshakes;
        self.tls_failures += tls_failures;
        self.tls_reload_failures += tls_reload_failures;
        self.hot_before_ns += hot_before_ns;
        self.hot_after_ns += hot_after_ns;
        self.hot_lines += hot_lines;
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = |bytes: u64| bytes as f64 / self.body_bytes.max(1) as f64;
        write!(
            f,
            "{} requests on {} connections ({} refused, {} broken off), {} body bytes; copies per byte: user {:.2} \
             (non-temporal {:.2}), kernel {:.2}, passed by reference {:.2}; read by a \
             CPU {:.2}, by none {:.2}",
            self.requests,
            self.connections,
            self.refused,
            self.broken,
            self.body_bytes,
            per(self.user_copied),
            per(self.user_copied_nt),
            per(self.kernel_copied),
            per(self.referenced),
            per(self.reader_cpu),
            per(self.reader_none),
        )
    }
}

/// The sums of a whole process. Every request adds once, so a lock is cheap enough.
#[derive(Debug, Default)]
pub struct Totals(Mutex<Counters>);

impl Totals {
    /// Adds what one connection or request did.
    pub fn add(&self, counters: Counters) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += counters;
    }

    /// The sums so far.
    pub fn sum(&self) -> Counters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sums as one JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(&self.sum()).unwrap_or_default()
    }
}
