//! The peer is killed while the survivor holds views of what it sent.

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};

use onecopy::unix::{Listener, Name, RecvFlags};
use onecopy_conformance::peer::{self, peer_sends};

/// A peer process, killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Peer death while data is borrowed: what a view shows stays, and is right.
#[test]
fn borrowed_data_outlives_its_sender() {
    for seed in 0..30 {
        let name = format!("onecopy-lent-{}-{seed}", std::process::id());
        let listener = Listener::bind(Name::abstract_(&name)).expect("bind");
        let progress = peer::progress_file().expect("memfd");
        let mut child = Killed(
            Command::new(env!("CARGO_BIN_EXE_onecopy-conformance"))
                .args(["peer", &name, "write", &seed.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::from(progress))
                .stderr(Stdio::null())
                .spawn()
                .expect("spawn"),
        );
        let stream = listener.accept().expect("accept");
        // Both ends must have moved to shared memory for a view to be one. What is held leaves the peer the room that it may
        // reserve at once.
        let (mut at, mut views) = (0, Vec::new());
        while views.len() < 8 && at < 40_000 {
            let view = stream.recv_borrowed(20_000).expect("borrow");
            assert!(!view.is_empty(), "the peer writes until it is killed");
            let len = view.len();
            views.push((at, view));
            at += len;
        }
        child.0.kill().expect("kill");
        child.0.wait().expect("wait");
        // The rest comes too, and then the end, with the views still held.
        for (at, view) in &views {
            let mut buf = vec![0; view.len()];
            assert_eq!(view.copy_to(&mut buf), buf.len());
            peer_sends(seed).check(*at, &buf).expect("what was borrowed");
        }
        drop(views);
        let mut buf = vec![0; 50_000];
        loop {
            match stream.recv(&mut buf, RecvFlags::empty()) {
                Ok(0) => break,
                Ok(n) => {
                    peer_sends(seed).check(at, &buf[..n]).expect("what came after");
                    at += n;
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "after {at} bytes"),
            }
        }
    }
}
