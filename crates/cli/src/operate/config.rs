//! `--config FILE`: flags from a TOML file. Each key is put behind the command line as the flag of its name, so that one parser
//! judges both, unless the command line has that flag. What may be given several times is a list there.

use anyhow::{Context, bail};
use clap::ArgAction;
use clap::error::{ContextKind, ContextValue};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The programs that have such a file.
const PROGRAMS: [&str; 2] = ["serve", "proxy"];

/// A file of flags is short.
const LONGEST: u64 = 1 << 20;

/// What a program was given: its command line, and behind it what only the file has.
#[derive(Debug)]
pub struct Given {
    pub all: Vec<OsString>,
    file: Option<PathBuf>,
    /// What was taken from the file, by key: line and value.
    pub taken: BTreeMap<String, (usize, String)>,
}

impl Given {
    /// Reads the file that `args` name, if they do. `program` is what they are for, with its subcommands.
    ///
    /// # Errors
    ///
    /// It cannot be read, or says what is no flag: with the line.
    pub fn read(args: Vec<OsString>, program: &clap::Command) -> anyhow::Result<Given> {
        let mut given = Given { all: args, file: None, taken: BTreeMap::new() };
        let is_one = |arg: &OsString| PROGRAMS.iter().any(|name| arg == name);
        let Some(at) = given.all.iter().skip(1).position(is_one).map(|at| at + 1) else { return Ok(given) };
        let Some(command) = given.all[at].to_str().and_then(|name| program.find_subcommand(name)) else {
            return Ok(given);
        };
        let Some(path) = named(&given.all[at..]) else { return Ok(given) };
        let place = path.display().to_string();
        let text = text(&path).with_context(|| format!("--config {place} cannot be read"))?;
        let line = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
        let table = DeTable::parse(&text).map_err(|error| {
            let line = line(error.span().map_or(0, |span| span.start));
            anyhow::anyhow!("{place} line {line}: {}", error.message())
        })?;
        for (key, value) in table.get_ref() {
            let (name, at) = (key.get_ref().as_ref(), line(key.span().start));
            let place = format!("{place} line {at}");
            let flag = command.get_arguments().find(|arg| arg.get_long() == Some(name));
            let Some(flag) = flag.filter(|_| name != "config") else {
                bail!(
                    "{place}: {name:?} is no flag of `onecopy {}`{}",
                    command.get_name(),
                    near(name, command)
                );
            };
            if has(&given.all, name) {
                continue;
            }
            let switch = !flag.get_action().takes_values();
            let values = match value.get_ref() {
                DeValue::Boolean(on) if switch => vec![on.to_string()],
                _ if switch => bail!("{place}: {name} is true or false"),
                DeValue::Array(list) if matches!(flag.get_action(), ArgAction::Append) => {
                    list.iter().map(|one| plain(one.get_ref())).collect::<Option<_>>().with_context(|| {
                        format!("{place}: {name} takes a list of texts in quotes, one for each --{name}")
                    })?
                }
                one => match plain(one) {
                    Some(text) => vec![text],
                    None => bail!("{place}: {name} takes a text in quotes, or a number, as --{name} does"),
                },
            };
            for value in &values {
                match switch {
                    true if value == "true" => given.all.push(format!("--{name}").into()),
                    true => {}
                    false => given.all.push(format!("--{name}={value}").into()),
                }
            }
            given.taken.insert(name.to_owned(), (at, values.join(", ")));
        }
        given.file = Some(path);
        Ok(given)
    }

    /// Where in the file it stands what `error` is about.
    pub fn place(&self, error: &clap::Error) -> Option<String> {
        let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return None };
        let name = arg.strip_prefix("--")?.split([' ', '=']).next()?;
        let (line, _) = self.taken.get(name)?;
        Some(format!("{} line {line}", self.file.as_deref()?.display()))
    }
}

/// A value as it stands on a command line.
fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        _ => None,
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    anyhow::ensure!(file.metadata()?.is_file(), "it is not a file");
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    anyhow::ensure!(text.len() as u64 <= LONGEST, "it has more than 1 MiB");
    Ok(text)
}

/// The file that stands behind `--config`, or in it.
fn named(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter().take_while(|arg| *arg != "--");
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().map(PathBuf::from);
        }
        if let Some(path) = arg.to_str().and_then(|arg| arg.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    None
}

/// Whether the command line has that flag. (No value of a flag begins with two dashes: clap takes none.)
fn has(args: &[OsString], name: &str) -> bool {
    let is = |arg: &OsString| {
        let rest = arg.to_str().and_then(|arg| arg.strip_prefix("--")).and_then(|arg| arg.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    args.iter().take_while(|arg| *arg != "--").any(is)
}

/// The flag that was meant, perhaps.
fn near(name: &str, command: &clap::Command) -> String {
    let flags = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long);
    let nearest = flags
        .map(|flag| (strsim::jaro_winkler(name, flag), flag))
        .filter(|(near, _)| *near > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.map_or_else(
        || format!(": `onecopy {} --help` lists them", command.get_name()),
        |(_, flag)| format!("; a flag near it is {flag:?}"),
    )
}
