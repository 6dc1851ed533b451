//! Which congestion control the kernel's sockets have: what is told is what the kernel says.

use crate::world::{anywhere, pair, stack, until};
use onecopy_net::tcp::{Algorithm, Listener, Stream};
use onecopy_net::{Stack, Transport};
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::thread;

/// Those of ours that this kernel has; and not the system's own first, so that it shows whether it was set.
fn there() -> Vec<Algorithm> {
    let std = TcpListener::bind(anywhere()).unwrap();
    let usual = tcp_congestion(&std).unwrap();
    let mut there = vec![Algorithm::Reno, Algorithm::Cubic];
    there.retain(|algorithm| set_tcp_congestion(&std, algorithm.name()).is_ok());
    assert!(there.contains(&Algorithm::Reno), "every kernel has it");
    there.sort_by_key(|algorithm| algorithm.name() == usual);
    there
}

fn told(stream: &Stream) -> Option<Algorithm> {
    let mut told = None;
    stream.set(|settings| told = settings.congestion).unwrap();
    told
}

fn choose(stream: &Stream, algorithm: Algorithm) -> onecopy_net::Result<()> {
    stream.set(|settings| settings.congestion = Some(algorithm))
}

/// Connects, and waits until the kernel has the listener's end, too.
fn come(stack: &Stack, listener: &Listener) -> Stream {
    let client = Stream::connect(stack, listener.local_addr().unwrap()).unwrap();
    client.send(b"here").unwrap();
    until(|| client.unacknowledged_bytes().unwrap() == 0);
    client
}

#[test]
fn a_stream_has_what_was_chosen() {
    let Some(stack) = stack() else { return };
    let (client, server) = pair(&stack);
    for stream in [&client, &server] {
        assert_eq!(told(stream), None);
        for algorithm in there() {
            choose(stream, algorithm).unwrap();
            assert_eq!(told(stream), Some(algorithm));
            stream.set_nodelay(true).unwrap();
            assert_eq!((told(stream), stream.nodelay().unwrap()), (Some(algorithm), true));
        }
    }
    client.send(b"still there").unwrap();
    assert_eq!(server.recv(&mut [0; 20]).unwrap(), 11);
}

#[test]
fn who_comes_has_what_the_listener_had_when_he_came() {
    let Some(stack) = stack() else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let mut clients = vec![come(&stack, &listener)];
    let there = there();
    for algorithm in &there {
        listener.set(|settings| settings.congestion = Some(*algorithm)).unwrap();
        clients.push(come(&stack, &listener));
    }
    // The first one has the system's own, which is not the one that was chosen next, and perhaps none of ours.
    let (first, _) = listener.accept().unwrap();
    if there.len() > 1 {
        assert_ne!(told(&first), Some(there[0]));
        choose(&first, there[0]).unwrap();
        assert_eq!(told(&first), Some(there[0]));
    }
    for algorithm in there {
        assert_eq!(told(&listener.accept().unwrap().0), Some(algorithm));
    }
}

/// What the stack has sockets begin with, clients and those of a listener, until something else is chosen.
#[test]
fn sockets_begin_with_what_the_stack_says() {
    if stack().is_none() {
        return;
    }
    for algorithm in there() {
        let builder = Stack::builder().transport(Transport::Kernel);
        let stack = builder.kernel(|config| config.congestion = Some(algorithm)).build().unwrap();
        let (client, server) = pair(&stack);
        for stream in [&client, &server] {
            assert_eq!(told(stream), Some(algorithm));
            choose(stream, Algorithm::Reno).unwrap();
            assert_eq!(told(stream), Some(Algorithm::Reno));
        }
    }
}

#[test]
fn a_choice_is_replaced_and_not_taken_back() {
    let Some(stack) = stack() else { return };
    let (client, _server) = pair(&stack);
    choose(&client, Algorithm::Reno).unwrap();
    let error = client.set(|settings| settings.congestion = None).unwrap_err();
    assert_eq!((error.kind(), error.argument()), (ErrorKind::InvalidInput, Some("congestion")));
    assert!(error.reason().is_some(), "{error}");
    assert_eq!(told(&client), Some(Algorithm::Reno));
    // What it refuses keeps the rest from being set.
    client.set(|settings| (settings.congestion, settings.nodelay) = (None, true)).unwrap_err();
    assert!(!client.nodelay().unwrap());
}

/// Whoever may not choose hears what the kernel says of a socket of std's.
#[test]
fn a_refusal_is_the_kernels_and_says_what_to_do() {
    let Some(stack) = stack() else { return };
    let (client, _server) = pair(&stack);
    // Capabilities are the thread's own.
    let tried = thread::spawn(move || {
        let mut mine = capabilities(None).unwrap();
        mine.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, mine).unwrap();
        let std = TcpListener::bind(anywhere()).unwrap();
        [Algorithm::Reno, Algorithm::Cubic].map(|algorithm| {
            let expected = set_tcp_congestion(&std, algorithm.name()).err().map(|errno| errno.raw_os_error());
            let builder = Stack::builder().transport(Transport::Kernel);
            let stack = builder.kernel(|config| config.congestion = Some(algorithm)).build().unwrap();
            let begun = Listener::bind(&stack, anywhere()).map(drop);
            let called = Stream::connect(&stack, std.local_addr().unwrap()).map(drop);
            (algorithm, expected, [choose(&client, algorithm), begun, called])
        })
    });
    for (algorithm, expected, results) in tried.join().unwrap() {
        for result in results {
            assert_eq!(result.as_ref().err().map(|error| error.raw_os_error()), expected);
            let Err(error) = result else { continue };
            let said = error.to_string();
            assert!(said.contains(algorithm.name()) && said.contains("/proc/sys/net/ipv4/tcp_"), "{said}");
            println!("{said}");
        }
    }
}
