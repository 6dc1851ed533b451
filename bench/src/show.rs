//! The table in the terminal.

use std::io::IsTerminal;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};

use crate::result::{CaseResult, Figure, RowResult, Verdict};
use crate::row::Row;
use crate::runner::Watch;
use crate::words::number;

/// Prints rows as tables, with progress where there is a terminal.
pub struct Terminal {
    bar: Option<ProgressBar>,
}

impl Terminal {
    /// Tables on standard output; progress on standard error if both are terminals.
    pub fn new() -> Terminal {
        let both = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let bar = both.then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Terminal { bar }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| anstream::println!("{line}")),
            None => anstream::println!("{line}"),
        }
    }
}

impl Default for Terminal {
    fn default() -> Self {
        Terminal::new()
    }
}

impl Watch for Terminal {
    fn row(&mut self, row: &Row, cases: usize, rounds: usize, bound: Duration) {
        self.say("");
        self.say(&format!(
            "{}  {cases} cases, {rounds} rounds after a warm-up, at most {} s",
            paint(row.name, AnsiColor::Cyan.on_default().bold()),
            bound.as_secs_f64().ceil()
        ));
        self.say(&format!("  {}", row.about));
        for (name, value) in row.stated {
            self.say(&format!("  {name}: {value}"));
        }
        self.say(&paint(&heading(), Style::new().dimmed()));
    }

    fn step(&mut self, case: &str, engine: &str, done: usize, total: usize) {
        if let Some(bar) = &self.bar {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_message(format!("{case} {engine}"));
        }
    }

    fn case(&mut self, row: &Row, result: &CaseResult) {
        self.say(&lines(row, result).join("\n"));
    }

    fn done(&mut self, _: &Row, result: &RowResult) {
        if let Some(bar) = &self.bar {
            bar.reset();
        }
        for note in &result.notes {
            self.say(&format!("  {} {note}", paint("note", YELLOW)));
        }
        let (met, missed, open) = result.tally();
        let mut words = vec![paint(&format!("{met} reached"), GREEN)];
        if missed > 0 {
            words.push(paint(&format!("{missed} missed"), RED));
        }
        if open > 0 {
            words.push(paint(&format!("{open} without a verdict"), YELLOW));
        }
        if met + missed + open > 0 {
            self.say(&format!("  reach: {}", words.join(", ")));
        }
    }
}

const GREEN: Style = AnsiColor::Green.on_default();
const RED: Style = AnsiColor::Red.on_default();
const YELLOW: Style = AnsiColor::Yellow.on_default();

fn paint(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

const WIDTHS: [usize; 7] = [16, 15, 8, 8, 10, 21, 12];

fn heading() -> String {
    cells(&["case", "engine", "ratio", "metric", "median", "low .. high", "unit"]) + "reach"
}

fn cells(texts: &[&str]) -> String {
    let mut line = String::from("  ");
    for (text, width) in texts.iter().zip(WIDTHS) {
        line.push_str(&format!("{text:<width$} "));
    }
    line
}

fn lines(row: &Row, result: &CaseResult) -> Vec<String> {
    let mut lines = Vec::new();
    for (i, engine) in result.engines.iter().enumerate() {
        let case = if i == 0 { result.case.as_str() } else { "" };
        if let Some(reason) = &engine.reason {
            lines.push(format!(
                "{}{}",
                cells(&[case, engine.engine]),
                paint(&format!("skipped: {reason}"), YELLOW)
            ));
            continue;
        }
        for (j, figure) in engine.figures.iter().enumerate() {
            let names = if j == 0 { [case, engine.engine] } else { ["", ""] };
            let verdicts: Vec<String> = result
                .verdicts
                .iter()
                .filter(|v| v.engine == engine.engine && v.metric == figure.metric.name)
                .map(|v| verdict(v, figure.metric.unit))
                .collect();
            lines.push(line(names, engine.engine == result.baseline, figure) + &verdicts.join("  "));
        }
        if !engine.settings.is_empty() {
            let text: Vec<String> =
                engine.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
            lines.push(paint(&format!("{}{}", cells(&["", ""]), text.join(", ")), Style::new().dimmed()));
        }
    }
    let missing = result.verdicts.iter().filter(|v| v.reached.is_none());
    for v in missing {
        let unit = row.metrics.iter().find(|m| m.name == v.metric).map_or("", |m| m.unit);
        lines.push(format!("{}{}", cells(&[&result.case, v.engine]), verdict(v, unit)));
    }
    lines
}

fn line([case, engine]: [&str; 2], baseline: bool, figure: &Figure) -> String {
    let ratio = match figure.ratio {
        Some(_) if baseline => "base".to_owned(),
        Some(ratio) => format!("{} x", number(ratio)),
        None => "-".to_owned(),
    };
    let summary = &figure.summary;
    cells(&[
        case,
        engine,
        &ratio,
        figure.metric.name,
        &number(summary.median),
        &format!("{} .. {}", number(summary.low), number(summary.high)),
        figure.metric.unit,
    ])
}

/// The demand with a tick, a cross or a question mark, and what was reached.
pub fn verdict(verdict: &Verdict, unit: &str) -> String {
    match verdict.reached {
        Some((_, true)) => paint(&format!("✓ {}", verdict.demand), GREEN),
        Some((reached, false)) => {
            let reached = verdict.reached_in_words(reached, unit);
            paint(&format!("✗ {} ({reached})", verdict.demand), RED)
        }
        None => paint(&format!("? {} ({})", verdict.demand, verdict.open()), YELLOW),
    }
}
