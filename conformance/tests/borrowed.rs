//! The peer is killed while the survivor holds views of what it sent.

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};

use onecopy::RecvFlags;
use onecopy::unix::SocketAddr;
use onecopy_conformance::peer::{self, Traffic};
use onecopy_conformance::socket::Sort;

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
    for (sort, seed) in Sort::ALL.into_iter().flat_map(|sort| (0..20).map(move |seed| (sort, seed))) {
        let name = format!("onecopy-lent-{}-{}-{seed}", std::process::id(), sort.word());
        let traffic = Traffic::of_peer(sort, seed);
        let listener = sort.listen(SocketAddr::from_abstract_name(&name).unwrap()).expect("bind");
        let progress = peer::progress_file().expect("memfd");
        let mut child = Killed(
            Command::new(env!("CARGO_BIN_EXE_onecopy-conformance"))
                .args(["peer", sort.word(), &name, "write", &seed.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::from(progress))
                .stderr(Stdio::null())
                .spawn()
                .expect("spawn"),
        );
        let socket = listener.accept().expect("accept");
        // Both ends must have moved to shared memory for a view to be one. What is held leaves the peer the room that it may
        // reserve at once.
        let (mut at, mut held, mut views) = (0, 0, Vec::new());
        while views.len() < 8 && held < 40_000 {
            let view = socket.recv_borrowed_with_flags(20_000, RecvFlags::empty()).expect("no datagrams");
            let view = view.expect("borrow");
            assert!(!view.is_empty(), "the peer writes until it is killed");
            held += view.len();
            let mut buf = vec![0; view.len()];
            view.copy_to(&mut buf);
            let further = traffic.check(at, &buf, 20_000).expect("what is borrowed");
            views.push((at, view));
            at += further;
        }
        child.0.kill().expect("kill");
        child.0.wait().expect("wait");
        // The rest comes too, and then the end, with the views still held.
        for (at, view) in &views {
            let mut buf = vec![0; view.len()];
            assert_eq!(view.copy_to(&mut buf), buf.len());
            traffic.check(*at, &buf, 20_000).expect("what was borrowed");
        }
        drop(views);
        let mut buf = vec![0; 50_000];
        loop {
            match socket.recv_with_flags(&mut buf, RecvFlags::empty()) {
                Ok(0) => break,
                Ok(n) => at += traffic.check(at, &buf[..n], 50_000).expect("what came after"),
                Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "after {at}"),
            }
        }
    }
}
