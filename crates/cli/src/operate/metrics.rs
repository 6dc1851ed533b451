//! `--metrics ADDR`: the counters for Prometheus (OpenMetrics 1.0, text), and whether the program is well, on an address of their own.

use crate::address::Address;
use crate::counters::{Counters, Totals};
use crate::http::request::{Limits, Method, Request};
use crate::http::response::{Head, page};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tracing::info;

/// Who asks has this long, from the connection to the last byte of the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long that has when the program ends.
const LEAVING: Duration = Duration::from_secs(1);

/// Those that are answered at once, at most; others wait.
const AT_ONCE: usize = 16;

/// What who asks is told of.
struct Told {
    registry: Registry,
    stopped: watch::Receiver<bool>,
}

/// Who answers.
#[derive(Debug)]
pub struct Metrics {
    taking: JoinHandle<()>,
    room: Arc<Semaphore>,
}

impl Metrics {
    /// Takes no more who ask, and waits a moment for those who are being answered. What is left in the queue is for whoever has the
    /// listener, too: a successor, systemd.
    pub async fn leave(self) {
        self.taking.abort();
        let _ = tokio::time::timeout(LEAVING, self.room.acquire_many(AT_ONCE as u32)).await;
    }
}

/// Answers those who come to `listener` from now on, in the runtime of the calling thread. `backend`: whose being there is told, too.
///
/// # Errors
///
/// The runtime cannot watch it.
pub fn open(
    listener: std::net::TcpListener,
    program: &'static str,
    totals: Arc<Totals>,
    stopped: watch::Receiver<bool>,
    backend: Option<Address>,
) -> anyhow::Result<Metrics> {
    let listener = TcpListener::from_std(listener)?;
    let at = listener.local_addr()?;
    let mut registry = Registry::with_labels([("program".into(), program.into())].into_iter());
    let seconds = "From a request's head to the last byte of its answer, in seconds";
    registry.register("onecopy_request_duration_seconds", seconds, totals.durations());
    registry.register_collector(Box::new(Sums { totals, backend }));
    let told = Rc::new(Told { registry, stopped });
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let places = room.clone();
    let taking = tokio::task::spawn_local(async move {
        while let Ok(place) = places.clone().acquire_owned().await {
            let Ok((tcp, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let told = told.clone();
            tokio::task::spawn_local(async move {
                let _ = tokio::time::timeout(PATIENCE, answer(&tcp, &told)).await;
                drop(place);
            });
        }
    });
    info!(target: "onecopy", "metrics on http://{at}/metrics");
    Ok(Metrics { taking, room })
}

async fn answer(tcp: &TcpStream, told: &Told) -> std::io::Result<()> {
    let mut inbox = Vec::new();
    let text = loop {
        let mut room = [0; 1024];
        tcp.readable().await?;
        match tcp.try_read(&mut room) {
            Ok(0) => return Ok(()),
            Ok(n) => inbox.extend_from_slice(&room[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        match Request::parse(&inbox, Limits::default()) {
            Ok(None) => {}
            Ok(Some((request, _))) => break reply(&request, told),
            Err(refusal) => break page(refusal.status, refusal.why, &[], false, false),
        }
    };
    let mut left = text.as_bytes();
    while !left.is_empty() {
        tcp.writable().await?;
        match tcp.try_write(left) {
            Ok(n) => left = &left[n..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn reply(request: &Request<'_>, told: &Told) -> String {
    let bodiless = request.method == Method::Head;
    let body = match request.target.split('?').next() {
        Some("/healthz") if *told.stopped.borrow() => return page(503, "stopping", &[], false, bodiless),
        Some("/healthz") => ("text/plain", "ok\n".to_owned()),
        Some("/metrics") => {
            let mut out = String::new();
            if text::encode(&mut out, &told.registry).is_err() {
                return page(500, "the counters cannot be written", &[], false, bodiless);
            }
            ("application/openmetrics-text; version=1.0.0; charset=utf-8", out)
        }
        _ => return page(404, "here are /metrics and /healthz", &[], false, bodiless),
    };
    let mut head = Head::new(200);
    head.field("Content-Type", body.0).field("Content-Length", body.1.len());
    let text = head.field("Cache-Control", "no-store").close_unless(false).finish();
    if bodiless { text } else { text + &body.1 }
}

/// The sums of the process, read when they are asked for.
#[derive(Debug)]
struct Sums {
    totals: Arc<Totals>,
    backend: Option<Address>,
}

impl Collector for Sums {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let c: Counters = self.totals.sum();
        let plain = [
            ("connections", "Connections that were taken", c.connections),
            ("requests", "Requests that were answered, refusals included", c.requests),
            ("refused", "Requests answered with a status of 400 or above", c.refused),
            ("broken", "Bodies that were broken off", c.broken),
            ("changed", "Bodies broken off because their file was changed", c.changed),
            ("body_bytes", "Bytes of bodies sent", c.body_bytes),
            ("lent", "Bodies lent by the daemon", c.lent),
            ("lent_again", "Bodies sent once more from what had been lent", c.lent_again),
            ("lent_bytes", "Bytes of bodies lent to the proxy", c.lent_bytes),
            ("direct", "Bodies sent by the daemon into a lent client socket", c.direct),
            ("upgraded", "Connections between daemon and proxy over shared memory", c.upgraded),
            (
                "fallbacks",
                "Connections that stay with the kernel although shared memory was wanted",
                c.fallbacks,
            ),
            ("stalls", "Sleeps of the daemon for room in a ring", c.stalls),
            ("cache_hits", "Bodies that lay in the memory cache", c.cache_hits),
            ("cache_fills", "Files read into the memory cache", c.cache_fills),
            ("tls_handshakes", "TLS handshakes completed", c.tls_handshakes),
            ("tls_failures", "TLS handshakes that failed", c.tls_failures),
            ("tls_reload_failures", "Certificates that could not be read again", c.tls_reload_failures),
            ("backend_bad", "Requests whose backend was not there or made no sense", c.backend_bad),
            ("backend_late", "Requests whose backend took too long", c.backend_late),
            ("log_dropped", "Lines of the access log that were left out", c.log_dropped),
        ];
        for (name, help, value) in plain {
            let name = format!("onecopy_{name}");
            let metric = to.encode_descriptor(&name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        let help = "Bytes of bodies by who copied them; what went by reference, the kernel may have copied";
        let mut copies = to.encode_descriptor("onecopy_copied_bytes", help, None, MetricType::Counter)?;
        for (kind, bytes) in [
            ("user-cached", c.user_copied.saturating_sub(c.user_copied_nt)),
            ("user-non-temporal", c.user_copied_nt),
            ("kernel", c.kernel_copied),
            ("referenced", c.referenced),
        ] {
            ConstCounter::new(bytes).encode(copies.encode_family(&[("kind", kind)])?)?;
        }
        if let Some(backend) = &self.backend {
            let help = "Whether somebody listens at the backend's address";
            let up = to.encode_descriptor("onecopy_backend_up", help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::from(backend.probe().is_ok())).encode(up)?;
        }
        Ok(())
    }
}
