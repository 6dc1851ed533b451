//! What receives into memory of a device's, or by one, say on devices that cannot: this machine's kernel is asked, in a namespace of its
//! own.

use onecopy_sys::eventfd::EventFd;
use onecopy_sys::netdev::{Netdev, Queue};
use onecopy_sys::netns::Namespace;
use onecopy_uring::zcrx::{Memory, NotMade, Zcrx};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;

/// Runs `act` with the indexes of the loopback and of a veth; not, with what is lacking on stdout, where the machine has not what it takes.
fn with_devices(act: impl FnOnce([u32; 2]) + Send) {
    let namespace = match Namespace::new() {
        Err(Errno::PERM) => return println!("lacking: a network namespace (root, CAP_SYS_ADMIN)"),
        namespace => namespace.expect("a network namespace"),
    };
    let inside = || {
        let made =
            Command::new("ip").args(["link", "add", "one", "type", "veth", "peer", "name", "other"]).status();
        if !made.is_ok_and(|made| made.success()) {
            return println!("lacking: ip (iproute2), or veth devices");
        }
        let index = |name: &str| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            rustix::net::netdevice::name_to_index(&socket, name).unwrap()
        };
        act([index("lo"), index("one")]);
    };
    namespace.run(inside).unwrap();
}

#[test]
fn device_memory_is_refused_by_devices_without() {
    with_devices(|devices| {
        let netdev = match Netdev::open() {
            Ok(netdev) => netdev,
            Err(refusal) => return println!("lacking: the netdev family of generic netlink ({refusal})"),
        };
        // No dma-buf: there is none without a device that has some.
        let file = std::fs::File::open("/dev/null").unwrap();
        let bind = |index, queues: &[Queue]| netdev.bind_rx(index, file.as_fd(), queues).unwrap_err();
        if bind(devices[0], &[Queue::Rx(0)]).errno == Errno::INVAL {
            // An unknown command, before Linux 6.12.
            return println!("lacking: a kernel that binds device memory");
        }
        for device in devices {
            let refusal = bind(device, &[Queue::Rx(0)]);
            assert_eq!(refusal.errno, Errno::OPNOTSUPP, "{refusal}");
            eprintln!("{refusal}");
        }
        // The kernel understood all of it: what is wrong in the request is told apart.
        assert_eq!(bind(i32::MAX as u32, &[Queue::Rx(0)]).errno, Errno::NODEV);
        assert_eq!(bind(devices[1], &[]).errno, Errno::INVAL);
        assert_eq!(bind(0, &[Queue::Rx(0)]).errno, Errno::RANGE);
    });
}

#[test]
fn receives_by_a_device_are_refused_by_those_that_cannot() {
    with_devices(|devices| {
        let memory = onecopy_sys::memfd::create("zcrx", 64 << 10).unwrap();
        let wake = || Arc::new(EventFd::new().unwrap());
        let register =
            |device, memory| Zcrx::register(device, 0, memory, 64 << 10, wake()).map(drop).unwrap_err();
        let first = register(devices[0], Memory::File(memory.as_fd()));
        if [Errno::INVAL, Errno::PERM, Errno::NOSYS].iter().any(|errno| first == NotMade::Refused(*errno))
            || matches!(first, NotMade::Ring(_))
        {
            return println!("lacking: zero copy Rx in this kernel ({first:?})");
        }
        let none = NotMade::Refused(Errno::OPNOTSUPP);
        assert_eq!(devices.map(|device| register(device, Memory::File(memory.as_fd()))), [none; 2]);
        assert_eq!(devices.map(|device| Zcrx::might(device).unwrap_err()), [none; 2]);
        let no_device = NotMade::Refused(Errno::NODEV);
        assert_eq!(register(i32::MAX as u32, Memory::File(memory.as_fd())), no_device);
        assert_eq!(Zcrx::might(i32::MAX as u32), Err(no_device));
        let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
        let inode = rustix::fs::fstat(&memory).unwrap().st_ino.to_string();
        assert!(
            mapped.lines().all(|line| line.split_whitespace().nth(4) != Some(&inode)),
            "no address of it is left"
        );
        // The same of a dma-buf's memory. (There is none without a device that has some; the device is asked first.)
        let file = std::fs::File::open("/dev/null").unwrap();
        let register = |device| register(device, Memory::DmaBuf(file.as_fd()));
        if register(devices[0]) == NotMade::Refused(Errno::INVAL) {
            return println!("lacking: a kernel that takes a dma-buf for zero copy Rx (Linux 6.16)");
        }
        assert_eq!(devices.map(register), [none; 2]);
        assert_eq!(register(i32::MAX as u32), no_device);
    });
}
