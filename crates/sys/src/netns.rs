//! Network namespaces of this process' own: interfaces, addresses, ports and firewall apart from the rest of the machine.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::panic::resume_unwind;

/// A network namespace that nobody has given a name: it is gone, with all that is in it, when the last descriptor, thread and process in it
/// is. So nothing is left behind, however this process ends.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Namespace {
    /// A new one: in it is `lo`, which is down, and nothing else.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN; ENOSPC where there are as many as user.max_net_namespaces says; ENOENT without /proc.
    pub fn new() -> io::Result<Namespace> {
        on_thread(|| {
            // SAFETY: only the network namespace is made anew, and of this thread alone: no table of descriptors is parted.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Namespace::current()
        })
    }

    /// The one that the calling thread is in.
    ///
    /// # Errors
    ///
    /// What open(2) says: ENOENT without /proc.
    pub fn current() -> io::Result<Namespace> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty()).map(Namespace)
    }

    /// Has the calling thread, and what it starts from now on, be in there. Sockets keep the namespace that they were made in.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN.
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
    }

    /// Runs `act` in there, on a thread of its own, and waits for it.
    ///
    /// # Errors
    ///
    /// As [`Namespace::enter`].
    pub fn run<R: Send>(&self, act: impl FnOnce() -> R + Send) -> io::Result<R> {
        on_thread(|| self.enter().map(|()| act()))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn on_thread<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(act).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tun;

    #[test]
    fn a_namespace_is_apart_and_is_left_behind() {
        let namespace = match Namespace::new() {
            Err(io::Errno::PERM) => return eprintln!("skipped: a network namespace needs CAP_SYS_ADMIN"),
            namespace => namespace.unwrap(),
        };
        let inode = |namespace: &Namespace| rustix::fs::fstat(namespace).unwrap().st_ino;
        let (own, theirs) = (inode(&Namespace::current().unwrap()), inode(&namespace));
        assert_ne!(own, theirs);
        assert_eq!(namespace.run(|| inode(&Namespace::current().unwrap())), Ok(theirs));
        assert_eq!(inode(&Namespace::current().unwrap()), own);
        // What is made in there is not here.
        let Ok(fd) = namespace.run(tun::open).unwrap() else {
            return eprintln!("skipped the rest: no {} here", tun::PATH);
        };
        let kind = tun::Kind { ethernet: true, multi_queue: false };
        let name = tun::attach(&fd, "apart%d", kind).unwrap();
        assert_eq!(name, "apart0");
        assert_eq!(
            (namespace.run(|| tun::mtu(&name)).unwrap(), tun::mtu(&name)),
            (Ok(1500), Err(io::Errno::NODEV))
        );
        namespace.run(|| tun::set_mtu(&name, 9000)).unwrap().unwrap();
        assert_eq!(namespace.run(|| tun::mtu(&name)).unwrap(), Ok(9000));
        // One descriptor has it, and whoever comes second is told so.
        let other = namespace.run(tun::open).unwrap().unwrap();
        assert_eq!(tun::attach(&other, &name, kind), Err(io::Errno::BUSY));
        tun::set_header_len(&fd, 12).unwrap();
        assert_eq!(tun::set_header_len(&fd, 9), Err(io::Errno::INVAL));
        tun::set_offload(&fd, tun::CHECKSUM | tun::TSO4).unwrap();
        assert_eq!(tun::set_offload(&fd, 1 << 30), Err(io::Errno::INVAL));
    }
}
