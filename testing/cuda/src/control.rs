//! How a test finds the shared object, and what it tells it.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;

use crate::machine::machine;

/// The way to the shared object of this process, and to what it counts. Each process has one device.
pub struct Control(Library);

impl Control {
    /// Where the shared object lies: beside the test program, where cargo builds it for whoever depends on this crate.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub fn path() -> PathBuf {
        let program = std::env::current_exe().expect("a program knows where it lies");
        let folders = program.ancestors().skip(1).take(2);
        let mut places = folders.flat_map(|folder| [folder.join("deps"), folder.to_path_buf()]);
        let place = places.find_map(|folder| {
            let file = folder.join("libonecopy_cuda_stand_in.so");
            file.exists().then_some(file)
        });
        place.expect("the stand-in is not built; run: cargo build -p onecopy-cuda-stand-in")
    }

    /// Loads it.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub fn open() -> Control {
        // SAFETY: it is this crate's own shared object, which has no initialisers.
        Control(unsafe { Library::new(Control::path()) }.expect("the stand-in loads"))
    }

    /// Has `symbol` fail: `after` so many calls, so many `times`, with a CUresult. `execute` is what was accepted: a copy or a kernel on the
    /// device.
    ///
    /// # Panics
    ///
    /// If the name has a NUL.
    pub fn fail(&self, symbol: &str, after: u32, times: u32, code: i32) {
        let symbol = CString::new(symbol).expect("a symbol");
        // SAFETY: declared so below.
        let fail = unsafe {
            self.0.get::<unsafe extern "C" fn(*const c_char, u32, u32, c_int)>("onecopy_stand_in_fail")
        };
        // SAFETY: the name is NUL-terminated and lives as long as the call.
        unsafe { fail.expect("it is exported")(symbol.as_ptr(), after, times, code) }
    }

    /// Sets one of: `seed`, `version` (12080), `devices` (1), `gone` (the CUresult of every call from now on), `sticky` (1: what fails on the
    /// device makes it gone), `run` (1: whatever lies in streams is run now),
    /// `stir` (0: who only asks finds nothing new; what is waited for is run), `watch` (0: what is to be read may be written over), and what takes how long on the device's clock: `copy_ns` a copy, `kernel_ns` a
    /// launch, `piece_ns` one of a batch, `copy_gib` and `kernel_gib` GiB a second.
    ///
    /// # Panics
    ///
    /// If there is no such setting.
    pub fn set(&self, name: &str, value: u64) {
        let text = CString::new(name).expect("a name");
        // SAFETY: declared so below.
        let set = unsafe {
            self.0.get::<unsafe extern "C" fn(*const c_char, u64) -> c_int>("onecopy_stand_in_set")
        };
        // SAFETY: the name is NUL-terminated and lives as long as the call.
        let known = unsafe { set.expect("it is exported")(text.as_ptr(), value) };
        assert_eq!(known, 0, "there is no setting {name}");
    }

    /// One of: `torn` (sources that were written over before their event had completed), `waiting` (what lies in streams), `executed`, `copies`,
    /// `launches` (accepted), `allocations`, `pinned` (allocated or registered), `streams`, `events`, `contexts` (retained), `current` (contexts
    /// that this thread has pushed and not popped).
    ///
    /// # Panics
    ///
    /// If there is no such count.
    pub fn get(&self, name: &str) -> u64 {
        let text = CString::new(name).expect("a name");
        // SAFETY: declared so below.
        let get = unsafe { self.0.get::<unsafe extern "C" fn(*const c_char) -> u64>("onecopy_stand_in_get") };
        // SAFETY: the name is NUL-terminated and lives as long as the call.
        let value = unsafe { get.expect("it is exported")(text.as_ptr()) };
        assert_ne!(value, u64::MAX, "there is no count {name}");
        value
    }
}

/// A program's own use of the device, beside that of what is tested.
impl Control {
    /// Calls a function of the driver API's, whose arguments are all words.
    fn call(&self, name: &str, words: [usize; 4]) {
        type Words = unsafe extern "C" fn(usize, usize, usize, usize) -> c_int;
        // SAFETY: the functions that come here take up to four words, in registers: what is too much is not looked at.
        let call = unsafe { self.0.get::<Words>(name) }.expect("it is exported");
        // SAFETY: the words are as the callers below say.
        let result = unsafe { call(words[0], words[1], words[2], words[3]) };
        assert_eq!(result, 0, "{name}");
    }

    /// Does something inside of the context, which somebody has retained.
    fn inside<R>(&self, act: impl FnOnce() -> R) -> R {
        self.call("cuCtxPushCurrent_v2", [0xC0, 0, 0, 0]);
        let done = act();
        let mut popped = 0_usize;
        self.call("cuCtxPopCurrent_v2", [(&raw mut popped).expose_provenance(), 0, 0, 0]);
        done
    }

    /// A stream.
    pub fn stream(&self) -> usize {
        let mut stream = 0_usize;
        self.inside(|| self.call("cuStreamCreate", [(&raw mut stream).expose_provenance(), 0, 0, 0]));
        stream
    }

    /// Memory of the device's, of `len` bytes: its address.
    pub fn memory(&self, len: usize) -> u64 {
        let mut at = 0_u64;
        self.inside(|| self.call("cuMemAlloc_v2", [(&raw mut at).expose_provenance(), len, 0, 0]));
        at
    }

    /// Puts a copy within the device into a stream.
    pub fn copy_within(&self, to: u64, from: u64, len: usize, stream: usize) {
        self.inside(|| self.call("cuMemcpyDtoDAsync_v2", [to as usize, from as usize, len, stream]));
    }

    /// What lies at an address of the device, when the stream has come to it.
    pub fn read(&self, from: u64, len: usize, stream: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let to = bytes.as_mut_ptr().expose_provenance();
        self.inside(|| self.call("cuMemcpyDtoHAsync_v2", [to, from as usize, len, stream]));
        bytes
    }

    /// Waits for a stream.
    pub fn synchronize(&self, stream: usize) {
        self.inside(|| self.call("cuStreamSynchronize", [stream, 0, 0, 0]));
    }
}

impl Default for Control {
    fn default() -> Control {
        Control::open()
    }
}

/// # Safety
///
/// `text` is NUL-terminated.
unsafe fn text<'a>(text: *const c_char) -> &'a str {
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}

/// # Safety
///
/// `symbol` is NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn onecopy_stand_in_fail(symbol: *const c_char, after: u32, times: u32, code: c_int) {
    // SAFETY: as the caller promises.
    let symbol = unsafe { text(symbol) };
    machine().faults.plan(symbol, after, times, code);
}

/// # Safety
///
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn onecopy_stand_in_set(name: *const c_char, value: u64) -> c_int {
    // SAFETY: as the caller promises.
    let name = unsafe { text(name) };
    machine().set(name, value).map_or(1, |()| 0)
}

/// # Safety
///
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn onecopy_stand_in_get(name: *const c_char) -> u64 {
    // SAFETY: as the caller promises.
    let name = unsafe { text(name) };
    machine().get(name).unwrap_or(u64::MAX)
}
