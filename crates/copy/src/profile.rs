//! The profile that `onecopy tune` saves: TOML, versioned, below the XDG configuration folder. It is read and written with the
//! feature `profile` alone; a program without it goes by the formula, or by what it [installs](crate::install) itself.
//!
//! It is only ever advice on speed. One that is missing, unreadable, of another version or of another machine
//! is not used, and [`crate::status`] says so.

use crate::plan::{self, NEVER, Thresholds};
use crate::policy::{Reader, Store};
#[cfg(feature = "profile")]
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
#[cfg(feature = "profile")]
use std::fs;
#[cfg(feature = "profile")]
use std::io::Read;
#[cfg(feature = "profile")]
use std::path::Path;
use std::path::PathBuf;
use std::{fmt, io};

/// The version of the file's layout. A profile of another version must be measured anew.
pub const VERSION: u32 = 1;

/// The environment variable that names another profile, or `off` for none.
pub const PROFILE_VARIABLE: &str = "ONECOPY_TUNE";

/// No profile has more bytes; the file may be anything, a device that never ends included.
#[cfg(feature = "profile")]
const LONGEST: u64 = 1 << 20;

/// What was measured on one machine.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "profile", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct Profile {
    /// [`VERSION`].
    pub version: u32,
    /// The machine it was measured on, as [`machine`] names it.
    pub machine: String,
    /// When, in seconds since 1970.
    pub measured: u64,
    /// The fastest kernels.
    pub kernels: Kernels,
    /// Where a load gets slower.
    #[cfg_attr(feature = "profile", serde(default))]
    pub steps: Vec<Step>,
    /// From which length on non-temporal stores win.
    #[cfg_attr(feature = "profile", serde(default))]
    pub crossovers: Vec<Crossover>,
}

/// The fastest kernels of a machine, by name.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "profile", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct Kernels {
    /// For ordinary stores.
    pub cached: String,
    /// For ordinary stores in copies of `long_from` bytes and more.
    pub long: String,
    /// Where `long` begins, in bytes.
    pub long_from: u64,
    /// For non-temporal stores.
    pub stream: String,
}

/// One level of memory as a dependent load sees it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "profile", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct Step {
    /// A working set of up to this many bytes...
    pub bytes: u64,
    /// ...costs this many nanoseconds a load.
    pub ns: f64,
}

/// For one reader and one footprint: the shortest copy that goes non-temporal.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "profile", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct Crossover {
    /// `same-core`, `other-core`, `no-cpu` or `unknown`.
    pub reader: String,
    /// The footprint in bytes, a power of two; holds up to the next one listed.
    pub footprint: u64,
    /// The shortest copy in bytes that goes non-temporal; absent: none.
    #[cfg_attr(feature = "profile", serde(default, skip_serializing_if = "Option::is_none"))]
    pub min_len: Option<u32>,
}

/// A profile that cannot be used.
#[derive(Debug)]
pub enum ProfileError {
    /// The file cannot be read or written.
    Io(PathBuf, io::Error),
    /// The file is not what `onecopy tune` writes.
    Syntax(PathBuf, String),
    /// It was written by another version of onecopy.
    Version(PathBuf, u32),
    /// It was measured on another machine.
    Machine(PathBuf, String),
    /// There is no place for it.
    NoFolder,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "tune profile {}: {error}", path.display()),
            Self::Syntax(path, error) => {
                write!(
                    f,
                    "tune profile {} is not used: {error}; measure again with `onecopy tune`",
                    path.display()
                )
            }
            Self::Version(path, version) => write!(
                f,
                "tune profile {} is not used: it has version {version}, this program reads {VERSION}; measure again with `onecopy tune`",
                path.display()
            ),
            Self::Machine(path, machine) => write!(
                f,
                "tune profile {} is not used: it was measured on {machine:?}; measure this machine with `onecopy tune`",
                path.display()
            ),
            Self::NoFolder => write!(
                f,
                "no place for the tune profile: set XDG_CONFIG_HOME or HOME, or {PROFILE_VARIABLE}=/path/to/tune.toml"
            ),
        }
    }
}

