//! Which kernels run, and which stores are planned: found out once, kept as function pointers and thresholds, called once per copy and never
//! per line.
//!
//! The order of precedence: [`force`], then `ONECOPY_COPY` in the environment, then the profile that `onecopy tune`
//! saved, then what CPUID suggests.

// A cache of a decision that every thread would make alike, private to this crate: no protocol that loom should see.
#![allow(clippy::disallowed_types)]

use crate::arch::{self, CopyFn, FillFn, Kernel};
use crate::caller;
use crate::learn::Learner;
use crate::plan::Thresholds;
use crate::profile::{self, Kernels, Profile};
use crate::{Hint, LEARN_MIN, Policy, Reader, STREAM_MIN, Store};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The environment variable that forces a kernel by name.
pub const FORCE_VARIABLE: &str = "ONECOPY_COPY";

/// No such kernel here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// No kernel of that name exists on this architecture.
    Unknown(String),
    /// The kernel exists, but this CPU lacks its instructions.
    Unavailable(&'static str),
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Kernel::all().map(Kernel::name).collect();
        match self {
            Self::Unknown(name) => write!(f, "there is no copy kernel {name:?}")?,
            Self::Unavailable(name) => write!(f, "this CPU cannot run the copy kernel {name:?}")?,
        }
        write!(f, "; use one of: {}", names.join(", "))
    }
}

impl std::error::Error for KernelError {}

#[cfg(all(target_arch = "x86_64", not(miri)))]
static ARCH: &[Kernel] = arch::x86_64::ALL;
#[cfg(all(target_arch = "aarch64", not(miri)))]
static ARCH: &[Kernel] = arch::aarch64::ALL;
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
static ARCH: &[Kernel] = &[];
static GENERIC: Kernel = arch::generic::KERNEL;

impl Kernel {
    /// The kernels that this CPU can run, the plainest first.
    pub fn all() -> impl Iterator<Item = &'static Kernel> {
        std::iter::once(&GENERIC).chain(ARCH).filter(|kernel| (kernel.available)())
    }

    /// The kernel of this name.
    ///
    /// # Errors
    ///
    /// [`KernelError`] when it doesn't exist or this CPU cannot run it.
    pub fn by_name(name: &str) -> Result<&'static Kernel, KernelError> {
        let kernel = std::iter::once(&GENERIC)
            .chain(ARCH)
            .find(|kernel| kernel.name() == name)
            .ok_or_else(|| KernelError::Unknown(name.to_owned()))?;
        if (kernel.available)() { Ok(kernel) } else { Err(KernelError::Unavailable(kernel.name())) }
    }

    /// Its name, as `ONECOPY_COPY` takes it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it does, in a few words.
    pub fn about(&self) -> &'static str {
        self.about
    }

    /// Whether it has non-temporal stores.
    pub fn streams(&self) -> bool {
        self.copy_stream.is_some()
    }

    /// Copies `src` over `dst` with this kernel and says which stores it used.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn copy(&self, dst: &mut [u8], src: &[u8], store: Store) -> Store {
        crate::same_length(dst.len(), src.len());
        // SAFETY: two borrowed slices of one length never overlap when one is mutable; a Kernel that can be held
        // is available.
        unsafe {
            match (store, self.copy_stream) {
                (Store::NonTemporal, Some(stream)) => {
                    stream(dst.as_mut_ptr(), src.as_ptr(), src.len());
                    Store::NonTemporal
                }
                _ => {
                    (self.copy_cached)(dst.as_mut_ptr(), src.as_ptr(), src.len());
                    Store::Cached
                }
            }
        }
    }

    /// Fills `dst` with this kernel and says which stores it used.
    pub fn fill(&self, dst: &mut [u8], value: u8, store: Store) -> Store {
        // SAFETY: a borrowed mutable slice; a Kernel that can be held is available.
        unsafe {
            match (store, self.fill_stream) {
                (Store::NonTemporal, Some(stream)) => {
                    stream(dst.as_mut_ptr(), value, dst.len());
                    Store::NonTemporal
                }
                _ => {
                    (self.fill_cached)(dst.as_mut_ptr(), value, dst.len());
                    Store::Cached
                }
            }
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name())
    }
}

