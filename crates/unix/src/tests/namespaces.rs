//! A process is killed in another pid namespace than that of those that share the end with it.

use super::{Wire, alone, pair, send};
use crate::failpoint::arm;
use crate::{Config, RecvFlags};
use onecopy_sys::fork::{Ended, child};

const KILLED: Ended = Ended::Killed(9);
const LEN: usize = 64;

/// Runs `work` in the second process of a new pid namespace, where no process id is what it is here. Runs
/// `meanwhile` here. Returns None if no namespace can be made.
fn in_a_pid_namespace<T>(work: impl FnOnce() -> i32, meanwhile: impl FnOnce() -> T) -> Option<(Ended, T)> {
    let (there, how) = (Wire::new(), Wire::new());
    let outer = child(|| {
        let made = onecopy_sys::fork::unshare_pids().is_ok();
        there.tell(made.into());
        if !made {
            return 0;
        }
        // The first process of a namespace cannot kill itself, but its child can.
        let init = child(|| {
            let inner = child(|| {
                assert_eq!(std::process::id(), 2);
                work()
            });
            how.tell(match inner.unwrap().wait() {
                Ended::Returned(status) => status as u64,
                Ended::Killed(signal) => 1 << 32 | signal as u64,
            });
            0
        });
        i32::from(init.unwrap().wait() != Ended::Returned(0))
    });
    let outer = outer.unwrap();
    if there.hear() == 0 {
        super::lacking("pid namespaces (unshare(2) refuses them): deaths in one");
        return None;
    }
    let seen = meanwhile();
    assert_eq!(outer.wait(), Ended::Returned(0));
    let how = how.hear();
    let signal = (how >> 32 != 0).then_some(Ended::Killed(how as u32 as i32));
    Some((signal.unwrap_or(Ended::Returned(how as i32)), seen))
}

#[test]
fn a_sender_killed_in_another_pid_namespace_is_found_out() {
    alone!();
    let (a, b) = pair(&Config::default());
    let work = || {
        arm("published", 3);
        (0..10).for_each(|_| send(&a, &[1; LEN]));
        0
    };
    let Some((ended, ())) = in_a_pid_namespace(work, || ()) else { return };
    assert_eq!(ended, KILLED);
    send(&a, &[2; LEN]);
    let mut buffer = [0; 1000];
    let n = b.recv(&mut buffer).unwrap();
    assert_eq!((n, &buffer[..3 * LEN], buffer[3 * LEN]), (4 * LEN, &[1; 3 * LEN][..], 2));
}

#[test]
fn a_receiver_killed_in_another_pid_namespace_is_found_out() {
    alone!();
    for (point, lost) in [("copied out", 0), ("taken", 0), ("saved", 1)] {
        let (a, b) = pair(&Config::default());
        (0..9).for_each(|i| send(&a, &[i; LEN]));
        let work = || {
            arm(point, 3);
            for _ in 0..9 {
                let _ = b.recv(&mut [0; LEN]);
            }
            0
        };
        let Some((ended, ())) = in_a_pid_namespace(work, || ()) else { return };
        assert_eq!(ended, KILLED);
        let mut buffer = [0; LEN];
        assert_eq!(b.recv_with_flags(&mut buffer, RecvFlags::WAITALL).unwrap(), LEN);
        assert_eq!(buffer, [2 + lost; LEN], "{point}");
        (0..3).for_each(|_| send(&a, &[9; LEN]));
        assert_eq!(b.recv(&mut [0; 1000]).unwrap(), (9 - usize::from(lost)) * LEN);
    }
}

/// The process in the namespace recovers what one outside of it left.
#[test]
fn a_death_is_found_out_from_another_pid_namespace() {
    alone!();
    let (a, b) = pair(&Config::default());
    let go = Wire::new();
    let work = || {
        go.hear();
        send(&a, &[2; LEN]);
        let mut buffer = [0; LEN];
        assert_eq!(b.recv_with_flags(&mut buffer, RecvFlags::WAITALL).unwrap(), LEN);
        assert_eq!(buffer, [1; LEN]);
        0
    };
    let outside = || {
        let killed = child(|| {
            arm("published", 2);
            (0..2).for_each(|_| send(&a, &[1; LEN]));
            0
        });
        assert_eq!(killed.unwrap().wait(), KILLED);
        let killed = child(|| {
            arm("taken", 1);
            let _ = b.recv(&mut [0; LEN]);
            0
        });
        assert_eq!(killed.unwrap().wait(), KILLED);
        go.tell(0);
    };
    let Some((ended, ())) = in_a_pid_namespace(work, outside) else { return };
    assert_eq!(ended, Ended::Returned(0));
    let mut buffer = [0; 2 * LEN];
    assert_eq!(b.recv_with_flags(&mut buffer, RecvFlags::WAITALL).unwrap(), 2 * LEN);
    assert_eq!((buffer[0], buffer[LEN]), (1, 2));
}
