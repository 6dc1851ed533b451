//! Runs Rust tests as `cargo test` does, but each in a process of its own, so that no test meets what another one does to
//! its process: descriptors, mappings, forks, signals, limits, counters. Documentation tests stay with cargo, and a test
//! program with a main function of its own (the conformance suites, which start a process for each case) runs as a whole.

use std::collections::VecDeque;
use std::process::Command;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use super::Outcome;
use super::sum::{Sum, lacking_in, passed_in};
use crate::shell::command;

mod built;
mod process;

use built::Program;
use process::{Ended, Patience};

/// The slowest test takes a minute on a machine that has little else to do.
const PATIENCE: Patience = Patience { slow: Duration::from_secs(60), hung: Duration::from_secs(600) };

/// By this variable, which has its name, a test knows that it has its process for itself (`testing/src/process.rs`).
const ALONE: &str = "ONECOPY_ALONE";

/// Builds the tests of these packages (in the words of `cargo test`) and runs them all, whatever fails.
///
/// `shown`: whether that is shown, too, what a test says that passes. `see` gets each line of the programs that run as a
/// whole, and says whether it is shown.
pub fn run(what: &[&str], shown: bool, mut see: impl FnMut(&str) -> bool) -> Result<Outcome> {
    let (whole, apart): (Vec<_>, Vec<_>) =
        built::build(what)?.into_iter().partition(|program| program.own_main);
    let mut sum = each(apart, shown)?;
    for program in whole {
        sum.watch(&program.label, &mut program.command(), &mut see);
    }
    let mut docs = command("cargo", ["test", "--doc", "--quiet", "--no-fail-fast"]);
    sum.watch("documentation tests", docs.args(what), |_| true);
    sum.outcome()
}

/// A test, of a program that is known by its place.
#[derive(Clone, Debug)]
struct Test {
    of: usize,
    name: String,
}

/// What a thread that runs tests tells.
enum News {
    Started(Test),
    Slow(Test),
    Ended(Test, Result<Ended>),
}

/// The tests of these programs, each in a process, as many at once as there are CPUs.
fn each(programs: Vec<Program>, shown: bool) -> Result<Sum> {
    let (mut queue, mut tallies) = (VecDeque::new(), Vec::new());
    for program in programs {
        let tests = program.tests()?;
        let of = tallies.len();
        tallies.push(Tally {
            left: tests.run.len(),
            ignored: tests.ignored.len(),
            program,
            passed: 0,
            failed: 0,
        });
        queue.extend(tests.run.into_iter().map(|name| Test { of, name }));
    }
    let (began, mut sum, bar) = (Instant::now(), Sum::default(), bar(queue.len()));
    let programs: Vec<Program> = tallies.iter().map(|tally| tally.program.clone()).collect();
    let queue = Mutex::new(queue);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        let (tell, news) = mpsc::channel();
        for _ in 0..thread::available_parallelism().map_or(2, |cpus| cpus.get()) {
            let (tell, next, programs) = (tell.clone(), &next, &programs);
            scope.spawn(move || {
                while let Some(test) = next() {
                    let _ = tell.send(News::Started(test.clone()));
                    let slow = || drop(tell.send(News::Slow(test.clone())));
                    let mut command = alone(&programs[test.of], &test.name);
                    let ended = process::run(&mut command, PATIENCE, slow);
                    let _ = tell.send(News::Ended(test, ended));
                }
            });
        }
        drop(tell);
        let mut running: Vec<String> = Vec::new();
        for news in news {
            match news {
                News::Started(test) => running.push(test.name),
                News::Slow(test) => {
                    let (label, after) = (&programs[test.of].label, PATIENCE.slow.as_secs());
                    bar.suspend(|| println!("   still running after {after} s: {label} {}", test.name));
                }
                News::Ended(test, ended) => {
                    if let Some(place) = running.iter().position(|name| *name == test.name) {
                        running.remove(place);
                    }
                    bar.suspend(|| tallies[test.of].add(&test.name, ended, shown, &mut sum));
                    bar.inc(1);
                }
            }
            bar.set_message(running.join(", "));
        }
    });
    bar.finish_and_clear();
    let ignored = tallies.iter().map(|tally| tally.ignored).sum();
    sum.lacking.iter().for_each(|what| println!("lacking: {what}"));
    println!("{}", sum.closing_line(ignored, began.elapsed()));
    Ok(sum)
}

/// Runs this one test.
fn alone(program: &Program, name: &str) -> Command {
    let mut command = program.command();
    // What it says must not be lost with a process that is killed: libtest does not keep it to itself.
    command.args(["--exact", name, "--nocapture"]).env(ALONE, name).env_remove("RUST_TEST_THREADS");
    command
}

