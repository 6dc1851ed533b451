//! Many tasks send on one socket of small buffers, and nobody waits in vain: neither a receiver that met a filler
//! under way, nor a sender that a slot has turned away.
#![allow(missing_docs, reason = "a test")]

use onecopy::Transport;
use onecopy::unix::Config;
use onecopy::unix::tokio::{SeqPacket, Stream};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// After that long without an end, somebody waits in vain.
const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: usize = 10;
const RECORDS: usize = 1500;

fn small(transport: Transport) -> Config {
    Config { send_buffer: Some(4096), receive_buffer: Some(4096), transport, ..Config::default() }
}

/// Sends records from `senders` tasks, of which the last reserves room for them if `slots`.
async fn records(transport: Transport, senders: usize, slots: bool) {
    let (a, b) = SeqPacket::pair_with(&small(transport)).unwrap();
    let a = Arc::new(a);
    let mut tasks = JoinSet::new();
    for sender in 0..senders {
        let a = a.clone();
        tasks.spawn(async move {
            for i in 0..RECORDS {
                let bytes = vec![7; i % 1500 + 1];
                if slots && sender == senders - 1 {
                    let mut slot = a.reserve(bytes.len()).await.unwrap();
                    slot.copy_from(&bytes);
                    slot.commit().unwrap();
                } else {
                    a.send(&bytes).await.unwrap();
                }
            }
        });
    }
    let mut buffer = [0; 2000];
    for _ in 0..senders * RECORDS {
        assert!(b.recv(&mut buffer).await.unwrap() > 0);
    }
    while tasks.join_next().await.transpose().unwrap().is_some() {}
}

async fn bytes(senders: usize) {
    const EACH: usize = 300_000;
    let (a, b) = Stream::pair_with(&small(Transport::Auto)).unwrap();
    let a = Arc::new(a);
    let mut tasks = JoinSet::new();
    for sender in 0..senders {
        let a = a.clone();
        tasks.spawn(async move {
            let mut left = EACH;
            while left > 0 {
                left -= a.send(&vec![7; left.min(1000 * (sender + 1))]).await.unwrap();
            }
        });
    }
    let (mut got, mut buffer) = (0, [0; 700]);
    while got < senders * EACH {
        got += b.recv(&mut buffer).await.unwrap();
    }
    while tasks.join_next().await.transpose().unwrap().is_some() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_of_records_and_a_receiver() {
    for round in 0..ROUNDS {
        let all = tokio::time::timeout(LIMIT, records(Transport::Auto, 2, false)).await;
        assert!(all.is_ok(), "round {round}: somebody waits in vain");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_of_bytes_and_a_receiver() {
    for round in 0..ROUNDS {
        let all = tokio::time::timeout(LIMIT, bytes(3)).await;
        assert!(all.is_ok(), "round {round}: somebody waits in vain");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn senders_that_a_slot_turns_away_come_back() {
    for transport in [Transport::Kernel, Transport::Auto] {
        for round in 0..ROUNDS {
            let all = tokio::time::timeout(LIMIT, records(transport, 3, true)).await;
            assert!(all.is_ok(), "{transport:?}, round {round}: somebody waits in vain");
        }
    }
}
