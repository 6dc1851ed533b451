//! The test programs that cargo builds, and the tests in each.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::shell::{self, command};

/// A line that cargo writes with `--message-format=json`.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact(Artifact),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// A program with tests.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its package, and which of its programs: `onecopy-unix`, `onecopy-unix::rights`.
    pub label: String,
    /// What cargo test wants to be told to run this program and no other.
    pub chosen_by: Vec<String>,
    /// Whether it has a main function of its own (`harness = false`), so that its tests are not libtest's.
    pub own_main: bool,
    file: PathBuf,
    folder: PathBuf,
    vars: Vec<(String, OsString)>,
}

/// Builds what `cargo test WHAT` would run, doc tests left out.
pub fn build(what: &[&str]) -> Result<Vec<Program>> {
    let mut lines = Vec::new();
    let mut cargo = command("cargo", ["test", "--no-run", "--message-format=json-render-diagnostics"]);
    shell::watched(cargo.args(what), |line| {
        lines.push(line.to_owned());
        false
    })?;
    let artifacts = artifacts(&lines)?;
    let mut manifests = BTreeMap::new();
    for artifact in &artifacts {
        let path = &artifact.manifest_path;
        if !manifests.contains_key(path) {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let table: toml::Table = text.parse().with_context(|| path.display().to_string())?;
            manifests.insert(path.clone(), table);
        }
    }
    let mut programs = programs(&artifacts, &manifests)?;
    if what.contains(&"--all-features") {
        programs.iter_mut().for_each(|program| program.chosen_by.push("--all-features".to_owned()));
    }
    Ok(programs)
}

fn artifacts(lines: &[String]) -> Result<Vec<Artifact>> {
    let mut artifacts = Vec::new();
    for line in lines {
        let message =
            serde_json::from_str(line).with_context(|| format!("not a message of cargo's: {line}"))?;
        if let Message::CompilerArtifact(artifact) = message
            && artifact.executable.is_some()
        {
            artifacts.push(artifact);
        }
    }
    Ok(artifacts)
}

fn programs(artifacts: &[Artifact], manifests: &BTreeMap<PathBuf, toml::Table>) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for artifact in artifacts.iter().filter(|artifact| artifact.profile.test) {
        let Some(file) = artifact.executable.clone() else { continue };
        let (package, version) = named(&artifact.package_id)?;
        let (manifest, name) = (&artifact.manifest_path, &artifact.target.name);
        let folder = manifest.parent().context("a manifest lies in a folder")?.to_path_buf();
        let kind = artifact.target.kind.first().map_or("", String::as_str);
        let of_package = ["--package".to_owned(), package.clone()];
        let (label, chosen_by) = match kind {
            "test" | "bin" | "example" | "bench" => {
                let of = if kind == "test" { String::new() } else { format!("{kind}/") };
                (format!("{package}::{of}{name}"), vec![format!("--{kind}"), name.clone()])
            }
            _ => (package.clone(), vec!["--lib".to_owned()]),
        };
        // Where a program is not a library's own tests, cargo names the package's programs for it.
        let beside = artifacts.iter().filter(|other| {
            kind == "test" && other.package_id == artifact.package_id && other.target.kind == ["bin"]
        });
        let beside = beside.filter(|other| !other.profile.test).filter_map(|other| {
            let program = other.executable.clone()?;
            Some((format!("CARGO_BIN_EXE_{}", other.target.name), program.into_os_string()))
        });
        let mut vars: Vec<_> = beside.collect();
        for (var, value) in [
            ("CARGO_MANIFEST_DIR", folder.clone().into_os_string()),
            ("CARGO_MANIFEST_PATH", manifest.clone().into_os_string()),
            ("CARGO_PKG_NAME", package.clone().into()),
            ("CARGO_PKG_VERSION", version.into()),
        ] {
            vars.push((var.to_owned(), value));
        }
        if kind == "test" {
            vars.push(("CARGO_TARGET_TMPDIR".to_owned(), shell::target().join("tmp").into_os_string()));
        }
        programs.push(Program {
            label,
            chosen_by: of_package.into_iter().chain(chosen_by).collect(),
            own_main: manifests.get(manifest).is_some_and(|manifest| own_main(manifest, kind, name)),
            file,
            folder,
            vars,
        });
    }
    programs.sort_by(|one, other| one.label.cmp(&other.label));
    Ok(programs)
}

