//! iperf3 through our TCP: its client and its server are the kernel's, and speak with each other over a relay on our stack.

use crate::world::{KERNEL, OURS, World};
use onecopy::{SendFlags, Stack, Wait, tcp};
use std::net::{Shutdown, SocketAddr};
use std::process::Command;
use std::thread;

const PORT: u16 = 5201;

/// Passes on what comes, from the pages that it lies in, until it ends.
fn pass(from: &tcp::Stream, to: &tcp::Stream) {
    while let Ok(view) = from.recv_borrowed(1 << 20)
        && !view.is_empty()
        && to.send_segment(view.into_segment(), SendFlags::empty()).is_ok()
    {}
    let _ = to.shutdown(Shutdown::Write);
}

/// Connects whoever connects to `to`.
fn relay(stack: &Stack, listener: &tcp::Listener, to: SocketAddr) {
    while let Ok((client, _)) = listener.accept() {
        let stack = stack.clone();
        thread::spawn(move || {
            let server = tcp::Stream::connect(&stack, to).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| pass(&client, &server));
                pass(&server, &client);
            });
        });
    }
}

#[test]
fn iperf3_both_ways() {
    let Some(world) = World::new(&["iperf3"]) else { return };
    let tap = world.tap();
    let stack = Stack::builder().link(tap).address("10.77.0.2/24").wait(Wait::Block).build().unwrap();
    let at = SocketAddr::new(OURS.parse().unwrap(), PORT);
    let listener = tcp::Listener::bind(&stack, at).unwrap();
    let (relays, accepts) = (stack.clone(), listener.try_clone().unwrap());
    let to = SocketAddr::new(KERNEL.parse().unwrap(), PORT);
    let relaying = thread::spawn(move || relay(&relays, &accepts, to));
    // As much as a slow machine passes in a few seconds; of one stream, and of four. It is more than all the buffers on the
    // way hold: the client ends the test when it has sent all, and then what is still on its way is never counted.
    const BYTES: u32 = 64 << 20;
    for flags in ["", "-R", "-P 4", "-R -P 4"] {
        let mut server = Command::new("iperf3");
        let server = world.start(server.args(["-s", "-1", "-B", KERNEL]));
        while !world.shell("grep -q ':1451 00000000:0000 0A' /proc/net/tcp /proc/net/tcp6").status.success() {
            thread::sleep(std::time::Duration::from_millis(5));
        }
        let said = world.does(&format!("iperf3 -c {OURS} -n {BYTES} -J {flags}"));
        let result: serde_json::Value = serde_json::from_str(&said).unwrap();
        let bytes = |sum: &str| result["end"][sum]["bytes"].as_f64().unwrap_or_default();
        assert!(bytes("sum_sent") >= f64::from(BYTES), "{flags}: {}", result["end"]);
        assert!(bytes("sum_received") > 0.0, "{flags}: {}", result["end"]);
        server.end().well();
    }
    listener.shutdown().unwrap();
    relaying.join().unwrap();
    let retransmitted = stack.with(|inet| inet.tcp_stats().retransmitted);
    eprintln!("{retransmitted} segments sent again");
}
