//! Forks of a process while another thread drops a socket, or asks it for something else.

use super::lane_tests::{laned, receiver};
use crate::Datagram;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::fork::{Ended, around, child};
use onecopy_testing::{LONG, alone};
use onecopy_unix::failpoint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;

/// The child is gone, and has let go of its sockets, when the parent's handlers of ours run.
extern "C" fn late() {
    std::thread::sleep(Duration::from_millis(200));
}

extern "C" fn nothing() {}

/// A process forks, and at the moment when all sockets are listed another thread drops what `dropped` chooses: the
/// last that keeps it is then the fork. Its lanes are held by that fork, too.
fn a_fork_ends(dropped: fn(Datagram, Datagram) -> (Vec<Datagram>, Vec<Datagram>)) {
    let (hears, tells) = rustix::pipe::pipe().unwrap();
    let forker = child(|| {
        around(nothing, late, nothing).unwrap();
        let (b, name) = receiver("forked");
        let a = laned(&b, &name);
        let (drops, keeps) = dropped(a, b);
        failpoint::at("listed", move || drop(drops));
        assert_eq!(child(|| 0).unwrap().wait(), Ended::Returned(0));
        rustix::io::write(&tells, &[1]).unwrap();
        drop(keeps);
        0
    });
    let forker = forker.unwrap();
    let limit = Timespec::try_from(LONG).unwrap();
    let spoke = poll(&mut [PollFd::new(&hears, PollFlags::IN)], Some(&limit));
    assert_eq!(spoke, Ok(1), "the fork waits for itself");
    assert_eq!(forker.wait(), Ended::Returned(0));
}

#[test]
fn a_sender_that_is_dropped_during_a_fork_does_not_hold_it_up() {
    alone!();
    a_fork_ends(|a, b| (vec![a], vec![b]));
}

#[test]
fn a_receiver_that_is_dropped_during_a_fork_does_not_hold_it_up() {
    alone!();
    a_fork_ends(|a, b| (vec![b], vec![a]));
}

#[test]
fn both_that_are_dropped_during_a_fork_do_not_hold_it_up() {
    alone!();
    a_fork_ends(|a, b| (vec![a, b], vec![]));
}

/// While one thread asks the lanes for credentials, another one asks for none: all do what one of them said.
#[test]
fn lanes_pass_what_their_receiver_passes() {
    alone!();
    let (b, name) = receiver("opposite");
    let a = laned(&b, &name);
    let b = std::sync::Arc::new(b);
    let other = b.clone();
    failpoint::at("passing", move || {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            other.set_pass_credentials(false).unwrap();
        });
        onecopy_testing::wait_asleep(told.recv().unwrap());
    });
    b.set_pass_credentials(true).unwrap();
    // The other thread had to wait.
    let until = std::time::Instant::now() + LONG;
    while b.socket().passes_credentials() && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    // It may still hold the lock.
    b.set_pass_pidfd(false).unwrap();
    let lane = a.socket().lane().unwrap();
    let asked = lane.connection().tx_ring().unwrap().header().info.0.asks_identity.load(Relaxed);
    assert_eq!((b.socket().passes_credentials(), asked), (false, 0));
}
