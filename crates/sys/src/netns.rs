//! Network namespaces of this process' own: interfaces, addresses, ports and firewall apart from the rest of the machine.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io;
use rustix::path::Arg;
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
        Namespace::open("/proc/thread-self/ns/net")
    }

    /// Another process': at [`Namespace::path`], `/proc/PID/ns/net`, or where `ip netns` has put its name.
    ///
    /// # Errors
    ///
    /// What open(2) says. What is no network namespace is told of by [`Namespace::enter`], with EINVAL.
    pub fn open(path: impl Arg) -> io::Result<Namespace> {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Namespace)
    }

    /// Where other processes find it as long as this process has it open.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
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
            Err(io::Errno::PERM) => return println!("lacking: a network namespace (root, CAP_SYS_ADMIN)"),
            namespace => namespace.unwrap(),
        };
        let inode = |namespace: &Namespace| rustix::fs::fstat(namespace).unwrap().st_ino;
        let (own, theirs) = (inode(&Namespace::current().unwrap()), inode(&namespace));
        assert_ne!(own, theirs);
        assert_eq!(namespace.run(|| inode(&Namespace::current().unwrap())), Ok(theirs));
        assert_eq!(inode(&Namespace::current().unwrap()), own);
        assert_eq!(inode(&Namespace::open(namespace.path()).unwrap()), theirs);
        assert_eq!(Namespace::open("/dev/null").unwrap().enter(), Err(io::Errno::INVAL));
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
        // It is up, with an address: one may bind to that, and what one sends there comes.
        let address = std::net::Ipv4Addr::new(10, 9, 0, 1);
        let speak = || {
            tun::set_address(&name, address, 24)?;
            tun::set_up(&name)?;
            tun::set_up("lo")?;
            let socket = std::net::UdpSocket::bind((address, 0)).unwrap();
            socket.send_to(b"?", socket.local_addr().unwrap()).unwrap();
            let (_, from) = socket.recv_from(&mut [0]).unwrap();
            assert_eq!(from.ip(), address);
            std::fs::read_to_string("/proc/thread-self/net/route").map_err(|_| io::Errno::NOENT)
        };
        let routes = namespace.run(speak).unwrap().unwrap();
        // 10.9.0.0, mask 255.255.255.0.
        assert!(routes.contains("0000090A") && routes.contains("00FFFFFF"), "{routes}");
        // One descriptor has it, and whoever comes second is told so.
        let other = namespace.run(tun::open).unwrap().unwrap();
        assert_eq!(tun::attach(&other, &name, kind), Err(io::Errno::BUSY));
        tun::set_header_len(&fd, 12).unwrap();
        assert_eq!(tun::set_header_len(&fd, 9), Err(io::Errno::INVAL));
        tun::set_offload(&fd, tun::CHECKSUM | tun::TSO4).unwrap();
        assert_eq!(tun::set_offload(&fd, 1 << 30), Err(io::Errno::INVAL));
    }
}
