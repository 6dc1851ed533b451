//! What a daemon or proxy did with the bytes it was asked for, in two columns: copied by this program, and
//! copied by the kernel on its behalf.

use prometheus_client::metrics::histogram::Histogram;
use serde::Serialize;
use std::fmt;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Sums since the start. A copy is counted where it happens: a pread is one kernel copy, a pwrite or a send to a socket
/// one, a receive into a buffer one. What went by splice or sendfile counts in `referenced`: whether the kernel copies
/// inside them, it tells nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Connections taken.
    pub connections: u64,
    /// Requests answered, refusals included.
    pub requests: u64,
    /// Of these, answered with a status of 400 or above.
    pub refused: u64,
    /// Bytes of bodies sent, of whole ones and of those broken off.
    pub body_bytes: u64,
    /// Bytes of bodies copied in user space, by cached or non-temporal stores.
    pub user_copied: u64,
    /// Of these, with non-temporal stores.
    pub user_copied_nt: u64,
    /// Bytes of bodies copied by the kernel in this program's calls that copy; twice those that filled the cache (pread, pwrite).
    pub kernel_copied: u64,
    /// Bytes of bodies sent by splice or sendfile. The kernel does not tell whether it copies in there.
    pub referenced: u64,
    /// Connections to the other program that run over shared memory.
    pub upgraded: u64,
    /// Bodies broken off: the client or the backend went away, or was too slow.
    pub broken: u64,
    /// Of these, because their file was overwritten or cut short meanwhile.
    pub changed: u64,
    /// Bodies sent by the daemon straight into a lent client socket.
    pub direct: u64,
    /// Bytes of these bodies; the proxy has them from the daemon, and counts them in `body_bytes`, too.
    pub direct_bytes: u64,
    /// Bodies that the daemon lent to the proxy instead of sending them.
    pub lent: u64,
    /// Bytes of these bodies. What became of them the proxy knows: the daemon has not sent them.
    pub lent_bytes: u64,
    /// Bodies that the proxy sent once more from what had been lent to it, without asking the daemon.
    pub lent_again: u64,
    /// Bodies that lay in the memory cache when they were asked for.
    pub cache_hits: u64,
    /// Files read into the memory cache.
    pub cache_fills: u64,
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
    /// Requests whose backend could not be reached, went away, or sent what made no sense or was not asked for: 502, or a body
    /// broken off.
    pub backend_bad: u64,
    /// Requests whose backend took too long: 504, or a body broken off.
    pub backend_late: u64,
    /// Connections to the other program that stay with the kernel although shared memory was wanted.
    pub fallbacks: u64,
    /// Times that the daemon slept for room in a proxy's ring, in a body.
    pub stalls: u64,
    /// Lines of the access log that were left out.
    pub log_dropped: u64,
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
            direct_bytes,
            lent,
            lent_bytes,
            lent_again,
            cache_hits,
            cache_fills,
            reader_cpu,
            reader_none,
            tls_handshakes,
            tls_failures,
            tls_reload_failures,
            hot_before_ns,
            hot_after_ns,
            hot_lines,
            backend_bad,
            backend_late,
            fallbacks,
            stalls,
            log_dropped,
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
        self.direct_bytes += direct_bytes;
        self.lent += lent;
        self.lent_bytes += lent_bytes;
        self.lent_again += lent_again;
        self.cache_hits += cache_hits;
        self.cache_fills += cache_fills;
        self.reader_cpu += reader_cpu;
        self.reader_none += reader_none;
        self.tls_handshakes += tls_handshakes;
        self.tls_failures += tls_failures;
        self.tls_reload_failures += tls_reload_failures;
        self.hot_before_ns += hot_before_ns;
        self.hot_after_ns += hot_after_ns;
        self.hot_lines += hot_lines;
        self.backend_bad += backend_bad;
        self.backend_late += backend_late;
        self.fallbacks += fallbacks;
        self.stalls += stalls;
        self.log_dropped += log_dropped;
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests on {} connections ({} refused, {} broken off), {} body bytes sent",
            self.requests, self.connections, self.refused, self.broken, self.body_bytes
        )?;
        if self.direct_bytes > 0 {
            write!(f, " ({} of them by the daemon itself)", self.direct_bytes)?;
        }
        if self.lent_bytes > 0 {
            write!(f, ", {} lent for the proxy to send", self.lent_bytes)?;
        }
        let all = self.body_bytes + self.lent_bytes;
        let per = |bytes: u64| bytes as f64 / all.max(1) as f64;
        f.write_str("; copies per byte: ")?;
        if all == 0 {
            f.write_str("no bodies")?;
        } else {
            write!(f, "user {:.2} (non-temporal {:.2}), ", per(self.user_copied), per(self.user_copied_nt))?;
            let (kernel, moved) = (per(self.kernel_copied), per(self.referenced));
            match (self.kernel_copied, self.referenced) {
                (_, 0) => write!(f, "kernel {kernel:.2}")?,
                // A few bytes of heads' company make no known 0.00 of what nobody knows.
                (..) if kernel < 0.005 => write!(f, "kernel not known")?,
                (..) => write!(f, "kernel {kernel:.2} and what is not known")?,
            }
            if self.referenced > 0 {
                write!(f, " (sendfile and splice moved {moved:.2}, and do not tell what they copy)")?;
            }
            write!(f, "; read by a CPU {:.2}, by none {:.2}", per(self.reader_cpu), per(self.reader_none))?;
            match all.saturating_sub(self.reader_cpu + self.reader_none) {
                0 => {}
                unknown => write!(f, ", not known of {:.2}", per(unknown))?,
            }
        }
        if self.cache_fills > 0 {
            write!(f, "; files read into the cache: {}", self.cache_fills)?;
        }
        Ok(())
    }
}

