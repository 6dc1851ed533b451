//! Tests that have a process of their own.
//!
//! libtest runs the tests of a program as threads of one process. A test that looks at that process (its descriptors, its
//! mappings, what it shows of its sockets), or changes it (forks, limits, signals), meets there what the others do at that
//! moment, and they meet what it does. Such a test begins with [`alone!`](crate::alone).
//!
//! `cargo xtask test` gives every test a process, and says so; there the macro does nothing.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::{any, env, fs, io};

/// In the environment of a process that was started for one test: the test's name.
const ALONE: &str = "ONECOPY_ALONE";

/// The first line of a test that wants a process for itself: where it is not so, the test runs in another one, and ends
/// here as it ended there.
///
/// To stand in the function that has `#[test]`, as the test's name is taken from it; and in all tests of a program that
/// open sockets and files, if in one of them: what starts a process has a copy of all descriptors for a moment, and so
/// delays what closing them does.
#[macro_export]
macro_rules! alone {
    () => {
        // Its path tells that of the test.
        fn here() {}
        if $crate::has_run_elsewhere(&here) {
            return;
        }
    };
}

/// Whether the test around `here` has run, and passed, in another process; if not, it has this process for itself.
#[doc(hidden)]
pub fn has_run_elsewhere<F>(_: &F) -> bool {
    let name = test_around(any::type_name::<F>());
    if env::var(ALONE).is_ok_and(|other| other == name) {
        return false;
    }
    run(name);
    true
}

/// The name that libtest has for a test: its path, without the crate.
fn test_around(here: &str) -> &str {
    let test = here.strip_suffix("::here").unwrap_or(here);
    let test = test.split("::{{closure}}").next().unwrap_or(test);
    test.split_once("::").map_or(test, |(_, name)| name)
}

/// Runs this test of this program in a process of its own, and passes on what it says.
fn run(name: &str) {
    let said = || -> io::Result<bool> {
        let (read, write) = io::pipe()?;
        let mut child = Command::new(env::current_exe()?)
            // What it says must not be lost with a process that is killed: libtest does not keep it to itself.
            .args(["--exact", name, "--include-ignored", "--nocapture"])
            .env(ALONE, name)
            .stdin(Stdio::null())
            .stdout(write.try_clone()?)
            .stderr(write)
            .spawn()?;
        let mut ran = false;
        for line in BufReader::new(read).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            ran |= line.starts_with("test result: ok. 1 passed; ");
            if line.starts_with("lacking: ") {
                // That is said to whoever reads, and not kept for a failure.
                writeln!(io::stdout(), "\n{line}")?;
            } else if !line.starts_with("test result: ") {
                println!("{line}");
            }
        }
        Ok(child.wait()?.success() && ran)
    };
    match said() {
        Ok(true) => {}
        Ok(false) => panic!("{name} failed in a process of its own"),
        Err(error) => panic!("no process for {name} alone: {error}"),
    }
}

/// How many descriptors this process has.
///
/// # Panics
///
/// In a process that other tests use, too.
pub fn descriptors() -> usize {
    look("/proc/self/fd", |path| Ok(fs::read_dir(path)?.count()))
}

/// How many mappings of files with such names this process has.
///
/// # Panics
///
/// In a process that other tests use, too.
pub fn mappings(name: &str) -> usize {
    look("/proc/self/maps", |path| Ok(fs::read_to_string(path)?.matches(name).count()))
}

fn look(path: &str, count: impl FnOnce(&str) -> io::Result<usize>) -> usize {
    assert!(
        env::var_os(ALONE).is_some(),
        "other tests use this process, too: begin this one with `alone!()`"
    );
    count(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process;

    #[test]
    fn a_test_is_known_by_its_path() {
        assert_eq!(test_around("room::tests::deep::a_test::here"), "tests::deep::a_test");
        assert_eq!(test_around("room::a_test::{{closure}}::here"), "a_test");
    }

    #[test]
    fn who_is_alone_may_look() {
        alone!();
        let before = descriptors();
        let file = fs::File::open("/dev/null").unwrap();
        assert_eq!(descriptors(), before + 1);
        drop(file);
        assert!(mappings("") > 0);
    }

    /// Runs a test below as somebody does by hand.
    fn by_hand(test: &str) -> process::Output {
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::{test}");
        let mut program = Command::new(env::current_exe().unwrap());
        program.args(["--exact", &name, "--ignored"]).env_remove(ALONE);
        program.output().unwrap()
    }

    #[test]
    #[ignore = "fails, as a test below sees"]
    fn a_failure() {
        alone!();
        panic!("by process {}", process::id());
    }

    #[test]
    #[ignore = "as above"]
    fn a_process_that_ends_before_its_test() {
        alone!();
        process::exit(0);
    }

    #[test]
    #[ignore = "as above"]
    fn a_look_beside_others() {
        descriptors();
    }

    #[test]
    fn what_fails_there_fails_here() {
        for (test, why) in [
            ("a_failure", "by process "),
            ("a_process_that_ends_before_its_test", "failed in a process of its own"),
            ("a_look_beside_others", "begin this one with `alone!()`"),
        ] {
            let out = by_hand(test);
            let said = String::from_utf8_lossy(&out.stdout);
            assert!(!out.status.success() && said.contains("0 passed; 1 failed;"), "{test}: {said}");
            assert!(said.contains(why), "{test}: {said}");
        }
    }

    #[test]
    #[ignore = "as above, but for the failure"]
    fn a_success() {
        alone!();
        println!("lacking: a moon");
    }

    #[test]
    fn what_passes_there_passes_here_and_says_what_it_lacks() {
        let out = by_hand("a_success");
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.contains("\nlacking: a moon\n"), "{said}");
    }
}
