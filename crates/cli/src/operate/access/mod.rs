//! The access log: a line for each request. Who serves hands an entry over and goes on; a thread of its own makes the line of it and
//! writes it. What it cannot keep up with is left out and counted, since a slow disk must not slow the requests.

mod entry;
mod journal;
mod output;

pub use entry::{Begun, Entry, Format};
pub use output::Destination;

use crate::counters::{Counters, Totals};
use anyhow::Context;
use output::Output;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Entries that wait to be written, at most.
const WAITING: usize = 4096;

/// Bytes that are written at once.
const BATCH: usize = 64 << 10;

/// What is left out is told no more often than this.
const TELL: Duration = Duration::from_secs(10);

/// How long the end of a program waits for its last lines.
const LAST: Duration = Duration::from_secs(1);

/// Where it goes, and in which form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub to: Destination,
    pub format: Format,
}

/// What the writer is told.
#[derive(Debug)]
enum Message {
    Entry(Box<Entry>),
    Again(Setup),
    End(std::sync::mpsc::Sender<()>),
}

/// Where entries are handed over, if there is a log.
#[derive(Clone, Debug, Default)]
pub struct AccessLog(Option<SyncSender<Message>>);

impl AccessLog {
    /// Opens it, and starts its writer, which counts what it leaves out in `totals`.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn open(setup: Option<Setup>, totals: Arc<Totals>) -> anyhow::Result<AccessLog> {
        let Some(setup) = setup else { return Ok(AccessLog::default()) };
        let output = Output::open(&setup.to)?;
        let (to, from) = sync_channel(WAITING);
        let writer =
            Writer { setup, output, totals, batch: Vec::new(), lines: 0, told: (0, None), ill: false };
        let run = move || writer.run(&from);
        std::thread::Builder::new().name("access-log".into()).spawn(run).context("cannot start a thread")?;
        Ok(AccessLog(Some(to)))
    }

    /// Hands an entry over, if anybody wants it. Never waits.
    pub fn add(&self, entry: impl FnOnce(&Counters) -> Entry, counters: &mut Counters) {
        let Some(to) = &self.0 else { return };
        if to.try_send(Message::Entry(Box::new(entry(counters)))).is_err() {
            counters.log_dropped += 1;
        }
    }

    /// Opens it once more, as `setup` says, behind what was handed over before. Waits for the writer.
    pub fn again(&self, setup: Setup) {
        if let Some(to) = &self.0 {
            let _ = to.send(Message::Again(setup)); // a writer that died has said so
        }
    }

    /// Waits until what was handed over is written, but not for long.
    pub fn finish(&self) {
        let Some(to) = &self.0 else { return };
        let (done, finished) = channel();
        let (mut message, begun) = (Message::End(done), Instant::now());
        while let Err(TrySendError::Full(back)) = to.try_send(message) {
            if begun.elapsed() >= LAST {
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = finished.recv_timeout(LAST.saturating_sub(begun.elapsed()));
    }
}

/// Who writes.
struct Writer {
    setup: Setup,
    output: Output,
    totals: Arc<Totals>,
    batch: Vec<u8>,
    lines: u64,
    /// How many were left out when that was told, and when.
    told: (u64, Option<Instant>),
    /// The last write failed, and the operator was told.
    ill: bool,
}

impl Writer {
    fn run(mut self, from: &Receiver<Message>) {
        loop {
            let message = match from.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Empty) => {
                    self.flush();
                    self.tell(false);
                    let Ok(message) = from.recv() else { return };
                    message
                }
                Err(TryRecvError::Disconnected) => break,
            };
            match message {
                Message::Entry(entry) => {
                    entry.write(self.setup.format, &mut self.batch);
                    self.lines += 1;
                    if self.batch.len() >= BATCH || self.output.takes_one() {
                        self.flush();
                    }
                }
                Message::Again(setup) => self.again(setup),
                Message::End(done) => {
                    self.flush();
                    self.tell(true);
                    let _ = done.send(());
                }
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if self.lines == 0 {
            return;
        }
        let lines = std::mem::take(&mut self.lines);
        match self.output.write(&self.batch) {
            Ok(()) if std::mem::take(&mut self.ill) => {
                info!(target: "onecopy", "the access log is written again")
            }
            Ok(()) => {}
            Err(why) => {
                self.totals.add(Counters { log_dropped: lines, ..Default::default() });
                if !std::mem::replace(&mut self.ill, true) {
                    warn!(target: "onecopy", "the access log {} cannot be written, and its lines are left out: {why}", self.setup.to);
                }
            }
        }
        self.batch.clear();
    }

    fn again(&mut self, setup: Setup) {
        self.flush();
        match Output::open(&setup.to) {
            Ok(output) => {
                (self.output, self.setup, self.ill) = (output, setup, false);
                info!(target: "onecopy", "opened the access log {} again", self.setup.to);
            }
            Err(why) => warn!(target: "onecopy", "goes on with the access log that it has: {why:#}"),
        }
    }

    fn tell(&mut self, now: bool) {
        let dropped = self.totals.sum().log_dropped;
        let (told, when) = self.told;
        if dropped > told && (now || when.is_none_or(|when| when.elapsed() >= TELL)) {
            self.told = (dropped, Some(Instant::now()));
            warn!(target: "onecopy", "{} lines of the access log were left out: they came faster than they could be written", dropped - told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that stands still: a pipe that nobody reads.
    #[test]
    fn what_does_not_fit_is_counted_and_nobody_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        let setup = |to: &str| Setup { to: to.parse().unwrap(), format: Format::Combined };
        // Nobody has it open for reading: told at once, instead of waiting for somebody.
        let alone = AccessLog::open(Some(setup(path.to_str().unwrap())), Arc::default());
        assert!(alone.is_err_and(|why| format!("{why:#}").contains("pipe")));

        let reader = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let totals = Arc::new(Totals::default());
        let log = AccessLog::open(Some(setup(path.to_str().unwrap())), totals.clone()).unwrap();
        let mut counters = Counters::default();
        let begun = Begun::now(None);
        // More than the queue, the pipe and a batch hold.
        let all = 40_000;
        for _ in 0..all {
            log.add(|done| begun.nonsense(&[b'x'; 100], 400, done), &mut counters);
        }
        assert!(counters.log_dropped > 0);
        totals.add(counters);
        // What was not left out comes once somebody reads.
        let lines = std::io::BufRead::lines(std::io::BufReader::new(reader));
        let came = lines.take((all - counters.log_dropped) as usize).map(Result::unwrap);
        assert!(came.into_iter().all(|line| line.contains("\"xxx")));
        log.finish();
        assert_eq!(totals.sum().log_dropped, counters.log_dropped);
    }
}
