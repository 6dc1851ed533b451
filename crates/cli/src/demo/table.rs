//! The demo's table: a line for each way, the figures that matter side by side.

use std::fmt::Write;

use onecopy_bench::facts::Facts;
use onecopy_bench::http::session::{HOT, KERNEL, MOVED, P50, P99, RATE, USER};
use onecopy_bench::result::{CaseResult, EngineResult, RowResult};
use onecopy_bench::row::CPU_PER_GB;

/// What an engine is, for people.
fn words(engine: &str) -> &str {
    match engine {
        "kernel" => "kernel, read and write",
        "kernel-splice" => "kernel, write and splice",
        "kernel-sendfile" => "kernel, sendfile and splice",
        "cached" => "onecopy, cached stores",
        "nt" => "onecopy, non-temporal",
        "auto" => "onecopy, auto (lends)",
        "direct" => "onecopy, direct to client",
        other => other,
    }
}

fn heading(case: &str) -> String {
    match case {
        "mem" => "From the daemon's memory".to_owned(),
        "file" => "From files".to_owned(),
        other => other.to_owned(),
    }
}

fn median(engine: &EngineResult, metric: &str) -> Option<f64> {
    engine.figures.iter().find(|f| f.metric.name == metric).map(|f| f.summary.median)
}

/// The kernel's copies as far as they are known: with a question mark, where some are not.
fn kernel_copies(engine: &EngineResult) -> String {
    let moved = median(engine, MOVED.name).is_some_and(|moved| moved > 0.0);
    match median(engine, KERNEL.name) {
        Some(copies) => format!("{copies:.2}{}", if moved { "?" } else { "" }),
        None if moved => "?".to_owned(),
        None => "-".to_owned(),
    }
}

/// The whole text.
pub fn text(facts: &Facts, result: &RowResult) -> String {
    let mut out = String::new();
    for (name, value) in facts.lines.iter().filter(|(name, _)| ["CPU", "cores", "kernel"].contains(name)) {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "{name:>8}  {value}");
    }
    let hot = result.cases.iter().find(|case| case.case.starts_with("hot-set"));
    for case in result.cases.iter().filter(|case| !case.case.starts_with("hot-set")) {
        table(&mut out, case, hot.filter(|_| case.case == "mem"));
    }
    out.push_str(
        "\nMedians of rounds that take turns; bodies verified by checksum before. Copies: for each byte of a body, by\n\
         daemon and proxy, in user space and by the kernel at their call, as they counted them; ?: and what the\n\
         kernel copies inside sendfile and splice, which it does not tell. Hot set: how much slower the daemon walks\n\
         over its own 512 KiB right after a body than before it.\n",
    );
    for note in &result.notes {
        let _ = writeln!(out, "{note}");
    }
    out
}

fn table(out: &mut String, case: &CaseResult, hot: Option<&CaseResult>) {
    let _ = writeln!(
        out,
        "\n{:<28} {:>6} {:>8} {:>9} {:>7} {:>7}   {:>11} {:>8}",
        heading(&case.case),
        "MB/s",
        "ratio",
        "CPU s/GB",
        "p50 ms",
        "p99 ms",
        "user+kernel",
        hot.map_or("", |_| "hot set")
    );
    for engine in &case.engines {
        if let Some(reason) = &engine.reason {
            let _ = writeln!(out, "{:<28} {reason}", words(engine.engine));
            continue;
        }
        let value = |metric: &str, scale: f64, digits: usize| {
            median(engine, metric).map_or("-".to_owned(), |v| format!("{:.digits$}", v * scale))
        };
        let ratio = engine.figures.iter().find(|f| f.metric.name == RATE.name).and_then(|f| f.ratio);
        let ratio = match ratio {
            _ if engine.engine == case.baseline => "base".to_owned(),
            Some(ratio) => format!("{ratio:.2} x"),
            None => "-".to_owned(),
        };
        let slower = hot
            .and_then(|hot| hot.engines.iter().find(|e| e.engine == engine.engine))
            .and_then(|e| median(e, HOT.name))
            .map_or(String::new(), |v| format!("{v:.2} x"));
        let _ = writeln!(
            out,
            "{:<28} {:>6} {ratio:>8} {:>9} {:>7} {:>7}   {:>5}+{:<5} {slower:>8}",
            words(engine.engine),
            value(RATE.name, 1000.0, 0),
            value(CPU_PER_GB.name, 1.0, 3),
            value(P50.name, 1.0, 2),
            value(P99.name, 1.0, 2),
            value(USER.name, 1.0, 2),
            kernel_copies(engine),
        );
    }
}
