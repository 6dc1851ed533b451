//! The report: one HTML file with everything in it, no script, nothing loaded from elsewhere.

mod plot;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::facts::Facts;
use crate::result::{CaseResult, EngineResult, Figure, RowResult, Verdict};
use crate::row::{Plot, Row};
use crate::words::number;

/// Writes the report of `results` to `path`.
pub fn write(path: &Path, title: &str, facts: &Facts, results: &[(&Row, &RowResult)]) -> Result<()> {
    let html = html(title, facts, results)?;
    std::fs::write(path, html).with_context(|| format!("writing the report to {}", path.display()))
}

/// Fails where [`write()`] would, so that nobody waits for figures that can't be kept. Leaves what is there as it is.
pub fn prepare(path: &Path) -> Result<()> {
    let fresh = !path.exists();
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("the report can't be written to {}", path.display()))?;
    if fresh {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// The report as text.
pub fn html(title: &str, facts: &Facts, results: &[(&Row, &RowResult)]) -> Result<String> {
    let mut page = String::new();
    let title = escape(title);
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>\
         <p class=\"lead\">{} · medians of rounds in which the engines take turns with the same work; \
         a ratio above 1 is better than the baseline, whatever the unit.</p>",
        escape(&jiff::Zoned::now().strftime("%Y-%m-%d %H:%M").to_string())
    )?;
    page.push_str("<dl class=\"facts\">");
    for (name, value) in &facts.lines {
        write!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value))?;
    }
    page.push_str("</dl>");
    if results.len() > 1 {
        page.push_str("<nav>");
        for (row, result) in results {
            write!(page, "<a href=\"#{0}\">{0}</a>{1}", escape(row.name), tally(result))?;
        }
        page.push_str("</nav>");
    }
    for (row, result) in results {
        section(&mut page, row, result)?;
    }
    page.push_str("</main></body></html>\n");
    Ok(page)
}

fn section(page: &mut String, row: &Row, result: &RowResult) -> Result<()> {
    let name = escape(row.name);
    write!(page, "<section id=\"{name}\"><h2>{name} {}</h2><p>{}</p>", tally(result), escape(row.about))?;
    for (name, value) in row.stated {
        write!(page, "<p>{}: {}</p>", escape(name), escape(value))?;
    }
    for note in &result.notes {
        write!(page, "<p class=\"note\">{}</p>", escape(note))?;
    }
    for metric in row.metrics {
        // The main figure always; others only where something is demanded of them.
        let demanded = result
            .cases
            .iter()
            .flat_map(|case| &case.verdicts)
            .any(|v| v.metric == metric.name && v.line.is_some());
        if metric.name != row.metrics[0].name && !demanded {
            continue;
        }
        let caption = format!("{} ({})", metric.name, metric.unit);
        match row.plot {
            Plot::Bars => {
                if let Some(svg) = plot::bars(result, metric.name)? {
                    figure(page, &caption, &svg)?;
                }
            }
            Plot::Lines => {
                for (group, svg) in plot::lines(result, metric.name)? {
                    let caption =
                        if group.is_empty() { caption.clone() } else { format!("{group} · {caption}") };
                    figure(page, &caption, &svg)?;
                }
            }
        }
    }
    page.push_str(
        "<table><thead><tr><th>case<th>engine<th class=n>ratio<th>metric<th class=n>median\
         <th class=n>low .. high<th>unit<th>reach<th>in force</tr></thead><tbody>",
    );
    for case in &result.cases {
        rows_of(page, row, case)?;
    }
    page.push_str("</tbody></table></section>");
    Ok(())
}

fn figure(page: &mut String, caption: &str, svg: &str) -> Result<()> {
    write!(page, "<figure><figcaption>{}</figcaption>{svg}</figure>", escape(caption))?;
    Ok(())
}

fn tally(result: &RowResult) -> String {
    let (met, missed, open) = result.tally();
    let mut text = String::new();
    for (count, class, word) in
        [(met, "met", "reached"), (missed, "missed", "missed"), (open, "open", "without a verdict")]
    {
        if count > 0 {
            let _ = write!(text, "<span class=\"chip {class}\">{count} {word}</span>");
        }
    }
    text
}

fn rows_of(page: &mut String, row: &Row, case: &CaseResult) -> Result<()> {
    let mut first = true;
    for engine in &case.engines {
        let class = if std::mem::take(&mut first) { " class=first" } else { "" };
        if let Some(reason) = &engine.reason {
            write!(
                page,
                "<tr{class}><td>{}<td>{}<td colspan=7 class=skipped>skipped: {}</tr>",
                escape(&case.case),
                name_of(engine.engine),
                escape(reason)
            )?;
            continue;
        }
        for (i, figure) in engine.figures.iter().enumerate() {
            let class = if i == 0 { class } else { "" };
            row_of(page, class, case, engine, figure)?;
        }
    }
    for verdict in case.verdicts.iter().filter(|verdict| verdict.reached.is_none()) {
        let unit =
            row.metrics.iter().find(|metric| metric.name == verdict.metric).map_or("", |metric| metric.unit);
        let (case, engine) = (escape(&case.case), name_of(verdict.engine));
        write!(
            page,
            "<tr><td>{case}<td>{engine}<td colspan=5><td class=reach>{}<td></tr>",
            chip(verdict, unit)
        )?;
    }
    Ok(())
}

