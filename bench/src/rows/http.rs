//! `http`: clients -> proxy -> storage daemon, the application that all of this is for.

use crate::http::servers::{Source, nginx};
use crate::http::session::{EACH, Http, Job, KERNEL, MOVED, P50, P99, RATE, Tree, USER, shared};
use crate::row::{CPU_PER_GB, Case, Plot, Reach, Row, Scale, Work};
use crate::words::size_name;

/// The row.
pub const ROW: Row = Row {
    name: "http",
    about: "4 kept connections get objects through a proxy from a storage daemon; the clients copy the bodies out. Each \
            round begins with a request for every object that does not count: an engine has stood still while others had \
            their turns, for longer than what it keeps is kept, and a server at work does not. \
            nginx: nginx in front of nginx (files) or of our daemon's memory; kernel: read and write; kernel-splice: \
            the daemon writes, the proxy splices; kernel-sendfile: the daemon sends file pages by reference, too; \
            cached, nt: copied into shared memory; auto: as it comes, where a body is lent to the proxy by its \
            descriptor; lend-sendfile, lend-splice: such a body sent by these calls, whatever auto would choose; direct: \
            the daemon sends into the client's socket, lent by a proxy that trusts it. Cases named tls: the proxy \
            encrypts (AES-128-GCM, TLS 1.3), the clients decrypt. The case named log: what the access log of the proxy costs: log \
            writes it in its combined form, log-json as JSON, auto not at all; nginx-log is nginx with its own, gathered too",
    stated: &[],
    metrics: &[RATE, CPU_PER_GB, EACH, P50, P99, USER, KERNEL, MOVED],
    share: 1.0,
    cases,
    workers: &[],
    plot: Plot::Bars,
};

/// What a request may cost with a line in the log, against one without.
const LOG: f64 = 1.15;

fn cases(scale: Scale) -> Vec<Case> {
    let sizes: &[u64] = if scale == Scale::Smoke { &[64 << 10] } else { &[64 << 10, 1 << 20, 16 << 20] };
    let footprint = footprint(scale);
    let mut cases = Vec::new();
    for source in [Source::File, Source::Memory] {
        for &size in sizes {
            cases.push(case(source, size, footprint, false));
        }
    }
    cases.push(case(Source::Memory, if scale == Scale::Smoke { 64 << 10 } else { 1 << 20 }, footprint, true));
    cases.push(log(footprint));
    cases
}

/// What a line for each request costs, where requests are short.
fn log(footprint: u64) -> Case {
    let engines = &["auto", "log", "log-json", "nginx", "nginx-log"];
    Case {
        engines: engines.to_vec(),
        baseline: "auto",
        reach: ["log", "log-json"].map(|log| Reach::at_most_times(log, EACH.name, LOG, "auto", 0.0)).into(),
        ..named("mem/64K/log", (Source::Memory, 64 << 10, footprint, false))
    }
}

/// As many bytes of objects as no L2 holds: what is served is not what was served just before.
pub fn footprint(scale: Scale) -> u64 {
    if scale == Scale::Smoke { 1 << 20 } else { 64 << 20 }
}

/// A case of this row, or one that another row has its own engines for.
pub fn case(source: Source, size: u64, footprint: u64, tls: bool) -> Case {
    let (from, engines): (_, &[&'static str]) = match source {
        // What is encrypted is neither spliced nor written by the daemon itself.
        Source::Memory if tls => ("mem", &["nginx", "kernel", "cached", "nt", "auto"]),
        Source::File => (
            "file",
            &[
                "nginx",
                "kernel",
                "kernel-splice",
                "kernel-sendfile",
                "lend-sendfile",
                "lend-splice",
                "auto",
                "direct",
            ],
        ),
        Source::Memory => (
            "mem",
            &[
                "nginx",
                "kernel",
                "kernel-splice",
                "cached",
                "nt",
                "lend-sendfile",
                "lend-splice",
                "auto",
                "direct",
            ],
        ),
    };
    let kernel = if tls { "kernel" } else { "kernel-splice" };
    let baseline = if nginx().is_some() { "nginx" } else { kernel };
    // Of small objects the cost is TCP's, whoever sends them. (And large files nginx sends from the page cache, too.)
    let against_nginx = match (size >> 20, source) {
        (0, _) => None,
        (16.., Source::File) => Some(1.2),
        _ => Some(1.44),
    };
    let mut reach: Vec<Reach> =
        against_nginx.iter().map(|&times| Reach::ratio("auto", RATE.name, times, &["nginx"])).collect();
    // Whatever suits best here (`direct`, of small objects) is not to be better by more than that.
    let others: Vec<&'static str> = engines.iter().copied().filter(|engine| *engine != "auto").collect();
    reach.extend([
        Reach::ratio("auto", RATE.name, 0.95, &others),
        Reach::ratio("auto", P99.name, 1.0, &["nginx"]),
        Reach::ratio("auto", CPU_PER_GB.name, 1.0, &["nginx", kernel]),
    ]);
    let name = format!("{from}/{}/{}", size_name(size), if tls { "tls" } else { "plain" });
    Case { engines: engines.to_vec(), baseline, reach, ..named(&name, (source, size, footprint, tls)) }
}

/// A case that has its servers, and no engines yet.
fn named(name: &str, (source, size, footprint, tls): (Source, u64, u64, bool)) -> Case {
    // Gone with the case.
    let tree = shared(move || Tree::make(size, footprint.div_ceil(size)));
    Case {
        name: name.to_owned(),
        engines: Vec::new(),
        baseline: "auto",
        reach: Vec::new(),
        work: Work { warmup: (4 * size).max(footprint), least: 4 * size, most: 4 << 30, step: size },
        open: Box::new(move |context, engine| {
            let job = Job { tree: tree()?, source, hot_set: None, tls, lead_in: true };
            Ok(Box::new(Http::open(context, engine, &job)?))
        }),
    }
}