impl std::error::Error for ProfileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            _ => None,
        }
    }
}

/// The readers and their names in the file.
const READERS: [(Reader, &str); 4] = [
    (Reader::SameCore, "same-core"),
    (Reader::OtherCore, "other-core"),
    (Reader::NoCpu, "no-cpu"),
    (Reader::Unknown, "unknown"),
];

/// The name of a reader in the file.
pub fn reader_name(reader: Reader) -> &'static str {
    READERS.iter().find(|(each, _)| *each == reader).map_or("unknown", |(_, name)| name)
}

/// The name of this machine's CPU: a profile is used where this is what it was when the profile was measured. Nothing that a
/// process can change for itself (its affinity, its limits) is part of it.
pub fn machine() -> String {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return crate::arch::x86_64::machine();
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    return std::fs::read_to_string("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1")
        .map_or_else(|_| std::env::consts::ARCH.to_owned(), |midr| format!("MIDR {}", midr.trim()));
}

/// Where the profile lies: `ONECOPY_TUNE` if set, else `$XDG_CONFIG_HOME/onecopy/tune.toml`, else below
/// `~/.config`. `Ok(None)`: `ONECOPY_TUNE=off`.
///
/// # Errors
///
/// [`ProfileError::NoFolder`] when the environment names no home.
pub fn path() -> Result<Option<PathBuf>, ProfileError> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = set(PROFILE_VARIABLE) {
        return Ok(if path == "off" { None } else { Some(PathBuf::from(path)) });
    }
    // The XDG base directory specification: a relative path is to be ignored.
    let config = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".config")))
        .ok_or(ProfileError::NoFolder)?;
    Ok(Some(config.join("onecopy").join("tune.toml")))
}