fn row_of(
    page: &mut String,
    class: &str,
    case: &CaseResult,
    engine: &EngineResult,
    figure: &Figure,
) -> Result<()> {
    let ratio = match figure.ratio {
        Some(_) if engine.engine == case.baseline => "<span class=soft>base</span>".to_owned(),
        Some(ratio) => format!("<b>{} x</b>", number(ratio)),
        None => "–".to_owned(),
    };
    // Once for the engine, at its first figure.
    let first = engine.figures.first().is_some_and(|f| f.metric.name == figure.metric.name);
    let settings: Vec<String> =
        engine.settings.iter().filter(|_| first).map(|(name, value)| format!("{name} {value}")).collect();
    let unit = figure.metric.unit;
    let chips: Vec<String> = case
        .verdicts
        .iter()
        .filter(|v| v.reached.is_some() && v.engine == engine.engine && v.metric == figure.metric.name)
        .map(|v| chip(v, unit))
        .collect();
    write!(
        page,
        "<tr{class}><td>{}<td>{}<td class=n>{ratio}<td>{}<td class=n>{}<td class=\"n soft\">{} .. {}<td class=soft>{}<td class=reach>{}{}</tr>",
        if class.is_empty() { String::new() } else { escape(&case.case) },
        if first { name_of(engine.engine) } else { String::new() },
        escape(figure.metric.name),
        number(figure.summary.median),
        number(figure.summary.low),
        number(figure.summary.high),
        escape(unit),
        chips.join(" "),
        if first {
            format!("<td class=force rowspan={}>{}", engine.figures.len(), escape(&settings.join(", ")))
        } else {
            String::new()
        }
    )?;
    Ok(())
}

fn name_of(engine: &str) -> String {
    format!("<i style=\"background:{}\"></i>{}", plot::css(engine), escape(engine))
}

fn chip(verdict: &Verdict, unit: &str) -> String {
    let (class, text) = match verdict.reached {
        Some((_, true)) => ("met", format!("✓ {}", verdict.demand)),
        Some((reached, false)) => {
            ("missed", format!("✗ {} ({})", verdict.demand, verdict.reached_in_words(reached, unit)))
        }
        None => ("open", format!("? {} ({})", verdict.demand, verdict.open())),
    };
    format!("<span class=\"chip {class}\">{}</span>", escape(&text))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = include_str!("style.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Metric;
    use crate::stats::Summary;

    const RATE: Metric = Metric { name: "rate", unit: "GB/s", larger: true };
    const ROW: Row = Row {
        name: "demo",
        about: "a < b & c",
        stated: &[("far", "> near")],
        metrics: &[RATE],
        share: 1.0,
        cases: |_| Vec::new(),
        workers: &[],
        plot: Plot::Bars,
    };

    fn engine(name: &'static str, median: f64, ratio: f64) -> EngineResult {
        let summary = Summary { median, low: median * 0.9, high: median * 1.1, rounds: 5 };
        let figure = Figure {
            metric: RATE,
            summary,
            ratio: Some(ratio),
            ratio_spread: Some(Summary { median: ratio, low: ratio, high: ratio, rounds: 5 }),
        };
        EngineResult { engine: name, figures: vec![figure], settings: vec![], reason: None }
    }

    fn result(ratio: f64) -> RowResult {
        let verdict = Verdict {
            engine: "auto",
            metric: "rate",
            demand: ">= 2 x kernel".into(),
            line: Some(2.0),
            reached: Some((ratio, ratio >= 2.0)),
            noise: None,
            lacking: Vec::new(),
        };
        let mut engines = vec![engine("kernel", 1.0, 1.0), engine("auto", ratio, ratio)];
        engines.push(EngineResult {
            engine: "nginx",
            figures: vec![],
            settings: vec![],
            reason: Some("not <installed>".into()),
        });
        let case = CaseResult { case: "8000".into(), baseline: "kernel", engines, verdicts: vec![verdict] };
        RowResult { row: "demo", cases: vec![case], notes: vec![] }
    }

    #[test]
    fn report_shows_winners_losers_and_the_missing() {
        let facts = Facts { lines: vec![("CPU", "x < y".into())], slug: "t".into() };
        for (ratio, chip) in [(3.0, "✓ &gt;= 2 x kernel"), (1.5, "✗ &gt;= 2 x kernel (1.50 x)"), (40.0, "✓")]
        {
            let html = html("t", &facts, &[(&ROW, &result(ratio))]).unwrap();
            assert!(html.contains(chip), "{chip}");
            assert!(html.contains("skipped: not &lt;installed&gt;"));
            assert!(html.contains("<p>far: &gt; near</p>"));
            assert!(
                html.contains("<svg") && html.contains("#CF222E"),
                "the plot has the line that must be reached"
            );
            // A demand may name many rivals: it goes over lines, or the last column lies beyond the page.
            assert!(
                html.contains("<td class=reach><span class=\"chip")
                    && STYLE.contains(".reach { white-space: normal;")
            );
            assert!(!html.contains("<script") && !html.contains("src="), "self-contained");
        }
    }

    #[test]
    fn lines_make_a_plot_for_each_suffix() {
        let mut both = result(3.0);
        both.cases[0].case = "64/hot".into();
        both.cases.push(result(2.0).cases.remove(0));
        both.cases[1].case = "64/cold".into();
        let plots = plot::lines(&both, "rate").unwrap();
        assert_eq!(plots.iter().map(|(group, _)| group.as_str()).collect::<Vec<_>>(), ["hot", "cold"]);
    }
}
