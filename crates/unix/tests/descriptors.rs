//! The descriptors that a connection keeps open.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::{alone, descriptors, mappings};
use onecopy_unix::*;

fn ring_mappings() -> usize {
    mappings("onecopy-ring")
}

#[test]
fn an_upgraded_connection_holds_one_descriptor_at_each_end_and_leaves_nothing() {
    alone!();
    let name =
        SocketAddr::from_abstract_name(format!("onecopy-test-descriptors-{}", std::process::id())).unwrap();
    let listener = Listener::bind(&name).unwrap();
    let before = descriptors();
    let client = Stream::connect(&name).unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut byte = [0];
    for _ in 0..3 {
        client.send(b"x").unwrap();
        server.recv(&mut byte).unwrap();
        server.send(b"y").unwrap();
        client.recv(&mut byte).unwrap();
    }
    assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
    assert_eq!(descriptors(), before + 2);
    assert_eq!(ring_mappings(), 2);
    drop((client, server));
    assert_eq!(descriptors(), before);
    assert_eq!(ring_mappings(), 0);
}
