//! The copy engine on this machine: its kernels, which of them run, and where its thresholds come from.

use onecopy::advanced::copy::profile::{self, Profile};
use onecopy::advanced::copy::{FORCE_VARIABLE, Kernel};
use serde::Serialize;

/// What the engine has here, and what it uses.
#[derive(Debug, Serialize)]
pub struct Copy {
    /// The kernels that this CPU can run.
    pub kernels: Vec<KernelFacts>,
    /// The one for ordinary stores.
    pub cached: &'static str,
    /// The one for ordinary stores in copies of `long_from` bytes and more.
    pub long: &'static str,
    pub long_from: usize,
    /// The one for non-temporal stores.
    pub stream: &'static str,
    /// What ONECOPY_COPY asks for.
    pub forced: Option<String>,
    /// Where the thresholds of `Policy::Auto` come from.
    pub thresholds: String,
    /// The profile in force.
    pub profile: Option<ProfileFacts>,
    /// What was asked for and could not be had, each with what to do about it.
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct KernelFacts {
    pub name: &'static str,
    pub about: &'static str,
    /// Whether it has non-temporal stores.
    pub non_temporal: bool,
}

/// What `onecopy tune` measured on this machine.
#[derive(Debug, Serialize)]
pub struct ProfileFacts {
    pub path: String,
    /// When, in seconds since 1970.
    pub measured: u64,
    /// Latency steps: a working set of up to so many bytes costs so many ns a load.
    pub steps: Vec<(u64, f64)>,
}

impl Copy {
    pub fn read() -> Copy {
        let status = onecopy::advanced::copy::status();
        let kernels = Kernel::all().map(|kernel| KernelFacts {
            name: kernel.name(),
            about: kernel.about(),
            non_temporal: kernel.streams(),
        });
        Copy {
            kernels: kernels.collect(),
            cached: status.cached,
            long: status.long,
            long_from: status.long_from,
            stream: status.stream,
            forced: std::env::var(FORCE_VARIABLE).ok(),
            thresholds: status.thresholds,
            profile: ProfileFacts::in_force(),
            notes: status.notes,
        }
    }

    /// Whether the kernel in use for non-temporal stores has any.
    pub fn streams(&self) -> bool {
        self.kernels.iter().any(|kernel| kernel.name == self.stream && kernel.non_temporal)
    }
}

impl ProfileFacts {
    /// The engine uses a profile only where it was measured on this very machine: so does this.
    fn in_force() -> Option<ProfileFacts> {
        let path = profile::path().ok()??;
        let profile = Profile::load(&path).ok()?;
        (profile.machine == profile::machine()).then(|| ProfileFacts {
            path: path.display().to_string(),
            measured: profile.measured,
            steps: profile.steps.iter().map(|step| (step.bytes, step.ns)).collect(),
        })
    }
}
