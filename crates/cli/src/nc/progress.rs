//! How far a file is, on a terminal.

use super::ends::Source;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// A bar for each direction that has a file. (indicatif draws on standard error, and only on a terminal.)
#[derive(Clone, Debug)]
pub struct Bars {
    pub sent: ProgressBar,
    pub received: ProgressBar,
}

impl Bars {
    /// None of them.
    pub fn hidden() -> Bars {
        Bars { sent: ProgressBar::hidden(), received: ProgressBar::hidden() }
    }

    /// For a file that is sent, and for one that is received.
    pub fn new(source: Option<&Source>, receives: bool) -> Bars {
        let all = MultiProgress::new();
        let mut bars = Bars::hidden();
        if let Some(source) = source {
            bars.sent = match source.len {
                Some(len) => all.add(ProgressBar::new(len)),
                None => all.add(ProgressBar::no_length()),
            };
            style(&bars.sent, "sent", source.len.is_some());
        }
        if receives {
            bars.received = all.add(ProgressBar::no_length());
            style(&bars.received, "received", false);
        }
        bars
    }

    /// They are gone from the screen.
    pub fn clear(&self) {
        self.sent.finish_and_clear();
        self.received.finish_and_clear();
    }
}

fn style(bar: &ProgressBar, what: &'static str, known: bool) {
    let template = match known {
        true => "{msg:8} {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}",
        false => "{msg:8} {bytes}  {bytes_per_sec}  {elapsed}",
    };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
}
