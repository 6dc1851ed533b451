//! The files below the root, opened so that no path leaves it, and the memory that keeps some of them.

use crate::counters::Counters;
use crate::http::conditional::{Validators, whole_seconds};
use crate::http::request::Refusal;
use anyhow::Context;
use lru::LruCache;
use onecopy::Sealed;
use onecopy_sys::frozen::Frozen;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::cmp::Ordering;
use std::error::Error;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

/// One file as it was when it was opened.
#[derive(Debug)]
pub struct Object {
    /// Read with pread only: a mapping of a file that is cut short would kill this process (SIGBUS).
    pub file: File,
    /// Length in bytes.
    pub length: u64,
    /// Tag and date.
    pub validators: Validators,
    /// Media type by the name's ending.
    pub media: String,
    /// The whole content, when it is kept in memory.
    pub memory: Option<Frozen>,
    /// The same as pages, once a stack of our own sent some.
    pages: OnceLock<Option<Sealed>>,
    /// What `memory` takes of the store's room, until nobody reads it any more.
    room: Option<Room>,
    identity: Identity,
    /// When it was opened, a change had to show in `identity` already: see [`TICK`].
    settled: bool,
}

/// What of a file tells that it is another one, or has changed, as of stat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    length: u64,
}

impl Identity {
    fn of(meta: &Metadata) -> Identity {
        Identity {
            device: meta.dev(),
            inode: meta.ino(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            length: meta.len(),
        }
    }
}

/// The kernel's clock for files goes in steps of up to 10 ms (CONFIG_HZ=100): what is written within one looks the same.
const TICK: Duration = Duration::from_millis(20);

/// Whether `now` lies so far behind a time of a file that the next change gets another one.
fn is_past((seconds, nanos): (i64, i64), now: SystemTime) -> bool {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(TICK);
    (now.as_secs() as i64, i64::from(now.subsec_nanos())) >= (seconds, nanos)
}

/// A file that changed while it was being sent: what came of it is no version that there ever was.
#[derive(Debug)]
struct Changed(&'static str);

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the file {} while it was being sent; to replace a file, write another one and rename it",
            self.0
        )
    }
}

impl Error for Changed {}

/// The error for a file that was cut short while it was being sent.
pub fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, Changed("became shorter"))
}

/// Whether that is what went wrong.
pub fn has_changed(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|why| why.is::<Changed>())
}

impl Object {
    /// Asked before the last bytes go, while the peer can still be shown that they are not what was promised: an error if
    /// the file was overwritten or cut short since it was opened, as far as its time and its size tell. One that has only
    /// grown is taken for a log: what it had is still there.
    pub fn still(&self) -> io::Result<()> {
        if self.memory.is_some() {
            return Ok(());
        }
        let now = Identity::of(&self.file.metadata()?);
        match now.length.cmp(&self.length) {
            Ordering::Less => Err(cut_short()),
            Ordering::Equal if now.modified != self.identity.modified => {
                Err(io::Error::other(Changed("was overwritten")))
            }
            Ordering::Equal | Ordering::Greater => Ok(()),
        }
    }

    /// When the file was last changed in any way (st_ctime), in seconds and nanoseconds.
    pub fn changed(&self) -> (i64, i64) {
        self.identity.changed
    }

    /// Somebody else may keep its memory for so long from now on: until then it takes its room, whatever becomes of this value.
    pub fn stays_for(&self, span: Duration) {
        if let Some(room) = &self.room {
            let until = Instant::now() + span;
            let mut stays = room.stays.lock().unwrap_or_else(PoisonError::into_inner);
            *stays = stays.max(Some(until));
        }
    }

    /// Its content as pages to be sent by reference, where it is kept in memory.
    pub fn pages(&self) -> Option<&Sealed> {
        let memory = self.memory.as_ref()?;
        self.pages.get_or_init(|| Sealed::new(memory).ok()).as_ref()
    }

    /// Bytes of memory that its content takes.
    fn weight(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }
}

/// What is known of an object by when it was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// For how long this may be used again.
    pub left: Duration,
    /// Its date is its own: the second of its last change was over. Before that the next change may get the same date.
    pub dated: bool,
}

/// What a path leads to.
#[derive(Clone, Debug)]
pub enum Found {
    /// A regular file.
    Object(Arc<Object>, Known),
    /// A folder, asked for without the `/` at its end.
    Folder,
}

#[derive(Debug)]
struct Kept {
    object: Arc<Object>,
    checked: Instant,
    dated: bool,
}

