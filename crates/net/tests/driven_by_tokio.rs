//! Stacks without threads, which tokio's reactor drives.

use onecopy_link::Tap;
use onecopy_net::tcp::tokio::{Listener, Stream};
use onecopy_net::udp::tokio::Socket;
use onecopy_net::{Driver, Stack};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn stacks() -> [Stack; 2] {
    let (a, b) = Tap::cable(1500).unwrap();
    let build = |tap, address| {
        let builder = Stack::builder().link(tap).address(address).driver(Driver::Caller);
        builder.linger(Duration::ZERO).build().unwrap()
    };
    [build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24")]
}

fn drive(stack: &Stack) -> tokio::task::JoinHandle<onecopy_net::Error> {
    let stack = stack.clone();
    tokio::spawn(async move {
        let Err(error) = stack.drive_async().await;
        error
    })
}

/// On one thread, where nobody but the runtime can have driven them; and on several.
async fn bytes_go_both_ways_and_nothing_is_left_waiting() {
    let stacks = stacks();
    let driving = stacks.each_ref().map(drive);
    let listener = Listener::bind(&stacks[1], SocketAddr::from(([10, 0, 0, 2], 0))).await.unwrap();
    let to = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(Stream::connect(&stacks[0], to), listener.accept());
    let (mut client, mut server) = (client.unwrap(), accepted.unwrap().0);
    // Each waits for the other.
    for round in 0..1000_u32 {
        client.write_all(&round.to_le_bytes()).await.unwrap();
        let mut buffer = [0; 4];
        server.read_exact(&mut buffer).await.unwrap();
        assert_eq!(u32::from_le_bytes(buffer), round);
        server.write_all(&buffer).await.unwrap();
        client.read_exact(&mut buffer).await.unwrap();
        assert_eq!(u32::from_le_bytes(buffer), round);
    }
    let data: Vec<u8> = (0..4_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut from, mut into) = server.into_split();
    let echo = tokio::spawn(async move { tokio::io::copy(&mut from, &mut into).await.unwrap() });
    let (mut back, mut out) = client.into_split();
    let sent = data.clone();
    let send = tokio::spawn(async move {
        out.write_all(&sent).await.unwrap();
    });
    let mut all = Vec::new();
    back.read_to_end(&mut all).await.unwrap();
    assert!(all == data);
    assert_eq!(echo.await.unwrap(), data.len() as u64);
    send.await.unwrap();
    // Only a busy machine has its timers go off before what came is taken.
    let again = stacks.each_ref().map(|stack| stack.with(|stack| stack.tcp_stats().retransmitted));
    assert!(again.iter().all(|again| *again < 10), "{again:?} sent again: wake-ups were lost");
    driving.iter().for_each(|driving| driving.abort());
}

/// Datagrams, which no timer sends again; and with each hundred of them others drive.
async fn no_timer_is_needed_whoever_drives() {
    let stacks = stacks();
    let [one, other] = [0, 1].map(|at| SocketAddr::from(([10, 0, 0, at + 1], 4000)));
    let socket = Socket::bind(&stacks[0], one).await.unwrap();
    let echo = Socket::bind(&stacks[1], other).await.unwrap();
    // It waits before anything comes: a call that finds something by itself needs nobody who drives.
    let echo = tokio::spawn(async move {
        let mut buffer = [0; 4];
        loop {
            let (len, from) = echo.recv_from(&mut buffer).await.unwrap();
            echo.send_to(&buffer[..len], from).await.unwrap();
        }
    });
    let mut driving = stacks.each_ref().map(drive);
    for round in 0..1000_u32 {
        if round % 100 == 50 {
            // It waits where nobody drives, in one stack or the other.
            let at = (round / 100) as usize % 2;
            driving[at].abort();
            assert!((&mut driving[at]).await.unwrap_err().is_cancelled());
            socket.send_to(&round.to_le_bytes(), other).await.unwrap();
            tokio::task::yield_now().await;
            driving[at] = drive(&stacks[at]);
        } else {
            socket.send_to(&round.to_le_bytes(), other).await.unwrap();
        }
        let mut buffer = [0; 4];
        let (len, from) = within(socket.recv_from(&mut buffer)).await.unwrap();
        assert_eq!((len, u32::from_le_bytes(buffer), from), (4, round, other));
    }
    echo.abort();
    driving.iter().for_each(|driving| driving.abort());
}

/// What is lost never comes: that is said in place of a test that hangs.
async fn within<R>(what: impl Future<Output = R>) -> R {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("a wake-up was lost")
}

#[test]
fn one_thread_drives_both() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(bytes_go_both_ways_and_nothing_is_left_waiting());
    runtime.block_on(no_timer_is_needed_whoever_drives());
}

#[test]
fn several_threads_drive_them() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(bytes_go_both_ways_and_nothing_is_left_waiting());
    runtime.block_on(no_timer_is_needed_whoever_drives());
}

#[tokio::test]
async fn what_cannot_be_driven_says_so_and_a_link_that_is_gone_ends_it() {
    let (a, b) = Tap::cable(1500).unwrap();
    let threaded = Stack::builder().link(a).address("10.0.0.1/24").build().unwrap();
    let Err(error) = threaded.drive_async().await;
    assert_eq!(error.raw_os_error(), Errno::OPNOTSUPP.raw_os_error());
    drop((threaded, b));
    let [one, other] = stacks();
    let driving = drive(&one);
    tokio::task::yield_now().await;
    drop(other);
    assert_eq!(driving.await.unwrap().raw_os_error(), Errno::NOTCONN.raw_os_error());
}