/// What every copy of more than a few lines looks at: one load away, never changed once published.
pub(crate) struct Engine {
    pub(crate) copy_cached: CopyFn,
    pub(crate) fill_cached: FillFn,
    /// Copies shorter than this, in bytes, take `copy_cached` unless they are asked to stream: it is what everything below would
    /// say, and to ask it takes some 2 ns.
    ///
    /// Invariant: above [`STREAM_MIN`], up to which nothing streams.
    pub(crate) plain_below: usize,
    /// From this length on, cached copies and fills take the next two.
    pub(crate) long_from: usize,
    /// The same of copies whose destination is spread over [`Engine::learns_from`] bytes and more.
    long_from_afar: usize,
    pub(crate) copy_long: CopyFn,
    pub(crate) fill_long: FillFn,
    pub(crate) copy_stream: CopyFn,
    pub(crate) fill_stream: FillFn,
    /// False when the streaming kernel has no non-temporal stores: then nothing may be called non-temporal.
    pub(crate) streams: bool,
    pub(crate) thresholds: Thresholds,
    /// Whether the thresholds come from figures of this machine.
    pub(crate) measured: bool,
    /// The smallest footprint, in bytes, with which [`Learner`] learns; [`usize::MAX`]: none.
    pub(crate) learns_from: usize,
    status: Status,
}

/// What the engine uses, and why: for `onecopy doctor` and the head of every benchmark.
#[derive(Clone, Debug)]
pub struct Status {
    /// The kernel for ordinary stores.
    pub cached: &'static str,
    /// The kernel for ordinary stores in copies of `long_from` bytes and more.
    pub long: &'static str,
    /// Where `long` begins, in bytes. Without a profile copies begin at [`LEARN_MIN`] with it where their destination is spread over more than
    /// the second level of caches holds.
    pub long_from: usize,
    /// The kernel for non-temporal stores.
    pub stream: &'static str,
    /// Where the thresholds come from: a profile's path, or the formula.
    pub thresholds: String,
    /// What was asked for and could not be had (a kernel this CPU lacks, a profile of another machine), each
    /// with what to do about it. Empty is the normal case.
    pub notes: Vec<String>,
}

impl Engine {
    /// Whether a cached copy of `len` bytes, into a destination of `footprint`, takes the long kernel.
    #[inline(always)]
    pub(crate) fn is_long(&self, len: usize, footprint: usize) -> bool {
        len >= self.long_from || (len >= self.long_from_afar && footprint >= self.learns_from)
    }

    #[inline(always)]
    pub(crate) fn plan(&self, len: usize, hint: Hint) -> Store {
        if !self.streams {
            return Store::Cached;
        }
        match asked(hint.policy) {
            Some(store) => store,
            None => self.thresholds.auto(len, hint.footprint, hint.reader),
        }
    }

    /// Which stores a copy gets: by what its thread has found out, where there is anything to find out, else as planned.
    #[inline(always)]
    pub(crate) fn stores(&self, len: usize, hint: Hint) -> Store {
        let planned = self.plan(len, hint);
        let footprint = hint.footprint.max(len);
        if footprint >= self.learns_from && len >= LEARN_MIN && hint.policy == Policy::Auto {
            return caller::store(len, footprint, hint.reader, planned, self.measured);
        }
        planned
    }
}

/// Says which stores a copy of `len` bytes will get where nothing was [learned](crate::learned()). [`Store::NonTemporal`] also needs
/// a kernel that has such stores, and a copy longer than [`STREAM_MIN`].
#[inline]
pub fn plan(len: usize, hint: Hint) -> Store {
    if len <= STREAM_MIN {
        return Store::Cached;
    }
    engine().plan(len, hint)
}

impl Learner {
    /// Begins to learn about a ring of `capacity` bytes that `reader` reads, of which `sent` bytes went through it
    /// already. None where nothing is to be learned: a ring that fits the second level of caches gets ordinary stores, and
    /// where [`force`](crate::force()) or `ONECOPY_COPY` names the kernel, that is what shall run.
    pub fn for_ring(capacity: usize, sent: u64, reader: Reader) -> Option<Learner> {
        let engine = engine();
        let plan = engine.thresholds.auto(LEARN_MIN.max(64 << 10), capacity, reader);
        (capacity >= engine.learns_from).then(|| Learner::new(capacity, sent, plan, engine.measured))
    }
}