/// Open files and their content, by path, the least recently asked for leaving first.
#[derive(Debug)]
struct Cache {
    kept: LruCache<String, Kept>,
    /// Invariant: the sum of the lengths of `memory` of all that is kept; never more than `limit` after `keep`.
    used: usize,
    limit: usize,
}

/// A part of the room that all content in memory takes together, kept or only on its way. Given back when dropped, or later.
#[derive(Debug)]
struct Room {
    taken: Arc<Mutex<Taken>>,
    bytes: usize,
    /// When it is given back at the earliest.
    stays: Mutex<Option<Instant>>,
}

/// What is taken of the room.
#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    /// Of these: what is given back when the time has come. (Each is a file's: they are as few as the room has room for.)
    later: Vec<(Instant, usize)>,
}

impl Room {
    /// None where `most` would be exceeded.
    fn take(taken: &Arc<Mutex<Taken>>, bytes: usize, most: usize) -> Option<Room> {
        let mut sum = taken.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes > most.saturating_sub(sum.bytes) {
            let now = Instant::now();
            let back: usize =
                sum.later.extract_if(.., |(until, _)| *until <= now).map(|(_, bytes)| bytes).sum();
            sum.bytes -= back;
        }
        if bytes > most.saturating_sub(sum.bytes) {
            return None;
        }
        sum.bytes += bytes;
        Some(Room { taken: taken.clone(), bytes, stays: Mutex::default() })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let stays = *self.stays.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match stays.filter(|until| *until > Instant::now()) {
            Some(until) => taken.later.push((until, self.bytes)),
            None => taken.bytes -= self.bytes,
        }
    }
}

/// Most files held open between requests.
const OPEN_FILES: usize = 1024;

/// The served folder.
#[derive(Debug)]
pub struct Store {
    root: OwnedFd,
    cache: Mutex<Cache>,
    fresh: Duration,
    limit: usize,
    /// Bytes of content in memory, kept or not.
    taken: Arc<Mutex<Taken>>,
}

