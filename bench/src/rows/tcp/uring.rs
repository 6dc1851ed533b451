//! Our sockets, whose bytes the kernel's TCP carries, by io_uring.

use anyhow::{Context as _, Result, ensure};
use onecopy::kernel::ZeroCopy;
use onecopy::tcp::{Algorithm, Stream};
use onecopy::{Stack, Transport};
use onecopy_sys::netns::Namespace;
use serde_json::{Value, json};

use super::super::job::with;
use super::load;
use super::ours::{Ours, pages, wait};
use super::plan::Plan;

/// What all engines of the row have.
const CONGESTION: Algorithm = Algorithm::Cubic;

/// The engine that copies into pages and out of them, which the kernel sends without a copy as long as it does not say that it copied.
pub fn copy(job: &Value) -> Result<Value> {
    engine(job, ZeroCopy::Auto)
}

/// The one that sends pages by reference, always to be sent without a copy, and reads where the bytes lie.
pub fn zero_copy(job: &Value) -> Result<Value> {
    engine(job, ZeroCopy::Always)
}

fn engine(job: &Value, zero_copy: ZeroCopy) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    let namespace = plan.engines.as_deref().context("the kernel has no namespace")?;
    Namespace::open(namespace)?.enter().context("entering the engine's namespace")?;
    let stack = Stack::builder().transport(Transport::Kernel).wait(wait(&plan));
    // A connection that begins with bbr stays paced, whatever it gets later: so it begins with what it is to have.
    let stack = stack.kernel(|config| {
        config.zero_copy = zero_copy;
        config.congestion = Some(CONGESTION);
    });
    let stack = stack.build()?;
    let in_place = zero_copy == ZeroCopy::Always;
    let connect = |stream| -> Result<Ours> {
        let stream = Stream::connect(&stack, plan.address(stream).into()).context("connecting")?;
        // As the peer and the kernel's own engine have them, which have them before they connect.
        stream.set(|settings| {
            settings.send_buffer = Some(2 * plan.buffer as u32);
            settings.receive_buffer = Some(2 * plan.buffer as u32);
        })?;
        let mut told = None;
        stream.set(|settings| told = settings.congestion)?;
        ensure!(told == Some(CONGESTION), "the congestion control is {told:?}");
        let pages = if in_place && plan.verify.is_none() { pages(plan.piece)? } else { Vec::new() };
        Ok(Ours { stream, in_place, pages })
    };
    let ends = (0..plan.streams).map(connect).collect::<Result<Vec<_>>>()?;
    let sockets = ends.iter().map(|end| end.stream.try_clone()).collect::<Result<Vec<_>, _>>()?;
    let figures = load::go(ends, &plan, true)?;
    let bytes =
        sockets.iter().map(|socket| socket.stats()).map(|stats| stats.sent + stats.received).sum::<u64>();
    let counters = stack.link_counters();
    let count = |name: &str| -> Result<u64> {
        let found = counters.iter().find(|(given, _)| *given == name);
        Ok(found.with_context(|| format!("the ring does not count {name}"))?.1)
    };
    let (cqes, copied) = (count("completions")?, count("notifications_copied")?);
    let unknown = count("notifications_unknown")?;
    let says = format!(
        "{}, {} calls of io_uring_enter, {} requests, {cqes} CQEs; {} sends without a copy, of whose {} notifications {copied} said COPIED and {unknown} \
         came stacked behind another one, which says nothing of it",
        CONGESTION.name(),
        count("enters")?,
        count("requests")?,
        count("zero_copy_sends")?,
        count("notifications")?,
    );
    let per_mb = |count: u64| count as f64 / (bytes.max(1) as f64 / 1e6);
    Ok(with(
        figures,
        json!({"cqes": per_mb(cqes), "COPIED": per_mb(copied), "unknown": per_mb(unknown), "says": says}),
    ))
}