impl Profile {
    /// What this process goes by where nothing was learned, as a profile: the one that was saved, if it is this machine's, else
    /// what follows from the caches that the CPU reports.
    pub fn current() -> Profile {
        if let Ok(Some((profile, _))) = profile::in_force() {
            return profile;
        }
        let names = preferred();
        let kernels = Kernels {
            cached: names.cached.name().to_owned(),
            long: names.long.name().to_owned(),
            // (TOML has no larger number.)
            long_from: (names.long_from as u64).min(i64::MAX as u64),
            stream: names.stream.name().to_owned(),
        };
        Profile::unmeasured(kernels, &Thresholds::formula(arch_caches()))
    }
}

/// The engine in force; null until the first copy that needs it. Replaced engines are leaked, because
/// another thread may be inside a copy that reads them: that happens in tests and in `onecopy tune` only.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
/// Serialises making and replacing engines.
static REPLACE: Mutex<Option<&'static Kernel>> = Mutex::new(None);

/// The engine in force.
#[inline(always)]
pub(crate) fn engine() -> &'static Engine {
    // Acquire: pairs with the Release store of `publish`; what the pointer leads to was written before it.
    let engine = ENGINE.load(Ordering::Acquire);
    if engine.is_null() {
        return first_engine();
    }
    // SAFETY: a non-null pointer was published by `publish` from a leaked box: valid, and never written again.
    unsafe { &*engine }
}

#[cold]
fn first_engine() -> &'static Engine {
    let forced = REPLACE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Acquire: as in `engine`; another thread may have come first.
    let engine = ENGINE.load(Ordering::Acquire);
    if !engine.is_null() {
        // SAFETY: as in `engine`.
        return unsafe { &*engine };
    }
    publish(make(*forced))
}

fn publish(engine: Engine) -> &'static Engine {
    let engine = Box::leak(Box::new(engine));
    // Release: pairs with the Acquire load of `engine`.
    ENGINE.store(engine, Ordering::Release);
    engine
}

/// Makes every copy and fill of this process take `kernel`, or, with `None`, goes back to what
/// `ONECOPY_COPY`, the profile and CPUID say, read again. Leaks the engine that was in force (some hundred bytes): another
/// thread may be using it.
pub fn force(kernel: Option<&'static Kernel>) {
    let mut forced = REPLACE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *forced = kernel;
    publish(make(kernel));
}

/// Puts a profile in force for this process without saving it, as after reading it from its file.
pub fn install(profile: &Profile) {
    let forced = REPLACE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    publish(make_with(*forced, Some((profile.clone(), "measured just now".to_owned())), Vec::new()));
}

/// What the engine uses, and why.
pub fn status() -> Status {
    engine().status.clone()
}

fn make(forced: Option<&'static Kernel>) -> Engine {
    let mut notes = Vec::new();
    let profile = match profile::in_force() {
        Ok(found) => found.map(|(profile, path)| (profile, path.display().to_string())),
        Err(error) => {
            notes.push(error.to_string());
            None
        }
    };
    make_with(forced, profile, notes)
}

fn make_with(
    forced: Option<&'static Kernel>,
    profile: Option<(Profile, String)>,
    mut notes: Vec<String>,
) -> Engine {
    let mut chosen = preferred();
    if let Some((profile, _)) = &profile {
        match Choice::named(&profile.kernels) {
            Ok(choice) => chosen = choice,
            Err(error) => notes.push(format!("tune profile: {error}")),
        }
    }
    let mut named = forced.is_some();
    match std::env::var(FORCE_VARIABLE) {
        Ok(name) => match Kernel::by_name(&name) {
            Ok(kernel) => (chosen, named) = (Choice::only(kernel), true),
            Err(error) => notes.push(format!("{FORCE_VARIABLE}: {error}")),
        },
        Err(std::env::VarError::NotPresent) => {}
        Err(error) => notes.push(format!("{FORCE_VARIABLE}: {error}")),
    }
    if let Some(kernel) = forced {
        chosen = Choice::only(kernel);
    }
    engine_of(chosen, named, profile, notes)
}

