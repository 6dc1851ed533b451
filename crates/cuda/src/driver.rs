//! The driver: whether it is there, and new enough.

use crate::api::Api;
use crate::error::Error;
use libloading::Library;
use std::env;
use std::ffi::{OsStr, OsString, c_int};
use std::fmt;
use std::mem;
use std::sync::Arc;

/// The CUDA version that a driver has to support: major, minor. (cuDevicePrimaryCtxRelease_v2 is of this one.)
pub const MINIMUM: (u32, u32) = (11, 0);

/// From which on drivers have cuMemcpyBatchAsync.
const BATCHES: (u32, u32) = (12, 8);

/// The driver's library, by the soname that it has had since CUDA exists.
const LIBRARY: &str = "libcuda.so.1";

/// Names another file to load in its place, where it lies out of the loader's way.
const ELSEWHERE: &str = "ONECOPY_CUDA_LIBRARY";

/// The driver, loaded and initialised. It stays loaded: it has threads of its own, and unloading the code under them would crash.
pub struct Driver {
    pub(crate) api: Api,
    library: String,
    version: (u32, u32),
    devices: u32,
}

impl Driver {
    /// Loads libcuda.so.1, or the file that the environment names as ONECOPY_CUDA_LIBRARY; initialises it, and asks for its version and
    /// devices. Takes some 100 ms where a device is.
    ///
    /// # Errors
    ///
    /// [`Error`]: there is none, it is too old, or it does not work.
    pub fn open() -> Result<Arc<Driver>, Error> {
        let library = env::var_os(ELSEWHERE).filter(|name| !name.is_empty());
        Driver::open_at(library.unwrap_or_else(|| OsString::from(LIBRARY)))
    }

    /// As [`Driver::open`], of that file. (It has to be a driver: its initialisers run.)
    ///
    /// # Errors
    ///
    /// As [`Driver::open`].
    pub fn open_at(name: impl AsRef<OsStr>) -> Result<Arc<Driver>, Error> {
        let shown = name.as_ref().to_string_lossy().into_owned();
        // SAFETY: loading runs the library's initialisers: those of the vendor's driver, or of the file that the user has named.
        let library = unsafe { Library::new(name.as_ref()) };
        let library = library.map_err(|error| Error::Absent { library: shown.clone(), why: told(&error) })?;
        let api = Api::find(&library);
        // As said above.
        mem::forget(library);
        let mut api = api.map_err(|symbol| Error::Incomplete { library: shown.clone(), symbol })?;
        let number = |call: &'static str, get: unsafe extern "C" fn(*mut c_int) -> c_int| {
            let mut value = 0;
            // SAFETY: the pointer is valid for a write of one int for the length of the call.
            done(call, unsafe { get(&mut value) })?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        // Before all else, as it says itself: an old driver may fail to initialise for another reason. "1000 * major + 10 * minor", says
        // the driver API's reference.
        let version = number("cuDriverGetVersion", api.driver_version)?;
        let version = (version / 1000, version % 1000 / 10);
        if version < MINIMUM {
            return Err(Error::TooOld { found: version });
        }
        api.copy_batch = api.copy_batch.filter(|_| version >= BATCHES);
        // SAFETY: the flags have to be 0, and it may be called from any thread, any number of times.
        done("cuInit", unsafe { (api.init)(0) })?;
        let devices = number("cuDeviceGetCount", api.device_count)?;
        Ok(Arc::new(Driver { api, library: shown, version, devices }))
    }

    /// The CUDA version that it supports: major, minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Devices that this process may use.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// The file that it was loaded from.
    pub fn library(&self) -> &str {
        &self.library
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version;
        write!(f, "Driver({} for CUDA {major}.{minor}, {} devices)", self.library, self.devices)
    }
}

/// The loader's own words are the error's source.
fn told(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

pub(crate) fn done(call: &'static str, result: c_int) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(Error::failed(call, result)) }
}
