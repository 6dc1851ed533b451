//! What the demo measures, as a row of the bench: the same rounds that take turns, the same verification.

use std::path::PathBuf;
use std::sync::OnceLock;

use onecopy_bench::http::servers::Source;
use onecopy_bench::http::session::{HOT, Http, Job, KERNEL, MOVED, P50, P99, RATE, Tree, USER, shared};
use onecopy_bench::row::{CPU_PER_GB, Case, Plot, Reach, Row, Scale, Work};

/// The row.
pub const ROW: Row = Row {
    name: "demo",
    about: "Four clients that keep their connections get files of 1 MiB through `onecopy proxy` from `onecopy serve`, all \
            of them real processes. kernel: read and write; kernel-splice: the daemon writes, the proxy splices; \
            kernel-sendfile: a file's pages go by reference all along; cached, nt: copied into shared memory, with \
            ordinary stores or non-temporal ones; auto: as it comes, where a body's memory is lent to the proxy; direct: \
            the daemon sends into the client's socket, lent by a proxy that trusts it. hot-set: how much slower the \
            daemon walks over its own 512 KiB right after a body than before it.",
    stated: &[],
    metrics: &[RATE, CPU_PER_GB, P50, P99, USER, KERNEL, MOVED, HOT],
    share: 1.0,
    cases,
    workers: &[],
    plot: Plot::Bars,
};

/// The folder that `--root` names; None: files are made.
static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Size of a file that is made, and of all of them: more than an L2 holds.
const SIZE: u64 = 1 << 20;
const ALL: u64 = 64 << 20;

/// Most bytes of a user's folder that are served.
const MOST: u64 = 256 << 20;

/// Settles what is served, before the row runs.
pub fn choose(root: Option<PathBuf>) -> anyhow::Result<()> {
    if let Some(root) = &root {
        anyhow::ensure!(root.is_dir(), "--root {}: this is not a folder", root.display());
        Tree::of(root, 1)?; // one file will do, and none is told before anything is measured
    }
    ROOT.set(root).map_err(|_| anyhow::anyhow!("the demo runs once"))
}

fn tree() -> anyhow::Result<Tree> {
    match ROOT.get().and_then(Option::as_ref) {
        Some(root) => Tree::of(root, MOST),
        None => Tree::make(SIZE, ALL / SIZE),
    }
}

fn cases(scale: Scale) -> Vec<Case> {
    let case = |name, source, hot_set, engines| case(scale, name, source, hot_set, engines);
    vec![
        case("mem", Source::Memory, None, &["kernel", "kernel-splice", "cached", "nt", "auto"]),
        case("file", Source::File, None, &["kernel", "kernel-splice", "kernel-sendfile", "auto", "direct"]),
        case(
            "hot-set/512K",
            Source::Memory,
            Some(512 << 10),
            &["kernel", "kernel-splice", "cached", "nt", "auto"],
        ),
    ]
}

fn case(scale: Scale, name: &str, source: Source, hot_set: Option<usize>, engines: &[&'static str]) -> Case {
    let tree = shared(tree);
    let reach = match hot_set {
        Some(_) => vec![],
        None => vec![
            Reach::ratio("auto", RATE.name, 1.25, &["kernel-splice"]),
            Reach::ratio("auto", CPU_PER_GB.name, 1.0, &["kernel-splice"]),
        ],
    };
    Case {
        name: name.to_owned(),
        engines: engines.to_vec(),
        baseline: "kernel-splice",
        reach,
        work: Work {
            warmup: if scale == Scale::Full { ALL } else { ALL / 8 },
            least: ALL / 16,
            most: 4 << 30,
            step: SIZE,
        },
        open: Box::new(move |context, engine| {
            let job = Job { tree: tree()?, source, hot_set, tls: false, lead_in: false };
            Ok(Box::new(Http::open(context, engine, &job)?))
        }),
    }
}