/// The engine of these kernels, which somebody has `named` or not.
fn engine_of(chosen: Choice, named: bool, profile: Option<(Profile, String)>, notes: Vec<String>) -> Engine {
    let Choice { cached, long, long_from, stream } = chosen;
    let learns_from = if named || !stream.streams() { usize::MAX } else { arch_caches().fits_no_more() };
    let measured = profile.is_some();
    // Where lines come from memory, 0074 has the figures. A profile has one length for near and far.
    let long_from_afar =
        if measured || long_from == usize::MAX { long_from } else { long_from.min(LEARN_MIN) };
    let (thresholds, origin) = match profile {
        Some((profile, path)) => (profile.thresholds(), path),
        None => {
            let caches = arch_caches();
            (
                Thresholds::formula(caches),
                format!(
                    "formula, from the cache sizes that the CPU reports ({caches}); `onecopy tune` measures"
                ),
            )
        }
    };
    let no_plan = if stream.streams() { long_from.min(thresholds.least()) } else { long_from };
    let no_plan = if learns_from == usize::MAX { no_plan } else { no_plan.min(LEARN_MIN) };
    Engine {
        copy_cached: cached.copy_cached,
        fill_cached: cached.fill_cached,
        plain_below: no_plan.max(STREAM_MIN + 1),
        long_from,
        long_from_afar,
        copy_long: long.copy_cached,
        fill_long: long.fill_cached,
        copy_stream: stream.copy_stream.unwrap_or(stream.copy_cached),
        fill_stream: stream.fill_stream.unwrap_or(stream.fill_cached),
        streams: stream.streams(),
        thresholds,
        measured,
        learns_from,
        status: Status {
            cached: cached.name(),
            long: long.name(),
            long_from,
            stream: stream.name(),
            thresholds: origin,
            notes,
        },
    }
}

/// Which kernels the engine takes.
pub(crate) struct Choice {
    pub(crate) cached: &'static Kernel,
    pub(crate) long: &'static Kernel,
    pub(crate) long_from: usize,
    pub(crate) stream: &'static Kernel,
}

impl Choice {
    /// One kernel for everything.
    fn only(kernel: &'static Kernel) -> Self {
        Self { cached: kernel, long: kernel, long_from: usize::MAX, stream: kernel }
    }

    fn named(names: &Kernels) -> Result<Self, KernelError> {
        Ok(Self {
            cached: Kernel::by_name(&names.cached)?,
            long: Kernel::by_name(&names.long)?,
            long_from: usize::try_from(names.long_from).unwrap_or(usize::MAX),
            stream: Kernel::by_name(&names.stream)?,
        })
    }
}

/// The kernels that fit this CPU when nothing was measured or forced.
pub(crate) fn preferred() -> Choice {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let names = arch::x86_64::prefers();
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    let names = arch::aarch64::prefers();
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let names =
        arch::Preference { cached: "generic", long: "generic", long_from: usize::MAX, stream: "generic" };
    let kernel = |name| Kernel::by_name(name).unwrap_or(&GENERIC);
    Choice {
        cached: kernel(names.cached),
        long: kernel(names.long),
        long_from: names.long_from,
        stream: kernel(names.stream),
    }
}

/// The data cache sizes that the CPU or the kernel reports.
pub(crate) fn arch_caches() -> crate::plan::Caches {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return arch::x86_64::caches();
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    return crate::plan::Caches::from_sysfs();
}

/// The store that `policy` asks for outright, if it does.
#[inline(always)]
pub(crate) fn asked(policy: Policy) -> Option<Store> {
    match policy {
        Policy::Cached => Some(Store::Cached),
        Policy::NonTemporal => Some(Store::NonTemporal),
        Policy::Auto => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_copies_begin_sooner_where_their_destination_is_spread_wide() {
        let [cached, long] = [&GENERIC, Kernel::all().last().unwrap()];
        let (near, far) = (arch_caches().fits_no_more() - 1, arch_caches().fits_no_more());
        let lengths = |engine: &Engine, footprint| {
            let all = [LEARN_MIN - 1, LEARN_MIN, 8 << 10, 16 << 10];
            all.map(|len| engine.is_long(len, footprint))
        };
        let choice = |long_from| Choice { cached, long, long_from, stream: long };
        let two = engine_of(choice(16 << 10), false, None, Vec::new());
        if two.learns_from == usize::MAX {
            println!("lacking: a kernel with non-temporal stores");
            return;
        }
        assert_eq!(lengths(&two, near), [false, false, false, true]);
        assert_eq!(lengths(&two, far), [false, true, true, true]);
        let one = engine_of(choice(usize::MAX), false, None, Vec::new());
        assert_eq!(lengths(&one, far), [false; 4], "there is no second one");
        let named = engine_of(choice(16 << 10), true, None, Vec::new());
        assert_eq!(lengths(&named, far), [false, false, false, true]);
        let profile = (Profile::current(), "measured".to_owned());
        let measured = engine_of(choice(16 << 10), false, Some(profile), Vec::new());
        assert_eq!(lengths(&measured, far), [false, false, false, true], "as the profile says");
    }
}
