//! What came of Rust tests, counted from what those who ran them say.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::Outcome;
use crate::shell;

/// What came of all tests of a step so far.
#[derive(Default)]
pub struct Sum {
    pub passed: u64,
    /// Which ones failed: tests, or commands that run some.
    pub failed: Vec<String>,
    /// What tests wanted and this machine has not.
    pub lacking: Vec<String>,
}

impl Sum {
    /// Notes something that is lacking.
    pub fn lacks(&mut self, what: String) {
        if !self.lacking.contains(&what) {
            self.lacking.push(what);
        }
    }

    /// Runs a command that runs tests of its own, and counts them. `see` gets each of its lines and says whether it is
    /// shown.
    pub fn watch(&mut self, label: &str, command: &mut Command, mut see: impl FnMut(&str) -> bool) {
        let result = shell::watched(command, |line| {
            self.passed += passed_in(line);
            if let Some(what) = lacking_in(line) {
                self.lacks(what);
            }
            see(line)
        });
        if let Err(error) = result {
            println!("FAILED: {label}: {error:#}");
            self.failed.push(label.to_owned());
        }
    }

    /// What failed by name, and a line as libtest ends a program's tests, for whoever reads logs.
    pub fn closing_line(&self, ignored: usize, took: Duration) -> String {
        let mut text = String::new();
        if !self.failed.is_empty() {
            text = format!("failures:\n    {}\n", self.failed.join("\n    "));
        }
        let word = if self.failed.is_empty() { "ok" } else { "FAILED" };
        let (passed, failed, seconds) = (self.passed, self.failed.len(), took.as_secs_f64());
        text + &format!(
            "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; \
             finished in {seconds:.2}s"
        )
    }

    /// How a step with these tests ends. One in which none ran has failed: a filter or a `cfg` left them all out.
    pub fn outcome(self) -> Result<Outcome> {
        if !self.failed.is_empty() {
            bail!("failed: {}", self.failed.join(", "));
        }
        ensure!(self.passed > 0, "no test ran");
        Ok(match self.lacking.is_empty() {
            true => Outcome::Tests(self.passed),
            false => Outcome::Partly(self.passed, self.lacking),
        })
    }
}

/// Runs a command that runs Rust tests, and nothing else.
pub fn ran(command: &mut Command) -> Result<Outcome> {
    let (mut sum, label) = (Sum::default(), shell::shown(command));
    sum.watch(&label, command, |_| true);
    sum.outcome()
}

/// What a test says that it wanted and this machine has not: a line of its own.
pub fn lacking_in(line: &str) -> Option<String> {
    line.strip_prefix("lacking: ").map(str::to_owned)
}

/// The tests that a test runner's closing line counts.
pub fn passed_in(line: &str) -> u64 {
    let Some(counts) = line.strip_prefix("test result: ok. ") else { return 0 };
    counts.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted() {
        assert_eq!(
            passed_in("test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"),
            12
        );
        assert_eq!(passed_in("test copy::tests::a ... ok"), 0);
    }

    #[test]
    fn what_is_lacking_is_noted_once() {
        assert_eq!(lacking_in("lacking: a moon"), Some("a moon".to_owned()));
        assert_eq!(lacking_in("test a ... ok"), None);
        let said = "lacking: a moon\nlacking: a moon\ntest result: ok. 1 passed; 0 failed";
        let mut sum = Sum::default();
        // (Not shown: somebody looks for such lines in what this test says, too.)
        sum.watch("it", &mut shell::command("sh", ["-c", &format!("echo '{said}'")]), |_| false);
        assert!(matches!(sum.outcome(), Ok(Outcome::Partly(1, lacking)) if lacking == ["a moon"]));
    }

    /// What the runner printed stays in what is seen, its closing line among it.
    #[test]
    fn a_runners_failure_is_the_steps() {
        let fails = "echo 'test result: ok. 3 passed; 0 failed'; echo 'test result: FAILED. 1 passed; 2 failed'; exit 101";
        let (mut sum, mut seen) = (Sum::default(), Vec::new());
        sum.watch("it", &mut shell::command("sh", ["-c", fails]), |line| {
            seen.push(line.to_owned());
            true
        });
        assert_eq!((sum.passed, sum.failed.as_slice(), seen.len()), (3, ["it".to_owned()].as_slice(), 2));
        assert!(sum.outcome().is_err());
        assert!(ran(&mut shell::command("sh", ["-c", fails])).is_err());
    }

    #[test]
    fn a_run_without_a_test_has_failed() {
        assert!(ran(shell::command("echo", ["test result: ok. 0 passed; 0 failed"]).env_clear()).is_err());
        let all = ran(&mut shell::command(
            "echo",
            ["test result: ok. 3 passed; 0 failed\ntest result: ok. 4 passed;"],
        ));
        assert!(matches!(all, Ok(Outcome::Tests(7))));
    }

    #[test]
    fn the_closing_line_is_libtests() {
        let mut sum = Sum { passed: 7, ..Sum::default() };
        let line = sum.closing_line(2, Duration::from_millis(1250));
        assert_eq!(
            line,
            "test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 1.25s"
        );
        assert_eq!(passed_in(&line), 7);
        sum.failed.push("a::b c".to_owned());
        let lines = sum.closing_line(0, Duration::ZERO);
        assert!(
            lines.starts_with("failures:\n    a::b c\ntest result: FAILED. 7 passed; 1 failed; "),
            "{lines}"
        );
    }
}
