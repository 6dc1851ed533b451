//! Lanes where little is as it should be: more senders than have room, names that mean another socket by now, rings that are too
//! small, processes that are out of descriptors.

use onecopy_unix::{Carrier, Config, Datagram, Name, RecvFlags, SendFlags};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const NOW: SendFlags = SendFlags::DONTWAIT;

fn abstract_(what: &str) -> Name {
    Name::abstract_(format!("onecopy-test-lanes-{what}-{}", std::process::id()))
}

/// Some tests here use up descriptors, or fork.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn receiver(name: &Name, config: &Config) -> Datagram {
    let receiver = Datagram::bind_with(name, config).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    receiver
}

fn recv(socket: &Datagram) -> Vec<u8> {
    let mut buffer = vec![0; 4000];
    let n = socket.recv(&mut buffer, RecvFlags::empty()).unwrap();
    buffer.truncate(n);
    buffer
}

/// Many begin at once, and more of them say hello than the receiver keeps in mind; their knocks are no datagrams for that.
#[test]
fn more_senders_begin_at_once_than_are_kept_in_mind() {
    let _alone = alone();
    let name = abstract_("many");
    let b = receiver(&name, &Config::default());
    let senders: Vec<Datagram> = (0..200)
        .map(|_| {
            let sender = Datagram::unbound().unwrap();
            sender.connect(&name).unwrap();
            sender
        })
        .collect();
    for round in 0..40u8 {
        for (who, sender) in senders.iter().enumerate() {
            sender.send(&[who as u8, round], NOW).unwrap();
            assert_eq!(recv(&b), [who as u8, round]);
        }
    }
    let laned = senders.iter().filter(|sender| sender.path().send == Carrier::SharedMemory).count();
    assert!(laned > 0, "nobody");
    assert_eq!(b.stats().protocol_errors, 0);
}
