//! What the connections of a program learned about stores: told at its end, and saved as a profile where that is asked for.

use anyhow::Context;
use onecopy::Reader;
use onecopy::advanced::copy::profile::{self, PROFILE_VARIABLE, Profile, reader_name};
use onecopy::advanced::copy::{Learned, Reason};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// What one connection learned: who reads, and the ring's size in bytes.
pub type Lesson = (Reader, usize, Learned);

/// What all of them did.
#[derive(Debug, Default)]
pub struct Lessons(Mutex<BTreeMap<(&'static str, usize), Known>>);

/// About one reader and size of ring.
#[derive(Clone, Copy, Debug)]
struct Known {
    reader: Reader,
    learned: Learned,
    connections: u64,
}

impl Lessons {
    /// Adds what a connection learned. What was measured last counts; what is planned is no measurement.
    pub fn add(&self, (reader, ring, learned): Lesson) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            all.entry((reader_name(reader), ring)).or_insert(Known { reader, learned, connections: 0 });
        known.connections += 1;
        if learned.reason != Reason::Plan || known.learned.reason == Reason::Plan {
            known.learned = learned;
        }
    }

    /// All of it in words. None: nothing was to be learned.
    pub fn text(&self) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = |(&(reader, ring), known): (&(&str, usize), &Known)| {
            let Known { learned, connections, .. } = known;
            let plural = if *connections == 1 { "" } else { "s" };
            format!(
                "{learned} (reader {reader}, ring of {} KiB, {connections} connection{plural})",
                ring >> 10
            )
        };
        let parts: Vec<String> = all.iter().map(part).collect();
        (!parts.is_empty()).then(|| format!("stores: {}", parts.join("; ")))
    }

    /// Saves what was measured, on top of what is known of this machine already, and says what came of that.
    ///
    /// # Errors
    ///
    /// There is no place for it.
    pub fn save(&self) -> anyhow::Result<String> {
        self.save_in(place)
    }

    fn save_in(&self, path: impl FnOnce() -> anyhow::Result<PathBuf>) -> anyhow::Result<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let measured: Vec<_> = all.iter().filter(|(_, known)| known.learned.reason != Reason::Plan).collect();
        if measured.is_empty() {
            return Ok("--save-profile: nothing was measured that would change the profile: that takes copies of 4 KiB and more by \
                       --policy auto into a ring larger than the second level of caches, 64 MiB of them on one connection at \
                       least (`serve --lend never --buffer 8M`); `onecopy tune` measures by itself"
                .to_owned());
        }
        let path = path()?;
        let mut profile = Profile::current();
        for ((_, ring), known) in &measured {
            profile.learn(known.reader, *ring, known.learned.store);
        }
        profile.save(&path)?;
        let what = if measured.len() == 1 { "one thing" } else { "things" };
        Ok(format!(
            "saved {what} that was learned in {}; programs started from now on begin with it",
            path.display()
        ))
    }
}

/// Where the profile lies.
///
/// # Errors
///
/// The environment names no place, or says that there is to be none.
pub fn place() -> anyhow::Result<PathBuf> {
    profile::path()?.with_context(|| {
        format!("--save-profile: {PROFILE_VARIABLE}=off says not to use a profile: unset it, or leave out --save-profile")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy::advanced::copy::Store;

    #[test]
    fn what_was_measured_counts_and_what_is_planned_does_not() {
        let lessons = Lessons::default();
        assert_eq!(lessons.text(), None);
        let planned = Learned { store: Store::Cached, reason: Reason::Plan, percent: None };
        let faster = Learned { store: Store::NonTemporal, reason: Reason::Faster, percent: Some(185) };
        let ring = 8 << 20;
        lessons.add((Reader::OtherCore, ring, planned));
        assert_eq!(
            lessons.text().unwrap(),
            "stores: cached as planned (reader other-core, ring of 8192 KiB, 1 connection)"
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder/tune.toml");
        let saved = |lessons: &Lessons| lessons.save_in(|| Ok(path.clone())).unwrap();
        assert!(saved(&lessons).contains("nothing was measured") && !path.exists());
        lessons.add((Reader::OtherCore, ring, faster));
        lessons.add((Reader::OtherCore, ring, planned));
        assert_eq!(
            lessons.text().unwrap(),
            "stores: nt as measured at 185 % of cached (reader other-core, ring of 8192 KiB, 3 connections)"
        );
        assert!(saved(&lessons).starts_with("saved one thing that was learned in "));
        let begins_with = |store| {
            let mut profile = Profile::current();
            profile.learn(Reader::OtherCore, ring, store);
            profile.crossovers
        };
        assert_eq!(Profile::load(&path).unwrap().crossovers, begins_with(Store::NonTemporal));
        lessons.add((Reader::OtherCore, ring, Learned { store: Store::Cached, ..faster }));
        saved(&lessons);
        assert_eq!(Profile::load(&path).unwrap().crossovers, begins_with(Store::Cached));
        assert_ne!(begins_with(Store::Cached), begins_with(Store::NonTemporal));
    }
}