/// How far it is, for a person; nothing, where nobody looks.
fn bar(tests: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("   {bar:20} {pos} of {len} tests, {elapsed}: {wide_msg}");
    ProgressBar::new(tests as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A program, and what came of its tests so far.
struct Tally {
    program: Program,
    left: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Tally {
    /// Notes how a test ended, and shows what is worth it.
    fn add(&mut self, name: &str, ended: Result<Ended>, shown: bool, sum: &mut Sum) {
        let label = &self.program.label;
        let (why, said) = match &ended {
            Ok(ended) => (why_failed(ended), within(&ended.said, name)),
            Err(error) => (Some(format!("{error:#}")), String::new()),
        };
        for what in said.lines().filter_map(lacking_in) {
            sum.lacks(what);
        }
        self.left -= 1;
        if let Some(why) = why {
            self.failed += 1;
            sum.failed.push(format!("{label} {name}"));
            let by_hand = self.program.chosen_by.join(" ");
            println!(
                "FAILED: {label} {name}: {why}\n{said}   by hand: cargo test {by_hand} -- --exact {name}"
            );
        } else {
            self.passed += 1;
            sum.passed += 1;
            if shown {
                print!("   {label} {name}\n{said}");
            }
        }
        if self.left == 0 {
            println!("   {}", self.closing_line());
        }
    }

    fn closing_line(&self) -> String {
        let mut line = format!("{:40} {:4} passed", self.program.label, self.passed);
        for (count, what) in [(self.failed, "failed"), (self.ignored, "ignored")] {
            if count > 0 {
                line.push_str(&format!(", {count} {what}"));
            }
        }
        line
    }
}

/// Why a test counts as failed, if it does. One that did not run did not pass, however its process ended.
fn why_failed(ended: &Ended) -> Option<String> {
    match ended.status {
        None => Some(format!("it hung, and was killed after {} s", ended.took.as_secs())),
        Some(status) if !status.success() => Some(status.to_string()),
        Some(_) => {
            // (The last one is libtest's: what a test runs may say such things, too.)
            let result = ended.said.lines().rfind(|line| line.starts_with("test result: "));
            let ran = result.map_or(0, passed_in);
            (ran != 1).then(|| format!("{ran} tests ran, and not this one alone"))
        }
    }
}

/// What a test said, without what libtest says around it.
fn within(said: &str, name: &str) -> String {
    let (title, mut lines) = (format!("test {name}"), String::new());
    for line in said.lines() {
        let framing = ["", "running 1 test", "failures:"].contains(&line)
            || line.trim_start() == name
            || line.starts_with(&title)
            || line.starts_with("test result: ");
        if !framing {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(wait_status: i32, said: &str) -> Ended {
        let status = Some(ExitStatus::from_raw(wait_status));
        Ended { status, said: said.to_owned(), took: Duration::from_secs(7) }
    }

    const RAN: &str = "\nrunning 1 test\nfrom seed 7\ntest a::b - should panic ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";

    #[test]
    fn only_a_test_that_ran_and_succeeded_has_passed() {
        assert_eq!(why_failed(&ended(0, RAN)), None);
        // A name that no test has, a process that left before its test had ended.
        assert!(
            why_failed(&ended(0, "test result: ok. 0 passed; 0 failed"))
                .is_some_and(|why| why.contains("0 tests"))
        );
        assert!(why_failed(&ended(0, "")).is_some());
        let others = format!("test result: ok. 7 passed; \n{RAN}");
        assert_eq!(why_failed(&ended(0, &others)), None);
        assert!(why_failed(&ended(101 << 8, RAN)).is_some_and(|why| why.contains("101")));
        assert!(why_failed(&ended(9, "")).is_some_and(|why| why.contains("signal: 9")));
        let hung = Ended { status: None, ..ended(0, RAN) };
        assert!(why_failed(&hung).is_some_and(|why| why.contains("hung") && why.contains("7 s")));
    }

    #[test]
    fn what_a_test_says_stands_without_its_frame() {
        assert_eq!(within(RAN, "a::b"), "from seed 7\n");
        let failed = "\nrunning 1 test\n\nthread 'main' panicked at x.rs:1:\nno\ntest a::b ... FAILED\n\nfailures:\n\n\
                      failures:\n    a::b\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        assert_eq!(within(failed, "a::b"), "thread 'main' panicked at x.rs:1:\nno\n");
    }

    fn tally(tests: usize) -> Tally {
        Tally { program: Program::default(), left: tests, passed: 0, failed: 0, ignored: 2 }
    }

    #[test]
    fn each_test_is_counted_and_what_it_lacks_is_noted() {
        let (mut tally, mut sum) = (tally(3), Sum::default());
        tally.add("a::b", Ok(ended(0, RAN)), false, &mut sum);
        let lacks = RAN.replace("from seed 7", "\nlacking: a moon");
        tally.add("a::b", Ok(ended(0, &lacks)), false, &mut sum);
        tally.add("c", Err(anyhow::anyhow!("no process")), false, &mut sum);
        assert_eq!((tally.left, tally.passed, tally.failed), (0, 2, 1));
        assert!(tally.closing_line().ends_with(" 2 passed, 1 failed, 2 ignored"), "{}", tally.closing_line());
        assert_eq!(
            (sum.passed, sum.failed, sum.lacking),
            (2, vec![" c".to_owned()], vec!["a moon".to_owned()])
        );
    }
}
