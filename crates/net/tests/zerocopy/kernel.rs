//! The kernel is the peer: a TAP, in a network namespace.

use crate::world::{NEVER, chain, is_ours_alone, pattern, pool};
use onecopy_link::{Tap, TapConfig};
use onecopy_net::Stack;
use onecopy_net::tcp::Stream;
use onecopy_net::udp::{Envelope, Socket};
use onecopy_sys::netns::Namespace;
use rustix::io::Errno;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// The kernel's address, on its end of the TAP.
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 3, 1);

/// A stack on a TAP in a namespace of its own; none, with what is lacking on stdout, where the machine has not what it takes.
fn world() -> Option<(Namespace, Stack)> {
    let namespace = match Namespace::new() {
        Err(Errno::PERM) => {
            println!("lacking: a network namespace (root, CAP_SYS_ADMIN)");
            return None;
        }
        namespace => namespace.expect("a network namespace"),
    };
    let tap = match namespace.run(|| Tap::open(TapConfig::new("onecopy0"))).unwrap() {
        Err(error) if [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM].contains(&error.errno()) => {
            println!("lacking: a TAP ({error})");
            return None;
        }
        tap => tap.expect("a TAP"),
    };
    let ip = |arguments: &[&str]| {
        let done = namespace.run(|| Command::new("ip").args(arguments).output()).unwrap();
        done.is_ok_and(|done| done.status.success())
    };
    if !ip(&["-V"]) {
        println!("lacking: ip (iproute2), to give the kernel an address with");
        return None;
    }
    assert!(ip(&["addr", "add", "10.77.3.1/24", "dev", "onecopy0"]));
    assert!(ip(&["link", "set", "onecopy0", "up"]));
    let stack = Stack::builder().link(tap).address("10.77.3.2/24").zerocopy(NEVER).build().unwrap();
    Some((namespace, stack))
}

#[test]
fn the_kernel_gets_bytes_that_nobody_copied_in_user_space() {
    let Some((namespace, stack)) = world() else { return };
    let listener = namespace.run(|| TcpListener::bind((KERNEL, 0))).unwrap().unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 64 << 10).unwrap();
    let stream = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
    stream.set(|settings| settings.send_buffer = Some(1 << 20)).unwrap();
    let (mut kernel, _) = listener.accept().unwrap();
    let (pool, data) = (pool(), pattern(2 << 20));
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 2 << 20];
        kernel.read_exact(&mut all).unwrap();
        (all, kernel)
    });
    let sent = stream.send_zerocopy(chain(&pool, &data)).unwrap();
    let (back, how) = sent.wait();
    // A TAP's write copies: that is told, and it is the only copy.
    assert!(how.copied && !how.dropped && is_ours_alone(&back));
    assert!(back.host().unwrap().to_vec() == data);
    let (all, kernel) = reader.join().unwrap();
    assert!(all == data);
    let stats = stream.stats();
    assert_eq!((stats.user_copied_in, stats.user_copied_out), (0, 0));
    assert_eq!((stats.sent, stats.referenced, stats.kernel_copied), (2 << 20, 2 << 20, 2 << 20));

    // Reset by the kernel, in the middle of a send: more than it takes without a reader.
    let sent = stream.send_zerocopy_with_flags(back, onecopy_net::SendFlags::DONTWAIT).unwrap();
    rustix::net::sockopt::set_socket_linger(&kernel, Some(Duration::ZERO)).unwrap();
    drop(kernel);
    let (back, how) = sent.wait();
    assert!(how.dropped && is_ours_alone(&back) && back.len() == 2 << 20);
    assert_eq!(stack.pinned_pages(), 0);
}

#[test]
fn datagrams_are_told_of_when_the_tap_has_them() {
    let Some((namespace, stack)) = world() else { return };
    let kernel = namespace.run(|| UdpSocket::bind((KERNEL, 0))).unwrap().unwrap();
    let to: SocketAddr = kernel.local_addr().unwrap();
    let socket = Socket::unbound(&stack).unwrap();
    let (pool, data) = (pool(), pattern(1400));
    let (back, how) = socket.send_zerocopy(chain(&pool, &data), &Envelope::to(to)).unwrap().wait();
    assert!(how.copied && !how.dropped && is_ours_alone(&back));
    let mut buffer = [0; 2000];
    let (n, _) = kernel.recv_from(&mut buffer).unwrap();
    assert!(buffer[..n] == data);
    let stats = socket.stats();
    assert_eq!((stats.user_copied_in, stats.referenced, stats.kernel_copied), (0, 1400, 1400));
}