/// The sums of a whole process. Every request adds once, so a lock is cheap enough.
#[derive(Debug)]
pub struct Totals {
    counters: Mutex<Counters>,
    durations: Histogram,
}

/// Upper bounds of the classes of durations, in seconds.
const CLASSES: [f64; 12] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0];

impl Default for Totals {
    fn default() -> Totals {
        Totals { counters: Mutex::default(), durations: Histogram::new(CLASSES) }
    }
}

impl Totals {
    /// Adds what one connection or request did.
    pub fn add(&self, counters: Counters) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) += counters;
    }

    /// Notes how long a request took.
    pub fn took(&self, duration: Duration) {
        self.durations.observe(duration.as_secs_f64());
    }

    /// How long requests took, in seconds.
    pub fn durations(&self) -> Histogram {
        self.durations.clone()
    }

    /// The sums so far.
    pub fn sum(&self) -> Counters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sums as one JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(&self.sum()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(counters: Counters) -> String {
        counters.to_string().split_once("copies per byte: ").unwrap().1.to_owned()
    }

    #[test]
    fn what_nobody_knows_is_not_told_as_nought() {
        let sent = Counters { body_bytes: 1000, reader_cpu: 1000, ..Default::default() };
        let copied = Counters { kernel_copied: 2000, ..sent };
        assert_eq!(
            said(copied),
            "user 0.00 (non-temporal 0.00), kernel 2.00; read by a CPU 1.00, by none 0.00"
        );
        let moved = said(Counters { referenced: 1000, kernel_copied: 3, ..sent });
        assert!(moved.contains("kernel not known (sendfile and splice moved 1.00,"), "{moved}");
        let both = said(Counters { referenced: 500, kernel_copied: 1000, ..sent });
        assert!(
            both.contains("kernel 1.00 and what is not known (sendfile and splice moved 0.50,"),
            "{both}"
        );
        assert_eq!(said(Counters::default()), "no bodies");
    }

    #[test]
    fn bytes_are_told_by_who_sends_them() {
        let lent = Counters { lent_bytes: 100, kernel_copied: 200, cache_fills: 1, ..Default::default() };
        let text = lent.to_string();
        assert!(text.contains("0 body bytes sent, 100 lent for the proxy to send; "), "{text}");
        assert!(text.contains("kernel 2.00;") && text.ends_with("; files read into the cache: 1"), "{text}");
        let direct = Counters { body_bytes: 100, direct_bytes: 100, ..Default::default() }.to_string();
        assert!(direct.contains("100 body bytes sent (100 of them by the daemon itself); "), "{direct}");
        assert!(direct.ends_with("by none 0.00, not known of 1.00"), "{direct}");
    }
}
