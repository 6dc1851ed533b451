//! Who of the processes that share something still lives: told by the kernel, without process ids.
//!
//! Each holder keeps a lock (F_SETLK, fcntl(2)) on one byte of a file that all of them have open: the byte of its number.
//! The kernel drops it when the process ends, however it ends; a forked child does not inherit it; and others can ask
//! for it in whatever pid namespace they are. Such a lock also goes when its process closes any descriptor of that
//! file, so nobody opens it a second time. Who gives it to others sends it into a socket's queue and hands out the socket:
//! a descriptor in a queue is in nobody's table, and what becomes of it there closes nothing of anybody's (fs/open.c:
//! locks go in filp_close, which a queue that is emptied or dropped does not come to).
//!
//! Locks of open file descriptions (F_OFD_SETLK) have no such trap and were not taken: a child shares its parent's
//! description, and so does whoever is given it, which would keep the number of a dead one locked; to have one of its own each
//! would open the file anew, for which there is only /proc, and that is not in every sandbox.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};

/// Largest number of a holder.
pub const MAX: u32 = (1 << 30) - 1;

/// Numbers that are tried: among honest holders the first is free. Who means ill may have locked all of them.
const TRIES: u32 = 64;

/// A file on which holders lock their bytes.
#[derive(Debug)]
pub struct Lifeline(OwnedFd);

impl Lifeline {
    /// A fresh one.
    ///
    /// # Errors
    ///
    /// What memfd_create(2) says.
    pub fn create() -> io::Result<Lifeline> {
        crate::memfd::create("onecopy-life", 0).map(Lifeline)
    }

    /// On a file that others have, too.
    pub fn on(file: OwnedFd) -> Lifeline {
        Lifeline(file)
    }

    /// Makes this process a holder: a number that no living one has, from 1 to [`MAX`]. One that a dead one had comes
    /// again once in a thousand million times.
    ///
    /// # Errors
    ///
    /// What fcntl(2) and getrandom(2) say; EAGAIN where somebody keeps all numbers.
    pub fn join(&self) -> io::Result<u32> {
        for _ in 0..TRIES {
            let mut bytes = [0; 4];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
            let number = u32::from_ne_bytes(bytes) & MAX;
            if number == 0 {
                continue;
            }
            match self.lock(libc::F_SETLK, number) {
                Ok(_) => return Ok(number),
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::AGAIN)
    }

    /// Whether another process has that number. (Of its own this process knows.) A file that cannot be asked says yes:
    /// to wait for the dead is better than to take from the living.
    pub fn is_held_by_another(&self, number: u32) -> bool {
        !self.lock(libc::F_GETLK, number).is_ok_and(|kind| kind == libc::F_UNLCK as libc::c_short)
    }

    fn lock(&self, command: libc::c_int, number: u32) -> io::Result<libc::c_short> {
        // SAFETY: all zeroes is a valid flock.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = libc::off_t::from(number);
        lock.l_len = 1;
        // SAFETY: both commands take a pointer to a flock, which lives through the call.
        let done = unsafe { libc::fcntl(self.0.as_raw_fd(), command, &raw mut lock) };
        if done < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(lock.l_type)
    }
}

impl AsFd for Lifeline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::{Ended, child};
    use onecopy_testing::alone;

    #[test]
    fn who_cannot_be_asked_for_lives() {
        use std::os::unix::fs::OpenOptionsExt;
        alone!();
        // A file of which no lock can be had.
        let file =
            std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/dev/null").unwrap();
        let life = Lifeline::on(file.into());
        assert_eq!(life.lock(libc::F_GETLK, 5).unwrap_err(), Errno::BADF);
        assert!(life.is_held_by_another(5));
    }

    #[test]
    fn a_holder_is_seen_until_it_ends_and_not_inherited() {
        alone!();
        let life = Lifeline::create().unwrap();
        let mine = life.join().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let holder = child(|| {
            let number = life.join().unwrap();
            assert!(life.is_held_by_another(mine));
            rustix::io::write(&write, &number.to_ne_bytes()).unwrap();
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        });
        let holder = holder.unwrap();
        let mut number = [0; 4];
        rustix::io::read(&read, &mut number).unwrap();
        let number = u32::from_ne_bytes(number);
        assert!(life.is_held_by_another(number));
        assert!(!life.is_held_by_another(mine), "it is this process");
        assert!(!life.is_held_by_another(if number == 5 { 6 } else { 5 }));
        holder.signal(libc::SIGKILL);
        assert_eq!(holder.wait(), Ended::Killed(libc::SIGKILL));
        assert!(!life.is_held_by_another(number));
        assert_eq!(child(|| i32::from(!life.is_held_by_another(mine))).unwrap().wait(), Ended::Returned(0));
    }

    /// What sharing by a socket rests on: of a file in a queue neither dropping the queue nor taking the file out in another
    /// process drops a lock; closing a descriptor of it does.
    #[test]
    fn a_file_in_a_queue_is_closed_by_nobody() {
        use crate::scm::{self, Space};
        use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
        use std::io::{IoSlice, IoSliceMut};
        alone!();
        let life = Lifeline::create().unwrap();
        let mine = life.join().unwrap();
        let lives =
            || child(|| i32::from(life.is_held_by_another(mine))).unwrap().wait() == Ended::Returned(1);
        let queued = || {
            let (to, from) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            scm::send(&to, &[IoSlice::new(b"!")], &[life.as_fd()], None, SendFlags::empty()).unwrap();
            from
        };
        let take = |from: OwnedFd| {
            let came =
                scm::recv(from, &mut [IoSliceMut::new(&mut [0])], Space::Few, RecvFlags::empty()).unwrap();
            came.fds.into_iter().next().unwrap()
        };
        drop(queued());
        assert!(lives(), "a queue was dropped");
        let from = queued();
        // (With no room for it.)
        let looked =
            scm::recv(&from, &mut [IoSliceMut::new(&mut [0])], Space::None, RecvFlags::PEEK).unwrap();
        assert!(looked.fds.is_empty() && looked.control_cut);
        let taker = child(|| {
            drop(take(from.try_clone().unwrap()));
            0
        });
        assert_eq!(taker.unwrap().wait(), Ended::Returned(0));
        drop(from);
        assert!(lives(), "another process has closed it");
        drop(take(queued()));
        assert!(!lives(), "this is why nobody may");
    }

    #[test]
    fn who_keeps_all_numbers_keeps_nobody_waiting() {
        alone!();
        let life = Lifeline::create().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let keeper = child(|| {
            // SAFETY: all zeroes is a valid flock; of the whole file.
            let mut all: libc::flock = unsafe { std::mem::zeroed() };
            all.l_type = libc::F_WRLCK as libc::c_short;
            // SAFETY: the command takes a pointer to a flock, which lives through the call.
            assert_eq!(unsafe { libc::fcntl(life.0.as_raw_fd(), libc::F_SETLK, &raw const all) }, 0);
            rustix::io::write(&write, b"!").unwrap();
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        });
        let keeper = keeper.unwrap();
        rustix::io::read(&read, &mut [0; 1]).unwrap();
        assert_eq!(life.join(), Err(Errno::AGAIN));
        drop(keeper);
        assert!(life.join().is_ok());
    }
}