impl Store {
    /// Opens the folder. `limit` bytes of content are kept in memory; what is kept is looked at again after
    /// `fresh`.
    pub fn open(root: &Path, limit: usize, fresh: Duration) -> anyhow::Result<Store> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root_fd = rustix::fs::open(root, flags, Mode::empty())
            .with_context(|| format!("--root {}: cannot open this folder", root.display()))?;
        beneath(&root_fd, ".", READ).map_err(anyhow::Error::from).with_context(|| {
            format!("--root {}: cannot read it with openat2 (Linux 5.6 or newer is needed)", root.display())
        })?;
        let kept = LruCache::new(const { std::num::NonZeroUsize::new(OPEN_FILES).unwrap() });
        let (cache, taken) = (Mutex::new(Cache { kept, used: 0, limit }), Arc::default());
        Ok(Store { root: root_fd, cache, fresh, limit, taken })
    }

    /// Finds what a relative path (see [`crate::http::path::relative`]) names. A file that is read into memory for it is
    /// counted.
    pub fn find(&self, path: &str, counters: &mut Counters) -> Result<Found, Refusal> {
        if let Some((object, known)) = self.lock().fresh(path, self.fresh)
            // The memory is whole whatever becomes of the file. An open file shows what is done to it, and to its name: it
            // may be shorter, removed or forbidden by now.
            && (object.memory.is_some()
                || object.file.metadata().is_ok_and(|now| Identity::of(&now) == object.identity))
        {
            return Ok(Found::Object(object, known));
        }
        let name = match path {
            "" => "index.html".to_owned(),
            folder if folder.ends_with('/') => format!("{folder}index.html"),
            file => file.to_owned(),
        };
        // One that changes while it is put into memory is taken as it is then.
        match self.look(path, &name, true, counters)? {
            Some(found) => Ok(found),
            None => self.look(path, &name, false, counters)?.ok_or(INTERNAL),
        }
    }

    /// Opens what lies under `name`. None, with `anew`: it was changed meanwhile, and is to be looked at anew.
    fn look(
        &self,
        path: &str,
        name: &str,
        anew: bool,
        counters: &mut Counters,
    ) -> Result<Option<Found>, Refusal> {
        let file = match find(&self.root, name) {
            Ok(Some(file)) => File::from(file),
            Ok(None) => return Err(NOT_FOUND),
            Err(error) => {
                // What was kept under that name would hold a removed file's room on the disk.
                self.lock().forget(path);
                return Err(refusal(error));
            }
        };
        let meta = file.metadata().map_err(|_| INTERNAL)?;
        if meta.is_dir() {
            return Ok(Some(Found::Folder));
        }
        if !meta.is_file() {
            return Err(NOT_FOUND); // since a moment ago
        }
        let (identity, now) = (Identity::of(&meta), SystemTime::now());
        let dated = is_past((meta.mtime().saturating_add(1), 0), now);
        let known = Known { left: self.fresh, dated };
        if let Some(object) = self.lock().unchanged(path, identity, dated) {
            return Ok(Some(Found::Object(object, known)));
        }
        let nanos = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        let modified = meta.modified().map(whole_seconds).map_err(|_| INTERNAL)?;
        let media = mime_guess::from_path(name).first_or_octet_stream();
        let media = match media.type_() == "text" {
            true => format!("{media}; charset=utf-8"),
            false => media.to_string(),
        };
        let etag = format!("\"{nanos:x}-{:x}-{:x}\"", meta.len(), meta.ino());
        let mut object = Object {
            length: meta.len(),
            validators: Validators { etag, modified },
            media,
            memory: None,
            pages: OnceLock::new(),
            room: None,
            identity,
            settled: is_past(identity.changed, now),
            file,
        };
        // One object never takes more than half of the memory: it would push out everything else.
        if object.length > 0 && object.length <= (self.limit / 2) as u64 {
            let length = object.length as usize;
            // Many who ask at once for what is not kept read it each, and what is let go stays with those who still send it:
            // together they get as much again as is kept. Beyond that the file is sent, and kept when there is room.
            object.room = Room::take(&self.taken, length, self.limit.saturating_mul(2));
            if object.room.is_none() {
                return Ok(Some(Found::Object(Arc::new(object), known)));
            }
            object.memory = Frozen::read(&object.file, length, &mut counters.kernel_copied).ok();
            counters.cache_fills += u64::from(object.memory.is_some());
            if object.file.metadata().ok().is_none_or(|now| Identity::of(&now) != identity) {
                if anew {
                    return Ok(None);
                }
                object.memory = None;
            }
            object.room.take_if(|_| object.memory.is_none());
        }
        let object = Arc::new(object);
        self.lock().keep(path, object.clone(), dated);
        Ok(Some(Found::Object(object, known)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// What was looked at less than `fresh` ago.
    fn fresh(&mut self, path: &str, fresh: Duration) -> Option<(Arc<Object>, Known)> {
        let kept = self.kept.get(path)?;
        let known = Known { left: fresh.saturating_sub(kept.checked.elapsed()), dated: kept.dated };
        (!known.left.is_zero()).then(|| (kept.object.clone(), known))
    }

    fn unchanged(&mut self, path: &str, identity: Identity, dated: bool) -> Option<Arc<Object>> {
        let kept = self.kept.get_mut(path)?;
        // Memory that was read within the tick of a change may lack the next one, which looked the same.
        if kept.object.identity != identity || !kept.object.settled {
            return None;
        }
        (kept.checked, kept.dated) = (Instant::now(), dated);
        Some(kept.object.clone())
    }

    fn forget(&mut self, path: &str) {
        if let Some(old) = self.kept.pop(path) {
            self.used -= old.object.weight();
        }
    }

    fn keep(&mut self, path: &str, object: Arc<Object>, dated: bool) {
        self.used += object.weight();
        let kept = Kept { object, checked: Instant::now(), dated };
        if let Some((_, old)) = self.kept.push(path.to_owned(), kept) {
            self.used -= old.object.weight();
        }
        while self.used > self.limit {
            let Some((_, old)) = self.kept.pop_lru() else { break };
            self.used -= old.object.weight();
        }
    }
}

/// Whatever is not to be seen is not there.
pub const NOT_FOUND: Refusal = Refusal { status: 404, why: "there is no such file" };
const INTERNAL: Refusal = Refusal { status: 500, why: "the file cannot be read" };

/// NONBLOCK keeps a pipe from holding this thread, NOCTTY a terminal from becoming this process's.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens a file or a folder below the root; None for a socket, a pipe or a device. Those are looked at and not opened: to open
/// a pipe takes its writer's one reader away, and a device may do anything (a watchdog starts).
fn find(root: &OwnedFd, path: &str) -> Result<Option<OwnedFd>, Errno> {
    let place = beneath(root, path, OFlags::PATH)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) {
        FileType::RegularFile | FileType::Directory => beneath(root, path, READ).map(Some),
        _ => Ok(None),
    }
}

/// Opens below the root: the kernel refuses every way out of it, links included, even while someone else is
/// renaming folders (openat2(2), RESOLVE_BENEATH).
fn beneath(root: &OwnedFd, path: &str, how: OFlags) -> Result<OwnedFd, Errno> {
    let flags = how | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..8 {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {} // a rename raced with the look-up
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn refusal(error: Errno) -> Refusal {
    match error {
        // XDEV and LOOP are ways out of the root: not even their existence is told.
        Errno::NOENT
        | Errno::NOTDIR
        | Errno::XDEV
        | Errno::LOOP
        | Errno::NAMETOOLONG
        | Errno::NXIO
        | Errno::INVAL => NOT_FOUND,
        Errno::ACCESS | Errno::PERM => Refusal { status: 403, why: "the daemon may not read this file" },
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
            Refusal { status: 503, why: "the daemon is out of descriptors or memory; try again" }
        }
        _ => INTERNAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn found(store: &Store, path: &str) -> Result<Arc<Object>, u16> {
        match store.find(path, &mut Counters::default()) {
            Ok(Found::Object(object, _)) => Ok(object),
            Ok(Found::Folder) => Err(301),
            Err(refusal) => Err(refusal.status),
        }
    }

    fn until_settled(path: &Path) {
        let identity = Identity::of(&fs::metadata(path).unwrap());
        while !is_past(identity.changed, SystemTime::now()) {
            std::thread::sleep(TICK);
        }
    }

    #[test]
    fn stays_below_the_root() {
        let outside = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        fs::write(root.path().join("d/a.txt"), "hello").unwrap();
        for (name, to) in [
            ("out", outside.path().join("secret")),
            ("outdir", outside.path().into()),
            ("up", "../".into()),
            ("in", "d/a.txt".into()),
            ("loop", "loop".into()),
            ("abs", root.path().join("d/a.txt")),
        ] {
            std::os::unix::fs::symlink(to, root.path().join(name)).unwrap();
        }
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        let store = Store::open(root.path(), 0, Duration::ZERO).unwrap();
        assert_eq!(found(&store, "d/a.txt").unwrap().length, 5);
        assert_eq!(found(&store, "d/a.txt").unwrap().media, "text/plain; charset=utf-8");
        assert_eq!(found(&store, "in").unwrap().length, 5);
        for path in [
            "out",
            "outdir/secret",
            "up",
            "loop",
            "abs",
            "pipe",
            "none",
            "d/a.txt/x",
            "/etc/passwd",
            "../x",
            "d/",
        ] {
            assert_eq!(found(&store, path).unwrap_err(), 404, "{path}");
        }
        assert_eq!(found(&store, "d").unwrap_err(), 301);
    }

    /// Content that was let go counts as long as somebody sends it.
    #[test]
    fn memory_is_bounded_whoever_holds_it() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path(), 3000, Duration::ZERO).unwrap();
        let mut held = Vec::new();
        for length in 1000..1020 {
            fs::write(root.path().join("a"), vec![1; length]).unwrap();
            let object = found(&store, "a").unwrap();
            assert_eq!(object.length, length as u64, "what is there now, from the file if need be");
            held.push(object);
        }
        let sum: usize = held.iter().map(|object| object.weight()).sum();
        assert!((5000..=6000).contains(&sum), "{sum}");
        drop(held);
        assert_eq!(found(&store, "a").unwrap().weight(), 1019);
        assert!(found(&store, "a").unwrap().memory.is_some() && store.taken.lock().unwrap().bytes == 1019);
    }

    #[test]
    fn memory_is_bounded_and_follows_changes() {
        let root = tempfile::tempdir().unwrap();
        for i in 0..10 {
            fs::write(root.path().join(i.to_string()), vec![i; 1000]).unwrap();
        }
        fs::write(root.path().join("big"), vec![0; 2000]).unwrap();
        let store = Store::open(root.path(), 3500, Duration::ZERO).unwrap();
        for i in 0..10 {
            assert_eq!(found(&store, &i.to_string()).unwrap().memory.as_ref().unwrap()[0], i);
            assert!(store.lock().used <= 3500);
        }
        assert!(found(&store, "big").unwrap().memory.is_none());
        // (What was read within the tick of its change is read again.)
        until_settled(&root.path().join("9"));
        let before = found(&store, "9").unwrap();
        assert!(Arc::ptr_eq(&before, &found(&store, "9").unwrap()));
        fs::write(root.path().join("9"), "changed").unwrap();
        let after = found(&store, "9").unwrap();
        assert_eq!(after.memory.as_deref(), Some(&b"changed"[..]));
        assert_ne!(before.validators.etag, after.validators.etag);
        fs::remove_file(root.path().join("9")).unwrap();
        let used = store.lock().used;
        assert_eq!(found(&store, "9").unwrap_err(), 404);
        let lock = store.lock();
        assert!(lock.used < used && !lock.kept.contains("9"), "a file that is gone is let go");
    }
}