/// Name and version in a package id: `path+file:///work/crates/unix#onecopy-unix@0.1.0`, or, where the folder has the
/// package's name, `path+file:///work/crates/onecopy#0.1.0`.
fn named(id: &str) -> Result<(String, &str)> {
    let (from, fragment) = id.rsplit_once('#').with_context(|| format!("not a package id: {id}"))?;
    let (name, version) = match fragment.split_once('@') {
        Some(both) => both,
        None => (from.rsplit('/').next().unwrap_or_default(), fragment),
    };
    Ok((name.to_owned(), version))
}

/// Whether the manifest gives this target `harness = false`.
fn own_main(manifest: &toml::Table, kind: &str, name: &str) -> bool {
    let off = |target: &toml::Value| target.get("harness").and_then(toml::Value::as_bool) == Some(false);
    match manifest.get(kind) {
        Some(toml::Value::Array(targets)) => targets
            .iter()
            .any(|target| target.get("name").and_then(toml::Value::as_str) == Some(name) && off(target)),
        Some(target) => off(target),
        None => false,
    }
}

/// The tests of a program.
#[derive(Debug, PartialEq)]
pub struct Tests {
    /// Those that are to be run.
    pub run: Vec<String>,
    /// Those with `#[ignore]`.
    pub ignored: Vec<String>,
}

impl Program {
    /// The program as cargo starts it: in its package's folder, with its variables, and nothing to read.
    pub fn command(&self) -> Command {
        let mut command = command(&self.file, []);
        command.current_dir(&self.folder);
        // `cargo run` has named this package in ours.
        for (var, _) in env::vars_os().filter(|(var, _)| var.to_string_lossy().starts_with("CARGO_PKG_")) {
            command.env_remove(var);
        }
        command.envs(self.vars.iter().map(|(var, value)| (var, value)));
        command
    }

    /// What the program says that it has.
    pub fn tests(&self) -> Result<Tests> {
        let list = |more: &[&str]| -> Result<Vec<String>> {
            let out = self.command().args(["--list", "--format", "terse"]).args(more).output();
            let out = out.with_context(|| format!("{} could not be started", self.file.display()))?;
            let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            ensure!(
                out.status.success(),
                "{} does not list its tests: {}: {said}{wrong}",
                self.label,
                out.status
            );
            listed(&said)
        };
        let (all, ignored) = (list(&[])?, list(&["--ignored"])?);
        let left_out: BTreeSet<_> = ignored.iter().collect();
        Ok(Tests { run: all.iter().filter(|name| !left_out.contains(name)).cloned().collect(), ignored })
    }
}

