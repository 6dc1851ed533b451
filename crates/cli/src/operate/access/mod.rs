//! The access log: a line for each request. Who serves hands a line over and goes on; a thread of its own writes together what has
//! gathered. What it cannot keep up with is left out and counted, since a slow disk must not slow the requests.

mod entry;
mod journal;
mod output;
mod queue;

use entry::Clock;
pub use entry::{Begun, Entry, Format};
pub use output::Destination;

use crate::counters::{Counters, Totals};
use anyhow::Context;
use output::Output;
use queue::{Message, Queue, Waiting};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Bytes that are written at once, and that the writer is woken for.
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

/// Where entries are handed over, if there is a log.
#[derive(Clone, Debug, Default)]
pub struct AccessLog(Option<Arc<Adding>>);

/// The writer's queue, of those that add to it.
#[derive(Debug)]
struct Adding(Arc<Queue>);

impl Drop for Adding {
    fn drop(&mut self) {
        self.0.tell(Message::Gone);
    }
}

impl AccessLog {
    /// Opens it, and starts its writer, which counts what it leaves out in `totals`.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn open(setup: Option<Setup>, totals: Arc<Totals>) -> anyhow::Result<AccessLog> {
        let Some(setup) = setup else { return Ok(AccessLog::default()) };
        let output = Output::open(&setup.to)?;
        let queue = Arc::new(Queue::new(setup.format));
        let writer = Writer { setup, output, totals, told: (0, None), ill: false };
        let from = queue.clone();
        let run = move || writer.run(&from);
        std::thread::Builder::new().name("access-log".into()).spawn(run).context("cannot start a thread")?;
        Ok(AccessLog(Some(Arc::new(Adding(queue)))))
    }

    /// Hands over the line of an entry, if anybody wants it. Never waits for the writer.
    pub fn add<'r>(&self, entry: impl FnOnce(&Counters) -> Entry<'r>, counters: &mut Counters) {
        let Some(Adding(to)) = self.0.as_deref() else { return };
        let entry = entry(counters);
        let added = PAD.with_borrow_mut(|Pad { clock, format, line }| {
            to.add(format, line, |format, line| entry.write(format, clock, line))
        });
        if !added {
            counters.log_dropped += 1;
        }
    }

    /// Opens it once more, as `setup` says: for what is handed over from now on. What was wrong with it is told, and changes nothing.
    pub fn again(&self, setup: Setup) {
        let Some(Adding(to)) = self.0.as_deref() else { return };
        match Output::open(&setup.to) {
            Ok(output) => to.tell(Message::Again(setup, output)), // a writer that died has said so
            Err(why) => warn!(target: "onecopy", "goes on with the access log that it has: {why:#}"),
        }
    }

    /// [Finishes](AccessLog::finish) where the program ends.
    pub fn end(&self) -> End {
        End(self.clone())
    }

    /// Waits until what was handed over is written, but not for long.
    pub fn finish(&self) {
        let Some(Adding(to)) = self.0.as_deref() else { return };
        let (done, finished) = channel();
        to.tell(Message::End(done));
        let _ = finished.recv_timeout(LAST);
    }
}

/// What a thread makes its lines with.
#[derive(Default)]
struct Pad {
    clock: Clock,
    /// That of the line before.
    format: Format,
    line: Vec<u8>,
}

thread_local! {
    static PAD: RefCell<Pad> = RefCell::default();
}

/// The end of a program, by whichever way it is left, also by an error.
#[derive(Debug)]
#[must_use]
pub struct End(AccessLog);

impl Drop for End {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Who writes.
struct Writer {
    setup: Setup,
    output: Output,
    totals: Arc<Totals>,
    /// How many were left out when that was told, and when.
    told: (u64, Option<Instant>),
    /// The last write failed, and the operator was told.
    ill: bool,
}

impl Writer {
    fn run(mut self, from: &Queue) {
        let mut waiting = Waiting::default();
        loop {
            from.take(&mut waiting);
            for message in waiting.messages.drain(..) {
                match message {
                    Message::Lines(lines) => self.write(&lines),
                    Message::Again(setup, output) => {
                        (self.output, self.setup, self.ill) = (output, setup, false);
                        info!(target: "onecopy", "opened the access log {} again", self.setup.to);
                    }
                    Message::End(done) => {
                        self.tell(true);
                        let _ = done.send(());
                    }
                    Message::Gone => return,
                }
            }
            self.write(&waiting.lines);
            waiting.lines.clear();
            self.tell(false);
        }
    }