/// The profile that this process should use and where it lies; `None` when there is none.
#[cfg(feature = "profile")]
pub(crate) fn in_force() -> Result<Option<(Profile, PathBuf)>, ProfileError> {
    let path = match path() {
        Ok(Some(path)) => path,
        // Without a home there is no profile, which is as good as one that was never measured.
        Ok(None) | Err(ProfileError::NoFolder) => return Ok(None),
        Err(error) => return Err(error),
    };
    match Profile::load(&path) {
        Err(ProfileError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(profile) if profile.machine != machine() => Err(ProfileError::Machine(path, profile.machine)),
        Ok(profile) => Ok(Some((profile, path))),
    }
}

/// As with the feature, where there is none.
#[cfg(not(feature = "profile"))]
pub(crate) fn in_force() -> Result<Option<(Profile, PathBuf)>, ProfileError> {
    Ok(None)
}

#[cfg(feature = "profile")]
impl Profile {
    /// Reads a profile of this program's version.
    ///
    /// # Errors
    ///
    /// [`ProfileError`] when it cannot be read, isn't a profile, or has another version.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let io = |error| ProfileError::Io(path.to_owned(), error);
        let mut text = String::new();
        fs::File::open(path).map_err(io)?.take(LONGEST + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > LONGEST {
            let error = format!("it has more than {LONGEST} bytes");
            return Err(ProfileError::Syntax(path.to_owned(), error));
        }
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ProfileError> {
        /// The version comes first: another one may have other fields.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let syntax =
            |error: toml::de::Error| ProfileError::Syntax(path.to_owned(), error.message().to_owned());
        let head: Head = toml::from_str(text).map_err(syntax)?;
        if head.version != VERSION {
            return Err(ProfileError::Version(path.to_owned(), head.version));
        }
        let profile: Self = toml::from_str(text).map_err(syntax)?;
        for crossover in &profile.crossovers {
            if !READERS.iter().any(|(_, name)| *name == crossover.reader) {
                let error = format!("there is no reader {:?}", crossover.reader);
                return Err(ProfileError::Syntax(path.to_owned(), error));
            }
        }
        Ok(profile)
    }

    /// Writes the profile, whole or not at all, making its folder.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Io`] when the folder or the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), ProfileError> {
        let io = |error| ProfileError::Io(path.to_owned(), error);
        let text = toml::to_string_pretty(self).map_err(|error| io(io::Error::other(error)))?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        // A reader that comes in between sees the old profile or the new one, never half of one.
        let part = path.with_extension(format!("toml.{}", std::process::id()));
        let head = "# Written by `onecopy tune`: how fast this machine's stores are. Delete it to go back to the formula.\n\n";
        let written = fs::write(&part, format!("{head}{text}")).and_then(|()| fs::rename(&part, path));
        written.map_err(|error| {
            let _ = fs::remove_file(&part);
            io(error)
        })
    }
}

impl Profile {
    /// Makes a profile that nobody has measured, of these kernels and thresholds.
    pub(crate) fn unmeasured(kernels: Kernels, thresholds: &Thresholds) -> Profile {
        let mut profile = Profile {
            version: VERSION,
            machine: machine(),
            measured: 0,
            kernels,
            steps: Vec::new(),
            crossovers: Vec::new(),
        };
        READERS.iter().for_each(|(reader, _)| profile.set(*reader, thresholds));
        profile
    }

    /// Notes which stores were found to be better for copies of [`LEARN_MIN`](crate::LEARN_MIN) bytes and more into a ring of
    /// `footprint` bytes that `reader` reads. What streams there streams in larger footprints, too; what does not, does not in smaller
    /// ones.
    pub fn learn(&mut self, reader: Reader, footprint: usize, store: Store) {
        self.learn_all(reader, &[(footprint, store)]);
    }

    /// Notes what was found for several footprints. What was found for one says nothing of another one that was looked at itself, nor of those
    /// beyond that. Of two of about the same size (a power of two) the last one counts.
    pub fn learn_all(&mut self, reader: Reader, found: &[(usize, Store)]) {
        let mut thresholds = self.thresholds();
        let shortest = u32::try_from(crate::LEARN_MIN).unwrap_or(NEVER);
        let by_class: BTreeMap<usize, Store> =
            found.iter().map(|(footprint, store)| (plan::class(*footprint), *store)).collect();
        for (class, store) in &by_class {
            match store {
                Store::NonTemporal => {
                    let end = by_class.range(class + 1..).next().map_or(plan::CLASSES, |(next, _)| *next);
                    for class in *class..end {
                        thresholds.set(reader, class, thresholds.get(reader, class).min(shortest));
                    }
                }
                Store::Cached => {
                    let begin = by_class.range(..class).next_back().map_or(0, |(before, _)| before + 1);
                    (begin..=*class).for_each(|class| thresholds.set(reader, class, NEVER));
                }
            }
        }
        self.set(reader, &thresholds);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.measured = now.map_or(0, |since| since.as_secs());
    }

    /// Lists what `thresholds` say for that reader, where it changes.
    fn set(&mut self, reader: Reader, thresholds: &Thresholds) {
        let name = reader_name(reader);
        self.crossovers.retain(|row| row.reader != name);
        let mut before = NEVER;
        for class in 0..plan::CLASSES {
            let min = thresholds.get(reader, class);
            if min != before {
                let footprint = plan::class_bytes(class) as u64;
                let min_len = (min != NEVER).then_some(min);
                self.crossovers.push(Crossover { reader: name.to_owned(), footprint, min_len });
            }
            before = min;
        }
    }

    /// The thresholds of `Auto`: each entry holds from its footprint up to the next one listed for the same reader.
    pub(crate) fn thresholds(&self) -> Thresholds {
        let mut thresholds = Thresholds::never();
        for (reader, name) in READERS {
            let mut rows: Vec<_> = self.crossovers.iter().filter(|row| row.reader == name).collect();
            rows.sort_by_key(|row| row.footprint);
            for row in rows {
                let from = plan::class(usize::try_from(row.footprint).unwrap_or(usize::MAX));
                for class in from..plan::CLASSES {
                    thresholds.set(reader, class, row.min_len.unwrap_or(NEVER));
                }
            }
        }
        thresholds
    }
}

#[cfg(all(test, feature = "profile"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn crossover() -> impl Strategy<Value = Crossover> {
        (0..READERS.len(), any::<u32>(), prop::option::of(any::<u32>())).prop_map(
            |(reader, footprint, min_len)| Crossover {
                reader: READERS[reader].1.to_owned(),
                footprint: footprint.into(),
                min_len,
            },
        )
    }

    fn profile() -> impl Strategy<Value = Profile> {
        let steps = prop::collection::vec((any::<u32>(), 0.0..1e6_f64), 0..4);
        (".{0,20}", steps, prop::collection::vec(crossover(), 0..6)).prop_map(|(name, steps, crossovers)| {
            Profile {
                version: VERSION,
                machine: name.clone(),
                measured: 1,
                kernels: Kernels {
                    cached: name.clone(),
                    long: name.clone(),
                    long_from: 1 << 14,
                    stream: name,
                },
                steps: steps.into_iter().map(|(bytes, ns)| Step { bytes: bytes.into(), ns }).collect(),
                crossovers,
            }
        })
    }

    proptest! {
        #[test]
        fn a_profile_comes_back_as_it_was(profile in profile()) {
            let text = toml::to_string_pretty(&profile).unwrap();
            prop_assert_eq!(Profile::parse(&text, Path::new("x")).unwrap(), profile);
        }

        #[test]
        fn a_spoilt_profile_is_used_or_refused(
            profile in profile(),
            spoils in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut text = toml::to_string_pretty(&profile).unwrap().into_bytes();
            for (at, byte) in spoils {
                let at = at.index(text.len());
                text[at] = byte;
            }
            match Profile::parse(&String::from_utf8_lossy(&text), Path::new("tune.toml")) {
                Ok(spoilt) => drop(spoilt.thresholds()),
                Err(error) => prop_assert!(error.to_string().contains("measure again"), "{}", error),
            }
        }
    }

    #[test]
    fn what_was_learned_changes_what_it_is_about() {
        let empty = Profile { crossovers: Vec::new(), ..Profile::current() };
        assert_eq!(empty.thresholds(), Thresholds::never());
        let (mib, shortest) = (1usize << 20, crate::LEARN_MIN as u32);
        let mut profile = empty.clone();
        profile.learn(Reader::OtherCore, 8 * mib, Store::NonTemporal);
        let get =
            |profile: &Profile, reader, footprint| profile.thresholds().get(reader, plan::class(footprint));
        assert_eq!(get(&profile, Reader::OtherCore, 8 * mib), shortest);
        assert_eq!(get(&profile, Reader::OtherCore, 256 * mib), shortest);
        assert_eq!(get(&profile, Reader::OtherCore, 4 * mib), NEVER);
        assert_eq!(get(&profile, Reader::NoCpu, 8 * mib), NEVER, "another reader");
        profile.learn(Reader::OtherCore, 32 * mib, Store::Cached);
        assert_eq!(get(&profile, Reader::OtherCore, 32 * mib), NEVER);
        assert_eq!(get(&profile, Reader::OtherCore, 8 * mib), NEVER, "never less in a larger footprint");
        assert_eq!(get(&profile, Reader::OtherCore, 64 * mib), shortest);
        // It comes back from its file, what the formula says included.
        let mut profile = Profile::current();
        profile.learn(Reader::Unknown, mib, Store::NonTemporal);
        let text = toml::to_string_pretty(&profile).unwrap();
        assert_eq!(Profile::parse(&text, Path::new("x")).unwrap(), profile);
        assert!(profile.measured > 0);
        let caches = plan::Caches { l2: 2 << 20, l3: 480 << 20, l3_threads: 2, ..plan::Caches::default() };
        let formula = Thresholds::formula(caches);
        assert_eq!(Profile::unmeasured(empty.kernels, &formula).thresholds(), formula);
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = Profile::load(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero") && error.contains("more than 1048576 bytes"), "{error}");
    }
}