/// The names in `NAME: test` lines. Benchmarks are not tests.
fn listed(said: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for line in said.lines().filter(|line| !line.is_empty()) {
        match line.rsplit_once(": ") {
            Some((name, "test")) => names.push(name.to_owned()),
            Some((_, "benchmark")) => {}
            _ => bail!("not the name of a test: {line}"),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cargo says of a package with a library, a program and two tests, shortened.
    const SAID: [&str; 7] = [
        r#"{"reason":"build-script-executed","package_id":"registry+https://x#libc@0.2.1","out_dir":"/t"}"#,
        r#"{"reason":"compiler-artifact","package_id":"registry+https://x#libc@0.2.1","manifest_path":"/r/Cargo.toml","target":{"kind":["lib"],"name":"libc"},"profile":{"test":false},"executable":null}"#,
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/a#house-a@0.1.0","manifest_path":"/w/crates/a/Cargo.toml","target":{"kind":["bin"],"name":"prog"},"profile":{"test":false},"executable":"/t/prog"}"#,
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/a#house-a@0.1.0","manifest_path":"/w/crates/a/Cargo.toml","target":{"kind":["test"],"name":"suite"},"profile":{"test":true},"executable":"/t/deps/suite-1"}"#,
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/a#house-a@0.1.0","manifest_path":"/w/crates/a/Cargo.toml","target":{"kind":["bin"],"name":"prog"},"profile":{"test":true},"executable":"/t/deps/prog-1"}"#,
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/b#0.2.0","manifest_path":"/w/crates/b/Cargo.toml","target":{"kind":["lib"],"name":"b"},"profile":{"test":true},"executable":"/t/deps/b-1"}"#,
        r#"{"reason":"build-finished","success":true}"#,
    ];

    #[test]
    fn test_programs_are_what_cargo_says_it_built() {
        let lines = SAID.map(str::to_owned);
        let manifest =
            "[[test]]\nname = \"suite\"\nharness = false\n[package]\nname = \"house-a\"".parse().unwrap();
        let manifests = BTreeMap::from([("/w/crates/a/Cargo.toml".into(), manifest)]);
        let programs = programs(&artifacts(&lines).unwrap(), &manifests).unwrap();
        let [b, bin, suite] = programs.as_slice() else { panic!("{programs:?}") };
        let labels = [&b.label, &bin.label, &suite.label];
        assert_eq!(labels, ["b", "house-a::bin/prog", "house-a::suite"]);
        assert_eq!([b.own_main, bin.own_main, suite.own_main], [false, false, true]);
        assert_eq!(b.chosen_by, ["--package", "b", "--lib"]);
        assert_eq!(bin.chosen_by, ["--package", "house-a", "--bin", "prog"]);
        assert_eq!(suite.chosen_by, ["--package", "house-a", "--test", "suite"]);

        let command = suite.command();
        assert_eq!(
            (command.get_program(), command.get_current_dir()),
            ("/t/deps/suite-1".as_ref(), Some("/w/crates/a".as_ref()))
        );
        let var = |name: &str| command.get_envs().find(|(var, _)| *var == name).and_then(|(_, value)| value);
        assert_eq!(var("CARGO_BIN_EXE_prog"), Some("/t/prog".as_ref()));
        assert_eq!(var("CARGO_MANIFEST_DIR"), Some("/w/crates/a".as_ref()));
        assert_eq!(
            (var("CARGO_PKG_NAME"), var("CARGO_PKG_VERSION")),
            (Some("house-a".as_ref()), Some("0.1.0".as_ref()))
        );
        assert!(bin.vars.iter().all(|(var, _)| !var.starts_with("CARGO_BIN_EXE_")));
        assert!(artifacts(&["what is this".to_owned()]).is_err());
    }

    #[test]
    fn a_main_function_of_its_own_is_told_by_the_manifest() {
        let manifest: toml::Table = "[lib]\nharness = false\n[[test]]\nname = \"a\"\nharness = false\n\
                                     [[test]]\nname = \"b\"\n[[bin]]\nname = \"a\""
            .parse()
            .unwrap();
        assert!(own_main(&manifest, "test", "a") && own_main(&manifest, "lib", "any"));
        assert!(!own_main(&manifest, "test", "b") && !own_main(&manifest, "bin", "a"));
        assert!(!own_main(&manifest, "bench", "a"));
    }

    #[test]
    fn names_are_read_and_nothing_else_is_taken_for_one() {
        let said = "tests::a: test\nsrc/lib.rs - b: c (line 3): test\nd: benchmark\n\n";
        assert_eq!(listed(said).unwrap(), ["tests::a", "src/lib.rs - b: c (line 3)"]);
        assert!(listed("Running...").is_err());
    }

    /// This very program lists what it has.
    #[test]
    fn a_program_lists_its_tests() {
        let program = Program { file: env::current_exe().unwrap(), folder: "/".into(), ..Program::default() };
        let tests = program.tests().unwrap();
        assert!(tests.run.iter().any(|name| name.ends_with("::a_program_lists_its_tests")), "{tests:?}");
        assert!(tests.ignored.is_empty());
    }
}