    /// Writes whole lines, some at a time: what cannot be written is left out.
    fn write(&mut self, mut lines: &[u8]) {
        while !lines.is_empty() {
            let most = if self.output.takes_one() { 1 } else { BATCH.min(lines.len()) };
            let end = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let before = lines[..most].iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
            // A line may be longer than that.
            let (now, rest) = lines.split_at(before.or_else(|| end(lines)).unwrap_or(lines.len()));
            self.write_some(now);
            lines = rest;
        }
    }

    fn write_some(&mut self, lines: &[u8]) {
        match self.output.write(lines) {
            Ok(()) if std::mem::take(&mut self.ill) => {
                info!(target: "onecopy", "the access log is written again")
            }
            Ok(()) => {}
            Err(why) => {
                let lines = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
                self.totals.add(Counters { log_dropped: lines, ..Default::default() });
                if !std::mem::replace(&mut self.ill, true) {
                    warn!(target: "onecopy", "the access log {} cannot be written, and its lines are left out: {why}", self.setup.to);
                }
            }
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
    use super::queue::ROOM;
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

    /// The least that a line of a number has, in bytes.
    const LINE: usize = 80;

    fn numbers(path: &std::path::Path) -> Vec<usize> {
        let text = std::fs::read_to_string(path).unwrap();
        let number = |line: &str| line.split('"').nth(1).unwrap().parse().unwrap();
        text.lines().map(number).collect()
    }

    fn add(log: &AccessLog, number: usize) {
        let mut counters = Counters::default();
        let (begun, number) = (Begun::now(None), number.to_string());
        log.add(|done| begun.nonsense(number.as_bytes(), 400, done), &mut counters);
        assert_eq!(counters.log_dropped, 0);
    }

    #[test]
    fn what_was_added_before_it_is_opened_again_is_in_the_old_file_and_all_else_in_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = |n: usize| dir.path().join(n.to_string());
        let setup = |n| Setup { to: path(n).to_str().unwrap().parse().unwrap(), format: Format::Combined };
        let log = AccessLog::open(Some(setup(0)), Arc::default()).unwrap();
        let mut next = 0;
        let mut some = |log: &AccessLog, count| {
            (0..count).for_each(|n| add(log, next + n));
            next += count;
        };
        // None, one, and more than are waited for.
        let counts = [0, 1, BATCH / LINE + 10, 100, 7];
        for (file, count) in counts.into_iter().enumerate() {
            some(&log, count);
            if file + 1 < counts.len() {
                log.again(setup(file + 1));
            }
        }
        log.finish();
        let mut first = 0;
        for (file, count) in counts.into_iter().enumerate() {
            assert_eq!(numbers(&path(file)), Vec::from_iter(first..first + count), "file {file}");
            first += count;
        }
    }

    #[test]
    fn nothing_is_lost_and_each_threads_lines_are_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let setup = Setup { to: path.to_str().unwrap().parse().unwrap(), format: Format::Combined };
        let log = AccessLog::open(Some(setup), Arc::default()).unwrap();
        // As many as there is room for, should the writer not run at all.
        let (threads, each) = (4, ROOM / 4 / (2 * LINE));
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let log = &log;
                scope.spawn(move || (0..each).for_each(|n| add(log, thread * each + n)));
            }
        });
        log.finish();
        let came = numbers(&path);
        assert_eq!(came.len(), threads * each);
        for thread in 0..threads {
            let of: Vec<usize> = came.iter().copied().filter(|n| n / each == thread).collect();
            assert_eq!(of, Vec::from_iter(thread * each..(thread + 1) * each));
        }
    }

    #[test]
    fn each_file_has_lines_of_its_own_form_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = |n: usize| dir.path().join(n.to_string());
        let forms = [Format::Combined, Format::Json, Format::Json, Format::Combined];
        let setup = |n: usize| Setup { to: path(n).to_str().unwrap().parse().unwrap(), format: forms[n] };
        let log = AccessLog::open(Some(setup(0)), Arc::default()).unwrap();
        let done = std::sync::Mutex::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for number in 0.. {
                        if *done.lock().unwrap() {
                            break;
                        }
                        add(&log, number);
                    }
                });
            }
            for n in 1..forms.len() {
                std::thread::sleep(Duration::from_millis(1)); // a pace
                log.again(setup(n));
            }
            // What cannot be opened changes nothing.
            let to = dir.path().join("none/log").to_str().unwrap().parse().unwrap();
            log.again(Setup { to, format: Format::Json });
            add(&log, 7);
            *done.lock().unwrap() = true;
        });
        log.finish();
        for (n, form) in forms.into_iter().enumerate() {
            let text = std::fs::read_to_string(path(n)).unwrap();
            assert!(text.lines().all(|line| line.starts_with('{') == (form == Format::Json)), "file {n}");
        }
        assert!(std::fs::metadata(path(3)).unwrap().len() > 0);
    }

    #[test]
    fn the_journal_gets_each_line_by_itself_a_file_gets_all_and_what_is_not_written_is_counted() {
        let totals = Arc::new(Totals::default());
        let writer = |output| {
            let setup = Setup { to: "-".parse().unwrap(), format: Format::Combined };
            Writer { setup, output, totals: totals.clone(), told: (0, None), ill: false }
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let long = [&vec![b'x'; 2 * BATCH][..], b"\n"].concat();
        let lines = [b"a\nb\n", &long[..], &b"c\n".repeat(BATCH), b"d\n"].concat();
        let log = std::fs::File::create(&path).unwrap();
        writer(Output::File(log)).write(&lines);
        assert!(std::fs::read(&path).unwrap() == lines);
        assert_eq!(totals.sum().log_dropped, 0);
        let path = dir.path().join("journal");
        let daemon = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        writer(Output::Journal(journal::Journal::at(&path).unwrap())).write(b"one\ntwo\nthree\n");
        for line in ["one", "two", "three"] {
            daemon.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
            let mut room = [0; 200];
            let n = daemon.recv(&mut room).unwrap();
            assert!(room[..n].ends_with(format!("MESSAGE={line}\n").as_bytes()), "{line}");
        }
        // One that takes nothing.
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        writer(Output::File(full)).write(&lines);
        assert_eq!(totals.sum().log_dropped, 2 + 1 + BATCH as u64 + 1);
    }

    #[test]
    fn a_program_that_ends_by_an_error_has_its_last_lines_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let setup = Setup { to: path.to_str().unwrap().parse().unwrap(), format: Format::Combined };
        // It outlives the program, as in the handlers of signals and in threads that are not waited for.
        let log = AccessLog::open(Some(setup), Arc::default()).unwrap();
        let program = || -> anyhow::Result<()> {
            let _end = log.end();
            add(&log, 0);
            anyhow::bail!("it cannot go on")
        };
        program().unwrap_err();
        assert_eq!(numbers(&path), [0]);
    }

    /// As a program does that has no end to tell of.
    #[test]
    fn lines_are_written_without_anybody_asking_and_when_nobody_is_left_to_add_any() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let setup = Setup { to: path.to_str().unwrap().parse().unwrap(), format: Format::Combined };
        let log = AccessLog::open(Some(setup), Arc::default()).unwrap();
        let until = |count| {
            let begun = Instant::now();
            while numbers(&path).len() < count {
                assert!(begun.elapsed() < onecopy_testing::LONG, "{count} lines");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        add(&log, 0);
        until(1);
        // A second sleep of the writer's, and an end behind it.
        add(&log, 1);
        drop(log);
        until(2);
    }
}
