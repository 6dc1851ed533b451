//! Whether this machine has a CUDA driver that works. It is opened at run time: no build of ours links it.

use std::error::Error;
use std::ffi::c_int;
use std::mem;

use libloading::Library;

/// The driver's library, by the soname that it has had since CUDA exists.
const LIBRARY: &str = "libcuda.so.1";

/// What the driver says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The CUDA version it supports: major, minor.
    pub version: (u32, u32),
    /// Devices that this process may use.
    pub devices: u32,
}

/// Loads the driver, initialises it and asks for its version and devices. Takes some 100 ms where a device is.
///
/// # Errors
///
/// A text that names the step that failed: the library is not there, or the driver's `CUresult`.
pub fn driver() -> Result<Driver, String> {
    // SAFETY: loading runs the library's initialisers; this name is the vendor's driver, or nothing.
    let library = unsafe { Library::new(LIBRARY) }.map_err(told)?;
    let asked = ask(&library);
    // Once initialised the driver has threads of its own: unloading the code under them would crash.
    mem::forget(library);
    asked
}

fn ask(library: &Library) -> Result<Driver, String> {
    // SAFETY: the driver API declares `CUresult cuInit(unsigned int Flags)`.
    let init = unsafe { library.get::<unsafe extern "C" fn(u32) -> c_int>("cuInit") };
    let init = init.map_err(told)?;
    // SAFETY: Flags have to be 0, and it may be called from any thread, any number of times.
    done("cuInit", unsafe { init(0) })?;
    // "1000 * major + 10 * minor", says the driver API's reference.
    let version = number(library, "cuDriverGetVersion")?;
    Ok(Driver {
        version: (version / 1000, version % 1000 / 10),
        devices: number(library, "cuDeviceGetCount")?,
    })
}

/// Calls one of the functions that write a single non-negative `int`.
fn number(library: &Library, name: &'static str) -> Result<u32, String> {
    // SAFETY: both names that come here are declared `CUresult NAME(int *)`.
    let get = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(name) };
    let get = get.map_err(told)?;
    let mut value = 0;
    // SAFETY: the pointer is valid for a write of one int for the length of the call.
    done(name, unsafe { get(&mut value) })?;
    u32::try_from(value).map_err(|_| format!("{name} gave {value}"))
}

/// The linker's own words, which name the library or symbol, are the error's source.
fn told(error: libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

fn done(name: &str, result: c_int) -> Result<(), String> {
    match result {
        0 => Ok(()),
        // The two that a person meets: no device at all, or a driver that does not fit its kernel module.
        100 => Err(format!("{name}: no CUDA device (CUresult 100)")),
        803 => {
            Err(format!("{name}: the driver's library and kernel module differ in version (CUresult 803)"))
        }
        other => Err(format!("{name}: CUresult {other}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn says_what_is_there_or_why_not() {
        match super::driver() {
            Ok(driver) => assert!(driver.version.0 > 0 && driver.devices > 0, "{driver:?}"),
            Err(why) => assert!(why.contains("libcuda") || why.contains("CUresult"), "{why}"),
        }
    }
}
