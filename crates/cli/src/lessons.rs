//! What the connections of a program learned about stores, and its threads where no ring learns: told at its end, and saved as a profile where that
//! is asked for.

use anyhow::Context;
use onecopy::Reader;
use onecopy::advanced::copy::profile::{self, PROFILE_VARIABLE, Profile, reader_name};
use onecopy::advanced::copy::{Learned, Reason};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// What one connection learned: who reads, and the ring's size in bytes.
pub type Lesson = (Reader, usize, Learned);

/// What all of them did, by reader and size.
#[derive(Debug, Default)]
pub struct Lessons(Mutex<BTreeMap<(&'static str, usize, Where), Known>>);

/// What a size is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Where {
    Ring,
    /// What the copies of threads cycle through, into no ring.
    Footprint,
}

/// About one reader and size.
#[derive(Clone, Copy, Debug)]
struct Known {
    reader: Reader,
    learned: Learned,
    connections: u64,
}

impl Lessons {
    /// Adds what a connection learned. What was measured last counts; what is planned is no measurement.
    pub fn add(&self, lesson: Lesson) {
        self.note(Where::Ring, lesson);
    }

    /// Adds what threads learned: who reads, and what they cycle through in bytes.
    pub fn add_threads(&self, lessons: impl IntoIterator<Item = Lesson>) {
        lessons.into_iter().for_each(|lesson| self.note(Where::Footprint, lesson));
    }

    fn note(&self, of: Where, (reader, size, learned): Lesson) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            all.entry((reader_name(reader), size, of)).or_insert(Known { reader, learned, connections: 0 });
        known.connections += 1;
        if learned.reason != Reason::Plan || known.learned.reason == Reason::Plan {
            known.learned = learned;
        }
    }

    /// All of it in words. None: nothing was to be learned.
    pub fn text(&self) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = |(&(reader, size, of), known): (&(&str, usize, Where), &Known)| {
            let (Known { learned, connections, .. }, size) = (known, size >> 10);
            match of {
                Where::Ring => {
                    let plural = if *connections == 1 { "" } else { "s" };
                    format!(
                        "{learned} (reader {reader}, ring of {size} KiB, {connections} connection{plural})"
                    )
                }
                Where::Footprint => {
                    format!("{learned} (reader {reader}, copies over {size} KiB and more)")
                }
            }
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
        // (They stand by their reader. Each size that was measured keeps what was found for it.)
        for of_one in measured.chunk_by(|((one, ..), _), ((other, ..), _)| one == other) {
            let found: Vec<_> =
                of_one.iter().map(|((_, size, _), known)| (*size, known.learned.store)).collect();
            profile.learn_all(of_one[0].1.reader, &found);
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

    #[test]
    fn a_lesson_of_one_size_undoes_none_of_another() {
        let lessons = Lessons::default();
        let learned = |store| Learned { store, reason: Reason::Faster, percent: Some(150) };
        let (small, large) = (16 << 20, 128 << 20);
        lessons.add((Reader::OtherCore, small, learned(Store::NonTemporal)));
        lessons.add((Reader::OtherCore, large, learned(Store::Cached)));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.toml");
        lessons.save_in(|| Ok(path.clone())).unwrap();
        let name = reader_name(Reader::OtherCore);
        let saved = Profile::load(&path).unwrap().crossovers;
        let rows = saved.iter().filter(|row| row.reader == name);
        let streams = |footprint: u64| {
            let row = rows.clone().filter(|row| row.footprint <= footprint).max_by_key(|row| row.footprint);
            row.is_some_and(|row| row.min_len.is_some())
        };
        assert!(streams(small as u64), "{saved:?}");
        assert!(!streams(large as u64), "{saved:?}");
    }

    #[test]
    fn what_threads_learned_is_told_and_saved_like_that_of_rings() {
        let lessons = Lessons::default();
        let learned = Learned { store: Store::NonTemporal, reason: Reason::Faster, percent: Some(190) };
        let footprint = 128 << 20;
        lessons.add_threads([(Reader::NoCpu, footprint, learned)]);
        assert_eq!(
            lessons.text().unwrap(),
            "stores: nt as measured at 190 % of cached (reader no-cpu, copies over 131072 KiB and more)"
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.toml");
        lessons.save_in(|| Ok(path.clone())).unwrap();
        let mut profile = Profile::current();
        assert_ne!(Profile::load(&path).unwrap().crossovers, profile.crossovers, "something was saved");
        profile.learn(Reader::NoCpu, footprint, Store::NonTemporal);
        assert_eq!(Profile::load(&path).unwrap().crossovers, profile.crossovers);
    }
}
