//! What machine this is: printed with each run, because an absolute figure means nothing without it.

use std::time::Instant;

use crate::row::Context;
use crate::words::{number, size_name};
use onecopy::advanced::copy::calibrate::Walk;

/// The machine, as name and value.
#[derive(Clone, Debug)]
pub struct Facts {
    /// In the order they are shown.
    pub lines: Vec<(&'static str, String)>,
    /// A short name for files of records: CPU kind and cores, no host name.
    pub slug: String,
}

/// Gathers the facts; `cheap` leaves out the measured ones.
pub fn gather(context: &Context, cheap: bool) -> Facts {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        cpuinfo
            .lines()
            .find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))
            .and_then(|line| line.split(':').nth(1))
            .map(|value| value.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let ids: Vec<String> = ["cpu family", "model", "stepping"].iter().filter_map(|id| field(id)).collect();
    let virtual_machine = cpuinfo.contains(" hypervisor ");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let uname = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut lines = vec![
        ("CPU", if ids.is_empty() { model.clone() } else { format!("{model} ({})", ids.join("/")) }),
        ("cores", format!("{cores}{}", if virtual_machine { ", virtual machine" } else { "" })),
        ("kernel", format!("{} {} {}", text(uname.sysname()), text(uname.release()), text(uname.machine()))),
    ];
    if !cheap {
        lines.push(("cache steps", latency_steps(context.cpus[0])));
    }
    let [first, second] = context.cpus;
    lines.push((
        "pinning",
        if first == second {
            format!("only CPU {first}: both processes share it, ratios say little")
        } else {
            format!("writer or client on CPU {first}, reader or server on CPU {second}")
        },
    ));
    lines.push(("tune profile", tune_profile()));
    lines.push(("load", load.split(' ').take(3).collect::<Vec<_>>().join(" ") + " before the run"));
    lines.push(("onecopy", env!("CARGO_PKG_VERSION").to_owned()));
    let kind = if ids.is_empty() { "cpu".to_owned() } else { ids.join("-") };
    let vendor = field("vendor_id").unwrap_or_default().to_lowercase().replace("genuine", "");
    let vendor = vendor.trim_start_matches("authentic");
    Facts { lines, slug: format!("{}-{vendor}-{kind}-{cores}c", std::env::consts::ARCH).replace("--", "-") }
}

fn tune_profile() -> String {
    let status = onecopy::advanced::copy::status();
    let notes: String = status.notes.iter().map(|note| format!("; {note}")).collect();
    let long = match status.long_from {
        usize::MAX => String::new(),
        from => format!(", {} from {}", status.long, size_name(from as u64)),
    };
    let (cached, stream) = (status.cached, status.stream);
    format!("{}; kernels {cached}{long} and {stream} (non-temporal){notes}", status.thresholds)
}

/// Whether others want a CPU of this machine while the caller is all of ours that does. What an ended process of ours
/// leaves for the kernel to clear away runs for a moment: only who is there at each of some looks counts.
pub fn others_run() -> bool {
    let seen = |look| {
        std::thread::sleep(std::time::Duration::from_millis(if look == 0 { 0 } else { 2 }));
        running_tasks().is_some_and(|running| running > 1)
    };
    (0..4).all(seen)
}

/// Tasks that run or want to at this moment on the whole machine, the caller included (proc_loadavg(5)).
fn running_tasks() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// Nanoseconds per load over growing footprints, measured because CPUID's sizes may be wrong in a virtual machine.
fn latency_steps(cpu: usize) -> String {
    // On a thread of its own, so that the pinning does not stick to the caller.
    let steps = std::thread::spawn(move || {
        let _ = crate::proc::pin(cpu);
        [16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
            .map(|bytes| (bytes, nanoseconds_per_load(bytes)))
    })
    .join()
    .unwrap_or_default();
    steps.map(|(bytes, ns)| format!("{} {}", size_name(bytes as u64), number(ns))).join(", ") + " ns/load"
}

/// The time of one load in a shuffled walk over `bytes`, one load a cache line.
fn nanoseconds_per_load(bytes: usize) -> f64 {
    let walk = Walk::new(bytes);
    walk.load(walk.lines().min(1 << 20));
    let loads = 200_000;
    let start = Instant::now();
    walk.load(loads);
    start.elapsed().as_nanos() as f64 / loads as f64
}
