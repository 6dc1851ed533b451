//! What the tests have in common: a stack that the kernel carries, and connections over the loopback.

use onecopy_net::kernel::ZeroCopy;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{BuildError, Builder, Stack, Transport, Wait};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// None where io_uring is forbidden: said, and nothing is tried.
pub fn stack_with(zero_copy: ZeroCopy, wait: Wait) -> Option<Stack> {
    built(Stack::builder().wait(wait).kernel(|config| config.zero_copy = zero_copy))
}

/// The same, of any other stack.
pub fn built(builder: Builder) -> Option<Stack> {
    match builder.transport(Transport::Kernel).build() {
        Ok(stack) => Some(stack),
        Err(BuildError::Uring(refused)) => {
            println!("lacking: io_uring ({refused})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn stack() -> Option<Stack> {
    stack_with(ZeroCopy::Auto, Wait::Block)
}

pub fn anywhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// A connection of the stack with itself, the client's end first.
pub fn pair(stack: &Stack) -> (Stream, Stream) {
    let listener = Listener::bind(stack, anywhere()).unwrap();
    let to = listener.local_addr().unwrap();
    let client = Stream::connect(stack, to).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), to);
    (client, server)
}

/// A connection with std's.
pub fn with_std(stack: &Stack) -> (Stream, TcpStream) {
    let listener = TcpListener::bind(anywhere()).unwrap();
    let ours = Stream::connect(stack, listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

pub fn counter(stack: &Stack, name: &str) -> u64 {
    let all = stack.link_counters();
    all.iter().find(|(one, _)| *one == name).unwrap_or_else(|| panic!("{all:?}")).1
}

/// Waits for `done`, which a completion of the ring brings about: never longer than a minute.
pub fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if done() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("a minute was not enough");
}
