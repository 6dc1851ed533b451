//! Names as long as a path may be, which any sender may have. The receiver gets them unchanged, and can
//! answer.

use onecopy::unix::{Datagram, Listener, SocketAddr, Stream};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::PathBuf;

/// A folder for one test, removed with its contents.
struct Folder(PathBuf);

impl Folder {
    fn new(what: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("onecopy-{what}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Returns a path in the folder that has `len` bytes.
    fn path(&self, len: usize) -> PathBuf {
        self.0.join("x".repeat(len - self.0.as_os_str().len() - 1))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn who_has_the_longest_path_is_accepted_and_told() {
    let folder = Folder::new("names-accept");
    let name = folder.path(80);
    let listener = Listener::bind(name.as_path()).unwrap();
    for len in [106, 107, 108] {
        let path = folder.path(len);
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let client = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::bind(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::connect(&client, &SocketAddrUnix::new(&name).unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(server.peer_addr().unwrap(), SocketAddr::from_pathname(&path).unwrap(), "{len}");
    }
}

#[test]
fn a_listener_with_the_longest_path_is_told() {
    let folder = Folder::new("names-listen");
    for len in [106, 107, 108] {
        let path = folder.path(len);
        let listener = Listener::bind(path.as_path()).unwrap();
        assert_eq!(listener.local_addr().unwrap(), SocketAddr::from_pathname(&path).unwrap(), "{len}");
        let client = Stream::connect(path.as_path()).unwrap();
        assert_eq!(client.peer_addr().unwrap(), SocketAddr::from_pathname(&path).unwrap(), "{len}");
        assert_eq!(
            listener.accept().unwrap().0.local_addr().unwrap(),
            SocketAddr::from_pathname(&path).unwrap(),
            "{len}"
        );
    }
}

#[test]
fn a_datagram_from_the_longest_path_tells_it_and_is_answered() {
    let folder = Folder::new("names-dgram");
    let name = folder.path(80);
    let receiver = Datagram::bind(name.as_path()).unwrap();
    let mut buffer = [0; 4];
    for len in [106, 107, 108] {
        let path = folder.path(len);
        let sender = Datagram::bind(path.as_path()).unwrap();
        sender.connect(name.as_path()).unwrap();
        // The first datagrams go over the kernel, and the later ones through memory.
        for i in 0..50u8 {
            sender.send(&[i]).unwrap();
            let (n, from) = receiver.recv_from(&mut buffer).unwrap();
            assert_eq!(
                (&buffer[..n], &from),
                (&[i][..], &SocketAddr::from_pathname(&path).unwrap()),
                "{len}"
            );
        }
        assert!(sender.path().send == onecopy::Carrier::SharedMemory, "{len}: {:?}", sender.path());
        let (_, from) = {
            sender.send(b"?").unwrap();
            receiver.recv_from(&mut buffer).unwrap()
        };
        receiver.send_to(b"ho", &from).unwrap();
        assert_eq!(sender.recv(&mut buffer).unwrap(), 2, "{len}");
    }
}
