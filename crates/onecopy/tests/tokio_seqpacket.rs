//! Records of both kinds in a tokio runtime: every way to send and to receive them. Nothing is lost, and no
//! task waits in vain.

use onecopy::ReceivedFlags;
use onecopy::SendFlags;
use onecopy::unix::tokio::{SeqListener, SeqPacket};
use onecopy::unix::{Config, Records, SocketAddr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

const COUNT: usize = 1000;
const LIMIT: Duration = Duration::from_secs(120);

/// Returns record number `n`. Its length and its bytes follow from the number.
fn record(n: usize) -> Vec<u8> {
    (0..1 + n * 7 % 3000).map(|i| (i * 31 + n) as u8).collect()
}

/// Returns whether a descriptor comes with record `n`: a file that contains the number.
fn brings_file(n: usize) -> bool {
    n % 97 == 5
}

async fn sends(socket: SeqPacket, records: Records) -> SeqPacket {
    for n in 0..COUNT {
        let bytes = record(n);
        if brings_file(n) {
            // Descriptors go with the first bytes of a record.
            let (reader, mut writer) = std::io::pipe().unwrap();
            write!(writer, "{n}").unwrap();
            let sent = socket.send_fds_with_flags(&bytes, &[reader.as_fd()], SendFlags::EOR).await.unwrap();
            send_rest(&socket, &bytes[sent..]).await;
        } else if n % 3 == 0 && records == Records::Atomic {
            let mut slot = socket.reserve(bytes.len()).await.unwrap();
            slot.copy_from(&bytes);
            assert_eq!(slot.commit().unwrap(), bytes.len());
        } else {
            send_rest(&socket, &bytes).await;
        }
    }
    socket
}

/// Sends the rest of a record. A send may take only a part of a stream record.
async fn send_rest(socket: &SeqPacket, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        bytes = &bytes[socket.send_with_flags(bytes, SendFlags::EOR).await.unwrap()..];
    }
}

async fn receives(socket: SeqPacket) -> SeqPacket {
    let mut buffer = [0; 4000];
    for n in 0..COUNT {
        let (mut got, mut files) = (Vec::new(), Vec::new());
        // A part of a stream record may come alone.
        while got.len() < record(n).len() {
            if n % 5 == 0 && !brings_file(n) {
                let (view, _) = socket.recv_borrowed(4000).await.unwrap();
                let len = view.copy_to(&mut buffer);
                got.extend_from_slice(&buffer[..len]);
                continue;
            }
            let (received, came) = socket.recv_fds(&mut buffer).await.unwrap();
            assert!(!received.flags.contains(ReceivedFlags::END), "record {n}");
            got.extend_from_slice(&buffer[..received.len]);
            files.extend(came.fds);
        }
        assert_eq!(got, record(n), "record {n}");
        assert_eq!(files.len(), usize::from(brings_file(n)), "record {n}");
        for fd in files {
            let mut text = String::new();
            File::from(fd).read_to_string(&mut text).unwrap();
            assert_eq!(text, n.to_string());
        }
    }
    socket
}

#[tokio::test]
async fn records_of_both_kinds_flow_both_ways() {
    for records in [Records::Atomic, Records::Stream] {
        let config = Config { records, ..Config::default() };
        let name =
            SocketAddr::from_abstract_name(format!("onecopy-tokio-{records:?}-{}", std::process::id()))
                .unwrap();
        let listener = SeqListener::bind_with(&name, &config).unwrap();
        let both = async {
            let server = tokio::spawn(async move {
                let (socket, _) = listener.accept().await.unwrap();
                sends(receives(socket).await, records).await
            });
            let client = SeqPacket::connect_with(&name, &config).await.unwrap();
            let client = receives(sends(client, records).await).await;
            let server = server.await.unwrap();
            assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
            drop(client);
            let end = server.recv_record(&mut [0; 9]).await.unwrap();
            assert!(end.flags.contains(ReceivedFlags::END));
        };
        tokio::time::timeout(LIMIT, both).await.expect("it hangs");
    }
}

/// A task that waits for room, or for a record, does not block the others on its thread.
#[tokio::test]
async fn a_full_ring_is_waited_for() {
    let config = Config { send_buffer: Some(4096), receive_buffer: Some(4096), ..Config::default() };
    let (a, b) = SeqPacket::pair_with(&config).unwrap();
    let both = async { tokio::join!(sends(a, Records::Atomic), receives(b)) };
    tokio::time::timeout(LIMIT, both).await.expect("it hangs");
}
