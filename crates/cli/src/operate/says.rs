//! What a server says of itself on standard error: lines with a level, and with the time where that is asked for.

use std::io::{self, IsTerminal, Write};
use std::os::linux::fs::MetadataExt;

use clap::ValueEnum;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{self, FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::failure::Usage;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// What ends the program
    Error,
    /// What the operator should mend
    Warn,
    /// What else happens to the program
    Info,
    /// What happens to each connection
    Debug,
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> LevelFilter {
        match level {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        }
    }
}

/// What decides how much is said.
#[derive(Debug)]
pub struct Says(reload::Handle<LevelFilter, Registry>);

impl Says {
    /// Has `tracing` write to standard error from now on.
    ///
    /// # Errors
    ///
    /// ONECOPY_LOG names no level.
    pub fn start(asked: Option<Level>) -> anyhow::Result<Says> {
        let level = match (asked, std::env::var("ONECOPY_LOG")) {
            (Some(level), _) => Some(level),
            (None, Ok(text)) if !text.is_empty() => Some(Level::from_str(&text, true).map_err(|_| {
                Usage(format!("ONECOPY_LOG is {text:?}: it may be error, warn, info or debug"))
            })?),
            (None, _) => None,
        };
        let (filter, handle) = reload::Layer::new(LevelFilter::from(level.unwrap_or(Level::Info)));
        let form = Form { stamps: level.is_some(), journal: is_journal() };
        let lines = fmt::layer().with_ansi(false).event_format(form).with_writer(Tolerant);
        // A second one in a process would be a test's.
        let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
        Ok(Says(handle))
    }

    /// Says so much from now on; whether lines have times stays.
    pub fn set(&self, level: Option<Level>) {
        let _ = self.0.reload(LevelFilter::from(level.unwrap_or(Level::Info))); // its subscriber lives as long as the program
    }
}

/// How a line looks.
struct Form {
    stamps: bool,
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Form
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: fmt::format::Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let level = *event.metadata().level();
        if self.journal {
            // sd-daemon(3): it takes the level from there, and the time it knows.
            let priority = match level {
                tracing::Level::ERROR => 3,
                tracing::Level::WARN => 4,
                tracing::Level::INFO => 6,
                _ => 7,
            };
            write!(writer, "<{priority}>")?;
        } else if self.stamps {
            SystemTime.format_time(&mut writer)?;
            write!(writer, " {level:>5} ")?;
        }
        write!(writer, "{}: ", event.metadata().target())?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Whether standard error is the journal's, as systemd.exec(5) has it: JOURNAL_STREAM is its device and number.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    if io::stderr().is_terminal() {
        return false;
    }
    let stat = std::fs::metadata("/proc/self/fd/2");
    stat.is_ok_and(|stat| named == format!("{}:{}", stat.st_dev(), stat.st_ino()))
}

/// Standard error, whose reader may go away: a daemon outlives it.
struct Tolerant;

impl Write for Tolerant {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().lock().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Tolerant {
    type Writer = Tolerant;

    fn make_writer(&self) -> Tolerant {
        Tolerant
    }
}
