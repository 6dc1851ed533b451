//! How many tasks want a CPU right now, and how many CPUs this process may use.

/// CPUs that the calling thread may run on, at least 1.
pub fn cpus_allowed() -> usize {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize).max(1)
}

/// CPUs that are on line, at least 1.
pub fn cpus_online() -> usize {
    // SAFETY: sysconf only reads.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1).max(1)
}

/// Tasks that run or are ready to run on the whole machine at this moment, the caller included: the figure
/// before the slash in /proc/loadavg (fs/proc/loadavg.c: nr_running()). None where /proc is not there.
pub fn running_tasks() -> Option<usize> {
    use rustix::fs::{Mode, OFlags};
    let fd = rustix::fs::open(c"/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0u8; 64];
    let (line, _) = rustix::io::read(&fd, &mut text).ok().map(|n| text.split_at(n))?;
    parse(line)
}

/// "0.00 0.01 0.05 2/123 4567": the 2.
fn parse(line: &[u8]) -> Option<usize> {
    let field = std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(3)?;
    field.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loadavg_gives_the_running_tasks() {
        assert_eq!(parse(b"0.20 0.18 0.12 1/80 11206\n"), Some(1));
        assert_eq!(parse(b"garbage"), None);
        assert!(running_tasks().is_none_or(|n| n >= 1));
        assert!(cpus_allowed() <= cpus_online());
    }
}
