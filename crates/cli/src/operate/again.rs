//! SIGHUP: the config is read and the log is opened again. What can change at run time changes, and of the rest it is told that it
//! needs a restart.

use super::Flags;
use super::access::{AccessLog, Setup};
use super::config::Given;
use super::says::Says;
use anyhow::Context;
use sd_notify::NotifyState;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{info, warn};

/// How long what may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub idle: Duration,
    pub head: Duration,
    pub send: Duration,
    pub grace: Duration,
}

/// The flags of a program that can be told to read them again.
pub trait Operated: clap::Args {
    fn flags(&self) -> &Flags;
    fn times(&self) -> Times;
}

/// The flags that change at run time.
const LIVE: [&str; 7] =
    ["log-level", "access-log", "access-log-format", "idle-timeout", "head-timeout", "send-timeout", "grace"];

/// What a program goes by that may change.
#[derive(Debug)]
pub struct Again {
    program: &'static str,
    says: Says,
    log: AccessLog,
    setup: RefCell<Option<Setup>>,
    times: watch::Sender<Times>,
    /// What the config had.
    taken: RefCell<BTreeMap<String, (usize, String)>>,
}

impl Again {
    /// What the program called `program` goes by, which `args` said when it was started; and its times, as they are at any moment.
    pub fn new<A: Operated>(
        program: &'static str,
        args: &A,
        says: Says,
        log: AccessLog,
    ) -> anyhow::Result<(Again, watch::Receiver<Times>)> {
        let (times, live) = watch::channel(args.times());
        let setup = RefCell::new(args.flags().log());
        let taken = RefCell::new(given::<A>(program)?.1.taken);
        Ok((Again { program, says, log, setup, times, taken }, live))
    }

    /// Reads and opens all of it again. What is wrong is told, and changes nothing.
    pub fn read<A: Operated>(&self) {
        // systemd waits from the one to the other (Type=notify-reload, sd_notify(3)).
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            let _ = sd_notify::notify(&[NotifyState::Reloading, now]);
        }
        if let Err(why) = self.settings::<A>() {
            warn!(target: "onecopy", "goes on with the settings that it has: {why:#}");
        }
        if let Some(setup) = self.setup.borrow().clone() {
            self.log.again(setup);
        }
        let _ = sd_notify::notify(&[NotifyState::Ready]);
    }

    fn settings<A: Operated>(&self) -> anyhow::Result<()> {
        let (command, given) = given::<A>(self.program)?;
        if given.taken == *self.taken.borrow() {
            return Ok(());
        }
        let matches = command.try_get_matches_from(&given.all).map_err(|error| {
            let text = error.to_string();
            let text = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            match given.place(&error) {
                Some(place) => anyhow::anyhow!("{place}: {text}"),
                None => anyhow::anyhow!(text),
            }
        })?;
        let matches = matches.subcommand_matches(self.program).context("no flags")?;
        let args = A::from_arg_matches(matches)?;
        let before = self.taken.replace(given.taken);
        let now = self.taken.borrow();
        let value = |taken: &BTreeMap<String, (usize, String)>, key: &str| {
            taken.get(key).map(|(_, value)| value.clone())
        };
        let (mut live, mut later) = (Vec::new(), Vec::new());
        let keys: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        for key in keys.into_iter().filter(|key| value(&before, key) != value(&now, key)) {
            // A log that there was none of has nobody who writes it.
            let possible = LIVE.contains(&key.as_str())
                && (key != "access-log" || (before.contains_key(key) && now.contains_key(key)));
            if possible { &mut live } else { &mut later }.push(key.as_str());
        }
        self.says.set(args.flags().log_level);
        self.times.send_replace(args.times());
        if let (Some(setup), mut old) = (args.flags().log(), self.setup.borrow_mut())
            && old.is_some()
        {
            *old = Some(setup);
        }
        if !live.is_empty() {
            info!(target: "onecopy", "changed by --config: {}", live.join(", "));
        }
        if !later.is_empty() {
            warn!(target: "onecopy", "changed in --config, and takes effect with a restart: {}", later.join(", "));
        }
        Ok(())
    }
}

/// What the program was given, with the file as it is now, and who parses that.
fn given<A: Operated>(program: &'static str) -> anyhow::Result<(clap::Command, Given)> {
    let color = clap::Arg::new("color").long("color").global(true);
    let command =
        clap::Command::new("onecopy").arg(color).subcommand(A::augment_args(clap::Command::new(program)));
    let given = Given::read(std::env::args_os().collect(), &command)?;
    Ok((command, given))
}
