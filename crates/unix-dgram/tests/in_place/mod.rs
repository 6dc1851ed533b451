//! What tests of datagrams in place have in common.
#![allow(dead_code, reason = "each program uses some of it")]

use onecopy_testing::readable;
use onecopy_unix::{Config, Received, RecvFlags, SendFlags, SocketAddr, Transport, View};
use onecopy_unix_dgram::Datagram;
use rustix::io::Errno;

pub const NOW: SendFlags = SendFlags::DONTWAIT;
pub const LOOK: RecvFlags = RecvFlags::DONTWAIT;

pub fn name(what: &str) -> String {
    format!("onecopy-in-place-{what}-{}", std::process::id())
}

pub fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name(what)).unwrap()
}

/// Two sockets with names that are connected to each other.
pub fn met(what: &str, config: &Config) -> (Datagram, Datagram) {
    let (one, other) = (abstract_(&format!("{what}-a")), abstract_(&format!("{what}-b")));
    let a = Datagram::bind_with(&one, config).unwrap();
    let b = Datagram::bind_with(&other, config).unwrap();
    a.connect(&other).unwrap();
    b.connect(&one).unwrap();
    (a, b)
}

/// Two sockets with names that share memory.
pub fn upgraded(what: &str) -> (Datagram, Datagram) {
    let (a, b) = met(what, &Config::default());
    for i in 0..60u8 {
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.send_with_flags(&[i], NOW).unwrap();
            let mut buffer = [0; 9];
            assert_eq!((to.recv(&mut buffer).unwrap(), buffer[0]), (1, i));
        }
    }
    assert!(a.path().is_shared_memory() && b.path().is_shared_memory());
    (a, b)
}

pub fn over_kernel() -> Config {
    Config { transport: Transport::Kernel, ..Config::default() }
}

/// Every way that two sockets can be connected to each other.
pub fn ways(what: &str) -> Vec<(&'static str, (Datagram, Datagram))> {
    vec![
        ("a pair", Datagram::pair().unwrap()),
        ("named", upgraded(what)),
        ("over the kernel", Datagram::pair_with(&over_kernel()).unwrap()),
        ("named over the kernel", met(&format!("{what}-kernel"), &over_kernel())),
    ]
}

pub fn errno<T>(result: onecopy_unix::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => Errno::from_raw_os_error(error.raw_os_error()),
    }
}

pub fn seen(view: &View) -> Vec<u8> {
    let mut bytes = vec![0; view.len()];
    assert_eq!(view.copy_to(&mut bytes), view.len());
    bytes
}

pub fn borrow(socket: &Datagram, max: usize) -> (Vec<u8>, Received) {
    let (view, received, _) = socket.recv_borrowed_with_flags(max, LOOK).unwrap();
    assert_eq!(view.len(), received.len);
    (seen(&view), received)
}

pub fn send_in_place(socket: &Datagram, bytes: &[u8]) -> onecopy_unix::Result<usize> {
    let mut slot = socket.reserve_with_flags(bytes.len(), NOW)?;
    assert_eq!(slot.len(), bytes.len());
    let half = bytes.len() / 2;
    assert_eq!(slot.copy_from(&bytes[..half]), half);
    assert_eq!(slot.copy_from(&bytes[half..]), bytes.len() - half);
    slot.commit()
}

pub fn empty(socket: &Datagram) -> bool {
    !readable(socket) && errno(socket.recv_borrowed_with_flags(9, LOOK)) == Errno::AGAIN
}
