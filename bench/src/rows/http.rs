//! `http`: clients -> proxy -> storage daemon, the application that all of this is for.

use crate::http::servers::{Source, nginx};
use crate::http::session::{Http, Job, KERNEL, MOVED, P50, P99, RATE, Tree, USER, shared};
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
            encrypts (AES-128-GCM, TLS 1.3), the clients decrypt",
    metrics: &[RATE, CPU_PER_GB, P50, P99, USER, KERNEL, MOVED],
    share: 1.0,
    cases,
    workers: &[],
    plot: Plot::Bars,
};

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
    cases
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
    // Gone with the case.
    let tree = shared(move || Tree::make(size, footprint.div_ceil(size)));
    let work = Work { warmup: (4 * size).max(footprint), least: 4 * size, most: 4 << 30, step: size };
    Case {
        name: format!("{from}/{}/{}", size_name(size), if tls { "tls" } else { "plain" }),
        engines: engines.to_vec(),
        baseline,
        reach,
        work,
        open: Box::new(move |context, engine| {
            let job = Job { tree: tree()?, source, hot_set: None, tls, lead_in: true };
            Ok(Box::new(Http::open(context, engine, &job)?))
        }),
    }
}
