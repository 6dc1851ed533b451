//! Socket options, which the kernel has.

use crate::world::{anywhere, pair, stack};
use onecopy_net::tcp::{Listener, Stream};
use std::io::{Read, Write};
use std::time::Duration;

#[test]
fn options_reach_the_kernel() {
    let Some(stack) = stack() else { return };
    let (client, _server) = pair(&stack);
    client.set_nodelay(true).unwrap();
    client.set_ttl(9).unwrap();
    assert!(client.nodelay().unwrap());
    assert_eq!(client.ttl().unwrap(), 9);
    client.set(|settings| settings.keepalive = true).unwrap();
    assert_eq!(client.info().state, 1);
    // It says how a connection begins.
    let error = client.set(|settings| settings.fast_open_connect = true).unwrap_err();
    assert_eq!(error.argument(), Some("fast_open_connect"));
    assert!(error.reason().is_some(), "{error}");
    // What was set before one that is refused is told as it is.
    client.set(|settings| (settings.nodelay, settings.fast_open_connect) = (false, true)).unwrap_err();
    assert!(!client.nodelay().unwrap());
}

#[test]
fn a_listeners_longest_segment_is_its_connections() {
    let Some(stack) = stack() else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    listener.set(|settings| settings.max_segment = Some(700)).unwrap();
    let client = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    // (Time stamps take some of it.)
    for end in [&client, &server] {
        assert!((600..=700).contains(&end.info().snd_mss), "{:?}", end.info());
    }
}

#[test]
fn bytes_pass_with_all_that_can_be_set() {
    let Some(stack) = stack() else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let wait = Some(Duration::from_secs(3));
    listener
        .set(|settings| {
            (settings.defer_accept, settings.window_clamp) = (wait, Some(20_000));
        })
        .unwrap();
    let mut client = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
    client
        .set(|settings| {
            settings.notsent_lowat = Some(4096);
            settings.window_clamp = Some(30_000);
            settings.max_pacing_rate = Some(1 << 40);
            (settings.syn_retries, settings.fin_wait) = (Some(2), wait);
        })
        .unwrap();
    let data = crate::world::pattern(200_000);
    client.write_all(&data[..1]).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let writer = std::thread::spawn(move || client.write_all(&data[1..]).map(|()| (client, data)));
    let mut got = vec![0; 200_000];
    server.read_exact(&mut got).unwrap();
    let (mut client, data) = writer.join().unwrap().unwrap();
    assert!(got == data);
    server.write_all(&data).unwrap();
    client.read_exact(&mut got).unwrap();
    assert!(got == data);
    // What fits into 16 bits takes no scale. (The kernel lets the window itself grow with what is read.)
    assert_eq!(client.info().snd_wscale, 0);
    // A value that none of them takes changes nothing.
    client.set(|settings| (settings.nodelay, settings.syn_retries) = (true, Some(0))).unwrap_err();
    assert!(!client.nodelay().unwrap());
}
